package datastore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
)

// loseCache removes the catalog under an open Store, as a person would.
func (p *proc) loseCache() {
	p.t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(filepath.Join(p.dir, "commits.db"+suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			p.t.Fatal(err)
		}
	}
}

func TestACacheThatGoesWhileTheStoreIsOpenLosesNothing(t *testing.T) {
	ctx := context.Background()
	open := func(t *testing.T) (*env, *proc, *Commit) {
		e := newEnv(t, nil)
		p := e.open(nil)
		c := p.put(map[string][]byte{"x": text(1), "big": packed(1)})
		if err := p.overlay.flush(ctx); err != nil {
			t.Fatal(err)
		}
		return e, p, c
	}
	t.Run("read", func(t *testing.T) {
		_, p, _ := open(t)
		p.loseCache()
		p.want(map[string][]byte{"x": text(1), "big": packed(1)})
		if got := p.paths(nil); len(got) != 2 {
			t.Errorf("list: %q", got)
		}
	})
	t.Run("list", func(t *testing.T) {
		_, p, _ := open(t)
		p.loseCache()
		if got := p.paths(nil); len(got) != 2 {
			t.Errorf("list: %q", got)
		}
	})
	t.Run("log", func(t *testing.T) {
		_, p, c := open(t)
		p.loseCache()
		for e, err := range p.Log(ctx, nil) {
			if err != nil || e.Slot != c.Slot {
				t.Errorf("log: %+v, %v", e, err)
			}
			return
		}
		t.Error("the log is empty")
	})
	t.Run("conflict", func(t *testing.T) {
		_, p, c := open(t)
		p.put(map[string][]byte{"x": text(2)})
		if err := p.overlay.flush(ctx); err != nil {
			t.Fatal(err)
		}
		b, err := p.Begin(ctx, &BatchOptions{Base: c.Slot})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(ctx, "x"); err != nil {
			t.Fatal(err)
		}
		p.loseCache()
		if _, err := b.Commit(ctx, ""); !errors.Is(err, ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
	})
	// R3: the id is looked for in the whole log, not in what is left of the cache.
	t.Run("same id", func(t *testing.T) {
		_, p, _ := open(t)
		id := newID()
		first, err := p.tryPut(id, map[string][]byte{"y": text(1)})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.overlay.flush(ctx); err != nil {
			t.Fatal(err)
		}
		p.loseCache()
		again, err := p.tryPut(id, map[string][]byte{"y": text(1)})
		if err != nil || !again.Again || again.Slot != first.Slot {
			t.Errorf("got %+v, %v; want slot %d again", again, err, first.Slot)
		}
	})
	// What landed and is not in the cache yet cannot be folded into an empty one.
	t.Run("commit, then update", func(t *testing.T) {
		e, p, _ := open(t)
		p.loseCache()
		p.put(map[string][]byte{"y": text(2)})
		want := map[string][]byte{"x": text(1), "big": packed(1), "y": text(2)}
		p.want(want)
		if _, err := p.Update(ctx); err != nil {
			t.Fatal(err)
		}
		p.want(want)
		if err := p.hold.Err(); err != nil {
			t.Errorf("the writer takes its own records for another's: %v", err)
		}
		p.put(map[string][]byte{"x": text(3)})
		e.open(nil).want(map[string][]byte{"x": text(3), "y": text(2)})
	})
	// The proof of rule R1 belongs to the slot after the newest, and to no other.
	t.Run("truncated log", func(t *testing.T) {
		e, p, _ := open(t)
		floor := e.truncate(p)
		p.put(map[string][]byte{"x": packed(7)})
		if err := p.overlay.flush(ctx); err != nil {
			t.Fatal(err)
		}
		b, err := p.Begin(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Put(ctx, "late", noReader{}, nil); err != nil {
			t.Fatal(err)
		}
		p.loseCache()
		down := p.faults.Add(faults.Rule{Ops: faults.Get, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
		if _, err := p.Update(ctx); err == nil {
			t.Fatal("catching up without the store succeeded")
		}
		if c, err := b.Commit(ctx, ""); err == nil && c.Slot <= floor {
			t.Errorf("acknowledged in slot %d, the floor is %d", c.Slot, floor)
		}
		down.Remove()
		if c, err := b.Commit(ctx, ""); err != nil || c.Slot <= floor {
			t.Fatalf("got %+v, %v", c, err)
		}
		for _, q := range []*proc{p, e.open(nil)} {
			q.want(map[string][]byte{"x": packed(7), "late": {}})
		}
	})
	t.Run("big record", func(t *testing.T) {
		_, p, _ := open(t)
		p.loseCache()
		rows := longPaths(600)
		p.put(rows)
		if err := os.RemoveAll(filepath.Join(p.dir, "staging")); err != nil {
			t.Fatal(err)
		}
		if got := p.paths(nil); len(got) != len(rows)+2 {
			t.Errorf("%d paths, want %d", len(got), len(rows)+2)
		}
	})
}

// longPaths makes contents whose changes do not fit into a record.
func longPaths(n int) map[string][]byte {
	m := make(map[string][]byte, n)
	for i := range n {
		m[fmt.Sprintf("%s/%04d", hex.EncodeToString(noise(uint64(i), 2000)), i)] = []byte{byte(i), byte(i >> 8)}
	}
	return m
}

type noReader struct{}

func (noReader) Read([]byte) (int, error) { return 0, io.EOF }
