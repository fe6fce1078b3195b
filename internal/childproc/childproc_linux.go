package childproc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Stop stops the child and waits until it stands still.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGSTOP)
	p.became("a stop", unix.WSTOPPED)
}

// Continue lets a stopped child go on.
func (p *Process) Continue() {
	p.t.Helper()
	p.Signal(syscall.SIGCONT)
}

// KillAsZombie kills the child and waits for its end, of which nobody takes note.
func (p *Process) KillAsZombie() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.became("the end", unix.WEXITED)
}

// became waits for news of the child, and leaves them to whoever asks next.
func (p *Process) became(what string, news int) {
	p.t.Helper()
	p.within(what, func() error {
		for {
			err := unix.Waitid(unix.P_PID, p.PID(), nil, news|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
}

// State is the letter that the system shows for the child: R, S, D, T, Z.
func (p *Process) State() string {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		p.t.Fatalf("childproc: %v", err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}

// WantStopped fails the test if the child has gone on since Stop, if only for a
// moment.
func (p *Process) WantStopped(after string) {
	p.t.Helper()
	if got := p.State(); got != "T" {
		p.t.Errorf("after %s its state is %s, want T", after, got)
	}
	var news unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.PID(), &news, unix.WCONTINUED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || news.Signo != 0 {
		p.t.Errorf("after %s it went on: %+v, %v", after, news, err)
	}
}

// Apart is a pid and a mount namespace of its own, as a container has. It is
// root's; the child must call OwnProc first.
func Apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
}

// OwnProc mounts the /proc of this process's pid namespace, in a mount namespace
// of its own.
func OwnProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// BecomeNobody gives up root's rights for good.
func BecomeNobody() error {
	return errors.Join(syscall.Setgroups(nil), syscall.Setresgid(65534, 65534, 65534), syscall.Setresuid(65534, 65534, 65534))
}

// StartBeside is Start in the pid namespace of another child, and in a mount
// namespace of its own. It is root's; the child must call OwnProc first.
func StartBeside(t testing.TB, name string, other *Process, env []string) *Process {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", other.PID()))
	if err != nil {
		t.Fatalf("childproc: %v", err)
	}
	defer ns.Close()
	started := make(chan *Process)
	go func() {
		var p *Process
		defer func() { started <- p }()
		// What this thread starts is born there; the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
			t.Errorf("childproc: the pid namespace of process %d: %v", other.PID(), err)
			return
		}
		if p, err = start(t, name, &Options{Env: env, Attr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}}); err != nil {
			t.Errorf("childproc: %v", err)
		}
	}()
	p := <-started
	if p == nil || err != nil {
		t.FailNow()
	}
	return p
}

// NextPID makes pid the next one that is given in this process's pid namespace,
// if it is free.
func NextPID(pid int) error {
	return os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0)
}
