//go:build unix

package fs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
)

// A body whose file loses its end while it is read fails, it does not end.
func TestFileThatShrinks(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	create(t, d, "data/x", string(noise(100_000, 1)))
	for _, read := range []func(io.Reader) ([]byte, error){
		io.ReadAll,
		func(r io.Reader) ([]byte, error) { var b bytes.Buffer; _, err := io.Copy(&b, r); return b.Bytes(), err },
	} {
		obj, err := d.Get(t.Context(), "data/x", backend.GetOptions{Offset: 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(d.root, "data/x"), 60_000); err != nil {
			t.Fatal(err)
		}
		got, err := read(obj.Body)
		obj.Body.Close()
		if !errors.Is(err, io.ErrUnexpectedEOF) || len(got) != 59_990 {
			t.Errorf("read %d bytes, then %v; want 59990, then %v", len(got), err, io.ErrUnexpectedEOF)
		}
		if err := os.Truncate(filepath.Join(d.root, "data/x"), 100_000); err != nil {
			t.Fatal(err)
		}
	}
}

// An object that is deleted and made again has another version, although the file
// system gives the new file the number of the old, and its clock stands still.
func TestVersionsOfObjectsDoNotComeBack(t *testing.T) {
	h := &hookFS{FS: lazyFS{OS()}, root: filepath.Join(t.TempDir(), "store")}
	still := time.Now().Add(-time.Hour).Truncate(time.Second)
	h.after = func(c call, err error) error {
		if c.op == "write" && err == nil {
			return os.Chtimes(filepath.Join(h.root, c.name), still, still)
		}
		return err
	}
	d := open(t, h.root, h)
	seen, times := map[backend.Version]bool{}, map[time.Time]bool{}
	for range 100 {
		info := create(t, d, "data/x", "same")
		if seen[info.Version] {
			t.Fatalf("the version %q came back", info.Version)
		}
		seen[info.Version], times[info.Modified] = true, true
		if age := still.Sub(info.Modified); age < 0 || age > time.Millisecond {
			t.Errorf("Modified is %v before the time that the file had, want less than a millisecond", age)
		}
		if got := holds(t, d, "data/x", "same"); got.Version != info.Version || !got.Modified.Equal(info.Modified) {
			t.Fatalf("get says %q, %v; create said %q, %v", got.Version, got.Modified, info.Version, info.Modified)
		}
		if err := d.Delete(t.Context(), []string{"data/x"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(times) < 90 {
		t.Errorf("100 objects have only %d times", len(times))
	}
}

// The store's clock is that of the files: it goes on, and a new object is not older
// or newer than the moment it was made.
func TestNowIsTheClockOfTheFiles(t *testing.T) {
	d, h := hooked(t)
	info := create(t, d, "data/x", "x")
	if age := info.Now.Sub(info.Modified); age < 0 || age > patience {
		t.Errorf("a new object is %v old", age)
	}
	// A server whose clock is an hour ahead.
	ahead := time.Hour
	h.after = func(c call, err error) error {
		if c.op == "touch" && err == nil {
			return h.setClock(c, ahead)
		}
		return err
	}
	d2 := open(t, h.root, h)
	if now := holds(t, d2, "data/x", "x").Now; now.Sub(info.Now) < ahead {
		t.Errorf("Now is %v, want the server's time, an hour after %v", now, info.Now)
	}
	h.after = nil
	last := time.Time{}
	for range 50 {
		now := holds(t, d2, "data/x", "x").Now
		if now.Before(last) {
			t.Errorf("Now is %v, was %v", now, last)
		}
		last = now
	}
	if got := files(t, filepath.Join(h.root, tempDir)); len(got) != 0 {
		t.Errorf("the clock is seen as %q", got)
	}
}

// setClock moves the modification time of the clock's file, which has no name.
func (h *hookFS) setClock(c call, by time.Duration) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, fd := range fds {
		p := "/proc/self/fd/" + fd.Name()
		if to, err := os.Readlink(p); err == nil && strings.Contains(to, filepath.Join(h.root, tempDir)) {
			now := time.Now().Add(by)
			if err := os.Chtimes(p, now, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// A clock that cannot be had costs no read; one that breaks is made anew.
func TestClockThatFails(t *testing.T) {
	d, h := hooked(t)
	create(t, d, "data/x", "x")
	fail := ""
	h.before = func(c call) error {
		if c.op == fail && (c.op == "touch" || strings.Contains(c.name, "clock")) {
			return syscall.EIO
		}
		return nil
	}
	fail = "touch"
	if now := holds(t, d, "data/x", "x").Now; !now.IsZero() {
		t.Errorf("Now is %v without a clock", now)
	}
	fail = ""
	if now := holds(t, d, "data/x", "x").Now; now.IsZero() {
		t.Error("the clock did not come back")
	}
	d2 := open(t, h.root, h)
	fail = "create"
	if now := holds(t, d2, "data/x", "x").Now; !now.IsZero() {
		t.Errorf("Now is %v without a clock", now)
	}
	if _, err := d2.CleanUploads(t.Context(), 0); !errors.Is(err, backend.ErrDenied) {
		t.Errorf("clean-up without a clock: %v, want %v", err, backend.ErrDenied)
	}
}

// Uploads older than age go, by the store's clock; younger ones, and what is not
// an upload, stay.
func TestCleanUploads(t *testing.T) {
	root := t.TempDir()
	d := open(t, root, nil)
	life := strings.Repeat("1", lifeLen)
	v := create(t, d, "_control/dir/rec", "rec").Version
	create(t, d, "data/x", "x")
	now := holds(t, d, "data/x", "x").Now
	for name, age := range map[string]time.Duration{
		".tmp/u1":    2 * time.Hour,
		".tmp/u2":    30 * time.Minute,
		".tmp/u3":    -2 * time.Hour, // from the future
		".tmp/clock": 2 * time.Hour,
		".tmp/.nfs1": 2 * time.Hour,
		"_control/dir/rec." + strings.Repeat("0", 19) + "2." + string(v)[2:] + ".aa": 2 * time.Hour,
		"_control/dir/rec." + strings.Repeat("0", 19) + "2." + string(v)[2:] + ".bb": 30 * time.Minute,
		"_control/dir/new." + strings.Repeat("0", 20) + "." + life:                   2 * time.Hour, // a create that was killed
		"_control/dir/new." + strings.Repeat("0", 19) + "1." + life:                  2 * time.Hour,
		"_control/young." + strings.Repeat("0", 20) + "." + life:                     30 * time.Minute,
		"_control/young." + strings.Repeat("0", 19) + "1." + life:                    30 * time.Minute,
		"_control/dead." + strings.Repeat("0", 19) + "7." + life:                     30 * time.Minute, // a delete that was killed
	} {
		p := filepath.Join(root, name)
		if err := os.WriteFile(p, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"data/x", "_control/dir/rec.id"} { // objects are as old as they are
		if err := os.Chtimes(filepath.Join(root, p), now.Add(-5*time.Hour), now.Add(-5*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, ".tmp", "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	n, err := d.CleanUploads(t.Context(), time.Hour)
	if err != nil || n != 6 {
		t.Errorf("clean-up: %d removed, %v; want 6", n, err)
	}
	got := files(t, root)
	for i := range got {
		got[i] = spoken([]call{{"", got[i], ""}})[0][1:]
	}
	slices.Sort(got)
	demand(t, "what is left", got,
		".tmp/.nfs1", ".tmp/u2", ".tmp/u3",
		"_control/dir/rec.1.LIFE", "_control/dir/rec.2.LIFE.bb", "_control/dir/rec.id",
		"_control/young.0.LIFE", "_control/young.1.LIFE", "data/x")
	holds(t, d, "_control/dir/rec", "rec")
}

// An upload whose temporary file is cleaned away begins again.
func TestUploadThatIsCleanedAway(t *testing.T) {
	for _, key := range []string{"data/x", "_control/x"} {
		for _, at := range []string{"write", "chtimes", "sync", "link"} {
			if at == "chtimes" && backend.Replaceable(key) {
				continue // of other files only
			}
			for _, times := range []int{1, 1000} {
				d, h := hooked(t)
				other := open(t, h.root, nil)
				create(t, other, "_control/y", "y")
				left := times
				h.before = func(c call) error {
					if c.op == at && left > 0 {
						left--
						if n, err := other.CleanUploads(context.Background(), 0); n == 0 || err != nil {
							t.Errorf("clean-up: %d, %v", n, err)
						}
					}
					return nil
				}
				var opened atomic.Int32
				body := backend.Bytes([]byte("x"))
				inner := body.Open
				body.Open = func() (io.ReadSeekCloser, error) { opened.Add(1); return inner() }
				_, err := d.Create(t.Context(), key, body)
				if times == 1 {
					if err != nil {
						t.Errorf("create of %s, cleaned away at %s: %v", key, at, err)
					}
					holds(t, d, key, "x")
					if key == "data/x" && opened.Load() != 2 {
						t.Errorf("the content was opened %d times, want 2", opened.Load())
					}
				} else if !errors.Is(err, backend.ErrConflict) {
					t.Errorf("create of %s, cleaned away at %s again and again: %v, want %v", key, at, err, backend.ErrConflict)
				} else {
					absent(t, d, key)
				}
				h.before = nil
				if _, err := d.CleanUploads(t.Context(), 0); err != nil {
					t.Error(err)
				}
				noTemps(t, h.root)
			}
		}
	}
}

// Contents of all sizes around the borders of the buffers are hashed and copied.
func TestSizesAroundTheBuffers(t *testing.T) {
	d := open(t, filepath.Join(memDir(t), "store"), lazyFS{OS()})
	for i, n := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, chunk - 2, chunk - 1, chunk, chunk + 1, 2*chunk - 1, 2 * chunk, 2*chunk + 1, 3*chunk + 7, writeAhead - 1, writeAhead, writeAhead + 1, 2*writeAhead + chunk} {
		data := noise(n, i)
		for _, sum := range []bool{true, false} {
			body := backend.Bytes(data)
			body.HasSHA256 = sum
			if info, err := d.Create(t.Context(), "data/x", body); err != nil || info.Size != int64(n) {
				t.Fatalf("%d bytes: %v, size %d", n, err, info.Size)
			}
			if got, _ := get(t, d, "data/x"); got != string(data) {
				t.Errorf("%d bytes: another content came back", n)
			}
			if err := d.Delete(t.Context(), []string{"data/x"}); err != nil {
				t.Fatal(err)
			}
			for what, bad := range map[string]backend.Body{
				"a short content": withSize(body, int64(n)+1),
				"a long content":  withSize(body, int64(n)-1),
				"another content": withSum(body, sha256.Sum256([]byte("another"))),
			} {
				if !bad.HasSHA256 && what == "another content" {
					continue
				}
				if _, err := d.Create(t.Context(), "data/x", bad); !errors.Is(err, backend.ErrBadContent) {
					t.Errorf("%d bytes, %s: %v, want %v", n, what, err, backend.ErrBadContent)
				}
			}
			absent(t, d, "data/x")
		}
	}
	noTemps(t, d.root)
}

func withSize(b backend.Body, size int64) backend.Body {
	b.Size = size
	return b
}

func withSum(b backend.Body, sum [sha256.Size]byte) backend.Body {
	b.SHA256 = sum
	return b
}

// Errors of the reader are the caller's, whatever they look like.
func TestErrorsOfTheReader(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	for _, rerr := range []error{io.ErrUnexpectedEOF, os.ErrNotExist, syscall.ENOSPC, syscall.EACCES, syscall.ENOTDIR} {
		for _, n := range []int{0, 10, 3 << 20} {
			body := backend.Bytes(noise(3<<20+10, 1))
			inner := body.Open
			body.Open = func() (io.ReadSeekCloser, error) {
				r, err := inner()
				return &failingReader{r, n, rerr}, err
			}
			_, err := d.Create(t.Context(), "data/x", body)
			if !errors.Is(err, rerr) {
				t.Errorf("a reader that fails with %v after %d bytes: %v", rerr, n, err)
			}
			for _, s := range []error{backend.ErrFull, backend.ErrDenied, backend.ErrNotFound, backend.ErrConflict, backend.ErrBadContent, backend.ErrNoBucket} {
				if errors.Is(err, s) {
					t.Errorf("a reader that fails with %v: %v, which is %q of the store", rerr, err, s)
				}
			}
			absent(t, d, "data/x")
		}
	}
	body := backend.Bytes([]byte("x"))
	body.Open = func() (io.ReadSeekCloser, error) { return stuckReader{}, nil }
	if _, err := d.Create(t.Context(), "data/x", body); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing: %v, want %v", err, io.ErrNoProgress)
	}
	noTemps(t, d.root)
}

type failingReader struct {
	io.ReadSeekCloser
	left int
	err  error
}

func (r *failingReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, r.err
	}
	n, err := r.ReadSeekCloser.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

type stuckReader struct{ io.ReadSeekCloser }

func (stuckReader) Read([]byte) (int, error) { return 0, nil }
func (stuckReader) Close() error             { return nil }

// A driver keeps few directories open, however many it makes.
func TestManyDirectories(t *testing.T) {
	d := open(t, filepath.Join(memDir(t), "store"), lazyFS{OS()})
	var want []string
	for i := range 3 * maxDirs {
		key := "data/" + string(noise(8, i)) + "/x"
		create(t, d, key, key)
		want = append(want, key)
	}
	if n := len(d.dirs.m); n > maxDirs {
		t.Errorf("%d directories are held, want %d at most", n, maxDirs)
	}
	for _, h := range d.dirs.m {
		if h.refs != 0 {
			t.Errorf("%s is still in use %d times", h.rel, h.refs)
		}
	}
	if got := keys(t, d, "", ""); !slices.Equal(got, want) {
		t.Errorf("%d keys are listed, want %d", len(got), len(want))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if open := openFiles(t, d.root); len(open) != 0 {
		t.Errorf("after Close these are open: %q", open)
	}
}

// openFiles returns the open files of this process below dir, where that can be asked.
func openFiles(t *testing.T, dir string) []string {
	var got []string
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir) {
			got = append(got, to)
		}
	}
	return got
}

// A size that cannot be is refused, whatever it does to sums.
func TestAbsurdSizes(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	for _, size := range []int64{math.MinInt64, -1, 1 << 42, math.MaxInt64 - 1, math.MaxInt64} {
		body := backend.Bytes([]byte("small"))
		body.Size = size
		for _, key := range []string{"data/x", "_control/x"} {
			if _, err := d.Create(t.Context(), key, body); !errors.Is(err, backend.ErrBadContent) {
				t.Errorf("%d bytes: %v, want %v", size, err, backend.ErrBadContent)
			}
			absent(t, d, key)
		}
	}
}
