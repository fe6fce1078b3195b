package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// The way out, counted from the moment in which a subsystem was found stuck.
const (
	exitTime   = 5 * time.Second        // in all
	drainTime  = 2 * time.Second        // of it, for writes in flight
	reportTime = 500 * time.Millisecond // of it, kept for Report

	// Release's context ends this much before it is given up, so that it can
	// still say why.
	lastWords = 250 * time.Millisecond
	drainPoll = 10 * time.Millisecond
)

const (
	defaultLimit = 30 * time.Second
	minLimit     = 100 * time.Millisecond
	maxRound     = time.Second // between two looks at the pulses
	exitSoftware = 70          // EX_SOFTWARE of sysexits.h
)

// WatchdogOptions say how a process ends that is stuck. Nil and zero mean the
// default.
//
// Every function runs in a goroutine of its own and may be called while any
// other code of the program hangs, so it should take no lock that such code may
// hold. One that blocks for ever or panics costs its result, never the exit.
type WatchdogOptions struct {
	// Halt closes admission: after it no write begins. A write counts itself as
	// in flight first and looks whether it may begin second. Nil: nothing to
	// close.
	Halt func()
	// InFlight counts the writes that were begun and are not decided. It is asked
	// again and again until it is 0. Nil: there never are any.
	InFlight func() int
	// Release gives the lease back, over a connection of its own. It is called at
	// most once, only after Halt and an InFlight of 0. Nil: there is no lease.
	Release func(ctx context.Context) error
	// Report is told what happened, in one line without its end. It comes last of
	// all, and gets 500 ms. Default: a line on os.Stderr.
	Report func(text string)
	// Exit ends the process. It is called once, whatever happened. Default:
	// os.Exit.
	Exit func(code int)
	// Code is the exit code: 70 (EX_SOFTWARE) by default, and also in place of a
	// code that a system would show as 0.
	Code int
}

// Watchdog ends the process when a subsystem has stopped moving: it closes
// admission, waits up to 2 s for writes in flight, gives the lease back if there
// are none, reports, and exits with a code that is not 0; all within 5 s.
//
// It takes no lock, and it waits for nothing without a bound. Its methods are
// safe for concurrent use. A nil Watchdog watches nothing.
type Watchdog struct {
	opts   WatchdogOptions          // with its defaults filled in
	pulses atomic.Pointer[[]*Pulse] // the list is replaced, never changed

	over atomic.Bool   // closed, or on the way out
	stop chan struct{} // closed by Close
	wake chan struct{} // a pulse was added, and may need shorter rounds
	done chan struct{} // closed by run at its end
}

// NewWatchdog starts a watchdog. It must be closed.
func NewWatchdog(o *WatchdogOptions) *Watchdog {
	w := &Watchdog{stop: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{})}
	if o != nil {
		w.opts = *o
	}
	if w.opts.Halt == nil {
		w.opts.Halt = func() {}
	}
	if w.opts.InFlight == nil {
		w.opts.InFlight = func() int { return 0 }
	}
	if w.opts.Report == nil {
		w.opts.Report = func(text string) { fmt.Fprintln(os.Stderr, text) }
	}
	if w.opts.Exit == nil {
		w.opts.Exit = os.Exit
	}
	if w.opts.Code&0xff == 0 { // POSIX keeps eight bits
		w.opts.Code = exitSoftware
	}
	w.pulses.Store(&[]*Pulse{})
	go w.run()
	return w
}

// Watch begins to watch a subsystem, which must show a sign of life within each
// limit: 30 s if zero, at least 100 ms; best several times as long as the
// subsystem needs. It is found stuck between limit and limit*5/4 after its last
// sign, of the time in which the process could run. Until its first Phase it is
// in the phase "starting". Watch does not block. It is meant for what lives long;
// a single piece of work is a phase.
func (w *Watchdog) Watch(subsystem string, limit time.Duration) *Pulse {
	if w == nil {
		return nil
	}
	if limit <= 0 {
		limit = defaultLimit
	}
	limit = max(limit, minLimit)
	p := &Pulse{dog: w, subsystem: subsystem, limit: limit, step: min(limit/8, maxRound)}
	p.Phase("starting")
	w.change(func(all []*Pulse) []*Pulse { return append(all, p) })
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
	return p
}

// change replaces the list of pulses by what edit makes of a copy.
func (w *Watchdog) change(edit func([]*Pulse) []*Pulse) {
	for {
		old := w.pulses.Load()
		list := edit(append([]*Pulse(nil), *old...))
		if w.pulses.CompareAndSwap(old, &list) {
			return
		}
	}
}

// Close ends the watching and joins the watchdog's goroutine. If the watchdog is
// on its way out already, Close blocks until the process ends, so that no return
// from main makes the exit look like a success.
func (w *Watchdog) Close() {
	if w == nil {
		return
	}
	if !w.over.Swap(true) {
		close(w.stop)
	}
	<-w.done
}

// Pulse is a subsystem's sign of life. Its methods are safe for concurrent use,
// never block, and take no lock. Those of a nil Pulse do nothing, so code that
// may run without a watchdog needs no case for it.
type Pulse struct {
	dog       *Watchdog
	subsystem string
	limit     time.Duration
	step      time.Duration // the longest time that is planned between two rounds

	beats atomic.Uint64
	phase atomic.Pointer[string]
	idle  atomic.Bool

	// Of the watchdog's goroutine.
	seen   uint64        // beats, in the newest round
	silent time.Duration // for how long it has been that many
	late   bool          // the newest round was
}

// Phase is a sign of life of a subsystem that is now in the named phase. The
// name is what a person will read if it gets stuck there.
func (p *Pulse) Phase(name string) {
	if p == nil {
		return
	}
	if old := p.phase.Load(); old == nil || *old != name {
		p.phase.Store(new(name))
	}
	p.Beat()
}

// Beat is a sign of life in the same phase.
func (p *Pulse) Beat() {
	if p == nil {
		return
	}
	p.idle.Store(false)
	p.beats.Add(1)
}

// Idle says that the subsystem waits for work. It is not watched until its next
// Phase or Beat.
func (p *Pulse) Idle() {
	if p == nil {
		return
	}
	p.idle.Store(true)
	p.beats.Add(1)
}

// End says that the subsystem is over. It is not watched any more.
func (p *Pulse) End() {
	if p == nil {
		return
	}
	p.beats.Add(1) // for a round that has begun with the old list
	p.dog.change(func(all []*Pulse) []*Pulse {
		for i, other := range all {
			if other == p {
				return append(all[:i], all[i+1:]...)
			}
		}
		return all
	})
}

// run looks at the pulses, round after round.
func (w *Watchdog) run() {
	defer close(w.done)
	for last := time.Now(); ; {
		timer := time.NewTimer(w.interval())
		select {
		case <-w.stop:
			timer.Stop()
			return
		case <-w.wake:
			timer.Stop()
		case <-timer.C:
		}
		now := time.Now()
		stuck := w.round(now.Sub(last))
		last = now
		if len(stuck) > 0 && !w.over.Swap(true) {
			w.leave(stuck)
			return
		}
	}
}

// interval is as short as the pulse with the shortest limit needs it.
func (w *Watchdog) interval() time.Duration {
	d := maxRound
	for _, p := range *w.pulses.Load() {
		d = min(d, p.step)
	}
	return d
}

// round says of each stuck subsystem that it is, elapsed after the last round.
func (w *Watchdog) round(elapsed time.Duration) (stuck []string) {
	for _, p := range *w.pulses.Load() {
		if p.stuck(elapsed) {
			stuck = append(stuck, fmt.Sprintf("subsystem %q shows no sign of life for %v, in its phase %q (limit %v)",
				p.subsystem, p.silent.Round(time.Second/10), *p.phase.Load(), p.limit))
		}
	}
	return stuck
}

// stuck counts the silence, elapsed after the last round. When a process was
// stopped, its container frozen or its machine asleep, all timers fire at once as
// it goes on, and the subsystems must get their chance before they are judged. So
// a round that comes late counts nothing, however much later it is. If the one
// before was late too, the machine is slow, and the round counts as one in time:
// what is stuck must be found there too.
func (p *Pulse) stuck(elapsed time.Duration) bool {
	late := elapsed > 2*p.step
	again := late && p.late
	p.late = late
	if beats := p.beats.Load(); p.idle.Load() || beats != p.seen {
		p.seen, p.silent = beats, 0
	} else if again {
		p.silent += p.step
	} else if !late {
		p.silent += elapsed
	}
	return p.silent >= p.limit
}

// leave is the way out. All that is not the watchdog's own code runs apart from
// it, and is waited for only so long.
func (w *Watchdog) leave(stuck []string) {
	began := time.Now()
	fate := w.release(began)
	text := fmt.Sprintf("watchdog: %s; %s; exiting with code %d", strings.Join(stuck, "; "), fate, w.opts.Code)
	await(apart(func() error {
		w.opts.Report(text)
		return nil
	}), reportTime)
	w.opts.Exit(w.opts.Code)
}

// release gives the lease back unless a write is in flight, and says what became
// of it.
func (w *Watchdog) release(began time.Time) string {
	const kept = "the lease was not given back, others wait until it runs out: "
	if undecided := w.drain(); undecided != "" {
		return kept + undecided
	}
	if w.opts.Release == nil {
		return "there was no lease to give back"
	}
	left := exitTime - reportTime - time.Since(began)
	ctx, cancel := context.WithTimeout(context.Background(), left-lastWords)
	released := apart(func() error {
		defer cancel()
		return w.opts.Release(ctx)
	})
	if err, ok := await(released, left); !ok {
		return fmt.Sprintf("%sno answer to its release within %v", kept, left.Round(time.Second/10))
	} else if err != nil {
		return kept + err.Error()
	}
	return "the lease was given back"
}

// drain closes admission and waits until no write is in flight. If that cannot
// be shown in time, it says why: then a write may still be under way, and its
// lease must not be given away from under it.
func (w *Watchdog) drain() (undecided string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var at atomic.Pointer[string]
	at.Store(new("admission did not close"))
	drained := apart(func() error {
		w.opts.Halt()
		at.Store(new("the writes in flight were not counted"))
		for {
			n := w.opts.InFlight()
			if n == 0 {
				return nil
			}
			at.Store(new(fmt.Sprintf("writes in flight (%d) were not decided", n)))
			if !sleep(ctx, drainPoll) {
				return nil // nobody listens any more
			}
		}
	})
	if err, ok := await(drained, drainTime); !ok {
		return fmt.Sprintf("%s within %v", *at.Load(), drainTime)
	} else if err != nil {
		return fmt.Sprintf("%s: %v", *at.Load(), err)
	}
	return ""
}

// apart runs f in a goroutine of its own. Whatever f does there comes out as an
// error of one line.
func apart(f func() error) <-chan error {
	done := make(chan error, 1) // so that nobody needs to listen
	go func() {
		err := errors.New("it ended its goroutine")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("it panicked: %v", v)
			}
			if err != nil {
				err = errors.New(strings.Join(strings.Fields(err.Error()), " "))
			}
			done <- err
		}()
		if err = f(); err != nil {
			err = errors.New(err.Error()) // foreign code too, which may hang or panic
		}
	}()
	return done
}

// await is false if nothing comes in time.
func await(done <-chan error, limit time.Duration) (error, bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err, true
	case <-timer.C:
		return nil, false
	}
}
