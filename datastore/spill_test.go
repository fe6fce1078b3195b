package datastore

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swampd/swampd/internal/format"
)

// A full disk costs the changes that did not fit, not those before.
func TestSpilledChangesOutliveAFullDisk(t *testing.T) {
	ctx := context.Background()
	s, err := openSpill(ctx, filepath.Join(t.TempDir(), "changes.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	changes := func(from, n int) map[string]*staged {
		m := map[string]*staged{}
		for i := from; i < from+n; i++ {
			path := fmt.Sprintf("%06d-%s", (i*7919)%100_000, strings.Repeat("x", 200))
			m[path] = &staged{change: format.Change{Op: format.OpPut, Path: path}, dup: -1}
		}
		return m
	}
	if err := s.add(ctx, changes(0, 5_000)); err != nil {
		t.Fatal(err)
	}
	var pages int
	if err := s.db.QueryRow("PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(pages int) {
		if _, err := s.db.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages + 600)
	if err := s.add(ctx, changes(5_000, 15_000)); err == nil {
		t.Fatal("a full file went unnoticed")
	}
	count := func() (n int) {
		s.all(ctx, func(_ *staged, err error) bool {
			if err != nil {
				t.Fatal(err)
			}
			n++
			return true
		})
		return n
	}
	if n := count(); n != 5_000 {
		t.Errorf("%d changes after the failure, want 5,000", n)
	}
	limit(1 << 30)
	if err := s.add(ctx, changes(5_000, 15_000)); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 20_000 {
		t.Errorf("%d changes at the end, want 20,000", n)
	}
}
