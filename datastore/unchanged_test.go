package datastore

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"testing"
	"time"
)

// skipPut commits one path with SkipUnchanged, and says whether that made a version.
func (p *proc) skipPut(path string, data []byte, o PutOptions) (made bool) {
	p.t.Helper()
	ctx := context.Background()
	b, err := p.Begin(ctx, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	o.SkipUnchanged = true
	put, err := b.Put(ctx, path, bytes.NewReader(data), &o)
	if err != nil {
		p.t.Fatal(err)
	}
	_, err = b.Commit(ctx, "")
	if put.Unchanged != errors.Is(err, ErrEmpty) || err != nil && !put.Unchanged {
		p.t.Fatalf("unchanged %v, and the commit says %v", put.Unchanged, err)
	}
	return !put.Unchanged
}

// Whatever a version differs in is worth a version; above all other bytes, which
// neither size nor mode nor mtime shows.
func TestSkipUnchangedLeavesOutOnlyWhatIsEqualInEverything(t *testing.T) {
	data, other := []byte("first bytes"), []byte("other bytes")
	if len(data) != len(other) {
		t.Fatal("the sizes must be equal")
	}
	base := PutOptions{Mode: 0o640, MTime: time.Unix(1_700_000_000, 5), Meta: Meta{
		ContentType: "text/plain", Tags: map[string]string{"a": "1", "b": "2"}, Lifetime: time.Hour, Keep: []string{"daily=7", "last=3"},
	}}
	for _, c := range []struct {
		name string
		data []byte
		edit func(*PutOptions)
		made bool
	}{
		{"nothing", data, func(*PutOptions) {}, false},
		{"order of tags", data, func(o *PutOptions) { o.Meta.Tags = map[string]string{"b": "2", "a": "1"} }, false},
		{"bytes", other, func(*PutOptions) {}, true},
		{"size", append(slices.Clone(data), 'x'), func(*PutOptions) {}, true},
		{"mode", data, func(o *PutOptions) { o.Mode = 0o600 }, true},
		{"kind", data, func(o *PutOptions) { o.Mode |= fs.ModeSymlink }, true},
		{"mtime", data, func(o *PutOptions) { o.MTime = o.MTime.Add(1) }, true},
		{"no mtime", data, func(o *PutOptions) { o.MTime = time.Time{} }, true},
		{"content type", data, func(o *PutOptions) { o.Meta.ContentType = "text/html" }, true},
		{"a tag's value", data, func(o *PutOptions) { o.Meta.Tags["a"] = "3" }, true},
		{"a tag's key", data, func(o *PutOptions) { delete(o.Meta.Tags, "a"); o.Meta.Tags["c"] = "1" }, true},
		{"one tag more", data, func(o *PutOptions) { o.Meta.Tags["c"] = "" }, true},
		{"lifetime", data, func(o *PutOptions) { o.Meta.Lifetime++ }, true},
		{"a keep rule", data, func(o *PutOptions) { o.Meta.Keep[0] = "daily=8" }, true},
		{"order of keep rules", data, func(o *PutOptions) { slices.Reverse(o.Meta.Keep) }, true},
		{"one keep rule less", data, func(o *PutOptions) { o.Meta.Keep = o.Meta.Keep[:1] }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, nil)
			p := e.open(nil)
			if !p.skipPut("x", data, base) {
				t.Fatal("the first version was left out")
			}
			o := base
			o.Meta.Tags, o.Meta.Keep = maps.Clone(base.Meta.Tags), slices.Clone(base.Meta.Keep)
			c.edit(&o)
			// The newest version is looked up where it just landed, and, in a
			// process of its own, in the catalog.
			if err := p.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			q := e.open(nil)
			if got := q.skipPut("x", c.data, o); got != c.made {
				t.Errorf("a new version was made: %v, want %v", got, c.made)
			}
			q.want(map[string][]byte{"x": c.data})
			if q.skipPut("x", c.data, o) {
				t.Error("the same again made a version")
			}
			versions := 0
			for _, err := range q.History(t.Context(), "x") {
				if err != nil {
					t.Fatal(err)
				}
				versions++
			}
			if want := 1 + map[bool]int{true: 1}[c.made]; versions != want {
				t.Errorf("%d versions, want %d", versions, want)
			}
		})
	}
}
