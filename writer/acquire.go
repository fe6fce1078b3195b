package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// Acquire makes this process the writer, or joins the session in which it is the
// writer already. It blocks while another one is, at most for opts.MaxWait, and
// then returns a *BusyError. The hold outlives ctx; the caller ends it with Close.
// After an error nothing is held: a lease that was taken already is given back,
// within 5 s and also when ctx has ended.
func Acquire(ctx context.Context, bucket *backend.Bucket, log Log, opts *Options) (*Hold, error) {
	o, err := opts.withDefaults(bucket)
	if err != nil {
		return nil, err
	}
	a := newAcquisition(ctx, bucket, log, o)
	if err := a.take(ctx); err != nil {
		a.s.abandon(err)
		return nil, err
	}
	if a.joined == nil {
		return a.enter(ctx)
	}
	a.s.abandon(ErrReleased)
	// Another hold of this process has entered the log; this one's replica has
	// perhaps not seen it.
	err = log.CatchUp(ctx)
	if err == nil {
		err = a.joined.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("catching up before writing: %w", err), ignore(a.joined.Close(context.WithoutCancel(ctx)), err))
	}
	return a.joined, nil
}

// ignore is err, unless it is the same news as said.
func ignore(err, said error) error {
	if err == nil || errors.Is(said, err) {
		return nil
	}
	return err
}

// ForceRelease takes the lease over whatever the judge says of its holder, puts a
// barrier into the log, and gives the lease back: the holder can commit nothing
// more, and everybody else need not wait. It returns the record of whom it fenced,
// nil if nobody held the lease; then the barrier fences whoever still believes to.
// It waits for nobody; the lease is taken within a minute, or not at all, and ctx
// bounds the rest. Together with an error, a record says that
// its holder lost the lease, but perhaps not yet the log.
func ForceRelease(ctx context.Context, bucket *backend.Bucket, log Log, opts *Options) (*Lease, error) {
	o, err := opts.withDefaults(bucket)
	if err != nil {
		return nil, err
	}
	o.Guard, o.FastAdoption = "", false
	a := newAcquisition(ctx, bucket, log, o)
	a.force = true
	limit, cancel := context.WithTimeoutCause(ctx, forceTime, errForceTime)
	err = a.take(limit)
	cancel()
	if err != nil {
		a.s.abandon(err)
		return nil, err
	}
	victim := a.victim
	h, err := a.enter(ctx)
	if err != nil {
		return victim, err
	}
	return victim, h.Close(context.WithoutCancel(ctx))
}

var errForceTime = fmt.Errorf("the writer's lease could not be had by force within %v: %w", forceTime, context.DeadlineExceeded)

// acquisition is one way to the lease.
type acquisition struct {
	*queue
	s     *session
	log   Log
	force bool
	// yielded: others had their turn.
	yielded bool
	// victim is the record that was replaced by force, if somebody held it.
	victim *Lease
	// joined is set where this process is the writer already.
	joined *Hold
}

func newAcquisition(ctx context.Context, bucket *backend.Bucket, log Log, o Options) *acquisition {
	s := newSession(ctx, bucket, o)
	return &acquisition{queue: newQueue(s), s: s, log: log}
}

// abandon ends a session that has nothing in the store, and never will.
func (s *session) abandon(why error) {
	s.cancel(why)
	s.endLife()
	if s.proc.session(s.id) == nil { // otherwise something of it is still in doubt
		s.bury()
	}
}

// take waits until the lease is free or may be taken over, and takes it; or joins
// the session of this process that has it.
func (a *acquisition) take(ctx context.Context) error {
	s := a.s
	seen, err := s.cell.look(ctx)
	if err != nil {
		return err
	}
	for {
		old, err := decodeSeen(s.cell.bucket, seen)
		if err != nil {
			return err
		}
		if s.proc.halted.Load() {
			return fmt.Errorf("becoming the writer: %w", ErrHalted)
		}
		s.takeGuard(ctx)
		var out outlook
		if !a.force { // force asks no judge: a look at a guard may hang
			out = a.assess(old, seen)
		}
		switch {
		case out.action == take && a.yields(old):
			if seen, err = a.yield(ctx, seen); err != nil {
				return err
			}
			continue
		case a.force || out.action == take:
			a.victim = nil
			if old != nil && !old.Released {
				a.victim = old
			}
			if old != nil && old.Released {
				s.awaitGuard(ctx)
			}
			err := s.replace(ctx, a.log, old, seen)
			f := (*foreignError)(nil)
			if !errors.As(err, &f) {
				return err
			}
			seen = f.seen // somebody was quicker
			continue
		case out.action == join:
			if a.joined = out.mine.handle(ctx, s.cell.bucket, true); a.joined != nil {
				return nil
			}
		}
		if seen, err = a.wait(ctx, &s.cell, old); err != nil {
			return err
		}
	}
}

// yields: this process has just given back what it now wants again. It would see
// that before everybody who waits for it, each time anew, and keep them waiting as
// long as it has something to write. So it gives them one turn of their looking.
func (a *acquisition) yields(old *Lease) bool {
	given := a.o.Process.given.Load()
	return !a.yielded && !a.force && a.o.MaxWait >= 0 && old != nil && given != nil && *given == old.Session && old.Released
}

func (a *acquisition) yield(ctx context.Context, seen *sight) (*sight, error) {
	a.yielded = true
	a.o.Process.given.Store(nil)
	age := seen.info.Now.Sub(seen.info.Modified)
	if seen.info.Now.IsZero() || age > time.Second+2*pollMin { // stores that round count in seconds
		return seen, nil
	}
	if !sleep(ctx, jitter(2*pollMin)) {
		return nil, fmt.Errorf("giving other writers a turn: %w", context.Cause(ctx))
	}
	return a.s.cell.look(ctx)
}

// decodeSeen is the lease that was seen, nil if there is none.
func decodeSeen(bucket *backend.Bucket, seen *sight) (*Lease, error) {
	if seen.data == nil {
		return nil, nil
	}
	l, err := DecodeLease(seen.data)
	if errors.Is(err, format.ErrCorrupt) {
		return nil, fmt.Errorf("%s: %w; once no writer runs, remove the object %s: no commit depends on it", bucket.URL(), err, format.LeaseKey)
	}
	return l, err
}

// replace puts my record in the place of exactly the one that was seen.
func (s *session) replace(ctx context.Context, log Log, old *Lease, seen *sight) error {
	now := s.opts.Now().UTC()
	s.lease = Lease{
		Format: format.Version, MinReader: format.MinReader,
		Fence: log.Fence(), Session: s.id,
		Writer: s.opts.Writer, Epoch: s.opts.Epoch, Identity: s.proc.self(),
		Checkout: s.opts.Checkout, Command: s.opts.Command,
		Acquired: now, Renewed: now,
		TTLMillis: s.opts.TTL.Milliseconds(),
		Beat:      s.lease.Beat + 1,
	}
	s.lease.Guard, s.promised = s.promise()
	s.lease.Adoption = s.promised
	if old != nil {
		s.lease.Fence = max(s.lease.Fence, old.Fence)
		s.lease.Extra = old.Extra
	}
	var err error
	if s.lease.Fence, err = after(s.lease.Fence); err != nil {
		return err
	}
	data, err := s.lease.Encode()
	if err != nil {
		return err
	}
	s.cell.version, s.cell.doubts = seen.info.Version, nil
	s.proc.remember(s) // before anybody can read it
	// Sent is sent: MaxWait does not end the finding out.
	decide, cancel := context.WithTimeout(ctx, decideTime)
	defer cancel()
	start, err := s.cell.swap(decide, data)
	if err == nil {
		s.fence = s.lease.Fence
		s.stamp.Store(int64(start))
		return nil
	}
	if len(s.cell.doubts) > 0 && !errors.As(err, new(*foreignError)) {
		return s.withdraw(ctx, err)
	}
	s.proc.forget(s)
	return err
}

// withdraw is for a record that was sent and may have arrived, or still may. A
// released one in its place, or before it, settles that either way.
func (s *session) withdraw(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), releaseTime, errReleaseTime)
	defer cancel()
	s.cancel(cause)
	s.endLife()
	if err := s.release(ctx); err != nil && !errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w; then %w", cause, err)
	}
	return cause
}

// enter makes the session that has the lease the writer of the log, while the
// heartbeat beats already: a long catching up does not cost the lease. A session
// is joined by others only afterwards.
func (a *acquisition) enter(ctx context.Context) (*Hold, error) {
	s := a.s
	h := s.handle(ctx, s.cell.bucket, false)
	s.start()
	err := a.enterLog(ctx, h)
	if err == nil {
		s.nowReady()
		return h, nil
	}
	if closeErr := h.Close(context.WithoutCancel(ctx)); closeErr != nil && !errors.Is(err, closeErr) {
		err = fmt.Errorf("%w; then %w", err, closeErr)
	}
	return nil, err
}

func (a *acquisition) enterLog(ctx context.Context, h *Hold) error {
	s := a.s
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	defer stop()

	err := a.log.CatchUp(work)
	if err != nil {
		err = fmt.Errorf("catching up before writing: %w", err)
	} else if err = s.raise(work, a.log.Fence()); err == nil {
		if err = a.log.Barrier(work, h); err != nil {
			err = fmt.Errorf("putting up the barrier of writer %d: %w", s.fence, err)
		} else if err = a.log.Recover(work, h); err != nil {
			err = fmt.Errorf("recovering before writing: %w", err)
		}
	}
	if lost := s.err(); lost != nil && !errors.Is(err, ErrFenced) {
		return lost
	}
	return err
}

// raise lifts the fence above what the log showed (R8). It has something to do
// only where the lease is behind the log: it was removed or restored.
func (s *session) raise(ctx context.Context, seen uint64) error {
	if seen < s.fence {
		return nil
	}
	fence, err := after(seen)
	if err != nil {
		return err
	}
	return s.write(ctx, func(l *Lease) { l.Fence = fence })
}

func after(fence uint64) (uint64, error) {
	if fence >= maxFence {
		return 0, fmt.Errorf("the fence %d is beyond any number of writers: %w", fence, format.ErrCorrupt)
	}
	return fence + 1, nil
}
