package catalog

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// loadable makes a catalog with something in each table, and a checkpoint of it.
func loadable(t *testing.T) (*chain, *format.Root, map[string]*format.Shard) {
	t.Helper()
	db, c := openTemp(t), newChain()
	o := c.object(format.ObjectPack)
	fold(t, db, c,
		c.add(&format.Record{Kind: format.KindFence}),
		c.entry([]format.Object{o}, []format.Change{put("a", "1", 0), put("b", "1", format.Inline)}),
		c.entry(nil, []format.Change{put("a", "2", format.Inline), del("b")}),
		c.add(&format.Record{Kind: format.KindSweep, Sweep: 1}),
	)
	root, shards := checkpointOf(t, snap(t, db), 2)
	all := make(map[string]*format.Shard)
	for _, ref := range root.Shards {
		s, err := shards(ref)
		if err != nil {
			t.Fatal(err)
		}
		all[ref.Name] = s
	}
	return c, root, all
}

func TestLoadCheckpoint(t *testing.T) {
	c, root, shards := loadable(t)
	db := openTemp(t)
	var order []format.Table
	load := func(ref format.ShardRef) (*format.Shard, error) {
		order = append(order, ref.Table)
		return shards[ref.Name], nil
	}
	ck := format.Checkpoint{Seq: root.Seq, Sweep: 3, Horizon: 2}
	if err := db.LoadCheckpoint(t.Context(), root, ck, load); err != nil {
		t.Fatal(err)
	}
	want := State{Head: 4, Hash: c.hash, Fence: 1, Session: id(900_001), Sweep: 3, Horizon: 2, CheckpointSeq: 4}
	if st, err := db.State(t.Context()); err != nil || st != want {
		t.Fatalf("state %+v, %v, want %+v", st, err, want)
	}
	if got := []format.Table{2, 3, 3, 1, 1}; !reflect.DeepEqual(order, got) {
		t.Errorf("shards of tables %d were asked for, want %d", order, got)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := snap(t, db)
	pruned := error(nil)
	for _, err := range s.Dirty(t.Context(), format.TableVersions, 3) {
		pruned = err
	}
	if !errors.Is(pruned, ErrPruned) {
		t.Errorf("Dirty since 3: %v, want ErrPruned", pruned)
	}
	if keys := collect(t, s.Dirty(t.Context(), format.TableVersions, 4)); len(keys) != 0 {
		t.Errorf("dirty rows right after a checkpoint: %q", keys)
	}
	none := error(nil)
	for _, err := range s.Dirty(t.Context(), 9, 4) {
		none = err
	}
	if none == nil {
		t.Error("Dirty of a table that is none")
	}
	// Once more, and an older one: nothing happens, no shard is asked for.
	never := func(format.ShardRef) (*format.Shard, error) { t.Error("a shard is read"); return nil, errors.New("no") }
	older := *root
	older.Seq, older.ChainHash = 2, format.Hash{}
	if got := collect(t, s.Log(t.Context(), 1, 2, false)); len(got) == 1 {
		older.ChainHash = got[0].Hash
	}
	for _, r := range []*format.Root{root, &older} {
		if err := db.LoadCheckpoint(t.Context(), r, ck, never); err != nil {
			t.Errorf("checkpoint %d at head 4: %v", r.Seq, err)
		}
	}
	older.ChainHash = format.Hash{1}
	if err := db.LoadCheckpoint(t.Context(), &older, ck, never); !errors.Is(err, ErrFork) {
		t.Errorf("checkpoint of another log: %v, want ErrFork", err)
	}
	fold(t, db, c, c.entry(nil, []format.Change{put("c", "3", format.Inline)}))
	mustHold(t, db, "a", 2, "1")
	mustHold(t, db, "b", 2, "1")
	mustHold(t, db, "b", 0, "")
	mustHold(t, db, "c", 0, "3")
}

// What is wrong with a checkpoint is found, and the catalog stays as it was.
func TestLoadCheckpointRefuses(t *testing.T) {
	first := func(root *format.Root, shards map[string]*format.Shard, table format.Table) *format.Shard {
		for _, ref := range root.Shards {
			if ref.Table == table {
				return shards[ref.Name]
			}
		}
		return nil
	}
	type world struct {
		root                   *format.Root
		versions, objects, log *format.Shard
	}
	lost := errors.New("lost")
	tests := []struct {
		name  string
		spoil func(w *world)
		want  error
		say   string
	}{
		{"another datastore", func(w *world) { w.root.Datastore = uuid.New() }, format.ErrCorrupt, "datastore"},
		{"slot 0", func(w *world) { w.root.Seq = 0 }, format.ErrCorrupt, "slot 0"},
		{"rows that do not rise", func(w *world) { w.versions.Versions[1] = w.versions.Versions[0] }, format.ErrCorrupt, "comes after"},
		{"objects that do not rise", func(w *world) {
			w.objects.Objects = append(w.objects.Objects, w.objects.Objects[0])
			w.root.Shards[indexOf(w.root, format.TableObjects)].Rows++
			w.root.Objects++
		}, format.ErrCorrupt, "comes after"},
		{"log rows that do not rise", func(w *world) { w.log.Log[1].Slot = 1 }, format.ErrCorrupt, "comes after"},
		{"a log row of slot 0", func(w *world) { w.log.Log[0].Slot = 0 }, format.ErrCorrupt, "slot 0"},
		{"a version of slot 0", func(w *world) { w.versions.Versions[0].Slot = 0 }, format.ErrCorrupt, "overlaps"},
		{"a version beyond the checkpoint", func(w *world) { w.versions.Versions[1].Slot = 5 }, format.ErrCorrupt, "slot 5"},
		{"an object beyond it", func(w *world) { w.objects.Objects[0].Born = 5 }, format.ErrCorrupt, "slot 5"},
		{"an end before the beginning", func(w *world) { w.versions.Versions[0].Until = 1 }, format.ErrCorrupt, "overlaps"},
		{"an end after the next version", func(w *world) { w.versions.Versions[0].Until = 4 }, format.ErrCorrupt, "overlaps"},
		{"a place in no object", func(w *world) { w.versions.Versions[0].Change.Place.Object = 1 }, format.ErrCorrupt, "object 1 of 1"},
		{"a size below zero", func(w *world) { w.versions.Versions[0].Change.Size = -1 }, format.ErrCorrupt, "below zero"},
		{"a row too many", func(w *world) { w.root.Versions++ }, format.ErrCorrupt, "4 rows in table 1 instead of 5"},
		{"an object row too many", func(w *world) { w.root.Objects++ }, format.ErrCorrupt, "table 2"},
		{"a log row too many", func(w *world) { w.root.Slots++ }, format.ErrCorrupt, "table 3"},
		{"a shard of another length", func(w *world) { w.root.Shards[0].Rows++ }, format.ErrCorrupt, "instead of 3"},
		{"a shard of another table", func(w *world) { w.versions.Table = format.TableLog }, format.ErrCorrupt, "of table 3"},
		{"a shard that cannot be read", func(w *world) { w.versions = nil }, lost, "shard0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, root, shards := loadable(t)
			w := &world{root, first(root, shards, 1), first(root, shards, 2), first(root, shards, 3)}
			test.spoil(w)
			db, c := openTemp(t), newChain()
			fold(t, db, c, c.entry(nil, []format.Change{put("before", "1", format.Inline)}))
			err := db.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, func(ref format.ShardRef) (*format.Shard, error) {
				if w.versions == nil && ref.Name == root.Shards[0].Name {
					return nil, lost
				}
				return shards[ref.Name], nil
			})
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.say) {
				t.Fatalf("LoadCheckpoint: %v, want %v with %q", err, test.want, test.say)
			}
			mustHold(t, db, "before", 0, "1")
			fold(t, db, c, c.entry(nil, []format.Change{put("after", "1", format.Inline)}))
			if err := db.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func indexOf(root *format.Root, table format.Table) int {
	for i := range root.Shards {
		if root.Shards[i].Table == table {
			return i
		}
	}
	return -1
}

// An entry that is there twice is noted, and found where it was first.
func TestLoadCheckpointWithOneEntryTwice(t *testing.T) {
	_, root, shards := loadable(t)
	first := shards[root.Shards[indexOf(root, format.TableLog)].Name].Log
	second := shards[root.Shards[indexOf(root, format.TableLog)+1].Name].Log
	second[0].Entries[0].ID = first[1].Entries[0].ID
	db := openTemp(t)
	err := db.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, func(ref format.ShardRef) (*format.Shard, error) { return shards[ref.Name], nil })
	if err != nil {
		t.Fatal(err)
	}
	if slot, _, found, err := snap(t, db).Entry(t.Context(), first[1].Entries[0].ID); slot != 2 || !found || err != nil {
		t.Errorf("Entry = %d, %v, %v, want slot 2", slot, found, err)
	}
	if d := defects(t, db); len(d) != 1 || !strings.Contains(d[0].What, "1 of the checkpoint's entries") {
		t.Errorf("defects %v", d)
	}
}

// A version whose object the checkpoint does not list is set aside.
func TestLoadCheckpointSetsDanglingNamesAside(t *testing.T) {
	c, root, shards := loadable(t)
	i := indexOf(root, format.TableObjects)
	delete(shards, root.Shards[i].Name)
	root.Shards = append(root.Shards[:i:i], root.Shards[i+1:]...)
	root.Objects = 0
	db := openTemp(t)
	err := db.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, func(ref format.ShardRef) (*format.Shard, error) { return shards[ref.Name], nil })
	if err != nil {
		t.Fatal(err)
	}
	if v, err := lookup(t, db, "a", 2); err != nil || !v.Place.Suspect {
		t.Errorf("a at 2: %+v, %v, want a suspect place", v, err)
	}
	if d := defects(t, db); len(d) != 1 || d[0].Object == "" {
		t.Errorf("defects %v", d)
	}
	if _, found, err := snap(t, db).FindContent(t.Context(), sha("1"), 1); found || err != nil {
		t.Errorf("FindContent: %v, %v", found, err)
	}
	fold(t, db, c, c.entry(nil, []format.Change{put("c", "3", format.Inline)}))
	mustHold(t, db, "c", 0, "3")
}

// Memory does not grow with what is stored: not when a checkpoint is loaded, not
// in the iterators, not when a large record is folded.
func TestMemoryIsBounded(t *testing.T) {
	const versions, perShard, bound = 200_000, 5_000, 24 << 20
	var least runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&least)
	most, samples := uint64(0), 0
	sample := func() {
		var m runtime.MemStats
		if samples++; samples%5 == 0 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapAlloc)
	}
	check := func(what string) {
		t.Helper()
		if samples < 5 {
			t.Fatalf("%s: %d samples", what, samples)
		}
		if grown := int64(most) - int64(least.HeapAlloc); grown > bound {
			t.Errorf("%s: the heap grew by %d MiB, want at most %d", what, grown>>20, bound>>20)
		}
		most, samples = 0, 0
	}
	o := format.Object{Name: format.DataKey(0, id(1)), Kind: format.ObjectPack, Size: 1 << 30, FooterSize: 300}
	path := func(i int) string { return fmt.Sprintf("some/directory/%04d/file-%06d.txt", i/1000, i) }
	changesAt := func(from, n int) []format.Change {
		var changes []format.Change
		for i := range n {
			changes = append(changes, put(path(from+i), fmt.Sprint(from+i), 0))
		}
		return changes
	}

	root := &format.Root{Datastore: testStore, Seq: 1, ChainHash: format.Hash{4}, Versions: versions, Objects: 1, Slots: 1,
		Shards: []format.ShardRef{{Table: format.TableObjects, Rows: 1}, {Table: format.TableLog, Rows: 1}}}
	for i := 0; i < versions; i += perShard {
		root.Shards = append(root.Shards, format.ShardRef{Table: format.TableVersions, Name: fmt.Sprint(i), Rows: perShard})
	}
	db := openTemp(t)
	err := db.LoadCheckpoint(t.Context(), root, format.Checkpoint{}, func(ref format.ShardRef) (*format.Shard, error) {
		sample()
		s := &format.Shard{Table: ref.Table}
		switch ref.Table {
		case format.TableObjects:
			s.Objects = []format.ObjectRow{{Object: o, Born: 1}}
		case format.TableLog:
			s.Log = []format.LogRow{{Slot: 1, Kind: format.KindCommit}}
		case format.TableVersions:
			s.Names = []string{o.Name}
			var from int
			fmt.Sscan(ref.Name, &from)
			for _, ch := range changesAt(from, perShard) {
				s.Versions = append(s.Versions, format.VersionRow{Slot: 1, Change: ch})
			}
		}
		return s, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check("LoadCheckpoint")

	c := newChain()
	c.slot, c.hash = 1, root.ChainHash
	rec := &format.Record{Entries: []format.Entry{{ID: id(7)}}}
	for i := 0; i < versions; i += perShard {
		o := c.object(format.ObjectList)
		o.New = false
		rec.Entries[0].Lists = append(rec.Entries[0].Lists, format.ListRef{Object: o, Items: perShard})
	}
	l, from := c.add(rec), 0
	err = db.Update(t.Context(), func(tx *Tx) error {
		return tx.Fold(t.Context(), l.rec, l.hash, l.size, func(format.ListRef) (*format.Block, error) {
			sample()
			from += perShard
			return &format.Block{Objects: []format.Object{o}, Changes: changesAt(from-perShard, perShard)}, nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	check("Fold")

	s := snap(t, db)
	if n := s.Counts(); n.Versions != 2*versions || n.Paths != versions {
		t.Fatalf("counts %+v", n)
	}
	n := 0
	each := func() {
		if n++; n%10_000 == 0 {
			sample()
		}
	}
	for _, err := range s.List(t.Context(), "", "", 0) {
		if each(); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range s.Changed(t.Context(), 1, 2, "") {
		if each(); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range s.VersionRows(t.Context(), "", "") {
		if each(); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range s.Dirty(t.Context(), format.TableVersions, 1) {
		if each(); err != nil {
			t.Fatal(err)
		}
	}
	check("iterators")
	if n != 5*versions {
		t.Errorf("the iterators gave %d rows, want %d", n, 5*versions)
	}
}
