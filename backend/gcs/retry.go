package gcs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/swampd/swampd/backend"
)

// How often an attempt is repeated that fails in ways other than "busy", which
// has no limit but time.
const (
	maxConflicts  = 8
	maxDamaged    = 2
	maxTransients = 4
)

// The pauses between attempts double from the first to the longest; each is
// drawn between half and the whole of that.
const (
	firstBusyPause  = 500 * time.Millisecond // Google takes one write a second to a name
	firstOtherPause = 100 * time.Millisecond
	longestPause    = 16 * time.Second
)

// do makes attempts until one is final, as the package comment describes. The
// errors it returns carry the date of the answer that they come from.
func (d *Driver) do(ctx context.Context, op operation, attempt func(ctx context.Context, rec *record) error) error {
	if d.closed.Load() {
		return backend.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return ctxError(ctx)
	}
	until, bounded := ctx.Deadline()
	if !bounded {
		until = time.Now().Add(d.busy)
	}
	var done [transient + 1]int
	for {
		rec := &record{}
		err := attempt(withRecord(ctx, rec), rec)
		s := rec.snapshot()
		if err == nil {
			d.seen.Store(true)
			return nil
		}
		err, c := classify(ctx, op, s, err)
		if s.status == http.StatusPreconditionFailed || s.status == http.StatusRequestedRangeNotSatisfiable {
			d.seen.Store(true) // only an object's bucket can say that
		}
		pause, again := pauseFor(c, done[c])
		done[c]++
		if !again {
			return backend.WithDate(err, s.date)
		}
		pause = max(pause, retryAfter(s.header))
		if time.Now().Add(pause).After(until) {
			return backend.WithDate(fmt.Errorf("gave up after %d attempts: %w", total(done[:]), err), s.date)
		}
		if !sleep(ctx, pause) {
			return backend.WithDate(fmt.Errorf("gave up after %d attempts: %w: %w", total(done[:]), err, ctxError(ctx)), s.date)
		}
	}
}

// decided wraps an error that says by itself what became of the attempt.
type decided struct{ error }

func (e decided) Unwrap() error { return e.error }

//lint:ignore ST1008 the class says how to take the error, so it comes behind it
func classify(ctx context.Context, op operation, s snapshot, err error) (error, class) {
	if e, ok := err.(decided); ok {
		return withoutQuery(e.error), final
	}
	return judge(ctx, op, s, withoutQuery(err))
}

// pauseFor is how long to wait after the nth failure (from 0) of a class, if at
// all.
func pauseFor(c class, n int) (time.Duration, bool) {
	first, most := firstOtherPause, 0
	switch c {
	case busy:
		first, most = firstBusyPause, n+1
	case conflict:
		most = maxConflicts
	case damaged:
		most = maxDamaged
	case transient:
		most = maxTransients
	}
	if n >= most {
		return 0, false
	}
	p := longestPause
	if n < 10 {
		p = min(p, first<<n)
	}
	return p/2 + rand.N(p/2), true
}

func total(n []int) int {
	sum := 0
	for _, v := range n {
		sum += v
	}
	return sum
}

// sleep waits, and says whether it was for the whole time.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A pacer keeps writes to one name apart in time. It knows only the writes of
// this Driver; what others write shows as "busy".
type pacer struct {
	interval time.Duration

	mu   sync.Mutex
	next map[string]time.Time // when a name may be written again
}

func newPacer(interval time.Duration) *pacer {
	return &pacer{interval: interval, next: map[string]time.Time{}}
}

// wait blocks until name may be written, in the order of the calls. It gives up
// at once where the context ends before that.
func (p *pacer) wait(ctx context.Context, name string) error {
	if p.interval <= 0 {
		return nil
	}
	p.mu.Lock()
	now := time.Now()
	at := now
	if t := p.next[name]; t.After(now) {
		at = t
	}
	if end, ok := ctx.Deadline(); ok && end.Before(at) {
		p.mu.Unlock()
		return fmt.Errorf("%w: the store takes one write to this name every %v, the next in %v, which is after the deadline; nothing was sent",
			backend.ErrBusy, p.interval, at.Sub(now).Round(time.Millisecond))
	}
	p.next[name] = at.Add(p.interval)
	p.mu.Unlock()
	if at.Equal(now) || sleep(ctx, at.Sub(now)) {
		return nil
	}
	p.mu.Lock()
	if p.next[name].Equal(at.Add(p.interval)) { // nobody queued behind
		p.next[name] = at
	}
	p.mu.Unlock()
	return fmt.Errorf("%w: waiting to write to this name again, nothing was sent: %w", backend.ErrBusy, ctxError(ctx))
}

// wrote notes that the store answered a write to name just now.
func (p *pacer) wrote(name string) {
	if p.interval <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if t := now.Add(p.interval); t.After(p.next[name]) {
		p.next[name] = t
	}
	if len(p.next) > maxPaced {
		for n, t := range p.next {
			if t.Before(now) {
				delete(p.next, n)
			}
		}
	}
}

// maxPaced is how many names are remembered before those are forgotten whose
// time has passed.
const maxPaced = 256
