package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"

	"github.com/swampd/swampd/datastore"
)

// survey learns how much there is to do, where people watch, and, before
// anything is written, whether files are in the way.
func (g *getting) survey(ctx context.Context) error {
	root, err := os.OpenRoot(g.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // then nothing is in the way
		return outputError(g.dir, err)
	}
	if root != nil {
		defer root.Close()
		if empty(root) {
			root = nil
		}
	}
	if root == nil && !g.a.errTerm {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	look := presence{root: root}
	lastBlocked := ""
	n := -1
	for v, err := range g.versions(ctx) {
		n++
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		switch there, blocked := look.at(v.Path); {
		case blocked != "":
			if blocked != lastBlocked {
				g.note(blocked, ioReason(errNoDirectory))
			}
			lastBlocked = blocked
		case !there:
			g.meter.expect(v.Size)
		default:
			nth := n
			group.Go(func() error { return g.compare(ctx, root, nth, &v) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if g.count == 0 {
		return nil
	}
	text := humanize.Comma(int64(g.count)) + " files are in the way, so nothing was written"
	if g.count == 1 {
		text = "1 file is in the way, so nothing was written"
	}
	hint := "write elsewhere with -o DIR, or replace files that differ with --force"
	if g.force {
		hint = "write elsewhere with -o DIR, or remove what is in the way: --force replaces no directory and nothing that has the name of one"
	}
	return &refusal{kind: "in-the-way", text: text, problems: g.problems, count: g.count, hint: hint}
}

// compare marks v, the nth of the versions, as there already, or notes what else
// has its name as a problem, unless it may be replaced.
func (g *getting) compare(ctx context.Context, root *os.Root, n int, v *datastore.Version) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	info, err := root.Lstat(v.Path)
	if err == nil && info.IsDir() {
		g.note(v.Path, ioReason(errDirectory))
		return nil
	}
	same := false
	if err == nil {
		same, err = sameContent(root, v.Path, v)
	}
	switch {
	case err == nil && same:
		g.mu.Lock()
		g.same.add(n)
		g.mu.Unlock()
		return nil
	case errors.Is(err, fs.ErrNotExist) || g.force:
		g.meter.expect(v.Size)
		return nil
	case err == nil:
		err = errDiffers
	}
	g.note(v.Path, ioReason(err))
	return nil
}

// numbers is a set of small numbers, in one bit each: a million of them
// take 125 kB.
type numbers []uint64

func (s *numbers) add(n int) {
	if more := n/64 + 1 - len(*s); more > 0 {
		*s = append(*s, make([]uint64, more)...)
	}
	(*s)[n/64] |= 1 << (n % 64)
}

func (s numbers) has(n int) bool { return n/64 < len(s) && s[n/64]&(1<<(n%64)) != 0 }

// presence answers cheaply, for paths in order, whether a file may be there:
// not in a directory that is not.
type presence struct {
	root    *os.Root
	absent  string // the last directory that was found missing
	there   string // the last one that was found
	blocked string // the last one that was found to be something else, as a link
}

// at says whether the file name may be there. blocked is what has the name of a
// directory on the way to it and is none: what is behind a link was not asked for.
func (p *presence) at(name string) (there bool, blocked string) {
	if p.root == nil {
		return false, ""
	}
	dir := path.Dir(name)
	switch {
	case dir == "." || dir == p.there:
		return true, ""
	case p.absent != "" && below(dir, p.absent):
		return false, ""
	case p.blocked != "" && below(dir, p.blocked):
		return false, p.blocked
	}
	// The topmost missing directory spares most looks.
	for end := 0; end < len(dir); {
		if i := strings.IndexByte(dir[end:], '/'); i >= 0 {
			end += i
		} else {
			end = len(dir)
		}
		switch info, err := p.root.Lstat(dir[:end]); {
		case errors.Is(err, fs.ErrNotExist):
			p.absent = dir[:end]
			return false, ""
		case err == nil && !info.IsDir():
			p.blocked = dir[:end]
			return false, p.blocked
		}
		end++
	}
	p.there = dir
	return true, ""
}

// empty says whether a directory holds nothing.
func empty(root *os.Root) bool {
	f, err := root.Open(".")
	if err != nil {
		return false
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	return len(names) == 0 && err == io.EOF
}
