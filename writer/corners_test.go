package writer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// For the race detector: the fence is lifted while the heartbeat may tell of it.
func TestTheFenceIsLiftedInTurn(t *testing.T) {
	w := newWorld(t)
	w.log.barriers = []barrier{{fence: 7}}
	f := w.faulty()
	// The first renewal, the third write, finds another's record; who put it there
	// knows nothing of the raising.
	renewal := f.Add(faults.Rule{Ops: writes, Prefix: format.LeaseKey, Nth: 3, Do: faults.Block()})
	go func() {
		<-renewal.Reached()
		w.put(dead(20))
		renewal.Release()
	}()
	r := w.log.replica()
	r.barrier = func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	_, err := Acquire(t.Context(), f.Bucket(), r, w.options(Options{TTL: 300 * time.Millisecond}))
	wantErr(t, err, ErrFenced)
}

// What could not be given back is tried again also where a first attempt to
// connect fails, and the bucket that was given is closed by then.
func TestAFailedConnectDoesNotEndTheGivingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		bucket := f.Bucket()
		var down atomic.Bool
		down.Store(true)
		o := w.options(Options{Connect: func(context.Context) (*backend.Bucket, error) {
			if down.Load() {
				return nil, errors.New("no route to the store")
			}
			return w.store.Bucket(), nil
		}})
		h, err := Acquire(t.Context(), bucket, w.log.replica(), o)
		if err != nil {
			t.Fatal(err)
		}
		f.Add(on(faults.Any, faults.Always, faults.Fail(backend.ErrUnknown)))
		wantErr(t, h.Close(t.Context()), backend.ErrUnknown)
		bucket.Close()
		f.Clear() // a bucket that is closed says so
		pass(10 * time.Minute)
		down.Store(false)
		pass(3 * time.Minute)
		if !w.lease().Released {
			t.Error("the lease was never given back")
		}
	})
}

// A connection that does not come to be keeps no lease from being given back.
func TestAStuckConnectDoesNotKeepTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		free := make(chan struct{})
		own := w.store.Bucket()
		h := w.mustAcquire(Options{Connect: func(context.Context) (*backend.Bucket, error) {
			<-free // deaf
			return own, nil
		}})
		pass(8 * time.Second)
		h.Close(t.Context())
		if !w.lease().Released {
			t.Error("the lease was not given back")
		}
		close(free)
		synctest.Wait()
		if _, err := own.Get(t.Context(), "x", backend.GetOptions{}); !errors.Is(err, backend.ErrClosed) {
			t.Errorf("the late connection is still open: %v", err)
		}
	})
}

// A hold goes on when the one that it joined is closed together with the bucket
// that this one was given.
func TestAJoinedHoldOutlivesTheFirstOnesBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		one, two := w.store.Bucket(), w.store.Bucket()
		first, err := Acquire(t.Context(), one, w.log.replica(), w.options(Options{Process: me}))
		if err != nil {
			t.Fatal(err)
		}
		second, err := Acquire(t.Context(), two, w.log.replica(), w.options(Options{Process: me}))
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		one.Close()
		if err := second.Confirm(t.Context()); err != nil {
			t.Errorf("confirm: %v", err)
		}
		pass(2 * time.Minute)
		if err := second.Err(); err != nil {
			t.Errorf("lost: %v", err)
		}
		if err := second.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		if !w.lease().Released {
			t.Error("the lease was not given back")
		}
	})
}

// A process that is about to end takes no lease anew after its hold was given back.
func TestNothingBeginsAfterHalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		h := w.mustAcquire(Options{Process: me})
		h.Halt()
		if err := h.ReleaseAside(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.Close(t.Context()) // as a Store does with a hold that is lost, before it gets another
		next, err := w.acquire(Options{Process: me, MaxWait: -1})
		if err == nil {
			if _, err := next.Begin(); err == nil {
				t.Error("a write began")
			}
			t.Error("the lease was taken")
			w.mustClose(next)
		} else {
			wantErr(t, err, ErrHalted)
		}
		if !w.lease().Released {
			t.Error("the lease was not given back")
		}
	})
}

// A record of this very process in a session that it does not hold, whose guard
// another process has by now, is decided by time: nobody acts under it.
func TestNobodyWaitsForItselfForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := Self()
		l := dead(5)
		l.Identity = me
		l.Guard = &Guard{Path: "/guard", Inode: 1, ID: "x"}
		w.put(l)
		p := w.process(me, nil)
		p.guard = func(*Guard) guardSight { return guardSight{words: "a process holds it locked"} }
		h, err := w.acquire(Options{Process: p, MaxWait: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		w.mustClose(h)
	})
}

// A store that does not say when an object was made cannot tell its age.
func TestWithoutATimeThereIsNoAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o, err := w.options(Options{}).withDefaults(w.store.Bucket())
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(t.Context(), w.store.Bucket(), o)
		defer s.abandon(ErrReleased)
		q := newQueue(s)
		l := dead(1)
		seen := sight{info: backend.Info{Version: "1", Now: time.Now()}}
		q.assess(l, &seen)
		seen.before, seen.after = time.Hour, time.Hour
		if out := q.assess(l, &seen); out.action == take || out.age >= 0 {
			t.Errorf("age %v, taken %v: %s", out.age, out.action == take, out.why)
		}
	})
}

// A guard whose first write was cut off by a crash gets an id.
func TestATornGuardIsRepaired(t *testing.T) {
	for name, data := range map[string]string{
		"empty":    "",
		"zeros":    string(make([]byte, 37)),
		"half":     "0b0e0c0a-1111-4",
		"half0":    "0b0e0c0a-1111-4" + string(make([]byte, 22)),
		"no break": "0b0e0c0a-1111-4111-8111-1234567890ab",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "guard")
			if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			p := NewProcess(Self(), nil)
			defer p.End()
			g, err := p.takeGuard(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			p.leaveGuard(g)
			again, err := p.takeGuard(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			defer p.leaveGuard(again)
			if again.record.ID != g.record.ID || again.record.Inode != g.record.Inode {
				t.Errorf("the guard was %+v and is %+v", g.record, again.record)
			}
			if sight := lookGuard(&again.record); !sight.free {
				t.Errorf("the guard is not recognised: %s", sight.words)
			}
		})
	}
}

// What is not the rest of an id is not overwritten.
func TestAnotherFileIsNoGuard(t *testing.T) {
	for _, data := range []string{"my notes", "0b0e0c0a-1111-4111-8111-1234567890ab\nabc", "cafe 1", string(make([]byte, 64))} {
		path := filepath.Join(t.TempDir(), "guard")
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		p := NewProcess(Self(), nil)
		if g, err := p.takeGuard(t.Context(), path); err == nil {
			t.Errorf("%q was taken for a guard", data)
			p.leaveGuard(g)
		}
		p.End()
		if after, err := os.ReadFile(path); err != nil || string(after) != data {
			t.Errorf("%q became %q (%v)", data, after, err)
		}
	}
}

// A session whose last hold is closed is waited for from the first moment on; to
// take it would tell its Close that it was fenced.
func TestASessionIsNotTakenFromItsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		h := w.mustAcquire(Options{Process: me})
		h.s.mu.Lock()
		h.s.closing = true // Close is here, and about to go on
		h.s.mu.Unlock()
		_, err := w.acquire(Options{Process: me, MaxWait: -1})
		wantErr(t, err, ErrBusy)
		w.mustClose(h)
	})
}

// MaxWait is kept roughly by who has a long TTL, too, at a store that hangs.
func TestALookIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(1))
		f := w.faulty()
		f.Add(faults.Rule{Ops: faults.Get, Prefix: format.LeaseKey, Nth: 2, Times: faults.Always, Do: faults.Block()})
		_, err := w.acquireOn(f, Options{TTL: time.Hour, MaxWait: time.Second})
		if err == nil {
			t.Fatal("acquired")
		}
		if took := time.Since(w.born); took > 12*time.Second {
			t.Errorf("took %v for a MaxWait of 1s", took)
		}
		f.Clear()
	})
}

// A promise of a long silence makes nobody wait longer than without it.
func TestAPromiseMakesNobodyWaitLonger(t *testing.T) {
	for name, c := range map[string]struct{ silence, age, want time.Duration }{
		"a long silence":                         {10 * time.Minute, 0, 40 * time.Second},
		"an old lease":                           {30 * time.Second, time.Hour, 15 * time.Second},
		"a long silence of a store without time": {50 * time.Second, -1, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				o := daemon(t.TempDir())
				l := w.orphan(o)
				l.Adoption = &Adoption{BeatMillis: c.silence.Milliseconds() / 4, SelfFenceMillis: c.silence.Milliseconds() / 2, SilenceMillis: c.silence.Milliseconds()}
				w.put(l)
				if c.age < 0 {
					w.storeClock(0, 0)
				} else if c.age > 0 {
					w.storeClock(c.age, 1)
				}
				o.MaxWait = time.Hour
				h := w.mustAcquire(o)
				if took := time.Since(w.born); took < c.want || took > c.want+2*time.Second {
					t.Errorf("taken after %v, want %v", took, c.want)
				}
				w.mustClose(h)
			})
		})
	}
}

// What a record says of its writer does not fill a terminal.
func TestTheNameOfAWriterIsShort(t *testing.T) {
	l := dead(1)
	l.Command = strings.Repeat("é ", 100_000)
	l.Identity.Hostname = strings.Repeat("h", 100_000)
	if s := l.who(); len(s) > 2000 || !utf8.ValidString(s) {
		t.Errorf("%d bytes", len(s))
	}
	l.Command, l.Identity.Hostname = "swampd put a b", "build-7"
	if s := l.who(); !strings.Contains(s, `"swampd put a b"`) || !strings.Contains(s, `"build-7"`) {
		t.Errorf("got %s", s)
	}
}

// A successor sees that the lease was given back while the one before it waits for
// that answer, and still has the guard: it gets the guard, and can promise.
func TestTheGuardIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		f := w.faulty()
		first, err := w.acquireOn(f, o)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *Hold)
		go func() {
			h, err := w.acquire(o)
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		pass(100 * time.Millisecond)
		release := f.Add(on(writes, 1, faults.BlockAnswer()))
		go func() {
			<-release.Reached()
			pass(200 * time.Millisecond)
			release.Release()
		}()
		if err := first.Close(t.Context()); err != nil {
			t.Error(err)
		}
		h := <-got
		if l := w.lease(); l.Adoption == nil || l.Guard == nil {
			t.Errorf("the lease names the guard %+v and promises %+v", l.Guard, l.Adoption)
		}
		w.mustClose(h)
		// Where another keeps it, nobody waits long.
		g, err := w.stranger().takeGuard(t.Context(), o.Guard)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { g.drop(); g.file.Close() }()
		began := time.Now()
		h = w.mustAcquire(o)
		if took := time.Since(began); took > 1500*time.Millisecond || w.lease().Guard != nil {
			t.Errorf("took %v, guard %+v", took, w.lease().Guard)
		}
		w.mustClose(h)
	})
}
