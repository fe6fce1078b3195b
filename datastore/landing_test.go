package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// Rule R3: where ids may have been forgotten, a commit with an older base does
// not land, since it may have before.
func TestACommitWithABaseBelowTheHorizonIsRefused(t *testing.T) {
	ctx := t.Context()
	e := newEnv(t, nil)
	p := e.open(nil)
	id := newID()
	first, err := p.tryPut(id, map[string][]byte{"x": packed(1)})
	if err != nil {
		t.Fatal(err)
	}
	p.put(map[string][]byte{"y": packed(2)})
	p.put(map[string][]byte{"y": packed(3)})
	if err := p.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	w := e.readCheckpoint()
	w.record.Horizon = first.Slot + 1
	w.root.Horizon = w.record.Horizon
	log := w.table(format.TableLog)
	log.Log = log.Log[w.record.Horizon:]
	e.writeCheckpoint(w)
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	q := e.open(nil)
	for _, c := range []struct {
		id   uuid.UUID
		base uint64
		want error
	}{{id, first.Slot - 1, ErrConflict}, {id, first.Slot, ErrConflict}, {newID(), first.Slot + 1, nil}} {
		b, err := q.Begin(ctx, &BatchOptions{ID: c.id, Base: c.base})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Put(ctx, "x", bytes.NewReader(packed(1)), nil); err != nil {
			t.Fatal(err)
		}
		got, err := b.Commit(ctx, "put 1")
		if !errors.Is(err, c.want) {
			t.Errorf("base %d, horizon %d: got %+v, %v; want %v", c.base, w.record.Horizon, got, err, c.want)
		}
		if err := b.Discard(); err != nil {
			t.Error(err)
		}
	}
}

// A caller that gives up while its record is on the way is told what became of
// it if that is known soon, and else that it is not confirmed.
func TestACallerThatGivesUpIsToldWhatBecameOfItsCommit(t *testing.T) {
	for name, answered := range map[string]bool{"answered": true, "not answered": false} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			p := e.open(nil)
			if !answered {
				p.opts.LandingTimeout = 200 * time.Millisecond
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b, err := p.Begin(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Put(ctx, "x", bytes.NewReader(text(1)), nil); err != nil {
				t.Fatal(err)
			}
			do := faults.Block()
			if !answered {
				do = faults.BlockAnswer() // it is done, and nobody says so
			}
			create := p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: do})
			silent := p.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
			done := make(chan result, 1)
			go func() {
				c, err := b.Commit(ctx, "")
				done <- result{c, err}
			}()
			<-create.Reached()
			cancel()
			if answered {
				if err := create.Release(); err != nil {
					t.Fatal(err)
				}
			}
			r := <-done
			if answered && (r.err != nil || r.c.Slot != p.Head()) || !answered && !errors.Is(r.err, ErrUnconfirmed) {
				t.Fatalf("got %+v, %v", r.c, r.err)
			}
			silent.Remove()
			p.faults.Clear()
			c, err := p.Outcome(t.Context(), b.ID())
			if err != nil || c.Slot != p.Head() {
				t.Errorf("the outcome is %+v, %v; head %d", c, err, p.Head())
			}
			p.want(map[string][]byte{"x": text(1)})
		})
	}
}

// R1, R4: a record that came into a truncated slot decides nothing; while the log
// beyond cannot be read, nobody knows whether the entry is in it.
func TestATruncatedSlotIsUnconfirmedUntilTheLogIsRead(t *testing.T) {
	e := newEnv(t, nil)
	a, b := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": packed(1)})
	batch, err := a.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := batch.Put(t.Context(), "x", bytes.NewReader(packed(2)), nil); err != nil {
		t.Fatal(err)
	}
	stall := a.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Block()})
	done := make(chan result, 1)
	go func() {
		c, err := batch.Commit(t.Context(), "")
		done <- result{c, err}
	}()
	<-stall.Reached()
	e.takeLease()
	b.put(map[string][]byte{"x": packed(3)})
	b.put(map[string][]byte{"y": packed(4)})
	e.truncate(b)
	down := a.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
	if err := stall.Release(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; !errors.Is(r.err, ErrUnconfirmed) {
		t.Errorf("while the log cannot be read: got %+v, %v; want ErrUnconfirmed", r.c, r.err)
	}
	down.Remove()
	if c, err := batch.Commit(t.Context(), ""); !errors.Is(err, ErrFenced) {
		t.Errorf("got %+v, %v; want ErrFenced", c, err)
	}
	a.want(map[string][]byte{"x": packed(3), "y": packed(4)})
}

// A catalog that another process has led along another log is made anew.
func TestACatalogOfAnotherLogIsMadeAnewWhileItIsOpen(t *testing.T) {
	ctx := t.Context()
	e := newEnv(t, nil)
	a, reader := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	if _, err := reader.Update(ctx); err != nil {
		t.Fatal(err)
	}
	tip := reader.follow.tip
	a.put(map[string][]byte{"x": text(2)})
	hold := reader.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.SlotKey(tip.Head + 1), Do: faults.Block()})
	done := make(chan error, 1)
	go func() {
		_, err := reader.Update(ctx)
		done <- err
	}()
	select {
	case <-hold.Reached():
	case err := <-done:
		t.Fatalf("it ends before it reads: %v", err)
	}
	other := &format.Record{Slot: tip.Head + 1, Kind: format.KindCommit, Fence: tip.Fence, Session: tip.Session, Prev: tip.Hash, Time: 1,
		Entries: []format.Entry{{ID: uuid.New(), Block: format.Block{Changes: []format.Change{{
			Op: format.OpPut, Path: "wrong", SHA256: sha256.Sum256(nil), Place: format.Place{Object: format.Inline}}}}}}}
	err := reader.cat.Update(ctx, func(tx *catalog.Tx) error { return tx.Fold(ctx, other, format.Hash{1}, 100, nil) })
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	reader.want(map[string][]byte{"x": text(2), "wrong": nil})
	if reader.Head() != a.Head() || reader.follow.tip.Hash != a.follow.tip.Hash {
		t.Errorf("the reader is at %d, %x; want %d, %x", reader.Head(), reader.follow.tip.Hash[:4], a.Head(), a.follow.tip.Hash[:4])
	}
}

func TestLogOptionsNarrowTheLog(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	for i := range 4 {
		p.put(map[string][]byte{"x": text(i + 1)}) // slots 2 to 5; 1 is the barrier
	}
	for _, c := range []struct {
		o    *LogOptions
		want []uint64
	}{
		{nil, []uint64{5, 4, 3, 2}},
		{&LogOptions{OldestFirst: true}, []uint64{2, 3, 4, 5}},
		{&LogOptions{All: true}, []uint64{5, 4, 3, 2, 1}},
		{&LogOptions{From: 3}, []uint64{5, 4, 3}},
		{&LogOptions{From: 1, All: true, OldestFirst: true}, []uint64{1, 2, 3, 4, 5}},
		{&LogOptions{To: 3}, []uint64{3, 2}},
		{&LogOptions{From: 3, To: 4}, []uint64{4, 3}},
		{&LogOptions{From: 3, To: 4, OldestFirst: true}, []uint64{3, 4}},
		{&LogOptions{From: 4, To: 4}, []uint64{4}},
		{&LogOptions{From: 5, To: 9}, []uint64{5}},
		{&LogOptions{From: 6}, nil},
		{&LogOptions{From: 4, To: 3}, nil},
		{&LogOptions{To: Newest}, []uint64{5, 4, 3, 2}},
	} {
		var got []uint64
		for l, err := range p.Log(t.Context(), c.o) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, l.Slot)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", fmt.Sprintf("%+v", c.o), got, c.want)
		}
	}
}
