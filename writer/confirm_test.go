package writer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
)

func TestConfirmIsARenewalOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		pass(5 * time.Second)
		f.Reset()
		if err := h.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := f.Counts().Requests(); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		if l := w.lease(); l.Beat != 2 {
			t.Errorf("beat %d, want 2", l.Beat)
		}
		w.checkStamp(h)
		w.mustClose(h)
	})
}

// A renewal that began before the call proves nothing about the time of the call;
// one that began after it serves all who asked before.
func TestConfirmNeedsARenewalThatBeganAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		slow := f.Add(on(writes, 1, faults.BlockAnswer())) // the heartbeat's, at 10 s
		<-slow.Reached()
		pass(time.Millisecond)
		f.Reset()
		const callers = 8
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				if err := h.Confirm(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		slow.Release()
		wg.Wait()
		if n := f.Counts().Replace; n != 1 {
			t.Errorf("%d renewals for %d callers, want one that began after them", n, callers)
		}
		w.mustClose(h)
	})
}

// It fails closed, and in time, whoever it is that gets no answer.
func TestConfirmWithoutAnAnswerFails(t *testing.T) {
	for name, c := range map[string]struct {
		heartbeat bool // is stuck first
		fate      faults.Action
	}{
		"its own renewal hangs":         {false, faults.Block()},
		"it is done, the answer is not": {false, faults.BlockAnswer()},
		"the heartbeat's renewal hangs": {true, faults.Block()},
		"no answer but errors":          {false, faults.Fail(backend.ErrUnknown)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := w.faulty()
				h := w.mustAcquireOn(f)
				stuck := f.Add(on(faults.Any, faults.Always, c.fate))
				if c.heartbeat {
					<-stuck.Reached()
				}
				began := time.Now()
				err := h.Confirm(t.Context())
				wantErr(t, err, ErrNotConfirmed)
				if took := time.Since(began); took != confirmTime {
					t.Errorf("took %v, want %v", took, confirmTime)
				}
				if h.Err() != nil {
					t.Errorf("the hold ended: %v", h.Err())
				}
				f.Clear()
				pass(5 * time.Second)
				if err := h.Confirm(t.Context()); err != nil {
					t.Errorf("later: %v", err)
				}
				w.mustClose(h)
			})
		})
	}
}

func TestConfirmOfAReplacedHoldEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		w.put(dead(2))
		wantErr(t, h.Confirm(t.Context()), ErrFenced)
		wantErr(t, context.Cause(h.Context()), ErrFenced)
		wantErr(t, h.Confirm(t.Context()), ErrFenced)
		wantErr(t, h.Close(t.Context()), ErrFenced)
		h2 := w.mustAcquire(Options{MaxWait: time.Minute})
		w.mustClose(h2)
		wantErr(t, h2.Confirm(t.Context()), ErrReleased)
	})
}

// A store that is asked too often has answered: that is waited out, as long as the
// caller wishes.
func TestConfirmWaitsForTheRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h := w.mustAcquireOn(f)
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrBusy)))
		time.AfterFunc(3*time.Second, f.Clear)
		if err := h.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(w.born); took < 3*time.Second || took > 6*time.Second {
			t.Errorf("took %v", took)
		}
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrBusy)))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		wantErr(t, h.Confirm(ctx), ErrNotConfirmed)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v, want those of the context", took)
		}
		f.Clear()
		w.mustClose(h)
	})
}

// A write counts as in flight from Begin until its fate is known; after Halt none
// begins.
func TestWritesInFlightAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		first, err := h.Begin()
		if err != nil {
			t.Fatal(err)
		}
		second, err := h.Begin()
		if err != nil || h.InFlight() != 2 {
			t.Fatalf("%v, in flight %d, want 2", err, h.InFlight())
		}
		second()
		second() // a second time it means nothing
		if h.InFlight() != 1 {
			t.Errorf("in flight %d, want 1", h.InFlight())
		}
		h.Halt()
		_, err = h.Begin()
		wantErr(t, err, ErrHalted)
		if h.InFlight() != 1 {
			t.Errorf("in flight %d, want 1", h.InFlight())
		}
		first()
		if h.InFlight() != 0 {
			t.Errorf("in flight %d, want 0", h.InFlight())
		}
		w.mustClose(h)
	})
}

// The way out beside a session that is stuck: its heartbeat hangs in a call that
// ignores its deadline, and what the session owns is held by it.
func TestReleaseAsideNeedsNothingThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		connect := func(context.Context) (*backend.Bucket, error) { return w.store.Bucket(), nil }
		h, err := w.acquireOn(f, Options{Connect: connect})
		if err != nil {
			t.Fatal(err)
		}
		h.s.turn <- struct{}{} // as a stuck renewal does
		pass(12 * time.Second)
		began := time.Now()
		if err := h.ReleaseAside(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 || !w.lease().Released {
			t.Errorf("after %v the lease is %+v", took, w.lease())
		}
		wantErr(t, h.Err(), ErrReleased)
		next := w.mustAcquire(Options{MaxWait: -1})
		<-h.s.turn // the stuck renewal goes on, much later
		synctest.Wait()
		if next.Err() != nil || w.lease().Session != next.Session() {
			t.Errorf("the old hold changed the new one: %v", next.Err())
		}
		before := w.bytes()
		h.Close(t.Context())
		if string(w.bytes()) != string(before) {
			t.Errorf("Close changed the lease to %s", w.bytes())
		}
		w.mustClose(next)
	})
}

func TestReleaseAsideLeavesAnothersLeaseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{})
		w.put(dead(2))
		before := w.bytes()
		wantErr(t, h.ReleaseAside(t.Context()), ErrFenced)
		if string(w.bytes()) != string(before) {
			t.Errorf("it changed the lease to %s", w.bytes())
		}
		h.Close(t.Context())
	})
}

// A renewal of the session that comes in between is no other writer.
func TestReleaseAsideGoesOnAfterARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := w.faulty()
		h, err := w.acquireOn(f, Options{Connect: func(context.Context) (*backend.Bucket, error) { return nil, errors.New("no") }})
		if err != nil {
			t.Fatal(err)
		}
		aside := w.faulty()
		h.s.opts.Connect = func(context.Context) (*backend.Bucket, error) { return aside.Bucket(), nil }
		h.s.turn <- struct{}{} // or the session gives the lease back by itself
		held := aside.Add(on(writes, 1, faults.Block()))
		done := make(chan error)
		go func() { done <- h.ReleaseAside(t.Context()) }()
		<-held.Reached()
		l := w.lease()
		l.Beat++
		w.put(l)
		held.Release()
		if err := <-done; err != nil || !w.lease().Released {
			t.Errorf("%v, the lease is %+v", err, w.lease())
		}
		<-h.s.turn
		h.Close(t.Context())
	})
}

// Rule R9 for holds that share a session.
func TestOwnRecordsAreTheOnesThatWereSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		me := w.stranger()
		a, b := w.mustAcquire(Options{Process: me}), w.mustAcquire(Options{Process: me})
		mine, clones := [32]byte{1}, [32]byte{2}
		decided := a.Sending(mine)
		if !b.Sent(7, mine) || b.Sent(7, clones) {
			t.Error("while it is on its way: not the one that was sent")
		}
		decided(7)
		if !b.Sent(7, mine) || !b.Sent(6, mine) {
			t.Error("what landed is not known any more")
		}
		if b.Sent(8, mine) || b.Sent(8, clones) {
			t.Error("a record that nobody here sent passes for own")
		}
		a.Sending(clones)(0)
		if b.Sent(8, clones) {
			t.Error("one that did not land passes for own")
		}
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		w.mustClose(b)
	})
}
