package datastore

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/writer"
)

// it, also when that Store is closed by then.
func TestBreakerAStoreSeesWhatAClosedOneLanded(t *testing.T) {
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
func TestBreakerALazyBatchSeesWhatAnotherStoreLanded(t *testing.T) {
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

// closed.
func TestBreakerTheLastStoreGivesTheLeaseBack(t *testing.T) {
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
