package main

import (
	"regexp"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
)

const newest = "newest"

var negative = regexp.MustCompile(`^-[0-9]+$`)

// negativeSlots turns the arguments -N of "diff" into "newest-N", since the flag
// parser would take them for flags. Those of other commands are left alone, even
// if a file is called diff.
func negativeSlots(root *cobra.Command, args []string) []string {
	if cmd, _, err := root.Find(args); err != nil || cmd.Name() != "diff" {
		return args
	}
	end := len(untilDashes(args))
	args = slices.Clone(args)
	for i := max(0, slices.Index(args[:end], "diff")); i < end; i++ {
		if negative.MatchString(args[i]) {
			args[i] = newest + args[i]
		}
	}
	return args
}

func parseSlot(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) }
