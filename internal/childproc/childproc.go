// Package childproc runs the test program again as a child process that carries
// out requests: one line of JSON each on its standard input, answered by one line
// on its standard output. It is for tests of what real processes do to each other.
//
//	func init() { childproc.Serve("writer", serve) } // in the test program
//	…
//	p := childproc.Start(t, "writer", nil)
//	p.Call(request, &answer)
//	p.Kill()
//
// A child ends when its standard input does, so none outlives a test process
// that was killed.
package childproc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// orderVariable makes the test program a child of this name.
const orderVariable = "SWAMPD_TEST_CHILD"

// Limit bounds each wait for a child.
const Limit = 2 * time.Minute

// Serve does nothing, unless the test program was started as a child of this
// name. Then it answers requests by do, one after the other, and ends the process
// with the end of its input. The answer must not be nil.
func Serve(name string, do func(request []byte) (answer any)) {
	if os.Getenv(orderVariable) != name {
		return
	}
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			os.Exit(0)
		}
		if err == nil {
			err = out.Encode(do(line))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "a child process:", err)
			os.Exit(1)
		}
	}
}

// Options of Start. Nil and zero mean the default.
type Options struct {
	Env  []string // beside this process's environment
	Attr *syscall.SysProcAttr
}

// Process is a child. Its methods are for one goroutine at a time, but for Kill.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	once sync.Once
}

// Start starts a child, which is killed at the latest when the test ends.
func Start(t testing.TB, name string, o *Options) *Process {
	t.Helper()
	p, err := start(t, name, o)
	if err != nil {
		t.Fatalf("childproc: %v", err)
	}
	return p
}

func start(t testing.TB, name string, o *Options) (_ *Process, err error) {
	if o == nil {
		o = &Options{}
	}
	p := &Process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), o.Env...)
	// Programs with the race detector sleep for a second before they end.
	p.cmd.Env = append(p.cmd.Env, orderVariable+"="+name, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = o.Attr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(p.Kill)
	return p, nil
}

// PID is the child's pid as this process sees it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Call sends a request and waits for its answer, at most Limit.
func (p *Process) Call(request, answer any) {
	p.t.Helper()
	p.Send(request)
	p.Receive(answer)
}

// Send sends a request and does not wait for its answer.
func (p *Process) Send(request any) {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(request); err != nil {
		p.t.Fatalf("childproc: sending %+v: %v", request, err)
	}
}

// Receive waits for the answer of an earlier Send, at most Limit.
func (p *Process) Receive(answer any) {
	p.t.Helper()
	p.within("an answer", func() error {
		line, err := p.out.ReadBytes('\n')
		if err != nil {
			return err
		}
		if err := json.Unmarshal(line, answer); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		return nil
	})
}

// Signal sends a signal.
func (p *Process) Signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("childproc: signal %v: %v", sig, err)
	}
}

// Kill kills the child and takes note of its end. It may be called again.
func (p *Process) Kill() {
	p.once.Do(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
}

// within waits for do, at most Limit.
func (p *Process) within(what string, do func() error) {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			p.t.Fatalf("childproc: %s of process %d: %v", what, p.PID(), err)
		}
	case <-timer.C:
		p.t.Fatalf("childproc: %s of process %d does not come within %v", what, p.PID(), Limit)
	}
}
