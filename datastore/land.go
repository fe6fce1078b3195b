package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// This file is the one place that decides a record: rules R1 and R9 and
// invariants I3 and I4 of design/invariants.md.

// verdict is what became of a create in the log.
type verdict int

const (
	// mine: the slot holds exactly the bytes that were sent, and counts.
	mine verdict = iota
	// other: the slot holds another record.
	other
	// truncated: the floor has passed the slot, so it decides nothing (R1).
	truncated
)

// sent is one record on its way into a slot. The same bytes go to the same key
// until it is decided; no other slot is tried before (I4).
type sent struct {
	slot uint64
	data []byte
	hash format.Hash
	// ids are the entries in it.
	ids []uuid.UUID
	// begun: a request may have reached the store.
	begun bool
	// proof is the proof that the follower had when the record was made.
	proof time.Time
	// decided tells the hold what became of it: landed in its slot or not. Until
	// then it counts as in flight.
	decided func(landed bool)
}

func newSent(rec *format.Record, data []byte, proof time.Time) *sent {
	r := &sent{slot: rec.Slot, data: data, hash: sha256.Sum256(data), proof: proof}
	for i := range rec.Entries {
		r.ids = append(r.ids, rec.Entries[i].ID)
	}
	return r
}

// decide creates the record in its slot and finds out what became of it,
// whatever answers are lost. With always, the floor is read after a success too
// (barriers, R2). The time of its own direct success is returned as the next
// proof; a read-back never refreshes the proof.
//
// An error means not decided: it wraps ErrUnconfirmed if a request may have
// reached the store, and then decide must be called again with the same sent.
func (s *Store) decide(ctx context.Context, r *sent, always bool) (verdict, time.Time, error) {
	key := format.SlotKey(r.slot)
	body := bytesBody(r.data, r.hash)
	var last error
	for attempt := 0; ; attempt++ {
		if attempt > 0 {
			if err := pause(ctx, attempt); err != nil {
				return 0, time.Time{}, undecided(r, last)
			}
		}
		again := r.begun
		info, err := s.create(ctx, key, body)
		if err == nil || mayHaveLanded(err) {
			r.begun = true
		}
		switch {
		case err == nil:
			// A direct success, though perhaps not of the first attempt: only a
			// first one may refresh the proof, since an earlier request of ours
			// could have made the record that was truncated since.
			v, err := s.counts(ctx, r, info.Date, always || again)
			if err != nil {
				last = err
				continue
			}
			if again {
				info.Date = r.proof
			}
			return v, info.Date, nil
		case !mayHaveLanded(err) && !again:
			return 0, time.Time{}, err
		}
		last = err
		v, err := s.readBack(ctx, r, always)
		if err == nil {
			return v, r.proof, nil
		}
		if !errors.Is(err, errStillEmpty) {
			last = err
		}
	}
}

// mayHaveLanded says whether the slot must be read after err: the request may
// have been carried out, or somebody's was.
func mayHaveLanded(err error) bool {
	return errors.Is(err, backend.ErrExists) || errors.Is(err, backend.ErrUnknown) ||
		errors.Is(err, backend.ErrConflict) || errors.Is(err, backend.ErrBusy) ||
		errors.Is(err, context.DeadlineExceeded)
}

var errStillEmpty = errors.New("the slot is still empty")

// readBack looks at the slot after an answer that did not decide. Nothing there
// and the floor below: errStillEmpty, to be sent again.
func (s *Store) readBack(ctx context.Context, r *sent, always bool) (verdict, error) {
	gctx, cancel := bounded(ctx, "reading back "+format.SlotKey(r.slot), int64(len(r.data)))
	data, info, err := getWhole(gctx, s.bucket, format.SlotKey(r.slot), format.MaxRecord)
	err = named(gctx, err)
	cancel()
	switch {
	case err == nil && bytes.Equal(data, r.data):
		return s.counts(ctx, r, info.Date, true)
	case err == nil:
		return other, nil
	case errors.Is(err, backend.ErrNotFound):
		passed, err := s.floorPassed(ctx, r.slot)
		if err != nil {
			return 0, err
		}
		if passed {
			return truncated, nil
		}
		return 0, errStillEmpty
	default:
		return 0, err
	}
}

// counts applies rule R1 to a success: it counts if the store's clock moved less
// than K/2 since the proof; otherwise, and always without a Date, if the floor
// is still below the slot.
func (s *Store) counts(ctx context.Context, r *sent, date time.Time, always bool) (verdict, error) {
	if !always && !date.IsZero() && !r.proof.IsZero() && date.Sub(r.proof) < retainSlot/2 {
		return mine, nil
	}
	passed, err := s.floorPassed(ctx, r.slot)
	if err != nil {
		return 0, err
	}
	if passed {
		return truncated, nil
	}
	return mine, nil
}

// floorPassed reads the floor.
func (s *Store) floorPassed(ctx context.Context, slot uint64) (bool, error) {
	ctx, cancel := bounded(ctx, "the log floor", 0)
	defer cancel()
	if _, err := s.follow.readCheckpoint(ctx); err != nil {
		return false, named(ctx, err)
	}
	return s.follow.ck.Floor >= slot, nil
}

func (s *Store) create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	cctx, cancel := bounded(ctx, "the create of "+key, body.Size)
	defer cancel()
	info, err := s.bucket.Create(cctx, key, body)
	return info, named(cctx, err)
}

// undecided is the error of a record whose fate is not known when time is up.
func undecided(r *sent, last error) error {
	if !r.begun {
		return fmt.Errorf("record %s was not sent: %w", format.SlotKey(r.slot), last)
	}
	return fmt.Errorf("%w: no clear answer about %s in time (%w)", ErrUnconfirmed, format.SlotKey(r.slot), last)
}

// pause waits before another attempt: exponential with full jitter, 5 ms to 2 s.
func pause(ctx context.Context, attempt int) error {
	limit := min(5*time.Millisecond<<min(attempt, 10), 2*time.Second)
	t := time.NewTimer(rand.N(limit) + time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
