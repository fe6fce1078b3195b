package datastore

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/format"
)

// A batch that changes nothing takes no lease and leaves nothing in the log.
func TestALazyBatchThatChangesNothingDisturbsNobody(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	writer := e.open(nil)
	at := time.Unix(1_700_000_000, 0)
	opts := &PutOptions{MTime: at, SkipUnchanged: true}
	b, err := writer.Begin(ctx, &BatchOptions{Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "x", bytes.NewReader(text(10)), opts); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	// writer keeps the lease; another process finds nothing to do.
	q := e.open(&Options{MaxWait: -1})
	head := q.Head()
	q.faults.Reset()
	b, err = q.Begin(ctx, &BatchOptions{Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	put, err := b.Put(ctx, "x", bytes.NewReader(text(10)), opts)
	if err != nil || !put.Unchanged {
		t.Fatalf("%+v, %v; want it unchanged", put, err)
	}
	if _, err := b.Commit(ctx, ""); !errors.Is(err, ErrEmpty) {
		t.Fatalf("commit of nothing: %v", err)
	}
	if n := q.faults.CountsOf(format.LeaseKey).Requests(); n != 0 {
		t.Errorf("%d requests for the lease, want none", n)
	}
	if got := q.faults.Counts().Requests(); got != 2 {
		t.Errorf("%d requests, want the 2 of an update: %v", got, q.faults.Counts())
	}
	if q.Head() != head {
		t.Errorf("the log went from slot %d to %d", head, q.Head())
	}
	// A change does need the lease.
	if _, err := b.Put(ctx, "x", bytes.NewReader(text(11)), opts); !errors.Is(err, ErrBusy) {
		t.Errorf("a change beside another writer: %v, want ErrBusy", err)
	}
	if err := b.Discard(); err != nil {
		t.Fatal(err)
	}
}

// Whoever commits between Begin and the first change ends a lazy batch: what it
// found to be unchanged may not be so any more.
func TestALazyBatchThatWasOutrunIsRefused(t *testing.T) {
	ctx := context.Background()
	for _, how := range []string{"by another process", "by this process"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t, nil)
			p, q := e.open(nil), e.open(nil)
			p.put(map[string][]byte{"x": text(10)})
			if err := p.Release(ctx); err != nil {
				t.Fatal(err)
			}
			b, err := q.Begin(ctx, &BatchOptions{Lazy: true})
			if err != nil {
				t.Fatal(err)
			}
			if how == "by this process" {
				q.put(map[string][]byte{"y": text(1)})
			} else {
				p.put(map[string][]byte{"y": text(1)})
				if err := p.Release(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.Put(ctx, "z", bytes.NewReader(text(5)), nil); !errors.Is(err, ErrConflict) {
				t.Fatalf("put: %v, want ErrConflict", err)
			}
			if err := b.Delete(ctx, "x"); !errors.Is(err, ErrConflict) {
				t.Fatalf("delete: %v, want ErrConflict", err)
			}
			if err := b.Discard(); err != nil {
				t.Fatal(err)
			}
			// Another one goes through; a barrier alone is no commit.
			if b, err = q.Begin(ctx, &BatchOptions{Lazy: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Put(ctx, "z", bytes.NewReader(text(5)), nil); err != nil {
				t.Fatal(err)
			}
			if err := b.Delete(ctx, "x"); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Commit(ctx, ""); err != nil {
				t.Fatal(err)
			}
			q.want(map[string][]byte{"x": nil, "y": text(1), "z": text(5)})
		})
	}
}
