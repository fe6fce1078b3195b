//go:build unix

package fs

import (
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
)

// oddNames are names that a directory may have.
var oddNames = []string{
	"plain", "sp ace", " leading", "trailing ", "per%cent", "per%20cent", "%", "que?stion", "ha#sh", "a&b=c", "new\nline", "tab\t", "back\\slash",
	"quo\"te'", "ümlaut", "日本", "\xff\xfe", "-dash", "...", "~", "$HOME", "*", "[x]", "a:b", "file:", "c:", "@", "+", ";", strings.Repeat("l", 250),
}

func TestRootWithAnyName(t *testing.T) {
	for _, name := range oddNames {
		root := filepath.Join(t.TempDir(), name, "store "+name[:min(len(name), 100)])
		if err := makeKinds(open(t, root, nil)); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		// The same store, by its path and by the URL that says it to the letter.
		for _, address := range []string{root, "file://" + (&url.URL{Path: root}).EscapedPath()} {
			b, err := backend.Open(t.Context(), address)
			if err != nil {
				t.Errorf("open %q: %v", address, err)
				continue
			}
			var got []string
			for e, err := range b.List(t.Context(), "", "") {
				if err != nil {
					t.Errorf("%q: %v", address, err)
				}
				got = append(got, e.Key)
			}
			if want := []string{"_control/dir/y", "_control/x", "data/a/x", "data/a/y", "x"}; !slices.Equal(got, want) {
				t.Errorf("%q: listed %q, want %q", address, got, want)
			}
			for _, key := range got {
				obj, err := b.Get(t.Context(), key, backend.GetOptions{})
				if err != nil {
					t.Errorf("%q: %v", address, err)
					continue
				}
				if data, err := io.ReadAll(obj.Body); err != nil || string(data) != key {
					t.Errorf("%q: %s holds %q, %v", address, key, data, err)
				}
				obj.Body.Close()
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestRootNamesThatCannotBe(t *testing.T) {
	for _, dir := range []string{"", "a\x00b"} {
		if _, err := New(dir, nil); err == nil {
			t.Errorf("%q was taken", dir)
		}
	}
}

// A relative root stays what it was when the process changes its directory.
func TestRelativeRoot(t *testing.T) {
	t.Chdir(t.TempDir())
	d := open(t, "store", nil)
	create(t, d, "x", "x")
	t.Chdir(t.TempDir())
	holds(t, d, "x", "x")
	create(t, d, "y", "y")
	holds(t, d, "y", "y")
}

// Opening and reading make nothing; the first create makes the root.
func TestRootIsMadeByTheFirstCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := open(t, dir, nil)
	absent(t, d, "data/x")
	absent(t, d, "_control/x")
	if got := keys(t, d, "", ""); len(got) != 0 {
		t.Errorf("listed %q", got)
	}
	if got := keys(t, d, "data/", "data/a"); len(got) != 0 {
		t.Errorf("listed %q", got)
	}
	if err := d.Delete(t.Context(), []string{"data/x", "_control/x"}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if n, err := d.CleanUploads(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("clean-up: %d, %v", n, err)
	}
	if _, err := d.Replace(t.Context(), "_control/x", backend.Bytes(nil), "1.0123456789abcdef"); !errors.Is(err, backend.ErrChanged) {
		t.Errorf("replace: %v, want %v", err, backend.ErrChanged)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("something was made: %v", err)
	}
	create(t, d, "data/x", "x")
	holds(t, d, "data/x", "x")
	// It may also go away and be made again.
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	absent(t, d, "data/x")
	create(t, d, "data/x", "again")
	holds(t, d, "data/x", "again")
}

// A root that is no directory is said to be none, by every call.
func TestRootThatIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"file", "file/below"} {
		d := open(t, filepath.Join(dir, root), nil)
		_, err1 := d.Get(t.Context(), "data/x", backend.GetOptions{})
		_, err2 := d.Get(t.Context(), "_control/x", backend.GetOptions{})
		_, err3 := d.Create(t.Context(), "data/x", backend.Bytes(nil))
		_, err4 := d.Create(t.Context(), "_control/x", backend.Bytes(nil))
		_, err5 := d.Replace(t.Context(), "_control/x", backend.Bytes(nil), "1.0123456789abcdef")
		err6 := d.Delete(t.Context(), []string{"data/x"})
		_, err7 := d.CleanUploads(t.Context(), 0)
		var err8 error
		for _, err8 = range d.List(t.Context(), "", "") {
		}
		for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8} {
			if !errors.Is(err, backend.ErrNoBucket) {
				t.Errorf("root %s, call %d: %v, want %v", root, i+1, err, backend.ErrNoBucket)
			}
		}
	}
	d := open(t, filepath.Join(dir, "dangling"), nil)
	if _, err := d.Create(t.Context(), "data/x", backend.Bytes(nil)); !errors.Is(err, backend.ErrNoBucket) {
		t.Errorf("create below a dangling link: %v, want %v", err, backend.ErrNoBucket)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

// One key cannot lie below another.
func TestKeyBelowAnObject(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	create(t, d, "a/b", "b")
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		if _, err := d.Create(t.Context(), key, backend.Bytes(nil)); !errors.Is(err, backend.ErrBadKey) {
			t.Errorf("create %s beside a/b: %v, want %v", key, err, backend.ErrBadKey)
		}
	}
	if err := d.Delete(t.Context(), []string{"a", "a/b/c"}); err != nil {
		t.Errorf("delete: %v", err)
	}
	holds(t, d, "a/b", "b")
	// An empty directory is no object either, and stays.
	if err := d.Delete(t.Context(), []string{"a/b"}); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(t.Context(), []string{"a"}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.root, "a")); err != nil {
		t.Errorf("the directory is gone: %v", err)
	}
}
