package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/swampd/swampd/datastore"
)

// jobs are what a process of its own does whose memory is measured: n is bytes
// or paths.
var jobs = map[string]func(ctx context.Context, url, state string, n int64) error{
	"put": func(ctx context.Context, url, state string, n int64) error {
		return withStore(ctx, url, state, func(s *datastore.Store) error {
			batch, err := s.Begin(ctx, nil)
			if err != nil {
				return err
			}
			if _, err := batch.Put(ctx, "large", io.LimitReader(rand.NewChaCha8([32]byte{3}), n), nil); err != nil {
				return err
			}
			_, err = batch.Commit(ctx, "large")
			return err
		})
	},
	"get": func(ctx context.Context, url, state string, n int64) error {
		return withStore(ctx, url, state, func(s *datastore.Store) error {
			r, err := s.Open(ctx, "large", nil)
			if err != nil {
				return err
			}
			defer r.Close()
			m, err := io.Copy(io.Discard, r)
			if err == nil && m != n {
				err = fmt.Errorf("got %d bytes, want %d", m, n)
			}
			return err
		})
	},
	"commit": func(ctx context.Context, url, state string, n int64) error {
		return withStore(ctx, url, state, func(s *datastore.Store) error {
			batch, err := s.Begin(ctx, nil)
			if err != nil {
				return err
			}
			var content [36]byte
			for i := range int(n) {
				binary.LittleEndian.PutUint64(content[:], uint64(i))
				if _, err := batch.Put(ctx, path(i), strings.NewReader(string(content[:])), nil); err != nil {
					return err
				}
			}
			_, err = batch.Commit(ctx, "many")
			return err
		})
	},
	// list is run with an empty cache, so it reads the whole log or checkpoint.
	"list": func(ctx context.Context, url, state string, n int64) error {
		return withStore(ctx, url, state, func(s *datastore.Store) error {
			m := int64(0)
			for _, err := range s.List(ctx, nil) {
				if err != nil {
					return err
				}
				m++
			}
			if m != n {
				return fmt.Errorf("listed %d paths, want %d", m, n)
			}
			return nil
		})
	},
	"checkpoint": func(ctx context.Context, url, state string, _ int64) error {
		return withStore(ctx, url, state, func(s *datastore.Store) error {
			return s.Checkpoint(ctx)
		})
	},
	"verify": func(ctx context.Context, url, state string, _ int64) error {
		return withStore(ctx, url, state, func(s *datastore.Store) error {
			_, err := s.Verify(ctx, &datastore.VerifyOptions{ReadData: true})
			return err
		})
	},
}

func withStore(ctx context.Context, url, state string, f func(*datastore.Store) error) (err error) {
	opts := &datastore.Options{StateDir: state, SkipProbe: true, CheckpointSlots: -1, CheckpointBytes: -1}
	s, err := datastore.Open(ctx, url, opts)
	if errors.Is(err, datastore.ErrNotFound) {
		s, err = datastore.Init(ctx, url, opts)
	}
	if err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	return s.Close()
}

var jobFlag = flag.String("job", "", "do `NAME,N,URL,STATE` and exit (BenchmarkMemory starts itself with it)")

func TestMain(m *testing.M) {
	flag.Parse()
	if *jobFlag == "" {
		os.Exit(m.Run())
	}
	part := strings.SplitN(*jobFlag, ",", 4)
	n, err := strconv.ParseInt(part[1], 10, 64)
	if err == nil {
		err = jobs[part[0]](context.Background(), part[2], part[3], n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// peak runs a job in a process of its own and returns the most memory that it
// had resident, in bytes.
func peak(b testing.TB, job string, n int64, url, state string) int64 {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-job", fmt.Sprintf("%s,%d,%s,%s", job, n, url, state))
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s of %d: %v: %s", job, n, err, out)
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}

// memoryBound is the most that any of the jobs may have resident, however much
// it works on.
const memoryBound = 320 << 20

// TestMemoryIsBounded is BenchmarkMemory in small, for every test run.
func TestMemoryIsBounded(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes several times the memory")
	}
	const bound = 200 << 20
	dir := t.TempDir()
	for _, j := range []struct {
		store string
		job   string
		n     int64
	}{
		{"file", "put", 256 << 20}, {"file", "get", 256 << 20}, {"file", "verify", 0},
		{"paths", "commit", 50_000}, {"paths", "list", 50_000}, {"paths", "checkpoint", 0}, {"paths", "verify", 0},
	} {
		if got := peak(t, j.job, j.n, filepath.Join(dir, j.store), filepath.Join(dir, j.store+"-state")); got > bound {
			t.Errorf("%s of %s (%d) took %d MiB, at most %d are allowed", j.job, j.store, j.n, got>>20, bound>>20)
		}
	}
}

// BenchmarkMemory: the peak resident memory of a process that does something
// large, against the same with something small. It fails above memoryBound.
func BenchmarkMemory(b *testing.B) {
	const small, few = 64 << 20, 1000
	large, many := int64(10<<30), int64(1_000_000)
	if testing.Short() {
		large, many = 1<<30, 50_000
	}
	both := func(name string, jobs []string, small, large int64, store func(b *testing.B) string) {
		b.Run(name, func(b *testing.B) {
			urls := [2]string{store(b), store(b)}
			var states [2]string
			for b.Loop() {
				for _, job := range jobs {
					var got [2]int64
					for i, n := range []int64{small, large} {
						if states[i] == "" || job == "list" {
							states[i] = b.TempDir()
						}
						if got[i] = peak(b, job, n, urls[i], states[i]); got[i] > memoryBound {
							b.Errorf("%s of %d took %d MiB, at most %d are allowed", job, n, got[i]>>20, memoryBound>>20)
						}
					}
					b.ReportMetric(float64(got[1]>>20), "MiB/"+job)
					b.ReportMetric(float64(got[0]>>20), "MiB/"+job+"-base")
					b.ReportMetric(float64(got[1])/float64(got[0]), "ratio/"+job)
				}
			}
		})
	}
	dir := func(b *testing.B) string { return filepath.Join(b.TempDir(), "store") }
	both("file/fs", []string{"put", "get", "verify"}, small, large, dir)
	both("paths/fs", []string{"commit", "list", "checkpoint", "list", "verify"}, few, many, dir)
	both("file/s3", []string{"put", "get"}, small, large, s3Store)
}
