package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/backend"
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
same name; a disk cannot, so get refuses them: name one of them. So it does with
names that differ only by case, where the disk takes them for one.

The first content that is damaged, missing or removed ends the command; files that
are complete stay. With --skip-damaged some of these files are named, all others
are written, and the exit code is 1 if any was left out.

--json: one object {"store","slot","directory","written","bytes","unchanged",
"damaged","problems":[{"path","error"}],"seconds"}.`

type getFlags struct {
	dir, at     string
	force       bool
	skipDamaged bool
}

func (a *app) getCommand() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:     "get PATH…",
		Short:   "Write files and directories of a state to disk",
		Long:    getHelp,
		Example: "  swampd get docs/plan.md\n  swampd get . -o restored --at 12",
		Args:    atLeastOne("PATH", "swampd get . gets everything"),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error { return a.get(ctx, args, &f) })
	cmd.Flags().StringVarP(&f.dir, "output", "o", ".", "write into `DIR`, which is made if it is missing")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace files that differ")
	cmd.Flags().BoolVar(&f.skipDamaged, "skip-damaged", false, "go on without files whose content is damaged or missing")
	addAt(cmd, &f.at)
	return cmd
}

// getting is one get at work.
type getting struct {
	a       *app
	s       *datastore.Store
	slot    uint64
	targets []target
	getFlags
	meter *meter

	written, bytes, unchanged atomic.Int64

	mu       sync.Mutex // guards the rest
	problems []problem
	count    int
	same     numbers // of the versions that are there already; survey fills it
}

func (a *app) get(ctx context.Context, args []string, f *getFlags) (err error) {
	began := time.Now()
	if f.dir == "" {
		return usagef("write -o . for the directory you are in", "-o: the name of the directory is empty")
	}
	g := &getting{a: a, getFlags: *f, meter: a.meter("getting")}
	defer g.meter.stop()
	if g.targets, err = targets(args); err != nil {
		return err
	}
	if g.s, err = a.open(ctx, g.meter.engine); err != nil {
		return err
	}
	defer shut(g.s, &err)
	if g.slot, err = state(ctx, g.s, f.at); err != nil {
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
	return g.tell(began)
}

// tell writes the result.
func (g *getting) tell(began time.Time) error {
	slices.SortFunc(g.problems, func(x, y problem) int { return strings.Compare(x.Path, y.Path) })
	if g.a.json {
		if err := g.a.emit(getJSON{
			Store: g.s.URL(), Slot: g.slot, Directory: g.dir, Written: g.written.Load(), Bytes: g.bytes.Load(),
			Unchanged: g.unchanged.Load(), Damaged: int64(g.count), Problems: g.problems, Seconds: time.Since(began).Seconds(),
		}); err != nil {
			return err
		}
	} else if err := g.a.printf("%s\n", g.text(time.Since(began))); err != nil {
		return err
	}
	if g.count == 0 {
		return nil
	}
	are := " are"
	if g.count == 1 {
		are = " is"
	}
	return &refusal{
		kind: "damaged", text: count(int64(g.count), "file") + are + " damaged or missing in the store; all others were written",
		problems: g.problems, count: g.count, hint: "find out how much is damaged with: swampd verify --read-data",
	}
}

func (g *getting) text(d time.Duration) string {
	same := ""
	if n := g.unchanged.Load(); n > 0 {
		was := " were"
		if n == 1 {
			was = " was"
		}
		same = "; " + count(n, "file") + was + " there already"
	}
	return fmt.Sprintf("wrote %s (%s) to %s in %s%s", count(g.written.Load(), "file"), size(g.bytes.Load()), printable(g.dir), took(d), same)
}

// resolve finds out what each target is, and drops those that another contains.
func (g *getting) resolve(ctx context.Context) error {
	var all []target
	for _, t := range g.targets {
		isFile, isDir := false, t.path == ""
		if !t.dir {
			_, err := g.s.Stat(ctx, t.path, g.slot)
			if err != nil && !isNotFound(err) {
				return err
			}
			isFile = err == nil
		}
		if !isDir {
			for _, err := range g.s.List(ctx, &datastore.ListOptions{Prefix: t.prefix(), At: g.slot}) {
				if err != nil {
					return err
				}
				isDir = true
				break
			}
		}
		if !isFile && !isDir {
			return g.a.missing(t.path, g.slot, nil)
		}
		if isFile && isDir {
			return twoOfOneName(t.path, g.slot)
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
				v, err := g.s.Stat(ctx, t.path, g.slot)
				if err != nil {
					v = &datastore.Version{}
				}
				if !yield(*v, err) || err != nil {
					return
				}
				continue
			}
			var names clashes
			for v, err := range g.s.List(ctx, &datastore.ListOptions{Prefix: t.prefix(), At: g.slot}) {
				if file := names.add(v.Path); err == nil && file != "" {
					err = twoOfOneName(file, g.slot)
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
	if err := g.twins(ctx, r); err != nil {
		return err
	}
	return g.s.Fetch(ctx, g.missing(ctx, r), &datastore.FetchOptions{Damaged: g.damaged}, func(_ context.Context, v datastore.Version, content io.Reader) error {
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

// damaged notes v as left out, or is the error that ends everything.
func (g *getting) damaged(v datastore.Version, err error) error {
	reason := damageReason(v.Path, err)
	if g.skipDamaged {
		g.note(v.Path, reason)
		return nil
	}
	kind := "corrupt"
	if errors.Is(err, datastore.ErrGone) {
		kind = "gone"
	}
	return &refusal{
		kind: kind, err: err, text: v.Path + ": " + reason,
		hint: "get all other files with --skip-damaged; find out how much is damaged with: swampd verify --read-data",
	}
}

// note keeps the first problems and counts all.
func (g *getting) note(name, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count++; len(g.problems) < maxProblems {
		g.problems = append(g.problems, problem{name, reason})
	}
}

// damageReason is why the content of path cannot be had, without the path.
func damageReason(path string, err error) string {
	var at *backend.Error
	if errors.As(err, &at) && errors.Is(at.Err, backend.ErrNotFound) {
		return "its content is missing from the store: " + at.Key
	}
	return strings.TrimPrefix(plain(err), path+": ")
}

// missing yields the versions that are not there yet, as survey found. Of what is
// there only permissions and time are corrected.
func (g *getting) missing(ctx context.Context, r *restorer) iter.Seq2[datastore.Version, error] {
	return func(yield func(datastore.Version, error) bool) {
		look := presence{root: r.root}
		n := -1 // the order of versions is that of a state, which does not change
		for v, err := range g.versions(ctx) {
			n++
			there := false
			if err == nil && g.same.has(n) {
				there, _ = look.at(v.Path) // what is blocked by now fails when it is written
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

// outputError is a failure of the local disk, not of the datastore.
func outputError(name string, err error) error {
	return &refusal{
		kind: "output", err: err, text: "cannot write " + name + ": " + ioReason(err),
		hint: "correct that, or write elsewhere with -o DIR; files that are complete stay",
	}
}
