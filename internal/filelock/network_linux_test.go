package filelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// mount makes a filesystem of this type in a new directory.
func mount(t *testing.T, fstype, options string) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount(fstype, dir, fstype, 0, options)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
		t.Skipf("this system lets us mount no %s: %v", fstype, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// kindsOf asks in both ways about a directory, a file in it, and links to both.
func kindsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	file, links := filepath.Join(dir, "file"), t.TempDir()
	err := errors.Join(os.WriteFile(file, nil, 0o600),
		os.Symlink(dir, filepath.Join(links, "dir")), os.Symlink(file, filepath.Join(links, "file")))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, path := range []string{dir, file, filepath.Join(links, "dir"), filepath.Join(links, "file")} {
		kind, err := NetworkFilesystemAt(path)
		if err != nil {
			t.Fatal(err)
		}
		kinds[kind] = true
		if kind, err = NetworkFilesystem(open(t, path, os.O_RDONLY)); err != nil {
			t.Fatal(err)
		}
		kinds[kind] = true
	}
	return kinds
}

func TestLocalFilesystemsAreLocal(t *testing.T) {
	for name, dir := range map[string]func(t *testing.T) string{
		"tmpfs": func(t *testing.T) string { return mount(t, "tmpfs", "size=1m") },
		"overlay": func(t *testing.T) string {
			base := mount(t, "tmpfs", "size=1m") // an overlay cannot be its own upper layer
			for _, d := range []string{"lower", "upper", "work"} {
				if err := os.Mkdir(filepath.Join(base, d), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			return mount(t, "overlay", fmt.Sprintf("lowerdir=%s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if kinds := kindsOf(t, dir(t)); len(kinds) != 1 || !kinds[""] {
				t.Errorf("got the kinds %v, want none", kinds)
			}
		})
	}
	for name, magic := range map[string]uint32{
		"ext4": unix.EXT4_SUPER_MAGIC, "xfs": unix.XFS_SUPER_MAGIC, "btrfs": unix.BTRFS_SUPER_MAGIC,
		"f2fs": unix.F2FS_SUPER_MAGIC, "zfs": 0x2fc12fc1, "bcachefs": 0xca451a4e, "ecryptfs": unix.ECRYPTFS_SUPER_MAGIC,
	} {
		if kind := kinds[magic]; kind != "" {
			t.Errorf("%s: got %q", name, kind)
		}
	}
}

// mountFUSE makes a FUSE filesystem of another user, of which the kernel tells
// nothing but what it is, without asking the program behind it: there is none.
func mountFUSE(t *testing.T) string {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() { fuse.Close() })
	const other = 54321
	return mount(t, "fuse", fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%[2]d", fuse.Fd(), other))
}

func TestAFUSEFilesystemIsNotLocal(t *testing.T) {
	dir := mountFUSE(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, link} {
		if kind, err := NetworkFilesystemAt(path); kind != "FUSE" || err != nil {
			t.Errorf("got %q, %v, want FUSE", kind, err)
		}
	}
}
