package datastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/faults"
)

// Invariant I4, rule R9: the record is recognised as this session's own, which
// goes on as before.
func TestALostAnswerIsResolvedByReadingBack(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	hold := a.hold
	a.faults.Reset()
	a.faults.Add(faults.Rule{Ops: faults.Create, Prefix: "commits/", Do: faults.Lose()})
	first := a.put(map[string][]byte{"x": text(2)})
	if got := a.faults.Counts(); got.Requests() != 3 {
		t.Errorf("%v; want the create, the read-back and the floor", got)
	}
	second := a.put(map[string][]byte{"x": text(3)})
	if second.Slot != first.Slot+1 || a.hold != hold || hold.Err() != nil {
		t.Errorf("the next commit is in slot %d after %d, the hold says %v", second.Slot, first.Slot, hold.Err())
	}
	a.want(map[string][]byte{"x": text(3)})
}

// Invariants I1, I4: whatever answer is lost or refused, at whatever call, an
// acknowledged commit is there, one that failed is not, and one that is not
// confirmed is there once after it was asked for again.
func TestEveryFaultAtEveryCall(t *testing.T) {
	contents := map[string][]byte{"small": text(100), "pack": noise(1, 300<<10), "large": noise(2, 1<<20+5)}
	for name, do := range faults.Usual() {
		for _, ops := range []faults.Op{faults.Get, faults.Writes} {
			t.Run(fmt.Sprintf("%s/%v", name, ops), func(t *testing.T) {
				faults.Sweep(t, func(t *testing.T, n int) bool { return oneFault(t, n, ops, do, contents) })
			})
		}
	}
}

func oneFault(t *testing.T, n int, ops faults.Op, do faults.Action, contents map[string][]byte) bool {
	e := newEnv(t, nil)
	state := t.TempDir()
	f := faults.Wrap(e.store.Open())
	fault := f.Add(faults.Rule{Ops: ops, Nth: n, Do: do})
	id := newID()
	first, err := runOnce(t, f, state, id, contents)
	f.Clear()
	p := e.open(nil)
	landed, oerr := p.Outcome(context.Background(), id)
	switch {
	case err == nil:
		if oerr != nil || landed.Slot != first.Slot {
			t.Fatalf("acknowledged in slot %d, but %+v, %v", first.Slot, landed, oerr)
		}
	case errors.Is(err, ErrUnconfirmed):
	default:
		if !errors.Is(oerr, ErrNotFound) {
			t.Fatalf("told %v, but it is in the log: %+v, %v", err, landed, oerr)
		}
	}
	e.takeLease() // a crashed process's lease would be waited for
	again, err := p.tryPut(id, contents)
	if err != nil {
		t.Fatalf("asked for again: %v", err)
	}
	if landed != nil && (!again.Again || again.Slot != landed.Slot) {
		t.Fatalf("it landed in slot %d, and again: %+v", landed.Slot, again)
	}
	p.want(contents)
	return fault.Fired() > 0
}

func runOnce(t *testing.T, f *faults.Driver, state string, id uuid.UUID, contents map[string][]byte) (*Commit, error) {
	opts := (&Options{StateDir: state, LandingTimeout: time.Second}).withDefaults()
	s, err := openBucket(context.Background(), f.Bucket(), opts)
	if err != nil {
		return nil, err
	}
	p := &proc{Store: s, t: t, faults: f}
	c, err := p.tryPut(id, maps.Clone(contents))
	if cerr := s.Close(); cerr != nil {
		t.Logf("close: %v", cerr)
	}
	return c, err
}
