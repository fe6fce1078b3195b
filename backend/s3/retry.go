package s3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/swampd/swampd/backend"
)

// mode says what a repeated request can do.
type mode int

const (
	// repeatable requests leave the same behind however often they are carried
	// out, and the caller is told the same.
	repeatable mode = iota
	// decisive requests are conditional writes: carried out twice, the second
	// says the opposite of the first.
	decisive
	// completing is decisive too, and 409 ends it: the store has forgotten what
	// was to be completed.
	completing
)

// Waits before another attempt. The shortest is doubled each time up to the
// longest; of the result a random half is taken off.
var backoffs = map[verdict]struct {
	shortest, longest time.Duration
	attempts          int // in all; 0: as many as there is time for
}{
	throttled: {100 * time.Millisecond, 10 * time.Second, 0},
	contested: {20 * time.Millisecond, time.Second, 0},
	skewed:    {time.Millisecond, time.Millisecond, 2},
	unreached: {100 * time.Millisecond, time.Second, 3},
	passing:   {50 * time.Millisecond, 2 * time.Second, 5},
}

// call sends one request, again and again where the mode and the answer allow
// it. send is called once for each attempt, with a context that carries the
// exchange. The error is a *failure, or the context's error if that was over
// before the first attempt.
func (d *Driver) call(ctx context.Context, m mode, send func(ctx context.Context, ex *exchange) error) (*exchange, error) {
	if err := contextError(ctx); err != nil {
		return &exchange{}, fmt.Errorf("nothing was sent: %w", err)
	}
	p := pace{limit: d.opts.MaxWait}
	for {
		ex := &exchange{}
		err := send(withExchange(ctx, ex), ex)
		if err == nil {
			return ex, nil
		}
		f := d.examine(ctx, ex, err)
		if !f.repeat(m) || !p.wait(ctx, f, ex) {
			return ex, f.last(ctx, p.repeats)
		}
	}
}

// repeat says whether the outcome that the caller is told cannot be changed by
// another attempt.
func (f *failure) repeat(m mode) bool {
	switch f.verdict {
	case throttled, skewed:
		return true
	case contested:
		return m != completing
	case unreached:
		return !f.permanent()
	case passing:
		return m == repeatable
	}
	return false
}

// last completes the failure that ends a call: how often it was tried, and that
// the context is over, if that is why it is not tried again.
func (f *failure) last(ctx context.Context, repeats int) *failure {
	if repeats > 0 {
		f.says = fmt.Sprintf("%s (attempt %d)", f.says, repeats+1)
	}
	if err := contextError(ctx); err != nil && f.verdict != final {
		f.cause = errors.Join(err, f.cause)
	}
	return f
}

// pace keeps count of the repeats of one call and of the time that it waited.
type pace struct {
	limit   time.Duration // for all waits together, if there is no deadline
	repeats int
	waited  time.Duration
	over    bool // the time is used up; the attempt that goes on is the last
}

// wait waits before another attempt. It returns false if there is to be none.
func (p *pace) wait(ctx context.Context, f *failure, ex *exchange) bool {
	b := backoffs[f.verdict]
	if p.over || ctx.Err() != nil || b.attempts > 0 && p.repeats+1 >= b.attempts {
		return false
	}
	pause := min(b.shortest<<min(p.repeats, 20), b.longest)
	pause -= rand.N(pause/2 + 1)
	pause = max(pause, min(retryAfter(ex.header), b.longest))
	left := p.limit - p.waited
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	if pause >= left {
		// One more attempt, while there is time left for its answer.
		p.over, pause = true, left/2
	}
	if pause <= 0 {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	p.waited += pause
	p.repeats++
	return ctx.Err() == nil
}

// retryAfter is what the store asks for, in whole seconds.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 || n > 3600 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// meaning is the error of a call that failed for good, apart from what 404 and
// 412 say, which the operation has looked at.
func (f *failure) meaning(m mode) error {
	switch f.verdict {
	case throttled:
		return f.as(backend.ErrBusy)
	case contested:
		return f.as(backend.ErrConflict)
	case passing:
		if m != repeatable {
			return f.as(backend.ErrUnknown)
		}
	}
	return f.as(f.sentinel)
}
