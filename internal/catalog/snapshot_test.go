package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/swampd/swampd/internal/format"
)

// A snapshot shows one state, whatever is folded meanwhile.
func TestSnapshotIsOneState(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 1500)))
	s := snap(t, db)
	n := 0
	for v, err := range s.List(t.Context(), "", "", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if v.Slot != 1 {
			t.Fatalf("version of record %d in the snapshot of 1", v.Slot)
		}
		if n++; n%400 == 0 { // between pages
			fold(t, db, c, c.entry(nil, []format.Change{put(manyPath(10_000, n+300), "new", format.Inline)}))
		}
	}
	if n != 1500 || s.State().Head != 1 {
		t.Fatalf("%d paths at head %d", n, s.State().Head)
	}
	if st, _ := db.State(t.Context()); st.Head != 4 {
		t.Fatalf("head %d", st.Head)
	}
}

// Iterators can be nested, also the same one, and left early.
func TestIteratorsNest(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 700)), c.entry(many(c, 700)))
	s := snap(t, db)
	ctx := t.Context()
	inner := func(path string) int {
		n := 0
		for _, err := range s.List(ctx, "", path, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 3 {
				break
			}
		}
		for _, err := range s.Changed(ctx, 1, 2, "") {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 6 {
				break
			}
		}
		return n
	}
	n := 0
	for path, err := range s.Changed(ctx, 0, 0, "") {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lookup(ctx, path, 0); err != nil {
			t.Fatal(err)
		}
		if n++; n%100 == 0 && inner(path) != 6 && n < 1400 {
			t.Fatalf("inner iterators at %q", path)
		}
	}
	if n != 1400 {
		t.Fatalf("%d paths, want 1400", n)
	}
	if len(s.streams) != 0 {
		t.Fatalf("%d statements are still open", len(s.streams))
	}
}

// A Snapshot that is closed ends its iterators with an error.
func TestCloseEndsIterators(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 2000)), c.entry(many(c, 2000)))
	for name, each := range map[string]func(s *Snapshot, yield func(string, error) bool){
		"list":    func(s *Snapshot, y func(string, error) bool) { pathsOf(s.List(t.Context(), "", "", 0))(y) },
		"changed": func(s *Snapshot, y func(string, error) bool) { s.Changed(t.Context(), 1, 2, "")(y) },
	} {
		s := snap(t, db)
		n, last := 0, error(nil)
		each(s, func(_ string, err error) bool {
			last = err
			if n++; n == 1 {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			return true
		})
		if n < 2 || n > 1000 || !errors.Is(last, ErrClosed) {
			t.Errorf("%s: %d items, then %v, want ErrClosed after a page", name, n, last)
		}
	}
}

func pathsOf(seq func(func(Version, error) bool)) func(func(string, error) bool) {
	return func(yield func(string, error) bool) {
		seq(func(v Version, err error) bool { return yield(v.Path, err) })
	}
}

// Every call ends with its context.
func TestReadsEndWithTheirContext(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 2000)))
	s := snap(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n, last := 0, error(nil)
	for _, err := range s.List(ctx, "", "", 0) {
		n, last = n+1, err
		cancel()
	}
	if !errors.Is(last, context.Canceled) || n > pageFirst+1 {
		t.Errorf("List: %d items, then %v", n, last)
	}
	for _, err := range s.Changed(ctx, 0, 0, "") {
		last = err
	}
	_, lookupErr := s.Lookup(ctx, "a", 0)
	_, snapErr := db.Snapshot(ctx)
	for what, err := range map[string]error{"Changed": last, "Lookup": lookupErr, "Snapshot": snapErr, "Reset": db.Reset(ctx)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", what, err)
		}
	}
	if _, err := s.Lookup(t.Context(), manyPath(1, 0), 0); err != nil { // it is still of use
		t.Error(err)
	}
}

func TestListPrefixes(t *testing.T) {
	db, c := openTemp(t), newChain()
	paths := []string{"a", "a/b", "a/b/c", "ab", "a\xf4\x8f\xbf\xbf", "b", "b\x7f", "\xf4\x8f\xbf\xbf"}
	var changes []format.Change
	for _, p := range paths {
		changes = append(changes, put(p, p, format.Inline))
	}
	fold(t, db, c, c.entry(nil, append(changes, put("gone", "x", format.Inline))), c.entry(nil, []format.Change{del("gone")}))
	s := snap(t, db)
	for _, prefix := range []string{"", "a", "a/", "b", "b\x7f", "\xf4", "\xf4\x8f\xbf\xbf", "zz", "\xff"} {
		for _, after := range []string{"", "a", "a/b", "a/c", "b", "zz", "\xff"} {
			var want []string
			for _, p := range paths {
				if strings.HasPrefix(p, prefix) && p > after {
					want = append(want, p)
				}
			}
			var got []string
			for _, v := range collect(t, s.List(t.Context(), prefix, after, 0)) {
				got = append(got, v.Path)
			}
			if !slices.Equal(got, want) {
				t.Errorf("List(%q, %q) = %q, want %q", prefix, after, got, want)
			}
		}
	}
	// Pages that hold no living path are passed over.
	var dead []format.Change
	for i := range 3 * pageRows {
		dead = append(dead, del(fmt.Sprintf("m/%06d", i)))
	}
	fold(t, db, c, c.entry(nil, dead), c.entry(nil, []format.Change{put("n", "n", format.Inline)}))
	if got := collect(t, snap(t, db).List(t.Context(), "", "c", 0)); len(got) != 2 || got[0].Path != "n" {
		t.Errorf("List after many deleted paths: %+v", got)
	}
}

// Many versions of one path cost no more than one to those who list.
func TestListManyVersions(t *testing.T) {
	db, c := openTemp(t), newChain()
	err := db.Update(t.Context(), func(tx *Tx) error {
		for i := range 1200 {
			l := c.entry(nil, []format.Change{put("hot", fmt.Sprint(i), format.Inline), put(fmt.Sprint("x", i%2), "x", format.Inline)})
			if err := tx.foldAll(t.Context(), c, l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s := snap(t, db)
	if got := collect(t, s.List(t.Context(), "", "", 700)); len(got) != 3 || got[0].Slot != 700 || got[0].Until != 701 {
		t.Errorf("List at 700: %+v", got)
	}
	h := collect(t, s.History(t.Context(), "hot"))
	if len(h) != 1200 || h[0].Slot != 1200 || h[0].Until != 0 || h[1199].Slot != 1 || h[1199].Until != 2 {
		t.Errorf("history of %d", len(h))
	}
	rows := collect(t, s.VersionRows(t.Context(), format.VersionKey("hot", 1199), "x0\x00"+fmt.Sprintf("%020d", 4)))
	var keys []string
	for _, r := range rows {
		keys = append(keys, format.VersionKey(r.Change.Path, r.Slot))
	}
	want := []string{format.VersionKey("hot", 1199), format.VersionKey("hot", 1200), format.VersionKey("x0", 1), format.VersionKey("x0", 3)}
	if !slices.Equal(keys, want) {
		t.Errorf("rows %q, want %q", keys, want)
	}
}

func TestLogOrders(t *testing.T) {
	db, c := openTemp(t), newChain()
	for range 5 {
		fold(t, db, c, c.entry(nil, nil))
	}
	s := snap(t, db)
	for _, test := range []struct {
		from, to uint64
		newest   bool
		want     []uint64
	}{
		{0, 0, false, []uint64{1, 2, 3, 4, 5}},
		{0, 0, true, []uint64{5, 4, 3, 2, 1}},
		{2, 4, false, []uint64{3, 4}},
		{2, 4, true, []uint64{4, 3}},
		{4, 99, true, []uint64{5}},
		{5, 5, false, nil},
	} {
		var got []uint64
		for _, r := range collect(t, s.Log(t.Context(), test.from, test.to, test.newest)) {
			got = append(got, r.Slot)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("Log(%d, %d, %v) = %d, want %d", test.from, test.to, test.newest, got, test.want)
		}
	}
	for _, test := range []struct {
		first, limit string
		want         int
	}{{"", "", 5}, {format.SlotKey(2), "", 4}, {format.SlotKey(2), format.SlotKey(4), 2}, {"", format.SlotKey(1), 0}} {
		if got := collect(t, s.LogRows(t.Context(), test.first, test.limit)); len(got) != test.want {
			t.Errorf("LogRows(%q, %q): %d rows, want %d", test.first, test.limit, len(got), test.want)
		}
	}
	nonsense := error(nil)
	for _, err := range s.LogRows(t.Context(), "nonsense", "") {
		nonsense = err
	}
	if nonsense == nil {
		t.Error("LogRows took a key that is none")
	}
}

// Contents are told apart by all of their sha256, not by the part that is the
// key of the index.
func TestFindContentComparesTheWholeHash(t *testing.T) {
	db, c := openTemp(t), newChain()
	ch := put("a", "content", 0)
	fold(t, db, c, c.entry([]format.Object{c.object(format.ObjectPack)}, []format.Change{ch}))
	s := snap(t, db)
	if _, found, err := s.FindContent(t.Context(), ch.SHA256, ch.Size); !found || err != nil {
		t.Fatalf("the content itself: %v, %v", found, err)
	}
	other := ch.SHA256
	other[31] ^= 1
	if place, found, err := s.FindContent(t.Context(), other, ch.Size); found || err != nil {
		t.Errorf("a content with the same beginning of its hash: %+v, %v", place, err)
	}
	if place, found, err := s.FindContent(t.Context(), ch.SHA256, ch.Size+1); found || err != nil {
		t.Errorf("another size: %+v, %v", place, err)
	}
}

// Reads, nested and not, while others write, close and open.
func TestConcurrentUse(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 600)))
	var wg sync.WaitGroup
	done := make(chan struct{})
	shared := snap(t, db)
	for i := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				s := shared
				if i%2 == 0 {
					var err error
					if s, err = db.Snapshot(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
				if err := readAll(t.Context(), s); err != nil {
					t.Error(err)
				}
				if s != shared {
					s.Close()
				}
			}
		})
	}
	for range 15 {
		fold(t, db, c, c.entry(many(c, 200)))
	}
	close(done)
	wg.Wait()
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func readAll(ctx context.Context, s *Snapshot) error {
	head, n := s.State().Head, 0
	for v, err := range s.List(ctx, "", "", 0) {
		if err != nil {
			return err
		}
		if n++; n%97 == 0 {
			if w, err := s.Lookup(ctx, v.Path, 0); err != nil || w.Slot != v.Slot {
				return fmt.Errorf("Lookup(%q): version %d instead of %d: %w", v.Path, w.Slot, v.Slot, err)
			}
		}
	}
	if want := 400 + 200*int(head); n != want {
		return fmt.Errorf("%d paths at head %d, want %d", n, head, want)
	}
	return nil
}
