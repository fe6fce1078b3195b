package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A FUSE filesystem of another user, with no program behind it: the kernel tells
// what it is, and asks nobody.
func TestLocalFilesOnFUSEAreRefused(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() { fuse.Close() })
	dir := c.mountedAs("fuse", "remote", fmt.Sprintf("fd=%d,rootmode=40000,user_id=54321,group_id=54321", fuse.Fd()))
	other := filepath.Join(c.base, "other")
	for _, args := range [][]string{{"ls"}, {"put", "-", "--as", "x"}, {"init", other}} {
		r := c.run(append(args, "--state-dir", dir)...).wantCode(1).wantErr(dir, "(FUSE)", "--state-dir", "XDG_STATE_HOME").wantPlain()
		if strings.Contains(r.err, "Options") {
			t.Error(r.err)
		}
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("init made the store")
	}
	c.run("doctor", "--state-dir", dir).wantCode(1).wantLine("FAILED", "local files", dir, "(FUSE)", "--state-dir")
	c.ok("ls", "--state-dir", c.mounted("local", "size=4m"))
	c.ok("doctor", "--state-dir", c.mounted("another", "size=4m")).wantLine("ok", "local files")
}
