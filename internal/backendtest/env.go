package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/swampd/swampd/backend"
)

// pick returns the first size with -short or -race, the second otherwise; stores
// that take few writes to one name get the third.
func (e *env) pick(short, full, slow int) int {
	switch {
	case e.h.SlowRaces:
		return slow
	case testing.Short() || raceDetector:
		return short
	}
	return full
}

// parts is the size of a body that the store takes in several parts, where the
// harness says that bodies may be so large.
func (e *env) parts() int {
	if !e.h.Large || testing.Short() {
		return 6<<20 + 11
	}
	e.large.Store(true)
	switch {
	case e.h.PartsSize > 0:
		return e.h.PartsSize
	case raceDetector:
		return 24<<20 + 11
	}
	return 70<<20 + 11
}

// noise returns n bytes that look random and are the same for the same seed.
func noise(n int, seed uint64) []byte {
	if n > 16<<20 && seed == 1 {
		return bigNoise(n)
	}
	return makeNoise(n, seed)
}

var big struct {
	sync.Mutex
	data []byte
}

// bigNoise is shared by the tests of large bodies, which do not change it.
func bigNoise(n int) []byte {
	big.Lock()
	defer big.Unlock()
	if len(big.data) < n {
		big.data = makeNoise(n, 1)
	}
	return big.data[:n:n]
}

func makeNoise(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	if _, err := rand.NewChaCha8(key).Read(b); err != nil {
		panic(err)
	}
	return b
}

// create makes an object, which must succeed.
func (e *env) create(b *backend.Bucket, key string, data []byte) backend.Info {
	e.Helper()
	info, err := b.Create(e.ctx, key, backend.Bytes(data))
	if err != nil {
		e.Fatalf("create: %v", err)
	}
	return info
}

// replace replaces an object, which must succeed.
func (e *env) replace(b *backend.Bucket, key string, data []byte, old backend.Version) backend.Info {
	e.Helper()
	info, err := b.Replace(e.ctx, key, backend.Bytes(data), old)
	if err != nil {
		e.Fatalf("replace of version %q: %v", old, err)
	}
	return info
}

func (e *env) remove(b *backend.Bucket, keys ...string) {
	e.Helper()
	if err := b.Delete(e.ctx, keys); err != nil {
		e.Fatalf("delete of %d keys: %v", len(keys), err)
	}
}

// read reads what opts names; it may be called from any goroutine.
func read(ctx context.Context, b *backend.Bucket, key string, opts backend.GetOptions) ([]byte, *backend.Object, error) {
	obj, err := b.Get(ctx, key, opts)
	if err != nil {
		if obj != nil {
			return nil, nil, fmt.Errorf("get returned an object beside the error %w", err)
		}
		return nil, nil, err
	}
	data, err := io.ReadAll(obj.Body)
	if cerr := obj.Body.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("closing the body of %s: %w", key, cerr)
	}
	if err == nil && int64(len(data)) != obj.Length {
		err = fmt.Errorf("the body of %s has %d bytes, Length says %d", key, len(data), obj.Length)
	}
	return data, obj, err
}

// get reads an object, which must succeed.
func (e *env) get(b *backend.Bucket, key string, opts backend.GetOptions) ([]byte, *backend.Object) {
	e.Helper()
	data, obj, err := read(e.ctx, b, key, opts)
	if err != nil {
		e.Fatalf("get: %v", err)
	}
	return data, obj
}

// holds demands that key holds exactly data, seen through b. It reads in small
// pieces, since data may be large.
func (e *env) holds(b *backend.Bucket, key string, data []byte) *backend.Object {
	e.Helper()
	obj, err := b.Get(e.ctx, key, backend.GetOptions{})
	if err != nil {
		e.Fatalf("get: %v", err)
	}
	rest, piece := data, make([]byte, min(len(data)+1, 64<<10))
	for err == nil {
		var n int
		n, err = obj.Body.Read(piece)
		if !bytes.HasPrefix(rest, piece[:n]) {
			at := len(data) - len(rest)
			e.Fatalf("%s holds %s at byte %d, want %s", key, brief(piece[:n]), at, brief(rest[:min(n, len(rest))]))
		}
		rest = rest[n:]
	}
	if cerr := obj.Body.Close(); !errors.Is(err, io.EOF) || cerr != nil || len(rest) > 0 {
		e.Fatalf("%s: the body ends with %d of %d bytes missing, %v, and closes with %v", key, len(rest), len(data), err, cerr)
	}
	if size := int64(len(data)); obj.Size != size || obj.Length != size {
		e.Fatalf("%s: Size, Length = %d, %d, want %d", key, obj.Size, obj.Length, size)
	}
	return obj
}

// absent demands that key holds nothing, through both handles and in listings.
func (e *env) absent(key string) {
	e.Helper()
	for _, b := range []*backend.Bucket{e.a, e.b} {
		if _, _, err := read(e.ctx, b, key, backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
			e.Fatalf("get of %s: %v, want %v", key, errText(err), backend.ErrNotFound)
		}
		if keys := e.keys(b, key, ""); slices.Contains(keys, key) {
			e.Fatalf("%s holds nothing and is listed", key)
		}
	}
}

// fails demands an error that wraps want and no other sentinel.
func (e *env) fails(err, want error, what string) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("%s: %v; want %q", what, errText(err), want)
	}
	for _, s := range sentinels {
		if s != want && errors.Is(err, s) {
			e.Fatalf("%s: %v is also %q", what, err, s)
		}
	}
}

var sentinels = []error{
	backend.ErrNotFound, backend.ErrExists, backend.ErrChanged, backend.ErrConflict,
	backend.ErrBusy, backend.ErrUnknown, backend.ErrDenied, backend.ErrUnsupported, backend.ErrBadContent,
	backend.ErrFull, backend.ErrNoBucket, backend.ErrBadKey, backend.ErrClosed,
}

func errText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

func brief(b []byte) string {
	if len(b) <= 40 {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d bytes %x…%x", len(b), b[:8], b[len(b)-8:])
}

// list lists, which must succeed, and demands strict byte order on the way.
func (e *env) list(b *backend.Bucket, prefix, after string) []backend.Entry {
	e.Helper()
	var all []backend.Entry
	for entry, err := range b.List(e.ctx, prefix, after) {
		if err != nil {
			e.Fatalf("list of %q after %q: %v", prefix, after, err)
		}
		if n := len(all); n > 0 && all[n-1].Key >= entry.Key {
			e.Fatalf("list of %q after %q: %q comes after %q", prefix, after, entry.Key, all[n-1].Key)
		}
		all = append(all, entry)
	}
	return all
}

func (e *env) keys(b *backend.Bucket, prefix, after string) []string {
	e.Helper()
	var keys []string
	for _, entry := range e.list(b, prefix, after) {
		keys = append(keys, entry.Key)
	}
	return keys
}

// sameKeys compares listings without printing thousands of keys.
func (e *env) sameKeys(got, want []string, what string) {
	e.Helper()
	if slices.Equal(got, want) {
		return
	}
	if len(got) <= 20 && len(want) <= 20 {
		e.Fatalf("%s:\ngot  %q\nwant %q", what, got, want)
	}
	for i := range max(len(got), len(want)) {
		g, w := "(end)", "(end)"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			e.Fatalf("%s: %d keys, want %d; number %d is %s, want %s", what, len(got), len(want), i, g, w)
		}
	}
}

// together runs f(0) … f(n-1) at once and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// handle returns a for even i and b for odd ones.
func (e *env) handle(i int) *backend.Bucket {
	if i%2 == 0 {
		return e.a
	}
	return e.b
}

// createAll makes many objects, 16 at a time, over both handles.
func (e *env) createAll(keys []string, data func(key string) []byte) {
	e.Helper()
	next := make(chan string, len(keys))
	for _, k := range keys {
		next <- k
	}
	close(next)
	together(16, func(i int) {
		for k := range next {
			if _, err := e.handle(i).Create(e.ctx, k, backend.Bytes(data(k))); err != nil {
				e.Errorf("create: %v", err)
				return
			}
		}
	})
	if e.Failed() {
		e.FailNow()
	}
}
