//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamesThatCannotBeStoredAreRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	for _, name := range []string{
		"..", ".", "a/..", "../a", "a/../b", "a/./b", "/a", "//", "a//b", "a\xffb", ".swamp", ".swamp/x", "a/.SWAMP/b",
		strings.Repeat("x", 4097), strings.Repeat("abc/", 1024) + "x",
	} {
		c.runIn(strings.NewReader("x"), "put", "-", "--as", name).wantCode(2).wantErr("swampd: ").wantPlain().wantOut("")
		for _, args := range [][]string{{"cat", name}, {"get", name}, {"rm", name}, {"ls", name}, {"log", name}} {
			if name == "." {
				continue // everything
			}
			c.run(args...).wantCode(2).wantErr("swampd: ").wantPlain()
		}
	}
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
	longest := strings.Repeat("x/", 2047) + "xx"
	c.runIn(strings.NewReader("x"), "put", "-", "--as", longest).wantCode(0)
	c.ok("cat", longest).wantOut("x")
	for _, arg := range []string{"a\x00b", ""} {
		if _, err := sources([]string{arg}, ""); err == nil {
			t.Errorf("%q was taken", arg)
		}
	}
}

func TestFilesWhoseNamesCannotBeStoredAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("good", "good")
	c.file(".swamp/private", "of a checkout")
	c.file("sub/.Swamp/private", "of a checkout")
	c.ok("put", ".", "--as", "first").wantErr("left out .swamp: it belongs to a checkout", "left out sub/.Swamp: it belongs to a checkout")
	c.ok("rm", "-r", "first")
	bad := filepath.Join(c.dir, "bad\xff")
	if err := os.WriteFile(bad, nil, 0o644); err != nil {
		t.Skipf("this file system takes no such names: %v", err)
	}
	c.run("put", ".").wantCode(1).wantErr("nothing was", `bad\xff`, "UTF-8").wantPlain()
	if n := c.commits(); n != 2 {
		t.Errorf("%d commits, want 2", n)
	}
	c.run("put", ".", "--skip-unreadable").wantCode(1).wantErr("1 file could not be stored", `bad\xff`)
	if got := c.paths(); got != "good" {
		t.Errorf("stored %q", got)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	c.run("put", ".", "--as", strings.Repeat("x", 4092)).wantCode(1).wantErr("at most 4096").wantPlain()
}

func TestPathsThatTheSystemCannotTakeAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	dir := strings.Repeat(strings.Repeat("d", 250)+"/", 20)
	if err := root.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("this file system takes no such paths: %v", err)
	}
	defer root.RemoveAll(strings.Repeat("d", 250))
	c.run("put", ".").wantCode(1).wantErr("nothing was", "too long").wantPlain()
}

func TestSpecialFilesAreRefused(t *testing.T) {
	c := newCLI(t).withStore()
	c.file("good", "good")
	pipe := filepath.Join(c.dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(c.dir) // a socket's path must be short
	l, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := c.run("put", ".").wantCode(1).wantErr("2 files cannot be stored", "pipe: is a named pipe", "socket: is a socket").wantPlain()
	if strings.Contains(r.err, "good") {
		t.Errorf("a good file is named:\n%s", r.err)
	}
	c.run("put", "pipe").wantCode(1).wantErr("named pipe")
	c.run("put", "/dev/null").wantCode(1).wantErr("/dev/null: is a device")
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
	r = c.run("put", ".", "--skip-unreadable", "--json").wantCode(1)
	var p putJSON
	if err := json.Unmarshal([]byte(r.out), &p); err != nil || p.Stored != 1 || p.Skipped != 2 || len(p.Problems) != 2 || p.Problems[0].Path != "pipe" {
		t.Errorf("%v: %s", err, r.out)
	}
	if got := c.paths(); got != "good" {
		t.Errorf("stored %q", got)
	}
	c.ok("put", ".", "--exclude", "pipe", "--exclude", "socket")
}

// asNobody makes everything the property of a user without rights and runs
// commands as that user, since root can read everything.
func (c *cli) asNobody(args ...string) *result {
	c.t.Helper()
	cmd := c.command(args...)
	if os.Getuid() == 0 {
		const nobody = 65534
		program := filepath.Join(c.base, "swampd.test")
		if _, err := os.Stat(program); err != nil {
			copyFile(c.t, cmd.Path, program)
			if err := os.Chmod(filepath.Dir(c.base), 0o711); err != nil { // the test's own
				c.t.Fatal(err)
			}
		}
		for _, dir := range []string{"", "home", "data", "state", "store"} {
			chownAll(c.t, filepath.Join(c.base, dir), nobody, dir != "")
		}
		cmd.Path = program
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return c.finish(cmd)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(to, 0o755); err != nil {
		t.Fatal(err)
	}
}

func chownAll(t *testing.T, dir string, uid int, deep bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p != dir && !deep {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return os.Lchown(p, uid, uid)
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func TestUnreadableFilesAreNamedAndNothingIsStored(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("good", "good")
	for i := range 12 {
		name := c.file(fmt.Sprintf("secret/%02d", i), "hidden")
		if err := os.Chmod(name, 0); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Dir(c.file("closed/x", "x"))
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closed, 0o755)
	r := c.asNobody("put", ".").wantCode(1).wantErr("nothing was", "permission denied", "closed: ").wantPlain()
	if n := strings.Count(r.err, "permission denied"); n > maxProblems {
		t.Errorf("%d files are named:\n%s", n, r.err)
	}
	r = c.asNobody("put", "good", "secret").wantCode(1).wantErr("at least 10 files", "permission denied", "secret/", "--skip-unreadable").wantPlain()
	if n := strings.Count(r.err, "permission denied"); n != maxProblems {
		t.Errorf("%d files are named, want %d:\n%s", n, maxProblems, r.err)
	}
	if got := c.asNobody("log").out; got != "" {
		t.Errorf("commits: %s", got)
	}
	c.asNobody("put", ".", "--skip-unreadable").wantCode(1).wantErr("13 files could not be stored", "… and 3 more")
	if got := c.asNobody("ls", "-r").out; got != "good\n" {
		t.Errorf("stored %q", got)
	}
}

func TestAPlaceThatCannotBeWrittenIsNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	c.ok("put", "x")
	closed := c.mkdir("closed")
	if err := os.Chmod(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	c.asNobody("get", "x", "-o", closed).wantCode(1).wantErr("cannot write "+closed, "permission denied", "-o DIR").wantPlain()
	c.asNobody("get", "x", "-o", closed+"/new").wantCode(1).wantErr("cannot write "+closed, "permission denied").wantPlain()
	c.run("get", "x", "-o", "x/y").wantCode(1).wantErr("cannot write", "not a directory").wantPlain()
	c.asNobody("init", closed+"/store").wantCode(1).wantErr("permission denied", closed).wantPlain()
	c.asNobody("ls", "--state-dir", closed+"/state").wantCode(1).wantErr("permission denied", closed).wantPlain()
	if r := c.asNobody("doctor", "--state-dir", closed+"/state").wantCode(1); !strings.Contains(r.out, closed+"/state cannot be written: permission denied") {
		t.Errorf("doctor says:\n%s", r.out)
	}
	for _, name := range []string{"store/_control/writer", "store/_control", "store/commits", "store"} {
		if err := os.Chmod(filepath.Join(c.base, name), 0o555); err != nil {
			t.Fatal(err)
		}
	}
	c.file("y", "y")
	c.asNobody("put", "y").wantCode(1).wantErr("permission denied").wantPlain()
}

// A file that changes all the time cannot be stored; which of the checks sees it
// depends on when it changes.
func TestAFileThatChangesWhileItIsReadIsRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("good", "good")
	name := c.file("busy", strings.Repeat("x", 64<<20))
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var stop atomic.Bool
	done := make(chan error)
	began := make(chan struct{})
	go func() {
		var err error
		for i := int64(0); err == nil && !stop.Load(); i++ {
			_, err = f.WriteAt([]byte{byte(i), byte(i >> 8)}, i%(64<<20))
			if i == 1000 {
				close(began)
			}
		}
		done <- err
	}()
	<-began
	r := c.run("put", ".")
	skipped := c.run("put", ".", "--skip-unreadable")
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.wantCode(1).wantErr("nothing was", "busy: changed while it was read").wantPlain()
	skipped.wantCode(1).wantErr("busy: changed while it was read")
	if got := c.paths(); got != "good" {
		t.Errorf("stored %q", got)
	}
	c.ok("put", ".")
}

func TestAFileThatVanishesIsNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.run("put", "nothing").wantCode(1).wantErr("there is no file or directory nothing", "nothing was stored").wantPlain()
	c.file("x", "x")
	c.run("put", "x", "nothing").wantCode(1)
	c.run("put", "x/y").wantCode(1).wantPlain()
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
}
