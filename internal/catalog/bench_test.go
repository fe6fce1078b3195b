package catalog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

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

func manyPath(n, i int) string {
	at := i % n
	return fmt.Sprintf("tree/%06d/dir-%03d/file-%06d.txt", at/10_000, at%10_000/100, at%10_000)
}

// filled makes a catalog with n versions, from records of 10,000 at most, and
// lets maintenance come to rest.
func filled(b *testing.B, n int) (*DB, *chain) {
	b.Helper()
	db, c := openTemp(b), newChain()
	for left := n; left > 0; {
		k := min(left, 10_000)
		fold(b, db, c, c.entry(many(c, k)))
		left -= k
	}
	if err := errors.Join(db.moveFresh(b.Context()), db.Close()); err != nil {
		b.Fatal(err)
	}
	return openAt(b, db.Path()), c
}

// measure runs work many times and reports medians: by the clock, and by the
// processor time of the thread alone.
func measure(b *testing.B, prepare func(), work func()) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var wall, cpu []time.Duration
	for b.Loop() {
		b.StopTimer()
		prepare()
		b.StartTimer()
		t, c := time.Now(), threadCPU()
		work()
		cpu = append(cpu, threadCPU()-c)
		wall = append(wall, time.Since(t))
	}
	slices.Sort(wall)
	slices.Sort(cpu)
	b.ReportMetric(float64(wall[len(wall)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(cpu[len(cpu)/2].Microseconds()), "µs-cpu-p50")
}

var sizes = []int{1_000, 1_000_000}

func BenchmarkFold(b *testing.B) {
	for _, n := range sizes {
		db, c := filled(b, n)
		for _, k := range []int{1, 10_000} {
			b.Run(fmt.Sprintf("puts=%d/versions=%d", k, n), func(b *testing.B) {
				var l link
				measure(b, func() { l = c.entry(many(c, k)) }, func() { fold(b, db, c, l) })
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
			var l link
			measure(b, func() {
				o := c.object(format.ObjectPack)
				var changes []format.Change
				for i := range 10_000 {
					changes = append(changes, put(manyPath(n, i*max(n/10_000, 1)), fmt.Sprint(c.slot, i), 0))
				}
				l = c.entry([]format.Object{o}, changes)
			}, func() { fold(b, db, c, l) })
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range sizes {
		db, _ := filled(b, n)
		i := 0
		next := func() { i += 7919 }
		b.Run(fmt.Sprintf("lookup/versions=%d", n), func(b *testing.B) {
			measure(b, next, func() {
				s, err := db.Snapshot(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.Lookup(b.Context(), manyPath(n, i), 0); err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(fmt.Sprintf("content/versions=%d", n), func(b *testing.B) {
			s := snap(b, db)
			measure(b, next, func() {
				content := fmt.Sprint(i%n/10_000, i%n%10_000)
				if _, ok, err := s.FindContent(b.Context(), sha(content), int64(len(content))); !ok || err != nil {
					b.Fatal(content, ok, err)
				}
			})
		})
		b.Run(fmt.Sprintf("list=10000/versions=%d", n), func(b *testing.B) {
			s := snap(b, db)
			measure(b, next, func() {
				k := 0
				for _, err := range s.List(b.Context(), "", "", 0) {
					if err != nil {
						b.Fatal(err)
					}
					if k++; k == 10_000 {
						break
					}
				}
			})
		})
		b.Run(fmt.Sprintf("open/versions=%d", n), func(b *testing.B) {
			var again *DB
			measure(b, func() {
				if again != nil {
					again.Close()
				}
			}, func() {
				var err error
				if again, err = Open(b.Context(), db.Path(), testOptions); err != nil {
					b.Fatal(err)
				}
			})
			again.Close()
		})
	}
}

func BenchmarkLoadCheckpoint(b *testing.B) {
	db, _ := filled(b, 1_000_000)
	root, shards := checkpointOf(b, snap(b, db), 50_000)
	n := 0
	var fresh *DB
	measure(b, func() {
		n++
		fresh = openAt(b, filepath.Join(b.TempDir(), fmt.Sprint(n)))
	}, func() {
		if err := fresh.LoadCheckpoint(b.Context(), root, format.Checkpoint{}, shards); err != nil {
			b.Fatal(err)
		}
	})
	if info, err := os.Stat(fresh.Path()); err == nil {
		b.ReportMetric(float64(info.Size())/1e6, "MB")
	}
}
