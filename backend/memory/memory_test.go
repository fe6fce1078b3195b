package memory_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t testing.TB, b *backend.Bucket, key, text string) backend.Info {
	t.Helper()
	info, err := b.Create(t.Context(), key, backend.Bytes([]byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func get(t testing.TB, b *backend.Bucket, key string) (string, *backend.Object) {
	t.Helper()
	obj, err := b.Get(t.Context(), key, backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Body.Close()
	data, err := io.ReadAll(obj.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), obj
}

func keys(t testing.TB, b *backend.Bucket) []string {
	t.Helper()
	var keys []string
	for e, err := range b.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

// All times are those of the clock that the test turns.
func TestClock(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, noDate := range []bool{false, true} {
		var ahead atomic.Int64
		now := func() time.Time { return start.Add(time.Duration(ahead.Load())) }
		b := memory.New(&memory.Options{Now: now, NoDate: noDate}).Bucket()
		date := func() time.Time {
			if noDate {
				return time.Time{}
			}
			return now()
		}
		made := put(t, b, "_control/x", "one")
		if !made.Modified.Equal(start) || !made.Now.Equal(start) || !made.Date.Equal(date()) {
			t.Errorf("create: %+v", made)
		}
		ahead.Store(int64(time.Hour))
		if _, obj := get(t, b, "_control/x"); obj.Now.Sub(obj.Modified) != time.Hour || !obj.Date.Equal(date()) {
			t.Errorf("an hour later: Modified %v, Now %v, Date %v", obj.Modified, obj.Now, obj.Date)
		}
		next, err := b.Replace(t.Context(), "_control/x", backend.Bytes([]byte("two")), made.Version)
		if err != nil || !next.Modified.Equal(now()) || !next.Date.Equal(date()) {
			t.Errorf("replace: %+v, %v", next, err)
		}
		ahead.Store(int64(2 * time.Hour))
		for e, err := range b.List(t.Context(), "", "") {
			if err != nil || !e.Modified.Equal(start.Add(time.Hour)) {
				t.Errorf("list: %+v, %v", e, err)
			}
		}
		if _, err := b.Get(t.Context(), "data/x", backend.GetOptions{}); !backend.Date(err).Equal(date()) {
			t.Errorf("a missing key has the Date %v, want %v", backend.Date(err), date())
		}
	}
}

func TestNamedStoresAreShared(t *testing.T) {
	ctx := t.Context()
	open := func(url string) *backend.Bucket {
		t.Helper()
		b, err := backend.Open(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Cleanup(func() { memory.Drop("shared/a"); memory.Drop("shared/b") })
	put(t, open("mem://shared/a"), "data/x", "a")
	for _, url := range []string{"mem://shared/a", "mem://shared/a/"} {
		if got, _ := get(t, open(url), "data/x"); got != "a" {
			t.Errorf("%s holds %q, want a", url, got)
		}
	}
	if got, _ := get(t, memory.Named("shared/a", nil).Bucket(), "data/x"); got != "a" {
		t.Errorf("Named holds %q, want a", got)
	}
	if _, err := open("mem://shared/b").Get(ctx, "data/x", backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("another name: %v, want %v", err, backend.ErrNotFound)
	}
	old := open("mem://shared/a")
	memory.Drop("shared/a")
	if _, err := open("mem://shared/a").Get(ctx, "data/x", backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("after Drop: %v, want %v", err, backend.ErrNotFound)
	}
	if got, _ := get(t, old, "data/x"); got != "a" {
		t.Errorf("an open handle holds %q after Drop, want a", got)
	}
	for _, url := range []string{"mem://x?y=z", "mem://user@x"} {
		if _, err := backend.Open(ctx, url); err == nil || !strings.Contains(err.Error(), "mem://name") {
			t.Errorf("%s: %v, want an error that says what is possible", url, err)
		}
	}
}

func TestCloneGoesItsOwnWay(t *testing.T) {
	s := memory.New(nil)
	b := s.Bucket()
	made := put(t, b, "_control/x", "one")
	put(t, b, "data/x", "x")
	c := s.Clone()
	if _, err := b.Replace(t.Context(), "_control/x", backend.Bytes([]byte("two")), made.Version); err != nil {
		t.Fatal(err)
	}
	put(t, b, "data/y", "y")
	if got, obj := get(t, c.Bucket(), "_control/x"); got != "one" || obj.Version != made.Version {
		t.Errorf("the clone holds %q of version %q, want one of %q", got, obj.Version, made.Version)
	}
	if err := c.Bucket().Delete(t.Context(), []string{"data/x"}); err != nil {
		t.Fatal(err)
	}
	for _, store := range []struct {
		s    *memory.Store
		want []string
	}{{s, []string{"_control/x", "data/x", "data/y"}}, {c, []string{"_control/x"}}} {
		if got := keys(t, store.s.Bucket()); !slices.Equal(got, store.want) || store.s.Len() != len(store.want) {
			t.Errorf("%q are listed, %d are there, want %q", got, store.s.Len(), store.want)
		}
	}
	// The clone's history is the same: no version is given out a second time.
	if info := put(t, c.Bucket(), "data/z", "z"); info.Version == made.Version {
		t.Errorf("the version %q came back", info.Version)
	}
}

func TestTamper(t *testing.T) {
	s := memory.New(nil)
	b := s.Bucket()
	made := put(t, b, "data/x", "good")
	s.Tamper("data/x", func(old []byte) []byte {
		if string(old) != "good" {
			t.Errorf("edit gets %q", old)
		}
		old[0] = 'f'
		return old
	})
	if got, obj := get(t, b, "data/x"); got != "food" || obj.Version == made.Version || !obj.Modified.Equal(made.Modified) {
		t.Errorf("holds %q of version %q, %v", got, obj.Version, obj.Modified)
	}
	s.Tamper("data/new", func(old []byte) []byte {
		if old != nil {
			t.Errorf("edit of a missing key gets %q", old)
		}
		return []byte{}
	})
	if got, _ := get(t, b, "data/new"); got != "" {
		t.Errorf("holds %q, want an empty object", got)
	}
	s.Tamper("data/x", func([]byte) []byte { return nil })
	s.Tamper("data/never", func([]byte) []byte { return nil })
	if got, want := keys(t, b), []string{"data/new"}; !slices.Equal(got, want) {
		t.Errorf("holds %q, want %q", got, want)
	}
}

func TestContentVersions(t *testing.T) {
	b := memory.New(&memory.Options{ContentVersions: true}).Bucket()
	one, two := put(t, b, "data/1", "same"), put(t, b, "data/2", "same")
	other := put(t, b, "data/3", "other")
	if one.Version != two.Version || one.Version == other.Version {
		t.Errorf("versions %q, %q, %q; want the first two equal", one.Version, two.Version, other.Version)
	}
}

// lastRead calls end when it is closed, after its last byte was read.
type lastRead struct {
	*strings.Reader
	end func()
}

func (l lastRead) Close() error { l.end(); return nil }

// A context, or a handle, that ends after the content was read and before it is
// stored has ended in time.
func TestEndBeforeStoring(t *testing.T) {
	for _, c := range []struct {
		name string
		want error
	}{{"context", context.Canceled}, {"handle", backend.ErrClosed}} {
		s := memory.New(nil)
		b := s.Bucket()
		ctx, cancel := context.WithCancel(t.Context())
		end := map[string]func(){"context": cancel, "handle": func() { _ = b.Close() }}[c.name]
		body := backend.Bytes([]byte("x"))
		body.Open = func() (io.ReadSeekCloser, error) { return lastRead{strings.NewReader("x"), end}, nil }
		if _, err := b.Create(ctx, "data/x", body); !errors.Is(err, c.want) || s.Len() != 0 {
			t.Errorf("%s: %v, %d objects; want %v and none", c.name, err, s.Len(), c.want)
		}
		cancel()
	}
}

// A body whose announced size is absurd costs no memory and is refused.
func TestAbsurdSizes(t *testing.T) {
	b := memory.New(nil).Bucket()
	for _, size := range []int64{-1, -1 << 63, 1 << 62, 1<<63 - 1} {
		body := backend.Bytes([]byte("x"))
		body.Size = size
		if _, err := b.Create(t.Context(), "data/x", body); !errors.Is(err, backend.ErrBadContent) {
			t.Errorf("size %d: %v, want %v", size, err, backend.ErrBadContent)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	for _, n := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("beside_%d", n), func(b *testing.B) {
			s := memory.New(nil)
			for i := range n {
				s.Tamper(fmt.Sprintf("data/%08d", i*7919%n), func([]byte) []byte { return []byte("x") })
			}
			bucket, data := s.Bucket(), backend.Bytes(make([]byte, 300))
			b.ResetTimer()
			for i := range b.N {
				if _, err := bucket.Create(b.Context(), fmt.Sprintf("data/%08d-%d", i*7919%max(n, 1), i), data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkList(b *testing.B) {
	s := memory.New(nil)
	for i := range 1_000_000 {
		s.Tamper(fmt.Sprintf("data/%08d", i), func([]byte) []byte { return []byte("x") })
	}
	bucket := s.Bucket()
	b.ResetTimer()
	for range b.N {
		n := 0
		for _, err := range bucket.List(b.Context(), "data/", "") {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		b.ReportMetric(float64(n), "entries")
	}
}
