package backendtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
)

// calls are all operations of a Bucket, each on a key of its own.
var calls = []struct {
	op, key string
	call    func(ctx context.Context, b *backend.Bucket, key string, v backend.Version) error
}{
	{"get", "data/x", func(ctx context.Context, b *backend.Bucket, key string, _ backend.Version) error {
		_, _, err := read(ctx, b, key, backend.GetOptions{})
		return err
	}},
	{"create", "data/new", func(ctx context.Context, b *backend.Bucket, key string, _ backend.Version) error {
		_, err := b.Create(ctx, key, backend.Bytes([]byte("new")))
		return err
	}},
	{"replace", "_control/x", func(ctx context.Context, b *backend.Bucket, key string, v backend.Version) error {
		_, err := b.Replace(ctx, key, backend.Bytes([]byte("new")), v)
		return err
	}},
	{"delete", "data/x", func(ctx context.Context, b *backend.Bucket, key string, _ backend.Version) error {
		return b.Delete(ctx, []string{key})
	}},
	{"list", "data/", func(ctx context.Context, b *backend.Bucket, key string, _ backend.Version) error {
		for _, err := range b.List(ctx, key, "") {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"clean", "", func(ctx context.Context, b *backend.Bucket, _ string, _ backend.Version) error {
		_, err := b.CleanUploads(ctx, time.Hour)
		return err
	}},
}

// plant makes what calls work on, and returns a check that it is all there.
func (e *env) plant() (backend.Version, func()) {
	e.Helper()
	e.create(e.a, "data/x", []byte("x"))
	v := e.create(e.a, "_control/x", []byte("x")).Version
	return v, func() {
		e.Helper()
		e.holds(e.b, "data/x", []byte("x"))
		e.holds(e.b, "_control/x", []byte("x"))
		e.sameKeys(e.keys(e.b, "", ""), []string{"_control/x", "data/x"}, "list")
	}
}

var errorTests = []subtest{
	{"every error is one Error with operation, store and key", func(e *env) {
		_, err := e.a.Get(e.ctx, "data/nothing", backend.GetOptions{})
		e.describes(err, "get", "data/nothing")
		v := e.create(e.a, "_control/x", []byte("x")).Version
		_, err = e.a.Create(e.ctx, "_control/x", backend.Bytes(nil))
		e.describes(err, "create", "_control/x")
		e.replace(e.a, "_control/x", []byte("y"), v)
		_, err = e.a.Replace(e.ctx, "_control/x", backend.Bytes(nil), v)
		e.describes(err, "replace", "_control/x")
		body := backend.Bytes([]byte("z"))
		body.Size = 2
		_, err = e.a.Create(e.ctx, "data/z", body)
		e.describes(err, "create", "data/z")
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		for _, c := range calls {
			key := c.key
			if c.op == "delete" {
				key = ""
			}
			e.describes(c.call(ctx, e.a, c.key, v), c.op, key)
		}
	}},
	{"bad keys are ErrBadKey and nothing is done", func(e *env) {
		_, intact := e.plant()
		long := strings.Repeat("a/", backend.MaxKey/2) + "a"
		for _, k := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.b", "a/b.", "A", "a b", "a\x00", "a\\b", "ü", "a?b", "_control/a.b", "_control/a.b/c", long, "data/" + strings.Repeat("s", backend.MaxSegment+1)} {
			for _, c := range calls[:4] {
				if c.op == "replace" && k == "" {
					continue
				}
				e.fails(c.call(e.ctx, e.a, k, "1"), backend.ErrBadKey, fmt.Sprintf("%s of the key %q", c.op, k))
			}
			err := e.a.Delete(e.ctx, []string{"data/x", k})
			e.fails(err, backend.ErrBadKey, fmt.Sprintf("delete of a good key and %q", k))
		}
		intact()
	}},
	{"a context that is cancelled before has no effect", func(e *env) {
		v, intact := e.plant()
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		for _, c := range calls {
			err := c.call(ctx, e.a, c.key, v)
			if !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnknown) {
				e.Errorf("%s: %v, want %v and nothing unknown", c.op, errText(err), context.Canceled)
			}
			intact()
		}
	}},
	{"a deadline that is over has no effect", func(e *env) {
		v, intact := e.plant()
		ctx, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Second))
		defer cancel()
		for _, c := range calls {
			err := c.call(ctx, e.a, c.key, v)
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrUnknown) {
				e.Errorf("%s: %v, want %v and nothing unknown", c.op, errText(err), context.DeadlineExceeded)
			}
			intact()
		}
	}},
}

// describes demands that err is an *Error about this operation and key.
func (e *env) describes(err error, op, key string) {
	e.Helper()
	var berr *backend.Error
	if !errors.As(err, &berr) {
		e.Fatalf("%s: %v is no *backend.Error", op, errText(err))
	}
	if berr.Op != op || berr.Key != key || berr.Store != e.a.URL() {
		e.Errorf("%v: Op %q, Key %q, Store %q; want %q, %q, %q", err, berr.Op, berr.Key, berr.Store, op, key, e.a.URL())
	}
	if n := strings.Count(err.Error(), e.a.URL()); e.a.URL() != "" && n != 1 {
		e.Errorf("%q names the store %d times, want once", err, n)
	}
}

var lifeTests = []subtest{
	{"another handle sees what was there before", func(e *env) {
		e.create(e.a, "data/x", []byte("x"))
		v := e.create(e.a, "_control/x", []byte("x")).Version
		c := e.open()
		e.holds(c, "data/x", []byte("x"))
		e.replace(c, "_control/x", []byte("y"), v)
		e.sameKeys(e.keys(c, "", ""), []string{"_control/x", "data/x"}, "list of a new handle")
		e.holds(e.a, "_control/x", []byte("y"))
	}},
	{"calls after Close are ErrClosed and have no effect", func(e *env) {
		v, intact := e.plant()
		if err := e.a.Close(); err != nil {
			e.Fatalf("close: %v", err)
		}
		for _, c := range calls {
			e.fails(c.call(e.ctx, e.a, c.key, v), backend.ErrClosed, c.op+" after Close")
		}
		intact()
		e.a = e.b // the check above looks through b alone; it goes on working
		e.create(e.b, "data/after", nil)
	}},
	{"Close leaves the store and other handles alone", func(e *env) {
		_, intact := e.plant()
		for range 3 {
			c := e.open()
			e.holds(c, "data/x", []byte("x"))
			if err := c.Close(); err != nil {
				e.Fatalf("close: %v", err)
			}
			intact()
		}
	}},
	{"CleanUploads removes nothing fresh", testCleanUploads},
	{"no goroutine is left after Close", testLeaks},
}

// testCleanUploads cleans in the middle of an upload, and beside objects.
func testCleanUploads(e *env) {
	_, intact := e.plant()
	clean := func(b *backend.Bucket, when string) {
		n, err := b.CleanUploads(e.ctx, time.Hour)
		if err != nil || n != 0 {
			e.Errorf("clean-up of what is older than an hour %s: %d removed, %v; want nothing", when, n, err)
		}
	}
	clean(e.a, "with no upload")
	intact()
	for i, n := range []int{1000, e.parts()} {
		key := fmt.Sprintf("data/up%d", i)
		f := &feed{data: noise(n, 1), gateAt: n * 3 / 4, gate: func() { clean(e.b, "in the middle of an upload") }}
		if _, err := e.a.Create(e.ctx, key, f.body(true)); err != nil {
			e.Fatal(err)
		}
		e.holds(e.b, key, f.data)
		e.remove(e.a, key)
	}
	// What is left of failed uploads may go, objects may not, whatever the age.
	f := &feed{data: noise(e.parts(), 1), failAt: e.parts() * 3 / 4, failErr: errSource}
	if _, err := e.a.Create(e.ctx, "data/failed", f.body(true)); !errors.Is(err, errSource) {
		e.Fatalf("create: %v", errText(err))
	}
	if _, err := e.a.CleanUploads(e.ctx, 0); err != nil {
		e.Errorf("clean-up of everything: %v", err)
	}
	intact()
	clean(e.b, "after a clean-up")
}

// testLeaks leaves everything half used, closes, and looks for goroutines.
func testLeaks(e *env) {
	for _, b := range []*backend.Bucket{e.a, e.b} {
		if err := b.Close(); err != nil {
			e.Fatalf("close: %v", err)
		}
	}
	ignore := append([]goleak.Option{goleak.IgnoreCurrent()}, e.h.IgnoreLeaks...)
	a := e.open()
	e.a, e.b = a, a
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprintf("data/%d", i))
	}
	e.createAll(keys, func(string) []byte { return noise(300_000, 1) })
	v := e.create(a, "_control/x", nil).Version
	together(8, func(i int) {
		obj, err := a.Get(e.ctx, keys[i], backend.GetOptions{})
		if err != nil {
			e.Errorf("get: %v", err)
			return
		}
		if _, err := io.CopyN(io.Discard, obj.Body, 1000); err != nil {
			e.Errorf("read: %v", err)
		}
		if err := obj.Body.Close(); err != nil {
			e.Errorf("close: %v", err)
		}
		for range a.List(e.ctx, "data/", "") {
			break
		}
	})
	e.createRaceOn(a, "data/race")
	for _, f := range []*feed{
		{data: noise(1000, 1), failAt: 1, failErr: errSource},
		{data: noise(e.parts(), 1), failAt: e.parts() * 3 / 4, failErr: errSource},
	} {
		if _, err := a.Create(e.ctx, "data/failed", f.body(true)); !errors.Is(err, errSource) {
			e.Errorf("create: %v", errText(err))
		}
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	for _, c := range calls {
		if err := c.call(ctx, a, c.key, v); err == nil {
			e.Errorf("%s with a cancelled context: no error", c.op)
		}
	}
	if err := a.Close(); err != nil {
		e.Errorf("close: %v", err)
	}
	if err := goleak.Find(ignore...); err != nil {
		e.Errorf("after Close: %v", err)
	}
}

func (e *env) createRaceOn(b *backend.Bucket, key string) {
	var wins atomic.Int32
	together(racers, func(i int) {
		if _, err := b.Create(e.ctx, key, backend.Bytes(noise(70_000, uint64(i)))); err == nil {
			wins.Add(1)
		}
	})
	if n := wins.Load(); n > 1 || n == 0 && !e.h.LostAnswers {
		e.Errorf("%d creates of one key succeeded, want 1", n)
	}
}
