package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
)

// Hold is the right to write, from Acquire to Close or to its loss. Holds of one
// process may share a session: they have one fence, and are lost together. Its
// methods are safe for concurrent use.
type Hold struct {
	s      *session
	bucket *backend.Bucket // as given to Acquire
	joined bool
	ctx    context.Context
	cancel context.CancelCauseFunc

	closing atomic.Bool
	closed  chan struct{}
	result  error // of Close; fixed when closed is closed
}

// handle makes a Hold of a session that this process has, or nil: it is over, or
// about to be (I7).
func (s *session) handle(ctx context.Context, bucket *backend.Bucket, joined bool) *Hold {
	h := &Hold{s: s, bucket: bucket, joined: joined, closed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil
	}
	s.holds = append(s.holds, h)
	h.ctx, h.cancel = context.WithCancelCause(lifetime{s.ctx, context.WithoutCancel(ctx)})
	return h
}

// lifetime is a context that ends with the session and has the values of another.
type lifetime struct {
	context.Context
	values context.Context
}

func (l lifetime) Value(key any) any {
	if v := l.values.Value(key); v != nil {
		return v
	}
	return l.Context.Value(key)
}

// Fence is the number of this change of writer. It is in every record that the
// hold's owner puts into the log.
func (h *Hold) Fence() uint64 { return h.s.fence }

// Session names this acquisition; no other ever had or will have it. Holds that
// share one have the same.
func (h *Hold) Session() uuid.UUID { return h.s.id }

// Joined says whether this hold shares the session of an earlier one of this
// process. What is to be done once for a session is not done for it (R16).
func (h *Hold) Joined() bool { return h.joined }

// Context ends when the hold is lost or closed, and context.Cause says why. It
// carries the values of the context given to Acquire, but not its end.
func (h *Hold) Context() context.Context { return h.ctx }

// Err is nil while the hold stands, and the cause of its end afterwards: what
// Lost was told, or an error that wraps ErrFenced, ErrExpired or ErrReleased. It
// asks no store and never blocks. It is exact about the time that has passed,
// also right after the machine slept.
func (h *Hold) Err() error {
	if err := h.s.err(); err != nil {
		return err
	}
	if h.ctx.Err() == nil {
		return nil
	}
	return context.Cause(h.ctx)
}

// Lost ends the hold, and all that share its session, because the log showed
// that it is no longer current. The first cause stays. Close must still be called.
func (h *Hold) Lost(cause error) {
	if cause == nil {
		cause = fmt.Errorf("the log shows a newer writer than fence %d: %w", h.s.fence, ErrFenced)
	}
	h.s.cancel(cause)
}

// Close ends the hold. The last one of a session gives the lease back and waits
// for the session's goroutines, within 5 s and ctx (which must still be alive: a
// context that has ended gives nothing back). The caller has nothing in flight
// any more. It returns the cause if the hold was lost before, and what kept the
// lease from being given back; that is tried again in the background while the
// process lives.
func (h *Hold) Close(ctx context.Context) error {
	if h.closing.Swap(true) {
		<-h.closed
		return h.result
	}
	defer close(h.closed)
	s := h.s
	s.mu.Lock()
	s.holds = slices.DeleteFunc(s.holds, func(other *Hold) bool { return other == h })
	last := len(s.holds) == 0
	if !last {
		s.given = s.holds[0].bucket
	}
	s.closing = s.closing || last
	s.mu.Unlock()
	if last {
		h.result = s.close(ctx)
	} else {
		h.result = s.err()
	}
	h.cancel(fmt.Errorf("session %s: %w", s.id, ErrReleased))
	return h.result
}

// confirmTime bounds how long Confirm waits for an answer, from sending.
const confirmTime = 500 * time.Millisecond

// Confirm proves that the hold is current, by a renewal of the lease that began
// after Confirm was called. It is for directly before a side effect outside the
// datastore, which no log can fence. Nil: at a moment after the call, no other
// writer had taken over.
//
// It waits for an answer at most 500 ms from sending; while the store says that
// it is asked too often, as long as ctx lasts. It fails closed: an error that
// wraps ErrNotConfirmed means that there was no answer, that the effect must not
// happen now, and that Confirm may be called again. Any other error is the end of the
// hold. Nothing keeps the process from being stopped between Confirm and the
// effect; an effect that hurts when it comes late must be fenced by whom it
// reaches, with Fence.
func (h *Hold) Confirm(ctx context.Context) error {
	s := h.s
	asked := s.started.Load()
	for attempt := 0; ; attempt++ {
		if err := h.Err(); err != nil {
			return err
		}
		err := s.renewSince(ctx, asked)
		if err == nil {
			return h.Err()
		}
		if errors.Is(err, ErrFenced) {
			s.cancel(err)
			return err
		}
		if lost := h.Err(); lost != nil {
			return lost
		}
		if ctx.Err() != nil || !s.throttled() || !sleep(ctx, backoff(attempt)) {
			return fmt.Errorf("%w: %w", ErrNotConfirmed, err)
		}
	}
}

// throttled: the newest trouble is that the store is asked too often.
func (s *session) throttled() bool {
	p := s.cell.trouble.Load()
	return p != nil && errors.Is(*p, backend.ErrBusy)
}

// renewSince is done when a renewal has succeeded that began after as many as asked
// had begun. They are counted, since two readings of a clock may be equal.
func (s *session) renewSince(ctx context.Context, asked uint64) error {
	limit := fmt.Errorf("no answer within %v while waiting for the renewal of the writer's lease", confirmTime)
	for {
		bounded, cancel := context.WithTimeoutCause(ctx, confirmTime, limit)
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
			defer cancel()
			if s.proven > asked {
				return nil
			}
			return s.writeInTurn(bounded, func(*Lease) {})
		case <-bounded.Done():
			cancel()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !s.throttled() { // the heartbeat has no answer either
				return limit
			}
		}
	}
}

// Begin tells of a write to the log that is about to be sent. It counts as in
// flight until done is called, which must be when its fate is known and not
// before. After Halt, Begin refuses with ErrHalted. It does not block.
func (h *Hold) Begin() (done func(), err error) {
	s := h.s
	s.writes.Add(1)
	if s.proc.halted.Load() {
		s.writes.Add(-1)
		return nil, fmt.Errorf("session %s: %w", s.id, ErrHalted)
	}
	var once atomic.Bool
	return func() {
		if !once.Swap(true) {
			s.writes.Add(-1)
		}
	}, nil
}

// Halt tells that the process is about to end: from now on Begin and Acquire refuse
// with ErrHalted, whatever hold and datastore they are of. Else another part of the
// process, told that this hold is lost, would become the writer anew in the moment
// before the end. It does not block and takes no lock.
func (h *Hold) Halt() { h.s.proc.halted.Store(true) }

// InFlight counts the writes that have begun and whose fate is not known. It does
// not block and takes no lock.
func (h *Hold) InFlight() int { return int(h.s.writes.Load()) }
