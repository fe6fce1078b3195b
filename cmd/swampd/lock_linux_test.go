package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stop stops the process of a put, and returns when it has stopped.
func (p *piped) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); p.news(unix.WSTOPPED) == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			p.t.Fatal("it does not stop")
		}
	}
}

// news is what its parent, this test, could be told of the process, which stays
// to be told.
func (p *piped) news(what int) int32 {
	p.t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, &info, what|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		p.t.Fatal(err)
	}
	return info.Signo
}

// wantStopped wants that nothing has set the process going.
func (p *piped) wantStopped(after string) {
	p.t.Helper()
	if p.news(unix.WSTOPPED) == 0 || p.news(unix.WCONTINUED) != 0 {
		p.t.Errorf("after %s the process is no longer stopped", after)
	}
}

// A writer that is stopped is alive: it is left as it is, and its lease is not
// taken, unless somebody takes it by force. Then it learns when it goes on that it
// must not commit, whatever it believes to hold.
func TestAStoppedPutThatIsForcedOutCommitsNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	c.ok("put", "x")
	c.file("x", "new x")
	p := c.startPut("big")
	p.stop()

	st := c.lockStatus()
	if !st.Held || st.Verdict.Standing != "alive" || !strings.HasSuffix(st.Verdict.Evidence, "its state is T") || st.Lease.Identity.PID != p.cmd.Process.Pid || st.Takeover != nil {
		t.Errorf("%+v, verdict %+v", st, st.Verdict)
	}
	r := c.ok("lock", "status")
	r.wantLine("holder", "swampd put - (process ")
	r.wantLine("verdict", "alive: process ", "its state is T")
	r.wantLine("a new writer", "would wait for it to be given back: its process is alive")
	p.wantStopped("lock status")

	r = c.run("put", "x", "--max-wait", "0").wantCode(75).wantPlain().wantNot("lock release", "can be replaced")
	r.wantErr("another writer is at work: swampd put - (process ", "it is alive (process ", "its state is T", "--max-wait")
	c.run("put", "x", "--max-wait", "100ms").wantCode(75).wantErr("waiting for swampd put - (process ", "; it is alive; ").wantNot("lock release")
	c.ok("ls")
	p.wantStopped("put")

	got := parse[lockReleaseJSON](t, c.ok("lock", "release", "--force", "--json").out)
	if got.Fenced == nil || got.Fenced.Identity.PID != p.cmd.Process.Pid || got.Fenced.Session != st.Lease.Session || got.Fenced.Fence != st.Lease.Fence {
		t.Errorf("fenced %+v, want %+v", got.Fenced, st.Lease)
	}
	p.wantStopped("lock release")
	// No other writer comes in between: the forced release alone must do it.
	commits := c.commits()

	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != 1 {
		t.Errorf("exit code %d, want 1: %s", code, &p.err)
	}
	told := &result{t: t, command: "the put that was fenced", out: p.out.String(), err: p.err.String()}
	told.wantPlain().wantErr("fenced", "nothing of this command was stored", "do not retry it blindly", "swampd log").wantOut("")
	if n, got := c.commits(), c.paths(); n != commits || got != "x" {
		t.Errorf("%d commits and %q, want %d and x", n, got, commits)
	}
	c.wantNothingStaged()
	// Nor does its end touch what is another's.
	if st := c.lockStatus(); st.Held || st.Lease.Fence != got.Fenced.Fence+1 || st.Lease.Command != "swampd lock release" {
		t.Errorf("the lease is %+v", st.Lease)
	}
	c.ok("put", "x", "--max-wait", "0")
}

// Containers share their hostname and repeat their pids, and must not take a
// living writer in another for a dead one.
func TestAWriterInAnotherPIDNamespaceIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	unshare := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no other pid namespace can be made here: %v: %s", err, out)
	}
	c := newCLI(t).withStore()
	c.file("x", "x")
	cmd := c.command("put", "-", "--as", "big")
	inside := append(unshare, cmd.Args...)
	program, err := exec.LookPath(unshare[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args = program, inside
	p := c.piping(cmd)

	if st := c.lockStatus(); !st.Held || st.Verdict.Standing != "unknown" || !strings.Contains(st.Verdict.Evidence, "pid namespace") || st.Takeover == nil || *st.Takeover < 5 {
		t.Errorf("%+v, verdict %+v", st, st.Verdict)
	}
	c.run("put", "x", "--max-wait", "0").wantCode(75).wantPlain().
		wantErr("another writer is at work: swampd put - (process ", "whether it lives cannot be seen from here", "its pid namespace is pid:[", "if it has died, it can be replaced in ", "swampd lock release --force")
	c.ok("lock", "release", "--force")
	c.ok("put", "x", "--max-wait", "0")
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != 1 {
		t.Errorf("exit code %d, want 1: %s", code, &p.err)
	}
	if got := c.paths(); got != "x" {
		t.Errorf("stored %q", got)
	}
}

func TestLockInABucket(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, c *cli) {
		c.run("lock", "status").wantCode(1).wantErr("there is no datastore at ", "swampd init -s ")
		c.ok("init")
		c.file("x", "x")
		p := c.startPut("big")
		if st := c.lockStatus(); !st.Held || st.Verdict.Standing != "alive" || st.Age == nil || st.Lease.Identity.PID != p.cmd.Process.Pid {
			t.Errorf("%+v, verdict %+v", st, st.Verdict)
		}
		c.run("put", "x", "--max-wait", "0").wantCode(75).wantErr("it is alive (process ").wantNot("lock release")
		if got := parse[lockReleaseJSON](t, c.ok("lock", "release", "--force", "--json").out); got.Fenced == nil || got.Fenced.Identity.PID != p.cmd.Process.Pid {
			t.Errorf("fenced %+v", got.Fenced)
		}
		if err := p.in.Close(); err != nil {
			t.Fatal(err)
		}
		if code := p.end(); code != 1 || !strings.Contains(p.err.String(), "do not retry it blindly") {
			t.Errorf("exit code %d, want 1: %s", code, &p.err)
		}
		c.ok("put", "x", "--max-wait", "0")
		if got := c.paths(); got != "x" {
			t.Errorf("stored %q", got)
		}
	})
}

// Between the lease and the log something may fail, and then the victim can still
// commit: that is said, and doing it again does the rest.
func TestAForcedReleaseWithoutItsBarrierSaysSo(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	c.ok("put", "x")
	c.hold(stranger())
	commits := filepath.Join(c.store(), "commits")
	if err := os.Chmod(commits, 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(commits, 0o755)
	c.asNobody("lock", "release", "--force").wantCode(1).wantPlain().wantOut("").
		wantErr("permission denied", "nightly run (process 4711 on elsewhere) has lost the lease, but may still commit", "then run this again")
	if err := os.Chmod(commits, 0o755); err != nil {
		t.Fatal(err)
	}
	c.asNobody("lock", "release", "--force").wantCode(0)
}
