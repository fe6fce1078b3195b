package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/testserver"
)

var update = flag.Bool("update", false, "write the golden files anew")

// asProgram makes the test binary be swampd itself: the tests run it as a real
// process, with real signals, users and terminals.
const asProgram = "SWAMPD_TEST_AS_PROGRAM"

// hangEnv makes it a program that does not end when its context does.
const hangEnv = "SWAMPD_TEST_HANG"

// hurryEnv makes its time be over when its standard input ends: nobody wants to
// wait for the minute that a commit is given.
const hurryEnv = "SWAMPD_TEST_HURRY"

// foldsEnv makes it take every disk for one that does not tell cases apart.
const foldsEnv = "SWAMPD_TEST_FOLDS"

func TestMain(m *testing.M) {
	if os.Getenv(hangEnv) != "" {
		ctx, _ := watchSignals(context.Background())
		fmt.Fprintln(os.Stderr, "hanging")
		<-ctx.Done()
		fmt.Fprintln(os.Stderr, "interrupted")
		select {}
	}
	if os.Getenv(hurryEnv) != "" {
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel(context.DeadlineExceeded)
		}()
		os.Exit(run(ctx, os.Args[1:], nil, os.Stdout, os.Stderr))
	}
	if os.Getenv(foldsEnv) != "" {
		foldsCase = func(*restorer) (bool, error) { return true, nil }
	}
	if os.Getenv(asProgram) != "" {
		os.Unsetenv(asProgram)
		main()
	}
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		// Under nohup, or behind a shell's &, the programs that the tests start would
		// ignore it too; what is handled here is not ignored there.
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	testserver.Main(m)
}

// cli runs swampd with a home of its own.
type cli struct {
	t    *testing.T
	base string // holds everything
	dir  string // working directory of commands
	env  []string

	damaged bool // the test damages its store, so it is not checked at the end
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	base := t.TempDir()
	if real, err := filepath.EvalSymlinks(base); err == nil {
		base = real
	}
	c := &cli{t: t, base: base, dir: filepath.Join(base, "work")}
	c.mkdir("work")
	c.env = []string{
		asProgram + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(base, "home"), "TZ=UTC", "TERM=xterm",
		"XDG_DATA_HOME=" + filepath.Join(base, "data"), "XDG_STATE_HOME=" + filepath.Join(base, "state"),
	}
	// A program with the race detector sleeps for a second before it ends well, to
	// give other threads time to report; with a thousand programs that is most of
	// the tests' time.
	c.env = append(c.env, strings.TrimSpace("GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	for _, name := range []string{"GOCOVERDIR", "SYSTEMROOT", "TEMP", "TMP"} {
		if v := os.Getenv(name); v != "" {
			c.env = append(c.env, name+"="+v)
		}
	}
	return c
}

// withStore makes a datastore and uses it for all commands.
func (c *cli) withStore() *cli {
	c.t.Helper()
	c.env = append(c.env, "SWAMPD_STORE="+c.store())
	c.ok("init")
	c.sound(c.store())
	return c
}

// sound makes the test end with a check of every byte of the datastore in a
// directory, as use does for one in a bucket. In this process, since starting
// the program for each test costs as much as many of the tests.
func (c *cli) sound(dir string) {
	c.t.Cleanup(func() {
		if c.damaged {
			return
		}
		s, err := datastore.Open(context.Background(), dir, &datastore.Options{StateDir: filepath.Join(c.base, "state-of-sound")})
		if errors.Is(err, datastore.ErrNotFound) {
			return // the test made none
		}
		if err != nil {
			c.t.Errorf("at the end: %v", err)
			return
		}
		r, err := s.Verify(context.Background(), &datastore.VerifyOptions{ReadData: true})
		if err := errors.Join(err, s.Close()); err != nil {
			c.t.Errorf("at the end: %v", err)
		} else if !r.OK() {
			c.t.Errorf("at the end the store is damaged: %+v", r.Findings)
		}
	})
}

func (c *cli) store() string { return filepath.Join(c.base, "store") }

func (c *cli) mkdir(name string) string {
	c.t.Helper()
	dir := filepath.Join(c.base, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// file makes a file below the working directory.
func (c *cli) file(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// result is what a command did.
type result struct {
	t        *testing.T
	command  string
	out, err string
	code     int
}

func (c *cli) command(args ...string) *exec.Cmd {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	return cmd
}

func (c *cli) run(args ...string) *result { return c.runIn(nil, args...) }

func (c *cli) runIn(stdin io.Reader, args ...string) *result {
	c.t.Helper()
	cmd := c.command(args...)
	cmd.Stdin = stdin
	return c.finish(cmd)
}

func (c *cli) finish(cmd *exec.Cmd) *result {
	c.t.Helper()
	r := &result{t: c.t, command: "swampd " + strings.Join(cmd.Args[1:], " ")}
	if len(r.command) > 300 {
		r.command = r.command[:300] + "…"
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	r.code = exitCode(c.t, cmd.Run())
	r.out, r.err = out.String(), errOut.String()
	return r
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// ok runs a command that must succeed.
func (c *cli) ok(args ...string) *result {
	c.t.Helper()
	return c.run(args...).wantCode(0)
}

func (r *result) wantCode(want int) *result {
	r.t.Helper()
	if r.code != want {
		r.t.Fatalf("%s: exit code %d, want %d\nstdout: %s\nstderr: %s", r.command, r.code, want, r.out, r.err)
	}
	return r
}

// wantErr wants words on standard error.
func (r *result) wantErr(words ...string) *result {
	r.t.Helper()
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			r.t.Errorf("%s: %q is missing on standard error:\n%s", r.command, w, r.err)
		}
	}
	return r
}

func (r *result) wantOut(want string) *result {
	r.t.Helper()
	if r.out != want {
		r.t.Errorf("%s: got %q, want %q", r.command, r.out, want)
	}
	return r
}

// wantPlain wants an error that people can read: no Go syntax, no stack.
func (r *result) wantPlain() *result {
	r.t.Helper()
	for _, bad := range []string{"goroutine ", "panic:", "%!", "&{", "0xc0", "<nil>"} {
		if strings.Contains(r.err, bad) {
			r.t.Errorf("%s: %q on standard error:\n%s", r.command, bad, r.err)
		}
	}
	return r
}

// paths lists the newest state.
func (c *cli) paths() string {
	c.t.Helper()
	return strings.ReplaceAll(strings.TrimSpace(c.ok("ls", "-r").out), "\n", " ")
}

// commits counts the commits.
func (c *cli) commits() int {
	c.t.Helper()
	return strings.Count(c.ok("log").out, "\n")
}

// unstable is what differs from run to run.
var unstable = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`20[2-9]\d-\d\d-\d\d \d\d:\d\d`), "DATE       TIME"},
	{regexp.MustCompile(`\bin \d+(\.\d)? m?s\b`), "in SECONDS"},
	{regexp.MustCompile(`"seconds":[0-9.e-]+`), `"seconds":SECONDS`},
	{regexp.MustCompile(`"(writer|session)":"[^"]*"`), `"$1":"SOMEBODY"`},
	{regexp.MustCompile(`"bytes":\d+,"commit"`), `"bytes":N,"commit"`},
	{regexp.MustCompile(`("kind":"fence".*"bytes":)\d+`), `${1}N`}, // grows with the digits of the pid
	{regexp.MustCompile(`\S+ pid \d+`), "HOST pid N"},
	{regexp.MustCompile(`\(process \d+ on [^)]*\)`), "(process N on HOST)"},
	{regexp.MustCompile(`\d+(\.\d)? m?s ago`), "SECONDS ago"},
	{regexp.MustCompile(`"age_seconds":[0-9.e-]+`), `"age_seconds":SECONDS`},
	{regexp.MustCompile(`"identity":\{[^}]*\}`), `"identity":{"hostname":"HOST"}`}, // differs from system to system
	{regexp.MustCompile(`swampd (v[^ ,]*|\(devel\)|unknown), (revision \w+, )?go[^ ,]*, \w+/\w+`), "swampd VERSION"},
}

func (c *cli) stable(s string) string {
	s = strings.ReplaceAll(s, filepath.ToSlash(c.base), "DIR")
	s = strings.ReplaceAll(s, c.base, "DIR")
	for _, u := range unstable {
		s = u.re.ReplaceAllString(s, u.to)
	}
	return s
}

// golden compares a text with a file below testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(data)
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		gl, wl := "", ""
		if i < len(g) {
			gl = g[i]
		}
		if i < len(w) {
			wl = w[i]
		}
		if gl != wl {
			t.Fatalf("%s, line %d:\n got %s\nwant %s\n(go test -update writes the file anew; all of it now:\n%s)", file, i+1, gl, wl, got)
		}
	}
}

// transcript runs commands and writes down what they did.
type transcript struct {
	c *cli
	b strings.Builder
}

func (tr *transcript) do(args ...string) { tr.doIn(nil, args...) }

func (tr *transcript) doIn(stdin io.Reader, args ...string) {
	tr.c.t.Helper()
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = quoteArg(a)
	}
	fmt.Fprintf(&tr.b, "$ swampd %s\n", strings.ReplaceAll(strings.Join(quoted, " "), "\n", `\n`))
	r := tr.c.runIn(stdin, args...)
	tr.b.WriteString(r.out)
	for line := range strings.SplitSeq(strings.TrimSuffix(r.err, "\n"), "\n") {
		if line != "" {
			fmt.Fprintf(&tr.b, "! %s\n", line)
		}
	}
	if r.code != 0 {
		fmt.Fprintf(&tr.b, "exit code %d\n", r.code)
	}
	tr.b.WriteString("\n")
}
