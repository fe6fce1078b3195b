//go:build unix

package fs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
)

// childEnv holds the job of a process that a test starts from its own program.
const childEnv = "SWAMPD_FS_TEST_CHILD"

func TestMain(m *testing.M) {
	if s := os.Getenv(childEnv); s != "" {
		if err := runChild(s); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// job is what a child does; answer is what it says about it.
type job struct {
	Do      string
	Root    string
	Key     string
	Data    string
	Version backend.Version
	// At is the call of the file system before which Signal is sent to itself.
	At     int
	Signal syscall.Signal
	Umask  int
	Seed   int
	Rounds int
}

type answer struct {
	Err      string
	Exists   bool
	Changed  bool
	Denied   bool
	Calls    int
	Version  backend.Version
	Wins     map[string]string       // by key: the content that won
	Replaced map[backend.Version]int // how often a version was replaced
	Made     map[backend.Version]int // how often a version was made
	Listed   []string
	PID      int
	Host     string
}

func runChild(s string) error {
	var j job
	if err := json.Unmarshal([]byte(s), &j); err != nil {
		return err
	}
	if j.Umask != 0 {
		syscall.Umask(j.Umask)
	}
	run := childJobs[j.Do]
	if run == nil {
		return fmt.Errorf("no job %q", j.Do)
	}
	a := run(j)
	return json.NewEncoder(os.Stdout).Encode(a)
}

var childJobs = map[string]func(job) answer{
	"create":  one,
	"replace": one,
	"delete":  one,
	"creates": raceCreates,
	"counter": raceCounter,
	"lives":   raceLives,
	"modes":   makeAll,
	"reader":  readAllKeys,
	"who":     whoAmI,
}

func (a *answer) failed(err error) {
	if err != nil {
		a.Err = err.Error()
		a.Exists = errors.Is(err, backend.ErrExists)
		a.Changed = errors.Is(err, backend.ErrChanged)
		a.Denied = errors.Is(err, backend.ErrDenied)
	}
}

// one does one call and sends itself a signal on the way.
func one(j job) (a answer) {
	h := &hookFS{FS: OS(), root: j.Root}
	h.before = func(call) error {
		if a.Calls++; a.Calls == j.At {
			return signalMyself(j.Signal)
		}
		return nil
	}
	d, err := New(j.Root, &Options{FS: h})
	if err != nil {
		a.failed(err)
		return a
	}
	defer d.Close()
	var info backend.Info
	switch j.Do {
	case "create":
		info, err = d.Create(context.Background(), j.Key, backend.Bytes([]byte(j.Data)))
	case "replace":
		info, err = d.Replace(context.Background(), j.Key, backend.Bytes([]byte(j.Data)), j.Version)
	case "delete":
		err = d.Delete(context.Background(), []string{j.Key})
	}
	a.Version = info.Version
	a.failed(err)
	return a
}

// signalMyself returns when the process goes on. (The system may let this thread
// go on a little before another one takes the signal.)
func signalMyself(sig syscall.Signal) error {
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, syscall.SIGCONT)
	defer signal.Stop(goOn)
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		return err
	}
	<-goOn
	return nil
}

// child is a process that does a job.
type child struct {
	testing.TB
	pid int
	out *os.File
}

func start(t testing.TB, j job) *child {
	t.Helper()
	return startProgram(t, os.Args[0], j, nil)
}

func startProgram(t testing.TB, program string, j job, attr *syscall.SysProcAttr) *child {
	t.Helper()
	s, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(program, []string{program}, &os.ProcAttr{
		// Programs with the race detector sleep for a second before they end.
		Env:   append(os.Environ(), childEnv+"="+string(s), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0"),
		Files: []*os.File{nil, out, os.Stderr},
		Sys:   attr,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t, p.Pid, out}
	if err := p.Release(); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		if c.pid != 0 {
			_ = syscall.Kill(c.pid, syscall.SIGKILL)
			c.wait()
		}
		out.Close()
	})
	return c
}

// wait waits until the child ends or stops.
func (c *child) wait() syscall.WaitStatus {
	c.Helper()
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.pid, &ws, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			c.Fatalf("wait: %v", err)
		}
		if !ws.Stopped() {
			c.pid = 0
		}
		return ws
	}
}

// goOn lets a stopped child go on to its end.
func (c *child) goOn() answer {
	c.Helper()
	if err := syscall.Kill(c.pid, syscall.SIGCONT); err != nil {
		c.Fatal(err)
	}
	return c.end()
}

// end waits for a child that must end well.
func (c *child) end() (a answer) {
	c.Helper()
	if ws := c.wait(); !ws.Exited() || ws.ExitStatus() != 0 {
		c.Fatalf("the child ended with %v, status %d", ws, ws.ExitStatus())
	}
	b, err := os.ReadFile(c.out.Name())
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	if err != nil {
		c.Fatalf("the child said %q: %v", b, err)
	}
	return a
}

// A process is stopped before each of its calls, and nobody waits for it.
func TestStoppedProcessBlocksNobody(t *testing.T) {
	for _, op := range []string{"replace", "create", "delete"} {
		t.Run(op, func(t *testing.T) {
			for at := 1; ; at++ {
				root := filepath.Join(memDir(t), "store")
				d := open(t, root, nil)
				v := create(t, d, "_control/x", "old").Version
				j := job{Do: op, Root: root, Key: "_control/x", Data: "child", Version: v, At: at, Signal: syscall.SIGSTOP}
				if op == "create" {
					j.Key = "data/x"
				}
				c := start(t, j)
				ws := c.wait()
				if ws.Exited() {
					if at < 5 {
						t.Fatalf("it was never stopped")
					}
					return
				}
				if !ws.Stopped() {
					t.Fatalf("it ended with %v", ws)
				}
				meetStopped(t, d, c, op, v)
				if _, err := d.CleanUploads(t.Context(), 0); err != nil {
					t.Error(err)
				}
				noTemps(t, root)
				if t.Failed() {
					t.Fatalf("it was stopped before call %d; files: %q", at, files(t, root))
				}
				d.Close()
			}
		})
	}
}

// meetStopped does beside a stopped child what it is about to do, then lets it go
// on: one of the two did it.
func meetStopped(t *testing.T, d *Driver, c *child, op string, v backend.Version) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	body := backend.Bytes([]byte("parent"))
	var err error
	switch op {
	case "replace":
		if got, _ := get(t, d, "_control/x"); got != "old" && got != "child" {
			t.Errorf("the record holds %q", got)
		}
		_, err = d.Replace(ctx, "_control/x", body, v)
		a := c.goOn()
		switch {
		case err == nil:
			holds(t, d, "_control/x", "parent")
			if !a.Changed {
				t.Errorf("both replaced one version: the child was told %q", a.Err)
			}
		case errors.Is(err, backend.ErrChanged):
			holds(t, d, "_control/x", "child")
			if a.Err != "" {
				t.Errorf("the child was told %q and its bytes are there", a.Err)
			}
		default:
			t.Errorf("replace: %v", err)
		}
	case "create":
		_, err = d.Create(ctx, "data/x", body)
		a := c.goOn()
		switch {
		case err == nil:
			holds(t, d, "data/x", "parent")
			if !a.Exists {
				t.Errorf("both created one object: the child was told %q", a.Err)
			}
		case errors.Is(err, backend.ErrExists):
			holds(t, d, "data/x", "child")
			if a.Err != "" {
				t.Errorf("the child was told %q and its bytes are there", a.Err)
			}
		default:
			t.Errorf("create: %v", err)
		}
	case "delete":
		if err := d.Delete(ctx, []string{"_control/x"}); err != nil {
			t.Errorf("delete: %v", err)
		}
		create(t, d, "_control/x", "again")
		_, now := get(t, d, "_control/x")
		a := c.goOn()
		if a.Err != "" {
			t.Errorf("the child was told %q", a.Err)
		}
		obj, err := d.Get(ctx, "_control/x", backend.GetOptions{})
		if errors.Is(err, backend.ErrNotFound) {
			return // the child's delete came last
		}
		if err != nil {
			t.Fatalf("get: %v", err)
		}
		defer obj.Body.Close()
		if b, err := io.ReadAll(obj.Body); err != nil || string(b) != "again" || obj.Version != now.Version {
			t.Errorf("the record holds %q (%v), want what was made after the delete", b, err)
		}
	}
}

// A process is killed before each of its calls: the object is not there, or whole,
// and nothing is in the way.
func TestKilledProcessLeavesNothingOrAll(t *testing.T) {
	for _, key := range []string{"data/a/x", "_control/x"} {
		t.Run(key, func(t *testing.T) {
			there := 0
			for at := 1; ; at++ {
				root := filepath.Join(memDir(t), "store")
				ws := start(t, job{Do: "create", Root: root, Key: key, Data: "whole", At: at, Signal: syscall.SIGKILL}).wait()
				if ws.Exited() {
					if at < 5 || there == 0 {
						t.Fatalf("it was killed %d times, and the object was there %d times", at-1, there)
					}
					return
				}
				if !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
					t.Fatalf("it ended with %v", ws)
				}
				d := open(t, root, nil)
				want := "mine"
				obj, err := d.Get(t.Context(), key, backend.GetOptions{})
				switch {
				case err == nil:
					obj.Body.Close()
					holds(t, d, key, "whole")
					want = "whole"
					there++
				case !errors.Is(err, backend.ErrNotFound):
					t.Errorf("get: %v", err)
				}
				if got := keys(t, d, "", ""); len(got) != map[string]int{"whole": 1}[want] {
					t.Errorf("listed %q, and it holds %q", got, want)
				}
				_, err = d.Create(t.Context(), key, backend.Bytes([]byte("mine")))
				if (err == nil) != (want == "mine") || err != nil && !errors.Is(err, backend.ErrExists) {
					t.Errorf("create: %v, and it holds %q", err, want)
				}
				if _, err := d.CleanUploads(t.Context(), 0); err != nil {
					t.Error(err)
				}
				holds(t, d, key, want)
				noTemps(t, root)
				if t.Failed() {
					t.Fatalf("it was killed before call %d; files: %q", at, files(t, root))
				}
				d.Close()
			}
		})
	}
}

// whoAmI says how a process knows itself.
func whoAmI(job) (a answer) {
	var err error
	a.PID = os.Getpid()
	a.Host, err = os.Hostname()
	a.failed(err)
	return a
}

// makeAll makes objects of all kinds.
func makeAll(j job) (a answer) {
	d, err := New(j.Root, nil)
	if err != nil {
		a.failed(err)
		return a
	}
	defer d.Close()
	a.failed(makeKinds(d))
	return a
}

func makeKinds(d *Driver) error {
	for _, key := range []string{"x", "data/a/x", "data/a/y", "_control/x", "_control/dir/y"} {
		info, err := d.Create(context.Background(), key, backend.Bytes([]byte(key)))
		if err != nil {
			return err
		}
		if backend.Replaceable(key) {
			if _, err := d.Replace(context.Background(), key, backend.Bytes([]byte(key)), info.Version); err != nil {
				return err
			}
		}
	}
	return nil
}

// readAllKeys lists and reads everything, then tries to write.
func readAllKeys(j job) (a answer) {
	d, err := New(j.Root, nil)
	if err != nil {
		a.failed(err)
		return a
	}
	defer d.Close()
	for e, err := range d.List(context.Background(), "", "") {
		if err != nil {
			a.failed(err)
			return a
		}
		obj, err := d.Get(context.Background(), e.Key, backend.GetOptions{})
		if err != nil {
			a.failed(err)
			return a
		}
		b, err := io.ReadAll(obj.Body)
		obj.Body.Close()
		if err != nil || string(b) != e.Key || int64(len(b)) != e.Size || !obj.Now.IsZero() {
			a.failed(fmt.Errorf("%s holds %q, Now %v, %w", e.Key, b, obj.Now, err))
			return a
		}
		a.Listed = append(a.Listed, e.Key)
	}
	_, err = d.Create(context.Background(), "new/x", backend.Bytes(nil))
	a.failed(err)
	return a
}
