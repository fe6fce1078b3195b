package writer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
)

// Two sessions of one process share the hold: one fence, one lease, given back
// with the last.
func TestAProcessJoinsItsOwnSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		first := w.mustAcquire(Options{Process: me})
		r := w.log.replica()
		second, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{Process: me, MaxWait: -1}))
		if err != nil {
			t.Fatal(err)
		}
		if second.Fence() != first.Fence() || second.Session() != first.Session() || !second.Joined() || first.Joined() || !first.shared() {
			t.Errorf("fences %d and %d, joined %v and %v", first.Fence(), second.Fence(), first.Joined(), second.Joined())
		}
		if len(r.seen) != 1 || len(w.log.all()) != 1 {
			t.Errorf("the second has seen %d barriers of %d, want 1 of 1", len(r.seen), len(w.log.all()))
		}
		if err := first.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, first.Err(), ErrReleased)
		wantErr(t, context.Cause(first.Context()), ErrReleased)
		if w.lease().Released || second.Err() != nil || second.shared() {
			t.Errorf("the end of one hold ended the other: %v", second.Err())
		}
		pass(time.Minute)
		if second.Err() != nil {
			t.Error(second.Err())
		}
		w.mustClose(second)
		if !w.lease().Released {
			t.Error("the last hold did not give the lease back")
		}
	})
}

// Invariant I7: whether a session is current is what the store says, not what the
// process believes.
func TestASessionThatWasReplacedIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		first := w.mustAcquire(Options{Process: me})
		w.put(dead(2)) // the first does not know yet
		if first.Err() != nil {
			t.Fatal("it knows")
		}
		_, err := w.acquire(Options{Process: me, MaxWait: -1})
		wantErr(t, err, ErrBusy)
		wantErr(t, first.Close(t.Context()), ErrFenced)
	})
}

func TestALostHoldIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		f := w.faulty()
		first, err := w.acquireOn(f, Options{Process: me})
		if err != nil {
			t.Fatal(err)
		}
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrUnknown))) // it cannot be given back
		first.Lost(nil)
		second := w.mustAcquire(Options{Process: me, MaxWait: -1})
		if second.Session() == first.Session() || second.Fence() != first.Fence()+1 || second.Joined() {
			t.Errorf("it joined: fence %d after %d", second.Fence(), first.Fence())
		}
		f.Clear()
		wantErr(t, first.Close(t.Context()), ErrFenced)
		if second.Err() != nil || w.lease().Session != second.Session() || w.lease().Released {
			t.Errorf("the end of the first changed the second: %v, %+v", second.Err(), w.lease())
		}
		w.mustClose(second)
	})
}

// A session is joined when the log is entered, not before; and where that fails,
// who waits for it becomes the writer by itself.
func TestASessionThatBeginsIsWaitedFor(t *testing.T) {
	for name, fails := range map[string]bool{"it enters": false, "it fails": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				me := w.stranger()
				r := w.log.replica()
				r.catchUp = func(context.Context) error {
					pass(10 * time.Second)
					if fails {
						return errors.New("no luck")
					}
					return nil
				}
				done := make(chan *Hold)
				go func() {
					h, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{Process: me}))
					if (err != nil) != fails {
						t.Errorf("the first got %v", err)
					}
					done <- h
				}()
				pass(time.Second)
				second := w.mustAcquire(Options{Process: me})
				if took := time.Since(w.born); took < 10*time.Second || took > 11*time.Second {
					t.Errorf("after %v, want 10s", took)
				}
				first := <-done
				if second.Joined() == fails {
					t.Errorf("joined: %v", second.Joined())
				}
				if first != nil {
					if err := first.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
				w.mustClose(second)
			})
		})
	}
}

// A session that is being given back is not joined and not robbed: who comes
// waits, and takes the lease afterwards.
func TestASessionThatEndsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		f := w.faulty()
		first, err := w.acquireOn(f, Options{Process: me})
		if err != nil {
			t.Fatal(err)
		}
		slow := f.Add(on(writes, 1, faults.Block()))
		closed := make(chan error)
		go func() { closed <- first.Close(t.Context()) }()
		<-slow.Reached()
		time.AfterFunc(time.Second, func() { slow.Release() })
		second := w.mustAcquire(Options{Process: me})
		if err := <-closed; err != nil {
			t.Errorf("the first was robbed: %v", err)
		}
		if took := time.Since(w.born); second.Joined() || second.Fence() != 2 || took < time.Second || took > time.Second+3*pollMin {
			t.Errorf("joined %v, fence %d, after %v", second.Joined(), second.Fence(), took)
		}
		w.mustClose(second)
	})
}

func TestALossEndsAllHoldsOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		first := w.mustAcquire(Options{Process: me})
		second := w.mustAcquire(Options{Process: me})
		w.put(dead(2))
		for _, h := range []*Hold{first, second} {
			<-h.Context().Done()
			wantErr(t, context.Cause(h.Context()), ErrFenced)
			wantErr(t, h.Close(t.Context()), ErrFenced)
		}
	})
}

// A hold of a joined session whose own replica cannot catch up is not handed out,
// and the first is not touched.
func TestAJoinThatFailsLeavesTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		first := w.mustAcquire(Options{Process: me})
		r := w.log.replica()
		r.catchUp = func(context.Context) error { return errors.New("no luck") }
		_, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{Process: me}))
		if err == nil || first.Err() != nil || first.shared() {
			t.Errorf("got %v, the first says %v, shared %v", err, first.Err(), first.shared())
		}
		w.mustClose(first)
	})
}

// What could not be given back is tried again while the process lives: those who
// see that it lives would wait for ever.
func TestAFailedReleaseIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		me := w.stranger()
		h, err := w.acquireOn(f, Options{Process: me})
		if err != nil {
			t.Fatal(err)
		}
		f.Add(on(faults.Any, faults.Always, faults.Fail(backend.ErrUnknown)))
		wantErr(t, h.Close(t.Context()), backend.ErrUnknown)
		pass(10 * time.Minute)
		if w.lease().Released {
			t.Fatal("released all the same")
		}
		f.Clear()
		pass(90 * time.Second)
		if !w.lease().Released || me.session(h.Session()) != nil {
			t.Errorf("the lease is %+v, remembered %v", w.lease(), me.session(h.Session()) != nil)
		}
	})
}

// A hold that ended by itself is given back, although nobody closes it yet.
func TestAnExpiredHoldIsGivenBackBeforeItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		f.Add(on(faults.Any, faults.Always, faults.Fail(backend.ErrUnknown)))
		<-h.Context().Done()
		wantErr(t, h.Err(), ErrExpired)
		f.Clear()
		pass(5 * time.Second)
		if !w.lease().Released {
			t.Errorf("the lease is %+v", w.lease())
		}
		// Another may have it by now, and Close does not mind.
		next := w.mustAcquire(Options{MaxWait: -1})
		wantErr(t, h.Close(t.Context()), ErrExpired)
		if next.Err() != nil || w.lease().Released {
			t.Errorf("Close of the old hold changed the new one: %v", next.Err())
		}
		w.mustClose(next)
	})
}

// The heartbeat's own connection is opened before the first renewal, and only
// then; without one the given is used.
func TestTheHeartbeatHasItsOwnConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f, own := w.faulty(), w.faulty()
		fails, opened := 1, 0
		connect := func(context.Context) (*backend.Bucket, error) {
			opened++
			if fails--; fails >= 0 {
				return nil, errors.New("no luck")
			}
			return own.Bucket(), nil
		}
		h, err := w.acquireOn(f, Options{Connect: connect})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.mustClose(h)
		if opened != 0 || len(own.Calls()) != 0 {
			t.Errorf("a short hold opened %d connections", opened)
		}
		fails = 1
		if h, err = w.acquireOn(f, Options{Connect: connect}); err != nil {
			t.Fatal(err)
		}
		f.Reset()
		pass(41 * time.Second) // four renewals; the second attempt to connect was at the first of them
		if o, g := own.Counts().Replace, f.Counts().Replace; o+g != 4 || g > 1 {
			t.Errorf("%d renewals on its own connection, %d on the given", o, g)
		}
		w.mustClose(h)
		if _, err := own.Bucket().Get(t.Context(), "x", backend.GetOptions{}); !errors.Is(err, backend.ErrClosed) {
			t.Errorf("its own connection is still open: %v", err)
		}
	})
}

func (h *Hold) shared() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return len(h.s.holds) > 1
}
