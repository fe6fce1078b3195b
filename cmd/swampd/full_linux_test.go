package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mounted is a file system of this size in memory.
func (c *cli) mounted(name, options string) string {
	c.t.Helper()
	return c.mountedAs("tmpfs", name, options)
}

func (c *cli) mountedAs(fstype, name, options string) string {
	c.t.Helper()
	dir := c.mkdir(name)
	if err := unix.Mount(fstype, dir, fstype, 0, options); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
			c.t.Skipf("this system lets us mount nothing: %v", err)
		}
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			c.t.Error(err)
		}
	})
	return dir
}

// wantKind wants an error of this kind, with a hint, from a command with --json.
func (c *cli) wantKind(kind string, args ...string) *errorJSON {
	c.t.Helper()
	r := c.run(append(args, "--json")...).wantCode(1)
	var e errorJSON
	if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.Kind != kind || e.Hint == "" {
		c.t.Errorf("%s: want the kind %q and a hint (%v): %s", r.command, kind, err, r.err)
	}
	return &e
}

func TestAFullDiskIsSaidToBeFull(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	content := make([]byte, 3<<20)
	rand.Read(content)
	c.file("x", string(content))
	tiny, small := c.mounted("tiny", "size=64k"), c.mounted("small", "size=1m")
	// The catalog finds no room, then the staging area.
	if e := c.wantKind("full", "put", "x", "--state-dir", tiny); !strings.Contains(e.Hint, "--state-dir") || !strings.Contains(e.Error, tiny) {
		t.Errorf("%+v", e)
	}
	cmd := c.command("put", "-", "--as", "x", "--state-dir", small, "--json")
	cmd.Stdin = io.LimitReader(rand.Reader, 3<<20)
	if r := c.finish(cmd).wantCode(1); !strings.Contains(r.err, `"kind":"full"`) || !strings.Contains(r.err, "--state-dir") {
		t.Error(r.err)
	}
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
	// The store itself is no local file.
	c.ok("init", small+"/store")
	c.sound(small + "/store")
	if e := c.wantKind("full", "put", "x", "-s", small+"/store"); strings.Contains(e.Hint, "--state-dir") {
		t.Errorf("%+v", e)
	}
}

func TestAReadOnlyDisk(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	disk := c.mounted("disk", "size=9m")
	c.env = append(c.env, "SWAMPD_STORE="+disk+"/store")
	c.sound(disk + "/store")
	c.ok("init")
	c.file("x", "x")
	c.ok("put", "x")
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	c.ok("cat", "x").wantOut("x")
	c.file("x", "y")
	if e := c.wantKind("denied", "put", "x"); strings.Contains(e.Hint, "credentials") {
		t.Errorf("%+v", e)
	}
	if r := c.run("doctor").wantCode(1); strings.Contains(r.out, "credentials") {
		t.Error(r.out)
	}
	if e := c.wantKind("denied", "ls", "--state-dir", filepath.Join(disk, "state")); !strings.Contains(e.Hint, "--state-dir") {
		t.Errorf("%+v", e)
	}
}

func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	cmd := c.command("put", "x", "--json")
	var errOut strings.Builder
	cmd.Stdout, cmd.Stderr = full, &errOut
	if code := exitCode(t, cmd.Run()); code != 1 || !strings.Contains(errOut.String(), `"kind":"output"`) || strings.Contains(errOut.String(), "--state-dir") {
		t.Errorf("exit code %d: %s", code, &errOut)
	}
	c.ok("cat", "x").wantOut("x")
}

func TestWithoutAHomeTheProgramSaysWhatToSet(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	for i, v := range c.env {
		if strings.HasPrefix(v, "HOME=") || strings.HasPrefix(v, "XDG_STATE_HOME=") {
			c.env[i] = "NONE="
		}
	}
	if r := c.run("ls").wantCode(1).wantErr("--state-dir", "XDG_STATE_HOME"); strings.Contains(r.err, "Options") {
		t.Error(r.err)
	}
	c.ok("ls", "--state-dir", "state")
}
