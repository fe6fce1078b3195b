package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

// atLeastOne is the argument check of a command that needs one.
func atLeastOne(what, hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{cmd.CommandPath() + " needs a " + what, hint}
		}
		return nil
	}
}

// atMost is the argument check of a command that takes up to n.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return &usageError{cmd.CommandPath() + " takes no argument " + quoteArg(args[n]), "see: " + cmd.CommandPath() + " --help"}
		}
		return nil
	}
}

// target is an argument that names something stored.
type target struct {
	path string // "" is everything
	dir  bool   // written with a slash at its end: a directory for sure
}

// targetOf reads such an argument. "." and "/" are everything, "./" before a
// path is nothing.
func targetOf(arg string) (target, error) {
	if arg == "." || arg == "./" || arg == "/" {
		return target{dir: true}, nil
	}
	var t target
	t.path, t.dir = strings.CutSuffix(arg, "/")
	t.path = strings.TrimPrefix(t.path, "./")
	return t, datastore.CheckPath(t.path)
}

// prefix is what all paths in the directory begin with.
func (t target) prefix() string {
	if t.path == "" {
		return ""
	}
	return t.path + "/"
}

func targets(args []string) ([]target, error) {
	var all []target
	for _, arg := range args {
		t, err := targetOf(arg)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}
