//go:build linux

package fs

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swampd/swampd/backend"
)

// tmpfs mounts a file system in memory for the test, with these options.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			t.Skipf("this system lets us mount nothing: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFullFileSystem(t *testing.T) {
	for what, options := range map[string]string{"no room": "size=1m", "no inodes": "nr_inodes=24"} {
		t.Run(what, func(t *testing.T) {
			root := filepath.Join(tmpfs(t, options), "store")
			d := open(t, root, nil)
			v := create(t, d, "_control/x", "old").Version
			create(t, d, "data/x", "x")
			big := backend.Bytes(make([]byte, 3<<20))
			fails := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, backend.ErrFull) {
					t.Errorf("%s: %v, want %v", what, err, backend.ErrFull)
				}
			}
			if what == "no room" {
				_, err := d.Create(t.Context(), "data/big", big)
				fails("create", err)
				_, err = d.Create(t.Context(), "_control/big", big)
				fails("create of a record", err)
				_, err = d.Replace(t.Context(), "_control/x", big, v)
				fails("replace", err)
			} else {
				var err error
				for i := 0; err == nil && i < 100; i++ {
					_, err = d.Create(t.Context(), fmt.Sprintf("fill/%d", i), backend.Bytes(nil))
				}
				fails("create", err)
				_, err = d.Create(t.Context(), "new/dir/x", backend.Bytes(nil))
				fails("create in a new directory", err)
				_, err = d.Create(t.Context(), "_control/y", backend.Bytes(nil))
				fails("create of a record", err)
				_, err = d.Replace(t.Context(), "_control/x", backend.Bytes(nil), v)
				fails("replace", err)
				absent(t, d, "new/dir/x")
				absent(t, d, "_control/y")
			}
			absent(t, d, "data/big")
			absent(t, d, "_control/big")
			if info := holds(t, d, "_control/x", "old"); info.Version != v {
				t.Errorf("the version became %q, was %q", info.Version, v)
			}
			holds(t, d, "data/x", "x")
			noTemps(t, root)
			fullForOthers(t, root, what == "no inodes")
			// Deleting makes room, also when there is none at all.
			if err := d.Delete(t.Context(), []string{"data/x", "fill/0", "fill/1", "fill/2"}); err != nil {
				t.Errorf("delete: %v", err)
			}
			create(t, d, "data/x", "again")
			replace(t, d, "_control/x", "new", v)
		})
	}
}

// fullForOthers looks at a full store as a process that begins now: it knows the
// store's clock, and can clean up, which is what makes room.
func fullForOthers(t *testing.T, root string, noInodes bool) {
	t.Helper()
	left := filepath.Join(root, tempDir, "u1")
	var err error
	if noInodes { // another name of a file that is there takes none
		err = os.Link(filepath.Join(root, "fill/0"), left)
	} else {
		err = os.WriteFile(left, nil, 0o600)
		for err == nil {
			var f *os.File
			if f, err = os.OpenFile(left, os.O_WRONLY|os.O_APPEND, 0); err == nil {
				_, err = f.Write(make([]byte, 4096))
				f.Close()
			}
		}
		if errors.Is(err, syscall.ENOSPC) {
			err = nil
		}
	}
	if err == nil {
		past := time.Now().Add(-2 * time.Hour)
		err = os.Chtimes(left, past, past)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, root, nil)
	if now := holds(t, d, "data/x", "x").Now; time.Since(now).Abs() > patience {
		t.Errorf("Now is %v, want the present", now)
	}
	if n, err := d.CleanUploads(t.Context(), time.Hour); n != 1 || err != nil {
		t.Errorf("clean-up: %d removed, %v; want 1", n, err)
	}
}

// A store on a read-only mount can be read, and nothing else.
func TestReadOnlyMount(t *testing.T) {
	dir := tmpfs(t, "size=4m")
	root := filepath.Join(dir, "store")
	w := open(t, root, nil)
	if err := makeKinds(w); err != nil {
		t.Fatal(err)
	}
	_, info := get(t, w, "_control/x")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	d := open(t, root, nil)
	for _, key := range keys(t, d, "", "") {
		if info := holds(t, d, key, key); !info.Now.IsZero() || info.Modified.IsZero() {
			t.Errorf("%s: Now is %v, Modified %v; want no Now", key, info.Now, info.Modified)
		}
	}
	if got := keys(t, d, "", ""); len(got) != 5 {
		t.Errorf("listed %q, want 5 keys", got)
	}
	_, err1 := d.Create(t.Context(), "data/new", backend.Bytes(nil))
	_, err2 := d.Create(t.Context(), "new/new", backend.Bytes(nil))
	_, err3 := d.Create(t.Context(), "_control/new", backend.Bytes(nil))
	_, err4 := d.Replace(t.Context(), "_control/x", backend.Bytes(nil), info.Version)
	err5 := d.Delete(t.Context(), []string{"data/a/x"})
	err6 := d.Delete(t.Context(), []string{"_control/x"})
	_, err7 := d.CleanUploads(t.Context(), 0)
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, backend.ErrDenied) || errors.Is(err, backend.ErrUnknown) {
			t.Errorf("writing call %d: %v, want %v", i+1, err, backend.ErrDenied)
		}
	}
	if _, err := d.Create(t.Context(), "data/a/x", backend.Bytes(nil)); !errors.Is(err, backend.ErrExists) {
		t.Errorf("create over an object: %v, want %v", err, backend.ErrExists)
	}
}

// A datastore whose parts lie on several file systems is refused with the reason.
func TestMountInside(t *testing.T) {
	root := filepath.Join(tmpfs(t, "size=4m"), "store")
	d := open(t, root, nil)
	create(t, d, "data/x", "x")
	if err := os.Mkdir(filepath.Join(root, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", filepath.Join(root, "other"), "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(filepath.Join(root, "other"), unix.MNT_DETACH) })
	if _, err := d.Create(t.Context(), "other/x", backend.Bytes(nil)); !errors.Is(err, backend.ErrUnsupported) || !errors.Is(err, unix.EXDEV) {
		t.Errorf("create: %v, want %v", err, backend.ErrUnsupported)
	}
	absent(t, d, "other/x")
	noTemps(t, root)
}

// nobody runs a child as a user who owns nothing.
var nobody = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}

// reachable returns a directory that every user can get to.
func reachable(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can start processes as another user")
	}
	dir, err := os.MkdirTemp("/tmp", "swampd-fs-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Somebody else may read a store that its owner opened for reading, and is denied
// everything in one that is not.
func TestOtherUsers(t *testing.T) {
	root := filepath.Join(reachable(t), "store")
	d := open(t, root, nil)
	if err := makeKinds(d); err != nil {
		t.Fatal(err)
	}
	job := job{Do: "reader", Root: root}
	if a := startAsNobody(t, job).end(); !a.Denied {
		t.Errorf("a stranger was told %q and read %q, want %v", a.Err, a.Listed, backend.ErrDenied)
	}
	err := filepath.WalkDir(root, func(p string, e iofs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(p, 0o755)
		}
		return os.Chmod(p, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	a := startAsNobody(t, job).end()
	if want := keys(t, d, "", ""); !slices.Equal(a.Listed, want) {
		t.Errorf("a reader saw %q and was told %q, want %q", a.Listed, a.Err, want)
	}
	if !a.Denied {
		t.Errorf("a reader that creates was told %q, want %v", a.Err, backend.ErrDenied)
	}
}

// startAsNobody starts a copy of the test program that nobody can run.
func startAsNobody(t *testing.T, j job) *child {
	t.Helper()
	exe, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	out, err := os.OpenFile(filepath.Join(filepath.Dir(j.Root), "test-program"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, exe); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return startProgram(t, out.Name(), j, nobody)
}

// Modes are 0600 and 0700 whatever the umask, for root and for others.
func TestModesUnderAnyUmask(t *testing.T) {
	for _, umask := range []int{0o777, 0o700, 0o277, 0o077, 0o022} {
		for _, user := range []string{"me", "nobody"} {
			t.Run(fmt.Sprintf("%03o %s", umask, user), func(t *testing.T) {
				dir := reachable(t)
				j := job{Do: "modes", Root: filepath.Join(dir, "up", "store"), Umask: umask}
				var c *child
				if user == "nobody" {
					if err := os.Mkdir(filepath.Join(dir, "up"), 0o777); err != nil {
						t.Fatal(err)
					}
					if err := os.Chmod(filepath.Join(dir, "up"), 0o777); err != nil {
						t.Fatal(err)
					}
					c = startAsNobody(t, j)
				} else {
					c = start(t, j)
				}
				if a := c.end(); a.Err != "" {
					t.Fatalf("the child was told %q", a.Err)
				}
				n := 0
				err := filepath.WalkDir(j.Root, func(p string, e iofs.DirEntry, err error) error {
					if err != nil {
						return err
					}
					info, err := e.Info()
					if err != nil {
						return err
					}
					n++
					want := os.FileMode(0o600)
					if e.IsDir() {
						want = 0o700 | os.ModeDir
					}
					if info.Mode() != want {
						t.Errorf("%s has mode %v, want %v", p, info.Mode(), want)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if n < 14 {
					t.Errorf("only %d files were made", n)
				}
			})
		}
	}
}
