package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// takeLease makes the lease free, so that another process takes over at once:
// what matters here is what the log does, not how long a lease is respected.
func (e *env) takeLease() {
	e.t.Helper()
	if err := e.store.Bucket().Delete(context.Background(), []string{format.LeaseKey}); err != nil {
		e.t.Fatal(err)
	}
}

// craft puts a record into the next slot that p sees, as somebody else would.
func (e *env) craft(p *proc, edit func(*format.Record)) *format.Record {
	e.t.Helper()
	ctx := context.Background()
	if _, err := p.Update(ctx); err != nil {
		e.t.Fatal(err)
	}
	tip := p.follow.tip
	rec := &format.Record{Slot: tip.Head + 1, Kind: format.KindCommit, Fence: tip.Fence, Session: uuid.New(), Time: 1, Prev: tip.Hash}
	edit(rec)
	data, err := format.EncodeRecord(rec)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.store.Bucket().Create(ctx, format.SlotKey(rec.Slot), backend.Bytes(data)); err != nil {
		e.t.Fatal(err)
	}
	return rec
}

// own lands a record of the process that holds the lease, as retention will.
func (e *env) own(p *proc, edit func(*format.Record)) *format.Record {
	e.t.Helper()
	leave, err := p.enter(context.Background(), "the test")
	if err != nil {
		e.t.Fatal(err)
	}
	defer leave()
	tip := p.follow.tip
	rec := &format.Record{Slot: tip.Head + 1, Kind: format.KindCommit, Fence: p.hold.Fence(), Session: p.hold.Session(), Time: 1, Prev: tip.Hash}
	edit(rec)
	if ok, err := p.landRecord(context.Background(), p.hold, rec, nil, false); err != nil || !ok {
		e.t.Fatalf("landed %v, %v", ok, err)
	}
	return rec
}

// truncate does what log truncation does: two checkpoints, the floor on the
// older one, and, when retainSlot is over, the slots below it deleted.
func (e *env) truncate(p *proc) (floor uint64) {
	e.t.Helper()
	ctx := context.Background()
	for i := range 2 {
		if err := p.Checkpoint(ctx); err != nil {
			e.t.Fatal(err)
		}
		if i == 0 {
			p.put(map[string][]byte{"between the checkpoints": {}})
		}
	}
	data, info, err := getWhole(ctx, e.store.Bucket(), format.CheckpointKey, format.MaxControl)
	if err != nil {
		e.t.Fatal(err)
	}
	ck, err := format.DecodeCheckpoint(data)
	if err != nil {
		e.t.Fatal(err)
	}
	ck.Floor, ck.Beat = ck.Previous, uuid.New()
	if data, err = format.EncodeCheckpoint(ck); err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.store.Bucket().Replace(ctx, format.CheckpointKey, backend.Bytes(data), info.Version); err != nil {
		e.t.Fatal(err)
	}
	e.clock.advance(retainSlot + time.Minute)
	var keys []string
	for n := uint64(1); n <= ck.Floor; n++ {
		keys = append(keys, format.SlotKey(n))
	}
	if err := e.store.Bucket().Delete(ctx, keys); err != nil {
		e.t.Fatal(err)
	}
	return ck.Floor
}

type result struct {
	c   *Commit
	err error
}

func (p *proc) putLater(id uuid.UUID, contents map[string][]byte) chan result {
	ch := make(chan result, 1)
	go func() {
		c, err := p.tryPut(id, contents)
		ch <- result{c, err}
	}()
	return ch
}

// packed makes a content that does not travel inline, so that it outlives its
// record (repack records, R6, are retention's work).
func packed(n uint64) []byte { return noise(n, format.MaxInline+1) }

// Rule R1: a writer that was stopped wakes up and creates a slot that was truncated
// meanwhile.
func TestACommitUnderATruncatedFloorIsNeverAcknowledged(t *testing.T) {
	for _, noDate := range []bool{false, true} {
		t.Run(fmt.Sprintf("noDate=%v", noDate), func(t *testing.T) {
			e := newEnv(t, &memory.Options{NoDate: noDate})
			a, b := e.open(nil), e.open(nil)
			a.put(map[string][]byte{"x": packed(1)})
			stall := a.faults.Add(faults.Rule{Ops: faults.Create, Prefix: "commits/", Do: faults.Block()})
			stalled := a.putLater(uuid.Nil, map[string][]byte{"x": packed(2)})
			<-stall.Reached()

			e.takeLease()
			b.put(map[string][]byte{"x": packed(3)})
			b.put(map[string][]byte{"y": packed(4)})
			e.truncate(b)
			if err := stall.Release(); err != nil {
				t.Fatal(err)
			}
			r := <-stalled
			if !errors.Is(r.err, ErrFenced) {
				t.Errorf("the stalled writer was told %+v, %v; want ErrFenced", r.c, r.err)
			}
			for _, p := range []*proc{a, b, e.open(nil)} {
				if _, err := p.Update(context.Background()); err != nil {
					t.Fatal(err)
				}
				p.want(map[string][]byte{"x": packed(3), "y": packed(4)})
			}
		})
	}
}

// Rule R1: without contention and inside K/2 nothing is read; beyond, the floor.
func TestTheFloorIsReadOnlyWhenTheProofIsOld(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1)})
	for _, step := range []struct {
		pass time.Duration
		want int
	}{{time.Minute, 1}, {retainSlot/2 - time.Second, 1}, {retainSlot / 2, 2}, {0, 1}} {
		e.clock.advance(step.pass)
		p.faults.Reset()
		p.put(map[string][]byte{"x": text(2)})
		if got := p.faults.Counts().Requests(); got != step.want {
			t.Errorf("after %v: %v, want %d requests", step.pass, p.faults.Counts(), step.want)
		}
	}
}

// Rule R2: a record that somebody made in a truncated slot is not read.
func TestALeftoverInATruncatedSlotIsNotRead(t *testing.T) {
	e := newEnv(t, nil)
	a, reader := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": packed(1)})
	if _, err := reader.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	// What a stalled writer would have put after slot 2.
	tip := reader.follow.tip
	a.put(map[string][]byte{"x": packed(2)})
	a.put(map[string][]byte{"y": packed(3)})
	e.truncate(a)
	data, err := format.EncodeRecord(&format.Record{Slot: tip.Head + 1, Kind: format.KindCommit, Fence: tip.Fence, Session: tip.Session, Prev: tip.Hash,
		Entries: []format.Entry{{ID: uuid.New(), Block: format.Block{Changes: []format.Change{{Op: format.OpPut, Path: "x", SHA256: sha256.Sum256(nil), Place: format.Place{Object: format.Inline}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Bucket().Create(context.Background(), format.SlotKey(tip.Head+1), backend.Bytes(data)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*proc{reader, e.open(nil)} {
		if _, err := p.Update(context.Background()); err != nil {
			t.Fatal(err)
		}
		p.want(map[string][]byte{"x": packed(2), "y": packed(3)})
	}
}

// Rule R2: the answers of a round that lie far apart prove nothing together.
func TestNoNewsIsConcludedOnlyFromAnswersThatBelongTogether(t *testing.T) {
	for _, noDate := range []bool{false, true} {
		t.Run(fmt.Sprintf("noDate=%v", noDate), func(t *testing.T) {
			e := newEnv(t, &memory.Options{NoDate: noDate})
			a, reader := e.open(nil), e.open(nil)
			a.put(map[string][]byte{"x": packed(1)})
			if _, err := reader.Update(context.Background()); err != nil {
				t.Fatal(err)
			}
			late := reader.faults.Add(faults.Rule{Ops: faults.Get, Prefix: "commits/", Do: faults.Block()})
			ckRead := reader.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CheckpointKey, Do: faults.BlockAnswer()})
			type news struct {
				head uint64
				err  error
			}
			done := make(chan news, 1)
			go func() {
				head, err := reader.Update(context.Background())
				done <- news{head, err}
			}()
			<-ckRead.Reached() // the floor as it was, and its answer under way
			<-late.Reached()
			a.put(map[string][]byte{"x": packed(2)})
			e.truncate(a)
			if err := errors.Join(late.Release(), ckRead.Release()); err != nil {
				t.Fatal(err)
			}
			n := <-done
			if n.err != nil || n.head != a.Head() {
				t.Errorf("the reader ends at %d, %v; want %d", n.head, n.err, a.Head())
			}
			reader.want(map[string][]byte{"x": packed(2)})
		})
	}
}

// Rule R2: before a record is called damaged, the floor is read once more.
func TestARecordThatCannotBeUsedIsNoDamageBelowTheFloor(t *testing.T) {
	e := newEnv(t, nil)
	a, reader := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": packed(1)})
	if _, err := reader.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.put(map[string][]byte{"x": packed(2)})
	reader.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.SlotKey(a.Head()), Do: faults.Flip(100)})
	again := reader.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CheckpointKey, Nth: 2, Do: faults.Block()})
	done := make(chan error, 1)
	go func() {
		_, err := reader.Update(context.Background())
		done <- err
	}()
	<-again.Reached()
	e.truncate(a)
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	reader.want(map[string][]byte{"x": packed(2)})
}

func TestAWriterThatWasReplacedIsFencedAndNothingOfItLands(t *testing.T) {
	e := newEnv(t, nil)
	a, b := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	batch, err := a.Begin(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := batch.Put(context.Background(), "x", bytes.NewReader(text(2)), nil); err != nil {
		t.Fatal(err)
	}
	e.takeLease()
	b.put(map[string][]byte{"y": text(3)})
	if _, err := batch.Commit(context.Background(), ""); !errors.Is(err, ErrFenced) {
		t.Fatalf("got %v, want ErrFenced", err)
	}
	// A new session is a new writer with a higher fence, and fences b.
	e.takeLease()
	a.put(map[string][]byte{"x": text(4)})
	if _, err := b.tryPut(uuid.Nil, map[string][]byte{"y": text(5)}); err == nil {
		// b waits for the lease or is fenced; with the lease taken it must not
		// have committed under the old hold.
		t.Errorf("the replaced writer committed")
	}
	a.want(map[string][]byte{"x": text(4), "y": text(3)})
}

// Rule R8: two sessions that both believe to hold one fence.
func TestEqualFenceOfAnotherSessionFences(t *testing.T) {
	e := newEnv(t, nil)
	a, other := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	e.craft(other, func(r *format.Record) { r.Kind = format.KindFence })
	if _, err := a.tryPut(uuid.Nil, map[string][]byte{"x": text(2)}); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
}

// Rule R9.
func TestARecordOfThisSessionThatItDidNotSendFences(t *testing.T) {
	e := newEnv(t, nil)
	a, other := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	e.craft(other, func(r *format.Record) {
		r.Session = a.hold.Session()
		r.Entries = []format.Entry{{ID: uuid.New(), Block: format.Block{Changes: []format.Change{{Op: format.OpPut, Path: "z", SHA256: sha256.Sum256(nil), Place: format.Place{Object: format.Inline}}}}}}
	})
	if _, err := a.tryPut(uuid.Nil, map[string][]byte{"x": text(2)}); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
}

// Rule R11.
func TestConflictOnAnyPathChangedSinceTheBase(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	a := e.open(nil)
	base := a.put(map[string][]byte{"x": text(1), "y": text(1)}).Slot
	a.put(map[string][]byte{"x": text(2)})
	for path, want := range map[string]error{"x": ErrConflict, "y": nil, "z": nil} {
		b, err := a.Begin(ctx, &BatchOptions{Base: base})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Put(ctx, path, bytes.NewReader(text(3)), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Commit(ctx, ""); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	a.want(map[string][]byte{"x": text(2), "y": text(3), "z": text(3)})
}

// Rule R3.
func TestAnIDLandsOnce(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	id := newID()
	one := map[string][]byte{"x": text(1)}
	first, err := a.tryPut(id, one)
	if err != nil || first.Again {
		t.Fatalf("%+v, %v", first, err)
	}
	a.put(map[string][]byte{"x": text(9)})
	for _, p := range []*proc{a, e.open(nil)} {
		again, err := p.tryPut(id, one)
		if err != nil || !again.Again || again.Slot != first.Slot {
			t.Errorf("the same again: %+v, %v; want slot %d and Again", again, err, first.Slot)
		}
		if _, err := p.tryPut(id, map[string][]byte{"x": text(2)}); !errors.Is(err, ErrIDReused) {
			t.Errorf("other changes under the same id: %v", err)
		}
		p.want(map[string][]byte{"x": text(9)})
		c, err := p.Outcome(context.Background(), id)
		if err != nil || c.Slot != first.Slot {
			t.Errorf("outcome: %+v, %v", c, err)
		}
		if err := p.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Outcome(context.Background(), newID()); !errors.Is(err, ErrNotFound) {
		t.Errorf("outcome of nothing: %v", err)
	}
}
