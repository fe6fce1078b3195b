package datastore

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// Commits that land between the reading of the log and that of the checkpoint
// are no damage.
func TestVerifyWhileOthersCommit(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	a, v := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	if err := a.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	a.put(map[string][]byte{"x": text(2)})
	next := a.Head() + 1
	first := v.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.SlotKey(next), Nth: 2, Do: faults.Block()})
	second := v.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.SlotKey(next + 1), Nth: 3, Do: faults.Block()})
	done := make(chan error, 1)
	go func() {
		r, err := v.Verify(ctx, nil)
		if err == nil && !r.OK() {
			err = fmt.Errorf("findings: %+v", r.Findings)
		}
		done <- err
	}()
	release := func(f *faults.Fault, n int) bool {
		select {
		case <-f.Reached():
		case err := <-done:
			done <- err
			return false
		}
		a.put(map[string][]byte{"x": text(n)})
		if err := f.Release(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	_ = release(first, 3) && release(second, 4)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Objects that cost space hide no damage, and are none.
func TestManyOrphansNeitherHideDamageNorAreDamage(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	e.damaged = true
	p := e.open(nil)
	p.put(map[string][]byte{"x": packed(1)})
	v, err := p.Stat(ctx, "x", Newest)
	if err != nil {
		t.Fatal(err)
	}
	for range maxFindings + 10 {
		if _, err := e.store.Bucket().Create(ctx, format.DataKey(0, uuid.New()), backend.Bytes([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	r, err := p.Verify(ctx, nil)
	if err != nil || !r.OK() || len(r.Findings) != maxFindings || r.More != 10 {
		t.Errorf("orphans only: %d findings and %d more, OK %v, %v", len(r.Findings), r.More, r.OK(), err)
	}
	if err := e.store.Bucket().Delete(ctx, []string{v.place.Object.Name}); err != nil {
		t.Fatal(err)
	}
	r, err = p.Verify(ctx, nil)
	if err != nil || r.OK() {
		t.Fatalf("an object is missing: OK %v, %v", r.OK(), err)
	}
	for _, f := range r.Findings {
		if f.Key == v.place.Object.Name {
			return
		}
	}
	t.Errorf("the missing object is not named in %d findings", len(r.Findings))
}
