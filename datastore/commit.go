package datastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// prepared is one entry that is ready to land: its contents are in the store or
// travel inline, its changes are encoded but for what depends on the slot.
type prepared struct {
	id      uuid.UUID
	digest  format.Hash
	message string
	time    time.Time
	base    uint64
	changes uint64

	// Either block and contents (all in the record) or lists.
	block     format.Block
	contents  []byte
	lists     []format.ListRef
	listFiles *listFiles

	// objects are all data objects that the entry names, lists included.
	objects []format.Object
	// conflict returns the first path of the entry that somebody else changed
	// after slot base (R11).
	conflict func(ctx context.Context, base uint64) error
	// restage gives new names to the contents whose names died (R5) and
	// prepares the entry anew.
	restage func(ctx context.Context, dead map[string]bool) error
}

// graceAfterCancel is how long a create that is in flight may still be resolved
// after its caller gave up.
const graceAfterCancel = 5 * time.Second

// land brings p into the log as the holder of hold. Exactly one of: it landed
// (now, or before: again), or it is known not to have landed (ErrFenced,
// ErrConflict, …), or ErrUnconfirmed.
func (s *Store) land(ctx context.Context, p *prepared, hold *writer.Hold) (slot uint64, again bool, err error) {
	leave, err := s.enter(ctx, "a commit or update")
	if err != nil {
		return 0, false, err
	}
	defer leave()
	ctx, cancel := landingContext(ctx, s.opts.LandingTimeout)
	defer cancel()
	sent, looked := false, false
	for {
		if err := s.settle(ctx, p.id); err != nil {
			return 0, false, err
		}
		// R3: every slot from the entry's base on has been examined for its id
		// by now, or a checkpoint that keeps it.
		if slot, found, err := s.landedAs(ctx, p); err != nil || found {
			return slot, found && !sent, err
		}
		err := s.admit(ctx, p, hold)
		if errors.Is(err, ErrFenced) && !looked {
			// R4: not before the id was looked for up to the barrier that fenced.
			looked = true
			if cerr := s.catchUp(ctx); cerr != nil {
				return 0, false, fmt.Errorf("%w: %v; and the log cannot be read to the end: %w", ErrUnconfirmed, err, cerr)
			}
			continue
		}
		if err != nil {
			return 0, false, err
		}
		rec := &format.Record{
			Slot: s.follow.tip.Head + 1, Kind: format.KindCommit, Fence: hold.Fence(), Session: hold.Session(),
			Writer: selfIdentity(), Time: s.opts.now().UnixNano(), Prev: s.follow.tip.Hash,
			Entries: []format.Entry{{
				ID: p.id, Digest: p.digest, Message: p.message, Time: p.time.UnixNano(), Base: p.base,
				Block: p.block, Lists: p.lists,
			}},
			Contents: p.contents,
		}
		sent = true
		ok, err := s.landRecord(ctx, hold, rec, p.listFiles, false)
		if err != nil {
			return 0, false, err
		}
		if ok {
			p.listFiles = nil // the overlay removes them
			return rec.Slot, false, nil
		}
	}
}

// landingContext keeps a landing going for a moment after its caller gave up,
// so that a create in flight is decided rather than left open, and bounds it.
func landingContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	lctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, &timeoutError{"the landing of a commit", limit})
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(graceAfterCancel, cancel)
		context.AfterFunc(lctx, func() { t.Stop() })
	})
	return lctx, func() { stop(); cancel() }
}

// settle finds out what became of a record that is still open, before anything
// else is tried (I4). For an entry that is not in that record a failure means
// that nothing happened to it: ErrBusy.
func (s *Store) settle(ctx context.Context, id uuid.UUID) error {
	r := s.undecided
	if r == nil {
		return nil
	}
	v, _, err := s.decide(ctx, r, true)
	if err != nil {
		if !slices.Contains(r.ids, id) {
			return fmt.Errorf("%w: an earlier record of this process has no clear answer yet (%v)", ErrBusy, err)
		}
		return err
	}
	s.opts.Logger.Info("an open record was decided", "slot", r.slot, "mine", v == mine)
	// Whatever the slot holds now is read like anybody's record. Until then the
	// record stays open: deciding it again gives the same answer.
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	s.undecided = nil
	r.decided(v == mine)
	return nil
}

// landedAs looks for the entry's id in the log.
func (s *Store) landedAs(ctx context.Context, p *prepared) (uint64, bool, error) {
	if slot, digest, found := s.overlay.entry(p.id); found {
		return slot, true, sameDigest(p, digest)
	}
	snap, err := s.laneSnapshot(ctx)
	if err != nil {
		return 0, false, err
	}
	defer snap.Close()
	slot, e, found, err := snap.Entry(ctx, p.id)
	if err != nil || !found {
		return 0, false, err
	}
	return slot, true, sameDigest(p, e.Digest)
}

func sameDigest(p *prepared, digest format.Hash) error {
	if digest != p.digest {
		return fmt.Errorf("%w: %s landed with other changes or another message; use a fresh id", ErrIDReused, p.id)
	}
	return nil
}

// admit checks what must hold in the state just before the record: this writer
// is not fenced, nobody changed the entry's paths, and all names are alive.
func (s *Store) admit(ctx context.Context, p *prepared, hold *writer.Hold) error {
	if err := fenced(s.follow.tip, hold.Fence(), hold.Session()); err != nil {
		hold.Lost(err)
		return err
	}
	if err := hold.Err(); err != nil {
		return fmt.Errorf("%w: the lease was lost (%w)", ErrFenced, err)
	}
	if h := s.follow.tip.Horizon; p.base < h {
		return fmt.Errorf("%w: the base of this commit, slot %d, is older than slot %d, up to which ids are kept; reload and commit anew", ErrConflict, p.base, h)
	}
	if p.base < s.follow.tip.Head {
		if err := s.laneFlush(ctx); err != nil {
			return err
		}
		if err := p.conflict(ctx, p.base); err != nil {
			return err
		}
	}
	for {
		dead, err := s.deadNames(ctx, p)
		if err != nil || len(dead) == 0 {
			return err
		}
		s.opts.Logger.Info("names of staged contents died before the commit; sending them again", "names", len(dead))
		if err := p.restage(ctx, dead); err != nil {
			return err
		}
	}
}

// deadNames is rule R5: a name is usable if it is live in the state before, or
// new with a head above the newest sweep.
func (s *Store) deadNames(ctx context.Context, p *prepared) (map[string]bool, error) {
	var old []format.Object
	dead := map[string]bool{}
	for _, o := range p.objects {
		if !o.New {
			old = append(old, o)
			continue
		}
		if head, ok := format.DataHead(o.Name); !ok || s.follow.tip.Sweep > 0 && head <= s.follow.tip.Sweep {
			dead[o.Name] = true
		}
	}
	if len(old) == 0 && len(dead) == 0 {
		return nil, nil
	}
	if err := s.laneFlush(ctx); err != nil {
		return nil, err
	}
	snap, err := s.laneSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer snap.Close()
	for _, o := range old {
		row, found, err := snap.Object(ctx, o.Name)
		if err != nil {
			return nil, err
		}
		if !found || row.Dead != 0 {
			dead[o.Name] = true
		}
	}
	return dead, nil
}

// landRecord encodes and decides one record of hold at the slot after the tip. ok
// means that it landed and is shown; not ok, without an error, that the slot was
// lost and the log was caught up with: build it anew.
func (s *Store) landRecord(ctx context.Context, hold *writer.Hold, rec *format.Record, lists *listFiles, always bool) (ok bool, err error) {
	data, err := format.EncodeRecord(rec)
	if err != nil {
		return false, err
	}
	s.opts.Progress(Progress{Phase: "commit"})
	r := newSent(rec, data, s.follow.proof)
	if err := r.under(hold); err != nil {
		return false, err
	}
	v, proof, err := s.decide(ctx, r, always)
	if errors.Is(err, ErrUnconfirmed) {
		s.undecided = r
		return false, err
	}
	r.decided(err == nil && v == mine)
	if err != nil {
		return false, err
	}
	if v != mine {
		err := s.catchUp(ctx)
		if err != nil && v == truncated {
			err = fmt.Errorf("%w: the log was truncated beyond %s, and cannot be read now: %w", ErrUnconfirmed, format.SlotKey(r.slot), err)
		}
		return false, err
	}
	s.landed(rec, r, lists)
	s.follow.proof = proof
	return true, nil
}

// under tells the hold, before anything is sent, that r is on its way. A process
// that is about to end begins no write.
func (r *sent) under(hold *writer.Hold) error {
	done, err := hold.Begin()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	decided := hold.Sending(r.hash)
	r.decided = func(landed bool) {
		if landed {
			decided(r.slot)
		} else {
			decided(0)
		}
		done()
	}
	return nil
}

// landed moves the tip and shows the new state (R10).
func (s *Store) landed(rec *format.Record, r *sent, lists *listFiles) {
	rec.ContentsAt = int64(len(r.data) - len(rec.Contents))
	tip := s.follow.tip
	tip.Head, tip.Hash = rec.Slot, r.hash
	if rec.Fence >= tip.Fence {
		tip.Fence = rec.Fence
		if rec.Kind == format.KindFence {
			tip.Session = rec.Session
		}
	}
	if rec.Kind == format.KindSweep {
		tip.Sweep = max(tip.Sweep, rec.Sweep)
	}
	l := &landed{rec: rec, hash: r.hash, size: logSize(rec, r.data), lists: lists, big: len(rec.Lists) > 0}
	for _, e := range rec.Entries {
		l.big = l.big || len(e.Lists) > 0
	}
	tip.LogSlots++
	tip.LogBytes += l.size
	if !l.big {
		l.changes = overlayOf(rec)
	}
	l.contents = sync.OnceValue(func() map[format.Hash]*Version { return sharedContents(l.changes) })
	s.overlay.add(l, tip)
	s.follow.tip = s.checkpointIfDue(tip)
}

// Outcome says what became of the commit with this id: it landed (and when), or
// ErrNotFound: it is not in the log up to the newest slot. It catches up first.
// A record of this Store whose fate is open is decided before, which may land
// it; ErrUnconfirmed if that is not possible within Options.LandingTimeout.
func (s *Store) Outcome(ctx context.Context, id uuid.UUID) (*Commit, error) {
	c, err := s.outcome(ctx, id)
	return c, fail("outcome", id.String(), err)
}

func (s *Store) outcome(ctx context.Context, id uuid.UUID) (*Commit, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx, "a commit or update")
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := s.deciding(ctx, "the outcome of a commit")
	defer cancel()
	if r := s.undecided; r != nil && slices.Contains(r.ids, id) {
		err = s.settle(ctx, id)
	} else {
		err = s.catchUp(ctx)
	}
	if err != nil {
		return nil, named(ctx, err)
	}
	snap, err := s.laneSnapshot(ctx)
	if err != nil {
		return nil, named(ctx, err)
	}
	defer snap.Close()
	slot, e, found, err := snap.Entry(ctx, id)
	if err == nil && !found {
		err = fmt.Errorf("%w: no commit with this id in the log up to slot %d", ErrNotFound, snap.State().Head)
	}
	if err != nil {
		return nil, named(ctx, err)
	}
	return commitOf(slot, &e), nil
}

// deciding bounds what tries to get an answer about a record.
func (s *Store) deciding(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.opts.LandingTimeout, &timeoutError{what, s.opts.LandingTimeout})
}

func commitOf(slot uint64, e *format.LogEntry) *Commit {
	return &Commit{ID: e.ID, Slot: slot, Message: e.Message, Time: time.Unix(0, e.Time), Changes: e.Changes}
}

// entry looks for an entry among what is pending.
func (o *overlay) entry(id uuid.UUID) (slot uint64, digest format.Hash, found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.pending {
		for i := range l.rec.Entries {
			if l.rec.Entries[i].ID == id {
				return l.rec.Slot, l.rec.Entries[i].Digest, true
			}
		}
	}
	return 0, format.Hash{}, false
}
