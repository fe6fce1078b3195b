package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/format"
)

func contentsOfAllSizes() map[string][]byte {
	return map[string][]byte{
		"empty":            {},
		"a/one":            {1},
		"a/text":           text(5000),
		"a/noise":          noise(1, 5000),
		"b/almost-large":   noise(2, 1<<20),
		"b/just-large":     noise(3, 1<<20+1),
		"b/large":          noise(4, 3<<20+17),
		"b/large-text":     text(3<<20 + 17),
		"c/mixed":          append(text(2<<20), noise(5, 2<<20)...),
		"c/mixed-reversed": append(noise(5, 2<<20), text(2<<20)...),
	}
}

func TestContentsOfAllSizesComeBack(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	want := contentsOfAllSizes()
	c := p.put(want)
	p.want(want)
	other := e.open(nil)
	other.want(want)
	if c.Slot != other.Head() {
		t.Errorf("the commit says slot %d, another process sees %d", c.Slot, other.Head())
	}
	for path, data := range want {
		for _, r := range [][2]int64{{0, 1}, {5, 10}, {-7, 0}, {1<<20 - 3, 9}, {1 << 20, 1 << 20}, {1 << 40, 5}} {
			got, err := other.Get(context.Background(), path, &ReadOptions{Offset: r[0], Length: r[1]})
			if err != nil {
				t.Errorf("%s %v: %v", path, r, err)
				continue
			}
			from, n := r[0], int64(len(data))
			if from < 0 {
				from = max(0, n+from)
			}
			from = min(from, n)
			to := n
			if r[1] > 0 {
				to = min(n, from+r[1])
			}
			if !bytes.Equal(got, data[from:to]) {
				t.Errorf("%s %v: got %d bytes, want others", path, r, len(got))
			}
		}
	}
}

func TestEveryVersionCanBeRead(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	ctx := context.Background()
	c1 := p.put(map[string][]byte{"x": text(10), "y": text(20)})
	c2 := p.put(map[string][]byte{"x": noise(1, 30)})
	b, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, "y"); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, "no"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleting what is not there: %v", err)
	}
	c3, err := b.Commit(ctx, "without y")
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []*proc{p, e.open(nil)} {
		q.wantAt(c1.Slot, map[string][]byte{"x": text(10), "y": text(20)})
		q.wantAt(c2.Slot, map[string][]byte{"x": noise(1, 30), "y": text(20)})
		q.wantAt(c3.Slot, map[string][]byte{"x": noise(1, 30), "y": nil})
		q.want(map[string][]byte{"x": noise(1, 30), "y": nil})
		if got := q.paths(nil); !slices.Equal(got, []string{"x"}) {
			t.Errorf("list: %q", got)
		}
		if got := q.paths(&ListOptions{At: c1.Slot}); !slices.Equal(got, []string{"x", "y"}) {
			t.Errorf("list of the first: %q", got)
		}
		var msgs []string
		for l, err := range q.Log(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			msgs = append(msgs, l.Commit.Message)
		}
		if !slices.Equal(msgs, []string{"without y", "put 1", "put 2"}) {
			t.Errorf("log: %q", msgs)
		}
		var diff []string
		for d, err := range q.Diff(ctx, c1.Slot, Newest, "") {
			if err != nil {
				t.Fatal(err)
			}
			sign := "M"
			if d.To == nil {
				sign = "D"
			} else if d.From == nil {
				sign = "A"
			}
			diff = append(diff, sign+d.Path)
		}
		if !slices.Equal(diff, []string{"Mx", "Dy"}) {
			t.Errorf("diff: %q", diff)
		}
	}
}

func TestFilesKeepModeTimeAndLinks(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	ctx := context.Background()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "f"), filepath.Join(dir, "l")
	big := filepath.Join(dir, "big")
	mtime := time.Unix(1700000000, 123456789)
	for name, data := range map[string][]byte{file: text(100), big: noise(9, 2<<20+5)} {
		if err := os.WriteFile(name, data, 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, mtime, mtime); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("f", link); err != nil {
		t.Fatal(err)
	}
	b, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "l", "big"} {
		if _, err := b.PutFile(ctx, name, filepath.Join(dir, name), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	q := e.open(nil)
	q.want(map[string][]byte{"f": text(100), "l": []byte("f"), "big": noise(9, 2<<20+5)})
	for _, name := range []string{"f", "big"} {
		v, err := q.Stat(ctx, name, Newest)
		if err != nil {
			t.Fatal(err)
		}
		if v.Mode != 0o640 || !v.MTime.Equal(mtime) {
			t.Errorf("%s: mode %v, mtime %v", name, v.Mode, v.MTime)
		}
	}
	if v, err := q.Stat(ctx, "l", Newest); err != nil || v.Mode&os.ModeSymlink == 0 {
		t.Errorf("link: %+v, %v", v, err)
	}
	// Nothing changed: nothing to commit.
	b, err = p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "l", "big"} {
		put, err := b.PutFile(ctx, name, filepath.Join(dir, name), &PutOptions{SkipUnchanged: true})
		if err != nil || !put.Unchanged {
			t.Errorf("%s: %+v, %v", name, put, err)
		}
	}
	if _, err := b.Commit(ctx, ""); !errors.Is(err, ErrEmpty) {
		t.Errorf("a commit of nothing: %v", err)
	}
	if err := b.Discard(); err != nil {
		t.Fatal(err)
	}
}

func TestFetchReadsEverythingWithFewRequests(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	want := contentsOfAllSizes()
	for i := range 2000 {
		want["many/"+string(rune('a'+i%26))+"/"+time.Duration(i).String()] = noise(uint64(i), 700)
	}
	p.put(want)
	q := e.open(nil)
	q.faults.Reset()
	got := make(chan string, len(want))
	err := q.Fetch(context.Background(), q.List(context.Background(), nil), nil, func(_ context.Context, v Version, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, want[v.Path]) {
			t.Errorf("%s: wrong bytes", v.Path)
		}
		got <- v.Path
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("got %d contents, want %d", len(got), len(want))
	}
	if n := q.faults.Counts().Requests(); n > 20 {
		t.Errorf("%d requests for 2,010 contents: %v", n, q.faults.Counts())
	}
}

func TestRequestBudget(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"first": text(1)})
	p.faults.Reset()

	p.put(map[string][]byte{"a": noise(1, 100<<10), "b": noise(2, 100<<10)})
	if got := p.faults.Counts(); got.Requests() != 1 || p.faults.CountsOf("commits/").Requests() != 1 {
		t.Errorf("a commit of small contents: %v, want one create of the record", got)
	}

	// Paths of 100 bytes: the changes fit into the record all the same.
	b, err := p.Begin(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.faults.Reset()
	for i := range 10_000 {
		path := fmt.Sprintf("%s/%s/%05d", strings.Repeat("d", 50), strings.Repeat("f", 43), i)
		opts := &PutOptions{Mode: 0o640, MTime: time.Unix(1_700_000_000, int64(i)*1_000_003)}
		if _, err := b.Put(context.Background(), path, bytes.NewReader(noise(uint64(i), 4096)), opts); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	// The heartbeat of the lease goes on beside it, every ten seconds.
	beats := p.faults.CountsOf(format.LeaseKey).Requests()
	if got := p.faults.Counts(); got.Requests()-beats != 4 || p.faults.CountsOf("data/").Requests() != 3 {
		t.Errorf("10,000 files of 4 KiB (40 MiB): %v, want 3 packs and the record\n%s", got, p.faults.Trace(nil))
	}

	q := e.open(nil)
	q.faults.Reset()
	if _, err := q.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := q.faults.Counts(); got.Requests() != 2 {
		t.Errorf("an update without news: %v, want the next slot and the checkpoint record", got)
	}
}

func TestAnErrorHoldsNoSecretOfTheAddress(t *testing.T) {
	for _, open := range []func(context.Context, string, *Options) (*Store, error){Init, Open} {
		_, err := open(context.Background(), "nowhere://user:hunter2@bucket/prefix?secret=hunter2", nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
}
