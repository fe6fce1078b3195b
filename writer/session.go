package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
)

// session is one acquisition of the lease: from its first write to the moment
// when its record was given back or replaced. The Holds that share it are
// handles of it.
//
// Lock order: turn, then nothing. mu is never held across a call to the store.
type session struct {
	proc  *Process
	opts  Options // with its defaults filled in
	id    uuid.UUID
	fence uint64 // fixed when ready is closed

	// turn is held by who writes the record; it guards cell, lease, proven and
	// replaced.
	turn  chan struct{}
	cell  cell
	lease Lease // as last written
	// started counts the writes that began, proven is the newest of them that
	// succeeded.
	started atomic.Uint64
	proven  uint64
	// replaced says whose record is in the place of mine, once one is.
	replaced error

	// guard and noGuard are of who acquires, later of who ends the session.
	guard   *heldGuard
	noGuard error
	// promised is fixed when the lease is taken; nil: no fast adoption.
	promised *Adoption

	// stamp is the boot clock before the newest successful write. It only moves
	// forward: a slow answer to an early write does not make the hold older.
	stamp atomic.Int64
	late  atomic.Bool // a beat was missed, and somebody was told

	// ctx ends when the hold is lost or closed. life ends with the last Close:
	// until then the record is given back also after a loss.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	life    context.Context
	endLife context.CancelFunc
	work    []chan struct{} // each closed by its goroutine at its end
	// ready is closed when the log is entered, or never will be; before that nobody
	// joins. over is closed when nothing of the session is on its way any more, and
	// failed is set when it was not given back in time.
	ready, over chan struct{}
	isReady     sync.Once
	failed      atomic.Bool
	buried      sync.Once

	writes atomic.Int64 // on their way into the log
	sent   sent

	mu      sync.Mutex
	holds   []*Hold // that are not closed
	closing bool
	given   *backend.Bucket // of one of holds, or of the last
	own     *backend.Bucket // the heartbeat's connection, if there is one
}

func newSession(ctx context.Context, bucket *backend.Bucket, o Options) *session {
	s := &session{
		proc:  o.Process,
		opts:  o,
		id:    uuid.New(),
		turn:  make(chan struct{}, 1),
		given: bucket,
		cell:  cell{bucket: bucket, boot: o.Boot, call: min(o.TTL/3, callTime)},
		ready: make(chan struct{}),
		over:  make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.life, s.endLife = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// err is nil while the hold stands. It is exact about the time that has passed,
// also right after the machine slept.
func (s *session) err() error {
	if s.ctx.Err() == nil && s.left() <= 0 {
		s.expire()
	}
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// left is how long the hold stands if no renewal succeeds.
func (s *session) left() time.Duration { return s.opts.TTL - s.silence() }

// silence is the time since the newest success.
func (s *session) silence() time.Duration {
	return s.opts.Boot() - time.Duration(s.stamp.Load())
}

func (s *session) expire() {
	why := errors.New("the store did not answer")
	if p := s.cell.trouble.Load(); p != nil {
		why = *p
	}
	s.cancel(fmt.Errorf("%w for %v, so another writer may take over; open the datastore anew: %w", ErrExpired, s.opts.TTL, why))
}

func (s *session) forward(stamp time.Duration) {
	for {
		old := s.stamp.Load()
		if int64(stamp) <= old || s.stamp.CompareAndSwap(old, int64(stamp)) {
			return
		}
	}
}

// write changes the record that is mine.
func (s *session) write(ctx context.Context, change func(*Lease)) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return s.writeInTurn(ctx, change)
}

func (s *session) writeInTurn(ctx context.Context, change func(*Lease)) error {
	s.cell.bucket = s.connection()
	next := s.lease
	change(&next)
	if s.replaced != nil {
		return s.replaced
	}
	if next.Released && s.lease.Released {
		return nil
	}
	next.Beat++
	next.Renewed = s.opts.Now().UTC()
	data, err := next.Encode()
	if err != nil {
		return err
	}
	this := s.started.Add(1)
	start, err := s.cell.swap(ctx, data)
	if f := (*foreignError)(nil); errors.As(err, &f) {
		s.replaced = s.fenced(f.seen)
		return s.replaced
	}
	if err != nil {
		// It may be in doubt under this beat; the next one needs another.
		s.lease.Beat = next.Beat
		return err
	}
	s.lease, s.proven = next, this
	if s.fence != next.Fence { // raised; not yet read without the turn
		s.fence = next.Fence
	}
	s.forward(start)
	return nil
}

// fenced says in words what stands in the place of my record.
func (s *session) fenced(seen *sight) error {
	who := "another writer"
	if seen.data == nil {
		who = "nobody: the record was removed by hand"
	} else if l, err := DecodeLease(seen.data); err != nil {
		who = fmt.Sprintf("a record that cannot be read (%v)", err)
	} else if l.Session == s.id {
		who = "a copy of this very process, as of a cloned machine, under the same session"
	} else {
		who = fmt.Sprintf("%s, with fence %d after %d", l.who(), l.Fence, s.fence)
	}
	return fmt.Errorf("the writer's lease now belongs to %s; session %s can write nothing more, open the datastore anew: %w", who, s.id, ErrFenced)
}

// start sets off what keeps the hold and what watches it.
func (s *session) start() {
	run := []func(){s.heartbeat, s.monitor}
	if s.opts.Connect != nil {
		run = append(run, s.connect)
	}
	for _, run := range run {
		done := make(chan struct{})
		s.work = append(s.work, done)
		go func() {
			defer close(done)
			run()
		}()
	}
}

// join waits for the session's goroutines, whose contexts have ended.
func (s *session) join(ctx context.Context) error {
	for _, done := range s.work {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("a call to the store does not end: %w", context.Cause(ctx))
		}
	}
	return nil
}

// beat is how often the record is renewed.
func (s *session) beat() time.Duration {
	if a := s.promised; a != nil {
		return time.Duration(a.BeatMillis) * time.Millisecond
	}
	return s.opts.TTL / 3
}

// heartbeat renews every third of the TTL, or as often as was promised. A renewal
// that fails is tried again until it succeeds, another owner shows, or the
// monitor ends the hold. After a loss it gives the record back, if it is still
// mine: who judges this process alive would wait for it as long as it lives.
func (s *session) heartbeat() {
	every := s.beat()
	wait := every
	for sleep(s.ctx, wait) && s.err() == nil {
		wait = every
		err := s.write(s.ctx, func(*Lease) {})
		if errors.Is(err, ErrFenced) {
			s.cancel(err)
		} else if err != nil {
			wait = jitter(every / 10)
		}
	}
	for attempt := 0; s.life.Err() == nil; attempt++ {
		if err := s.write(s.life, released); err == nil || errors.Is(err, ErrFenced) || !sleep(s.life, backoff(attempt)) {
			return
		}
	}
}

func released(l *Lease) { l.Released = true }

// monitor ends the hold when no renewal has succeeded for the TTL, whatever the
// heartbeat is stuck in. It looks more often than its timer would need, because
// timers stand still while the machine sleeps. A beat that was promised and
// missed is no end: nobody adopts while the guard is locked.
func (s *session) monitor() {
	look := min(s.opts.TTL/10, s.beat())
	for s.err() == nil {
		if a := s.promised; a != nil {
			s.alarm(time.Duration(a.SelfFenceMillis) * time.Millisecond)
		}
		sleep(s.ctx, min(s.left(), look))
	}
}

// alarm tells once of each time that the promised beats stay away.
func (s *session) alarm(limit time.Duration) {
	silent := s.silence()
	if late := silent > limit; s.late.Swap(late) == late || !late {
		return
	}
	why := errors.New("the store did not answer")
	if p := s.cell.trouble.Load(); p != nil {
		why = *p
	}
	s.opts.Logger.Warn("the writer's lease is renewed too late; the hold stands, since its guard is locked", "silent", silent, "reason", why)
}

// connect opens the heartbeat's own connection, so that what else is sent does
// not hold up a renewal. A hold that is given back before the first renewal has
// no need of it, and does not pay for it.
func (s *session) connect() {
	for attempt := 0; sleep(s.ctx, max(s.beat()/2, backoff(attempt))); attempt++ {
		own, err := s.opts.Connect(s.ctx)
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.own = own
			return
		}
		s.opts.Logger.Debug("the heartbeat has no connection of its own yet", "error", err)
	}
}

// connection is the heartbeat's own, or one that a hold which is not closed was
// given: with a hold its owner's bucket may end.
func (s *session) connection() *backend.Bucket {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		return s.own
	}
	return s.given
}

func (s *session) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own != nil
}

// close gives the record back; see Hold.Close.
func (s *session) close(ctx context.Context) error {
	lost := s.err()
	s.endLife() // first: Close gives it back, the heartbeat need not
	s.cancel(fmt.Errorf("session %s: %w", s.id, ErrReleased))
	ctx, cancel := context.WithTimeoutCause(ctx, releaseTime, errReleaseTime)
	defer cancel()
	err := s.release(ctx)
	if lost == nil {
		return err
	}
	if err != nil && !(errors.Is(lost, ErrFenced) && errors.Is(err, ErrFenced)) { // the same news twice
		return errors.Join(lost, err)
	}
	return lost
}

var errReleaseTime = fmt.Errorf("no answer within %v: %w", releaseTime, context.DeadlineExceeded)

// release writes "released" in the place of exactly what is mine. On a lease
// that has another owner by now it changes nothing. What cannot be given back now
// is tried again as long as this process lives (R12). The goroutines are joined
// after the write, which waits for its turn only: one that hangs in a connect
// holds up nobody.
func (s *session) release(ctx context.Context) error {
	err := s.write(ctx, released)
	if err == nil {
		s.proc.given.Store(&s.id)
	}
	if err == nil || errors.Is(err, ErrFenced) {
		if hangs := s.join(ctx); hangs != nil {
			s.opts.Logger.Warn("the writer's lease was given back, but its session is not over yet", "reason", hangs)
			s.proc.work.Go(func() { _ = s.join(s.proc.background); s.bury() }) // it ends then in any case
			return err
		}
		s.bury()
		return err
	}
	s.failed.Store(true)
	s.proc.work.Go(s.retire)
	return fmt.Errorf("the writer's lease was not given back yet; it is tried again while this process lives, and others wait up to %v after that: %w", s.opts.TTL+s.opts.Skew, err)
}

// retire goes on giving back what Close could not.
func (s *session) retire() {
	ctx := s.proc.background
	defer func() { _ = s.join(ctx); s.bury() }() // it ends then in any case
	for attempt := 0; sleep(ctx, min(backoff(attempt)*time.Duration(attempt+1), time.Minute)); attempt++ {
		if s.opts.Connect != nil && !s.connected() { // what was given is perhaps closed
			if own, err := s.opts.Connect(ctx); err == nil {
				s.mu.Lock()
				s.own = own
				s.mu.Unlock()
			}
		}
		err := s.write(ctx, released)
		if err == nil || errors.Is(err, ErrFenced) {
			return
		}
		if s.opts.Connect == nil && errors.Is(err, backend.ErrClosed) {
			return // it stays closed, and there is no other
		}
	}
}

func (s *session) nowReady() { s.isReady.Do(func() { close(s.ready) }) }

// bury ends what the session keeps: nothing of it is on its way any more.
func (s *session) bury() { s.buried.Do(s.buryOnce) }

func (s *session) buryOnce() {
	s.proc.forget(s)
	close(s.over)
	s.nowReady()
	s.proc.leaveGuard(s.guard)
	s.guard = nil
	s.mu.Lock()
	own := s.own
	s.own = nil
	s.mu.Unlock()
	if own != nil {
		own.Close()
	}
}
