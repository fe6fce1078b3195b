package backendtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"

	"github.com/swampd/swampd/backend"
)

var getTests = []subtest{
	{"a missing key is ErrNotFound", func(e *env) {
		_, err := e.a.Get(e.ctx, "data/nothing", backend.GetOptions{})
		e.fails(err, backend.ErrNotFound, "get of a key that holds nothing")
		e.create(e.a, "data/some", []byte("x"))
		_, err = e.a.Get(e.ctx, "data/some/more", backend.GetOptions{})
		e.fails(err, backend.ErrNotFound, "get of a key below an object")
		_, err = e.a.Get(e.ctx, "data", backend.GetOptions{})
		e.fails(err, backend.ErrNotFound, "get of the parent of an object")
		_, err = e.a.Get(e.ctx, "data/som", backend.GetOptions{Offset: 3, Length: 4})
		e.fails(err, backend.ErrNotFound, "get of a range of a key that holds nothing")
	}},
	{"the zero options read the whole object", func(e *env) {
		data := noise(100_000, 1)
		e.create(e.a, "data/whole", data)
		for i := range 2 {
			obj := e.holds(e.handle(i), "data/whole", data)
			if obj.Offset != 0 || obj.Length != obj.Size {
				e.Errorf("Offset, Length = %d, %d, want 0, %d", obj.Offset, obj.Length, obj.Size)
			}
		}
	}},
	{"ranges", testRanges},
	{"ranges of an empty object are empty", func(e *env) {
		e.create(e.a, "data/empty", nil)
		for _, opts := range []backend.GetOptions{{}, {Length: 5}, {Offset: 5}, {Offset: -5}, {Offset: -5, Length: 2}, {Offset: 3, Length: 3}} {
			data, obj := e.get(e.b, "data/empty", opts)
			if len(data) != 0 || obj.Size != 0 || obj.Offset != 0 || obj.Length != 0 {
				e.Errorf("%+v: %q, Size %d, Offset %d, Length %d; want nothing at all", opts, data, obj.Size, obj.Offset, obj.Length)
			}
		}
	}},
	{"a negative length is refused", func(e *env) {
		e.create(e.a, "data/x", []byte("x"))
		if _, err := e.a.Get(e.ctx, "data/x", backend.GetOptions{Length: -1}); err == nil {
			e.Error("no error")
		}
	}},
	{"IfVersion reads that version", func(e *env) {
		data := []byte("0123456789")
		v := e.create(e.a, "_control/pin", data).Version
		got, obj := e.get(e.b, "_control/pin", backend.GetOptions{IfVersion: v})
		if !bytes.Equal(got, data) || obj.Version != v {
			e.Errorf("got %q of version %q, want %q of %q", got, obj.Version, data, v)
		}
		if got, _ = e.get(e.b, "_control/pin", backend.GetOptions{IfVersion: v, Offset: 2, Length: 3}); string(got) != "234" {
			e.Errorf("a range of that version: %q, want 234", got)
		}
	}},
	{"IfVersion of another version is ErrChanged", func(e *env) {
		old := e.create(e.a, "_control/pin", []byte("one")).Version
		e.replace(e.a, "_control/pin", []byte("two"), old)
		_, err := e.b.Get(e.ctx, "_control/pin", backend.GetOptions{IfVersion: old})
		e.fails(err, backend.ErrChanged, "get of a version that was replaced")
		_, err = e.b.Get(e.ctx, "_control/pin", backend.GetOptions{IfVersion: old, Offset: 1, Length: 1})
		e.fails(err, backend.ErrChanged, "get of a range of a version that was replaced")
	}},
	{"IfVersion of a key that holds nothing is ErrChanged", func(e *env) {
		old := e.create(e.a, "data/pin", []byte("one")).Version
		_, err := e.b.Get(e.ctx, "data/never", backend.GetOptions{IfVersion: old})
		e.fails(err, backend.ErrChanged, "get of a version of a key that never was")
		e.remove(e.a, "data/pin")
		_, err = e.b.Get(e.ctx, "data/pin", backend.GetOptions{IfVersion: old})
		e.fails(err, backend.ErrChanged, "get of a version of a key that was deleted")
	}},
	{"IfVersion holds for a range beyond the end", func(e *env) {
		old := e.create(e.a, "_control/pin", []byte("one, and long")).Version
		v := e.replace(e.a, "_control/pin", []byte("two"), old).Version
		for _, opts := range []backend.GetOptions{{Offset: 3}, {Offset: 100}, {Offset: 100, Length: 1}} {
			opts.IfVersion = v
			if got, obj := e.get(e.b, "_control/pin", opts); len(got) != 0 || obj.Size != 3 || obj.Version != v {
				e.Errorf("%+v: %q, Size %d, Version %q; want nothing of 3 bytes", opts, got, obj.Size, obj.Version)
			}
			opts.IfVersion = old
			_, err := e.b.Get(e.ctx, "_control/pin", opts)
			e.fails(err, backend.ErrChanged, "get beyond the end of a version that was replaced")
			_, err = e.b.Get(e.ctx, "_control/never", opts)
			e.fails(err, backend.ErrChanged, "get beyond the end of a version of a key that never was")
		}
	}},
	{"a body whose context ends is whole or fails", func(e *env) {
		data := noise(e.parts(), 1)
		e.create(e.a, "data/big", data)
		for _, n := range []int64{0, 1, 100_000} {
			ctx, cancel := context.WithCancel(e.ctx)
			obj, err := e.b.Get(ctx, "data/big", backend.GetOptions{})
			if err != nil {
				e.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, obj.Body, n); err != nil {
				e.Fatal(err)
			}
			cancel()
			m, err := io.Copy(io.Discard, obj.Body)
			_ = obj.Body.Close() // may say the same once more
			if err == nil && n+m != int64(len(data)) || err != nil && !errors.Is(err, context.Canceled) {
				e.Errorf("cancelled after %d bytes: %d more, %v; want all, or %v", n, m, errText(err), context.Canceled)
			}
		}
		e.holds(e.b, "data/big", data)
	}},
	{"a body stays one object while the key is replaced and deleted", func(e *env) {
		one, two := noise(3<<20, 1), noise(3<<20+5, 2)
		v1 := e.create(e.a, "_control/old", one).Version
		first, err := e.b.Get(e.ctx, "_control/old", backend.GetOptions{})
		if err != nil {
			e.Fatal(err)
		}
		defer first.Body.Close()
		v2 := e.replace(e.a, "_control/old", two, v1).Version
		second, err := e.b.Get(e.ctx, "_control/old", backend.GetOptions{})
		if err != nil {
			e.Fatal(err)
		}
		defer second.Body.Close()
		e.remove(e.a, "_control/old")
		for _, c := range []struct {
			obj  *backend.Object
			data []byte
			v    backend.Version
		}{{first, one, v1}, {second, two, v2}} {
			got, err := io.ReadAll(c.obj.Body)
			if err != nil || !bytes.Equal(got, c.data) || c.obj.Version != c.v || c.obj.Size != int64(len(c.data)) {
				e.Errorf("version %q of %d bytes delivers %s (%v), want version %q, %s", c.obj.Version, c.obj.Size, brief(got), err, c.v, brief(c.data))
			}
		}
	}},
	{"a body that is closed early harms nothing", func(e *env) {
		data := noise(2<<20, 1)
		e.create(e.a, "data/big", data)
		for i := range 20 {
			obj, err := e.a.Get(e.ctx, "data/big", backend.GetOptions{})
			if err != nil {
				e.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, obj.Body, int64(i)*1000); err != nil {
				e.Fatal(err)
			}
			if err := obj.Body.Close(); err != nil {
				e.Errorf("closing a body after %d bytes: %v", i*1000, err)
			}
		}
		e.holds(e.a, "data/big", data)
	}},
	{"many bodies at once do not mix", func(e *env) {
		data := noise(300_000, 1)
		e.create(e.a, "data/shared", data)
		together(16, func(i int) {
			off := i * 10_000
			got, _, err := read(e.ctx, e.handle(i), "data/shared", backend.GetOptions{Offset: int64(off), Length: 100_000})
			if err != nil || !bytes.Equal(got, data[off:off+100_000]) {
				e.Errorf("at %d: %s (%v), want %s", off, brief(got), err, brief(data[off:off+100_000]))
			}
		})
	}},
}

func testRanges(e *env) {
	data := noise(10_000, 1)
	e.create(e.a, "data/ranges", data)
	for _, c := range []struct {
		offset, length int64
		from, to       int64
	}{
		{0, 0, 0, 10_000},
		{0, 1, 0, 1},
		{0, 10_000, 0, 10_000},
		{0, 20_000, 0, 10_000},
		{1, 0, 1, 10_000},
		{4_000, 1_000, 4_000, 5_000},
		{9_999, 0, 9_999, 10_000},
		{9_999, 1, 9_999, 10_000},
		{9_000, 5_000, 9_000, 10_000},
		{10_000, 0, 10_000, 10_000},
		{10_000, 7, 10_000, 10_000},
		{30_000, 0, 10_000, 10_000},
		{30_000, 7, 10_000, 10_000},
		{-1, 0, 9_999, 10_000},
		{-16, 0, 9_984, 10_000},
		{-16, 4, 9_984, 9_988},
		{-16, 100, 9_984, 10_000},
		{-10_000, 0, 0, 10_000},
		{-10_001, 0, 0, 10_000},
		{-30_000, 0, 0, 10_000},
		{-30_000, 5, 0, 5},
		{5, math.MaxInt64, 5, 10_000},
		{math.MaxInt64, 0, 10_000, 10_000},
		{math.MaxInt64, math.MaxInt64, 10_000, 10_000},
		{math.MinInt64, 0, 0, 10_000},
		{math.MinInt64, 5, 0, 5},
	} {
		got, obj, err := read(e.ctx, e.b, "data/ranges", backend.GetOptions{Offset: c.offset, Length: c.length})
		if err != nil {
			e.Errorf("offset %d, length %d: %v", c.offset, c.length, err)
			continue
		}
		if !bytes.Equal(got, data[c.from:c.to]) {
			e.Errorf("offset %d, length %d: %s, want bytes %d to %d", c.offset, c.length, brief(got), c.from, c.to)
		}
		if obj.Offset != c.from || obj.Length != c.to-c.from || obj.Size != 10_000 {
			e.Errorf("offset %d, length %d: Offset, Length, Size = %d, %d, %d, want %d, %d, 10000", c.offset, c.length, obj.Offset, obj.Length, obj.Size, c.from, c.to-c.from)
		}
	}
	// The end of a body is io.EOF, again and again.
	obj, err := e.a.Get(e.ctx, "data/ranges", backend.GetOptions{Offset: -3})
	if err != nil {
		e.Fatal(err)
	}
	defer obj.Body.Close()
	if _, err := io.ReadFull(obj.Body, make([]byte, 3)); err != nil {
		e.Fatal(err)
	}
	for range 2 {
		if n, err := obj.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			e.Errorf("read at the end: %d, %v, want 0, EOF", n, err)
		}
	}
}
