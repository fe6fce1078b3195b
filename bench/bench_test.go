// Package bench measures the engine beside what it is made of, in one run on
// one machine: figures are ratios, and the medians of interleaved pairs. See
// design/performance.md.
package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/fs"
	_ "github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/testserver"
)

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// pair runs a and b in turn and reports the medians and their ratio.
func pair(b *testing.B, name string, one, other func() error) {
	b.Helper()
	var ones, others []time.Duration
	timed := func(f func() error, into *[]time.Duration) {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		*into = append(*into, time.Since(start))
	}
	for b.Loop() {
		timed(one, &ones)
		timed(other, &others)
	}
	m, n := median(ones), median(others)
	b.ReportMetric(float64(m)/float64(n), "ratio")
	b.ReportMetric(float64(m.Microseconds()), "us/"+name)
	b.ReportMetric(float64(n.Microseconds()), "us/base")
}

func noise(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(p)
	return p
}

func s3Store(b *testing.B) string {
	b.Helper()
	srv := testserver.S3(b)
	srv.Setenv(b)
	return srv.NewBucket(b)
}

func open(b *testing.B, url string) *datastore.Store {
	b.Helper()
	s, err := datastore.Init(b.Context(), url, &datastore.Options{StateDir: b.TempDir(), SkipProbe: true, CheckpointSlots: -1, CheckpointBytes: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// BenchmarkSmallCommit: a commit of small contents against one bare conditional
// PUT of as many bytes plus one synced 4 KiB local write.
func BenchmarkSmallCommit(b *testing.B) {
	for _, store := range []string{"s3", "fs"} {
		b.Run(store, func(b *testing.B) {
			url := filepath.Join(b.TempDir(), "store")
			if store == "s3" {
				url = s3Store(b)
			}
			s := open(b, url)
			bucket, err := backend.Open(b.Context(), url)
			if err != nil {
				b.Fatal(err)
			}
			defer bucket.Close()
			local, err := os.Create(filepath.Join(b.TempDir(), "local"))
			if err != nil {
				b.Fatal(err)
			}
			defer local.Close()
			content, page, n := noise(2000), noise(4096), 0
			commit := func() error {
				n++
				binary.LittleEndian.PutUint64(content, uint64(n))
				batch, err := s.Begin(b.Context(), nil)
				if err != nil {
					return err
				}
				if _, err := batch.Put(b.Context(), fmt.Sprintf("dir/%06d", n%1000), bytes.NewReader(content), nil); err != nil {
					return err
				}
				_, err = batch.Commit(b.Context(), "benchmark")
				return err
			}
			body := noise(2400) // about the size of such a record
			put := func() error {
				if _, err := bucket.Create(b.Context(), "base/"+uuid.NewString(), backend.Bytes(body)); err != nil {
					return err
				}
				if _, err := local.WriteAt(page, 0); err != nil {
					return err
				}
				return local.Sync()
			}
			for range 20 { // connections, caches
				if err := commit(); err != nil {
					b.Fatal(err)
				}
				if err := put(); err != nil {
					b.Fatal(err)
				}
			}
			pair(b, "commit", commit, put)
		})
	}
}

// fill commits n paths.
func fill(b *testing.B, s *datastore.Store, n int) {
	b.Helper()
	for from := 0; from < n; from += 250_000 {
		batch, err := s.Begin(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		var content [36]byte
		for i := from; i < min(n, from+250_000); i++ {
			binary.LittleEndian.PutUint64(content[:], uint64(i))
			if _, err := batch.Put(b.Context(), path(i), bytes.NewReader(content[:]), nil); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := batch.Commit(b.Context(), "fill"); err != nil {
			b.Fatal(err)
		}
	}
}

func path(i int) string { return fmt.Sprintf("dir-%03d/sub-%02d/file-%06d", i%1000, i/1000%100, i) }

// BenchmarkAtSize: the same commit, catching up, and opening, with a cache and
// without, in a datastore of 1,000 and one of 1,000,000 paths, in turn.
func BenchmarkAtSize(b *testing.B) {
	large := 1_000_000
	if testing.Short() {
		large = 50_000
	}
	type side struct {
		writer, reader *datastore.Store
		n, size        int
		url, state     string
	}
	sides := []*side{{size: 1000}, {size: large}}
	for _, sd := range sides {
		sd.url, sd.state = filepath.Join(b.TempDir(), "store"), b.TempDir()
		sd.writer = open(b, sd.url)
		fill(b, sd.writer, sd.size)
		if err := sd.writer.Checkpoint(b.Context()); err != nil {
			b.Fatal(err)
		}
		var err error
		if sd.reader, err = datastore.Open(b.Context(), sd.url, &datastore.Options{StateDir: sd.state}); err != nil {
			b.Fatal(err)
		}
		defer sd.reader.Close()
	}
	commit := func(sd *side) error {
		batch, err := sd.writer.Begin(b.Context(), nil)
		if err != nil {
			return err
		}
		for range 10 {
			sd.n++
			if _, err := batch.Put(b.Context(), path(sd.n*7919%sd.size), strings.NewReader(fmt.Sprint("new ", sd.n)), nil); err != nil {
				return err
			}
		}
		_, err = batch.Commit(b.Context(), "benchmark")
		return err
	}
	b.Run("commit", func(b *testing.B) {
		pair(b, "large", func() error { return commit(sides[1]) }, func() error { return commit(sides[0]) })
	})
	opening := func(sd *side, state string) error {
		s, err := datastore.Open(b.Context(), sd.url, &datastore.Options{StateDir: state})
		if err != nil {
			return err
		}
		return s.Close()
	}
	b.Run("open", func(b *testing.B) {
		pair(b, "large", func() error { return opening(sides[1], sides[1].state) }, func() error { return opening(sides[0], sides[0].state) })
	})
	b.Run("openempty", func(b *testing.B) { // grows with the state, as it must
		pair(b, "large", func() error { return opening(sides[1], b.TempDir()) }, func() error { return opening(sides[0], b.TempDir()) })
	})
	b.Run("catchup", func(b *testing.B) {
		var times [2][]time.Duration
		for b.Loop() {
			for i, sd := range sides {
				if _, err := sd.reader.Update(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := commit(sd); err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				if _, err := sd.reader.Update(b.Context()); err != nil {
					b.Fatal(err)
				}
				times[i] = append(times[i], time.Since(start))
			}
		}
		small, big := median(times[0]), median(times[1])
		b.ReportMetric(float64(big)/float64(small), "ratio")
		b.ReportMetric(float64(big.Microseconds()), "us/large")
		b.ReportMetric(float64(small.Microseconds()), "us/base")
	})
}

// BenchmarkLargeFile: one file of 1 GiB put into a directory store, against `cp`
// of it followed by `sha256sum`.
func BenchmarkLargeFile(b *testing.B) {
	size := int64(1 << 30)
	if testing.Short() {
		size = 64 << 20
	}
	dir := b.TempDir()
	src := filepath.Join(dir, "source")
	f, err := os.Create(src)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{7}), size); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	n := 0
	put := func() error {
		n++
		store := filepath.Join(dir, fmt.Sprint("store", n))
		s, err := datastore.Init(b.Context(), store, &datastore.Options{StateDir: filepath.Join(dir, fmt.Sprint("state", n)), SkipProbe: true})
		if err != nil {
			return err
		}
		defer os.RemoveAll(store)
		defer s.Close()
		batch, err := s.Begin(b.Context(), nil)
		if err != nil {
			return err
		}
		if _, err := batch.PutFile(b.Context(), "large", src, nil); err != nil {
			return err
		}
		_, err = batch.Commit(b.Context(), "large")
		return err
	}
	cp := func() error {
		to := filepath.Join(dir, "copy")
		defer os.Remove(to)
		for _, args := range [][]string{{"cp", src, to}, {"sha256sum", to}} {
			if out, err := exec.CommandContext(context.Background(), args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", args, err, out)
			}
		}
		return nil
	}
	b.SetBytes(size)
	pair(b, "put", put, cp)
}
