package datastore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// Batch is a commit in the making: puts and deletes that land together or not
// at all. Put, PutFile and Delete may be called from several goroutines; a
// later one for the same path takes the place of an earlier one. One that comes
// while Commit runs waits for it. Contents are
// sent to the store while the batch fills; nothing of it is visible before
// Commit.
type Batch struct {
	s    *Store
	id   uuid.UUID
	base uint64
	// begun is the head when the batch began.
	begun uint64
	// hold is nil until the first change of a lazy batch; leasing is held while
	// it gets one.
	hold    atomic.Pointer[writer.Hold]
	leasing chan struct{}
	// named: the id is the caller's.
	named bool
	// fresh: the datastore held nothing when the batch began, so there is
	// nothing to compare with and nothing to share.
	fresh bool

	st *staging // contents on their way to the store

	// gate is held shared while a content is staged, and alone by Commit and
	// Discard: what is being committed does not change. It is taken before mu.
	gate sync.RWMutex

	mu      sync.Mutex
	changes changeSet
	ended   bool
	unsure  bool // a Commit was not confirmed
}

// Begin starts a batch. It makes this process the writer if it is not, which
// waits for another writer up to Options.MaxWait (ErrBusy), and catches up; see
// BatchOptions.Lazy.
func (s *Store) Begin(ctx context.Context, o *BatchOptions) (*Batch, error) {
	b, err := s.begin(ctx, o)
	return b, fail("begin", "", err)
}

func (s *Store) begin(ctx context.Context, o *BatchOptions) (*Batch, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	if o == nil {
		o = &BatchOptions{}
	}
	var hold *writer.Hold
	var err error
	if o.Lazy {
		_, err = s.Update(ctx)
	} else {
		hold, err = s.acquire(ctx)
	}
	if err != nil {
		return nil, err
	}
	id := o.ID
	if id == uuid.Nil {
		id = newID()
	}
	head := s.Head()
	base := o.Base
	if base == 0 {
		base = head
	} else if base > head {
		return nil, fmt.Errorf("%w: the base %d is newer than the newest slot %d", ErrNotFound, base, head)
	}
	b := &Batch{s: s, id: id, base: base, begun: head, named: o.ID != uuid.Nil,
		leasing: make(chan struct{}, 1), changes: changeSet{mem: map[string]*staged{}}}
	if b.fresh, err = s.emptyState(ctx); err != nil {
		return nil, err
	}
	b.st = newStaging(s, id)
	if hold != nil {
		b.setHold(hold)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.batch[b] = struct{}{}
	return b, nil
}

// lease makes this process the writer, if the batch has put that off.
func (b *Batch) lease(ctx context.Context) error {
	if b.hold.Load() != nil {
		return nil
	}
	leave, err := take(ctx, b.leasing, "the lease")
	if err != nil {
		return err
	}
	defer leave()
	if b.hold.Load() != nil {
		return nil
	}
	hold, err := b.s.acquire(ctx)
	if err != nil {
		return err
	}
	// What was found to be unchanged was compared with the state of before.
	pending, snap, err := b.s.view(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	for _, l := range pending {
		if l.rec.Slot > b.begun && len(l.rec.Entries) > 0 {
			return b.outrun()
		}
	}
	for _, err := range snap.Changed(ctx, b.begun, snap.State().Head, "") {
		if err != nil {
			return err
		}
		return b.outrun()
	}
	b.setHold(hold)
	return nil
}

func (b *Batch) outrun() error {
	return fmt.Errorf("%w: somebody committed after slot %d, with which this batch began; begin another", ErrConflict, b.begun)
}

func (b *Batch) setHold(hold *writer.Hold) {
	b.st.session = hold.Session()
	b.hold.Store(hold)
}

// ID returns the id that the commit will have.
func (b *Batch) ID() uuid.UUID { return b.id }

// Base returns the slot whose state the batch builds on.
func (b *Batch) Base() uint64 { return b.base }

// Len returns how many paths the batch changes.
func (b *Batch) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changes.len()
}

func (b *Batch) set(ctx context.Context, sc *staged) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changes.set(ctx, sc, b.st)
}

var errEnded = fmt.Errorf("%w: the batch was committed or discarded", ErrClosed)

// usable says whether the batch can still take something.
func (b *Batch) usable(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.isEnded() {
		return errEnded
	}
	if err := b.lost(); err != nil {
		return err
	}
	return b.st.failed()
}

// lost says why the batch can stage nothing more: its hold is over (I7).
func (b *Batch) lost() error {
	if hold := b.hold.Load(); hold != nil && hold.Err() != nil {
		return fmt.Errorf("%w: the lease was lost (%w)", ErrFenced, hold.Err())
	}
	return nil
}

func (b *Batch) isEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Delete stages the removal of a path. ErrNotFound if neither the newest state
// nor the batch has it.
func (b *Batch) Delete(ctx context.Context, path string) error {
	return fail("delete", path, b.delete(ctx, path))
}

func (b *Batch) delete(ctx context.Context, path string) error {
	if err := CheckPath(path); err != nil {
		return err
	}
	if err := b.usable(ctx); err != nil {
		return err
	}
	v, found, err := b.s.lookup(ctx, path, Newest)
	if err != nil {
		return err
	}
	inState := found && !v.Deleted
	if err := b.lease(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return ErrClosed
	}
	op, has, err := b.changes.op(ctx, path)
	if err != nil {
		return err
	}
	if has && op == format.OpDelete || !has && !inState {
		return fmt.Errorf("%w: no such path", ErrNotFound)
	}
	if !inState {
		return b.changes.remove(ctx, path)
	}
	return b.changes.set(ctx, &staged{change: format.Change{Op: format.OpDelete, Path: path, Place: format.Place{Object: format.Inline}}, dup: -1}, b.st)
}

// Commit lands the batch and returns when it is decided. It waits for the
// uploads as long as ctx allows, and then for the record up to
// Options.LandingTimeout, also a moment longer than ctx, since a record that is
// on its way is to be decided.
//
// Errors: ErrEmpty, ErrFenced, ErrConflict, ErrIDReused and ErrChanged: nothing
// landed. ErrUnconfirmed: it may have landed; ask with Outcome, or call Commit
// again. ErrBusy: a record of another commit of this process is undecided. After
// success, ErrFenced, ErrConflict and ErrIDReused the batch is used up; else
// Commit may be called again, and does nothing twice.
func (b *Batch) Commit(ctx context.Context, message string) (*Commit, error) {
	c, err := b.commit(ctx, message)
	return c, fail("commit", b.id.String(), err)
}

func (b *Batch) commit(ctx context.Context, message string) (*Commit, error) {
	if len(message) > format.MaxMessage {
		return nil, fmt.Errorf("the message has %d bytes, at most %d are possible", len(message), format.MaxMessage)
	}
	b.gate.Lock()
	defer b.gate.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return nil, errEnded
	}
	c, err := b.commitLocked(ctx, message)
	final := errors.Is(err, ErrFenced) || errors.Is(err, ErrConflict) || errors.Is(err, ErrIDReused)
	switch {
	case err == nil:
		if err := b.end(); err != nil {
			b.s.opts.Logger.Warn("staged files of a landed commit were not removed", "error", err)
		}
	case errors.Is(err, ErrUnconfirmed):
		b.unsure = true
	case final:
		err = errors.Join(err, b.end())
	case b.unsure:
		// An earlier call sent a record, and this one did not find out about it.
		err = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	return c, err
}

func (b *Batch) commitLocked(ctx context.Context, message string) (*Commit, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if b.changes.len() == 0 {
		return b.landedBefore(ctx)
	}
	p := &prepared{id: b.id, message: message, time: b.s.opts.now(), base: b.base, changes: uint64(b.changes.len()), conflict: b.conflict}
	p.restage = func(ctx context.Context, dead map[string]bool) error {
		if err := b.st.revive(ctx, &b.changes, dead); err != nil {
			return err
		}
		return b.st.prepare(ctx, &b.changes, p)
	}
	defer func() {
		if err := p.listFiles.remove(); err != nil {
			b.s.opts.Logger.Warn("local copies of change lists were not removed", "error", err)
		}
	}()
	if err := b.prepare(ctx, p); err != nil {
		return nil, err
	}
	slot, again, err := b.s.land(ctx, p, b.hold.Load())
	if err != nil {
		return nil, err
	}
	return &Commit{ID: b.id, Slot: slot, Message: message, Time: p.time, Changes: p.changes, Again: again}, nil
}

// landedBefore answers for an empty batch: if its id is the caller's, it may be
// empty because it landed before, and SkipUnchanged left out all of it.
func (b *Batch) landedBefore(ctx context.Context) (*Commit, error) {
	if !b.named {
		return nil, ErrEmpty
	}
	c, err := b.s.outcome(ctx, b.id)
	if errors.Is(err, ErrNotFound) {
		return nil, ErrEmpty
	}
	if err == nil {
		c.Again = true
	}
	return c, err
}

func (b *Batch) prepare(ctx context.Context, p *prepared) error {
	ctx, cancel := b.s.whileOpen(ctx)
	defer cancel()
	return named(ctx, b.st.prepare(ctx, &b.changes, p))
}

// conflict is rule R11: a path of the batch that was changed after base by
// another entry. The cost is that of what changed since, not of the batch.
func (b *Batch) conflict(ctx context.Context, base uint64) error {
	snap, err := b.s.laneSnapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	for path, err := range snap.Changed(ctx, base, snap.State().Head, "") {
		if err != nil {
			return err
		}
		has, err := b.changes.has(ctx, path)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		slot, entry, found, err := snap.ChangedSince(ctx, path, base, b.id)
		if err != nil {
			return err
		}
		if found {
			return fmt.Errorf("%w: %s was changed in slot %d (commit %s), after this commit's base %d", ErrConflict, path, slot, entry, base)
		}
	}
	return nil
}

// Discard drops the batch and what it staged. Objects that were sent already
// are swept by retention later. Discarding an ended batch does nothing.
func (b *Batch) Discard() error {
	b.gate.Lock()
	defer b.gate.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return nil
	}
	return fail("discard", b.id.String(), b.end())
}

func (b *Batch) end() error {
	b.ended = true
	b.s.mu.Lock()
	delete(b.s.batch, b)
	b.s.mu.Unlock()
	return errors.Join(b.changes.close(), b.st.close())
}

// emptyState says whether no path was ever stored.
func (s *Store) emptyState(ctx context.Context) (bool, error) {
	pending, snap, err := s.view(ctx)
	if err != nil {
		return false, err
	}
	defer snap.Close()
	for _, l := range pending {
		if len(l.changes) > 0 {
			return false, nil
		}
	}
	n := snap.Counts()
	return n.Versions == 0 && n.ObjectRows == 0, nil
}
