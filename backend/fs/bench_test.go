package fs_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/fs"
)

// BenchmarkCreateSmall makes objects of 4 KiB, each durable before the next of
// the same goroutine.
func BenchmarkCreateSmall(b *testing.B) {
	for _, par := range []int{1, 16} {
		b.Run(fmt.Sprintf("goroutines=%d", par), func(b *testing.B) {
			d := benchDriver(b)
			body := backend.Bytes(make([]byte, 4096))
			var n atomic.Int64
			b.SetParallelism(par)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := d.Create(context.Background(), fmt.Sprintf("data/%08d", n.Add(1)), body); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkGetSmall(b *testing.B) {
	d := benchDriver(b)
	for _, key := range []string{"data/x", "_control/x"} {
		if _, err := d.Create(b.Context(), key, backend.Bytes(make([]byte, 4096))); err != nil {
			b.Fatal(err)
		}
		b.Run(filepath.Dir(key), func(b *testing.B) {
			for b.Loop() {
				obj, err := d.Get(b.Context(), key, backend.GetOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, obj.Body); err != nil {
					b.Fatal(err)
				}
				obj.Body.Close()
			}
		})
	}
}

func BenchmarkReplace(b *testing.B) {
	d := benchDriver(b)
	info, err := d.Create(b.Context(), "_control/x", backend.Bytes(nil))
	for n := 0; b.Loop(); n++ {
		if err != nil {
			b.Fatal(err)
		}
		info, err = d.Replace(b.Context(), "_control/x", backend.Bytes(fmt.Append(nil, n)), info.Version)
	}
}

// BenchmarkCreateLarge makes an object of 1 GiB out of a file, verified and
// durable, in turns with cp and sha256sum of the same file, and reports how many
// times as fast as both together it is.
func BenchmarkCreateLarge(b *testing.B) {
	const size = 1 << 30
	dir := b.TempDir()
	src := filepath.Join(dir, "src")
	sum := writeNoise(b, src, size)
	body := backend.Body{Size: size, SHA256: sum, HasSHA256: true, Open: func() (io.ReadSeekCloser, error) { return os.Open(src) }}
	d := benchDriver(b)
	b.SetBytes(size)
	var ours, theirs time.Duration
	for b.Loop() {
		begin := time.Now()
		if _, err := d.Create(b.Context(), "data/x", body); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(begin)
		b.StopTimer()
		if err := d.Delete(b.Context(), []string{"data/x"}); err != nil {
			b.Fatal(err)
		}
		begin = time.Now()
		for _, args := range [][]string{{"cp", src, filepath.Join(dir, "copy")}, {"sha256sum", src}} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				b.Fatalf("%s: %v: %s", args, err, out)
			}
		}
		theirs += time.Since(begin)
		if err := os.Remove(filepath.Join(dir, "copy")); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "x-cp+sha256sum")
	b.ReportMetric(size*float64(b.N)/1e6/theirs.Seconds(), "cp+sha256sum-MB/s")
}

func writeNoise(b *testing.B, path string, size int64) (sum [sha256.Size]byte) {
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{}), size); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

func benchDriver(b *testing.B) *fs.Driver {
	d, err := fs.New(filepath.Join(b.TempDir(), "store"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	return d
}
