package main

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/swampd/swampd/datastore"
)

// source is one argument of put: where it is, and what it is called in the
// datastore. The name of a tree whose files are stored without a directory
// before them ("put .") is empty.
type source struct {
	file string
	name string
	info fs.FileInfo
}

// stdin is the argument that stands for standard input.
const stdin = "-"

// sources reads the arguments of put. A relative argument keeps its path as its
// name; an absolute one, or one that leads out of the working directory, is
// stored under its last element. as, if set, is the name of the only argument,
// or, with a slash at its end or several arguments, the directory that all are
// put into.
func sources(args []string, as string) ([]source, error) {
	into := ""
	if len(args) > 1 || strings.HasSuffix(as, "/") {
		into, as = strings.TrimSuffix(as, "/"), ""
	}
	for _, name := range []string{into, as} {
		if name != "" {
			if err := datastore.CheckPath(name); err != nil {
				return nil, usagef("", "--as: %v", plain(err))
			}
		}
	}
	var all []source
	for _, arg := range args {
		src := source{file: arg, name: as}
		if arg == stdin {
			if len(args) > 1 {
				return nil, usagef("run it on its own: swampd put - --as NAME", "standard input (-) goes with no other argument")
			}
			if as == "" {
				return nil, usagef("give it one: swampd put - --as NAME", "standard input (-) needs a name")
			}
			return []source{src}, nil
		}
		var err error
		if src.info, err = lstat(arg); err != nil {
			return nil, err
		}
		if as == "" {
			if src.name, err = nameOf(arg); err != nil {
				return nil, err
			}
			src.name = join(into, src.name)
		}
		if src.name == "" && !src.info.IsDir() {
			return nil, usagef("give it one with --as NAME", "%q has no name that it could be stored under", arg)
		}
		if src.name != "" {
			if err := datastore.CheckPath(src.name); err != nil {
				return nil, err
			}
		}
		all = append(all, src)
	}
	return withoutOverlap(all)
}

// lstat looks at an argument. A link is itself, unless a slash follows its name.
func lstat(arg string) (fs.FileInfo, error) {
	if arg == "" {
		return nil, usagef("write . for the directory you are in", "an argument is empty")
	}
	if strings.IndexByte(arg, 0) >= 0 {
		return nil, usagef("", "the argument %q holds a NUL byte", arg)
	}
	look := os.Lstat
	if os.IsPathSeparator(arg[len(arg)-1]) {
		look = os.Stat
	}
	info, err := look(arg)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &refusal{kind: "not-found", text: "there is no file or directory " + quoteArg(arg), hint: "nothing was stored", err: err}
	case err != nil:
		return nil, unreadable([]problem{{arg, fileReason(err)}}, 1, false)
	}
	return info, nil
}

// nameOf is the name of an argument in the datastore.
func nameOf(arg string) (string, error) {
	clean := filepath.Clean(arg)
	if clean == "." {
		return "", nil
	}
	if filepath.IsLocal(clean) {
		return filepath.ToSlash(clean), nil
	}
	abs, err := filepath.Abs(clean)
	if err != nil {
		return "", usagef("give it a name with --as NAME", "%q: %v", arg, err)
	}
	base := filepath.Base(abs)
	if base == string(filepath.Separator) || base == "." || filepath.VolumeName(abs) == strings.TrimSuffix(base, string(filepath.Separator)) && filepath.VolumeName(abs) != "" {
		return "", usagef("give it a name with --as NAME", "%q has no name that it could be stored under", arg)
	}
	return base, nil
}

// join puts name below dir; either may be empty.
func join(dir, name string) string {
	if dir == "" || name == "" {
		return dir + name
	}
	return dir + "/" + name
}

// below says whether name is dir or lies in it; everything lies in "".
func below(name, dir string) bool {
	return dir == "" || name == dir || strings.HasPrefix(name, dir+"/")
}

// withoutOverlap drops sources that another one contains, and refuses two
// different ones that would be stored under one name.
func withoutOverlap(all []source) ([]source, error) {
	slices.SortStableFunc(all, func(x, y source) int { return cmp.Compare(x.name+"/", y.name+"/") })
	if i := slices.IndexFunc(all, func(s source) bool { return s.name == "" }); i > 0 {
		all = slices.Insert(slices.Delete(slices.Clone(all), i, i+1), 0, all[i])
	}
	var kept, outer []source // outer: the kept ones whose names contain the current one
	for _, src := range all {
		for len(outer) > 0 && !below(src.name, outer[len(outer)-1].name) {
			outer = outer[:len(outer)-1]
		}
		drop := false
		for _, o := range outer {
			file := o.file
			if rest := strings.TrimPrefix(strings.TrimPrefix(src.name, o.name), "/"); rest != "" {
				file = filepath.Join(file, filepath.FromSlash(rest))
			}
			info, err := os.Lstat(file)
			if err != nil {
				continue // nothing of that name is in o
			}
			if !os.SameFile(info, src.info) {
				return nil, usagef("store them one after the other, with --as NAME", "%s and %s would both be stored as %s", quoteArg(file), quoteArg(src.file), quoteArg(src.name))
			}
			drop = true
		}
		if !drop {
			kept, outer = append(kept, src), append(outer, src)
		}
	}
	return kept, nil
}
