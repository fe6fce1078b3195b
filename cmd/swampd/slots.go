package main

import (
	"regexp"
	"slices"
	"strconv"
)

const newest = "newest"

var negative = regexp.MustCompile(`^-[0-9]+$`)

// negativeSlots turns the arguments -N of "diff" into "newest-N", since the flag
// parser would take them for flags.
func negativeSlots(args []string) []string {
	end := len(untilDashes(args))
	at := slices.Index(args[:end], "diff")
	if at < 0 {
		return args
	}
	args = slices.Clone(args)
	for i := at + 1; i < end; i++ {
		if negative.MatchString(args[i]) {
			args[i] = newest + args[i]
		}
	}
	return args
}

func parseSlot(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) }
