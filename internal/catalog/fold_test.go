package catalog

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

func lookup(t *testing.T, db *DB, path string, at uint64) (Version, error) {
	t.Helper()
	s := snap(t, db)
	defer s.Close()
	return s.Lookup(t.Context(), path, at)
}

// mustHold checks the content that a path had after a slot; "" means none.
func mustHold(t *testing.T, db *DB, path string, at uint64, content string) {
	t.Helper()
	v, err := lookup(t, db, path, at)
	if content == "" {
		if !errors.Is(err, ErrNoVersion) {
			t.Fatalf("%q at %d: %+v, %v, want ErrNoVersion", path, at, v, err)
		}
		return
	}
	if err != nil || v.SHA256 != sha(content) {
		t.Fatalf("%q at %d: %+v, %v, want content %q", path, at, v, err, content)
	}
}

func defects(t *testing.T, db *DB) []Defect {
	t.Helper()
	s := snap(t, db)
	defer s.Close()
	return collect(t, s.Defects(t.Context()))
}

func TestFoldRefusesWhatDoesNotFollow(t *testing.T) {
	db, c := openTemp(t), newChain()
	a := c.entry(nil, []format.Change{put("a", "1", format.Inline)})
	b := c.entry(nil, []format.Change{put("a", "2", format.Inline)})
	d := c.entry(nil, []format.Change{put("a", "3", format.Inline)})
	fold(t, db, c, a)
	other := *b.rec
	other.Prev = format.Hash{9}
	forged := *a.rec
	zero := *a.rec
	zero.Slot = 0
	tests := []struct {
		name string
		l    link
		want error
	}{
		{"a slot too far", d, ErrGap},
		{"another record before it", link{&other, b.hash, 1}, ErrChain},
		{"another record at a slot that was folded", link{&forged, format.Hash{7}, 1}, ErrFork},
		{"slot 0", link{&zero, a.hash, 1}, format.ErrCorrupt},
		{"the same record again", a, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := db.Update(t.Context(), func(tx *Tx) error {
				before := tx.State()
				err := tx.foldAll(t.Context(), c, test.l)
				if tx.State() != before {
					t.Errorf("state moved from %+v to %+v", before, tx.State())
				}
				return err
			})
			if !errors.Is(err, test.want) {
				t.Fatalf("Fold: %v, want %v", err, test.want)
			}
		})
	}
	// The first record must follow the genesis.
	fresh := openTemp(t)
	err := fresh.Update(t.Context(), func(tx *Tx) error {
		r := *a.rec
		r.Prev = format.Hash{}
		return tx.foldAll(t.Context(), c, link{&r, a.hash, 1})
	})
	if !errors.Is(err, ErrChain) {
		t.Fatalf("first record without the genesis: %v, want ErrChain", err)
	}
}

// A slot below a checkpoint has no hash that could be compared.
func TestFoldSkipsSlotsWhoseHashIsNotKept(t *testing.T) {
	db := openTemp(t)
	root := &format.Root{Datastore: testStore, Seq: 9, ChainHash: format.Hash{5}}
	if err := db.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, nil); err != nil {
		t.Fatal(err)
	}
	err := db.Update(t.Context(), func(tx *Tx) error {
		return tx.Fold(t.Context(), &format.Record{Slot: 4}, format.Hash{1}, 0, nil)
	})
	if err != nil {
		t.Fatalf("Fold of slot 4 at head 9: %v", err)
	}
}

func TestFoldKeepsEarlierFoldsWhenOneFails(t *testing.T) {
	for _, earlier := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(earlier, " folds before"), func(t *testing.T) {
			db, c := openTemp(t), newChain()
			err := db.Update(t.Context(), func(tx *Tx) error {
				for i := range earlier {
					l := c.entry(nil, []format.Change{put(fmt.Sprint("good", i), "1", format.Inline)})
					if err := tx.foldAll(t.Context(), c, l); err != nil {
						t.Fatal(err)
					}
				}
				before := tx.State()
				list := c.list(&format.Block{Changes: []format.Change{put("late", "1", format.Inline)}})
				o := c.object(format.ObjectPack)
				l := c.add(&format.Record{Entries: []format.Entry{{ID: id(5),
					Block: format.Block{Objects: []format.Object{o}, Changes: []format.Change{put("bad", "1", 0)}},
					Lists: []format.ListRef{list},
				}}})
				broken := errors.New("the store does not answer")
				err := tx.Fold(t.Context(), l.rec, l.hash, l.size, func(format.ListRef) (*format.Block, error) { return nil, broken })
				if !errors.Is(err, broken) || !strings.Contains(err.Error(), list.Object.Name) {
					t.Fatalf("Fold: %v, want the list's error with its name", err)
				}
				if tx.State() != before {
					t.Fatalf("state %+v, want %+v", tx.State(), before)
				}
				return tx.foldAll(t.Context(), c, l) // the store answers again
			})
			if err != nil {
				t.Fatal(err)
			}
			mustHold(t, db, "bad", 0, "1")
			mustHold(t, db, "late", 0, "1")
			for i := range earlier {
				mustHold(t, db, fmt.Sprint("good", i), 0, "1")
			}
			if err := db.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := snap(t, db).Counts(); n.Versions != uint64(2+earlier) || n.ObjectRows != 2 {
				t.Fatalf("counts %+v", n)
			}
		})
	}
}

func TestUpdateIsAllOrNothing(t *testing.T) {
	db, c := openTemp(t), newChain()
	l := c.entry(nil, []format.Change{put("a", "1", format.Inline)})
	stop := errors.New("stop")
	var kept *Tx
	err := db.Update(t.Context(), func(tx *Tx) error {
		kept = tx
		if err := tx.foldAll(t.Context(), c, l); err != nil {
			t.Fatal(err)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Fatalf("Update: %v", err)
	}
	if st, err := db.State(t.Context()); err != nil || st != (State{Hash: testGenesis}) {
		t.Fatalf("state after a failed update: %+v, %v", st, err)
	}
	if err := kept.foldAll(t.Context(), c, l); !errors.Is(err, ErrClosed) {
		t.Fatalf("Fold after Update: %v, want ErrClosed", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not come through")
			}
		}()
		_ = db.Update(t.Context(), func(tx *Tx) error {
			if err := tx.foldAll(t.Context(), c, l); err != nil {
				t.Fatal(err)
			}
			panic("in the middle")
		})
	}()
	fold(t, db, c, l) // the right to write was given back, and nothing had stayed
	mustHold(t, db, "a", 0, "1")
}

// A context that ends in the middle of a fold undoes the update, even if its
// function hides the error.
func TestFoldEndsWithItsContext(t *testing.T) {
	db, c := openTemp(t), newChain()
	first := c.entry(nil, []format.Change{put("a", "1", format.Inline)})
	objects, changes := many(c, 2000)
	second := c.entry(objects, changes)
	ctx, cancel := context.WithCancel(t.Context())
	second.rec.Entries[0].Lists = []format.ListRef{c.list(&format.Block{Changes: []format.Change{put("z", "1", format.Inline)}})}
	err := db.Update(t.Context(), func(tx *Tx) error {
		if err := tx.foldAll(t.Context(), c, first); err != nil {
			return err
		}
		err := tx.Fold(ctx, second.rec, second.hash, 1, func(l format.ListRef) (*format.Block, error) {
			cancel()
			return c.block(l)
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Fold: %v, want context.Canceled", err)
		}
		return nil
	})
	st, stErr := db.State(t.Context())
	if stErr != nil || err == nil && st.Head != 1 || err != nil && st.Head != 0 {
		t.Fatalf("head %d (%v) after an update that said %v", st.Head, stErr, err)
	}
}

func TestFoldState(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c,
		c.add(&format.Record{Kind: format.KindFence}),
		c.entry(nil, []format.Change{put("a", "1", format.Inline)}),
		c.add(&format.Record{Kind: format.KindFence}),
		c.add(&format.Record{Kind: format.KindSweep, Sweep: 2}),
	)
	want := State{Head: 4, Hash: c.hash, Fence: 2, Session: id(900_002), Sweep: 2, LogSlots: 4, LogBytes: 101 + 102 + 103 + 104}
	if st, err := db.State(t.Context()); err != nil || st != want {
		t.Fatalf("state\n got %+v, %v\nwant %+v", st, err, want)
	}
	// An append counts for the fence only, and may come from anybody.
	l := c.add(&format.Record{Kind: format.KindAppend})
	l.rec.Fence, l.rec.Session = 7, id(1)
	lower := c.add(&format.Record{Kind: format.KindAppend})
	lower.rec.Fence, lower.rec.Session = 1, id(2)
	sweep := c.add(&format.Record{Kind: format.KindSweep, Sweep: 1})
	sweep.rec.Fence = 7
	fold(t, db, c, l, lower)
	if st, _ := db.State(t.Context()); st.Fence != 7 {
		t.Fatalf("an append under a lower fence moved the state to fence %d", st.Fence)
	}
	fold(t, db, c, sweep)
	if st, _ := db.State(t.Context()); st.Fence != 7 || st.Session != id(900_002) || st.Sweep != 2 {
		t.Fatalf("state after appends and a lower sweep: %+v", st)
	}
	if d := defects(t, db); len(d) != 0 {
		t.Fatalf("defects: %v", d)
	}
	err := db.Update(t.Context(), func(tx *Tx) error {
		return tx.SetCheckpoint(t.Context(), format.Checkpoint{Seq: 3, Sweep: 9, Horizon: 2})
	})
	if err != nil {
		t.Fatal(err)
	}
	st, _ := db.State(t.Context())
	if st.CheckpointSeq != 3 || st.LogSlots != 4 || st.LogBytes != 104+105+106+107 || st.Sweep != 9 || st.Horizon != 2 {
		t.Fatalf("state after SetCheckpoint: %+v", st)
	}
	if err := db.Update(t.Context(), func(tx *Tx) error {
		return tx.SetCheckpoint(t.Context(), format.Checkpoint{Seq: 2, Sweep: 1, Horizon: 1})
	}); err != nil {
		t.Fatal(err)
	}
	if again, _ := db.State(t.Context()); again != st {
		t.Fatalf("an older checkpoint moved the state from %+v to %+v", st, again)
	}
	err = db.Update(t.Context(), func(tx *Tx) error { return tx.SetCheckpoint(t.Context(), format.Checkpoint{Seq: 99}) })
	if !errors.Is(err, ErrGap) {
		t.Fatalf("checkpoint ahead of the head: %v, want ErrGap", err)
	}
}

func TestFoldPlaces(t *testing.T) {
	db, c := openTemp(t), newChain()
	o := c.object(format.ObjectPack)
	inline, empty := put("inline", "abc", format.Inline), put("empty", "", format.Inline)
	empty.Place = format.Place{Object: format.Inline}
	fold(t, db, c, c.entry([]format.Object{o}, []format.Change{put("packed", "abc", 0), inline, empty}))
	o.New = false
	for path, want := range map[string]Located{
		"packed": {Object: o, Offset: 10, Length: 3},
		// The offset of an inline content counts from the start of the record.
		"inline": {Inline: true, Slot: 1, Offset: 510, Length: 3},
		"empty":  {Inline: true, Slot: 1},
	} {
		if v, err := lookup(t, db, path, 0); err != nil || !reflect.DeepEqual(v.Place, want) {
			t.Errorf("%s: %+v, %v, want %+v", path, v.Place, err, want)
		}
	}
	r := c.entry(nil, []format.Change{put("b", "x", format.Inline)})
	r.rec.ContentsAt = 0
	err := db.Update(t.Context(), func(tx *Tx) error { return tx.foldAll(t.Context(), c, r) })
	if err == nil {
		t.Fatal("an inline content was folded whose record does not say where its contents begin")
	}
}

// Of two entries of a record that touch one path, the later holds; the same
// across the lists of an entry, and for a path that rises again afterwards.
func TestFoldLaterEntryHolds(t *testing.T) {
	db, c := openTemp(t), newChain()
	o := c.object(format.ObjectPack)
	list := c.list(&format.Block{Objects: []format.Object{o}, Changes: []format.Change{put("c", "3", 0), put("d", "4", 0)}})
	fold(t, db, c, c.add(&format.Record{Entries: []format.Entry{
		{ID: id(1), Block: format.Block{Objects: []format.Object{o}, Changes: []format.Change{put("a", "1", 0), put("b", "1", 0)}}},
		{ID: id(2), Block: format.Block{Changes: []format.Change{put("a", "2", format.Inline), del("b")}}, Lists: []format.ListRef{list}},
		{ID: id(3), Block: format.Block{Changes: []format.Change{put("c", "5", format.Inline)}}},
	}}))
	mustHold(t, db, "a", 0, "2")
	mustHold(t, db, "b", 0, "")
	mustHold(t, db, "c", 0, "5")
	mustHold(t, db, "d", 0, "4")
	s := snap(t, db)
	if v, _ := s.Lookup(t.Context(), "c", 0); v.Entry != id(3) || v.Index != 6 {
		t.Errorf("c: entry %s index %d, want entry %s index 6", v.Entry, v.Index, id(3))
	}
	if h := collect(t, s.History(t.Context(), "a")); len(h) != 1 {
		t.Errorf("history of a: %+v", h)
	}
	if n := s.Counts(); n.Versions != 4 || n.Paths != 3 || n.PathBytes != 3 {
		t.Errorf("counts %+v", n)
	}
	if _, e, found, err := s.Entry(t.Context(), id(2)); !found || err != nil || e.Changes != 4 {
		t.Errorf("entry 2: %+v, %v, %v", e, found, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownFieldsAreKept(t *testing.T) {
	db, c := openTemp(t), newChain()
	o := c.object(format.ObjectPack)
	o.Unknown = []byte("object")
	ch := put("a", "1", 0)
	ch.Unknown, ch.Place.Unknown, ch.Meta.Unknown = []byte("change"), []byte("place"), []byte("meta")
	fold(t, db, c, c.entry([]format.Object{o}, []format.Change{ch}))
	s := snap(t, db)
	rows := collect(t, s.VersionRows(t.Context(), "", ""))
	if got := rows[0].Change; string(got.Unknown) != "change" || string(got.Place.Unknown) != "place" || string(got.Meta.Unknown) != "meta" {
		t.Errorf("version row %+v", got)
	}
	if got := collect(t, s.ObjectRows(t.Context(), "", "")); string(got[0].Object.Unknown) != "object" {
		t.Errorf("object row %+v", got)
	}
	// Those of a checkpoint's own rows come through too.
	root, shards := checkpointOf(t, s, 10)
	load := func(ref format.ShardRef) (*format.Shard, error) {
		sh, err := shards(ref)
		for i := range sh.Versions {
			sh.Versions[i].Unknown = []byte("version row")
		}
		for i := range sh.Objects {
			sh.Objects[i].Unknown = []byte("object row")
		}
		for i := range sh.Log {
			sh.Log[i].Unknown = []byte("log row")
			sh.Log[i].Entries[0].Unknown = []byte("log entry")
		}
		return sh, err
	}
	copied := openTemp(t)
	if err := copied.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, load); err != nil {
		t.Fatal(err)
	}
	o2 := c.object(format.ObjectPack)
	move := format.Move{VersionRef: format.VersionRef{Path: "a", Slot: 1}, Place: format.Place{Object: 0, Length: 1}}
	fold(t, copied, c, c.add(&format.Record{Kind: format.KindRepack, Block: format.Block{Objects: []format.Object{o2}, Moves: []format.Move{move}}}))
	s = snap(t, copied)
	v := collect(t, s.VersionRows(t.Context(), "", ""))[0]
	if string(v.Unknown) != "version row" || string(v.Change.Unknown) != "change" || v.Object != o2.Name {
		t.Errorf("version row after a load and a move: %+v", v)
	}
	if got := collect(t, s.ObjectRows(t.Context(), "", ""))[0]; string(got.Unknown) != "object row" || string(got.Object.Unknown) != "object" {
		t.Errorf("object row after a load: %+v", got)
	}
	got := collect(t, s.LogRows(t.Context(), "", ""))[0]
	if string(got.Unknown) != "log row" || string(got.Entries[0].Unknown) != "log entry" {
		t.Errorf("log row after a load: %+v", got)
	}
}

func TestOneEntryTwice(t *testing.T) {
	db, c := openTemp(t), newChain()
	one := func() link {
		return c.add(&format.Record{Entries: []format.Entry{{ID: id(1)}, {ID: id(int(c.slot) + 10)}}})
	}
	fold(t, db, c, one(), one())
	s := snap(t, db)
	if slot, _, found, err := s.Entry(t.Context(), id(1)); slot != 1 || !found || err != nil {
		t.Errorf("Entry = %d, %v, %v, want slot 1", slot, found, err)
	}
	if d := defects(t, db); len(d) != 1 || d[0].Slot != 2 || !strings.Contains(d[0].What, id(1).String()) {
		t.Errorf("defects %v", d)
	}
	if _, _, found, err := s.Entry(t.Context(), uuid.New()); found || err != nil {
		t.Errorf("an entry that is not there: %v, %v", found, err)
	}
}
