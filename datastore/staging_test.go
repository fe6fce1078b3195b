package datastore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
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
			if !errors.Is(err, ErrChanged) {
				t.Fatalf("got %v, want ErrChanged", err)
			}
			a.want(map[string][]byte{"f": nil, "other": nil})
			if err := b.Discard(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
