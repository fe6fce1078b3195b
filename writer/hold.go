package writer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
)

// Hold is the right to write, from Acquire to Close or to its loss. Its methods
// are safe for concurrent use.
type Hold struct {
	opts    Options // with its defaults filled in
	session uuid.UUID
	fence   uint64 // fixed when Acquire returns

	// turn is held by who writes the record; it guards cell and lease.
	turn  chan struct{}
	cell  cell
	lease Lease // as last written

	// stamp is the boot clock before the newest successful write. It only moves
	// forward: a slow answer to an early write does not make the hold older.
	stamp atomic.Int64

	ctx    context.Context
	cancel context.CancelCauseFunc
	work   []chan struct{} // each closed by its goroutine at its end

	closing atomic.Bool
	closed  chan struct{}
	result  error // of Close; fixed when closed is closed
}

func newHold(ctx context.Context, bucket *backend.Bucket, o Options) *Hold {
	h := &Hold{
		opts:    o,
		session: uuid.New(),
		turn:    make(chan struct{}, 1),
		cell:    cell{bucket: bucket, boot: o.Boot, call: o.TTL / 3},
		closed:  make(chan struct{}),
	}
	h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return h
}

// Fence is the number of this change of writer. It is in every record that the
// hold's owner puts into the log.
func (h *Hold) Fence() uint64 { return h.fence }

// Session names this acquisition; no other ever had or will have it.
func (h *Hold) Session() uuid.UUID { return h.session }

// Context ends when the hold is lost or closed, and context.Cause says why. It
// carries the values of the context given to Acquire, but not its end.
func (h *Hold) Context() context.Context { return h.ctx }

// Err is nil while the hold stands, and the cause of its end afterwards: what
// Lost was told, or an error that wraps ErrFenced, ErrExpired or ErrReleased. It asks no store and never
// blocks. It is exact about the time that has passed, also right after the
// machine slept.
func (h *Hold) Err() error {
	if h.ctx.Err() == nil && h.left() <= 0 {
		h.expire()
	}
	if h.ctx.Err() == nil {
		return nil
	}
	return context.Cause(h.ctx)
}

// Lost ends the hold because the log showed that it is no longer current. The
// first cause stays. Close must still be called.
func (h *Hold) Lost(cause error) {
	if cause == nil {
		cause = fmt.Errorf("the log shows a newer writer than fence %d: %w", h.fence, ErrFenced)
	}
	h.cancel(cause)
}

// Close gives the lease back and waits for the hold's goroutines, within 5 s
// and ctx (which must still be alive: a context that has ended gives nothing
// back). The caller has nothing in flight any more. It returns the cause if the
// hold was lost before, and what kept the lease from being given back; that is
// harmless, others just wait until it runs out, and this process does not.
func (h *Hold) Close(ctx context.Context) error {
	if h.closing.Swap(true) {
		<-h.closed
		return h.result
	}
	defer close(h.closed)
	lost := h.Err()
	h.cancel(fmt.Errorf("session %s: %w", h.session, ErrReleased))
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	h.result = lost
	if err := h.release(ctx); lost == nil {
		h.result = err
	} else if err != nil && !(errors.Is(lost, ErrFenced) && errors.Is(err, ErrFenced)) { // the same news twice
		h.result = errors.Join(lost, err)
	}
	return h.result
}

// release writes "released" in the place of exactly what is mine. On a lease
// that has another owner by now it changes nothing.
func (h *Hold) release(ctx context.Context) error {
	ended.Store(h.session, true)
	err := h.join(ctx)
	if err == nil {
		err = h.write(ctx, func(l *Lease) { l.Released = true })
	}
	if err == nil || errors.Is(err, ErrFenced) {
		ended.Delete(h.session)
		return err
	}
	return fmt.Errorf("the writer's lease was not given back; others wait for it up to %v: %w", h.opts.TTL+h.opts.Skew, err)
}

// write changes the record that is mine.
func (h *Hold) write(ctx context.Context, change func(*Lease)) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	next := h.lease
	change(&next)
	next.Beat++
	next.Renewed = h.opts.Now().UTC()
	data, err := next.Encode()
	if err != nil {
		return err
	}
	start, err := h.cell.swap(ctx, data)
	if f := (*foreignError)(nil); errors.As(err, &f) {
		return h.fenced(f.seen)
	}
	if err != nil {
		// It may be in doubt under this beat; the next one needs another.
		h.lease.Beat = next.Beat
		return err
	}
	h.lease = next
	h.forward(start)
	return nil
}

// fenced says in words what stands in the place of my record.
func (h *Hold) fenced(seen *sight) error {
	who := "another writer"
	if seen.data == nil {
		who = "nobody: the record was removed by hand"
	} else if l, err := DecodeLease(seen.data); err != nil {
		who = fmt.Sprintf("a record that cannot be read (%v)", err)
	} else if l.Session == h.session {
		who = "a copy of this very process, as of a cloned machine, under the same session"
	} else {
		who = fmt.Sprintf("%s, with fence %d after %d", l.who(), l.Fence, h.lease.Fence)
	}
	return fmt.Errorf("the writer's lease now belongs to %s; session %s can write nothing more, open the datastore anew: %w", who, h.session, ErrFenced)
}

// join waits for the hold's goroutines, whose context has ended.
func (h *Hold) join(ctx context.Context) error {
	for _, done := range h.work {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("a call to the store does not end: %w", context.Cause(ctx))
		}
	}
	return nil
}

// start sets off what keeps the hold and what watches it.
func (h *Hold) start() {
	for _, run := range []func(){h.heartbeat, h.monitor} {
		done := make(chan struct{})
		h.work = append(h.work, done)
		go func() {
			defer close(done)
			run()
		}()
	}
}

// heartbeat renews every third of the TTL. A renewal that fails is tried again
// until it succeeds, another owner shows, or the monitor ends the hold.
func (h *Hold) heartbeat() {
	wait := h.opts.TTL / 3
	for sleep(h.ctx, wait) && h.Err() == nil {
		wait = h.opts.TTL / 3
		err := h.write(h.ctx, func(*Lease) {})
		if errors.Is(err, ErrFenced) {
			h.cancel(err)
		} else if err != nil {
			wait = jitter(h.opts.TTL / 30)
		}
	}
}

// monitor ends the hold when no renewal has succeeded for the TTL, whatever the
// heartbeat is stuck in. It looks more often than its timer would need, because
// timers stand still while the machine sleeps.
func (h *Hold) monitor() {
	for h.Err() == nil {
		sleep(h.ctx, min(h.left(), h.opts.TTL/10))
	}
}

// left is how long the hold stands if no renewal succeeds.
func (h *Hold) left() time.Duration {
	return time.Duration(h.stamp.Load()) + h.opts.TTL - h.opts.Boot()
}

func (h *Hold) forward(stamp time.Duration) {
	for {
		old := h.stamp.Load()
		if int64(stamp) <= old || h.stamp.CompareAndSwap(old, int64(stamp)) {
			return
		}
	}
}

func (h *Hold) expire() {
	why := errors.New("the store did not answer")
	if p := h.cell.trouble.Load(); p != nil {
		why = *p
	}
	h.cancel(fmt.Errorf("%w for %v, so another writer may take over; open the datastore anew: %w", ErrExpired, h.opts.TTL, why))
}
