package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

const doctorHelp = `Look at the store at URL (or at -s URL, SWAMPD_STORE, or the default place), with a
datastore in it or without, and say what is well and what is not: whether it can
be reached, whether it does what a datastore needs (this writes and deletes a few
small objects), its clock, the datastore and its writer, and the local files.

Exit code 1 if something is not well.

--json: one object {"store","ok","checks":[{"check","status","text","hint"}]};
status is ok, note or failed.`

// maxSkew is how far clocks may be apart before doctor speaks of it. Nothing
// depends on it but the times that people read; some stores refuse requests
// from clocks that are wrong by a quarter of an hour.
const maxSkew = time.Minute

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [URL]",
		Short: "Say what is well with the store and what is not",
		Long:  doctorHelp,
		Args:  atMost(1),
	}
	cmd.RunE = a.runPlain(func(ctx context.Context, args []string) error {
		if err := a.storeArgument(args); err != nil {
			return err
		}
		return a.doctor(ctx)
	})
	return cmd
}

// examination is one doctor at work.
type examination struct {
	a      *app
	addr   string
	bucket *backend.Bucket
	result doctorJSON
	// exists: there is a datastore, whose id is id.
	exists bool
	marker *format.Marker
}

const (
	statusOK     = "ok"
	statusNote   = "note"
	statusFailed = "failed"
)

func (x *examination) say(check, status, hint, text string, args ...any) {
	x.result.Checks = append(x.result.Checks, checkJSON{Check: check, Status: status, Text: fmt.Sprintf(text, args...), Hint: hint})
	if status == statusFailed {
		x.result.OK = false
	}
}

// failed says an error as the other commands would.
func (x *examination) failed(ctx context.Context, check string, err error) {
	e := x.a.explain(ctx, err)
	hint := e.Hint
	if e.Kind == "denied" || e.Kind == "unreachable" || e.Kind == "timeout" || e.Kind == "unsupported-store" {
		hint = cureOf[e.Kind]
	}
	if e.Kind == "denied" && directoryOf(x.addr) != "" {
		hint = deniedDirectory
	}
	x.say(check, statusFailed, hint, "%s", e.Error)
}

// cureOf is what doctor advises where other commands advise to ask doctor.
var cureOf = map[string]string{
	"denied":            "check the credentials (environment, profile, service account) and that they allow reading, writing, listing and deleting",
	"unreachable":       "check the network, the endpoint and the region of the address",
	"timeout":           "check the network, the endpoint and the region of the address",
	"unsupported-store": "use a store that honours conditional writes",
}

func (a *app) doctor(ctx context.Context) error {
	addr, _, err := a.address()
	if err != nil {
		return err
	}
	x := &examination{a: a, addr: addr, result: doctorJSON{Store: shown(addr), OK: true}}
	x.program()
	if x.bucket, err = backend.Open(ctx, addr); err != nil {
		if a.explain(ctx, err).ExitCode == exitUsage {
			return err
		}
		x.failed(ctx, "store", err)
	} else {
		x.store(ctx)
		err = x.bucket.Close()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, x.tell())
}

func (x *examination) program() {
	v := programVersion()
	if err := needCgo(); err != nil {
		var r *refusal
		errors.As(err, &r)
		x.say("program", statusFailed, r.hint, "%s", r.text)
		return
	}
	x.say("program", statusOK, "", "%s, format %d", v.text(), format.Version)
}

// store looks at everything that needs the store to answer.
func (x *examination) store(ctx context.Context) {
	if dir := directoryOf(x.addr); dir != "" && !x.directory(dir) {
		x.local()
		return
	}
	if !x.reach(ctx) {
		return
	}
	x.probe(ctx)
	x.local()
	if x.exists {
		x.writer(ctx)
		x.datastore(ctx)
	}
}

// directory looks at a directory before the probe, which would make it.
func (x *examination) directory(dir string) bool {
	_, err := os.Stat(dir)
	switch {
	case err == nil:
		return true
	case !errors.Is(err, os.ErrNotExist):
		x.say("store", statusFailed, "correct the address of the store", "%s cannot be reached: %s", dir, ioReason(err))
		return false
	}
	x.say("store", statusNote, "make it with: swampd init "+quoteArg(dir), "there is no directory %s yet", dir)
	if err := writable(dir); err != nil {
		x.say("store", statusFailed, "make a directory that can be written", "it cannot be made: %s", ioReason(err))
	}
	return false
}

// reach asks for the format marker: it says whether the store answers, what its
// clock shows, and whether a datastore is there.
func (x *examination) reach(ctx context.Context) bool {
	began := time.Now()
	data, _, err := x.read(ctx, format.FormatKey)
	answered := time.Since(began)
	switch {
	case errors.Is(err, backend.ErrNotFound):
	case err != nil:
		x.failed(ctx, "store", err)
		return false
	}
	x.say("store", statusOK, "", "%s answers, in %s", shortStore(x.result.Store), took(answered))
	if err != nil {
		x.say("datastore", statusNote, "make one with: swampd init "+quoteArg(x.result.Store), "there is none here yet")
		return true
	}
	x.exists = true
	if x.marker, err = format.DecodeMarker(data); err != nil {
		x.failed(ctx, "datastore", err)
		x.exists = false
		return true
	}
	x.say("datastore", statusOK, "", "%s, made %s", x.marker.Datastore, x.marker.Created)
	return true
}

func (x *examination) read(ctx context.Context, key string) ([]byte, backend.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	obj, err := x.bucket.Get(ctx, key, backend.GetOptions{Length: format.MaxControl})
	if err != nil {
		return nil, backend.Info{}, err
	}
	defer obj.Body.Close()
	data, err := io.ReadAll(obj.Body)
	return data, obj.Info, err
}

// probe tries out what a datastore needs of a store, and tells its clock.
func (x *examination) probe(ctx context.Context) {
	report, err := backend.Probe(ctx, x.bucket)
	passed := 0
	for _, c := range report.Checks {
		switch {
		case c.Err == nil:
			passed++
		case errors.Is(c.Err, backend.ErrUnsupported):
			x.say("abilities", statusFailed, cureOf["unsupported-store"], "%s", plain(c.Err))
		default:
			x.failed(ctx, "abilities", c.Err)
		}
	}
	if err == nil {
		x.say("abilities", statusOK, "", "all %d checks passed (conditional writes, races, reads, listings, checksums), %d requests in %s", passed, report.Requests, took(report.Took))
	}
	x.clock(report)
}

// clock compares the store's clock with this machine's.
func (x *examination) clock(report *backend.ProbeReport) {
	switch skew := report.Skew; {
	case report.RoundTrip == 0:
		x.say("clock", statusNote, "", "the store does not tell its time here")
	case skew.Abs() <= maxSkew:
		x.say("clock", statusOK, "", "the store's clock and this machine's agree")
	default:
		direction := "behind"
		if skew > 0 {
			direction = "ahead of"
		}
		x.say("clock", statusNote, "set the clock that is wrong; nothing is lost by it, but times in logs mislead, and stores refuse requests when it is far off",
			"the store's clock is %s %s this machine's", took(skew.Abs()), direction)
	}
}

// local looks at the directory for local files.
func (x *examination) local() {
	dir := x.a.stateDir
	if dir == "" {
		root, err := datastore.StateRoot()
		if err != nil {
			x.say("local files", statusFailed, "set XDG_STATE_HOME or use --state-dir", "%v", err)
			return
		}
		dir = root
		if x.marker != nil {
			dir = filepath.Join(dir, x.marker.Datastore.String())
		}
	}
	if err := datastore.CheckStateDir(dir); err != nil {
		x.say("local files", statusFailed, "", "%s", plain(err))
		return
	}
	if err := writable(dir); err != nil {
		x.say("local files", statusFailed, "make it writable, set XDG_STATE_HOME, or use --state-dir", "%s cannot be written: %s", dir, ioReason(err))
		return
	}
	x.say("local files", statusOK, "", "in %s", dir)
}

// writable says whether files can be made in dir, or in what exists of its path.
func writable(dir string) error {
	for {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			return errNoDirectory
		}
		if err == nil {
			break
		}
		if up := filepath.Dir(dir); errors.Is(err, os.ErrNotExist) && up != dir {
			dir = up
			continue
		}
		return err
	}
	f, err := os.CreateTemp(dir, ".swampd-*.tmp")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// writer says who holds the lease.
func (x *examination) writer(ctx context.Context) {
	data, info, err := x.read(ctx, format.LeaseKey)
	if errors.Is(err, backend.ErrNotFound) {
		x.say("writer", statusOK, "", "nobody has written yet")
		return
	}
	if err != nil {
		x.failed(ctx, "writer", err)
		return
	}
	l, err := writer.DecodeLease(data)
	switch {
	case err != nil:
		x.failed(ctx, "writer", err)
	case l.Released:
		x.say("writer", statusOK, "", "nobody is writing")
	default:
		heard := ""
		if !info.Now.IsZero() {
			heard = ", last heard of " + took(max(0, info.Now.Sub(info.Modified))) + " ago"
		}
		x.say("writer", statusNote, "", "%s%s", holder(l), heard)
	}
}

// datastore opens it as the other commands do.
func (x *examination) datastore(ctx context.Context) {
	if needCgo() != nil {
		return
	}
	began := time.Now()
	s, err := datastore.Open(ctx, x.addr, x.a.options(nil))
	if err != nil {
		x.failed(ctx, "open", err)
		return
	}
	x.say("open", statusOK, "", "state %d, opened in %s", s.Head(), took(time.Since(began)))
	if err := s.Close(); err != nil {
		x.failed(ctx, "open", err)
	}
}

// tell writes the result.
func (x *examination) tell() error {
	a := x.a
	if a.json {
		if err := a.emit(x.result); err != nil {
			return err
		}
	} else {
		mark := map[string]string{statusOK: "ok", statusNote: "note", statusFailed: "FAILED"}
		for _, c := range x.result.Checks {
			if err := a.printf("%-6s  %-11s  %s\n", mark[c.Status], c.Check, printable(c.Text)); err != nil {
				return err
			}
			if c.Hint != "" {
				if err := a.printf("%-6s  %-11s  %s\n", "", "", printable(c.Hint)); err != nil {
					return err
				}
			}
		}
	}
	if x.result.OK {
		return nil
	}
	return &refusal{kind: "unwell", text: "something is not well, see above"}
}
