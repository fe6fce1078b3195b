// Package writer decides who may write a datastore: at any time at most one
// process, the holder of the lease at format.LeaseKey.
//
// The lease gives progress, never safety. Safety comes from the log: a new
// writer occupies the next slot with a barrier of its fence (I2), by the same
// conditional create that a commit uses, and whoever meets a newer barrier of
// another session has lost for good. So every error here, of a clock, of a
// store, of this package, can cost time but no acknowledged commit.
//
// Acquire goes like this:
//
//  1. Read the lease. Nobody's, given back, or left over by this very process
//     (R12): go on. Somebody's: wait. It is taken over only when it is older
//     than its TTL + skew on the store's clock, and has also stood unchanged
//     for TTL/2 of this machine's clock (R19): stores' clocks jump.
//  2. Replace exactly the version that was judged, under the fence
//     max(lease, log) + 1 (R8). A renewal that comes first makes this fail.
//     From here on the heartbeat renews.
//  3. Catch up with the log; put the barrier into its next slot.
//
// A store's answer that was lost is resolved by reading back what the lease
// holds now (I4, R9). Clocks of hosts are written into the record for people
// and decide nothing.
package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// The errors of this package, named by what the caller does next.
var (
	// ErrBusy: another process is writing. Nothing happened; wait or try later.
	// See *BusyError for who it is.
	ErrBusy = errors.New("another process is writing")
	// ErrFenced: another writer has taken over. Stop; do not blindly retry.
	ErrFenced = errors.New("fenced: another writer has taken over")
	// ErrExpired: the lease was not renewed for its whole TTL. Stop, as when
	// fenced; whether somebody took over is not known.
	ErrExpired = errors.New("the writer's lease could not be renewed")
	// ErrReleased: the hold was closed.
	ErrReleased = errors.New("the writer's lease was given back")
)

// Log is what this package needs of the commit log.
type Log interface {
	// CatchUp reads what is new in the log.
	CatchUp(ctx context.Context) error
	// Fence returns the highest fence seen in the log so far, 0 if none. It does
	// not block.
	Fence() uint64
	// Barrier occupies the next slot with a record of kind fence, catching up as
	// often as it takes. An error that wraps ErrFenced says that the log holds a
	// barrier of another session with this fence or a higher one.
	Barrier(ctx context.Context, fence uint64, session uuid.UUID) error
}

// Options of Acquire. Nil and zero mean the default.
type Options struct {
	// Writer and Epoch are stable names of this writer, as configured.
	Writer, Epoch string
	// Checkout is the directory that is worked in; Command says what runs and is
	// shown to whoever waits, so it must hold no secrets. Default: the name of
	// the program without its arguments.
	Checkout, Command string
	// TTL is how long the hold stands without a renewal (every TTL/3): 30 s by
	// default, 100 ms to 1 h. Skew, 10 s by default, is what a taker waits on
	// top of the recorded TTL of another.
	TTL, Skew time.Duration
	// MaxWait bounds the waiting for another writer: zero means 60 s, negative
	// means no wait. It does not bound catching up; ctx does.
	MaxWait time.Duration
	// Waiting is called after each look at a lease that is another's, several
	// times a second. It must return soon.
	Waiting func(Wait)
	// Now is the clock that is written down for people, time.Now by default.
	Now func() time.Time
	// Boot is the clock that decides: it is never set and counts while the
	// machine sleeps. Where it begins to count does not matter.
	Boot func() time.Duration
}

const (
	defaultTTL  = 30 * time.Second
	defaultSkew = 10 * time.Second
	defaultWait = 60 * time.Second
	releaseTime = 5 * time.Second  // for giving the lease back
	decideTime  = 30 * time.Second // for finding out what became of a write
	pollMin     = 50 * time.Millisecond
	pollMax     = time.Second
)

func (o *Options) withDefaults() (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	if d.TTL == 0 {
		d.TTL = defaultTTL
	}
	if d.Skew == 0 {
		d.Skew = defaultSkew
	}
	if d.MaxWait == 0 {
		d.MaxWait = defaultWait
	}
	if d.TTL < 100*time.Millisecond || d.TTL > maxTTL || d.Skew < 0 {
		return d, fmt.Errorf("a writer's TTL of %v with a skew of %v: 100ms to %v with 0s or more are possible", d.TTL, d.Skew, maxTTL)
	}
	d.TTL = d.TTL.Truncate(time.Millisecond) // as it is recorded
	if d.Command == "" && len(os.Args) > 0 {
		d.Command = filepath.Base(os.Args[0])
	}
	if d.Waiting == nil {
		d.Waiting = func(Wait) {}
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Boot == nil {
		d.Boot = bootClock
	}
	return d, nil
}

// ended are the sessions of this process that are over, but may still stand in
// a lease because giving it back failed (R12).
var ended sync.Map // uuid.UUID → true

// Acquire makes this process the writer. It blocks while another one is, at
// most for opts.MaxWait, and then returns a *BusyError. The hold outlives ctx;
// the caller ends it with Close. After an error nothing is held: a lease that
// was taken already is given back, within 5 s and also when ctx has ended.
func Acquire(ctx context.Context, bucket *backend.Bucket, log Log, opts *Options) (*Hold, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	h := newHold(ctx, bucket, o)
	if err := h.take(ctx, log); err != nil {
		h.cancel(err)
		return nil, err
	}
	h.start()
	if err := h.enter(ctx, log); err != nil {
		if closeErr := h.Close(context.WithoutCancel(ctx)); closeErr != nil && !errors.Is(err, closeErr) {
			err = fmt.Errorf("%w; then %w", err, closeErr)
		}
		return nil, err
	}
	return h, nil
}

// take waits until the lease is free or may be taken over, and takes it.
func (h *Hold) take(ctx context.Context, log Log) error {
	q := newQueue(&h.opts)
	seen, err := h.cell.look(ctx)
	if err != nil {
		return err
	}
	for {
		var old *Lease // nil: nobody's
		if seen.data != nil {
			if old, err = DecodeLease(seen.data); errors.Is(err, format.ErrCorrupt) {
				return fmt.Errorf("%s: %w; once no writer runs, remove the object %s: no commit depends on it", h.cell.bucket.URL(), err, format.LeaseKey)
			} else if err != nil {
				return err
			}
		}
		if old == nil || old.free() || q.mayTakeOver(old, seen) {
			err := h.replace(ctx, log, old, seen)
			f := (*foreignError)(nil)
			if !errors.As(err, &f) {
				return err
			}
			seen = f.seen // somebody was quicker
			continue
		}
		if seen, err = q.wait(ctx, &h.cell, old); err != nil {
			return err
		}
	}
}

// replace puts my record in the place of exactly the one that was seen.
func (h *Hold) replace(ctx context.Context, log Log, old *Lease, seen *sight) error {
	now := h.opts.Now().UTC()
	h.lease = Lease{
		Format: format.Version, MinReader: format.MinReader,
		Fence: log.Fence(), Session: h.session,
		Writer: h.opts.Writer, Epoch: h.opts.Epoch, Identity: Self(),
		Checkout: h.opts.Checkout, Command: h.opts.Command,
		Acquired: now, Renewed: now,
		TTLMillis: h.opts.TTL.Milliseconds(),
		Beat:      h.lease.Beat + 1,
	}
	if old != nil {
		h.lease.Fence = max(h.lease.Fence, old.Fence)
		h.lease.Extra = old.Extra
	}
	var err error
	if h.lease.Fence, err = after(h.lease.Fence); err != nil {
		return err
	}
	data, err := h.lease.Encode()
	if err != nil {
		return err
	}
	h.cell.version, h.cell.doubts = seen.info.Version, nil
	// Sent is sent: MaxWait does not end the finding out.
	decide, cancel := context.WithTimeout(ctx, decideTime)
	defer cancel()
	start, err := h.cell.swap(decide, data)
	if err == nil {
		h.fence = h.lease.Fence
		h.stamp.Store(int64(start))
		return nil
	}
	if len(h.cell.doubts) > 0 && !errors.As(err, new(*foreignError)) {
		return h.withdraw(ctx, err)
	}
	return err
}

// withdraw is for a record that was sent and may have arrived, or still may. A
// released one in its place, or before it, settles that either way.
func (h *Hold) withdraw(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if err := h.release(ctx); err != nil && !errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w; then %w", cause, err)
	}
	return cause
}

// enter catches up with the log and puts up the barrier, while the heartbeat
// beats already: a long catching up does not cost the lease.
func (h *Hold) enter(ctx context.Context, log Log) error {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	defer stop()

	err := log.CatchUp(work)
	if err != nil {
		err = fmt.Errorf("catching up before writing: %w", err)
	} else if err = h.raise(work, log.Fence()); err == nil {
		if err = log.Barrier(work, h.fence, h.session); err != nil {
			err = fmt.Errorf("putting up the barrier of writer %d: %w", h.fence, err)
		}
	}
	if lost := h.Err(); lost != nil && !errors.Is(err, ErrFenced) {
		return lost
	}
	return err
}

// raise lifts the fence above what the log showed (R8). It has something to do
// only where the lease is behind the log: it was removed or restored.
func (h *Hold) raise(ctx context.Context, seen uint64) error {
	if seen < h.fence {
		return nil
	}
	fence, err := after(seen)
	if err != nil {
		return err
	}
	if err := h.write(ctx, func(l *Lease) { l.Fence = fence }); err != nil {
		return err
	}
	h.fence = fence
	return nil
}

func after(fence uint64) (uint64, error) {
	if fence >= maxFence {
		return 0, fmt.Errorf("the fence %d is beyond any number of writers: %w", fence, format.ErrCorrupt)
	}
	return fence + 1, nil
}
