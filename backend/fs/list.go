package fs

import (
	"context"
	"errors"
	"io"
	iofs "io/fs"
	"iter"
	"slices"
	"strings"

	"github.com/swampd/swampd/backend"
)

// listChunk is how many entries of a directory are read at a time.
const listChunk = 1024

// List is backend.Driver.List. It holds the names of one directory in memory, and
// those of the directories above it, and looks at each file when its turn comes.
// Directories outside prefix, and those that end before after, are not opened.
func (d *Driver) List(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
	return func(yield func(backend.Entry, error) bool) {
		err := d.begin(ctx)
		if err == nil {
			err = backend.CheckPrefix(prefix)
		}
		if err == nil {
			err = d.rootProblem()
		}
		if err != nil {
			yield(backend.Entry{}, err)
			return
		}
		top, _ := splitKey(prefix)
		if prefix != "" && top != "" && backend.CheckKey(top) != nil || strings.HasPrefix(prefix, "/") {
			return // no key begins like this, and the path may lead anywhere
		}
		l := &lister{d: d, ctx: ctx, prefix: prefix, after: after, yield: yield}
		if top == "" || l.wanted(top+"/") {
			l.walk(top)
		}
	}
}

type lister struct {
	d             *Driver
	ctx           context.Context
	prefix, after string
	yield         func(backend.Entry, error) bool
}

// wanted says whether keys that begin with dir, which ends with a slash, may be
// listed.
func (l *lister) wanted(dir string) bool {
	return (strings.HasPrefix(dir, l.prefix) || strings.HasPrefix(l.prefix, dir)) &&
		(dir > l.after || strings.HasPrefix(l.after, dir))
}

func (l *lister) fail(err error) bool {
	l.yield(backend.Entry{}, err)
	return false
}

// walk lists a directory and says whether to go on.
func (l *lister) walk(dir string) bool {
	names, err := l.names(dir)
	if isGone(err) {
		return true
	}
	if err != nil {
		return l.fail(failed("list", dir, err))
	}
	for _, name := range names {
		if err := l.ctx.Err(); err != nil {
			return l.fail(err)
		}
		key := joinKey(dir, name)
		if sub, ok := strings.CutSuffix(key, "/"); ok {
			if !l.walk(sub) {
				return false
			}
			continue
		}
		e, err := l.entry(key)
		switch {
		case errors.Is(err, backend.ErrNotFound):
		case err != nil:
			return l.fail(err)
		case !l.yield(e, nil):
			return false
		}
	}
	// The context may have ended with the last entry; that is still a whole list.
	return true
}

// names returns what may be listed in dir, in the order of the keys: directories
// end with the slash that their keys go on with.
func (l *lister) names(dir string) ([]string, error) {
	var names []string
	records := backend.Replaceable(joinKey(dir, "x"))
	err := l.d.eachEntry(dir, func(e iofs.DirEntry) {
		name := e.Name()
		if records {
			if f, ok := parseRecordFile(name); ok && f.id && e.Type().IsRegular() {
				if key := joinKey(dir, f.base); l.lists(key) {
					names = append(names, f.base)
				}
				return
			}
		}
		key := joinKey(dir, name)
		switch {
		case l.d.isDir(key, e):
			if l.wanted(key+"/") && backend.CheckKey(key) == nil {
				names = append(names, name+"/")
			}
		case !records && e.Type().IsRegular() && l.lists(key):
			names = append(names, name)
		}
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

func (l *lister) lists(key string) bool {
	return strings.HasPrefix(key, l.prefix) && key > l.after && backend.CheckKey(key) == nil
}

// isDir says whether an entry is a directory, or a link to one, which Get and
// Create follow too.
func (d *Driver) isDir(rel string, e iofs.DirEntry) bool {
	if e.Type()&iofs.ModeSymlink == 0 {
		return e.IsDir()
	}
	info, err := d.fs.Stat(d.path(rel))
	return err == nil && info.IsDir()
}

// entry describes an object: backend.ErrNotFound if it is gone.
func (l *lister) entry(key string) (backend.Entry, error) {
	if backend.Replaceable(key) {
		s, err := l.d.current(l.ctx, recordOf(key), false)
		if err != nil {
			return backend.Entry{}, err
		}
		return backend.Entry{Key: key, Size: s.info.Size(), Modified: s.info.ModTime()}, nil
	}
	info, err := l.d.fs.Lstat(l.d.path(key))
	switch {
	case isGone(err) || err == nil && !info.Mode().IsRegular():
		return backend.Entry{}, backend.ErrNotFound
	case err != nil:
		return backend.Entry{}, failed("look at", key, err)
	}
	return backend.Entry{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil
}

// eachEntry visits what lies in a directory, in no order. An entry that is there
// from before the call until after it is visited.
func (d *Driver) eachEntry(dir string, visit func(e iofs.DirEntry)) error {
	f, err := d.fs.Open(d.path(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	next := func() ([]iofs.DirEntry, error) {
		infos, err := f.Readdir(listChunk)
		entries := make([]iofs.DirEntry, len(infos))
		for i, info := range infos {
			entries[i] = iofs.FileInfoToDirEntry(info)
		}
		return entries, err
	}
	// Readdir of afero looks at every file; the operating system need not.
	if rd, ok := f.(iofs.ReadDirFile); ok {
		next = func() ([]iofs.DirEntry, error) { return rd.ReadDir(listChunk) }
	}
	for {
		entries, err := next()
		for _, e := range entries {
			visit(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
