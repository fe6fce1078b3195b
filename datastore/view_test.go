package datastore

import (
	"bytes"
	"context"
	"testing"
)

// A record that is accounted between the look at the overlay and the snapshot
// must not hide what came after it.
func TestAListIsOfOneState(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1), "y": text(1)})
	if err := p.overlay.flush(ctx); err != nil {
		t.Fatal(err)
	}
	unlock := p.lockCatalog()
	p.put(map[string][]byte{"x": text(2)})
	before := p.overlay.shown()
	if len(before) != 1 {
		t.Fatalf("%d records are pending, want 1", len(before))
	}
	unlock()
	p.put(map[string][]byte{"x": text(3), "y": text(3)})
	if err := p.overlay.flush(ctx); err != nil {
		t.Fatal(err)
	}
	// The overlay as it was at the first look.
	show := func(l []*landed) {
		p.overlay.mu.Lock()
		defer p.overlay.mu.Unlock()
		p.overlay.pending = l
	}
	show(before)
	defer show(nil)
	for v, err := range p.List(ctx, nil) {
		if err != nil || v.Slot != p.Head() {
			t.Errorf("%s of slot %d, want all of slot %d; %v", v.Path, v.Slot, p.Head(), err)
		}
	}
}

// Contents of a record that waits for accounting are shared like any others.
func TestContentsThatJustLandedAreStoredOnce(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"first": {}})
	if err := p.overlay.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	unlock := p.lockCatalog()
	want := map[string][]byte{"big": noise(1, 2<<20), "small": noise(2, 300<<10)}
	p.put(want)
	b, err := p.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range want {
		put, err := b.Put(t.Context(), path+"2", bytes.NewReader(data), nil)
		if err != nil || !put.Deduplicated {
			t.Errorf("%s: %+v, %v; want it shared", path, put, err)
		}
	}
	unlock()
	p.faults.Reset()
	if _, err := b.Commit(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if got := p.faults.Counts(); got.Requests() != 1 {
		t.Errorf("%v, want the record only", got)
	}
	p.want(map[string][]byte{"big2": want["big"], "small2": want["small"]})
}
