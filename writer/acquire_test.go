package writer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

func TestTheFirstWriterTakesFenceOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{Writer: "builder", Epoch: "3", Checkout: "/c", Command: "swampd put"})
		defer w.mustClose(h)
		l := w.lease()
		if l.Fence != 1 || h.Fence() != 1 || l.Session != h.Session() || l.Released {
			t.Errorf("the lease has fence %d, session %s, released %v; want those of the hold: 1, %s, false", l.Fence, l.Session, l.Released, h.Session())
		}
		if l.Writer != "builder" || l.Epoch != "3" || l.Checkout != "/c" || l.Command != "swampd put" || l.TTLMillis != 30000 {
			t.Errorf("the lease does not say what it was asked to: %+v", l)
		}
		if l.Identity == nil || l.Identity.PID == 0 || !l.Acquired.Equal(time.Now()) {
			t.Errorf("the lease does not say who and when: %+v", l)
		}
		if got, want := w.log.all(), []barrier{{1, h.Session()}}; len(got) != 1 || got[0] != want[0] {
			t.Errorf("the log has the barriers %v, want %v", got, want)
		}
		if err := h.Err(); err != nil {
			t.Errorf("the hold stands no more: %v", err)
		}
	})
}

func TestAReleasedLeaseIsTakenWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for want := uint64(1); want <= 3; want++ {
			h := w.mustAcquire(Options{MaxWait: -1})
			if h.Fence() != want {
				t.Errorf("fence %d, want %d", h.Fence(), want)
			}
			w.mustClose(h)
			if l := w.lease(); !l.Released || l.Session != h.Session() {
				t.Errorf("after Close the lease is %+v", l)
			}
		}
		if waited := time.Since(w.born); waited != 0 {
			t.Errorf("waited %v", waited)
		}
	})
}

// A lease that is another's is taken only when it is too old on the store's
// clock and has stood unchanged on the taker's.
func TestTakeoverNeedsAgeAndSilence(t *testing.T) {
	for name, c := range map[string]struct {
		ttl     time.Duration // recorded
		prepare func(w *world)
		from    time.Duration // when it may be taken; 0: never within 2 minutes
		notice  time.Duration // how much later the looking may find out
	}{
		"just renewed": {from: 40 * time.Second},
		"another TTL":  {ttl: 90 * time.Second, from: 100 * time.Second},
		"old already": {
			prepare: func(w *world) { w.storeClock(time.Hour, 1) },
			from:    15 * time.Second,
		},
		"the store's clock jumps ahead": {
			prepare: func(w *world) { time.AfterFunc(3*time.Second, func() { w.storeClock(time.Hour, 1) }) },
			from:    15 * time.Second,
		},
		"the store's clock jumps back": {
			prepare: func(w *world) { time.AfterFunc(3*time.Second, func() { w.storeClock(-30*time.Second, 1) }) },
			from:    70 * time.Second,
		},
		"the store's clock is set back by a day": {
			prepare: func(w *world) { w.storeClock(-24*time.Hour, 1) },
			from:    40 * time.Second,
		},
		"the store's clock stands still": {prepare: func(w *world) { w.storeClock(0, 0) }},
		"the store's clock races, and the holder renews once": {
			prepare: func(w *world) {
				w.storeClock(0, 1000)
				time.AfterFunc(10*time.Second, func() {
					l := w.lease()
					l.Beat++
					w.put(l)
				})
			},
			from:   25 * time.Second,
			notice: pollMax * 3 / 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := dead(5)
				if c.ttl != 0 {
					l.TTLMillis = c.ttl.Milliseconds()
				}
				w.put(l)
				if c.prepare != nil {
					c.prepare(w)
				}
				h, err := w.acquire(Options{MaxWait: 2 * time.Minute})
				took := time.Since(w.born)
				if c.from == 0 {
					if !errors.Is(err, ErrBusy) {
						t.Errorf("taken, or another error (%v), want ErrBusy", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer w.mustClose(h)
				if took <= c.from || took > c.from+c.notice+time.Millisecond {
					t.Errorf("taken after %v, want %v", took, c.from)
				}
				if h.Fence() != 6 || w.lease().Fence != 6 {
					t.Errorf("fence %d, in the lease %d, want 6", h.Fence(), w.lease().Fence)
				}
			})
		})
	}
}

func TestASleepOfTheMachineCountsAsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(1))
		w.storeClock(time.Hour, 1)
		began := w.boot()
		h := w.mustAcquire(Options{Boot: func() time.Duration {
			b := w.boot()
			if b-began > 5*time.Second {
				b += time.Hour
			}
			return b
		}, MaxWait: 2 * time.Hour})
		defer w.mustClose(h)
		if took := time.Since(w.born); took > 7*time.Second {
			t.Errorf("taken %v after the beginning, want about 5s", took)
		}
	})
}

func TestAStoreThatCannotTellTheTimeLosesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(1))
		_, err := Acquire(t.Context(), backend.NewBucket(noClock{w.store.Open()}, "mem://"), w.log.replica(), w.options(Options{MaxWait: 2 * time.Minute}))
		wantErr(t, err, ErrBusy)
		if strings.Contains(err.Error(), "renewed") || strings.Contains(err.Error(), "replaced") {
			t.Errorf("the message tells times that nobody knows: %v", err)
		}
	})
}

type noClock struct{ backend.Driver }

func (d noClock) Get(ctx context.Context, key string, o backend.GetOptions) (*backend.Object, error) {
	obj, err := d.Driver.Get(ctx, key, o)
	if obj != nil {
		obj.Now = time.Time{}
	}
	return obj, err
}

func TestALiveHolderIsNeverReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		_, err := w.acquire(Options{MaxWait: 5 * time.Minute})
		wantErr(t, err, ErrBusy)
		if err := h.Err(); err != nil {
			t.Errorf("the holder lost: %v", err)
		}
		w.mustClose(h)
	})
}

// What the clocks of hosts say changes nothing.
func TestHostClocksDecideNothing(t *testing.T) {
	for _, holder := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		for _, taker := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
			t.Run(fmt.Sprintf("holder %v, taker %v", holder, taker), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					wrong := func(by time.Duration) func() time.Time {
						return func() time.Time { return time.Now().Add(by) }
					}
					h := w.mustAcquire(Options{Now: wrong(holder)})
					o := Options{Now: wrong(taker), MaxWait: time.Minute}
					_, err := w.acquire(o)
					wantErr(t, err, ErrBusy)
					w.mustClose(h)

					l := dead(7)
					l.Renewed = wrong(holder)()
					w.put(l)
					began := time.Now()
					h = w.mustAcquire(o)
					defer w.mustClose(h)
					if took := time.Since(began); took <= 40*time.Second || took > 42*time.Second {
						t.Errorf("taken after %v, want 40s", took)
					}
				})
			})
		}
	}
}

func TestMaxWaitBoundsTheWaiting(t *testing.T) {
	for _, c := range []struct{ wait, want time.Duration }{{-1, 0}, {0, 60 * time.Second}, {7 * time.Second, 7 * time.Second}} {
		t.Run(c.wait.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				h := w.mustAcquire(Options{Command: "swampd put"})
				defer w.mustClose(h)
				pass(5 * time.Second)
				began := time.Now()
				var told []Wait
				_, err := w.acquire(Options{MaxWait: c.wait, Waiting: func(n Wait) { told = append(told, n) }})
				if took := time.Since(began); took != c.want {
					t.Errorf("gave up after %v, want %v", took, c.want)
				}
				wantErr(t, err, ErrBusy)
				var busy *BusyError
				if !errors.As(err, &busy) {
					t.Fatalf("%T is no *BusyError", err)
				}
				if busy.Holder.Session != h.Session() || busy.Waited != c.want || busy.Left != 0 {
					t.Errorf("it does not say who and how long: %+v", busy.Wait)
				}
				if c.want == 0 && (busy.Age != 5*time.Second || busy.Takeover != 35*time.Second) {
					t.Errorf("age %v and takeover in %v, want 5s and 35s", busy.Age, busy.Takeover)
				}
				for _, part := range []string{`"swampd put"`, fmt.Sprintf("pid %d", busy.Holder.Identity.PID), busy.Holder.Identity.Hostname, "since ", "it can be replaced in "} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q does not say %q", err, part)
					}
				}
				if len(told) == 0 || told[0].Left != max(c.want, 0) || told[len(told)-1].Left != 0 {
					t.Errorf("Waiting was told %v", told)
				}
				if most := int(c.want/(25*time.Millisecond)) + 1; len(told) > most {
					t.Errorf("looked %d times", len(told))
				}
			})
		})
	}
}

func TestTheEndOfTheContextEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(1))
		before := w.bytes()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := Acquire(ctx, w.store.Bucket(), w.log.replica(), w.options(Options{}))
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(w.born); took != 10*time.Second {
			t.Errorf("ended after %v, want 10s", took)
		}
		if string(w.bytes()) != string(before) {
			t.Errorf("the lease changed to %s", w.bytes())
		}
	})
}

func TestTroubleWhileWaitingIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		f := w.faulty()
		busy := func() { f.Add(on(faults.Get, faults.Always, faults.Fail(backend.ErrBusy))) }
		time.AfterFunc(3*time.Second, busy)
		time.AfterFunc(20*time.Second, func() { w.mustClose(h) })
		time.AfterFunc(30*time.Second, f.Clear)
		w.mustClose(w.mustAcquireOn(f))

		h3 := w.mustAcquire(Options{})
		defer w.mustClose(h3)
		time.AfterFunc(3*time.Second, busy)
		_, err := w.acquireOn(f, Options{})
		wantErr(t, err, backend.ErrBusy)
		f.Clear()

		began := time.Now()
		time.AfterFunc(3*time.Second, func() { f.Add(on(faults.Get, faults.Always, faults.Fail(backend.ErrDenied))) })
		_, err = w.acquireOn(f, Options{})
		wantErr(t, err, backend.ErrDenied)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("waited %v for a store that refuses", took)
		}
	})
}

func TestARefusalIsNotWaitedFor(t *testing.T) {
	for _, ops := range []faults.Op{faults.Get, faults.Create} {
		t.Run(ops.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.faulty()
				f.Add(on(ops, faults.Always, faults.Fail(backend.ErrDenied)))
				_, err := w.acquireOn(f, Options{})
				wantErr(t, err, backend.ErrDenied)
				if took := time.Since(w.born); took != 0 {
					t.Errorf("waited %v", took)
				}
				w.mustClose(w.mustAcquire(Options{MaxWait: -1}))
			})
		})
	}
}

// The last instant belongs to the holder.
func TestTakeoverIsExact(t *testing.T) {
	w := newWorld(t)
	l := dead(1)
	o, err := w.options(Options{}).withDefaults(w.store.Bucket())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		age, silence time.Duration
		want         bool
	}{
		{40*time.Second + 1, 15*time.Second + 1, true},
		{40 * time.Second, 15*time.Second + 1, false},
		{40*time.Second + 1, 15 * time.Second, false},
	} {
		q := newQueue(newSession(t.Context(), w.store.Bucket(), o))
		now := time.Now()
		first := &sight{info: backend.Info{Version: "v", Now: now, Modified: now}, before: 0, after: time.Second}
		if q.assess(l, first).action == take {
			t.Error("taken at first sight")
		}
		then := &sight{info: backend.Info{Version: "v", Now: now.Add(c.age), Modified: now}, before: time.Second + c.silence, after: time.Hour}
		if got := q.assess(l, then).action == take; got != c.want {
			t.Errorf("age %v, silence %v: %v, want %v", c.age, c.silence, got, c.want)
		}
	}
}

func TestALeaseThatCannotBeReadIsNotTaken(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want error
	}{
		"damaged": {`{"format":3,`, format.ErrCorrupt},
		"newer":   {`{"format":9,"minimum_reader":9}`, format.ErrUpgrade},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if _, err := w.cell().swap(t.Context(), []byte(c.data)); err != nil {
					t.Fatal(err)
				}
				_, err := w.acquire(Options{})
				wantErr(t, err, c.want)
				if says := strings.Contains(err.Error(), format.LeaseKey); says != (c.want == format.ErrCorrupt) {
					t.Errorf("the message does not say what to do: %v", err)
				}
				if string(w.bytes()) != c.data {
					t.Errorf("the record became %s", w.bytes())
				}
			})
		})
	}
}

func TestUnknownFieldsSurviveTakingAndRenewing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := dead(1)
		l.Format, l.Released = format.Version+1, true
		l.Extra = map[string]json.RawMessage{"future": json.RawMessage(`{"x":1}`)}
		w.put(l)
		h := w.mustAcquire(Options{})
		pass(time.Minute)
		w.mustClose(h)
		l = w.lease()
		var future struct{ X int }
		if err := json.Unmarshal(l.Extra["future"], &future); err != nil || future.X != 1 || l.Beat < 6 || !l.Released {
			t.Errorf("after taking, renewing and giving back the lease is %+v", l)
		}
	})
}

// The fence is above all that lease and log have seen, also where one of them
// was removed or restored from a backup.
func TestTheFenceIsAboveLeaseAndLog(t *testing.T) {
	for name, c := range map[string]struct {
		lease  uint64 // 0: there is none
		log    uint64
		known  bool // the replica knows the log already
		expect uint64
	}{
		"the lease is ahead":               {9, 4, false, 10},
		"the log is ahead":                 {4, 9, false, 10},
		"the log is ahead, as known":       {4, 9, true, 10},
		"they are equal":                   {9, 9, false, 10},
		"the log is ahead by one":          {8, 9, false, 10},
		"no lease beside a log":            {0, 9, false, 10},
		"no log beside a lease":            {9, 0, false, 10},
		"no lease beside a log that known": {0, 9, true, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if c.lease != 0 {
					l := dead(c.lease)
					l.Released = true
					w.put(l)
				}
				if c.log != 0 {
					w.log.barriers = []barrier{{c.log, dead(1).Session}}
				}
				r := w.log.replica()
				if c.known {
					r.seen = w.log.all()
				}
				h, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{}))
				if err != nil {
					t.Fatal(err)
				}
				defer w.mustClose(h)
				all := w.log.all()
				if h.Fence() != c.expect || w.lease().Fence != c.expect || all[len(all)-1].fence != c.expect {
					t.Errorf("fence %d, in the lease %d, in the log %d; want %d", h.Fence(), w.lease().Fence, all[len(all)-1].fence, c.expect)
				}
				if c.known && w.lease().Beat != 1 {
					t.Errorf("the fence of a known log took %d writes", w.lease().Beat)
				}
			})
		})
	}
}

func TestNoFenceBeyondTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := dead(maxFence)
		l.Released = true
		w.put(l)
		_, err := w.acquire(Options{})
		wantErr(t, err, format.ErrCorrupt)
	})
}

// Whatever stops a new writer between lease and hold, the lease is given back.
func TestAnAcquireThatFailsGivesTheLeaseBack(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		prepare func(r *replica, cancel func())
		want    error
	}{
		"catching up fails": {func(r *replica, _ func()) {
			r.catchUp = func(context.Context) error { return broken }
		}, broken},
		"the barrier fails": {func(r *replica, _ func()) {
			r.barrier = func(context.Context) error { return broken }
		}, broken},
		"the barrier meets a newer one": {func(r *replica, _ func()) {
			r.barrier = func(context.Context) error {
				r.log.barriers = append(r.log.barriers, barrier{99, dead(1).Session})
				return nil
			}
		}, ErrFenced},
		"the context ends": {func(r *replica, cancel func()) {
			r.catchUp = func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}
		}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r := w.log.replica()
				c.prepare(r, cancel)
				h, err := Acquire(ctx, w.store.Bucket(), r, w.options(Options{}))
				if h != nil {
					t.Error("a hold was handed out")
				}
				wantErr(t, err, c.want)
				if !w.lease().Released {
					t.Error("the lease was not given back")
				}
				w.mustClose(w.mustAcquire(Options{MaxWait: -1}))
			})
		})
	}
}

func TestALongCatchingUpKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.log.replica()
		var other error
		r.catchUp = func(ctx context.Context) error {
			_, other = w.acquire(Options{MaxWait: 10 * time.Minute})
			return nil
		}
		h, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		defer w.mustClose(h)
		wantErr(t, other, ErrBusy)
	})
}

func TestALossEndsTheEntering(t *testing.T) {
	for _, step := range []string{"catching up", "catching up, which does not fail", "barrier"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r := w.log.replica()
				usurper := dead(50)
				loss := func(ctx context.Context) error {
					w.put(usurper)
					<-ctx.Done()
					wantErr(t, context.Cause(ctx), ErrFenced)
					if step == "catching up" {
						return ctx.Err()
					}
					return nil
				}
				if step == "barrier" {
					r.barrier = loss
				} else {
					r.catchUp = loss
				}
				h, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{}))
				wantErr(t, err, ErrFenced)
				if h != nil || errors.Is(err, context.Canceled) || strings.Count(err.Error(), ErrFenced.Error()) != 1 {
					t.Errorf("got the hold %v and the error %v", h, err)
				}
				if got := w.lease(); got.Session != usurper.Session || got.Released {
					t.Errorf("the loser changed the winner's lease to %+v", got)
				}
			})
		})
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{{TTL: -1}, {TTL: time.Millisecond}, {TTL: 2 * time.Hour}, {Skew: -1}} {
		if _, err := Acquire(t.Context(), nil, nil, &o); err == nil {
			t.Errorf("TTL %v with skew %v was accepted", o.TTL, o.Skew)
		}
	}
}
