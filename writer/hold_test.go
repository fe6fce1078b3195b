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

// What a store may do to one write of the lease.
var fates = map[string]func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error){
	"done, answer lost": func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
		_, err := do(ctx)
		return backend.Info{}, errors.Join(backend.ErrUnknown, err)
	},
	"not done, answer lost": func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
		return backend.Info{}, backend.ErrUnknown
	},
	"done much later": func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
		time.AfterFunc(2*time.Millisecond, func() { do(context.WithoutCancel(ctx)) })
		return backend.Info{}, backend.ErrUnknown
	},
	"done, and the driver's repeat says changed": func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
		do(ctx)
		return do(ctx)
	},
	"conflict": func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
		return backend.Info{}, backend.ErrConflict
	},
	"busy": func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
		return backend.Info{}, backend.ErrBusy
	},
	"an error without a name, done": func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
		do(ctx)
		return backend.Info{}, errors.New("EOF")
	},
	"no answer until the deadline, done": func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
		do(ctx)
		return backend.Info{}, hang(ctx)
	},
}

// once makes the next write meet its fate, and all others go well.
func (f *faulty) once(fate func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error)) {
	var once sync.Once
	f.set(func(ctx context.Context, do func(context.Context) (backend.Info, error)) (info backend.Info, err error) {
		run := do
		once.Do(func() { run = func(ctx context.Context) (backend.Info, error) { return fate(ctx, do) } })
		return run(ctx)
	}, nil)
}

// A lost answer to taking, renewing or giving back is neither a loss, nor a win
// of another, nor busy with itself.
func TestLostAnswersAreResolved(t *testing.T) {
	for name, fate := range fates {
		for _, step := range []string{"create", "replace", "renew", "release"} {
			t.Run(step+": "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					f, bucket := w.faultyBucket()
					want := uint64(1)
					if step != "create" {
						w.mustClose(w.mustAcquire(Options{}))
						want++
					}
					if step == "create" || step == "replace" {
						f.once(fate)
					}
					// A release has 5 s in all, so one call has less here.
					h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{TTL: 6 * time.Second, MaxWait: -1}))
					if err != nil {
						t.Fatalf("acquire: %v", err)
					}
					if step == "renew" {
						f.once(fate)
					}
					pass(8 * time.Second)
					synctest.Wait()
					if l := w.lease(); h.Err() != nil || l.Session != h.Session() || l.Fence != want || l.Released {
						t.Fatalf("the hold has the error %v, the lease is %+v", h.Err(), l)
					}
					if age := time.Since(w.lease().Renewed); age > 4*time.Second {
						t.Errorf("renewed %v ago", age)
					}
					if step == "release" {
						f.once(fate)
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
				f, bucket := w.faultyBucket()
				h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
				if err != nil {
					t.Fatal(err)
				}
				var arrive func()
				f.once(func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
					arrive = func() { do(context.Background()) }
					return backend.Info{}, hang(ctx)
				})
				pass(11 * time.Second)
				synctest.Wait()
				if late {
					f.once(func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
						info, err := do(ctx)
						arrive()
						return info, err
					})
				} else {
					arrive()
				}
				w.mustClose(h)
				if !w.lease().Released {
					t.Errorf("after Close the lease is %+v", w.lease())
				}
			})
		})
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
			if err := w.store.Bucket().Delete(w.t.Context(), []string{"_control/writer/lease"}); err != nil {
				t.Error(err)
			}
		}, "removed by hand"},
		"rubbish": {func(w *world, h *Hold) {
			w.store.Tamper("_control/writer/lease", func([]byte) []byte { return []byte("?") })
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
	denied := func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
		return backend.Info{}, backend.ErrDenied
	}
	silent := func(ctx context.Context, _ func(context.Context) (backend.Info, error)) (backend.Info, error) {
		return backend.Info{}, hang(ctx)
	}
	for name, c := range map[string]struct {
		write func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error)
		want  error
	}{
		"the store refuses": {denied, backend.ErrDenied},
		"the store hangs":   {silent, backend.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f, bucket := w.faultyBucket()
				h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
				if err != nil {
					t.Fatal(err)
				}
				pass(25 * time.Second) // the last renewal was at 20 s
				f.set(c.write, nil)
				<-h.Context().Done()
				if took := time.Since(w.born); took != 50*time.Second {
					t.Errorf("expired after %v, want 50s", took)
				}
				wantErr(t, h.Err(), ErrExpired, c.want)
				if errors.Is(h.Err(), ErrFenced) {
					t.Errorf("nobody took over, yet: %v", h.Err())
				}
				// The lease is still mine; now it can be given back.
				f.set(nil, nil)
				wantErr(t, h.Close(t.Context()), ErrExpired)
				if !w.lease().Released {
					t.Error("the lease was not given back")
				}
			})
		})
	}
}

func TestAFailureForAWhileIsSurvived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f, bucket := w.faultyBucket()
		h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []error{backend.ErrDenied, backend.ErrUnknown} {
			f.set(func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
				return backend.Info{}, bad
			}, func(context.Context) error { return bad })
			pass(18 * time.Second)
			f.set(nil, nil)
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
		f, bucket := w.faultyBucket()
		h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		slow := func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
			info, err := do(ctx)
			pass(8 * time.Second)
			f.set(func(ctx context.Context, _ func(context.Context) (backend.Info, error)) (backend.Info, error) {
				return backend.Info{}, hang(ctx)
			}, nil)
			return info, err
		}
		f.set(slow, nil) // the renewal at 10 s is answered at 18 s
		<-h.Context().Done()
		if took := time.Since(w.born); took != 40*time.Second {
			t.Errorf("expired after %v, want 40s", took)
		}
		h.Close(t.Context())
	})
}

func TestTheStampOnlyMovesForward(t *testing.T) {
	h := &Hold{}
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
		h := w.mustAcquire(Options{Boot: func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return w.boot() + slept
		}})
		pass(time.Second)
		mu.Lock()
		slept = time.Hour
		mu.Unlock()
		wantErr(t, h.Err(), ErrExpired)
		if h.Context().Err() == nil {
			t.Error("the context goes on")
		}
		wantErr(t, h.Close(t.Context()), ErrExpired)

		h = w.mustAcquire(Options{Boot: func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return w.boot() + slept
		}})
		asleep := time.Now()
		mu.Lock()
		slept += time.Hour
		mu.Unlock()
		<-h.Context().Done() // nobody asks
		if took := time.Since(asleep); took > 3*time.Second {
			t.Errorf("noticed %v after waking up, want 3s at most", took)
		}
		wantErr(t, h.Close(t.Context()), ErrExpired)
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
		f, bucket := w.faultyBucket()
		h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		f.set(func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
			return backend.Info{}, backend.ErrDenied
		}, nil)
		wantErr(t, h.Close(t.Context()), backend.ErrDenied)
		if w.lease().Released {
			t.Fatal("released all the same")
		}
		began := time.Now()
		h2 := w.mustAcquire(Options{MaxWait: -1})
		if h2.Fence() != h.Fence()+1 || time.Since(began) != 0 {
			t.Errorf("fence %d after %v", h2.Fence(), time.Since(began))
		}
		w.mustClose(h2)

		// The same lease of another process: it is waited for.
		l := dead(7)
		w.put(l)
		_, err = w.acquire(Options{MaxWait: -1})
		wantErr(t, err, ErrBusy)
	})
}

// A live hold of this very process is waited for like any other.
func TestAnotherHoldOfThisProcessIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		_, err := w.acquire(Options{MaxWait: -1})
		wantErr(t, err, ErrBusy)
		w.mustClose(h)
	})
}

// The caller gives up while the fate of its own record is open.
func TestAnAcquireThatIsCutOffLeavesNoLease(t *testing.T) {
	for name, fate := range fates {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f, bucket := w.faultyBucket()
				ctx, cancel := context.WithCancel(t.Context())
				f.once(func(c context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error) {
					defer cancel()
					if strings.HasPrefix(name, "no answer") {
						time.AfterFunc(time.Second, cancel)
					}
					return fate(c, do)
				})
				_, err := Acquire(ctx, bucket, w.log.replica(), w.options(Options{}))
				wantErr(t, err, context.Canceled)
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
		f, bucket := w.faultyBucket()
		f.set(func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
			return backend.Info{}, backend.ErrUnknown
		}, nil)
		_, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
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
		f, bucket := w.faultyBucket()
		h, err := Acquire(t.Context(), bucket, w.log.replica(), w.options(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		stuck := make(chan struct{})
		f.set(func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error) {
			<-stuck
			return backend.Info{}, backend.ErrUnknown
		}, nil)
		pass(15 * time.Second)
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
		close(stuck)
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
