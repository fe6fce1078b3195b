package datastore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// logSeam is what package writer needs of the log (writer.Log). Its methods are
// called while the Store's session lock is held, before a hold is handed out.
type logSeam struct{ s *Store }

func (l logSeam) CatchUp(ctx context.Context) error {
	_, err := l.s.Update(ctx)
	return err
}

func (l logSeam) Fence() uint64 {
	l.s.overlay.mu.Lock()
	defer l.s.overlay.mu.Unlock()
	return l.s.overlay.tip.Fence
}

// Barrier occupies the next slot with a record of kind fence (I2), so that no
// writer with a lower fence can commit after it. The floor is always read after.
func (l logSeam) Barrier(ctx context.Context, hold *writer.Hold) error {
	s := l.s
	leave, err := s.enter(ctx, "a commit or update")
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := s.deciding(ctx, "the barrier of a new writer")
	defer cancel()
	for {
		if err := s.settle(ctx, uuid.Nil); err != nil {
			return err
		}
		if err := fenced(s.follow.tip, hold.Fence(), hold.Session()); err != nil {
			return err
		}
		rec := barrier(s.follow.tip, hold, s.opts.now())
		ok, err := s.landRecord(ctx, hold, rec, nil, true)
		if err != nil || ok {
			return err
		}
	}
}

// barrier is the record that makes hold the writer, for the slot after tip.
func barrier(tip catalog.State, hold *writer.Hold, now time.Time) *format.Record {
	return &format.Record{
		Slot: tip.Head + 1, Kind: format.KindFence, Fence: hold.Fence(), Session: hold.Session(),
		Writer: selfIdentity(), Time: now.UnixNano(), Prev: tip.Hash,
	}
}

// Recover removes what processes that are gone have staged here. Nothing of it
// was promised to anybody: an entry is durable when it has landed.
func (l logSeam) Recover(context.Context, *writer.Hold) error {
	l.s.cleanStaging()
	return nil
}

// fenced says whether the log shows a writer that came after this one: a newest
// barrier with a higher fence, or with an equal one and another session (R8).
func fenced(tip catalog.State, fence uint64, session uuid.UUID) error {
	if tip.Fence > fence {
		return fmt.Errorf("%w: the log is at fence %d, this writer has %d", ErrFenced, tip.Fence, fence)
	}
	if tip.Fence == fence && tip.Session != session && tip.Session != uuid.Nil {
		return fmt.Errorf("%w: another session (%s) has the same fence %d", ErrFenced, tip.Session, fence)
	}
	return nil
}

// acquire returns the current hold, or gets one.
func (s *Store) acquire(ctx context.Context) (*writer.Hold, error) {
	began := time.Now()
	leave, err := take(ctx, s.session, "the lease")
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := s.open(); err != nil { // Close has given the lease back, or will
		return nil, err
	}
	if hold := s.held(); hold != nil {
		if hold.Err() == nil {
			if err := s.seeLanded(ctx, hold); err != nil {
				return nil, err
			}
			return hold, nil
		}
		s.dropHold(ctx, hold)
	}
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	o, err := s.writerOptions()
	if err != nil {
		return nil, err
	}
	// Another Begin of this Store may have waited for the same writer in vain.
	o.MaxWait = leftOf(o.MaxWait, time.Since(began))
	hold, err := writer.Acquire(ctx, s.bucket, logSeam{s}, o)
	if err != nil {
		if errors.Is(err, ErrUnconfirmed) {
			// Of the barrier, which is nothing of the caller's.
			err = fmt.Errorf("%w: taking over has no clear answer yet (%v)", ErrBusy, err)
		}
		if errors.Is(err, writer.ErrExpired) {
			err = fmt.Errorf("%w: taking over lasted longer than the lease: %w", ErrBusy, err)
		}
		if errors.Is(err, writer.ErrHalted) {
			err = fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return nil, named(ctx, err)
	}
	s.setHold(hold)
	return hold, nil
}

// leftOf is what is left of a MaxWait.
func leftOf(limit, waited time.Duration) time.Duration {
	if limit == 0 {
		limit = defaultMaxWait
	}
	if limit -= waited; limit <= 0 {
		return -1 // one look
	}
	return limit
}

const defaultMaxWait = 60 * time.Second // as package writer has it

// seeLanded catches up with what another Store of this process has landed under
// the hold that both have: it is no conflict for what begins afterwards.
func (s *Store) seeLanded(ctx context.Context, hold *writer.Hold) error {
	if hold.Landed() <= s.Head() {
		return nil
	}
	ctx, cancel := s.whileOpen(ctx) // Close waits for the session, too
	defer cancel()
	_, err := s.Update(ctx)
	return named(ctx, err)
}

func (s *Store) writerOptions() (*writer.Options, error) {
	o := &writer.Options{
		Writer: s.opts.Writer, Epoch: s.opts.Epoch, FastAdoption: s.opts.FastAdoption,
		Command: s.opts.Command, MaxWait: s.opts.MaxWait, Waiting: s.opts.Waiting,
		Connect: s.opts.connect, Logger: s.opts.Logger, Process: s.opts.process, Skew: s.opts.skew,
	}
	if o.FastAdoption {
		dir, err := filepath.Abs(s.dir)
		if err != nil {
			return nil, err
		}
		o.Guard = filepath.Join(dir, "guard")
	}
	return o, nil
}

// Hold makes this process the writer, if it is not yet, and returns its hold: for
// programs whose work ends when the hold is lost (Hold.Context), which confirm it
// before an effect outside the datastore (Hold.Confirm), or which end it by a
// writer.Watchdog. It waits like Begin. The Store closes it, in Release or Close.
func (s *Store) Hold(ctx context.Context) (*writer.Hold, error) {
	if err := s.open(); err != nil {
		return nil, fail("hold", "", err)
	}
	hold, err := s.acquire(ctx)
	return hold, fail("hold", "", err)
}

// setHold is the only writer of s.hold.
func (s *Store) setHold(hold *writer.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = hold
}

func (s *Store) held() *writer.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold
}

func (s *Store) dropHold(ctx context.Context, hold *writer.Hold) {
	s.setHold(nil)
	if err := hold.Close(ctx); err != nil {
		s.opts.Logger.Info("the lease was not given back; it ends by itself", "error", err)
	}
}

// Release gives the lease back, so that other processes need not wait while
// this one only reads. The next Begin gets it again. Batches that were begun
// before cannot be committed any more (ErrFenced). It waits, 5 s at most in all, for
// a commit that is landing, and decides one that has no clear answer yet: while a
// create is in flight the lease is kept, and ErrBusy returned.
func (s *Store) Release(ctx context.Context) error { return fail("release", "", s.release(ctx, false)) }

// release is Release; at the end of the Store the lease is given back in any case.
func (s *Store) release(ctx context.Context, end bool) error {
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &timeoutError{"giving the lease back", limit})
	defer cancel()
	leave, err := take(ctx, s.session, "the lease")
	if err != nil {
		return err
	}
	defer leave()
	hold := s.held()
	if hold == nil {
		return nil
	}
	if !end {
		leave, err := s.enter(ctx, "a commit or update")
		if err != nil {
			return fmt.Errorf("%w: the lease is kept while a commit is landing; release it again: %w", ErrBusy, err)
		}
		defer leave()
		if err := s.settle(ctx, uuid.Nil); err != nil {
			return fmt.Errorf("the lease is kept until that is decided; release it again: %w", err)
		}
	}
	s.dropHold(ctx, hold)
	return nil
}
