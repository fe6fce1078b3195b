package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/afero"

	"github.com/swampd/swampd/backend"
)

// call is one call of the file system. Names are relative to the root.
type call struct {
	op, name, to string
}

func (c call) String() string {
	if c.to != "" {
		return c.op + " " + c.name + " -> " + c.to
	}
	return c.op + " " + c.name
}

// hookFS is the operating system's FS with a look, and a say, before and after
// each call that changes, opens or looks at something.
type hookFS struct {
	FS
	root string
	// before may fail the call; after sees its outcome and may replace it.
	before func(c call) error
	after  func(c call, err error) error
}

func (h *hookFS) do(op, name, to string, f func() error) error {
	c := call{op, h.rel(name), ""}
	if to != "" {
		c.to = h.rel(to)
	}
	if h.before != nil {
		if err := h.before(c); err != nil {
			return &os.PathError{Op: op, Path: name, Err: err}
		}
	}
	err := f()
	if h.after != nil {
		err = h.after(c, err)
	}
	return err
}

func (h *hookFS) rel(name string) string {
	rel, err := filepath.Rel(h.root, name)
	if err != nil {
		return name
	}
	return filepath.ToSlash(rel)
}

func (h *hookFS) Mkdir(name string, perm os.FileMode) error {
	return h.do("mkdir", name, "", func() error { return h.FS.Mkdir(name, perm) })
}

func (h *hookFS) Open(name string) (afero.File, error) { return h.OpenFile(name, os.O_RDONLY, 0) }

func (h *hookFS) OpenFile(name string, flag int, perm os.FileMode) (f afero.File, err error) {
	op := "open"
	if flag&os.O_CREATE != 0 {
		op = "create"
	}
	err = h.do(op, name, "", func() error { f, err = h.FS.OpenFile(name, flag, perm); return err })
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	return &hookFile{f, h}, nil
}

func (h *hookFS) Chmod(name string, mode os.FileMode) error {
	return h.do("chmod", name, "", func() error { return h.FS.Chmod(name, mode) })
}

func (h *hookFS) Chtimes(name string, a, m time.Time) error {
	return h.do("chtimes", name, "", func() error { return h.FS.Chtimes(name, a, m) })
}

func (h *hookFS) Link(oldname, newname string) error {
	return h.do("link", oldname, newname, func() error { return h.FS.Link(oldname, newname) })
}

func (h *hookFS) RenameExclusive(oldname, newname string) error {
	return h.do("rename", oldname, newname, func() error { return h.FS.RenameExclusive(oldname, newname) })
}

func (h *hookFS) Unlink(name string) error {
	return h.do("unlink", name, "", func() error { return h.FS.Unlink(name) })
}

func (h *hookFS) Lstat(name string) (info os.FileInfo, err error) {
	err = h.do("lstat", name, "", func() error { info, err = h.FS.Lstat(name); return err })
	return info, err
}

func (h *hookFS) SyncDir(f afero.File) error {
	return h.do("syncdir", f.Name(), "", func() error { return h.FS.SyncDir(f.(*hookFile).File) })
}

func (h *hookFS) Touch(f afero.File) error {
	return h.do("touch", f.Name(), "", func() error { return h.FS.Touch(f.(*hookFile).File) })
}

func (h *hookFS) StartWriting(f afero.File, off, n int64) {
	h.FS.StartWriting(f.(*hookFile).File, off, n)
}

type hookFile struct {
	afero.File
	h *hookFS
}

func (f *hookFile) Sync() error { return f.h.do("sync", f.Name(), "", f.File.Sync) }

func (f *hookFile) Write(p []byte) (n int, err error) {
	err = f.h.do("write", f.Name(), "", func() error { n, err = f.File.Write(p); return err })
	return n, err
}

func (f *hookFile) ReadDir(n int) (entries []iofs.DirEntry, err error) {
	err = f.h.do("readdir", f.Name(), "", func() error {
		entries, err = f.File.(iofs.ReadDirFile).ReadDir(n)
		return err
	})
	return entries, err
}

func (f *hookFile) Chmod(mode os.FileMode) error {
	return f.h.do("chmod", f.Name(), "", func() error { return setMode(f.h.FS, f.File, mode) })
}

// hooked returns a driver over a hookFS on a new root.
func hooked(t testing.TB) (*Driver, *hookFS) {
	h := &hookFS{FS: OS(), root: filepath.Join(t.TempDir(), "store")}
	return open(t, h.root, h), h
}

// open returns a driver that the test closes.
func open(t testing.TB, dir string, fsys FS) *Driver {
	t.Helper()
	d, err := New(dir, &Options{FS: fsys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, backend.ErrClosed) {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

// trace collects calls.
type trace struct {
	mu    sync.Mutex
	calls []call
}

func (r *trace) add(c call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// take returns the calls with these operations since the last take.
func (r *trace) take(ops string) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []call
	for _, c := range r.calls {
		if strings.Contains(" "+ops+" ", " "+c.op+" ") {
			got = append(got, c)
		}
	}
	r.calls = nil
	return got
}

func create(t testing.TB, d *Driver, key, data string) backend.Info {
	t.Helper()
	info, err := d.Create(t.Context(), key, backend.Bytes([]byte(data)))
	if err != nil {
		t.Fatalf("create %s: %v", key, err)
	}
	return info
}

func replace(t testing.TB, d *Driver, key, data string, old backend.Version) backend.Info {
	t.Helper()
	info, err := d.Replace(t.Context(), key, backend.Bytes([]byte(data)), old)
	if err != nil {
		t.Fatalf("replace %s %s: %v", key, old, err)
	}
	return info
}

func get(t testing.TB, d *Driver, key string) (string, backend.Info) {
	t.Helper()
	obj, err := d.Get(t.Context(), key, backend.GetOptions{})
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	defer obj.Body.Close()
	data, err := io.ReadAll(obj.Body)
	if err != nil {
		t.Fatalf("read %s: %v", key, err)
	}
	return string(data), obj.Info
}

func holds(t testing.TB, d *Driver, key, want string) backend.Info {
	t.Helper()
	got, info := get(t, d, key)
	if got != want {
		t.Fatalf("%s holds %q, want %q", key, got, want)
	}
	return info
}

func absent(t testing.TB, d *Driver, key string) {
	t.Helper()
	if _, err := d.Get(t.Context(), key, backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
		t.Fatalf("get %s: %v, want %v", key, err, backend.ErrNotFound)
	}
}

func keys(t testing.TB, d *Driver, prefix, after string) []string {
	t.Helper()
	var got []string
	for e, err := range d.List(t.Context(), prefix, after) {
		if err != nil {
			t.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		got = append(got, e.Key)
	}
	return got
}

// files returns the names of all files below dir, in order.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var got []string
	err := filepath.WalkDir(dir, func(p string, e iofs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			got = append(got, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		t.Fatal(err)
	}
	sort.Strings(got)
	return got
}

// noTemps demands that no temporary file is left below dir.
func noTemps(t testing.TB, dir string) {
	t.Helper()
	for _, f := range files(t, dir) {
		_, name := splitKey(f)
		if r, ok := parseRecordFile(name); strings.HasPrefix(f, tempDir+"/") || ok && r.temp {
			t.Errorf("%s was left behind", f)
		}
	}
}

// noise is a content of n bytes that depends on seed.
func noise(n, seed int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%08d", seed), n/8+1)[:n]
}

// lazyFS is the operating system's FS without waiting for the disk.
type lazyFS struct{ FS }

type lazyFile struct{ afero.File }

func (l lazyFS) Open(name string) (afero.File, error) { return l.OpenFile(name, os.O_RDONLY, 0) }

func (l lazyFS) OpenFile(name string, flag int, perm os.FileMode) (afero.File, error) {
	f, err := l.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return lazyFile{f}, nil
}

func (l lazyFS) SyncDir(afero.File) error { return nil }

func (l lazyFS) Touch(f afero.File) error { return l.FS.Touch(f.(lazyFile).File) }

func (lazyFS) StartWriting(afero.File, int64, int64) {}

func (lazyFile) Sync() error { return nil }

func (f lazyFile) ReadDir(n int) ([]iofs.DirEntry, error) {
	return f.File.(iofs.ReadDirFile).ReadDir(n)
}

// memDir returns a directory in memory where the system has such, for tests that
// make very many files and for which the disk makes no difference.
func memDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "swampd-fs-test")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// clone makes a copy of a store whose files are the same ones.
func clone(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(p string, e iofs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, p)
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		return os.Link(p, filepath.Join(to, rel))
	})
	if err != nil {
		t.Fatal(err)
	}
}
