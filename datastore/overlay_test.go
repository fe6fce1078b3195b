package datastore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// change commits puts, and deletes where the content is nil.
func (p *proc) change(contents map[string][]byte) *Commit {
	p.t.Helper()
	ctx := context.Background()
	b, err := p.Begin(ctx, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(contents)) {
		if data := contents[path]; data == nil {
			err = b.Delete(ctx, path)
		} else {
			_, err = b.Put(ctx, path, bytes.NewReader(data), nil)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	c, err := b.Commit(ctx, "")
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// Rule R10: paths that are new, replaced and deleted in commits that the catalog
// does not have show in every listing as they will when it has them.
func TestLandedPathsAreListedWhileTheCatalogIsStuck(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"a/1": text(1), "b/1": text(1), "b/3": text(1), "c": text(1)})
	p.change(map[string][]byte{"b/3": text(2), "d": text(1)})
	if err := p.overlay.flush(ctx); err != nil {
		t.Fatal(err)
	}
	known := p.Head()
	unlock := p.lockCatalog()
	defer func() { unlock() }()
	p.change(map[string][]byte{"b/2": text(3), "z": text(3), "b/3": text(3), "a/1": nil})
	p.change(map[string][]byte{"b/2": text(4), "z": nil, "0": text(4)})
	if p.overlay.accounted() != known {
		t.Fatal("the catalog is not stuck")
	}

	for _, c := range []struct {
		o    ListOptions
		want string
	}{
		{ListOptions{}, "0 b/1 b/2 b/3 c d"},
		{ListOptions{Prefix: "b/"}, "b/1 b/2 b/3"},
		{ListOptions{Prefix: "b/2"}, "b/2"},
		{ListOptions{Prefix: "z"}, ""},
		{ListOptions{Prefix: "0"}, "0"},
		{ListOptions{After: "0"}, "b/1 b/2 b/3 c d"},
		{ListOptions{After: "b/1"}, "b/2 b/3 c d"},
		{ListOptions{After: "b/2"}, "b/3 c d"},
		{ListOptions{After: "b/1", Prefix: "b"}, "b/2 b/3"},
		{ListOptions{After: "b/3", Prefix: "b"}, ""},
		{ListOptions{After: "a", Prefix: "b"}, "b/1 b/2 b/3"},
		{ListOptions{At: known}, "a/1 b/1 b/3 c d"},
		{ListOptions{At: known + 1}, "b/1 b/2 b/3 c d z"},
		{ListOptions{At: known + 1, After: "c"}, "d z"},
		{ListOptions{At: known + 2}, "0 b/1 b/2 b/3 c d"},
	} {
		if got := strings.Join(p.paths(&c.o), " "); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.o, got, c.want)
		}
	}

	// The same versions as later, from the catalog: all listings and histories.
	all := func() (lines []string) {
		for at := uint64(1); at <= p.Head(); at++ {
			for _, prefix := range []string{"", "b", "b/2", "z", "0", "y"} {
				for _, after := range []string{"", "0", "a/1", "b/1", "b/2", "b/9", "z"} {
					o := ListOptions{Prefix: prefix, After: after, At: at}
					for v, err := range p.List(ctx, &o) {
						if err != nil {
							t.Fatal(err)
						}
						lines = append(lines, fmt.Sprintf("%+v: %s of %d, %d bytes, %x, %s", o, v.Path, v.Slot, v.Size, v.SHA256[:4], v.Commit))
					}
				}
			}
		}
		for _, path := range []string{"0", "a/1", "b/1", "b/2", "b/3", "z", "nothing"} {
			for v, err := range p.History(ctx, path) {
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, fmt.Sprintf("history: %s of %d until %d, deleted %v, %d bytes, %x", v.Path, v.Slot, v.Until, v.Deleted, v.Size, v.SHA256[:4]))
			}
		}
		return lines
	}
	stuck := all()
	if n := len(slices.DeleteFunc(slices.Clone(stuck), func(s string) bool { return !strings.HasPrefix(s, "history: ") })); n != 11 {
		t.Errorf("the histories have %d versions, want 11", n)
	}

	// What needs the catalog says what it waits for, and has what landed once the
	// catalog does.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	for name, err := range map[string]error{"log": last(p.Log(short, nil)), "diff": last(p.Diff(short, known, Newest, ""))} {
		if err == nil || !strings.Contains(err.Error(), "catalog") {
			t.Errorf("%s: got %v, want an error that names the catalog", name, err)
		}
	}
	type lines struct{ log, diff []string }
	waiting := make(chan lines, 1)
	go func() {
		var l lines
		for e, err := range p.Log(ctx, &LogOptions{From: known + 1}) {
			l.log = append(l.log, fmt.Sprint(e.Slot, err))
		}
		for d, err := range p.Diff(ctx, known, Newest, "") {
			l.diff = append(l.diff, fmt.Sprint(d.Path, d.From != nil, d.To != nil, err))
		}
		waiting <- l
	}()
	unlock()
	unlock = func() {}
	got := <-waiting
	if want := []string{fmt.Sprint(known+2, nil), fmt.Sprint(known+1, nil)}; !slices.Equal(got.log, want) {
		t.Errorf("log: got %q, want %q", got.log, want)
	}
	if want := []string{"0false true <nil>", "a/1true false <nil>", "b/2false true <nil>", "b/3true true <nil>"}; !slices.Equal(got.diff, want) {
		t.Errorf("diff: got %q, want %q", got.diff, want)
	}
	if err := p.overlay.flush(ctx); err != nil {
		t.Fatal(err)
	}
	later := all()
	if !slices.Equal(stuck, later) {
		for i := range max(len(stuck), len(later)) {
			if i >= len(stuck) || i >= len(later) || stuck[i] != later[i] {
				t.Fatalf("first difference, stuck: %q, later: %q", stuck[min(i, len(stuck)):min(i+1, len(stuck))], later[min(i, len(later)):min(i+1, len(later))])
			}
		}
	}
}
