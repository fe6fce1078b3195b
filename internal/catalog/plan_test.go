package catalog

import (
	"database/sql/driver"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/swampd/swampd/internal/format"
)

// Costs that grow with what changed, not with what is stored, hang on indexes:
// no statement of the ordinary calls may walk over a whole table.
func TestStatementsUseIndexes(t *testing.T) {
	db, c := openTemp(t), newChain()
	o := c.object(format.ObjectPack)
	list := c.list(&format.Block{Changes: []format.Change{put("a", "2", format.Inline)}})
	fold(t, db, c,
		c.entry([]format.Object{o}, []format.Change{put("a", "1", 0), put("b", "1", 0)}),
		c.add(&format.Record{Entries: []format.Entry{{ID: id(1), Lists: []format.ListRef{list},
			Block: format.Block{Changes: []format.Change{put("b", "3", format.Inline), put("a", "3", format.Inline)}}}}}),
		c.add(&format.Record{Block: format.Block{Objects: []format.Object{o}, Drops: []format.VersionRef{{Path: "a", Slot: 1}}, Dead: []string{o.Name},
			Moves: []format.Move{{VersionRef: format.VersionRef{Path: "b", Slot: 1}}, {VersionRef: format.VersionRef{Path: "b", Slot: 2}}}}}),
	)
	s := snap(t, db)
	ctx := t.Context()
	s.Lookup(ctx, "a", 2)
	s.FindContent(ctx, sha("1"), 1)
	s.Object(ctx, o.Name)
	s.Entry(ctx, id(1))
	s.ChangedSince(ctx, "a", 0, id(1))
	collect(t, s.List(ctx, "", "", 0))
	collect(t, s.List(ctx, "a", "", 1))
	collect(t, s.History(ctx, "a"))
	collect(t, s.Log(ctx, 1, 2, true))
	collect(t, s.Objects(ctx, "x"))
	collect(t, s.VersionRows(ctx, format.VersionKey("a", 2), ""))
	texts := []string{}
	for text := range s.c.stmts {
		texts = append(texts, text)
	}
	for text := range db.writer.stmts {
		texts = append(texts, text)
	}
	texts = append(texts, changedText, dirtyVersionsText, dirtyObjectsText, dirtyLogText)
	if len(texts) < 30 {
		t.Fatalf("%d statements only: does the test still see them?", len(texts))
	}
	// A scan that begins in the middle says SEARCH; these may be walked over. The
	// dirty tables hold what changed since the newest checkpoint only.
	allowed := regexp.MustCompile(`^SCAN (p|CONSTANT ROW|x|\d+-ROW VALUES CLAUSE|\(subquery.*|dirty_\w+)$`)
	for _, text := range texts {
		word := strings.Fields(text)[0]
		if word == "PRAGMA" || word == "BEGIN" || word == "COMMIT" || word == "SAVEPOINT" || word == "RELEASE" || word == "ROLLBACK" || strings.Contains(text, "sqlite_schema") {
			continue
		}
		var args []driver.Value
		st, err := s.c.prepare("EXPLAIN QUERY PLAN " + text)
		if err != nil {
			t.Fatal(err)
		}
		for range st.args {
			args = append(args, int64(1))
		}
		r, err := s.c.run(ctx, st, args)
		if err != nil {
			t.Fatal(err)
		}
		for {
			ok, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if detail := fmt.Sprint(r.dest[3]); strings.HasPrefix(detail, "SCAN") && !allowed.MatchString(detail) {
				t.Errorf("%s\n\tin %s", detail, text)
			}
		}
		r.close()
		st.raw.Close()
	}
}
