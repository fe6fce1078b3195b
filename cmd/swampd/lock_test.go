package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// stranger is the lease of a writer on another machine: nobody can see from here
// whether it lives. Its TTL is longer than any test.
func stranger() *writer.Lease {
	id := *writer.Self()
	id.Hostname, id.PID, id.BootID = "elsewhere", 4711, uuid.NewString()
	now := time.Now().UTC()
	return &writer.Lease{
		Format: format.Version, MinReader: format.MinReader, Fence: 1, Session: uuid.New(), Identity: &id,
		Command: "nightly run", Acquired: now, Renewed: now, TTLMillis: 3_600_000, Beat: 1,
	}
}

// writeLease puts a lease into the store of c.
func (c *cli) writeLease(data []byte) {
	c.t.Helper()
	ctx := c.t.Context()
	bucket, err := backend.Open(ctx, c.store())
	if err != nil {
		c.t.Fatal(err)
	}
	defer bucket.Close()
	obj, err := bucket.Get(ctx, format.LeaseKey, backend.GetOptions{})
	if errors.Is(err, backend.ErrNotFound) {
		_, err = bucket.Create(ctx, format.LeaseKey, backend.Bytes(data))
	} else if err == nil {
		obj.Body.Close()
		_, err = bucket.Replace(ctx, format.LeaseKey, backend.Bytes(data), obj.Info.Version)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cli) hold(l *writer.Lease) {
	c.t.Helper()
	data, err := l.Encode()
	if err != nil {
		c.t.Fatal(err)
	}
	c.writeLease(data)
}

func (c *cli) lockStatus() lockJSON {
	c.t.Helper()
	return parse[lockJSON](c.t, c.ok("lock", "status", "--json").out)
}

func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// wantNot wants none of these words on standard error.
func (r *result) wantNot(words ...string) *result {
	r.t.Helper()
	for _, w := range words {
		if strings.Contains(r.err, w) {
			r.t.Errorf("%s: %q on standard error:\n%s", r.command, w, r.err)
		}
	}
	return r
}

func TestLockStatusOfALeaseThatNobodyHolds(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.ok("lock", "status").wantLine("free: nobody has written yet")
	if st := c.lockStatus(); st.Held || st.Lease != nil || st.Age != nil || st.Verdict != nil || st.Takeover == nil || *st.Takeover != 0 {
		t.Errorf("before the first writer: %+v", st)
	}
	c.file("x", "x")
	c.ok("put", "x")
	r := c.ok("lock", "status")
	r.wantLine("free: it was given back")
	r.wantLine("a new writer", "would take it at once: it was given back")
	if st := c.lockStatus(); st.Held || st.Lease == nil || !st.Lease.Released || st.Lease.Command != "swampd put x" || st.Lease.Fence != 1 || st.Verdict != nil || *st.Takeover != 0 {
		t.Errorf("after it: %+v", st)
	}
	// A forced release fences whoever still believes to be the writer.
	c.ok("lock", "release", "--force").wantOut("nobody held the lease; whoever still believed to is fenced\n")
	if got := parse[lockReleaseJSON](t, c.ok("lock", "release", "--force", "--json").out); got.Fenced != nil || got.Store != c.store() {
		t.Errorf("%+v", got)
	}
	if st := c.lockStatus(); st.Lease.Fence != 3 || !st.Lease.Released {
		t.Errorf("after two forced releases: %+v", st.Lease)
	}
}

// A writer that cannot be seen is waited for, and here alone a forced release is
// spoken of, with the address that the user gave.
func TestAWriterThatCannotBeSeenMayBeForcedOut(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	spaced := c.mkdir("my store")
	c.ok("init", spaced)
	c.sound(spaced)
	if err := os.Symlink(spaced, c.store()); err != nil {
		t.Skip(err)
	}
	l := stranger()
	c.hold(l)
	c.file("x", "x")
	at := []string{"-s", spaced}

	r := c.ok(append(at, "lock", "status")...)
	r.wantLine("holder", "nightly run (process 4711 on elsewhere), which writes since ")
	r.wantLine("renewed", "on the store's clock; it stands for 1 h 00 min after that")
	r.wantLine("verdict", "unknown: process 4711 on host elsewhere: its hostname is elsewhere, and here it is ", "so it was not looked at")
	r.wantLine("a new writer", "would take it in ", "if it is not renewed until then")
	st := parse[lockJSON](t, c.ok(append(at, "lock", "status", "--json")...).out)
	if !st.Held || st.Verdict.Standing != "unknown" || st.Takeover == nil || *st.Takeover < 3000 || *st.Takeover > 3611 || st.Age == nil || *st.Age < 0 || *st.Age > 600 {
		t.Errorf("%+v", st)
	}
	if st.Lease.Session != l.Session.String() || st.Lease.Identity.PID != 4711 || st.Lease.TTL != 3600 || !st.Lease.Acquired.Equal(l.Acquired) {
		t.Errorf("lease %+v, want that of %+v", st.Lease, l)
	}
	c.ok(append(at, "doctor")...).wantLine("note", "writer", "nightly run (process 4711 on elsewhere)", "last heard of", "verdict unknown", "would take it in ")

	force := "swampd lock release --force -s '" + spaced + "'"
	c.run(append(at, "put", "x", "--max-wait", "0")...).wantCode(75).wantPlain().
		wantErr("whether it lives cannot be seen from here (process 4711", "its hostname is elsewhere", "if it has died, it can be replaced in ", "--max-wait", force)
	c.run(append(at, "put", "x", "--max-wait", "100ms")...).wantCode(75).
		wantErr("waiting for nightly run (process 4711 on elsewhere)", "; if it has died, it can be replaced in ")
	c.env = append(c.env, "SWAMPD_STORE="+spaced)
	c.run("rm", "-r", ".", "--max-wait", "0").wantCode(1) // there is nothing, and nobody was waited for
	e := parse[errorJSON](t, c.run("put", "x", "--max-wait", "0", "--json").wantCode(75).err)
	if e.Kind != "busy" || !strings.HasSuffix(e.Hint, "swampd lock release --force") {
		t.Errorf("without -s: %+v", e)
	}

	got := parse[lockReleaseJSON](t, c.ok("lock", "release", "--force", "--json").out)
	if got.Fenced == nil || got.Fenced.Session != l.Session.String() || got.Fenced.Command != "nightly run" || got.Fenced.Released {
		t.Errorf("fenced %+v", got.Fenced)
	}
	c.ok("put", "x", "--max-wait", "0")
}

// The lease with all that it can say, since no process of the tests says it all.
func TestEachJSONKeyOfALeaseIsDocumented(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	l := stranger()
	l.Writer, l.Epoch, l.Checkout = "ci", "7", "/srv/checkout"
	l.Identity.PIDNamespace, l.Identity.TimeNamespace, l.Identity.StartTime = "pid:[1]", "time:[1]", "1"
	l.Adoption = &writer.Adoption{BeatMillis: 250, SelfFenceMillis: 750, SilenceMillis: 1000}
	l.Guard = &writer.Guard{Path: "/srv/checkout/.swamp/guard", Inode: 1, ID: "x"}
	c.hold(l)
	status := parse[map[string]any](t, c.ok("lock", "status", "--json").out)
	help := c.ok("lock", "status", "--help").out
	keys := keysOf(status)
	for _, k := range keys {
		if !strings.Contains(help, `"`+k+`"`) {
			t.Errorf("lock status --json writes %q, of which its help says nothing", k)
		}
	}
	if len(keys) != 31 {
		t.Errorf("it has %d keys, want 31: %v", len(keys), status)
	}
	r := c.ok("lock", "status")
	r.wantLine("identity", "started at 1, boot ", "pid namespace pid:[1], time namespace time:[1]")
	r.wantLine("writer id", "ci, epoch 7")
	r.wantLine("checkout", "/srv/checkout")
	r.wantLine("a new writer", "or after 1s of silence, as writer ci of epoch 7 with its guard")
	l.Identity, l.Adoption, l.Guard = nil, nil, nil
	c.hold(l)
	c.ok("lock", "status").wantLine("identity", "the record names no process")
}

func TestBusySaysWhatIsKnownOfTheHolder(t *testing.T) {
	const where = "process 4711 on host elsewhere: "
	for _, c := range []struct {
		store    string
		standing writer.Standing
		takeover time.Duration
		want     []string
		force    string // what the hint says of a forced release
	}{
		{"", writer.Alive, -1, []string{"last heard of 3.0 s ago; it is alive (" + where + "seen)"}, ""},
		{"/srv/my data", writer.Alive, -1, []string{"it is alive"}, ""},
		{"", writer.Unknown, 37 * time.Second, []string{"whether it lives cannot be seen from here (" + where + "seen)", "if it has died, it can be replaced in 37 s"}, "swampd lock release --force"},
		{"/srv/my data", writer.Unknown, 0, []string{"it can be replaced in a moment"}, "swampd lock release --force -s '/srv/my data'"},
		{"s3://me:hush@bucket/x", writer.Unknown, -1, []string{"at a time that is not known"}, "swampd lock release --force -s "},
	} {
		a := &app{parsed: true, store: c.store}
		b := &writer.BusyError{Wait: writer.Wait{
			Holder: *stranger(), Verdict: writer.Verdict{Standing: c.standing, Evidence: where + "seen"}, Age: 3 * time.Second, Takeover: c.takeover,
		}}
		e := a.explain(t.Context(), &datastore.Error{Op: "begin", Err: b})
		if e.Kind != "busy" || e.ExitCode != 75 {
			t.Errorf("kind %s, exit code %d", e.Kind, e.ExitCode)
		}
		for _, w := range c.want {
			if !strings.Contains(e.Error, w) {
				t.Errorf("%q is missing: %s", w, e.Error)
			}
		}
		if i := strings.Index(e.Hint, "swampd lock release"); (i >= 0) != (c.force != "") || c.force != "" && !strings.Contains(e.Hint, c.force) {
			t.Errorf("the hint of a holder that is %v: %s", c.standing, e.Hint)
		}
		if c.standing == writer.Alive && strings.Contains(e.Error, "replaced") || strings.Contains(e.Hint, "hush") {
			t.Errorf("%+v", e)
		}
	}
}

func TestAForcedReleaseSaysWhomItFences(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	l := stranger()
	l.Fence = 41
	c.hold(l)
	c.run("lock", "release").wantCode(2).wantErr("--force", "alive", "fenced", "exit code 1", "swampd lock status")
	if st := c.lockStatus(); !st.Held || st.Lease.Session != l.Session.String() {
		t.Errorf("without --force it did something: %+v", st.Lease)
	}
	if out := c.ok("lock", "release", "--force").out; !strings.HasPrefix(out, "fenced nightly run (process 4711 on elsewhere), which writes since ") || !strings.Contains(out, "(fence 41)") {
		t.Error(out)
	}
	if st := c.lockStatus(); st.Held || st.Lease.Fence != 42 {
		t.Errorf("afterwards: %+v", st.Lease)
	}
}

// What a lease says is its writer's word, and may be meant for a terminal.
func TestALeaseCannotWriteToTheTerminal(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;x\a\nverdict       gone\r\u009b31m\u202e"
	c := newCLI(t).withStore()
	c.file("x", "x")
	l := stranger()
	for _, s := range []*string{
		&l.Command, &l.Checkout, &l.Writer, &l.Epoch,
		&l.Identity.Hostname, &l.Identity.BootID, &l.Identity.StartTime, &l.Identity.PIDNamespace, &l.Identity.TimeNamespace,
	} {
		*s = evil + strings.Repeat("long ", 1000)
	}
	l.Adoption = &writer.Adoption{BeatMillis: 1, SelfFenceMillis: 3, SilenceMillis: 4}
	l.Guard = &writer.Guard{Path: evil, ID: evil}
	c.hold(l)
	for _, extra := range [][]string{nil, {"--json"}} {
		for _, args := range [][]string{
			{"lock", "status"}, {"doctor"}, {"put", "x", "--max-wait", "100ms"}, {"lock", "release", "--force"},
		} {
			c.hold(l)
			r := c.run(append(args, extra...)...)
			text := r.out + r.err
			if len(text) == 0 {
				t.Errorf("%s says nothing", r.command)
			}
			for line := range strings.Lines(text) {
				line = strings.TrimSuffix(line, "\n")
				if extra == nil && (printable(line) != line || strings.HasPrefix(line, "verdict       gone")) {
					t.Errorf("%s: %q", r.command, line)
				}
				if strings.ContainsAny(line, "\x1b\a\r") {
					t.Errorf("%s: %q", r.command, line)
				}
				if extra == nil && len(line) > 6000 {
					t.Errorf("%s: a line of %d bytes", r.command, len(line))
				}
			}
		}
	}
}

// The advice about a lease that cannot be read is followed to its end.
func TestALeaseThatCannotBeReadSaysWhatToDo(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	files := filepath.Join(c.store(), "_control", "writer", "lease.*")
	for i, data := range []string{"no JSON", "", "{}", `{"format":3,"minimum_reader":3,"fence":0}`, strings.Repeat("x", 1<<20+1)} {
		c.writeLease([]byte(data))
		commands := [][]string{{"lock", "status"}, {"lock", "release", "--force"}, {"put", "x", "--unchanged"}}
		if i > 0 {
			commands = commands[:1]
		}
		for _, args := range commands {
			c.run(args...).wantCode(1).wantPlain().wantNot("swampd verify").
				wantErr("the writer's lease", "once no writer runs, remove the files "+files, "no commit depends on it")
			if e := parse[errorJSON](t, c.run(append(args, "--json")...).wantCode(1).err); e.Kind != "corrupt" {
				t.Errorf("%v: %+v", args, e)
			}
		}
		c.run("doctor").wantCode(1).wantLine("FAILED", "writer", "the writer's lease")
		names, err := filepath.Glob(files)
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		c.ok("put", "x", "--unchanged", "--max-wait", "0")
	}
	c.writeLease([]byte(`{"format":9,"minimum_reader":9}`))
	c.run("lock", "status").wantCode(1).wantErr("needs format 9", "install a newer swampd").wantNot("remove")
}

// A process that is stopped may have locked any local file, and then it must still
// be possible to look, and to force the lease away: here there can be none.
func TestLockCommandsUseNoLocalFiles(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	file := c.file("no-directory", "x")
	c.env = append(c.env, "XDG_STATE_HOME="+file)
	c.run("ls").wantCode(1) // as every command would that uses them
	for _, stateDir := range []string{"", file} {
		l := stranger()
		c.hold(l)
		args := []string{"--json"}
		if stateDir != "" {
			args = append(args, "--state-dir", stateDir)
		}
		if st := parse[lockJSON](t, c.ok(append([]string{"lock", "status"}, args...)...).out); !st.Held {
			t.Errorf("%+v", st)
		}
		if got := parse[lockReleaseJSON](t, c.ok(append([]string{"lock", "release", "--force"}, args...)...).out); got.Fenced == nil || got.Fenced.Session != l.Session.String() {
			t.Errorf("%+v", got)
		}
	}
}

func TestLockCommandsWithoutADatastore(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, args := range [][]string{{"lock", "status"}, {"lock", "release", "--force"}} {
		c.run(args...).wantCode(1).wantErr("no datastore was named", "-s URL").wantPlain()
		c.run(append(args, "-s", c.store())...).wantCode(1).wantErr("there is no datastore at "+c.store(), "swampd init -s ").wantPlain()
		if e := parse[errorJSON](t, c.run(append(args, "-s", c.store(), "--json")...).wantCode(1).err); e.Kind != "no-datastore" {
			t.Errorf("%v: %+v", args, e)
		}
	}
	if _, err := os.Stat(c.store()); err == nil {
		t.Error("looking for a lease made a directory")
	}
}

// Each error of a forced release says what is left behind by it.
func TestAForcedReleaseThatFailsSaysWhatIsOpen(t *testing.T) {
	a := &app{parsed: true, store: "/srv/data"}
	for _, c := range []struct {
		err    error
		victim *writer.Lease
		kind   string
		exit   int
		words  []string
	}{
		{datastore.ErrUnconfirmed, stranger(), "unconfirmed", 75, []string{"nightly run (process 4711 on elsewhere) has lost the lease", "has lost the lease, but may still commit", "run this again"}},
		{datastore.ErrUnconfirmed, nil, "unconfirmed", 75, []string{"run this again"}},
		{backend.ErrDenied, stranger(), "denied", 1, []string{"has lost the lease, but may still commit", "what its permissions allow", "then run this again"}},
		{backend.ErrDenied, nil, "denied", 1, []string{"what its permissions allow"}},
		{writer.ErrFenced, nil, "fenced", 1, []string{"another writer took over meanwhile", "swampd lock status"}},
		{writer.ErrFenced, stranger(), "fenced", 1, []string{"another writer took over meanwhile", "has lost the lease", "swampd lock status"}},
		{writer.ErrExpired, nil, "failed", 1, []string{"run this again"}},
	} {
		e := a.explain(t.Context(), &releaseError{c.victim, &datastore.Error{Op: "lock release", Key: "x", Err: c.err}})
		if e.Kind != c.kind || e.ExitCode != c.exit {
			t.Errorf("%v: kind %s, exit code %d, want %s, %d", c.err, e.Kind, e.ExitCode, c.kind, c.exit)
		}
		for _, w := range c.words {
			if !strings.Contains(e.Error+"\n"+e.Hint, w) {
				t.Errorf("%v of %v: %q is missing: %+v", c.err, c.victim, w, e)
			}
		}
		if strings.Contains(e.Hint, "log --id") || strings.Contains(e.Hint, "blindly") || e.Commit != "" {
			t.Errorf("%v: the hint is of a commit: %s", c.err, e.Hint)
		}
	}
}
