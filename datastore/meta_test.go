package datastore

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a caller says of a content comes back, whole and for each version, from
// wherever a version can come: the overlay, the catalog, the log, a checkpoint.
func TestAllThatIsSaidOfAContentComesBack(t *testing.T) {
	ctx := t.Context()
	long := strings.Repeat("ü", 5000)
	said := map[string]PutOptions{
		"nothing":      {},
		"content type": {Meta: Meta{ContentType: "text/plain; charset=utf-8"}},
		"tags":         {Meta: Meta{Tags: map[string]string{"z": "1", "a": "", "k=v": "x,y\n\x00", long: long}}},
		"lifetime":     {Meta: Meta{Lifetime: 1<<63 - 1}},
		"keep":         {Meta: Meta{Keep: []string{"last=3", "daily=7", "last=3"}}},
		"all": {Mode: fs.ModeSymlink | 0o777, MTime: time.Unix(-1, 999_999_999), Meta: Meta{
			ContentType: "x", Tags: map[string]string{"a": "b"}, Lifetime: 1, Keep: []string{"k"}}},
	}
	contents := map[string][]byte{"inline": text(40), "packed": packed(1), "large": noise(2, 2<<20), "empty": {}}
	e := newEnv(t, nil)
	p := e.open(nil)
	commit := func(rename func(string) string) *Commit {
		t.Helper()
		b, err := p.Begin(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for kind, data := range contents {
			for name, o := range said {
				if _, err := b.Put(ctx, kind+"/"+rename(name), bytes.NewReader(data), &o); err != nil {
					t.Fatal(err)
				}
			}
		}
		c, err := b.Commit(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// The second commit says of each path what the first said of the next one.
	names := slices.Sorted(maps.Keys(said))
	next := func(name string) string { return names[(slices.Index(names, name)+1)%len(names)] }
	first := commit(func(name string) string { return name })
	second := commit(next)
	if first.Changes != uint64(len(contents)*len(said)) || second.Changes != first.Changes {
		t.Fatalf("%+v, %+v", first, second)
	}
	check := func(where string, q *proc) {
		t.Helper()
		one := func(how string, v *Version, name string) {
			t.Helper()
			o := said[name]
			if o.Mode == 0 {
				o.Mode = 0o644
			}
			if v.Mode != o.Mode || !v.MTime.Equal(o.MTime) || v.MTime.IsZero() != o.MTime.IsZero() || !reflect.DeepEqual(v.Meta, o.Meta) {
				t.Errorf("%s, %s: %s of slot %d: got %v, %v, %.200v; want %.200v", where, how, v.Path, v.Slot, v.Mode, v.MTime, v.Meta, fmt.Sprint(o))
			}
		}
		for kind := range contents {
			for name := range said {
				for slot, path := range map[uint64]string{first.Slot: kind + "/" + name, Newest: kind + "/" + next(name)} {
					v, err := q.Stat(ctx, path, slot)
					if err != nil {
						t.Fatalf("%s: %v", where, err)
					}
					one("stat", v, name)
				}
			}
		}
		n := 0
		for v, err := range q.List(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			_, name, _ := strings.Cut(v.Path, "/")
			one("list", &v, names[(slices.Index(names, name)+len(names)-1)%len(names)])
			n++
		}
		if n != len(contents)*len(said) {
			t.Errorf("%s: the list has %d paths, want %d", where, n, len(contents)*len(said))
		}
	}
	unlock := func() {}
	defer func() { unlock() }()
	if err := p.overlay.flush(ctx); err != nil {
		t.Fatal(err)
	}
	check("its own catalog", p)
	check("the log", e.open(nil))
	unlock = p.lockCatalog()
	b, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := said["all"]
	if _, err := b.Put(ctx, "pending", bytes.NewReader(text(3)), &all); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	v, err := p.Stat(ctx, "pending", Newest)
	if err != nil || !reflect.DeepEqual(v.Meta, all.Meta) || v.Mode != all.Mode || !v.MTime.Equal(all.MTime) {
		t.Errorf("what has just landed: %+v, %v", v, err)
	}
	for v, err := range p.List(ctx, &ListOptions{Prefix: "pending"}) {
		if err != nil || !reflect.DeepEqual(v.Meta, all.Meta) {
			t.Errorf("what has just landed, in the list: %+v, %v", v, err)
		}
	}
	unlock()
	unlock = func() {}
	del, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := del.Delete(ctx, "pending"); err != nil {
		t.Fatal(err)
	}
	if _, err := del.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	q := e.open(nil)
	if n := q.faults.CountsOf(fmt.Sprintf("commits/%020d", first.Slot)).Requests(); n != 0 {
		t.Errorf("the process that is to read the checkpoint read the log (%d requests)", n)
	}
	check("a checkpoint", q)
}
