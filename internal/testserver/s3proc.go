package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// s3Process is a server process. One goroutine owns it, on a thread of its own
// for its whole life (see dieWithParent).
type s3Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
	err  error         // why; set before done is closed
}

func startProcess(bin string, args []string, log string) (*s3Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = dieWithParent()
	p := &s3Process{cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", bin, err)
	}
	return p, nil
}

func (p *s3Process) run(started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	if p.err == nil {
		p.err = errors.New("exit status 0")
	}
	close(p.done)
}

// stop kills the process and waits for its end. Nothing that it holds outlives
// a test.
func (p *s3Process) stop() {
	p.cmd.Process.Kill()
	<-p.done
}

// output returns the end of what the server said.
func (p *s3Process) output() string {
	text, _ := os.ReadFile(p.log)
	if len(text) > 4096 {
		text = text[len(text)-4096:]
	}
	return string(text)
}
