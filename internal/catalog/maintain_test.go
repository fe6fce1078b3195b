package catalog

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/format"
)

// waitFor polls a condition that another goroutine brings about.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("waited a minute for: %s", what)
		case <-tick.C:
		}
	}
}

func countRows(t *testing.T, db *DB, table string) int64 {
	t.Helper()
	s := snap(t, db)
	defer s.Close()
	row, err := s.c.row(t.Context(), `SELECT count(*) FROM `+table)
	if err != nil {
		t.Fatal(err)
	}
	return row[0].(int64)
}

// Contents are found before, while and after their index is moved over.
func TestFreshContentsAreMoved(t *testing.T) {
	db, c := openTemp(t), newChain()
	const each = freshMax/4 + 1
	for range 3 {
		fold(t, db, c, c.entry(many(c, each)))
	}
	if n := countRows(t, db, "contents"); n != 0 {
		t.Fatalf("%d rows were moved before there were many", n)
	}
	find := func() {
		t.Helper()
		s := snap(t, db)
		defer s.Close()
		for slot := range int(c.slot) {
			for _, i := range []int{0, each / 2, each - 1} {
				content := fmt.Sprint(slot, i)
				if place, found, err := s.FindContent(t.Context(), sha(content), int64(len(content))); !found || err != nil || place.Offset != int64(i) {
					t.Fatalf("content %q: %+v, %v, %v", content, place, found, err)
				}
			}
		}
	}
	find()
	fold(t, db, c, c.entry(many(c, each)))
	waitFor(t, "the index to be moved", func() bool {
		find()
		return countRows(t, db, "contents_new") == 0
	})
	if n := countRows(t, db, "contents"); n != 4*each {
		t.Fatalf("%d rows, want %d", n, 4*each)
	}
	find()
	// A record that is large itself goes there directly.
	fold(t, db, c, c.entry(many(c, freshMax+1)))
	if n := countRows(t, db, "contents"); n != 4*each+freshMax+1 {
		t.Fatalf("%d rows, want %d", n, 4*each+freshMax+1)
	}
	// Versions that are dropped are found no more, wherever their row is.
	drop := format.Block{}
	for i := range 5 {
		fold(t, db, c, c.entry(nil, []format.Change{put(manyPath(each, i), "x", format.Inline)}))
		drop.Drops = append(drop.Drops, format.VersionRef{Path: manyPath(each, i), Slot: 1})
	}
	fold(t, db, c, c.add(&format.Record{Kind: format.KindRetention, Block: drop}))
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The write-ahead log does not grow without end, and commits do not wait for its
// being copied.
func TestLogOfTheFileIsCutBack(t *testing.T) {
	db, c := openTemp(t), newChain()
	wal := func() int64 {
		info, err := os.Stat(db.Path() + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	most := int64(0)
	for range 30 {
		fold(t, db, c, c.entry(many(c, 4000)))
		most = max(most, wal())
	}
	if most <= walWake {
		t.Fatalf("the log had %d bytes at most: the test does not test", most)
	}
	waitFor(t, "the log to be cut back", func() bool {
		fold(t, db, c, c.entry(many(c, 1)))
		return wal() <= walWake
	})
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}
