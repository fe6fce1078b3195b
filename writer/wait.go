package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
)

// Wait says who is waited for.
type Wait struct {
	Holder Lease
	// Verdict is what the judge says of the holder.
	Verdict Verdict
	// Age is the time since the last renewal, on the store's clock; negative if
	// the store cannot tell.
	Age time.Duration
	// Takeover is when the lease may be taken over if it stays as it is;
	// negative if no time decides that: the holder is alive, or the store cannot
	// tell its age.
	Takeover time.Duration
	// Adoption: at Takeover it is adopted, by the promise of a writer of this id.
	Adoption bool
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
	if e.Verdict.Standing == Alive {
		return s + fmt.Sprintf("; it is alive (%s): wait for it to end, or stop it", e.Verdict.Evidence)
	}
	s += fmt.Sprintf("; whether it lives cannot be seen from here (%s): wait for it to end, or stop it", e.Verdict.Evidence)
	if e.Takeover >= 0 {
		s += fmt.Sprintf("; if it has died, it can be replaced in %v", e.Takeover.Round(time.Second/10))
	}
	return s + "; if you know that it has, a forced release (swampd lock release --force) does not wait"
}

// who names the writer for people. All of it is the store's word: quoted.
func (l *Lease) who() string {
	s := "a writer without a name"
	if l.Command != "" {
		s = fmt.Sprintf("%.200q", l.Command)
	}
	if l.Identity != nil {
		s += fmt.Sprintf(" (pid %d on %.200q)", l.Identity.PID, l.Identity.Hostname)
	}
	return fmt.Sprintf("%s since %s", s, l.Acquired.Format(time.RFC3339))
}

// action is what a new writer does about a lease.
type action int

const (
	holdOff action = iota
	take
	join
)

// outlook is what the lease as it was seen means for a new writer.
type outlook struct {
	action  action
	why     string
	verdict Verdict
	mine    *session // the session of this process that it names, if any
	// age and left: see Wait.Age and Wait.Takeover.
	age, left time.Duration
	adoption  bool
	// downgrade says why there is no fast adoption where it is asked for.
	downgrade string
}

// queue is one taker's waiting.
type queue struct {
	s      *session // the taker's
	o      *Options
	began  time.Duration
	poll   time.Duration
	holder Wait
	wake   <-chan struct{} // closed when it is worth to look again

	// version has been seen since the end of the read that showed it first.
	version backend.Version
	since   time.Duration
	// told is the downgrade that was logged.
	told string
}

func newQueue(s *session) *queue {
	return &queue{s: s, o: &s.opts, began: s.opts.Boot(), poll: pollMin}
}

// assess says what may be done about the lease as it was just seen.
func (q *queue) assess(l *Lease, seen *sight) outlook {
	if seen.info.Version != q.version {
		q.version, q.since = seen.info.Version, seen.after
	}
	if l == nil {
		return outlook{action: take, why: "nobody has written yet", age: -1}
	}
	out := q.consider(l, seen)
	if was := q.holder.Holder.Session; l.Session != was && was != uuid.Nil {
		q.poll = q.moving()
	}
	q.holder = Wait{Holder: *l, Verdict: out.verdict, Age: out.age, Takeover: out.left, Adoption: out.adoption}
	if out.downgrade != "" && out.action == holdOff && out.downgrade != q.told {
		q.told = out.downgrade
		q.o.Logger.Warn("no fast adoption: waiting for the lease's time (TTL and skew)", "reason", out.downgrade)
	}
	return out
}

// moving is how often to look at a lease that goes from hand to hand: the more
// often, the longer this taker has waited. So many takers do not drown the store and
// one another in looks, and who comes later does not overtake for ever.
func (q *queue) moving() time.Duration {
	waited := q.o.Boot() - q.began
	return max(pollMin, time.Duration(float64(pollMoving)/(1+waited.Seconds()/2)))
}

// consider is the table of design/writer.md.
func (q *queue) consider(l *Lease, seen *sight) outlook {
	proc := q.o.Process
	out := outlook{age: -1, left: -1}
	if !seen.info.Now.IsZero() && !seen.info.Modified.IsZero() {
		out.age = max(seen.info.Now.Sub(seen.info.Modified), 0)
	}
	q.wake = nil
	if l.Released {
		out.action, out.why = take, "it was given back"
		return out
	}
	if s := proc.session(l.Session); s != nil {
		q.considerMine(&out, s)
		return out
	}
	me := proc.self()
	if l.Identity.same(me) {
		// That this process is alive says nothing: it does not act under the record.
		// A copy of it might, who has the guard.
		g := guardSight{free: true}
		if l.Guard != nil {
			g = proc.guard(l.Guard)
		}
		if g.free {
			out.action, out.why = take, "it was left over by this very process, in a session that it does not hold (any more)"
			return out
		}
		out.verdict = Verdict{Unknown, fmt.Sprintf("it names this very process, in a session that it does not hold, and its guard %s does not show that no copy of this machine holds it: %s", word(l.Guard.Path), g.words)}
		q.considerUnknown(&out, l, seen)
		return out
	}
	switch out.verdict = proc.judge(l.Identity, l.Guard, me); out.verdict.Standing {
	case Gone:
		out.action, out.why = take, "its process is gone"
	case Alive:
		out.why = "its process is alive"
	default:
		q.considerUnknown(&out, l, seen)
	}
	return out
}

// considerMine is for a record of a session of this process.
func (q *queue) considerMine(out *outlook, s *session) {
	out.mine = s
	out.verdict = Verdict{Alive, "it is this very process"}
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	select {
	case <-s.ready:
	default:
		if s.ctx.Err() == nil {
			out.why, q.wake = "this process is about to become the writer in it", s.ready
			return
		}
	}
	lost := s.err()
	switch {
	case lost == nil && !closing:
		out.action, out.why = join, "this process is the writer in it"
	case (lost == nil || errors.Is(lost, ErrReleased)) && !s.failed.Load():
		out.why, q.wake = "this process is giving it back", s.over
	default: // I7: lost is lost
		out.action, out.why = take, "it was left over by this very process, in a session that it does not hold (any more)"
	}
}

// considerUnknown is for a holder that cannot be seen: age and silence decide.
func (q *queue) considerUnknown(out *outlook, l *Lease, seen *sight) {
	silent := seen.before - q.since
	age := seen.info.Now.Sub(seen.info.Modified)
	left := max(l.TTL()+q.o.Skew-age, l.TTL()/2-silent)
	if age < 0 { // the store's clock was set back since: what was watched here counts
		left = min(left, l.TTL()+q.o.Skew-silent)
	}
	silence, why := q.s.adoption(l)
	if why == "" && (out.age < 0 || silence-silent < left) { // a promise makes nobody wait longer
		out.adoption = true
		out.left = max(silence-silent, 0)
		out.why = "its writer promised to be silent only if it has died"
		if silent >= silence {
			out.action = take
		}
		return
	}
	if why != "" && q.o.FastAdoption {
		out.downgrade = why
	}
	if out.age < 0 { // a store without a clock, or an answer without its time
		out.why = "the store cannot tell its age"
		return
	}
	out.left = max(left, 0)
	if left < 0 {
		out.action = take
		out.why = fmt.Sprintf("it was not renewed for its time (%v) and %v more", l.TTL(), q.o.Skew)
		return
	}
	out.why = "whether its process lives is not known"
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
		if q.holder.Adoption { // the silence counts from when a version is noticed
			pause = min(pause, max(q.o.Beat/5, pollMin))
		}
		if !q.pause(ctx, pause) {
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

// pause waits for d, or less: a holder that can be seen from here is looked at
// more often than its record, since that asks no store. False: ctx has ended.
func (q *queue) pause(ctx context.Context, d time.Duration) bool {
	watched := q.holder.Verdict.Standing == Alive && q.wake == nil
	for d > 0 {
		step := d
		if watched {
			step = min(step, pollMin)
		}
		if woken, ok := sleepOr(ctx, step, q.wake); !ok || woken {
			return ok
		}
		d -= step
		if watched && d > 0 && q.o.Process.judge(q.holder.Holder.Identity, q.holder.Holder.Guard, q.o.Process.self()).Standing != Alive {
			return true
		}
	}
	return true
}
