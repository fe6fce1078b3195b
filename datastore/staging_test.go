package datastore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// Rule R5: a sweep between upload and commit.
func TestNamesThatASweepCoveredAreSentAgain(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	want := map[string][]byte{"pack1": noise(1, 900<<10), "pack2": noise(2, 300<<10), "large": noise(3, 2<<20)}
	b, err := a.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range want {
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			t.Fatal(err)
		}
	}
	swept := e.own(a, func(r *format.Record) { r.Kind, r.Sweep = format.KindSweep, r.Slot-1 })
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	a.want(want)
	for path := range want {
		v, err := a.Stat(ctx, path, Newest)
		if err != nil {
			t.Fatal(err)
		}
		if head, _ := format.DataHead(v.place.Object.Name); head <= swept.Sweep {
			t.Errorf("%s lies in %s, which the sweep up to %d declared dead", path, v.place.Object.Name, swept.Sweep)
		}
	}
}

// Rule R5: an object that a commit shares dies before it lands.
func TestSharedContentWhoseObjectDiesIsSentByItself(t *testing.T) {
	for _, kind := range []string{"pack", "large"} {
		t.Run(kind, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t, nil)
			a := e.open(nil)
			data := noise(1, 300<<10)
			if kind == "large" {
				data = noise(1, 2<<20)
			}
			a.put(map[string][]byte{"old": data})
			old, err := a.Stat(ctx, "old", Newest)
			if err != nil {
				t.Fatal(err)
			}
			del, err := a.Begin(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := del.Delete(ctx, "old"); err != nil {
				t.Fatal(err)
			}
			if _, err := del.Commit(ctx, ""); err != nil {
				t.Fatal(err)
			}
			b, err := a.Begin(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			put, err := b.Put(ctx, "new", bytes.NewReader(data), nil)
			if err != nil || !put.Deduplicated {
				t.Fatalf("%+v, %v; want it shared", put, err)
			}
			e.own(a, func(r *format.Record) {
				r.Kind = format.KindRetention
				r.Block.Drops = []format.VersionRef{{Path: "old", Slot: old.Slot}}
				r.Block.Dead = []string{old.place.Object.Name}
			})
			if err := e.store.Bucket().Delete(ctx, []string{old.place.Object.Name}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Commit(ctx, ""); err != nil {
				t.Fatal(err)
			}
			a.want(map[string][]byte{"new": data})
			r, err := a.OpenVersion(ctx, old, 0, 0)
			if err == nil { // small contents are read at once, others with the first Read
				_, err = io.ReadAll(r)
				r.Close()
			}
			if !errors.Is(err, ErrGone) {
				t.Errorf("a removed version: %v, want ErrGone", err)
			}
		})
	}
}

func TestEqualContentsAreStoredOnce(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	a := e.open(nil)
	big, small, inline := noise(1, 2<<20), noise(2, 300<<10), noise(3, 100)
	a.put(map[string][]byte{"big": big, "small": small})
	a.put(map[string][]byte{"inline": inline})
	a.faults.Reset()
	a.put(map[string][]byte{"big2": big, "small2": small, "small3": small})
	if got := a.faults.Counts(); got.Requests() != 1 {
		t.Errorf("sharing contents: %v, want the record only", got)
	}
	// R6: never an inline place.
	a.put(map[string][]byte{"inline2": inline})
	v1, err := a.Stat(ctx, "inline", Newest)
	if err != nil {
		t.Fatal(err)
	}
	v2, err := a.Stat(ctx, "inline2", Newest)
	if err != nil {
		t.Fatal(err)
	}
	if v1.place.Slot == v2.place.Slot {
		t.Errorf("an inline content was shared")
	}
	a.want(map[string][]byte{"big2": big, "small2": small, "small3": small, "inline2": inline})
}

// Invariant I9.
func TestAFileThatChangedAfterStagingRefusesTheCommit(t *testing.T) {
	ctx := context.Background()
	data := noise(1, 2<<20)
	for name, change := range map[string]func(file string) error{
		"other bytes": func(f string) error { d := bytes.Clone(data); d[1<<20] ^= 1; return os.WriteFile(f, d, 0o600) },
		"shorter":     func(f string) error { return os.Truncate(f, 1<<20) },
		"longer":      func(f string) error { return os.WriteFile(f, append(bytes.Clone(data), 'x'), 0o600) },
		"gone":        os.Remove,
		"a link": func(f string) error {
			return errors.Join(os.Rename(f, f+".was"), os.Symlink(f+".was", f))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			a := e.open(nil)
			file := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			// The upload begins at once: hold it until the file has changed.
			hold := a.faults.Add(faults.Rule{Ops: faults.Create, Prefix: "data/", Do: faults.Block()})
			b, err := a.Begin(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.PutFile(ctx, "f", file, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Put(ctx, "other", bytes.NewReader(text(5)), nil); err != nil {
				t.Fatal(err)
			}
			<-hold.Reached()
			if err := change(file); err != nil {
				t.Fatal(err)
			}
			if err := hold.Release(); err != nil {
				t.Fatal(err)
			}
			_, err = b.Commit(ctx, "")
			if name == "longer" {
				// What was staged is there to the byte, and that is what lands.
				if err != nil {
					t.Fatal(err)
				}
				a.want(map[string][]byte{"f": data, "other": text(5)})
				return
			}
			if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), file) {
				t.Fatalf("got %v, want ErrChanged and the file's name", err)
			}
			a.want(map[string][]byte{"f": nil, "other": nil})
			if err := b.Discard(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Equal contents of one batch are sent once, small or large, from memory or from
// files.
func TestEqualContentsOfABatchAreSentOnce(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	a := e.open(nil)
	large, small := noise(1, 2<<20), noise(2, 300<<10)
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, large, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := a.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.faults.Reset()
	for path, data := range map[string][]byte{"l1": large, "l2": large, "s1": small, "s2": small} {
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.PutFile(ctx, "l3", file, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if n := a.faults.CountsOf("data/").Requests(); n != 2 {
		t.Errorf("%d requests for data objects, want 2: %v", n, a.faults.CountsOf("data/"))
	}
	a.want(map[string][]byte{"l1": large, "l2": large, "l3": large, "s1": small, "s2": small})
}

func TestProgressTellsWhatWasDone(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	var mu sync.Mutex
	most := map[string]int64{}
	note := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		most[p.Phase] = max(most[p.Phase], p.Done)
	}
	a := e.open(&Options{Progress: note})
	b, err := a.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string][]byte{"small": noise(1, 300<<10), "l1": noise(2, 2<<20), "l2": noise(3, 3<<20)}
	var all int64
	for path, data := range contents {
		all += int64(len(data))
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(ctx, &VerifyOptions{ReadData: true, Progress: note}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := most["read"]; got < 5<<20 || got > all {
		t.Errorf("read: %d bytes, want those of the large contents at least and of all (%d) at most", got, all)
	}
	if got := most["upload"]; got < all {
		t.Errorf("upload: %d bytes, want %d at least", got, all)
	}
	for phase, want := range map[string]int64{"verify log": 2, "verify objects": 3, "verify data": all} {
		if most[phase] != want {
			t.Errorf("%s: up to %d, want %d", phase, most[phase], want)
		}
	}
	if _, ok := most["commit"]; !ok {
		t.Error("nothing was told of the commit")
	}
}
