package writer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

func TestTheHeartbeatRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		first := w.lease()
		for i := range 3 {
			pass(10 * time.Second)
			synctest.Wait()
			l := w.lease()
			if want := first.Beat + uint64(i) + 1; l.Beat != want || !l.Renewed.Equal(time.Now()) || !l.Acquired.Equal(first.Acquired) {
				t.Errorf("after %d×10s: beat %d renewed at %v; want %d at %v", i+1, l.Beat, l.Renewed, want, time.Now())
			}
		}
		w.mustClose(h)
		at := w.lease().Beat
		pass(time.Minute)
		if w.lease().Beat != at {
			t.Error("a closed hold renewed")
		}
		wantErr(t, h.Err(), ErrReleased)
		wantErr(t, context.Cause(h.Context()), ErrReleased)
		w.mustClose(h) // again
	})
}

// fates are what a store may do to one write of the lease. "Late" ones are
// carried out a moment after the caller heard nothing.
var fates = map[string]faults.Action{
	"done, answer lost":                 faults.Lose(),
	"not done, answer lost":             faults.Fail(backend.ErrUnknown),
	"done late":                         faults.Late(),
	"done, and a repeat says changed":   faults.Done(backend.ErrChanged),
	"done, and a repeat says exists":    faults.Done(backend.ErrExists),
	"conflict":                          faults.Fail(backend.ErrConflict),
	"busy":                              faults.Fail(backend.ErrBusy),
	"an error without a name, done":     faults.Done(errors.New("EOF")),
	"refused, but done":                 faults.Done(backend.ErrDenied),
	"done, no answer till the deadline": faults.BlockAnswer(),
	"no answer till the deadline":       faults.Block(),
}

// strike makes the next write of the lease meet its fate.
func strike(f *faults.Driver, fate faults.Action) {
	fault := f.Add(on(writes, 1, fate))
	if fate.String() == faults.Late().String() {
		go func() {
			<-fault.Reached()
			pass(2 * time.Millisecond)
			fault.Release()
		}()
	}
}

// A lost answer to taking, renewing or giving back is neither a loss, nor a win
// of another, nor busy with itself.
func TestLostAnswersAreResolved(t *testing.T) {
	for name, fate := range fates {
		for _, step := range []string{"create", "replace", "renew", "release"} {
			t.Run(step+": "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					f := w.faulty()
					want := uint64(1)
					if step != "create" {
						w.mustClose(w.mustAcquire(Options{}))
						want++
					}
					if step == "create" || step == "replace" {
						strike(f, fate)
					}
					// A release has 5 s in all, so one call has less here.
					h, err := w.acquireOn(f, Options{TTL: 6 * time.Second, MaxWait: -1})
					if err != nil {
						t.Fatalf("acquire: %v", err)
					}
					if step == "renew" {
						strike(f, fate)
					}
					w.checkStamp(h)
					pass(4500 * time.Millisecond) // a renewal was at 2 s, its deadline at 4 s
					synctest.Wait()
					w.checkStamp(h)
					pass(3500 * time.Millisecond)
					synctest.Wait()
					if l := w.lease(); h.Err() != nil || l.Session != h.Session() || l.Fence != want || l.Released {
						t.Fatalf("the hold has the error %v, the lease is %+v", h.Err(), l)
					}
					if age := time.Since(w.lease().Renewed); age > 4*time.Second {
						t.Errorf("renewed %v ago", age)
					}
					w.checkStamp(h)
					if step == "release" {
						strike(f, fate)
					}
					w.mustClose(h)
					pass(time.Second) // for what comes late
					if l := w.lease(); !l.Released || l.Fence != want {
						t.Errorf("after Close the lease is %+v", l)
					}
					h = w.mustAcquire(Options{MaxWait: -1})
					if h.Fence() != want+1 {
						t.Errorf("the next fence is %d, want %d", h.Fence(), want+1)
					}
					w.mustClose(h)
				})
			})
		}
	}
}

// A renewal in doubt arrives while the lease is given back: both are mine.
func TestALateRenewalDoesNotUndoTheRelease(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.faulty()
				h := w.mustAcquireOn(f)
				// The renewal is not answered, nor can it be read back.
				renewal := f.Add(on(writes, 1, faults.Late()))
				read := f.Add(on(faults.Get, 1, faults.Block()))
				<-read.Reached()
				if late {
					release := f.Add(on(writes, 1, faults.BlockAnswer()))
					go func() {
						<-release.Reached()
						if err := renewal.Release(); !errors.Is(err, backend.ErrChanged) {
							t.Errorf("the late renewal got %v", err)
						}
						release.Release()
					}()
				} else if err := renewal.Release(); err != nil {
					t.Error(err)
				}
				w.mustClose(h)
				if !w.lease().Released {
					t.Errorf("after Close the lease is %+v", w.lease())
				}
			})
		})
	}
}

// The store took a renewal and then said nothing at all. The next renewal is
// another content, also by a clock that stands still: what the store has from
// before must not pass for it.
func TestARenewalAfterADoubtIsANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		frozen := time.Now()
		h, err := w.acquireOn(f, Options{Now: func() time.Time { return frozen }})
		if err != nil {
			t.Fatal(err)
		}
		f.Add(on(writes, 1, faults.Lose()))
		f.Add(on(faults.Get, 1, faults.Fail(backend.ErrDenied)))
		pass(15 * time.Second)
		synctest.Wait()
		if l := w.lease(); h.Err() != nil || l.Beat != 3 {
			t.Errorf("error %v, beat %d; want none and 3: taken, in doubt, renewed", h.Err(), l.Beat)
		}
		w.checkStamp(h)
		w.mustClose(h)
	})
}

// What was sent and cannot be read back is not waited for, but settled.
func TestAnAcquireThatMayNotReadBackLeavesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		f.Add(on(writes, 1, faults.Lose()))
		f.Add(faults.Rule{Ops: faults.Get, Nth: 2, Do: faults.Fail(backend.ErrDenied)})
		_, err := w.acquireOn(f, Options{})
		wantErr(t, err, backend.ErrUnknown, backend.ErrDenied)
		if took := time.Since(w.born); took != 0 || !w.lease().Released {
			t.Errorf("after %v the lease is %+v", took, w.lease())
		}
	})
}

func TestNothingIsSentAfterTheEnd(t *testing.T) {
	w := newWorld(t)
	f := w.faulty()
	c := w.cell()
	c.bucket = f.Bucket()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.swap(ctx, []byte("x"))
	wantErr(t, err, context.Canceled)
	if calls := f.Calls(); len(calls) != 0 {
		t.Errorf("%v", calls)
	}
}

func TestAForeignRecordEndsTheHold(t *testing.T) {
	for name, c := range map[string]struct {
		replace func(w *world, h *Hold)
		says    string
	}{
		"another writer": {func(w *world, h *Hold) { w.put(dead(2)) }, `"lostd" (pid 4711 on "elsewhere")`},
		"a clone of the process": {func(w *world, h *Hold) {
			l := w.lease()
			l.Beat++
			l.Renewed = l.Renewed.Add(time.Nanosecond)
			w.put(l)
		}, "a copy of this very process"},
		"nothing": {func(w *world, h *Hold) {
			if err := w.store.Bucket().Delete(w.t.Context(), []string{format.LeaseKey}); err != nil {
				t.Error(err)
			}
		}, "removed by hand"},
		"rubbish": {func(w *world, h *Hold) {
			w.store.Tamper(format.LeaseKey, func([]byte) []byte { return []byte("?") })
		}, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				h := w.mustAcquire(Options{})
				pass(time.Second)
				c.replace(w, h)
				before := w.bytes()
				<-h.Context().Done()
				if took := time.Since(w.born); took != 10*time.Second {
					t.Errorf("noticed after %v, want 10s, with the first renewal", took)
				}
				wantErr(t, context.Cause(h.Context()), ErrFenced)
				wantErr(t, h.Err(), ErrFenced)
				if !strings.Contains(h.Err().Error(), c.says) {
					t.Errorf("%q does not say %q", h.Err(), c.says)
				}
				err := h.Close(t.Context())
				wantErr(t, err, ErrFenced)
				if string(w.bytes()) != string(before) {
					t.Errorf("the loser changed the lease to %s", w.bytes())
				}
			})
		})
	}
}

// A holder that learns of its loss only when it closes changes nothing either.
func TestCloseOfAReplacedHoldChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		w.put(dead(2))
		before := w.bytes()
		wantErr(t, h.Close(t.Context()), ErrFenced)
		if string(w.bytes()) != string(before) {
			t.Errorf("the loser changed the lease to %s", w.bytes())
		}
	})
}

func TestWithoutRenewalTheHoldExpires(t *testing.T) {
	for name, c := range map[string]struct {
		fate faults.Action
		want error
	}{
		"the store refuses": {faults.Fail(backend.ErrDenied), backend.ErrDenied},
		"the store hangs":   {faults.Block(), backend.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.faulty()
				h := w.mustAcquireOn(f)
				pass(25 * time.Second) // the last renewal was at 20 s
				f.Add(on(writes, faults.Always, c.fate))
				<-h.Context().Done()
				if took := time.Since(w.born); took != 50*time.Second {
					t.Errorf("expired after %v, want 50s", took)
				}
				wantErr(t, h.Err(), ErrExpired, c.want)
				if errors.Is(h.Err(), ErrFenced) {
					t.Errorf("nobody took over, yet: %v", h.Err())
				}
				// The lease is still mine; now it can be given back.
				f.Clear()
				wantErr(t, h.Close(t.Context()), ErrExpired)
				if !w.lease().Released {
					t.Error("the lease was not given back")
				}
			})
		})
	}
}

func TestCloseTellsOfLossAndRelease(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world, f *faults.Driver)
		want   error
	}{
		"the store refuses": {func(*world, *faults.Driver) {}, backend.ErrDenied},
		"another has it":    {func(w *world, f *faults.Driver) { w.put(dead(2)); f.Clear() }, ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.faulty()
				h := w.mustAcquireOn(f)
				f.Add(on(writes, faults.Always, faults.Fail(backend.ErrDenied)))
				<-h.Context().Done()
				c.before(w, f)
				wantErr(t, h.Close(t.Context()), ErrExpired, c.want)
			})
		})
	}
}

func TestAFailureForAWhileIsSurvived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		for _, bad := range []error{backend.ErrDenied, backend.ErrUnknown} {
			f.Add(on(faults.Any, faults.Always, faults.Fail(bad)))
			pass(16 * time.Second) // at most 26 s after a renewal; the next attempt is within 3 s
			f.Clear()
			pass(30 * time.Second)
		}
		w.mustClose(h)
	})
}

// The age of a hold counts from the start of the newest renewal: its answer may
// come late, but the store may have had it at once.
func TestTheStampIsTakenAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		slow := f.Add(on(writes, 1, faults.BlockAnswer())) // the renewal at 10 s is answered at 18 s,
		time.AfterFunc(18*time.Second, func() { slow.Release() })
		f.Add(faults.Rule{Ops: writes, Nth: 2, Times: faults.Always, Do: faults.Block()}) // and no other ever
		<-h.Context().Done()
		if took := time.Since(w.born); took != 40*time.Second {
			t.Errorf("expired after %v, want 40s", took)
		}
		h.Close(t.Context())
	})
}

func TestTheStampOnlyMovesForward(t *testing.T) {
	h := &session{}
	for _, step := range []struct{ to, want int64 }{{5, 5}, {3, 5}, {9, 9}, {8, 9}} {
		if h.forward(time.Duration(step.to)); h.stamp.Load() != step.want {
			t.Errorf("after %d the stamp is %d, want %d", step.to, h.stamp.Load(), step.want)
		}
	}
}

// Timers stand still while a machine sleeps; the hold is over all the same, and
// whoever asks hears it before any timer fires.
func TestAHoldThatSleptIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		var slept time.Duration
		boot := func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return w.boot() + slept
		}
		h := w.mustAcquire(Options{Boot: boot})
		pass(time.Second)
		mu.Lock()
		slept = time.Hour
		mu.Unlock()
		wantErr(t, h.Err(), ErrExpired)
		if h.Context().Err() == nil {
			t.Error("the context goes on")
		}
		wantErr(t, h.Close(t.Context()), ErrExpired)

		// Nobody asks: before the next renewal, and long before it.
		for _, at := range []time.Duration{9500 * time.Millisecond, time.Second} {
			h := w.mustAcquire(Options{Boot: boot})
			pass(at)
			synctest.Wait()
			asleep := time.Now()
			mu.Lock()
			slept += time.Hour
			mu.Unlock()
			select {
			case <-h.Context().Done():
			case <-time.After(time.Minute):
			}
			if took := time.Since(asleep); took > 3*time.Second {
				t.Errorf("noticed %v after waking up, want 3s at most", took)
			}
			wantErr(t, h.Close(t.Context()), ErrExpired)
		}
	})
}

func TestLostEndsTheHoldWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, cause := range []error{fmt.Errorf("slot 7 has the fence 9: %w", ErrFenced), nil} {
			h := w.mustAcquire(Options{})
			h.Lost(cause)
			h.Lost(errors.New("later"))
			wantErr(t, context.Cause(h.Context()), ErrFenced)
			if cause != nil && h.Err() != cause {
				t.Errorf("got %v, want the first cause", h.Err())
			}
			// The lease itself is still mine, so others need not wait for it.
			wantErr(t, h.Close(t.Context()), ErrFenced)
			if !w.lease().Released {
				t.Error("the lease was not given back")
			}
		}
	})
}

// My own session that is over is free (R12): only others wait for it.
func TestAFailedReleaseHoldsUpOnlyOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		me := w.stranger()
		h, err := w.acquireOn(f, Options{Process: me})
		if err != nil {
			t.Fatal(err)
		}
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrDenied)))
		wantErr(t, h.Close(t.Context()), backend.ErrDenied)
		if w.lease().Released {
			t.Fatal("released all the same")
		}
		_, err = w.acquire(Options{MaxWait: -1})
		wantErr(t, err, ErrBusy)
		began := time.Now()
		h2 := w.mustAcquire(Options{Process: me, MaxWait: -1})
		if h2.Fence() != h.Fence()+1 || time.Since(began) != 0 {
			t.Errorf("fence %d after %v", h2.Fence(), time.Since(began))
		}
		w.mustClose(h2)

		// The same lease of another process: it is waited for.
		l := dead(7)
		w.put(l)
		_, err = w.acquire(Options{Process: me, MaxWait: -1})
		wantErr(t, err, ErrBusy)
	})
}

// The caller gives up while the fate of its own record is open.
func TestAnAcquireThatIsCutOffLeavesNoLease(t *testing.T) {
	for name, fate := range fates {
		if name == "refused, but done" {
			continue // without reading back, a refusal is believed
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.faulty()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				strike(f, fate)
				// The caller leaves while the write, or the reading back, goes on.
				back := f.Add(faults.Rule{Ops: faults.Get, Prefix: format.LeaseKey, Nth: 2, Do: faults.Block()})
				time.AfterFunc(time.Second, cancel)
				_, err := Acquire(ctx, f.Bucket(), w.log.replica(), w.options(Options{}))
				wantErr(t, err, context.Canceled)
				back.Release()
				pass(time.Second)
				if l := w.lease(); !l.Released {
					t.Errorf("the lease is %+v", l)
				}
				if len(w.log.all()) != 0 {
					t.Error("a barrier was put up")
				}
				h := w.mustAcquire(Options{MaxWait: -1})
				w.mustClose(h)
			})
		})
	}
}

func TestAnUndecidedAcquireIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrUnknown)))
		_, err := w.acquireOn(f, Options{})
		wantErr(t, err, backend.ErrUnknown, context.DeadlineExceeded)
		if errors.Is(err, ErrBusy) {
			t.Errorf("busy with itself: %v", err)
		}
		if took := time.Since(w.born); took > 40*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// Close returns in time, even from a call to the store that never ends.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		stuck := f.Add(on(writes, 1, faults.Hang()))
		<-stuck.Reached()
		began := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := h.Close(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("took %v, want 5s", took)
		}
		stuck.Release()
	})
}

func TestTheHoldOutlivesTheContextOfAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		w := newWorld(t)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		h, err := Acquire(ctx, w.store.Bucket(), w.log.replica(), w.options(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		pass(2 * time.Minute)
		if h.Err() != nil || h.Context().Value(key{}) != "v" {
			t.Errorf("error %v, value %v", h.Err(), h.Context().Value(key{}))
		}
		w.mustClose(h)
	})
}
