package datastore

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

func (e *env) forceRelease() (*writer.Lease, error) {
	e.t.Helper()
	o := (&Options{process: stranger(e.t)}).withDefaults()
	return forceReleaseIn(e.t.Context(), e.store.Bucket(), o)
}

// A forced release fences the holder: it commits nothing more and changes nothing,
// what it had acknowledged stays, and nobody waits for it.
func TestAForcedReleaseFencesTheHolder(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"kept": []byte("1")})
	hold := a.hold
	b, err := a.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "late", bytesReader([]byte("2")), nil); err != nil {
		t.Fatal(err)
	}
	victim, err := e.forceRelease()
	if err != nil {
		t.Fatal(err)
	}
	if victim == nil || victim.Session != hold.Session() || victim.Released {
		t.Errorf("fenced %+v, want session %s", victim, hold.Session())
	}
	if _, err := b.Commit(t.Context(), "late"); !errors.Is(err, ErrFenced) {
		t.Errorf("the commit of the fenced writer got %v", err)
	}
	if !errors.Is(hold.Err(), ErrFenced) {
		t.Errorf("the fenced writer's hold says %v", hold.Err())
	}
	c := e.open(&Options{MaxWait: -1})
	c.put(map[string][]byte{"next": []byte("3")})
	if c.hold.Fence() != hold.Fence()+2 {
		t.Errorf("fence %d after %d and a forced release", c.hold.Fence(), hold.Fence())
	}
	c.want(map[string][]byte{"kept": []byte("1"), "late": nil, "next": []byte("3")})
}

// I7: a hold that is lost stages nothing more, also in the middle of a content.
func TestALostHoldStagesNothingMore(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	b, err := a.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	endless := readerFunc(func(p []byte) (int, error) {
		if read++; read == 20 {
			a.hold.Lost(nil)
		}
		if read > 1000 {
			return 0, errors.New("it reads on and on")
		}
		return len(p), nil
	})
	if _, err := b.Put(t.Context(), "x", endless, nil); !errors.Is(err, ErrFenced) || read != 20 {
		t.Errorf("got %v after %d reads", err, read)
	}
	if _, err := b.Put(t.Context(), "y", bytesReader(nil), nil); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Where nobody holds the lease, the barrier fences whoever still believes to.
func TestAForcedReleaseOfAFreeLeasePutsUpABarrier(t *testing.T) {
	e := newEnv(t, nil)
	for want := uint64(1); want <= 2; want++ {
		victim, err := e.forceRelease()
		if err != nil || victim != nil {
			t.Fatalf("fenced %+v, %v", victim, err)
		}
		p := e.open(nil)
		if got := (logSeam{p.Store}).Fence(); got != want {
			t.Errorf("the log is at fence %d, want %d", got, want)
		}
		p.close()
	}
}

// It reads no more of the log than its end, by the newest checkpoint, and by the
// log itself where the checkpoint is damaged.
func TestAForcedReleaseReadsTheCheckpointAndTheRecordsAfterIt(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		e := newEnv(t, nil)
		a := e.open(nil)
		for range 12 {
			a.put(map[string][]byte{"x": []byte("1")})
		}
		if err := a.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.put(map[string][]byte{"x": []byte("2")})
		ck, _ := e.checkpointRecord()
		seq := ck.Seq
		if seq == 0 || seq == a.Head() {
			t.Fatalf("checkpoint %d, head %d", seq, a.Head())
		}
		if damaged {
			e.damaged = true
			e.store.Tamper(ck.Root, func(b []byte) []byte { return b[:len(b)-1] })
		}
		f := faults.Wrap(e.store.Open())
		_, err := forceReleaseIn(t.Context(), f.Bucket(), (&Options{process: stranger(t)}).withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Calls() {
			if c.Op == faults.Get && c.Keys[0] == format.SlotKey(seq) && !damaged {
				t.Errorf("it read %v, which the checkpoint %d covers", c, seq)
			}
		}
		if _, err := a.tryPut(newID(), map[string][]byte{"x": []byte("2")}); !errors.Is(err, ErrFenced) {
			t.Errorf("the fenced writer got %v", err)
		}
	}
}

// The end of a forced release that gets no answers is an error that says who
// lost the lease, and the next one succeeds.
func TestAForcedReleaseUnderEveryFault(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	for n := 1; ; n++ {
		a.put(map[string][]byte{"x": {byte(n)}})
		hold := a.hold
		f := faults.Wrap(e.store.Open())
		rule := f.Add(faults.Rule{Ops: faults.Any, Nth: n, Times: 1, Do: faults.Lose()})
		victim, err := forceReleaseIn(t.Context(), f.Bucket(), (&Options{process: stranger(t)}).withDefaults())
		hit := false
		select {
		case <-rule.Reached():
			hit = true
		default:
		}
		if err == nil && (victim == nil || victim.Session != hold.Session()) {
			t.Errorf("fault %d: fenced %+v", n, victim)
		}
		if err != nil {
			if victim != nil && victim.Session != hold.Session() {
				t.Errorf("fault %d: %v, fenced %+v", n, err, victim)
			}
			if _, err := e.forceRelease(); err != nil {
				t.Errorf("after fault %d: %v", n, err)
			}
		}
		if _, err := a.tryPut(newID(), map[string][]byte{"x": []byte("lost")}); !errors.Is(err, ErrFenced) {
			t.Errorf("fault %d: the fenced writer got %v", n, err)
		}
		if err := a.Release(context.Background()); err != nil {
			t.Error(err)
		}
		if !hit {
			return
		}
	}
}

// The holder commits while its barrier is on the way: the barrier goes behind it,
// and what was acknowledged stays.
func TestAForcedReleaseThatLosesItsSlotTakesTheNext(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"x": []byte("1")})
	f := faults.Wrap(e.store.Open())
	held := f.Add(faults.Rule{Ops: faults.Create, Prefix: format.CommitPrefix, Do: faults.Block()})
	done := make(chan error)
	go func() {
		_, err := forceReleaseIn(t.Context(), f.Bucket(), (&Options{process: stranger(t)}).withDefaults())
		done <- err
	}()
	<-held.Reached()
	last := a.put(map[string][]byte{"x": []byte("2")})
	held.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := a.tryPut(newID(), map[string][]byte{"x": []byte("3")}); !errors.Is(err, ErrFenced) {
		t.Errorf("the fenced writer got %v", err)
	}
	b := e.open(&Options{MaxWait: -1})
	if b.Head() != last.Slot+1 {
		t.Errorf("the head is %d after the commit in %d and a barrier", b.Head(), last.Slot)
	}
	b.want(map[string][]byte{"x": []byte("2")})
}

// A log that does not chain is damaged; no barrier is put behind it.
func TestAForcedReleaseOfADamagedLogIsRefused(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"x": []byte("1")})
	e.craft(e.open(nil), func(r *format.Record) { r.Prev[0] ^= 1 })
	e.damaged = true
	before := len(e.keys("commits/"))
	if _, err := e.forceRelease(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
	if n := len(e.keys("commits/")); n != before {
		t.Errorf("%d records more", n-before)
	}
}

func TestLockStatusOfAStoreWithoutDatastore(t *testing.T) {
	o := (*Options)(nil).withDefaults()
	if _, err := forceReleaseIn(t.Context(), memory.New(nil).Bucket(), o); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// A daemon's promise, and the guard in its state directory; without being asked for,
// there is neither.
func TestFastAdoptionIsAskedFor(t *testing.T) {
	e := newEnv(t, nil)
	for _, fast := range []bool{false, true} {
		dir := t.TempDir()
		p := e.open(&Options{StateDir: dir, Writer: "ci", Epoch: "1", FastAdoption: fast})
		hold, err := p.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		st, err := writer.Inspect(t.Context(), e.store.Bucket(), &writer.Options{Process: stranger(t)})
		if err != nil {
			t.Fatal(err)
		}
		l := st.Lease
		if l.Writer != "ci" || l.Epoch != "1" || (l.Adoption != nil) != fast || (l.Guard != nil) != fast {
			t.Errorf("asked %v: writer %q, epoch %q, promise %+v, guard %+v", fast, l.Writer, l.Epoch, l.Adoption, l.Guard)
		}
		if fast && l.Guard.Path != filepath.Join(dir, "guard") {
			t.Errorf("the guard is %s", l.Guard.Path)
		}
		p.close()
		if hold.Err() == nil {
			t.Error("the hold outlived the Store")
		}
	}
	p := e.open(&Options{FastAdoption: true})
	if _, err := p.Begin(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "needs a writer id, an epoch") {
		t.Errorf("without a writer id: %v", err)
	}
}
