package writer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
)

// Three processes with two takers each, at a store whose answers are lost, late,
// refused and slow by chance (the same in every run). Confirm never says yes to a
// hold that another had replaced before it was asked; Confirm and Close are bounded;
// the fences of the barriers grow; and at the end the lease is given back and no
// session is left.
func TestTakersAtAStoreThatFailsByChance(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	w := newWorld(t)
	var wg sync.WaitGroup
	var takers []*chaosTaker
	for p := range uint64(3) {
		me := w.stranger()
		for k := range uint64(2) {
			takers = append(takers, &chaosTaker{w: w, t: t, me: me, f: w.faulty(), r: rand.New(rand.NewPCG(seed, 2*p+k))})
		}
	}
	for _, c := range takers {
		wg.Go(func() {
			for range 12 {
				c.once()
			}
		})
	}
	wg.Wait()
	for _, c := range takers {
		c.f.Clear()
	}
	pass(5 * time.Minute) // the longest pause between two attempts to give back is one
	for _, c := range takers {
		c.me.mu.Lock()
		for _, s := range c.me.sessions {
			t.Errorf("a process remembers session %s: %v", s.id, s.err())
		}
		c.me.mu.Unlock()
	}
	if w.bytes() != nil && !w.lease().Released {
		t.Errorf("the lease was not given back: %+v", w.lease())
	}
	last := uint64(0)
	for _, b := range w.log.all() {
		if b.fence <= last {
			t.Errorf("fence %d after %d", b.fence, last)
		}
		last = b.fence
	}
}

// chaosTaker is one part of a process, which sees the store through f.
type chaosTaker struct {
	w      *world
	t      *testing.T
	me     *Process
	f      *faults.Driver
	r      *rand.Rand
	faults []*faults.Fault
}

func (c *chaosTaker) upTo(d time.Duration) time.Duration { return time.Duration(c.r.Int64N(int64(d))) }

// once takes the lease, or tries to, uses it, and gives it back.
func (c *chaosTaker) once() {
	c.trouble()
	ctx, cancel := context.WithTimeout(context.Background(), c.upTo(2*time.Minute))
	log := c.w.log.replica()
	if c.r.IntN(4) == 0 {
		long := c.upTo(time.Minute)
		log.catchUp = func(ctx context.Context) error {
			if !sleep(ctx, long) {
				return context.Cause(ctx)
			}
			return nil
		}
	}
	o := c.w.options(Options{Process: c.me, MaxWait: c.upTo(100*time.Second) - 10*time.Second})
	var h *Hold
	if c.r.IntN(12) == 0 {
		_, _ = ForceRelease(ctx, c.f.Bucket(), log, o)
	} else {
		h, _ = Acquire(ctx, c.f.Bucket(), log, o)
	}
	cancel()
	if h != nil {
		c.use(h)
	}
	if c.r.IntN(2) == 0 {
		for _, fault := range c.faults {
			fault.Remove()
			_ = fault.Release()
		}
		c.faults = nil
	}
	pass(c.upTo(3 * time.Second))
}

func (c *chaosTaker) trouble() {
	for range c.r.IntN(3) {
		ops := writes
		do := []faults.Action{
			faults.Lose(), faults.Late(), faults.BlockAnswer(), faults.Delay(c.upTo(time.Minute)),
			faults.Fail(backend.ErrUnknown), faults.Fail(backend.ErrBusy), faults.Fail(backend.ErrConflict), faults.Fail(backend.ErrDenied),
		}
		n := c.r.IntN(len(do))
		if n > 1 && c.r.IntN(2) == 0 { // the first two are of writes
			ops |= faults.Get
		}
		c.faults = append(c.faults, c.f.Add(on(ops, 1+c.r.IntN(4), do[n])))
	}
}

func (c *chaosTaker) use(h *Hold) {
	for range c.r.IntN(4) {
		pass(c.upTo(40 * time.Second))
		fence := c.w.lease().Fence
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		err := h.Confirm(ctx)
		cancel()
		if err == nil && fence > h.Fence() {
			c.t.Errorf("fence %d was confirmed, and the lease was at %d before", h.Fence(), fence)
		}
		if err != nil && !errors.Is(err, ErrNotConfirmed) && h.Err() == nil {
			c.t.Errorf("confirm: %v, and the hold stands", err)
		}
		if took := time.Since(began); took > 3*time.Second {
			c.t.Errorf("confirm took %v, its context 3s", took)
		}
	}
	began := time.Now()
	if c.r.IntN(6) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		_ = h.ReleaseAside(ctx)
		cancel()
	}
	_ = h.Close(context.Background())
	if took := time.Since(began); took > 9*time.Second {
		c.t.Errorf("the end took %v", took)
	}
}
