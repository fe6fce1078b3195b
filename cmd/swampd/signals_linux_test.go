package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
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

// piped is a put of standard input that has begun to read it.
type piped struct {
	*cli
	cmd      *exec.Cmd
	in       io.WriteCloser
	out, err bytes.Buffer
}

// startPut starts a put of a content that does not end, and returns when it is
// in the middle of it: it has taken more than buffers hold.
func (c *cli) startPut(name string, more ...string) *piped {
	c.t.Helper()
	return c.piping(c.command(append([]string{"put", "-", "--as", name}, more...)...))
}

// piping starts such a command.
func (c *cli) piping(cmd *exec.Cmd) *piped {
	c.t.Helper()
	p := &piped{cli: c, cmd: cmd}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	// A part of a block at the end, so that the program is stuck in reading the
	// rest of it, where nothing but the context can end it.
	if _, err := p.in.Write(make([]byte, 16<<20+100)); err != nil {
		c.t.Fatalf("%v: %s", err, &p.err)
	}
	p.drained()
	return p
}

// drained waits until the program has read all that is in the pipe.
func (p *piped) drained() {
	p.t.Helper()
	conn, err := p.in.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		var left int
		var ioctlErr error
		if err := conn.Control(func(fd uintptr) { left, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || ioctlErr != nil {
			p.t.Fatal(err, ioctlErr)
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d bytes are not read", left)
		}
	}
}

// end waits for the exit code.
func (p *piped) end() int {
	p.t.Helper()
	return endOf(p.t, p.cmd)
}

// endOf waits for the exit code of a command, but not for ever.
func endOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case err := <-done:
		return exitCode(t, err)
	case <-timer.C:
		cmd.Process.Kill()
		<-done
		t.Fatalf("%v does not end", cmd.Args[1:])
		return 0
	}
}

func TestASignalEndsAPutCleanly(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		sig  syscall.Signal
		code int
		word string
	}{{syscall.SIGINT, 130, "interrupted"}, {syscall.SIGTERM, 143, "terminated"}, {syscall.SIGHUP, 129, "the terminal was closed"}} {
		t.Run(s.word, func(t *testing.T) {
			c := newCLI(t).withStore()
			p := c.startPut("big", "--json")
			if err := p.cmd.Process.Signal(s.sig); err != nil {
				t.Fatal(err)
			}
			if code := p.end(); code != s.code {
				t.Errorf("exit code %d, want %d: %s", code, s.code, &p.err)
			}
			var e errorJSON
			if err := json.Unmarshal(p.err.Bytes(), &e); err != nil || e.Kind != "interrupted" || e.ExitCode != s.code || e.Error != s.word {
				t.Errorf("%v: %s", err, &p.err)
			}
			if p.out.Len() > 0 {
				t.Errorf("it said %q", &p.out)
			}
			if n := c.commits(); n != 0 {
				t.Errorf("%d commits", n)
			}
			c.wantNothingStaged()
			// The hold was given back: nobody has to wait.
			c.file("x", "x")
			c.ok("put", "x", "--max-wait", "0")
			c.ok("verify", "--read-data")
		})
	}
}

// nohup and a shell's & start programs that ignore signals.
func TestWhatIsIgnoredFromTheStartEndsNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	for sig, name := range map[syscall.Signal]string{syscall.SIGHUP: "HUP", syscall.SIGINT: "INT"} {
		cmd := c.command("put", "-", "--as", name)
		cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" ` + name + `; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		p := c.piping(cmd)
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := p.in.Close(); err != nil {
			t.Fatal(err)
		}
		if code := p.end(); code != 0 {
			t.Errorf("%s: exit code %d: %s", name, code, &p.err)
		}
	}
	if got := c.paths(); got != "HUP INT" {
		t.Errorf("stored %q", got)
	}
}

// wantNothingStaged wants no file of a batch in the local state.
func (c *cli) wantNothingStaged() {
	c.t.Helper()
	for _, root := range []string{filepath.Join(c.base, "state"), c.store()} {
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() && info.Size() >= 1<<20 && !strings.Contains(d.Name(), "commits.db") {
				c.t.Errorf("%s was left behind, %d bytes", p, info.Size())
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.t.Error(err)
		}
	}
	staging, err := filepath.Glob(filepath.Join(c.base, "state", "swampd", "*", "staging", "*"))
	if err != nil || len(staging) > 0 {
		c.t.Errorf("staging holds %v, %v", staging, err)
	}
}

func TestTheSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env = append(c.env, hangEnv+"=1")
	cmd := c.command("version")
	errPipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	buf := make([]byte, 100)
	for _, word := range []string{"hanging", "interrupted"} {
		n, err := errPipe.Read(buf)
		if err != nil || !strings.Contains(string(buf[:n]), word) {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	if code := endOf(t, cmd); code != 130 {
		t.Errorf("exit code %d", code)
	}
}

func TestAnotherWriterIsWaitedForOrNot(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	c.ok("put", "x")
	p := c.startPut("big")
	// Where nothing is new, nobody needs to be waited for.
	if out := c.ok("put", "x", "--max-wait", "0").out; !strings.Contains(out, "nothing new") {
		t.Error(out)
	}
	c.file("x", "another x")
	c.run("put", "x", "--max-wait", "0").wantCode(75).wantErr("another writer is at work", "swampd put", "it is alive", "--max-wait").wantPlain().wantNot("lock release")
	r := c.run("rm", "x", "--max-wait", "0", "--json").wantCode(75)
	var e errorJSON
	if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.Kind != "busy" || e.ExitCode != 75 {
		t.Errorf("%v: %s", err, r.err)
	}
	c.run("put", "x", "--max-wait", "-1s").wantCode(2)
	c.ok("ls") // reading waits for nobody
	c.ok("doctor").wantLine("note", "writer", "swampd put - (process ", "writes since", "last heard of", "verdict alive", "would wait for it")
	c.file("x", "new x")
	second := c.command("put", "x")
	errPipe, err := second.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	n, err := errPipe.Read(buf)
	if err != nil || !strings.Contains(string(buf[:n]), "waiting for swampd put") {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != 0 {
		t.Fatalf("exit code %d: %s", code, &p.err)
	}
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
	if got := c.paths(); got != "big x" {
		t.Errorf("stored %q", got)
	}
	c.ok("verify")
}

func TestASignalEndsAGetCleanly(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.runIn(io.LimitReader(zeros{}, 256<<20), "put", "-", "--as", "d/big").wantCode(0)
	out := c.mkdir("out")
	cmd := c.command("get", ".", "-o", out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	for deadline := time.Now().Add(30 * time.Second); ; { // until the file is being written
		temp, err := filepath.Glob(filepath.Join(out, "d", ".swampd-*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(temp) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no file is being written")
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := endOf(t, cmd); code != 130 {
		t.Errorf("exit code %d", code)
	}
	if left, err := os.ReadDir(filepath.Join(out, "d")); err != nil || len(left) > 0 {
		t.Errorf("%v was left behind, %v", left, err)
	}
	c.ok("get", ".", "-o", out)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestAClosedPipeEndsTheCommandQuietly(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.runIn(bytes.NewReader(make([]byte, 8<<20)), "put", "-", "--as", "big").wantCode(0)
	cmd := c.command("cat", "big")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if code := endOf(t, cmd); code != exitPipe || errOut.Len() > 0 {
		t.Errorf("exit code %d, %q", code, &errOut)
	}
}
