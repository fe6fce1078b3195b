package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"testing"
	"time"
)

func bigPath(i int) string { return fmt.Sprintf("big/%06d", i) }

// bigBatch begins a batch and puts more changes than stay in memory, of which
// the first ones are then in the spill file.
func (p *proc) bigBatch() *Batch {
	p.t.Helper()
	ctx := context.Background()
	b, err := p.Begin(ctx, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for i := range spillAt + 100 {
		if _, err := b.Put(ctx, bigPath(i), bytes.NewReader([]byte(bigPath(i))), nil); err != nil {
			p.t.Fatal(err)
		}
	}
	if b.changes.db == nil || len(b.changes.mem) == 0 {
		p.t.Fatalf("the batch is not in both places: %d changes in memory, file %v", len(b.changes.mem), b.changes.db)
	}
	return b
}

// A path is put again, deleted and put anew after its change went to the file:
// the last word counts, each path once.
func TestALaterChangeTakesThePlaceOfOneThatWasSpilled(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"big/000003": text(3), "old": text(4), "big/000004": text(5)})
	b, path := p.bigBatch(), bigPath
	if _, has, err := b.changes.op(ctx, path(0)); err != nil || !has || b.changes.mem[path(0)] != nil {
		t.Fatalf("the first change is not in the file: %v, %v", has, err)
	}
	all := spillAt + 100
	put := func(path, data string, o *PutOptions) {
		t.Helper()
		got, err := b.Put(ctx, path, bytes.NewReader([]byte(data)), o)
		if err != nil || got.Unchanged {
			t.Fatalf("%s: %+v, %v", path, got, err)
		}
	}
	del := func(path string, want error) {
		t.Helper()
		if err := b.Delete(ctx, path); !errors.Is(err, want) {
			t.Fatalf("delete %s: %v, want %v", path, err, want)
		}
	}
	wantLen := func(want int) {
		t.Helper()
		if got := b.Len(); got != want {
			t.Fatalf("the batch has %d changes, want %d", got, want)
		}
	}
	rich := &PutOptions{Mode: 0o600, MTime: time.Unix(5, 6), Meta: Meta{ContentType: "a/b", Tags: map[string]string{"k": "v"}, Lifetime: 7, Keep: []string{"r"}}}
	put(path(0), "again", nil) // replaces
	wantLen(all)
	del(path(1), nil) // takes the put back: the state has no such path
	wantLen(all - 1)
	del(path(1), ErrNotFound)
	del(path(2), nil)
	put(path(2), "anew", rich)
	wantLen(all - 1)
	del(path(3), nil) // becomes a deletion
	wantLen(all - 1)
	del(path(3), ErrNotFound)
	put(path(4), string(text(5)), &PutOptions{SkipUnchanged: true}) // equal to the state, not to the batch
	wantLen(all - 1)
	del("old", nil)
	del("nothing", ErrNotFound)
	wantLen(all)
	// The file again, with what was changed since.
	for i := range spillAt {
		put(fmt.Sprintf("more/%06d", i), "m", nil)
	}
	put("more/000000", "n", nil)
	del("more/000001", nil)
	wantLen(all + spillAt - 1)

	c, err := b.Commit(ctx, "big")
	if err != nil {
		t.Fatal(err)
	}
	if c.Changes != uint64(all+spillAt-1) {
		t.Errorf("the commit has %d changes, want %d", c.Changes, all+spillAt-1)
	}
	want := map[string][]byte{
		path(0): []byte("again"), path(1): nil, path(2): []byte("anew"), path(3): nil, path(4): text(5), path(5): []byte(path(5)),
		path(all - 1): []byte(path(all - 1)), "old": nil, "more/000000": []byte("n"), "more/000001": nil, "more/000002": []byte("m"),
	}
	for _, q := range []*proc{p, e.open(nil)} {
		q.want(want)
		if got := len(q.paths(nil)); got != all+spillAt-3 { // 1 and 3 are not there, nor more/000001
			t.Errorf("%d paths, want %d", got, all+spillAt-3)
		}
		v, err := q.Stat(ctx, path(2), Newest)
		if err != nil || v.Mode != fs.FileMode(0o600) || !v.MTime.Equal(rich.MTime) || !reflect.DeepEqual(v.Meta, rich.Meta) {
			t.Errorf("%+v, %v; want %+v", v, err, rich)
		}
	}
}

// Rule R11 holds for the changes in the file as for those in memory.
func TestConflictOnAPathThatWasSpilled(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1)})
	for _, c := range []struct {
		path string
		want error
	}{{bigPath(0), ErrConflict}, {bigPath(spillAt + 99), ErrConflict}, {"elsewhere", nil}} {
		b := p.bigBatch()
		p.put(map[string][]byte{c.path: text(2)})
		got, err := b.Commit(ctx, "")
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %+v, %v; want %v", c.path, got, err, c.want)
		}
		other := map[string][]byte{bigPath(1): nil} // nothing of the batch
		if c.want == nil {
			other[bigPath(1)] = []byte(bigPath(1))
		}
		p.want(other)
	}
}
