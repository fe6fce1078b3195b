package datastore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/swampd/swampd/internal/faults"
)

// A connection that is lost in the middle of an answer is made anew, for every
// kind of read: records, checkpoints, packs, blocks, footers.
func TestTransfersThatAreCutAreBegunAgain(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	want := contentsOfAllSizes()
	p.put(want)
	if err := p.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.put(map[string][]byte{"after": text(10)})
	q := e.open(nil)
	// The second request for what comes next is cut, and its repetition goes well.
	for n := 1; n < 60; n += 3 {
		q.faults.Add(faults.Rule{Ops: faults.Get, Nth: n, Do: faults.Truncate(1)})
		q.faults.Add(faults.Rule{Ops: faults.Get, Prefix: "data/", Nth: n, Do: faults.Truncate(1<<20 + 5)})
	}
	p.put(map[string][]byte{"news": text(20)})
	if _, err := q.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	q.want(want)
	q.want(map[string][]byte{"after": text(10), "news": text(20)})
	r, err := q.Verify(context.Background(), &VerifyOptions{ReadData: true})
	if err != nil || len(r.Findings) != 0 {
		t.Fatalf("verify: %+v, %v", r, err)
	}
	q.faults.Clear()
	q.faults.Add(faults.Rule{Ops: faults.Get, Times: faults.Always, Do: faults.Truncate(1)})
	q.faults.Reset()
	if _, err := q.Get(context.Background(), "b/large", nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("with a store that cuts off everything: %v", err)
	}
	if n := q.faults.Counts().Requests(); n != readAttempts {
		t.Errorf("%d requests, want %d", n, readAttempts)
	}
	q.faults.Clear()
}

// Fetch goes on without what is damaged or missing, if it is told to.
func TestFetchWithoutWhatIsDamaged(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	e.damaged = true
	p := e.open(nil)
	// Two packs and two large objects, of which one each is hurt in the middle.
	contents := map[string][]byte{
		"pack1/a": noise(1, 300<<10), "pack1/b": noise(2, 300<<10), "pack1/c": noise(3, 300<<10),
		"large1": noise(4, 3<<20),
	}
	p.put(contents)
	hurt := e.keys("data/")
	more := map[string][]byte{"pack2/a": noise(5, 300<<10), "large2": noise(6, 3<<20), "small": noise(7, 100), "empty": {}}
	p.put(more)
	for _, key := range hurt {
		// Byte 400,000 is of the second content of the pack, and of the first block of
		// the large one.
		e.store.Tamper(key, func(b []byte) []byte { b = bytes.Clone(b); b[400_000] ^= 1; return b })
	}
	q := e.open(nil)
	var mu sync.Mutex
	got, bad := map[string]bool{}, map[string]error{}
	fn := func(_ context.Context, v Version, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		want, ok := contents[v.Path]
		if !ok {
			want = more[v.Path]
		}
		if !bytes.Equal(data, want) {
			t.Errorf("%s: wrong bytes", v.Path)
		}
		got[v.Path] = true
		return nil
	}
	if err := q.Fetch(ctx, q.List(ctx, nil), nil, fn); !errors.Is(err, ErrCorrupt) {
		t.Errorf("without leave to go on: %v, want ErrCorrupt", err)
	}
	fetch := func() error {
		clear(got)
		clear(bad)
		return q.Fetch(ctx, q.List(ctx, nil), &FetchOptions{Damaged: func(v Version, err error) error {
			mu.Lock()
			defer mu.Unlock()
			bad[v.Path] = err
			return nil
		}}, fn)
	}
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 6 || len(bad) != 2 || !errors.Is(bad["large1"], ErrCorrupt) {
		t.Errorf("got %v, damaged %v; want 6 and 2, large1 among them", got, bad)
	}
	// The whole pack is gone: all of it is named, and nothing else.
	for _, key := range hurt {
		if err := e.store.Bucket().Delete(ctx, []string{key}); err != nil {
			t.Fatal(err)
		}
	}
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 4 || len(bad) != 4 {
		t.Errorf("got %v, damaged %v; want 4 and 4", got, bad)
	}
	// What Damaged returns ends it; what is no damage is not asked about.
	stop := errors.New("enough")
	err := q.Fetch(ctx, q.List(ctx, nil), &FetchOptions{Damaged: func(Version, error) error { return stop }}, fn)
	if !errors.Is(err, stop) {
		t.Errorf("got %v, want what Damaged returned", err)
	}
	err = q.Fetch(ctx, q.List(ctx, nil), &FetchOptions{Damaged: func(Version, error) error { return nil }},
		func(context.Context, Version, io.Reader) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("got %v, want fn's error", err)
	}
	// A connection that is always cut tells nothing of what is stored.
	q.faults.Add(faults.Rule{Ops: faults.Get, Prefix: "data/", Times: faults.Always, Do: faults.Truncate(1)})
	defer q.faults.Clear()
	clear(bad)
	if err := fetch(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("with connections that are cut: %v, damaged %v", err, bad)
	}
}
