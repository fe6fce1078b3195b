package main

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const lsHelp = `List the files in a state: those of PATH, or all.

Directories are shown by their names with a slash at the end; -r shows the files
in them instead, by their whole paths.

-l writes a table: permissions, size, time of the file, the state that made this
version, and the name.

--json: a stream of {"path","type","slot","until","commit","size","sha256","mode",
"mtime","content_type","tags","lifetime_seconds","keep"}; type is file, symlink or
directory (which has nothing but a path), until the first state without this version.`

func (a *app) lsCommand() *cobra.Command {
	var at string
	var long, recursive bool
	cmd := &cobra.Command{
		Use:     "ls [PATH]",
		Short:   "List files",
		Long:    lsHelp,
		Example: "  swampd ls\n  swampd ls -l docs\n  swampd ls -r --at 12",
		Args:    atMost(1),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error {
		where := "."
		if len(args) == 1 {
			where = args[0]
		}
		return a.ls(ctx, where, at, long, recursive)
	})
	addAt(cmd, &at)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "permissions, size, time, state")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "all files below, by their whole paths")
	return cmd
}

func (a *app) ls(ctx context.Context, where, at string, long, recursive bool) (err error) {
	t, err := targetOf(where)
	if err != nil {
		return err
	}
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer shut(s, &err)
	slot, err := state(ctx, s, at)
	if err != nil {
		return err
	}
	show := func(v *datastore.Version, name string) error { return a.showVersion(v, name, long) }
	found := false
	if !t.dir {
		if v, err := s.Stat(ctx, t.path, slot); err == nil {
			found = true
			if err := show(v, v.Path); err != nil {
				return err
			}
		} else if !isNotFound(err) {
			return err
		}
	}
	list := listLevel
	if recursive {
		list = listAll
	}
	for e, err := range list(ctx, s, t.prefix(), slot) {
		if err != nil {
			return err
		}
		found = true
		if e.dir != "" {
			err = a.showDirectory(e.dir, e.name, long)
		} else {
			err = show(&e.version, e.name)
		}
		if err != nil {
			return err
		}
	}
	if !found && t.path != "" {
		return a.missing(t.path, slot, nil)
	}
	return nil
}

// listed is one line of a listing: a version, or a directory that was folded.
type listed struct {
	name    string // to be shown to people
	dir     string // whole path of a folded directory
	version datastore.Version
}

// listAll yields all versions below prefix.
func listAll(ctx context.Context, s *datastore.Store, prefix string, at uint64) iter.Seq2[listed, error] {
	return func(yield func(listed, error) bool) {
		for v, err := range s.List(ctx, &datastore.ListOptions{Prefix: prefix, At: at}) {
			if !yield(listed{name: v.Path, version: v}, err) || err != nil {
				return
			}
		}
	}
}

// listLevel yields what lies directly below prefix. It jumps over what is in a
// directory, so that listing costs by what is shown.
func listLevel(ctx context.Context, s *datastore.Store, prefix string, at uint64) iter.Seq2[listed, error] {
	return func(yield func(listed, error) bool) {
		after := ""
		for again := true; again; {
			again = false
			for v, err := range s.List(ctx, &datastore.ListOptions{Prefix: prefix, After: after, At: at}) {
				if err != nil {
					yield(listed{}, err)
					return
				}
				name := v.Path[len(prefix):]
				if first, _, isDir := strings.Cut(name, "/"); isDir {
					if !yield(listed{name: first + "/", dir: prefix + first + "/"}, nil) {
						return
					}
					// 0xff is in no path, and greater than all that is.
					after, again = prefix+first+"/\xff", true
					break
				}
				if !yield(listed{name: name, version: v}, nil) {
					return
				}
			}
		}
	}
}

func (a *app) showVersion(v *datastore.Version, name string, long bool) error {
	switch {
	case a.json:
		return a.emit(describeVersion(v))
	case long:
		return a.longLine(modeText(v.Mode), size(v.Size), when(v.MTime), fmt.Sprint(v.Slot), name)
	}
	return a.printf("%s\n", printable(name))
}

func (a *app) showDirectory(path, name string, long bool) error {
	switch {
	case a.json:
		return a.emit(versionJSON{Path: strings.TrimSuffix(path, "/"), Type: "directory"})
	case long:
		return a.longLine("d"+fs.FileMode(0).String()[1:], "-", "-", "-", name)
	}
	return a.printf("%s\n", printable(name))
}

// longLine has fixed widths, so that a listing of any length is a table without
// being held.
func (a *app) longLine(mode, size, when, slot, name string) error {
	return a.printf("%s  %8s  %-16s  %6s  %s\n", mode, size, when, slot, printable(name))
}
