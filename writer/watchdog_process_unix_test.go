//go:build unix

package writer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests end real processes. The test program starts itself again with an
// order in its environment.
const (
	watchedOrder = "SWAMPD_TEST_WATCHDOG"
	watchedLimit = 2 * time.Second
	// What a busy machine may take on top of what is promised.
	watchedSlack = 20 * time.Second
)

func init() {
	if order := os.Getenv(watchedOrder); order != "" {
		watched(order)
		os.Exit(0) // which is what no test here wants
	}
}

// watched beats once for each line of its input, and says so. At the input's end
// it is stuck: its log too, if that is the order.
func watched(order string) {
	w := NewWatchdog(&WatchdogOptions{
		Halt:     func() { fmt.Println("halted") },
		InFlight: func() int { return 0 },
		Release:  func(context.Context) error { fmt.Println("released"); return nil },
	})
	defer w.Close()
	p := w.Watch("landing", watchedLimit)
	p.Phase("read")
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		p.Beat()
		fmt.Println("beat")
	}
	p.Phase("hang")
	if order == "log" {
		log.Print("a line that nobody reads, under the lock of package log")
		fmt.Println("has written to the log")
	}
	select {}
}

// watchedChild is a process that runs watched.
type watchedChild struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startWatched(t *testing.T, order string, stderr io.Writer) *watchedChild {
	t.Helper()
	c := &watchedChild{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), watchedOrder+"="+order, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	c.cmd.Stderr = stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		io.Copy(io.Discard, out)
		c.cmd.Wait()
	})
	c.says("ready")
	return c
}

// says waits for the next line, which must be there within the time in which a
// stuck process ends.
func (c *watchedChild) says(want string) {
	c.t.Helper()
	line := make(chan string, 1)
	go func() {
		if c.out.Scan() {
			line <- c.out.Text()
		} else {
			line <- "nothing more"
		}
	}()
	select {
	case got := <-line:
		if got != want {
			c.t.Fatalf("the process says %q, want %q", got, want)
		}
	case <-time.After(watchedLimit*5/4 + exitTime + watchedSlack):
		c.t.Fatalf("the process is silent, want %q", want)
	}
}

func (c *watchedChild) beat() {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		c.t.Fatal(err)
	}
	c.says("beat")
}

// exits waits for the end, with what the watchdog says before.
func (c *watchedChild) exits() {
	c.t.Helper()
	c.says("halted")
	c.says("released")
	c.says("nothing more")
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case err := <-done:
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != exitSoftware {
			c.t.Errorf("it ends with %v, want the exit code %d", err, exitSoftware)
		}
	case <-time.After(exitTime + watchedSlack):
		c.t.Error("it does not end")
	}
}

// Standard error is a full pipe that nobody reads, and another goroutine hangs
// in writing to it.
func TestWatchdogExitsThoughItsLogIsFull(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fill(t, w)
	c := startWatched(t, "log", w)
	c.in.Close()
	c.exits()
}

// fill writes into a pipe until not one byte more fits.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 16; size > 0; {
		var n int
		var failed error
		if err := raw.Control(func(fd uintptr) { n, failed = syscall.Write(int(fd), make([]byte, size)) }); err != nil {
			t.Fatal(err)
		}
		switch {
		case failed == syscall.EAGAIN:
			size /= 2
		case failed != nil && failed != syscall.EINTR:
			t.Fatal(failed, n)
		}
	}
}

// A process that was stopped for longer than its limit lives on, although all
// its timers fire before it can beat. When it is stuck it ends, with a report.
func TestWatchdogLeavesAloneWhatWasStopped(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	c := startWatched(t, "quiet", &stderr)
	c.beat()
	// Time must really pass here: some rounds without a beat; the stop; and then a
	// moment in which the watchdog, whose timers fire first, could find it stuck.
	<-time.After(watchedLimit / 2)
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * watchedLimit)
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	<-time.After(watchedLimit / 16)
	c.beat()
	c.in.Close()
	c.exits()
	for _, want := range []string{`watchdog: subsystem "landing" shows no sign of life for `, `in its phase "hang" (limit 2s)`, "given back"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("it reports %q, want %q", stderr.String(), want)
		}
	}
}
