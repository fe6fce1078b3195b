package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// What another Store of the process landed before a batch began is no conflict for
// it, also when that Store is closed by then.
func TestAStoreSeesWhatAClosedOneLanded(t *testing.T) {
	e := newEnv(t, nil)
	me := stranger(t)
	a := e.open(&Options{process: me})
	a.put(map[string][]byte{"x": text(1)})
	b := e.open(&Options{process: me})
	b.put(map[string][]byte{"x": text(2)})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.tryPut(uuid.Nil, map[string][]byte{"x": text(3)}); err != nil {
		t.Errorf("one after the other: %v", err)
	}
}

// The same for a lazy batch: what was found unchanged has changed since.
func TestALazyBatchSeesWhatAnotherStoreLanded(t *testing.T) {
	e := newEnv(t, nil)
	ctx := context.Background()
	me := stranger(t)
	a, b := e.open(&Options{process: me}), e.open(&Options{process: me})
	a.put(map[string][]byte{"x": text(1), "y": text(1)})
	lazy, err := a.Begin(ctx, &BatchOptions{Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Discard()
	if _, err := lazy.Put(ctx, "x", bytes.NewReader(text(1)), &PutOptions{SkipUnchanged: true}); err != nil {
		t.Fatal(err)
	}
	b.put(map[string][]byte{"x": text(2)})
	if _, err = lazy.Put(ctx, "y", bytes.NewReader(text(3)), &PutOptions{SkipUnchanged: true}); err == nil {
		_, err = lazy.Commit(ctx, "")
	}
	if !errors.Is(err, ErrConflict) {
		t.Errorf("got %v, want ErrConflict: x was left out as unchanged, and is not", err)
	}
}

// Rule R9 for what others have folded, also after a catching up that failed.
func TestACloneIsNoticedAfterAFailedUpdate(t *testing.T) {
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
	batch, err := a.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := batch.Put(t.Context(), "x", bytes.NewReader(text(2)), nil); err != nil {
		t.Fatal(err)
	}
	a.faults.Add(faults.Rule{Ops: faults.Get, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
	if _, err := a.Update(t.Context()); err == nil {
		t.Fatal("the update did not fail")
	}
	a.faults.Clear()
	if _, err := batch.Commit(t.Context(), ""); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
}

// MaxWait bounds the waiting of each Begin, however many wait in one Store.
func TestMaxWaitBoundsEachBegin(t *testing.T) {
	e := newEnv(t, nil)
	holder := e.open(nil)
	holder.put(map[string][]byte{"x": text(1)})
	p := e.open(&Options{MaxWait: 500 * time.Millisecond})
	began := time.Now()
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := p.Begin(context.Background(), nil); !errors.Is(err, ErrBusy) {
				t.Errorf("got %v, want ErrBusy", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("took %v, want about 500ms", took)
	}
}

// A Store that joined gives the lease back after the one that acquired it is
// closed.
func TestTheLastStoreGivesTheLeaseBack(t *testing.T) {
	e := newEnv(t, nil)
	me := stranger(t)
	a := e.open(&Options{process: me})
	a.put(map[string][]byte{"x": text(1)})
	b := e.open(&Options{process: me})
	b.put(map[string][]byte{"x": text(2)})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b.put(map[string][]byte{"x": text(3)})
	if err := b.hold.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := writer.Inspect(t.Context(), e.store.Bucket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if st.Held() {
		t.Error("the lease was not given back")
	}
}

// A lease that comes after Close has given the lease back is not kept.
func TestNoLeaseAfterClose(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.acquire(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}
