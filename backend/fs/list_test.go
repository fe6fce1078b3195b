//go:build unix

package fs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/swampd/swampd/backend"
)

// trapKeys are names whose order as keys is not their order as directories.
func trapKeys(rng *rand.Rand) []string {
	segments := []string{"a", "a-", "a-b", "a.b", "a0", "a_", "b", "b-", "-", "0", "ab", "a--"}
	files, dirs := map[string]bool{}, map[string]bool{}
	for range 60 {
		var parts []string
		for range 1 + rng.IntN(4) {
			parts = append(parts, segments[rng.IntN(len(segments))])
		}
		key := strings.Join(parts, "/")
		clash := dirs[key]
		for i := 1; i < len(parts); i++ {
			clash = clash || files[strings.Join(parts[:i], "/")]
		}
		if clash || backend.CheckKey(key) != nil {
			continue
		}
		files[key] = true
		for i := 1; i < len(parts); i++ {
			dirs[strings.Join(parts[:i], "/")] = true
		}
	}
	var keys []string
	for k := range files {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func TestListAgreesWithSortedKeys(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		all := trapKeys(rng)
		d := open(t, filepath.Join(memDir(t), "store"), lazyFS{OS()})
		for _, i := range rng.Perm(len(all)) {
			create(t, d, all[i], all[i])
		}
		points := []string{"", "-", "a", "a/", "a-/", "a-", "a0/", "zz", "!"}
		for _, k := range all {
			points = append(points, k, k[:1+rng.IntN(len(k))], k+"-", k+"/", k+"0")
		}
		for range 400 {
			prefix, after := points[rng.IntN(len(points))], points[rng.IntN(len(points))]
			if backend.CheckPrefix(prefix) != nil {
				continue
			}
			var want []string
			for _, k := range all {
				if strings.HasPrefix(k, prefix) && k > after {
					want = append(want, k)
				}
			}
			if got := keys(t, d, prefix, after); !slices.Equal(got, want) {
				t.Fatalf("seed %d: list of %q after %q: %q, want %q", seed, prefix, after, got, want)
			}
		}
	}
}

// What is outside the prefix or before after is not looked at, and what is not
// reached is not either.
func TestListLooksAtNothingElse(t *testing.T) {
	d, h := hooked(t)
	for _, key := range []string{"a/1/x", "a/1/y", "a/2/x", "a/2/y", "a/2/z", "a/3/x", "a-/x", "b/1/x", "c/x"} {
		create(t, d, key, key)
	}
	r := &trace{}
	h.before = func(c call) error {
		if !strings.Contains(c.name, tempDir) {
			r.add(c)
		}
		return nil
	}
	for _, c := range []struct {
		prefix, after string
		most          int // how many are taken
		want          []string
	}{
		{"", "", 1, []string{"open .", "open a-", "lstat a-/x"}},
		{"a/2/", "", 9, []string{"open a/2", "lstat a/2/x", "lstat a/2/y", "lstat a/2/z"}},
		{"a/2", "", 2, []string{"open a", "open a/2", "lstat a/2/x", "lstat a/2/y"}},
		{"a/2/y", "", 9, []string{"open a/2", "lstat a/2/y"}},
		{"", "a/2/y", 2, []string{"open .", "open a", "open a/2", "lstat a/2/z", "open a/3", "lstat a/3/x"}},
		{"a/", "a/3", 9, []string{"open a", "open a/3", "lstat a/3/x"}},
		{"a/", "a/9", 9, []string{"open a"}},
		{"a/", "b", 9, nil},
		{"b/", "a/2/x", 9, []string{"open b", "open b/1", "lstat b/1/x"}},
		{"d/", "", 9, []string{"open d"}},
		{"../", "", 9, nil},
		{"../../", "", 9, nil},
		{"a/../b/", "", 9, nil},
		{"a//", "", 9, nil},
		{"/", "", 9, nil},
		{"./a/", "", 9, nil},
		{".tmp/", "", 9, nil},
	} {
		r.take("")
		n := 0
		for _, err := range d.List(t.Context(), c.prefix, c.after) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == c.most {
				break
			}
		}
		demand(t, fmt.Sprintf("list of %q after %q", c.prefix, c.after), spoken(r.take("open lstat")), c.want...)
	}
}

// Files that no Driver made, and those of unfinished work, are not shown.
func TestListShowsObjectsOnly(t *testing.T) {
	root := filepath.Join(t.TempDir(), "store")
	d := open(t, root, nil)
	v := create(t, d, "_control/rec", "1").Version
	replace(t, d, "_control/rec", "22", v)
	create(t, d, "data/x", "x")
	if err := os.MkdirAll(filepath.Join(root, "data", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	life := strings.Repeat("0", lifeLen)
	for _, name := range []string{
		".tmp/u0123", ".hidden", "UPPER", "sp ace", "data/.x", "data/x.", "data/é", "data/\xff", "data/new\nline",
		"_control/plain", "_control/rec.txt", "_control/rec.id.bak", "_control/other." + strings.Repeat("0", 19) + "1." + life,
		"_control/.id", "_control/UP.id", "_control/rec.id~",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("foreign"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "data", "Dir", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "data", "Dir", "x", "y"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"data/link": "x", "data/dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(root, "data/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, d, "", ""); !slices.Equal(got, []string{"_control/rec", "data/x"}) {
		t.Errorf("listed %q, want the record and the object", got)
	}
	for e := range d.List(t.Context(), "_control/", "") {
		if e.Size != 2 {
			t.Errorf("%s has %d bytes, want 2", e.Key, e.Size)
		}
	}
	// Reading what is no file fails and does not wait for it.
	for _, key := range []string{"data/link", "data/dangling", "data/pipe"} {
		if _, err := d.Get(t.Context(), key, backend.GetOptions{}); err == nil || errors.Is(err, backend.ErrNotFound) {
			t.Errorf("get %s: %v, want an error that says what it is", key, err)
		}
	}
	absent(t, d, "data/sub")
	absent(t, d, "_control/plain")
}

// A directory may be a link to another on the same file system: it is listed, as it
// can be read and written.
func TestLinkedDirectories(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"store", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("store", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../elsewhere", filepath.Join(dir, "store", "data")); err != nil {
		t.Fatal(err)
	}
	d := open(t, filepath.Join(dir, "link"), nil)
	create(t, d, "data/x", "x")
	create(t, d, "y", "y")
	holds(t, d, "data/x", "x")
	if got := keys(t, d, "", ""); !slices.Equal(got, []string{"data/x", "y"}) {
		t.Errorf("listed %q", got)
	}
}

func TestListOfWhatCannotBeRead(t *testing.T) {
	d, h := hooked(t)
	create(t, d, "a/x", "x")
	create(t, d, "b/x", "x")
	for _, c := range []struct {
		op, name string
		err      error
		want     error
	}{
		{"open", "b", syscall.EACCES, backend.ErrDenied},
		{"readdir", "b", syscall.EIO, syscall.EIO},
		{"lstat", "b/x", syscall.EIO, syscall.EIO},
	} {
		h.before = func(k call) error {
			if k.op == c.op && k.name == c.name {
				return c.err
			}
			return nil
		}
		var got []string
		var last error
		for e, err := range d.List(t.Context(), "", "") {
			if last = err; err == nil {
				got = append(got, e.Key)
			}
		}
		if !errors.Is(last, c.want) || !slices.Equal(got, []string{"a/x"}) {
			t.Errorf("%s of %s fails: listed %q, then %v; want a/x, then %v", c.op, c.name, got, last, c.want)
		}
	}
}

// A listing of many names stops when its context ends, and keeps names only.
func TestListOfManyNames(t *testing.T) {
	root := filepath.Join(memDir(t), "store")
	d := open(t, root, lazyFS{OS()})
	create(t, d, "data/x", "x")
	const n = 20_000
	for i := range n {
		if err := os.Link(filepath.Join(root, "data/x"), filepath.Join(root, fmt.Sprintf("data/%020d", i))); err != nil {
			if errors.Is(err, syscall.EMLINK) {
				t.Fatalf("the file system allows %d links only", i)
			}
			t.Fatal(err)
		}
	}
	i := 0
	for e, err := range d.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("data/%020d", i); i < n && e.Key != want {
			t.Fatalf("entry %d is %s, want %s", i, e.Key, want)
		}
		i++
	}
	if i != n+1 {
		t.Errorf("listed %d, want %d", i, n+1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i = 0
	var last error
	for _, err := range d.List(ctx, "", "") {
		if last = err; err == nil {
			i++
		}
		if i == 10 {
			cancel()
		}
	}
	if i != 10 || !errors.Is(last, context.Canceled) {
		t.Errorf("cancelled after 10 entries, listed %d, then %v", i, last)
	}
}
