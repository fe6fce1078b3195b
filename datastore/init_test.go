package datastore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// emptyEnv is a store without a datastore.
func emptyEnv(t *testing.T) *env {
	e := &env{t: t, clock: &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}}
	e.store = memory.New(&memory.Options{Now: e.clock.Now})
	return e
}

func (e *env) init(bucket *backend.Bucket) error {
	o := (&Options{SkipProbe: true}).withDefaults()
	return initBucket(e.t.Context(), bucket, &o)
}

// Whatever becomes of one request of an Init: afterwards another makes exactly
// one datastore, or says that there is one, and that one works.
func TestInitWithAFaultAtEveryCall(t *testing.T) {
	for name, do := range faults.Usual() {
		t.Run(name, func(t *testing.T) {
			faults.Sweep(t, func(t *testing.T, n int) bool {
				e := emptyEnv(t)
				f := faults.Wrap(e.store.Open())
				fault := f.Add(faults.Rule{Ops: faults.Any, Nth: n, Do: do})
				first := e.init(f.Bucket())
				struck := fault.Fired() > 0
				// Only the first read, and a plain refusal, end it.
				if struck && n > 1 && name != "denied" && first != nil {
					t.Errorf("an answer that was lost was not resolved: %v", first)
				}
				made, err := e.store.Bucket().Get(t.Context(), format.FormatKey, backend.GetOptions{})
				if there := err == nil; there {
					made.Body.Close()
				} else if first == nil {
					t.Fatalf("Init succeeded, and there is no marker: %v", err)
				}
				second := e.init(e.store.Bucket())
				if err == nil && !errors.Is(second, ErrExists) || err != nil && second != nil {
					t.Fatalf("after %v (marker: %v) a second Init says %v", first, err, second)
				}
				p := e.open(nil)
				p.put(map[string][]byte{"x": text(1)})
				if third := e.init(e.store.Bucket()); !errors.Is(third, ErrExists) {
					t.Errorf("a third Init says %v, want ErrExists", third)
				}
				q := e.open(nil)
				if q.ID() != p.ID() {
					t.Errorf("the datastore is %v, then %v", p.ID(), q.ID())
				}
				q.want(map[string][]byte{"x": text(1)})
				if got := strings.Join(e.keys("_control/f"), " ") + " " + strings.Join(e.keys(format.CheckpointKey), " "); got != format.FormatKey+" "+format.CheckpointKey {
					t.Errorf("control objects: %s", got)
				}
				e.verify()
				return struck
			})
		})
	}
}

// A marker that arrives when its Init has given up makes no second datastore.
func TestAMarkerThatArrivesLateMakesNoSecondDatastore(t *testing.T) {
	for _, before := range []bool{true, false} {
		e := emptyEnv(t)
		f := faults.Wrap(e.store.Open())
		late := f.Add(faults.Rule{Ops: faults.Create, Prefix: format.FormatKey, Do: faults.Late()})
		f.Add(faults.Rule{Ops: faults.Create, Prefix: format.FormatKey, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
		if err := e.init(f.Bucket()); err == nil {
			t.Fatal("Init succeeded without an answer about its marker")
		}
		f2 := faults.Wrap(e.store.Open())
		hold := f2.Add(faults.Rule{Ops: faults.Create, Prefix: format.FormatKey, Do: faults.Block()})
		second := make(chan error, 1)
		go func() { second <- e.init(f2.Bucket()) }()
		select {
		case <-hold.Reached(): // it has seen that there is none
		case err := <-second:
			t.Fatalf("the second Init ends before it makes a marker: %v", err)
		}
		want := error(nil)
		if before {
			want = ErrExists
			if err := late.Release(); err != nil {
				t.Fatal(err)
			}
		}
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
		if err := <-second; !errors.Is(err, want) {
			t.Errorf("late marker first %v: the second Init says %v, want %v", before, err, want)
		}
		p := e.open(nil)
		if !before {
			_ = late.Release() // the store says that there is one
		}
		if q := e.open(nil); q.ID() != p.ID() {
			t.Errorf("the datastore is %v, then %v", p.ID(), q.ID())
		}
		e.verify()
	}
}

// A store that never gives a clear answer, or none at all, does not keep Init.
func TestInitEndsWhereTheStoreGivesNoAnswer(t *testing.T) {
	for name, rule := range map[string]faults.Rule{
		"busy":      {Ops: faults.Create, Do: faults.Fail(backend.ErrBusy)},
		"no answer": {Ops: faults.Create, Do: faults.Fail(fmt.Errorf("%w (dropped)", backend.ErrUnknown))},
		"silent":    {Ops: faults.Create, Do: faults.Block()},
		"deaf":      {Ops: faults.Get, Do: faults.Block()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := emptyEnv(t)
				f := faults.Wrap(e.store.Open())
				rule.Times = faults.Always
				f.Add(rule)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				o := (&Options{SkipProbe: true}).withDefaults()
				if err := initBucket(ctx, f.Bucket(), &o); err == nil || ctx.Err() != nil {
					t.Errorf("got %v (context: %v), want an error before the context ends", err, ctx.Err())
				}
				if keys := e.keys(format.FormatKey); len(keys) != 0 {
					t.Errorf("there is %q", keys)
				}
			})
		})
	}
}
