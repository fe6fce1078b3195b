package writer

import (
	"context"
	"math/rand/v2"
	"time"
)

// Every duration that decides who may write (silence, the age of a hold) is taken from
// a clock that nobody can set and that counts while the machine sleeps: bootClock.
// Bounds of calls are timers. The wall clock is written into records for people and
// never read back.

var started = time.Now()

func sinceStart() time.Duration { return time.Since(started) }

// sleep waits, or returns false as soon as ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	_, ok := sleepOr(ctx, d, nil)
	return ok
}

// jitter is between half of d and one and a half.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// backoff is how long to wait after the n-th attempt (from 0).
func backoff(n int) time.Duration {
	return jitter(min(100*time.Millisecond<<min(n, 10), 2*time.Second))
}

// sleepOr is sleep that also ends, woken, when wake is closed (nil: never).
func sleepOr(ctx context.Context, d time.Duration, wake <-chan struct{}) (woken, ok bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-wake:
		return true, ctx.Err() == nil
	case <-t.C:
		return false, ctx.Err() == nil
	}
}
