package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const diffHelp = `Show which files differ between the states FROM and TO (default: the newest).

A state is a number from "swampd log", 0 for the empty one before all commits, or
-N for the state N commits ago: "swampd diff -1" shows what the last commit changed,
"swampd diff -2 -1" the one before. Lines begin with A (added), M (modified) or
D (deleted).

--json: a stream of {"change","path","from","to"}; change is added, modified or
deleted, from and to are as in "ls --json".`

func (a *app) diffCommand() *cobra.Command {
	var under string
	cmd := &cobra.Command{
		Use:     "diff FROM [TO]",
		Short:   "Show which files differ between two states",
		Long:    diffHelp,
		Example: "  swampd diff -1\n  swampd diff 12 15",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(`"swampd diff -1" shows what the last commit changed`, "swampd diff needs a state to begin from")
			}
			return atMost(2)(cmd, args)
		},
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error { return a.diff(ctx, args, under) })
	cmd.Flags().StringVar(&under, "under", ".", "only files in the directory `PATH`, or the file PATH")
	return cmd
}

func (a *app) diff(ctx context.Context, args []string, under string) (err error) {
	t, err := targetOf(under)
	if err != nil {
		return err
	}
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer shut(s, &err)
	from, err := slot(ctx, s, args[0])
	if err != nil {
		return err
	}
	to := s.Head()
	if len(args) > 1 {
		if to, err = slot(ctx, s, args[1]); err != nil {
			return err
		}
	}
	for d, err := range s.Diff(ctx, from, to, t.path) {
		if err != nil {
			return err
		}
		if !below(d.Path, t.path) || t.dir && d.Path == t.path {
			continue // begins with the same letters
		}
		if err := a.showDifference(&d); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) showDifference(d *datastore.Difference) error {
	change := "modified"
	switch {
	case d.From == nil:
		change = "added"
	case d.To == nil:
		change = "deleted"
	}
	if !a.json {
		letter := map[string]string{"added": "A", "modified": "M", "deleted": "D"}[change]
		return a.printf("%s  %s\n", letter, printable(d.Path))
	}
	j := diffJSON{Change: change, Path: d.Path}
	for _, side := range []struct {
		v  *datastore.Version
		to **versionJSON
	}{{d.From, &j.From}, {d.To, &j.To}} {
		if side.v != nil {
			v := describeVersion(side.v)
			*side.to = &v
		}
	}
	return a.emit(j)
}

// inState says which state was looked at, for messages.
func inState(at uint64) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf(" in state %d", at)
}
