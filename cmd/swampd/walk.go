package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/datastore"
)

// dirChunk is how many entries of a directory are held at once. A directory is
// walked in the order of names if it has no more, else in sorted chunks, so
// that one of millions of files needs no more memory.
const dirChunk = 1 << 16

// item is a file, a symbolic link, or something that cannot be stored.
type item struct {
	file  string // where it is
	name  string // in the datastore
	entry fs.DirEntry
}

// walker finds the files of sources. It does not follow symbolic links. What it
// cannot read or store goes to problem; an error of a callback ends the walk.
type walker struct {
	exclude []pattern
	own     []fs.FileInfo // directories of the datastore itself, left out
	visit   func(item) error
	problem func(file string, err error) error
	leftOut func(name, why string) // what belongs to whom; may be nil
}

func (w *walker) walk(ctx context.Context, srcs []source) error {
	for _, src := range srcs {
		if src.info.IsDir() {
			if err := w.dir(ctx, src.file, src.name, ""); err != nil {
				return err
			}
			continue
		}
		if err := w.file(item{src.file, src.name, fs.FileInfoToDirEntry(src.info)}); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) dir(ctx context.Context, dir, name, rel string) error {
	if len(w.own) > 0 {
		if info, err := os.Stat(dir); err == nil && slices.ContainsFunc(w.own, func(o fs.FileInfo) bool { return os.SameFile(o, info) }) {
			if w.leftOut != nil {
				w.leftOut(dir, "the datastore itself")
			}
			return nil
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		return w.problem(dir, err)
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(dirChunk)
		if len(entries) < dirChunk {
			f.Close() // deep trees would hold a descriptor for each level
		}
		slices.SortFunc(entries, func(x, y fs.DirEntry) int { return cmp.Compare(x.Name(), y.Name()) })
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := w.entry(ctx, e, dir, name, rel); err != nil {
				return err
			}
		}
		if err != nil && err != io.EOF {
			return w.problem(dir, err)
		}
		if len(entries) < dirChunk {
			return nil
		}
	}
}

func (w *walker) entry(ctx context.Context, e fs.DirEntry, dir, name, rel string) error {
	if strings.EqualFold(e.Name(), ".swamp") {
		if w.leftOut != nil {
			w.leftOut(filepath.Join(dir, e.Name()), "a checkout")
		}
		return nil
	}
	rel = join(rel, e.Name())
	for _, p := range w.exclude {
		if p.matches(rel, e.IsDir()) {
			return nil
		}
	}
	file, name := filepath.Join(dir, e.Name()), join(name, e.Name())
	if e.IsDir() {
		return w.dir(ctx, file, name, rel)
	}
	return w.file(item{file, name, e})
}

func (w *walker) file(it item) error {
	if err := storable(it); err != nil {
		return w.problem(it.file, err)
	}
	return w.visit(it)
}

// specialError: a file that has no content to be stored.
type specialError string

func (e specialError) Error() string { return "is " + string(e) + ", which cannot be stored" }

// storable says whether an item can be stored at all, as far as its name and
// type tell.
func storable(it item) error {
	if err := datastore.CheckPath(it.name); err != nil {
		return err
	}
	switch t := it.entry.Type(); {
	case t.IsRegular() || t&fs.ModeSymlink != 0:
		return nil
	case t&fs.ModeNamedPipe != 0:
		return specialError("a named pipe")
	case t&fs.ModeSocket != 0:
		return specialError("a socket")
	case t&fs.ModeDevice != 0:
		return specialError("a device")
	default:
		return specialError("a special file")
	}
}

// pattern is one --exclude: as path.Match, against the last element if it holds
// no slash, else against the path relative to the argument.
type pattern struct {
	text    string
	whole   bool // holds a slash
	dirOnly bool // ended in a slash
}

func patterns(texts []string) ([]pattern, error) {
	var all []pattern
	for _, text := range texts {
		p := pattern{text: text}
		p.text, p.dirOnly = strings.CutSuffix(p.text, "/")
		p.whole = strings.Contains(p.text, "/")
		p.text = strings.TrimPrefix(p.text, "/")
		if _, err := path.Match(p.text, ""); err != nil || p.text == "" {
			return nil, usagef(`use * and ? and [a-z], as in --exclude "*.o"`, "--exclude: %q is no pattern", text)
		}
		all = append(all, p)
	}
	return all, nil
}

func (p *pattern) matches(rel string, isDir bool) bool {
	if p.dirOnly && !isDir {
		return false
	}
	if !p.whole {
		rel = path.Base(rel)
	}
	ok, _ := path.Match(p.text, rel) // its syntax was checked
	return ok
}

// statAll returns what exists of the named directories.
func statAll(dirs []string) []fs.FileInfo {
	var infos []fs.FileInfo
	for _, d := range dirs {
		if info, err := os.Stat(d); err == nil {
			infos = append(infos, info)
		}
	}
	return infos
}

// unreadable is the refusal of a put because of files. It names some; more says
// that the rest was not looked at.
func unreadable(problems []problem, count int, more bool) error {
	text := humanize.Comma(int64(count)) + " files cannot be stored, so nothing was"
	if more {
		text = "at least " + text
	} else if count == 1 {
		text = "1 file cannot be stored, so nothing was"
	}
	return &refusal{kind: "unreadable", text: text, problems: problems, count: count, hint: "correct that, leave them out with --exclude, or go on without them with --skip-unreadable"}
}

// isFileError says whether err is about the local file and not about the
// datastore: such files can be skipped.
func isFileError(err error, file string) bool {
	var store *backend.Error
	if errors.As(err, &store) {
		return false // even if it says "changed": that is another file, staged before
	}
	if errors.Is(err, datastore.ErrChanged) || errors.Is(err, datastore.ErrBadPath) {
		return true
	}
	var p *fs.PathError
	return errors.As(err, &p) && p.Path == file
}

// readable says whether a file or link can be read, without reading it.
func readable(file string, kind fs.FileMode) error {
	if kind&fs.ModeSymlink != 0 {
		_, err := os.Readlink(file)
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return f.Close()
}
