package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// Two Stores of one process write under one hold: each sees what the other landed,
// neither is fenced by it, and the lease is given back with the last.
func TestStoresOfOneProcessShareTheHold(t *testing.T) {
	for _, sameDir := range []bool{false, true} {
		t.Run(fmt.Sprint("one state directory: ", sameDir), func(t *testing.T) {
			e := newEnv(t, nil)
			o := Options{process: stranger(t), MaxWait: -1}
			if sameDir {
				o.StateDir = t.TempDir()
			}
			a, b := e.open(&o), e.open(&o)
			want := map[string][]byte{}
			for n := range 6 {
				p := []*proc{a, b}[n%2]
				want["x"] = []byte{byte(n)}
				p.put(want) // the same path each time: what the other did is no conflict
			}
			if a.hold.Fence() != 1 || b.hold.Fence() != 1 || a.hold.Session() != b.hold.Session() {
				t.Errorf("fences %d and %d", a.hold.Fence(), b.hold.Fence())
			}
			var wg sync.WaitGroup
			for i, p := range []*proc{a, b} {
				for n := range 20 {
					path := fmt.Sprintf("%d/%d", i, n)
					want[path] = []byte(path)
				}
				wg.Go(func() {
					for n := range 20 {
						path := fmt.Sprintf("%d/%d", i, n)
						if _, err := p.tryPut(uuid.Nil, map[string][]byte{path: []byte(path)}); err != nil {
							t.Errorf("%s: %v", path, err)
						}
					}
				})
			}
			wg.Wait()
			if err := a.hold.Err(); err != nil {
				t.Error(err)
			}
			if err := a.Release(t.Context()); err != nil {
				t.Error(err)
			}
			b.put(map[string][]byte{"last": []byte("1")})
			if err := b.Release(t.Context()); err != nil {
				t.Error(err)
			}
			c := e.open(&Options{MaxWait: -1})
			c.put(map[string][]byte{"next": []byte("1")})
			c.want(want)
		})
	}
}

// Rule R9 for records that another process has folded into the shared catalog.
func TestACloneIsNoticedInASharedCatalog(t *testing.T) {
	e := newEnv(t, nil)
	dir := t.TempDir()
	a := e.open(&Options{StateDir: dir})
	a.put(map[string][]byte{"x": text(1)})
	other := e.open(&Options{StateDir: dir})
	e.craft(e.open(nil), func(r *format.Record) {
		r.Session = a.hold.Session()
		r.Entries = []format.Entry{{ID: uuid.New(), Block: format.Block{Changes: []format.Change{{Op: format.OpPut, Path: "z", SHA256: sha256.Sum256(nil), Place: format.Place{Object: format.Inline}}}}}}
	})
	if _, err := other.Update(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.tryPut(uuid.Nil, map[string][]byte{"x": text(2)}); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
}

// Two copies of one process put up their barriers under one session and fence: the
// newest decides, and the other is fenced before its next create.
func TestOfTwoCopiesTheNewestBarrierDecides(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	// The copy was made between the lease and the barrier: it puts up its own.
	e.craft(e.open(nil), func(r *format.Record) {
		r.Kind, r.Fence, r.Session = format.KindFence, a.hold.Fence(), a.hold.Session()
	})
	before := len(e.keys("commits/"))
	if _, err := a.tryPut(uuid.Nil, map[string][]byte{"x": text(2)}); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	if n := len(e.keys("commits/")); n != before {
		t.Errorf("it created %d records", n-before)
	}
}

// A record whose fate is not known is in flight; one that a process that ends
// would send is refused, and nothing was sent.
func TestWritesInFlightAreTheHolds(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	b := e.unconfirmed(p, text(1))
	hold := p.hold
	if hold.InFlight() != 1 {
		t.Errorf("in flight %d, want 1", hold.InFlight())
	}
	if _, err := b.Commit(t.Context(), ""); err != nil || hold.InFlight() != 0 {
		t.Errorf("%v, in flight %d, want 0", err, hold.InFlight())
	}
	late, err := p.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Put(t.Context(), "y", bytes.NewReader(text(2)), nil); err != nil {
		t.Fatal(err)
	}
	hold.Halt()
	p.faults.Reset()
	if _, err := late.Commit(t.Context(), ""); !errors.Is(err, ErrBusy) || !errors.Is(err, writer.ErrHalted) {
		t.Errorf("got %v, want ErrBusy and ErrHalted", err)
	}
	if n := p.faults.CountsOf(format.CommitPrefix).Create; n != 0 || hold.InFlight() != 0 {
		t.Errorf("%d creates, in flight %d", n, hold.InFlight())
	}
}

// While a create is in flight, the lease does not say that nobody writes.
func TestReleaseKeepsTheLeaseWhileACommitIsLanding(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1)})
	hold := p.hold
	held := p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Block()})
	landed := p.putLater(newID(), map[string][]byte{"x": text(2)})
	<-held.Reached()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Release(ctx); !errors.Is(err, ErrBusy) || hold.Err() != nil {
		t.Errorf("got %v, want ErrBusy; the hold says %v", err, hold.Err())
	}
	released := make(chan error)
	go func() { released <- p.Release(t.Context()) }()
	held.Release()
	if r := <-landed; r.err != nil {
		t.Errorf("the commit got %v", r.err)
	}
	if err := <-released; err != nil || hold.Err() == nil {
		t.Errorf("got %v, the hold says %v", err, hold.Err())
	}
}

// One that has no clear answer is decided first.
func TestReleaseDecidesWhatIsUndecided(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	b := e.unconfirmed(p, text(1))
	hold := p.hold
	deaf := p.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.CommitPrefix, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Release(ctx); !errors.Is(err, ErrBusy) || hold.Err() != nil || hold.InFlight() != 1 {
		t.Errorf("got %v, want ErrBusy; the hold says %v, in flight %d", err, hold.Err(), hold.InFlight())
	}
	deaf.Remove()
	if err := p.Release(t.Context()); err != nil || hold.InFlight() != 0 {
		t.Errorf("got %v, in flight %d", err, hold.InFlight())
	}
	if c, err := p.Outcome(t.Context(), b.ID()); err != nil || c.ID != b.ID() {
		t.Errorf("outcome %+v, %v", c, err)
	}
}
