package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/format"
)

// maxProblems is how many files a refusal names.
const maxProblems = 10

const putHelp = `Store files, directories, or standard input (-), as one commit.

Names: a relative PATH is stored under that name ("put a/b.txt" as a/b.txt,
"put dir" as dir/…, "put ." as the files in it). An absolute PATH, or one that
leads out of the working directory, is stored under its last element ("put
/srv/www" as www/…). --as NAME gives one PATH another name; with several PATHs,
or a slash at the end of NAME, it is the directory that they are put into.

Files that are stored like this already (content, permissions, time) are left
out; if all are, there is nothing new, no commit, and exit code 0. Nothing is
deleted from the datastore. Symbolic links are stored as links; directories exist
by their files, so empty ones are not stored. Named .swamp, a file or directory
is left out: it belongs to a checkout. So is the datastore itself.

A file that cannot be read, changes while it is read, or has no content (pipe,
socket, device) makes the command refuse everything: nothing is stored, some of
these files are named, exit code 1. With --skip-unreadable all other files are
stored, and the exit code is 1 too if any was skipped.

--exclude PATTERN leaves files and directories out: * and ? match any characters
but /, [a-z] one of several. A PATTERN without / is compared with the last element
("*.o"), one with / with the path below the argument ("/build", "docs/*.pdf"); with
/ at its end it means directories only.

--json: one object {"store","commit","slot","stored","bytes","unchanged",
"deduplicated","skipped","problems":[{"path","error"}],"again","seconds"}; again
says that the commit had landed before.`

type putFlags struct {
	as, message    string
	exclude        []string
	skipUnreadable bool
	everything     bool
	id             string
	meta           metaFlags
}

type metaFlags struct {
	contentType string
	tags        []string
	lifetime    time.Duration
	keep        []string
}

func (a *app) putCommand() *cobra.Command {
	var f putFlags
	cmd := &cobra.Command{
		Use:   "put PATH…",
		Short: "Store files, directories, or standard input",
		Long:  putHelp,
		Example: `  swampd put .
  swampd put -s s3://bucket/site public --exclude "*.map"
  pg_dump db | swampd put - --as db.sql`,
		Args: atLeastOne("PATH", "swampd put . stores all that is in this directory"),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error { return a.put(ctx, args, &f) })
	flags := cmd.Flags()
	flags.StringVar(&f.as, "as", "", "name in the datastore")
	flags.StringVarP(&f.message, "message", "m", "", "message of the commit (default: the command)")
	flags.StringArrayVar(&f.exclude, "exclude", nil, "leave out what matches `PATTERN` (repeatable)")
	flags.BoolVar(&f.skipUnreadable, "skip-unreadable", false, "go on without files that cannot be stored")
	flags.BoolVar(&f.everything, "unchanged", false, "make new versions of unchanged files too")
	flags.StringVar(&f.id, "id", "", "commit under this `UUID` (version 7): the same id and content land once")
	flags.StringVar(&f.meta.contentType, "content-type", "", "content type of what is stored")
	flags.StringArrayVar(&f.meta.tags, "tag", nil, "`KEY=VALUE` for what is stored (repeatable)")
	flags.DurationVar(&f.meta.lifetime, "lifetime", 0, "retention may remove it this long after the commit, as in 720h")
	flags.StringArrayVar(&f.meta.keep, "keep", nil, "keep `RULE` for retention (repeatable)")
	a.addMaxWait(cmd)
	return cmd
}

func (m *metaFlags) meta() (datastore.Meta, error) {
	meta := datastore.Meta{ContentType: m.contentType, Lifetime: m.lifetime, Keep: m.keep}
	if m.lifetime < 0 {
		return meta, usagef("", "--lifetime: %v is negative", m.lifetime)
	}
	for _, t := range m.tags {
		k, v, ok := strings.Cut(t, "=")
		if !ok || k == "" {
			return meta, usagef("write --tag KEY=VALUE", "--tag: %q is no KEY=VALUE", t)
		}
		if meta.Tags == nil {
			meta.Tags = map[string]string{}
		}
		if _, twice := meta.Tags[k]; twice {
			return meta, usagef("", "--tag: %q is given twice", k)
		}
		meta.Tags[k] = v
	}
	for flag, texts := range map[string][]string{"content-type": {m.contentType}, "tag": m.tags, "keep": m.keep} {
		for _, text := range texts {
			if !utf8.ValidString(text) {
				return meta, usagef("", "--%s: %q is not valid UTF-8", flag, text)
			}
		}
	}
	if slices.Contains(m.keep, "") {
		return meta, usagef("", "--keep: the rule is empty")
	}
	return meta, nil
}

// checkMessage refuses a message before the work that it would be about.
func checkMessage(message string) error {
	switch {
	case len(message) > format.MaxMessage:
		return usagef("", "-m: the message has %d bytes, at most %d are possible", len(message), format.MaxMessage)
	case !utf8.ValidString(message):
		return usagef("", "-m: %q is not valid UTF-8", message)
	}
	return nil
}

// commitID reads --id.
func commitID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil || id.Version() != 7 {
		return uuid.Nil, usagef("", "--id: %q is no UUID of version 7", text)
	}
	return id, nil
}

// putting is one put at work.
type putting struct {
	a     *app
	srcs  []source
	walk  walker // exclude is set
	skip  bool
	opts  datastore.PutOptions
	meter *meter
	batch *datastore.Batch

	// checkOnly: it is known that nothing will be stored, so the rest is only
	// opened, to name more of what is wrong.
	checkOnly atomic.Bool

	mu       sync.Mutex // guards the rest
	result   putJSON
	problems []problem
	count    int
}

func (a *app) put(ctx context.Context, args []string, f *putFlags) error {
	began := time.Now()
	p := &putting{a: a, skip: f.skipUnreadable}
	id, err := commitID(f.id)
	if err != nil {
		return err
	}
	if p.opts.Meta, err = f.meta.meta(); err != nil {
		return err
	}
	if err := checkMessage(f.message); err != nil {
		return err
	}
	p.opts.SkipUnchanged = !f.everything
	if p.walk.exclude, err = patterns(f.exclude); err != nil {
		return err
	}
	if p.srcs, err = sources(args, f.as); err != nil {
		return err
	}
	fromStdin := p.srcs[0].file == stdin
	switch {
	case f.message != "":
	case fromStdin:
		f.message = describe("put", []string{f.as})
	default:
		f.message = describe("put", args)
	}
	p.meter = a.meter("storing")
	p.meter.follow = "read"
	defer p.meter.stop()
	if !fromStdin {
		if err := p.survey(ctx); err != nil {
			return err
		}
	}
	return p.store(ctx, id, f.message, fromStdin, began)
}

// store opens the datastore, stages everything and commits it.
func (p *putting) store(ctx context.Context, id uuid.UUID, message string, fromStdin bool, began time.Time) (err error) {
	s, err := p.a.openForPut(ctx, p.meter.engine)
	if err != nil {
		return err
	}
	defer func() {
		shut(s, &err)
		p.meter.stop()
		if err == nil {
			err = p.tell(began)
		}
	}()
	p.result.Store, p.result.Slot = s.URL(), s.Head()
	// Where nothing is new, nobody is to be waited for or disturbed. If somebody
	// else commits while it is not known yet, it is begun again as the writer.
	lazy := !fromStdin
	for {
		if p.batch, err = s.Begin(ctx, &datastore.BatchOptions{ID: id, Lazy: lazy}); err != nil {
			return err
		}
		if fromStdin {
			err = p.stdin(ctx)
		} else {
			err = p.stage(ctx, s)
		}
		if err == nil {
			break
		}
		err = errors.Join(err, p.batch.Discard())
		if !lazy || !errors.Is(err, datastore.ErrConflict) || ctx.Err() != nil {
			return err
		}
		lazy = false
		p.again()
	}
	c, err := p.batch.Commit(ctx, message)
	if errors.Is(err, datastore.ErrEmpty) {
		p.result.Slot = s.Head()
		return p.batch.Discard()
	}
	if err != nil {
		return err
	}
	p.result.Commit, p.result.Slot, p.result.Again = idText(c.ID), c.Slot, c.Again
	return nil
}

// again forgets what was found, to begin anew.
func (p *putting) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.result
	r.Stored, r.Bytes, r.Unchanged, r.Deduplicated = 0, 0, 0, 0
	p.problems, p.count = nil, 0
	p.checkOnly.Store(false)
	p.meter.restart()
}

// survey looks at names and types before anything else happens, and learns how
// much there is to do.
func (p *putting) survey(ctx context.Context) error {
	w := p.walk
	w.own = statAll(p.a.ownDirs())
	w.visit = func(it item) error {
		if p.a.errTerm {
			if info, err := it.entry.Info(); err == nil {
				p.meter.expect(info.Size())
			}
		}
		return nil
	}
	w.problem = func(file string, err error) error {
		if !p.skip { // else it is met again
			p.trouble(file, err)
		}
		return nil
	}
	if err := w.walk(ctx, p.srcs); err != nil {
		return err
	}
	return p.refuse()
}

// stage puts all files into the batch, several at a time.
func (p *putting) stage(ctx context.Context, s *datastore.Store) error {
	group, ctx := errgroup.WithContext(ctx)
	items := make(chan item, 256)
	group.Go(func() error {
		defer close(items)
		w := p.walk
		w.own = statAll(p.a.ownDirs())
		w.leftOut = func(name, why string) { p.a.note("left out %s: it belongs to %s", printable(name), why) }
		w.problem = p.trouble
		w.visit = func(it item) error {
			select {
			case items <- it:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return w.walk(ctx, p.srcs)
	})
	for range runtime.NumCPU() {
		group.Go(func() error {
			for it := range items {
				if err := p.one(ctx, it); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	if errors.Is(err, errEnough) {
		return unreadable(p.problems, p.count, true)
	}
	if err != nil {
		return err
	}
	return p.refuse()
}

// errEnough ends a put that will be refused once it has named enough files.
var errEnough = errors.New("enough problems were found")

// one stages one file.
func (p *putting) one(ctx context.Context, it item) error {
	if p.checkOnly.Load() {
		if err := readable(it.file, it.entry.Type()); err != nil {
			return p.trouble(it.file, err)
		}
		return nil
	}
	put, err := p.batch.PutFile(ctx, it.name, it.file, &p.opts)
	if err != nil {
		if ctx.Err() == nil && isFileError(err, it.file) {
			return p.trouble(it.file, err)
		}
		return err
	}
	p.meter.add(put.Size)
	p.done(put)
	return nil
}

func (p *putting) done(put datastore.Put) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if put.Unchanged {
		p.result.Unchanged++
		return
	}
	p.result.Stored++
	p.result.Bytes += put.Size
	if put.Deduplicated {
		p.result.Deduplicated++
	}
}

// trouble notes a file that cannot be stored.
func (p *putting) trouble(file string, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.batch != nil && !p.skip && p.count >= maxProblems {
		return errEnough
	}
	p.count++
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, problem{file, fileReason(err)})
	}
	if p.skip {
		return nil
	}
	p.checkOnly.Store(true)
	return nil
}

func (p *putting) refuse() error {
	if p.count > 0 && !p.skip {
		return unreadable(p.problems, p.count, false)
	}
	return nil
}

// stdin stages standard input.
func (p *putting) stdin(ctx context.Context) error {
	in := newInput(ctx, p.a.in)
	put, err := p.batch.Put(ctx, p.srcs[0].name, p.meter.reader(in), &p.opts)
	if err != nil {
		return err
	}
	p.done(put)
	return nil
}

// tell writes the result.
func (p *putting) tell(began time.Time) error {
	r := &p.result
	r.Skipped, r.Problems, r.Seconds = int64(p.count), p.problems, time.Since(began).Seconds()
	if p.a.json {
		if err := p.a.emit(r); err != nil {
			return err
		}
	} else if err := p.a.printf("%s\n", r.text(time.Since(began))); err != nil {
		return err
	}
	if p.count == 0 {
		return nil
	}
	return &refusal{
		kind: "skipped", text: count(int64(p.count), "file") + " could not be stored; all others were",
		problems: p.problems, count: p.count,
	}
}

func (r *putJSON) text(d time.Duration) string {
	var same string
	if r.Unchanged > 0 {
		same = fmt.Sprintf("; %s unchanged", count(r.Unchanged, "file"))
	}
	switch {
	case r.Commit == "":
		return fmt.Sprintf("nothing new%s (state %d)", same, r.Slot)
	case r.Again:
		return fmt.Sprintf("this commit had landed before, in state %d", r.Slot)
	}
	var held string
	if r.Deduplicated > 0 {
		held = fmt.Sprintf(", %s held already", count(r.Deduplicated, "content"))
	}
	return fmt.Sprintf("stored %s (%s%s) as state %d in %s%s", count(r.Stored, "file"), size(r.Bytes), held, r.Slot, took(d), same)
}
