package catalog

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/swampd/swampd/internal/format"
)

// many returns the changes of one record: n files in a directory of their own.
func many(c *chain, n int) ([]format.Object, []format.Change) {
	o := c.object(format.ObjectPack)
	changes := make([]format.Change, n)
	for i := range changes {
		changes[i] = put(fmt.Sprintf("tree/%06d/dir-%03d/file-%06d.txt", c.slot, i/100, i), fmt.Sprint(c.slot, i), 0)
		changes[i].Place.Offset = int64(i)
	}
	return []format.Object{o}, changes
}

// filled makes a catalog with n versions, from records of 10,000 at most.
func filled(b *testing.B, n int) (*DB, *chain) {
	b.Helper()
	db, c := openTemp(b), newChain()
	for left := n; left > 0; {
		k := min(left, 10_000)
		fold(b, db, c, c.entry(many(c, k)))
		left -= k
	}
	return db, c
}

var sizes = []int{1_000, 1_000_000}

func BenchmarkFold(b *testing.B) {
	for _, n := range sizes {
		db, c := filled(b, n)
		for _, k := range []int{1, 10_000} {
			b.Run(fmt.Sprintf("puts=%d/versions=%d", k, n), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					l := c.entry(many(c, k))
					b.StartTimer()
					fold(b, db, c, l)
				}
			})
		}
	}
}

// BenchmarkFoldOver puts new versions of paths that are spread over the whole
// catalog: each touches another page.
func BenchmarkFoldOver(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("puts=10000/versions=%d", n), func(b *testing.B) {
			db, c := filled(b, n)
			for b.Loop() {
				b.StopTimer()
				o := c.object(format.ObjectPack)
				var changes []format.Change
				for i := range 10_000 {
					at := i * max(n/10_000, 1) % n
					path := fmt.Sprintf("tree/%06d/dir-%03d/file-%06d.txt", at/10_000, at%10_000/100, at%10_000)
					changes = append(changes, put(path, fmt.Sprint(c.slot, i), 0))
				}
				l := c.entry([]format.Object{o}, changes)
				b.StartTimer()
				fold(b, db, c, l)
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range sizes {
		db, _ := filled(b, n)
		path := func(i int) string {
			at := i * 7919 % n
			return fmt.Sprintf("tree/%06d/dir-%03d/file-%06d.txt", at/10_000, at%10_000/100, at%10_000)
		}
		b.Run(fmt.Sprintf("lookup/versions=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				s, err := db.Snapshot(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.Lookup(b.Context(), path(i), 0); err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("content/versions=%d", n), func(b *testing.B) {
			s := snap(b, db)
			for i := 0; b.Loop(); i++ {
				at := i * 7919 % n
				content := fmt.Sprint(at/10_000, at%10_000)
				if _, ok, err := s.FindContent(b.Context(), sha(content), int64(len(content))); !ok || err != nil {
					b.Fatal(content, ok, err)
				}
			}
		})
		b.Run(fmt.Sprintf("list=10000/versions=%d", n), func(b *testing.B) {
			s := snap(b, db)
			for b.Loop() {
				k := 0
				for _, err := range s.List(b.Context(), "", "", 0) {
					if err != nil {
						b.Fatal(err)
					}
					if k++; k == 10_000 {
						break
					}
				}
			}
		})
		b.Run(fmt.Sprintf("open/versions=%d", n), func(b *testing.B) {
			for b.Loop() {
				again, err := Open(b.Context(), db.Path(), testOptions)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := again.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func BenchmarkLoadCheckpoint(b *testing.B) {
	db, _ := filled(b, 1_000_000)
	root, shards := checkpointOf(b, snap(b, db), 50_000)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		path := filepath.Join(b.TempDir(), fmt.Sprint(i))
		fresh := openAt(b, path)
		b.StartTimer()
		if err := fresh.LoadCheckpoint(b.Context(), root, format.Checkpoint{}, shards); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if info, err := os.Stat(path); err == nil {
			b.ReportMetric(float64(info.Size())/1e6, "MB")
		}
		b.StartTimer()
	}
}
