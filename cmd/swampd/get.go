package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/swampd/swampd/datastore"
)

const getHelp = `Write files and directories of a state into a directory, by their whole paths:
"swampd get docs -o out" makes out/docs/…; "swampd get ." gets everything.

Contents are checked against their sha256, and each file appears under its name
when it is complete. Permissions, times and symbolic links are restored. Nothing
is written outside of DIR or through a symbolic link in it.

A file that is there already with the same content is left alone (its permissions
and time are corrected). If one is there with another content, nothing at all is
written, unless --force says that such files may be replaced. Files that are not
in the state are never touched. A state can hold a file and a directory of the
same name; a disk cannot, so get refuses them: name one of them.

--json: one object {"store","slot","directory","written","bytes","unchanged",
"seconds"}.`

func (a *app) getCommand() *cobra.Command {
	var dir, at string
	var force bool
	cmd := &cobra.Command{
		Use:     "get PATH…",
		Short:   "Write files and directories of a state to disk",
		Long:    getHelp,
		Example: "  swampd get docs/plan.md\n  swampd get . -o restored --at 12",
		Args:    atLeastOne("PATH", "swampd get . gets everything"),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error { return a.get(ctx, args, dir, at, force) })
	cmd.Flags().StringVarP(&dir, "output", "o", ".", "write into `DIR`, which is made if it is missing")
	cmd.Flags().BoolVar(&force, "force", false, "replace files that differ")
	addAt(cmd, &at)
	return cmd
}

// getting is one get at work.
type getting struct {
	a       *app
	s       *datastore.Store
	at      uint64
	targets []target
	dir     string
	force   bool
	meter   *meter

	written, bytes, unchanged atomic.Int64

	mu       sync.Mutex // guards the rest
	problems []problem
	count    int
}

func (a *app) get(ctx context.Context, args []string, dir, at string, force bool) (err error) {
	began := time.Now()
	if dir == "" {
		return usagef("write -o . for the directory you are in", "-o: the name of the directory is empty")
	}
	g := &getting{a: a, dir: dir, force: force, meter: a.meter("getting")}
	defer g.meter.stop()
	if g.targets, err = targets(args); err != nil {
		return err
	}
	if g.s, err = a.open(ctx, g.meter.engine); err != nil {
		return err
	}
	defer shut(g.s, &err)
	if g.at, err = state(ctx, g.s, at); err != nil {
		return err
	}
	if err := g.resolve(ctx); err != nil {
		return err
	}
	if err := g.survey(ctx); err != nil {
		return err
	}
	if err := g.fetch(ctx); err != nil {
		return err
	}
	g.meter.stop()
	if a.json {
		return a.emit(getJSON{
			Store: g.s.URL(), Slot: g.at, Directory: dir, Written: g.written.Load(), Bytes: g.bytes.Load(),
			Unchanged: g.unchanged.Load(), Seconds: time.Since(began).Seconds(),
		})
	}
	same := ""
	if n := g.unchanged.Load(); n > 0 {
		was := " were"
		if n == 1 {
			was = " was"
		}
		same = "; " + count(n, "file") + was + " there already"
	}
	return a.printf("wrote %s (%s) to %s in %s%s\n", count(g.written.Load(), "file"), size(g.bytes.Load()), printable(dir), took(time.Since(began)), same)
}

// resolve finds out what each target is, and drops those that another contains.
func (g *getting) resolve(ctx context.Context) error {
	var all []target
	for _, t := range g.targets {
		isFile, isDir := false, t.path == ""
		if !t.dir {
			_, err := g.s.Stat(ctx, t.path, g.at)
			if err != nil && !isNotFound(err) {
				return err
			}
			isFile = err == nil
		}
		if !isDir {
			for _, err := range g.s.List(ctx, &datastore.ListOptions{Prefix: t.prefix(), At: g.at}) {
				if err != nil {
					return err
				}
				isDir = true
				break
			}
		}
		if !isFile && !isDir {
			return g.a.missing(t.path, g.at, nil)
		}
		if isFile && isDir {
			return twoOfOneName(t.path, g.at)
		}
		if isFile {
			all = append(all, target{path: t.path})
		}
		if isDir {
			all = append(all, target{path: t.path, dir: true})
		}
	}
	g.targets = withoutCovered(all)
	return nil
}

// withoutCovered drops targets that are named twice or lie in another one.
func withoutCovered(all []target) []target {
	seen := map[target]bool{}
	for _, t := range all {
		if t.dir {
			seen[t] = true
		}
	}
	covered := func(t target) bool {
		for up := t.path; up != ""; {
			up = path.Dir(up)
			if up == "." {
				up = ""
			}
			if seen[target{up, true}] {
				return true
			}
		}
		return false
	}
	var kept []target
	named := map[target]bool{}
	for _, t := range all {
		if !named[t] && !covered(t) {
			named[t] = true
			kept = append(kept, t)
		}
	}
	return kept
}

// versions yields what is to be written.
func (g *getting) versions(ctx context.Context) iter.Seq2[datastore.Version, error] {
	return func(yield func(datastore.Version, error) bool) {
		for _, t := range g.targets {
			if !t.dir {
				v, err := g.s.Stat(ctx, t.path, g.at)
				if err != nil {
					v = &datastore.Version{}
				}
				if !yield(*v, err) || err != nil {
					return
				}
				continue
			}
			var names clashes
			for v, err := range g.s.List(ctx, &datastore.ListOptions{Prefix: t.prefix(), At: g.at}) {
				if file := names.add(v.Path); err == nil && file != "" {
					err = twoOfOneName(file, g.at)
				}
				if !yield(v, err) || err != nil {
					return
				}
			}
		}
	}
}

// clashes finds, among paths in order, files that have the name of a directory:
// a state can hold both, a disk cannot.
type clashes []string // the files that the last path begins with

// add returns the file that is a directory of name.
func (c *clashes) add(name string) string {
	for len(*c) > 0 && !strings.HasPrefix(name, (*c)[len(*c)-1]) {
		*c = (*c)[:len(*c)-1]
	}
	for _, file := range *c {
		if below(name, file) && name != file {
			return file
		}
	}
	*c = append(*c, name)
	return ""
}

func twoOfOneName(name string, at uint64) error {
	return &refusal{
		kind: "two-of-one-name",
		text: fmt.Sprintf("%s is a file and %s/ a directory%s: no disk can hold both", printable(name), printable(name), inState(at)),
		hint: "get the directory on its own: swampd get " + quoteArg(name+"/") + "; write the file with: swampd cat " + quoteArg(name) + "; or remove one of them with: swampd rm",
	}
}

// survey learns how much there is to do, where people watch, and, before
// anything is written, whether files are in the way.
func (g *getting) survey(ctx context.Context) error {
	var root *os.Root
	if !g.force {
		var err error
		root, err = os.OpenRoot(g.dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // then nothing is in the way
		}
		if err != nil {
			return outputError(g.dir, err)
		}
		if root != nil {
			defer root.Close()
			if empty(root) {
				root = nil
			}
		}
	}
	if root == nil && !g.a.errTerm {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	look := presence{root: root}
	lastBlocked := ""
	for v, err := range g.versions(ctx) {
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		switch there, blocked := look.at(v.Path); {
		case blocked != "":
			if blocked != lastBlocked {
				g.inTheWay(blocked, errNoDirectory)
			}
			lastBlocked = blocked
		case !there:
			g.meter.expect(v.Size)
		default:
			group.Go(func() error { return g.compare(ctx, root, &v) })
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
	return &refusal{
		kind: "in-the-way", text: text, problems: g.problems, count: g.count,
		hint: "write elsewhere with -o DIR, or replace files that differ with --force",
	}
}

// compare notes v as a problem if something else has its name.
func (g *getting) compare(ctx context.Context, root *os.Root, v *datastore.Version) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	same, err := sameContent(root, v.Path, v)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		g.meter.expect(v.Size)
		return nil
	case err == nil && same:
		return nil
	case err == nil:
		err = errDiffers
	}
	g.inTheWay(v.Path, err)
	return nil
}

func (g *getting) inTheWay(name string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count++; len(g.problems) < maxProblems {
		g.problems = append(g.problems, problem{name, ioReason(err)})
	}
}

// fetch reads the contents and writes the files.
func (g *getting) fetch(ctx context.Context) (err error) {
	if err := os.MkdirAll(g.dir, 0o777); err != nil {
		return outputError(g.dir, err)
	}
	r, err := newRestorer(g.dir, g.force)
	if err != nil {
		return outputError(g.dir, err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	return g.s.Fetch(ctx, g.missing(ctx, r), nil, func(_ context.Context, v datastore.Version, content io.Reader) error {
		// What is in memory already cannot fail and is written in one call; else
		// it has to be told whose fault an error is.
		var counted *countingReader
		if _, inMemory := content.(io.WriterTo); !inMemory {
			counted = g.meter.reader(content)
			content = counted
		}
		if err := r.write(&v, content); err != nil {
			if counted != nil && counted.err != nil && counted.err != io.EOF {
				return counted.err
			}
			return outputError(filepath.Join(g.dir, filepath.FromSlash(v.Path)), err)
		}
		if counted == nil {
			g.meter.add(v.Size)
		}
		g.written.Add(1)
		g.bytes.Add(v.Size)
		return nil
	})
}

// missing yields the versions that are not there yet. Without force, survey has
// shown that what is there has the same content: only its permissions and time
// are corrected.
func (g *getting) missing(ctx context.Context, r *restorer) iter.Seq2[datastore.Version, error] {
	if g.force || empty(r.root) {
		return g.versions(ctx)
	}
	return func(yield func(datastore.Version, error) bool) {
		look := presence{root: r.root}
		for v, err := range g.versions(ctx) {
			there := false
			if err == nil {
				there, _ = look.at(v.Path) // what is blocked fails when it is written
			}
			if there {
				if info, lerr := r.root.Lstat(v.Path); lerr == nil && info.Mode().Type() == v.Mode.Type() {
					g.unchanged.Add(1)
					if err = r.correct(&v, info); err == nil {
						continue
					}
					err = outputError(filepath.Join(g.dir, filepath.FromSlash(v.Path)), err)
				}
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

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

// outputError is a failure of the local disk, not of the datastore.
func outputError(name string, err error) error {
	return &refusal{
		kind: "output", err: err, text: "cannot write " + name + ": " + ioReason(err),
		hint: "correct that, or write elsewhere with -o DIR; files that are complete stay",
	}
}
