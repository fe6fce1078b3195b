package catalog

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/swampd/swampd/internal/format"
)

// Paths that sort in ways that surprise, and share beginnings.
var propertyPaths = []string{"a", "a\x01", "a b", "a-b", "a/b", "a/b/c", "a/é", "a/\U0010ffff", "ab", "b", "é", "\U0010ffff"}

var propertyContents = []string{"", "x", "yy", "some text", "more text"}

// drawn is a log being made up beside its model.
type drawn struct {
	t *rapid.T
	c *chain
	m *model
}

func (d *drawn) pick(n int, label string) int { return rapid.IntRange(0, n-1).Draw(d.t, label) }

func (d *drawn) live() []string {
	var names []string
	for name, o := range d.m.objects {
		if o.dead == 0 && o.object.Kind == format.ObjectPack {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// objects draws the table of a block: new objects and live ones.
func (d *drawn) objects() []format.Object {
	var table []format.Object
	for range 1 + d.pick(2, "objects") {
		table = append(table, d.c.object(format.ObjectPack))
	}
	if live := d.live(); len(live) > 0 && d.pick(2, "old object") == 1 {
		table = append(table, d.m.objects[live[d.pick(len(live), "object")]].object)
	}
	return table
}

// block draws changes of paths of which none is there twice.
func (d *drawn) block() format.Block {
	b := format.Block{Objects: d.objects()}
	paths := rapid.Permutation(propertyPaths).Draw(d.t, "paths")[:d.pick(4, "changes")]
	for i, path := range paths {
		if d.pick(4, "op") == 0 {
			b.Changes = append(b.Changes, del(path))
			continue
		}
		content := propertyContents[d.pick(len(propertyContents), "content")]
		ch := put(path, content, d.pick(len(b.Objects)+1, "place")-1)
		if content == "" {
			ch.Place = format.Place{Object: format.Inline}
		} else {
			ch.Place.Offset = int64(100 * i)
			ch.Place.Codec = format.Codec(d.pick(3, "codec"))
		}
		if d.pick(3, "meta") == 0 {
			ch.Meta = format.Meta{ContentType: "text/plain", Tags: []format.Tag{{Key: "k", Value: path}}, Lifetime: 5, Keep: []string{"forever"}}
		}
		ch.MTime = int64(d.pick(3, "mtime")) - 1
		b.Changes = append(b.Changes, ch)
	}
	return b
}

func (d *drawn) commit(kind format.Kind) link {
	r := &format.Record{Kind: kind}
	for i := range 1 + d.pick(3, "entries") {
		e := format.Entry{ID: id(int(d.c.slot)*100 + i), Digest: sha(fmt.Sprint(i)), Message: "m", Base: d.m.head, Block: d.block()}
		for range d.pick(2, "lists") {
			if b := d.block(); len(b.Changes) > 0 {
				e.Lists = append(e.Lists, d.c.list(&b))
			}
		}
		r.Entries = append(r.Entries, e)
	}
	return d.c.add(r)
}

// retention drops what may be dropped: anything but living current versions.
func (d *drawn) retention() link {
	var b format.Block
	for _, path := range d.m.paths() {
		for _, v := range d.m.versions[path] {
			current := v.slot == d.m.versions[path][len(d.m.versions[path])-1].slot
			if !v.dropped && (!current || v.change.Op == format.OpDelete) && d.pick(3, "drop") == 0 {
				b.Drops = append(b.Drops, format.VersionRef{Path: path, Slot: v.slot})
			}
		}
	}
	for _, name := range d.live() {
		if d.pick(8, "dead") == 0 {
			b.Dead = append(b.Dead, name)
		}
	}
	r := &format.Record{Kind: format.KindRetention, Block: b}
	if len(b.Drops) > 0 && d.pick(2, "in list") == 0 {
		r.Block, r.Lists = format.Block{}, []format.ListRef{d.c.list(&b)}
	}
	return d.c.add(r)
}

func (d *drawn) repack() link {
	b := format.Block{Objects: []format.Object{d.c.object(format.ObjectPack)}}
	for _, path := range d.m.paths() {
		for _, v := range d.m.versions[path] {
			if !v.dropped && v.change.Op == format.OpPut && v.change.Size > 0 && d.pick(3, "move") == 0 {
				mv := format.Move{VersionRef: format.VersionRef{Path: path, Slot: v.slot}}
				mv.Place = format.Place{Object: 0, Offset: int64(v.slot), Length: v.change.Size}
				b.Moves = append(b.Moves, mv)
			}
		}
	}
	return d.c.add(&format.Record{Kind: format.KindRepack, Block: b})
}

func (d *drawn) next() link {
	switch d.pick(10, "kind") {
	case 0:
		return d.c.add(&format.Record{Kind: format.KindFence})
	case 1:
		return d.retention()
	case 2:
		return d.repack()
	case 3:
		return d.c.add(&format.Record{Kind: format.KindSweep, Sweep: d.m.head / 2})
	case 4:
		return d.commit(format.KindAppend)
	}
	return d.commit(format.KindCommit)
}

// TestModel compares the catalog with the model at every slot, after folding
// and after loading a checkpoint of what was folded.
func TestModel(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		db := openAt(rt, filepath.Join(dir, fmt.Sprint(n, ".db")))
		defer db.Close()
		d := &drawn{t: rt, c: newChain(), m: newModel()}
		step := func(dbs ...*DB) {
			l := d.next()
			d.m.fold(l, d.c.lists)
			for _, db := range dbs {
				fold(rt, db, d.c, l)
			}
		}
		for range rapid.IntRange(1, 12).Draw(rt, "records") {
			step(db)
		}
		compare(rt, db, d.m)

		n++
		copied := openAt(rt, filepath.Join(dir, fmt.Sprint(n, ".db")))
		defer copied.Close()
		// What was there before is replaced.
		fold(rt, copied, d.c, newChain().entry(nil, []format.Change{put("old", "", format.Inline)}))
		s := snap(rt, db)
		root, shards := checkpointOf(rt, s, rapid.IntRange(1, 5).Draw(rt, "rows"))
		s.Close()
		base := d.m.head
		if base > 1 { // else the record that was there before is at the checkpoint
			if err := copied.LoadCheckpoint(rt.Context(), root, format.Checkpoint{Seq: base}, shards); err != nil {
				rt.Fatal(err)
			}
			compare(rt, copied, d.m)
			if err := db.Update(rt.Context(), func(tx *Tx) error {
				return tx.SetCheckpoint(rt.Context(), format.Checkpoint{Seq: base})
			}); err != nil {
				rt.Fatal(err)
			}
			for range rapid.IntRange(0, 6).Draw(rt, "more records") {
				step(db, copied)
			}
			compare(rt, db, d.m)
			compare(rt, copied, d.m)
			compareDirty(rt, db, copied, d.m, base)
		}
	})
}

func compare(t tester, db *DB, m *model) {
	t.Helper()
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := snap(t, db)
	defer s.Close()
	if defects := collect(t, s.Defects(t.Context())); len(defects) > 0 {
		t.Fatalf("defects in a correct log: %v", defects)
	}
	st := s.State()
	if st.Head != m.head || st.Fence != m.fence || st.Session != m.session || st.Sweep != m.sweep {
		t.Fatalf("state %+v, want head %d fence %d session %s sweep %d", st, m.head, m.fence, m.session, m.sweep)
	}
	if got, want := s.Counts(), m.counts(); got != want {
		t.Fatalf("counts\n got %+v\nwant %+v", got, want)
	}
	compareVersions(t, s, m)
	compareChanges(t, s, m)
	compareRest(t, s, m)
}

func compareVersions(t tester, s *Snapshot, m *model) {
	t.Helper()
	ctx := t.Context()
	for slot := uint64(1); slot <= m.head; slot++ {
		for _, path := range append(m.paths(), "missing") {
			got, err := s.Lookup(ctx, path, slot)
			if v := m.at(path, slot); v == nil {
				if !errors.Is(err, ErrNoVersion) {
					t.Fatalf("Lookup(%q, %d) = %+v, %v, want ErrNoVersion", path, slot, got, err)
				}
			} else if want := m.version(path, v); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("Lookup(%q, %d)\n got %+v, %v\nwant %+v", path, slot, got, err, want)
			}
		}
		for _, prefix := range []string{"", "a", "a/", "a/b", "\U0010ffff", "z"} {
			for _, after := range []string{"", "a", "a/b"} {
				got, want := collect(t, s.List(ctx, prefix, after, slot)), m.list(prefix, after, slot)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("List(%q, %q, %d)\n got %+v\nwant %+v", prefix, after, slot, got, want)
				}
			}
		}
	}
	for _, path := range append(m.paths(), "missing") {
		if got, want := collect(t, s.History(ctx, path)), m.history(path); !reflect.DeepEqual(got, want) {
			t.Fatalf("History(%q)\n got %+v\nwant %+v", path, got, want)
		}
	}
}

// compareChanges: a change is found if a version shows it, and at any rate if
// the path does not hold the same before and after. Nothing else is found.
func compareChanges(t tester, s *Snapshot, m *model) {
	t.Helper()
	ctx := t.Context()
	for from := uint64(0); from <= m.head; from++ {
		for _, to := range []uint64{from + 1, (from + m.head + 1) / 2, m.head} {
			if to <= from || to > m.head {
				continue
			}
			for _, prefix := range []string{"", "a/"} {
				got := collect(t, s.Changed(ctx, from, to, prefix))
				if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
					t.Fatalf("Changed(%d, %d, %q) = %q, not sorted", from, to, prefix, got)
				}
				for _, path := range m.paths() {
					ever, shown := false, false
					for _, v := range m.versions[path] {
						if v.slot > from && v.slot <= to {
							ever, shown = true, shown || !v.dropped
						}
					}
					must := strings.HasPrefix(path, prefix) && (shown || m.at(path, from) != m.at(path, to))
					may := strings.HasPrefix(path, prefix) && ever
					if has := slices.Contains(got, path); has && !may || !has && must {
						t.Fatalf("Changed(%d, %d, %q) = %q: %q must be there: %v, may: %v", from, to, prefix, got, path, must, may)
					}
				}
			}
		}
	}
	for _, path := range m.paths() {
		for base := uint64(0); base <= m.head; base++ {
			for _, own := range []uuid.UUID{{}, m.versions[path][0].entry, m.versions[path][len(m.versions[path])-1].entry} {
				compareChangedSince(t, s, m, path, base, own)
			}
		}
	}
}

func compareChangedSince(t tester, s *Snapshot, m *model, path string, base uint64, own uuid.UUID) {
	t.Helper()
	slot, entry, found, err := s.ChangedSince(t.Context(), path, base, own)
	if err != nil {
		t.Fatal(err)
	}
	var newest *modelVersion // that is retained and not own
	ok := false
	for _, v := range m.versions[path] {
		if v.slot > base && !v.dropped && v.entry != own {
			newest = v
		}
		ok = ok || v.slot == slot && v.slot > base && (v.entry == entry && entry != own || v.dropped && entry == uuid.Nil)
	}
	if found && (!ok || newest != nil && slot < newest.slot) || !found && newest != nil {
		t.Fatalf("ChangedSince(%q, %d, %s) = %d, %s, %v; newest retained and not own: %+v", path, base, own, slot, entry, found, newest)
	}
}

func compareRest(t tester, s *Snapshot, m *model) {
	t.Helper()
	ctx := t.Context()
	for _, content := range propertyContents {
		place, found, err := s.FindContent(ctx, sha(content), int64(len(content)))
		if want := m.hasContent(sha(content), int64(len(content))); err != nil || found != want {
			t.Fatalf("FindContent(%q) = %v, %v, want %v", content, found, err, want)
		}
		if found && (place.Inline || place.Dead != 0 || m.objects[place.Object.Name].dead != 0) {
			t.Fatalf("FindContent(%q) = %+v: not a place in a live object", content, place)
		}
	}
	var names []string
	for _, o := range collect(t, s.Objects(ctx, "")) {
		names = append(names, o.Name)
		want := m.objects[o.Name]
		if want == nil || !reflect.DeepEqual(o.Row(), format.ObjectRow{Object: want.object, Born: want.born, Dead: want.dead}) || o.Suspect {
			t.Fatalf("object %+v, want %+v", o, want)
		}
	}
	if len(names) != len(m.objects) || !slices.IsSorted(names) {
		t.Fatalf("objects %q, want %d in order", names, len(m.objects))
	}
	if got := collect(t, s.Log(ctx, 0, 0, false)); !reflect.DeepEqual(got, m.log) {
		t.Fatalf("log\n got %+v\nwant %+v", got, m.log)
	}
	for eid, slot := range m.entries {
		if got, e, found, err := s.Entry(ctx, eid); got != slot || e.ID != eid || !found || err != nil {
			t.Fatalf("Entry(%s) = %d, %+v, %v, %v, want slot %d", eid, got, e, found, err, slot)
		}
	}
}

// compareDirty: the keys that changed since the checkpoint are those of rows
// that differ from it, and perhaps a neighbour's.
func compareDirty(t tester, folded, loaded *DB, m *model, base uint64) {
	t.Helper()
	ctx := t.Context()
	a, b := snap(t, folded), snap(t, loaded)
	defer a.Close()
	defer b.Close()
	for _, table := range []format.Table{format.TableVersions, format.TableObjects, format.TableLog} {
		x, y := collect(t, a.Dirty(ctx, table, base)), collect(t, b.Dirty(ctx, table, base))
		if !slices.Equal(x, y) || !slices.IsSorted(x) {
			t.Fatalf("Dirty(%d, %d)\n folded %q\n loaded %q", table, base, x, y)
		}
		for key := range m.dirty(table, base) {
			if !slices.Contains(x, key) {
				t.Fatalf("Dirty(%d, %d) = %q, without %q", table, base, x, key)
			}
		}
	}
}

// dirty lists the keys of rows that slots above base made, changed or removed.
func (m *model) dirty(table format.Table, base uint64) map[string]bool {
	keys := make(map[string]bool)
	switch table {
	case format.TableVersions:
		for path, list := range m.versions {
			for _, v := range list {
				if v.slot > base && !v.dropped {
					keys[format.VersionKey(path, v.slot)] = true
				}
			}
		}
		for key, at := range m.touched {
			if at > base {
				keys[key] = true
			}
		}
	case format.TableObjects:
		for name, o := range m.objects {
			if o.born > base || o.dead > base {
				keys[name] = true
			}
		}
	case format.TableLog:
		for slot := base + 1; slot <= m.head; slot++ {
			keys[format.SlotKey(slot)] = true
		}
	}
	return keys
}
