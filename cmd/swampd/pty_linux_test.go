package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swampd/swampd/datastore"
)

// openTerminal makes a terminal: what is written to its second file comes out
// of the first.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	conn, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var ioctlErr error
	err = conn.Control(func(fd uintptr) {
		if ioctlErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctlErr != nil {
			return
		}
		if n, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); ioctlErr != nil {
			return
		}
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120})
	})
	if err != nil || ioctlErr != nil {
		t.Fatal(err, ioctlErr)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return master, terminal
}

// readUntil reads from a terminal until the text appears.
func readUntil(t *testing.T, master *os.File, seen *bytes.Buffer, re *regexp.Regexp) {
	t.Helper()
	if err := master.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for !re.Match(seen.Bytes()) {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatalf("%v; so far:\n%q", err, seen)
		}
		seen.Write(buf[:n])
	}
}

func TestProgressIsShownOnATerminalAndNowhereElse(t *testing.T) {
	t.Parallel()
	master, terminal := openTerminal(t)
	elsewhere := newCLI(t).withStore()
	quiet := elsewhere.startPut("big") // began first: when the other shows its bar, this one could have
	c := newCLI(t).withStore()
	p := &piped{cli: c, cmd: c.command("put", "-", "--as", "big")}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, terminal
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.cmd.Process.Kill()
	if _, err := p.in.Write(make([]byte, 5<<20)); err != nil {
		t.Fatal(err)
	}
	var seen bytes.Buffer
	readUntil(t, master, &seen, regexp.MustCompile(`storing .*5\.0 MiB, .*B/s`))
	for _, in := range []io.Closer{p.in, quiet.in} {
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if code := p.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, &seen)
	}
	if code := quiet.end(); code != 0 || quiet.err.Len() > 0 {
		t.Errorf("exit code %d, and on a pipe it wrote %q", code, &quiet.err)
	}
	if want := "stored 1 file (5.0 MiB) as state 2 in "; !strings.HasPrefix(p.out.String(), want) {
		t.Errorf("it said %q, want %q", &p.out, want)
	}
}

func TestWhereAMeterDraws(t *testing.T) {
	_, terminal := openTerminal(t)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		name        string
		errOut      *os.File
		json, quiet bool
		term        string
		want        bool
	}{
		{"a terminal", terminal, false, false, "xterm", true},
		{"a dumb terminal", terminal, false, false, "dumb", false},
		{"for programs", terminal, true, false, "xterm", false},
		{"quiet", terminal, false, true, "xterm", false},
		{"no terminal", null, false, false, "xterm", false},
	} {
		t.Setenv("TERM", c.term)
		a := newApp(nil, null, c.errOut)
		a.json, a.quiet = c.json, c.quiet
		m := a.meter("working")
		if got := m.joined != nil; got != c.want {
			t.Errorf("%s: draws %v", c.name, got)
		}
		m.stop()
	}
}

// drawn is what a meter drew on a terminal while a work of so many bytes went on
// evenly for a while.
func drawn(t *testing.T, size int64, d time.Duration) string {
	t.Helper()
	master, terminal := openTerminal(t)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	a := newApp(nil, null, terminal)
	a.errTerm = true
	synctest.Test(t, func(*testing.T) {
		m := a.meter("working")
		m.expect(size)
		const step = 50 * time.Millisecond
		for range d / step {
			time.Sleep(step)
			m.add(size / int64(2*d/step)) // half of it in all
		}
		time.Sleep(d % step)
		m.stop()
	})
	if _, err := io.WriteString(terminal, "the end"); err != nil {
		t.Fatal(err)
	}
	var seen bytes.Buffer
	readUntil(t, master, &seen, regexp.MustCompile("the end"))
	return strings.TrimSuffix(seen.String(), "the end")
}

func TestShortWorkDrawsNothingAndLongWorkTheTimeThatIsLeft(t *testing.T) {
	for _, d := range []time.Duration{0, 10 * time.Millisecond, time.Second - 1} {
		if got := drawn(t, 100<<20, d); got != "" {
			t.Errorf("work of %v drew %q", d, got)
		}
	}
	if got := drawn(t, 100<<20, 4*time.Second); !regexp.MustCompile(`working .*MiB of 100 MiB, 1[23] MiB/s, \d s left`).MatchString(got) {
		t.Errorf("work of 4 s drew %q", got)
	}
}

func TestFiguresOfAMeter(t *testing.T) {
	t.Parallel()
	m := &meter{follow: "read", began: time.Now().Add(-3 * time.Second)}
	want := func(want string) {
		t.Helper()
		if got := m.figures(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want("3 s so far")
	m.expect(100 << 20)
	m.add(25 << 20)
	m.rate.Store(5 << 20)
	want("25 MiB of 100 MiB, 5.0 MiB/s, 15 s left")
	m.engine(datastore.Progress{Phase: "read", Done: 50 << 20}) // in the middle of a large file
	want("50 MiB of 100 MiB, 5.0 MiB/s, 10 s left")
	m.add(75 << 20)
	want("100 MiB of 100 MiB, 5.0 MiB/s")
	m.engine(datastore.Progress{Phase: "commit"})
	if got, want := m.label(), " (commit)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
