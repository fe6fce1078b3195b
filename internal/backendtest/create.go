package backendtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/swampd/swampd/backend"
)

var createTests = []subtest{
	{"makes exactly these bytes", func(e *env) {
		for i, n := range []int{0, 1, 1000, 65_536, 1 << 20, 1<<20 + 1} {
			key, data := fmt.Sprintf("data/size%d", n), noise(n, uint64(n))
			info := e.create(e.handle(i), key, data)
			obj := e.holds(e.handle(i+1), key, data)
			if info.Size != int64(n) || info.Version == "" || info.Version != obj.Version {
				e.Errorf("%s: create said Size %d, Version %q; get says %d, %q", key, info.Size, info.Version, obj.Size, obj.Version)
			}
		}
	}},
	{"an existing key is ErrExists and stays", func(e *env) {
		v := e.create(e.a, "commits/1", []byte("one")).Version
		for i, text := range []string{"two", "one", "", "longer than one"} {
			_, err := e.handle(i+1).Create(e.ctx, "commits/1", backend.Bytes([]byte(text)))
			e.fails(err, backend.ErrExists, fmt.Sprintf("create of %q over %q", text, "one"))
			if obj := e.holds(e.handle(i), "commits/1", []byte("one")); obj.Version != v {
				e.Fatalf("the version became %q, was %q", obj.Version, v)
			}
		}
	}},
	{"an existing empty object is ErrExists", func(e *env) {
		e.create(e.a, "commits/1", nil)
		_, err := e.b.Create(e.ctx, "commits/1", backend.Bytes([]byte("two")))
		e.fails(err, backend.ErrExists, "create over an empty object")
		e.holds(e.a, "commits/1", nil)
	}},
	{"an existing control record is ErrExists also after a replace", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("one")).Version
		e.replace(e.a, "_control/x", []byte("two"), v)
		_, err := e.b.Create(e.ctx, "_control/x", backend.Bytes([]byte("three")))
		e.fails(err, backend.ErrExists, "create over a replaced record")
		e.holds(e.a, "_control/x", []byte("two"))
	}},
	{"both handles see it at once", func(e *env) {
		for i := range 20 {
			key := fmt.Sprintf("commits/%020d", i)
			_, err := e.handle(i+1).Get(e.ctx, key, backend.GetOptions{})
			e.fails(err, backend.ErrNotFound, "get before the create")
			e.create(e.handle(i), key, []byte(key))
			e.holds(e.handle(i+1), key, []byte(key))
			if got := e.keys(e.handle(i+1), key, ""); len(got) != 1 {
				e.Fatalf("list after the create of %s: %q", key, got)
			}
		}
	}},
	{"a wrong sha256 is ErrBadContent and makes nothing", func(e *env) {
		for _, n := range []int{0, 10, 200_000, e.parts()} {
			body := backend.Bytes(noise(n, 1))
			body.SHA256 = sha256.Sum256([]byte("something else"))
			e.refusesBody("data/bad", body, backend.ErrBadContent, fmt.Sprintf("%d bytes with a wrong sha256", n))
		}
	}},
	{"flipped bytes are ErrBadContent and make nothing", func(e *env) {
		for _, at := range []int{0, 77_777, 99_999} {
			data := noise(100_000, 1)
			body := backend.Bytes(data)
			sent := bytes.Clone(data)
			sent[at] ^= 1
			body.Open = (&feed{data: sent}).open
			e.refusesBody("data/bad", body, backend.ErrBadContent, fmt.Sprintf("content with a flipped bit in byte %d", at))
		}
	}},
	{"a content shorter than its size is ErrBadContent and makes nothing", func(e *env) { e.wrongSizes(-1, -500) }},
	{"a content longer than its size is ErrBadContent and makes nothing", func(e *env) { e.wrongSizes(1, 500, 10_000) }},
	{"an error of the reader is found in the chain and makes nothing", func(e *env) {
		big := &feed{data: noise(e.parts(), 1), failAt: e.parts() * 3 / 4, failErr: errSource}
		e.refusesBody("data/bad", big.body(true), errSource, "a large content that fails")
		for _, n := range []int{0, 1, 50_000, 99_999, 100_000} {
			f := &feed{data: noise(100_000, 1), failAt: n, failErr: errSource}
			e.refusesBody("data/bad", f.body(true), errSource, fmt.Sprintf("content that fails after %d bytes", n))
			f = &feed{data: noise(100_000, 1), failAt: n, failErr: errSource}
			e.refusesBody("data/bad", f.body(false), errSource, fmt.Sprintf("content without sha256 that fails after %d bytes", n))
		}
	}},
	{"an error of opening is found in the chain and makes nothing", func(e *env) {
		body := backend.Bytes([]byte("x"))
		body.Open = func() (io.ReadSeekCloser, error) { return nil, errSource }
		e.refusesBody("data/bad", body, errSource, "content that cannot be opened")
	}},
	{"every reader is closed before it returns", func(e *env) {
		e.create(e.a, "data/taken", []byte("x"))
		for _, c := range []struct {
			key string
			f   *feed
		}{
			{"data/good", &feed{data: noise(e.parts(), 1)}},
			{"data/failing", &feed{data: noise(1000, 1), failAt: 500, failErr: errSource}},
			{"data/wrong", &feed{data: noise(1000, 1)}},
			{"data/taken", &feed{data: noise(1000, 1)}},
		} {
			body := c.f.body(true)
			if c.key == "data/wrong" {
				body.SHA256[0] ^= 1
			}
			_, err := e.a.Create(e.ctx, c.key, body)
			if (err == nil) != (c.key == "data/good") {
				e.Errorf("create of %s: %v", c.key, errText(err))
			}
			// Where the key is taken, a driver need not look at the content.
			if err := c.f.check(); err != nil && (c.key != "data/taken" || c.f.opens.Load() > 0) {
				e.Errorf("create of %s: %v", c.key, err)
			}
		}
	}},
	{"a body can be sent again and several times at once", func(e *env) {
		f := &feed{data: noise(200_000, 1)}
		body := f.body(true)
		together(8, func(i int) {
			if _, err := e.handle(i).Create(e.ctx, fmt.Sprintf("data/copy%d", i), body); err != nil {
				e.Errorf("create: %v", err)
			}
		})
		for i := range 8 {
			e.holds(e.handle(i+1), fmt.Sprintf("data/copy%d", i), f.data)
		}
		if err := f.check(); err != nil {
			e.Error(err)
		}
	}},
	{"readers may deliver a few bytes at a time", func(e *env) {
		for _, n := range []int{1, 7, 4097} {
			f := &feed{data: noise(20_000, uint64(n)), chunk: n}
			if _, err := e.a.Create(e.ctx, fmt.Sprintf("data/chunk%d", n), f.body(true)); err != nil {
				e.Fatal(err)
			}
			e.holds(e.b, fmt.Sprintf("data/chunk%d", n), f.data)
		}
	}},
	{"a content without sha256 is taken by its size", func(e *env) {
		for _, n := range []int{0, 1, 300_000} {
			f := &feed{data: noise(n, 1)}
			key := fmt.Sprintf("data/nosum%d", n)
			if _, err := e.a.Create(e.ctx, key, f.body(false)); err != nil {
				e.Fatal(err)
			}
			e.holds(e.b, key, f.data)
		}
	}},
	{"big bodies arrive whole", func(e *env) {
		e.bigBody("data/big", e.pick(9<<20, 20<<20, 20<<20)+3)
		e.bigBody("data/parts", e.parts())
	}},
	{"the content is copied", func(e *env) {
		data := noise(10_000, 1)
		f := &feed{data: bytes.Clone(data)}
		if _, err := e.a.Create(e.ctx, "data/copy", f.body(true)); err != nil {
			e.Fatal(err)
		}
		clear(f.data)
		got, _ := e.get(e.b, "data/copy", backend.GetOptions{})
		clear(got)
		e.holds(e.b, "data/copy", data)
	}},
	{"keys as long as they may be", func(e *env) {
		seg := strings.Repeat("s", backend.MaxSegment)
		keys := []string{
			"data/" + seg,
			seg + "/" + seg + "/" + strings.Repeat("t", backend.MaxKey-2*backend.MaxSegment-2),
			strings.Repeat("d/", backend.MaxKey/2-1) + "ee",
			"_control/" + seg,
			"data/0.9_z-a.b..c",
			"data/-x",
			"data/_x",
		}
		for _, k := range keys {
			if err := backend.CheckKey(k); err != nil {
				e.Fatal(err)
			}
			v := e.create(e.a, k, []byte(k)).Version
			e.holds(e.b, k, []byte(k))
			if got := e.keys(e.b, k, ""); len(got) != 1 || got[0] != k {
				e.Fatalf("list of %q: %q", k, got)
			}
			if backend.Replaceable(k) {
				e.replace(e.b, k, []byte("new"), v)
				e.holds(e.a, k, []byte("new"))
			}
		}
		e.remove(e.a, keys...)
		e.sameKeys(e.keys(e.b, "", ""), nil, "after deleting them")
	}},
	{"a context cancelled while the content is read leaves nothing or all", func(e *env) {
		for i, n := range []int{1000, 3 << 20, e.parts()} {
			ctx, cancel := context.WithCancel(e.ctx)
			key := fmt.Sprintf("data/cancelled%d", i)
			f := &feed{data: noise(n, 1), gateAt: n / 2, gate: cancel}
			_, err := e.a.Create(ctx, key, f.body(true))
			cancel()
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, backend.ErrUnknown) {
				e.Errorf("create with a cancelled context: %v, want %v or %v", err, context.Canceled, backend.ErrUnknown)
			}
			if cerr := f.check(); cerr != nil {
				e.Errorf("create with a cancelled context: %v", cerr)
			}
			obj, gerr := e.b.Get(e.ctx, key, backend.GetOptions{})
			switch {
			case gerr == nil:
				_ = obj.Body.Close()
				if err != nil && !errors.Is(err, backend.ErrUnknown) {
					e.Errorf("create with a cancelled context: %v, and the object was made; want %v", err, backend.ErrUnknown)
				}
			case errors.Is(gerr, backend.ErrNotFound):
				if err == nil {
					e.Error("create succeeded and made nothing")
				}
				e.create(e.a, key, f.data)
			}
			e.holds(e.b, key, f.data)
		}
	}},
}

var errSource = errors.New("the disk that the content is read from burns")

// refusesBody demands that creating and replacing with body fail with want, and
// that the store is as if they had not been asked.
func (e *env) refusesBody(key string, body backend.Body, want error, what string) {
	e.Helper()
	info, err := e.a.Create(e.ctx, key, body)
	if err == nil {
		e.Fatalf("create of %s: no error, version %q", what, info.Version)
	}
	if !errors.Is(err, want) {
		e.Fatalf("create of %s: %v; want %q in its chain", what, err, want)
	}
	if errors.Is(err, backend.ErrUnknown) {
		e.Fatalf("create of %s: %v, but nothing can have been made", what, err)
	}
	e.absent(key)
	e.create(e.b, key, []byte("good"))
	e.holds(e.a, key, []byte("good"))
	e.remove(e.a, key)
}

// wrongSizes announces a size that is too small by each of by.
func (e *env) wrongSizes(by ...int) {
	e.Helper()
	for _, sum := range []bool{true, false} {
		for _, d := range by {
			body := (&feed{data: noise(10_000, 1)}).body(sum)
			body.Size -= int64(d)
			e.refusesBody("data/bad", body, backend.ErrBadContent, fmt.Sprintf("10000 bytes announced as %d (sha256 given: %t)", body.Size, sum))
		}
	}
}

// bigBody sends a body in pieces of an odd size and reads it back as a stream.
func (e *env) bigBody(key string, size int) {
	e.Helper()
	f := &feed{data: noise(size, 1), chunk: 1_000_003}
	info, err := e.a.Create(e.ctx, key, f.body(true))
	if err != nil {
		e.Fatalf("create of %d bytes: %v", size, err)
	}
	if err := f.check(); err != nil {
		e.Error(err)
	}
	if obj := e.holds(e.b, key, f.data); obj.Version != info.Version {
		e.Errorf("version %q, create said %q", obj.Version, info.Version)
	}
	got, _ := e.get(e.b, key, backend.GetOptions{Offset: -100})
	if !bytes.Equal(got, f.data[size-100:]) {
		e.Errorf("the last 100 of %d bytes differ", size)
	}
	_, err = e.b.Create(e.ctx, key, backend.Bytes([]byte("other")))
	e.fails(err, backend.ErrExists, "create over a big object")
	if e.h.LostAnswers {
		return
	}
	_, err = e.b.Create(e.ctx, key, f.body(true))
	e.fails(err, backend.ErrExists, "create of the same big object again")
}
