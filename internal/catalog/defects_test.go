package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// A record that says what cannot be is written down and blocks nothing.
func TestDefectsBlockNothing(t *testing.T) {
	drop := func(path string, slot uint64) *format.Record {
		return &format.Record{Kind: format.KindRetention, Block: format.Block{Drops: []format.VersionRef{{Path: path, Slot: slot}}}}
	}
	move := func(path string, slot uint64, o format.Object, object int) *format.Record {
		m := format.Move{VersionRef: format.VersionRef{Path: path, Slot: slot}, Place: format.Place{Object: object, Length: 1}}
		return &format.Record{Kind: format.KindRepack, Block: format.Block{Objects: []format.Object{o}, Moves: []format.Move{m}}}
	}
	with := func(o format.Object) *format.Record {
		return &format.Record{Entries: []format.Entry{{ID: uuid.New(), Block: format.Block{
			Objects: []format.Object{o}, Changes: []format.Change{put("ref", "1", 0)}}}}}
	}
	// Before each: "a" has versions 2 and 3, "gone" is deleted by 4; packs[0] is
	// live, packs[1] dead since 5, and 6 sweeps names up to head 2.
	type world struct {
		c     *chain
		packs []format.Object
	}
	tests := []struct {
		name   string
		record func(w *world) *format.Record
		want   string // part of the defect, "" = none
	}{
		{"nothing wrong", func(w *world) *format.Record { return with(w.packs[0]) }, ""},
		{"a dead object", func(w *world) *format.Record { return with(w.packs[1]) }, "was marked dead by record 5"},
		{"an object that never was", func(w *world) *format.Record {
			o := w.c.object(format.ObjectPack)
			o.New = false
			return with(o)
		}, "was never live"},
		{"a new object under a swept name", func(w *world) *format.Record {
			o := w.c.object(format.ObjectPack)
			o.Name = format.DataKey(2, id(77))
			return with(o)
		}, "has covered it"},
		{"a new object just above the sweep", func(w *world) *format.Record {
			o := w.c.object(format.ObjectPack)
			o.Name = format.DataKey(3, id(77))
			return with(o)
		}, ""},
		{"a new object that is not new", func(w *world) *format.Record {
			o := w.packs[0]
			o.New = true
			return with(o)
		}, "record 2 has made it already"},
		{"another description of an object", func(w *world) *format.Record {
			o := w.packs[0]
			o.Size++
			return with(o)
		}, "described differently"},
		{"a name that is none", func(w *world) *format.Record {
			o := w.c.object(format.ObjectPack)
			o.Name = "data/x"
			return with(o)
		}, "not a name of a data object"},
		{"the current version dropped", func(w *world) *format.Record { return drop("a", 3) }, "is the current one; it stays"},
		{"an older version dropped", func(w *world) *format.Record { return drop("a", 2) }, ""},
		{"a delete marker dropped", func(w *world) *format.Record { return drop("gone", 4) }, ""},
		{"a version dropped that is not there", func(w *world) *format.Record { return drop("a", 1) }, "does not exist"},
		{"a version dropped by its own record", func(w *world) *format.Record {
			r := with(w.packs[0])
			r.Block.Drops = []format.VersionRef{{Path: "ref", Slot: 7}}
			return r
		}, "dropped by the record that made it"},
		{"a version moved that is not there", func(w *world) *format.Record { return move("a", 1, w.packs[0], 0) }, "does not exist"},
		{"a delete marker moved", func(w *world) *format.Record { return move("gone", 4, w.packs[0], 0) }, "is a delete marker"},
		{"a version moved into a record", func(w *world) *format.Record { return move("a", 2, w.packs[0], format.Inline) }, "moved into a record"},
		{"a version moved", func(w *world) *format.Record { return move("a", 2, w.packs[0], 0) }, ""},
		{"an orphan marked dead", func(w *world) *format.Record {
			return &format.Record{Kind: format.KindRetention, Block: format.Block{Dead: []string{format.DataKey(1, id(5))}}}
		}, ""},
		{"a list of another length", func(w *world) *format.Record {
			l := w.c.list(&format.Block{Changes: []format.Change{put("ref", "1", format.Inline)}})
			l.Items = 2
			return &format.Record{Entries: []format.Entry{{ID: uuid.New(), Lists: []format.ListRef{l}}}}
		}, "change list of 1 items was announced with 2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := &world{c: newChain()}
			c, db := w.c, openTemp(t)
			fold(t, db, c, c.add(&format.Record{Kind: format.KindFence}))
			w.packs = []format.Object{c.object(format.ObjectPack), c.object(format.ObjectPack)}
			fold(t, db, c,
				c.entry(w.packs, []format.Change{put("a", "1", 0), put("gone", "2", 1)}),
				c.entry(nil, []format.Change{put("a", "3", format.Inline)}),
				c.entry(nil, []format.Change{del("gone")}),
				c.add(&format.Record{Kind: format.KindRetention, Block: format.Block{
					Drops: []format.VersionRef{{Path: "gone", Slot: 2}}, Dead: []string{w.packs[1].Name}}}),
				c.add(&format.Record{Kind: format.KindSweep, Sweep: 2}),
			)
			w.packs[0].New, w.packs[1].New = false, false
			if d := defects(t, db); len(d) != 0 {
				t.Fatalf("defects before: %v", d)
			}
			fold(t, db, c, c.add(test.record(w)), c.entry(nil, []format.Change{put("after", "yes", format.Inline)}))
			mustHold(t, db, "after", 0, "yes")
			mustHold(t, db, "a", 0, "3")
			d := defects(t, db)
			switch {
			case test.want == "" && len(d) != 0:
				t.Fatalf("defects %v, want none", d)
			case test.want == "":
			case len(d) != 1 || d[0].Slot != 7 || !strings.Contains(d[0].What, test.want):
				t.Fatalf("defects %v, want one of record 7 with %q", d, test.want)
			case !errors.Is(&d[0], format.ErrCorrupt) || !strings.Contains(d[0].Error(), "record 7"):
				t.Fatalf("defect %v does not say which record or is no ErrCorrupt", &d[0])
			}
			if err := db.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What is wrong with an object shows in every place that names it, and it is
// never shared again.
func TestSuspectAndDeadObjectsShowInReads(t *testing.T) {
	db, c := openTemp(t), newChain()
	never := c.object(format.ObjectPack)
	never.New = false
	dead := c.object(format.ObjectPack)
	fold(t, db, c,
		c.entry([]format.Object{never, dead}, []format.Change{put("dead", "in dead", 1), put("never", "in never", 0)}),
		c.add(&format.Record{Kind: format.KindRetention, Block: format.Block{Dead: []string{dead.Name}}}),
	)
	if v, err := lookup(t, db, "never", 0); err != nil || !v.Place.Suspect || v.Place.Dead != 0 {
		t.Errorf("never: %+v, %v", v.Place, err)
	}
	if v, err := lookup(t, db, "dead", 0); err != nil || v.Place.Suspect || v.Place.Dead != 2 {
		t.Errorf("dead: %+v, %v", v.Place, err)
	}
	s := snap(t, db)
	for _, content := range []string{"in dead", "in never"} {
		if place, found, err := s.FindContent(t.Context(), sha(content), int64(len(content))); found || err != nil {
			t.Errorf("FindContent(%q) = %+v, %v", content, place, err)
		}
	}
	if o, found, err := s.Object(t.Context(), never.Name); !found || err != nil || o.Live() {
		t.Errorf("object %+v, %v, %v: want one that is not live", o, found, err)
	}
	if n := s.Counts(); n.Objects != 1 || n.Bytes != never.Size || n.ObjectRows != 2 {
		t.Errorf("counts %+v", n)
	}
}

// An orphan that was marked dead is found by who deletes what is dead, and is no
// row of a checkpoint, which wants to know more than its name.
func TestDeadOrphans(t *testing.T) {
	db, c := openTemp(t), newChain()
	name := format.DataKey(0, id(5))
	fold(t, db, c, c.add(&format.Record{Kind: format.KindRetention, Block: format.Block{Dead: []string{name}}}))
	s := snap(t, db)
	if o, found, err := s.Object(t.Context(), name); !found || err != nil || o.Dead != 1 || o.Born != 0 {
		t.Errorf("Object = %+v, %v, %v", o, found, err)
	}
	if rows := collect(t, s.ObjectRows(t.Context(), "", "")); len(rows) != 0 || s.Counts().ObjectRows != 0 {
		t.Errorf("rows %+v, counts %+v", rows, s.Counts())
	}
	if keys := collect(t, s.Dirty(t.Context(), format.TableObjects, 0)); len(keys) != 0 {
		t.Errorf("dirty %q", keys)
	}
}

func TestFencedWriters(t *testing.T) {
	tests := []struct {
		name string
		rec  func(r *format.Record)
		want string
	}{
		{"the holder", func(r *format.Record) {}, ""},
		{"a lower fence", func(r *format.Record) { r.Fence = 1 }, "under fence 1 after fence 2"},
		{"another session", func(r *format.Record) { r.Session = id(4) }, "after the barrier of session"},
		{"an append of another session under a lower fence", func(r *format.Record) {
			r.Kind, r.Fence, r.Session = format.KindAppend, 1, id(4)
		}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			db, c := openTemp(t), newChain()
			fold(t, db, c, c.add(&format.Record{Kind: format.KindFence}), c.add(&format.Record{Kind: format.KindFence}))
			l := c.entry(nil, []format.Change{put("a", "1", format.Inline)})
			test.rec(l.rec)
			fold(t, db, c, l)
			mustHold(t, db, "a", 0, "1")
			if d := defects(t, db); (test.want == "") != (len(d) == 0) || len(d) > 0 && !strings.Contains(d[0].What, test.want) {
				t.Fatalf("defects %v, want %q", d, test.want)
			}
		})
	}
}

func TestDefectsAreBounded(t *testing.T) {
	db, c := openTemp(t), newChain()
	b := format.Block{}
	for i := range MaxDefects + 10 {
		b.Drops = append(b.Drops, format.VersionRef{Path: fmt.Sprint(i), Slot: 1})
	}
	fold(t, db, c, c.add(&format.Record{Kind: format.KindRetention, Block: b}))
	if d := defects(t, db); len(d) != MaxDefects {
		t.Errorf("%d defects are listed, want %d", len(d), MaxDefects)
	}
	if n := snap(t, db).Counts().Defects; n != MaxDefects+10 {
		t.Errorf("%d defects are counted, want %d", n, MaxDefects+10)
	}
}

// A state between two versions must not show the one before it when the version
// of that time was removed, also after a checkpoint was loaded.
func TestDroppedVersionsLeaveGaps(t *testing.T) {
	db, c := openTemp(t), newChain()
	for i := 1; i <= 4; i++ {
		fold(t, db, c, c.entry(nil, []format.Change{put("p", fmt.Sprint(i), format.Inline)}))
	}
	drops := func(slots ...uint64) link {
		var b format.Block
		for _, s := range slots {
			b.Drops = append(b.Drops, format.VersionRef{Path: "p", Slot: s})
		}
		return c.add(&format.Record{Kind: format.KindRetention, Block: b})
	}
	fold(t, db, c, drops(2), drops(3))
	check := func(db *DB) {
		t.Helper()
		for at, content := range map[uint64]string{1: "1", 2: "", 3: "", 4: "4", 6: "4"} {
			mustHold(t, db, "p", at, content)
		}
		if v, err := lookup(t, db, "p", 3); v.Slot != 1 || v.Until != 2 || !errors.Is(err, ErrNoVersion) {
			t.Errorf("at 3: %+v, %v: want version 1 that ended at 2", v, err)
		}
	}
	check(db)
	s := snap(t, db)
	root, shards := checkpointOf(t, s, 1)
	copied := openTemp(t)
	if err := copied.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, shards); err != nil {
		t.Fatal(err)
	}
	check(copied)
	if got := collect(t, s.Changed(t.Context(), 1, 3, "")); len(got) != 1 {
		t.Errorf("Changed(1, 3) = %q, want p: it is gone there", got)
	}
	// The first version goes too: nothing is known of before 4.
	fold(t, copied, c, drops(1))
	if v, err := lookup(t, copied, "p", 1); v.Slot != 0 || !errors.Is(err, ErrNoVersion) {
		t.Errorf("at 1: %+v, %v", v, err)
	}
}

// Putting a path and dropping its version before in one record leaves the totals
// right.
func TestPutAndDropInOneRecord(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(nil, []format.Change{put("p", "22", format.Inline)}))
	l := c.entry(nil, []format.Change{put("p", "333", format.Inline)})
	l.rec.Block.Drops = []format.VersionRef{{Path: "p", Slot: 1}}
	fold(t, db, c, l)
	if n := snap(t, db).Counts(); n.Versions != 1 || n.Paths != 1 || n.PathBytes != 3 {
		t.Fatalf("counts %+v", n)
	}
	if d := defects(t, db); len(d) != 0 {
		t.Fatalf("defects %v", d)
	}
}

// An object is dead since the first record that said so.
func TestDeadTwice(t *testing.T) {
	db, c := openTemp(t), newChain()
	o := c.object(format.ObjectPack)
	dead := func() link {
		return c.add(&format.Record{Kind: format.KindRetention, Block: format.Block{Dead: []string{o.Name}}})
	}
	fold(t, db, c, c.entry([]format.Object{o}, []format.Change{put("a", "1", 0)}), dead(), dead())
	s := snap(t, db)
	if got, _, err := s.Object(t.Context(), o.Name); err != nil || got.Dead != 2 {
		t.Errorf("dead since %d (%v), want 2", got.Dead, err)
	}
	if n := s.Counts(); n.Objects != 0 || n.Bytes != 0 || n.ObjectRows != 1 {
		t.Errorf("counts %+v", n)
	}
}
