package writer

import (
	"context"
	"fmt"
	"time"

	"github.com/swampd/swampd/backend"
)

// Wait says who is waited for.
type Wait struct {
	Holder Lease
	// Age is the time since the last renewal, on the store's clock; negative if
	// the store cannot tell.
	Age time.Duration
	// Takeover is when the lease may be taken over if it stays as it is;
	// negative if that cannot be told.
	Takeover time.Duration
	// Waited and Left are parts of MaxWait.
	Waited, Left time.Duration
}

// BusyError is the ErrBusy that Acquire returns.
type BusyError struct{ Wait }

func (*BusyError) Unwrap() error { return ErrBusy }

func (e *BusyError) Error() string {
	s := fmt.Sprintf("%v: %s", ErrBusy, e.Holder.who())
	if e.Age >= 0 {
		s += fmt.Sprintf(", last renewed %v ago", e.Age.Round(time.Second/10))
	}
	if waited := e.Waited.Round(time.Second / 10); waited > 0 {
		s += fmt.Sprintf("; waited %v", waited)
	}
	s += "; wait for it to end, or stop it"
	if e.Takeover >= 0 {
		s += fmt.Sprintf("; if it has died, it can be replaced in %v", e.Takeover.Round(time.Second/10))
	}
	return s
}

// who names the writer for people. All of it is the store's word: quoted.
func (l *Lease) who() string {
	s := "a writer without a name"
	if l.Command != "" {
		s = fmt.Sprintf("%q", l.Command)
	}
	if l.Identity != nil {
		s += fmt.Sprintf(" (pid %d on %q)", l.Identity.PID, l.Identity.Hostname)
	}
	return fmt.Sprintf("%s since %s", s, l.Acquired.Format(time.RFC3339))
}

// free says that nobody holds this lease: it was given back, or its session
// belongs to this process and is over (R12).
func (l *Lease) free() bool {
	_, over := ended.Load(l.Session)
	return l.Released || over
}

// queue is one taker's waiting.
type queue struct {
	o      *Options
	began  time.Duration
	poll   time.Duration
	holder Wait

	// version has been seen since the end of the read that showed it first.
	version backend.Version
	since   time.Duration
}

func newQueue(o *Options) *queue { return &queue{o: o, began: o.Boot(), poll: pollMin} }

// mayTakeOver judges a lease that is another's. This slice of the package knows
// nothing of processes: every holder is judged "unknown", by age and silence.
func (q *queue) mayTakeOver(l *Lease, seen *sight) bool {
	if seen.info.Version != q.version {
		q.version, q.since = seen.info.Version, seen.after
	}
	if l.Session != q.holder.Holder.Session {
		q.poll = pollMin // there is movement: look often again
	}
	silence := l.TTL()/2 - (seen.before - q.since)
	q.holder = Wait{Holder: *l, Age: -1, Takeover: -1}
	if seen.info.Now.IsZero() {
		return false // a store without a clock: the age is not known
	}
	age := seen.info.Now.Sub(seen.info.Modified)
	left := max(l.TTL()+q.o.Skew-age, silence)
	q.holder.Age, q.holder.Takeover = max(age, 0), max(left, 0)
	return left < 0
}

// wait lets some time pass and looks again; at the end of MaxWait it gives up.
func (q *queue) wait(ctx context.Context, c *cell, old *Lease) (*sight, error) {
	var trouble error // why the newest look failed
	for {
		q.holder.Waited = q.o.Boot() - q.began
		q.holder.Left = max(q.o.MaxWait-q.holder.Waited, 0)
		q.o.Waiting(q.holder)
		if q.holder.Left == 0 {
			if trouble != nil {
				return nil, trouble
			}
			return nil, &BusyError{q.holder}
		}
		pause := min(jitter(q.poll), q.holder.Left)
		if q.holder.Takeover > 0 {
			pause = min(pause, q.holder.Takeover+time.Millisecond)
		}
		if !sleep(ctx, pause) {
			return nil, fmt.Errorf("waiting for %s: %w", old.who(), context.Cause(ctx))
		}
		q.poll = min(q.poll*5/4, pollMax)
		seen, err := c.look(ctx)
		if err == nil || refused(err) {
			return seen, err
		}
		trouble = err
	}
}
