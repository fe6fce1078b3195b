package datastore

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// unconfirmed makes a commit of x whose record is in the store and whose answer
// is not known.
// impatient makes landings give up soon, until the func that it returns is called:
// what is to succeed has all the time that a busy machine takes.
func (p *proc) impatient() func() {
	was := p.opts.LandingTimeout
	p.opts.LandingTimeout = 200 * time.Millisecond
	return func() { p.opts.LandingTimeout = was }
}

func (e *env) unconfirmed(p *proc, data []byte) *Batch {
	e.t.Helper()
	ctx := context.Background()
	b, err := p.Begin(ctx, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := b.Put(ctx, "x", bytes.NewReader(data), nil); err != nil {
		e.t.Fatal(err)
	}
	p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Lose()})
	deaf := p.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
	patient := p.impatient()
	if _, err := b.Commit(ctx, ""); !errors.Is(err, ErrUnconfirmed) {
		e.t.Fatalf("got %v, want ErrUnconfirmed", err)
	}
	patient()
	deaf.Remove()
	return b
}

// Rule R4: ErrFenced says that nothing landed. A commit that is not confirmed
// may have, also when its writer has lost the lease since.
func TestAnUnconfirmedCommitIsLookedForBeforeItIsCalledFenced(t *testing.T) {
	for _, landed := range []bool{true, false} {
		e := newEnv(t, nil)
		p := e.open(nil)
		b := e.unconfirmed(p, text(1))
		if !landed {
			if err := e.store.Bucket().Delete(t.Context(), []string{format.SlotKey(p.Head() + 1)}); err != nil {
				t.Fatal(err)
			}
			other := e.open(nil)
			e.takeLease()
			other.put(map[string][]byte{"y": text(2)})
		}
		if err := p.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := b.Commit(t.Context(), "")
		if landed && (err != nil || !c.Again) {
			t.Errorf("it had landed: got %+v, %v", c, err)
		}
		if !landed && !errors.Is(err, ErrFenced) {
			t.Errorf("it had not landed: got %+v, %v; want ErrFenced", c, err)
		}
	}
}

// Rule R4: an entry of an earlier process is looked for up to the barrier that
// fenced this one.
func TestALostLeaseIsReportedOnlyAfterTheLogWasRead(t *testing.T) {
	e := newEnv(t, nil)
	a, b := e.open(nil), e.open(nil)
	id := newID()
	batch, err := a.Begin(t.Context(), &BatchOptions{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := batch.Put(t.Context(), "x", bytes.NewReader(text(1)), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := b.Begin(t.Context(), &BatchOptions{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Put(t.Context(), "x", bytes.NewReader(text(1)), nil); err != nil {
		t.Fatal(err)
	}
	first, err := got.Commit(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := batch.Commit(t.Context(), "")
	if err != nil || !c.Again || c.Slot != first.Slot {
		t.Errorf("got %+v, %v; want slot %d again", c, err, first.Slot)
	}
}

// A record that turned out to have landed stays landed when the log cannot be
// read right after.
func TestADecidedRecordSurvivesAFailureToCatchUp(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	b := e.unconfirmed(p, text(1))
	slot := p.Head() + 1
	// Reading back succeeds (the 1st read of the slot), catching up does not.
	p.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.SlotKey(slot), Nth: 2, Do: faults.Fail(backend.ErrDenied)})
	if c, err := b.Commit(t.Context(), ""); !errors.Is(err, ErrUnconfirmed) {
		t.Fatalf("it is in the log and that is not known yet: got %+v, %v, want ErrUnconfirmed", c, err)
	}
	c, err := b.Commit(t.Context(), "")
	if err != nil || !c.Again || c.Slot != slot {
		t.Fatalf("got %+v, %v; want slot %d again", c, err, slot)
	}
	if err := p.hold.Err(); err != nil {
		t.Errorf("the writer takes its own record for another's: %v", err)
	}
	p.put(map[string][]byte{"y": text(2)})
}

// While this process may still send a record, its fate is not "not there".
func TestOutcomeDecidesARecordThatIsStillOpen(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	b, err := p.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "x", bytes.NewReader(text(1)), nil); err != nil {
		t.Fatal(err)
	}
	late := p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Late()})
	busy := p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrBusy)})
	patient := p.impatient()
	if _, err := b.Commit(t.Context(), ""); !errors.Is(err, ErrUnconfirmed) {
		t.Fatalf("got %v, want ErrUnconfirmed", err)
	}
	if c, err := p.Outcome(t.Context(), b.ID()); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the record is on its way: got %+v, %v; want ErrUnconfirmed", c, err)
	}
	patient()
	if err := late.Release(); err != nil {
		t.Fatal(err)
	}
	busy.Remove()
	if c, err := p.Outcome(t.Context(), b.ID()); err != nil || c.Slot != p.Head() {
		t.Errorf("got %+v, %v", c, err)
	}
	p.want(map[string][]byte{"x": text(1)})
}

// Begin waits for a barrier no longer than for any other record.
func TestABarrierWithoutAnAnswerEndsInBusy(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(&Options{LandingTimeout: 200 * time.Millisecond})
	p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Lose()})
	p.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CommitPrefix, Nth: 2, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := p.Begin(ctx, nil)
	if !errors.Is(err, ErrBusy) || ctx.Err() != nil {
		t.Fatalf("got %v (context: %v), want ErrBusy within the landing timeout", err, ctx.Err())
	}
	p.faults.Clear()
	if _, err := p.tryPut(uuid.Nil, map[string][]byte{"x": text(1)}); err != nil {
		t.Error(err)
	}
}

// A rerun under the same id leaves out what it finds unchanged, which may be all.
func TestAnIDThatLandedIsKnownWhenNothingIsLeftToCommit(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	id := newID()
	for i, id := range []uuid.UUID{id, id, uuid.Nil} {
		b, err := p.Begin(t.Context(), &BatchOptions{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Put(t.Context(), "x", bytes.NewReader(text(1)), &PutOptions{SkipUnchanged: true}); err != nil {
			t.Fatal(err)
		}
		c, err := b.Commit(t.Context(), "")
		if i < 2 && (err != nil || c.Again != (i == 1)) {
			t.Errorf("run %d: %+v, %v", i, c, err)
		}
		if i == 2 && !errors.Is(err, ErrEmpty) {
			t.Errorf("another id: %+v, %v; want ErrEmpty", c, err)
		}
	}
}

// A record whose fate is open, then others, then a truncation: it is found in
// the checkpoint if it landed, and counts for nothing if it comes too late.
func TestAnOpenRecordUnderATruncatedFloor(t *testing.T) {
	for _, landed := range []bool{true, false} {
		e := newEnv(t, nil)
		a, b := e.open(nil), e.open(nil)
		var late *faults.Fault
		var batch *Batch
		if landed {
			batch = e.unconfirmed(a, packed(1))
		} else {
			var err error
			if batch, err = a.Begin(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := batch.Put(t.Context(), "x", bytes.NewReader(packed(1)), nil); err != nil {
				t.Fatal(err)
			}
			late = a.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Late()})
			deaf := a.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
			busy := a.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrBusy)})
			patient := a.impatient()
			if _, err := batch.Commit(t.Context(), ""); !errors.Is(err, ErrUnconfirmed) {
				t.Fatalf("got %v, want ErrUnconfirmed", err)
			}
			patient()
			deaf.Remove()
			busy.Remove()
		}
		e.takeLease()
		b.put(map[string][]byte{"x": packed(2)})
		e.truncate(b)
		if late != nil {
			if err := late.Release(); err != nil { // into the truncated slot
				t.Fatal(err)
			}
		}
		c, err := batch.Commit(t.Context(), "")
		if landed && (err != nil || !c.Again) || !landed && !errors.Is(err, ErrFenced) {
			t.Errorf("landed %v: got %+v, %v", landed, c, err)
		}
		for _, p := range []*proc{a, b, e.open(nil)} {
			if _, err := p.Update(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.want(map[string][]byte{"x": packed(2)})
		}
	}
}
