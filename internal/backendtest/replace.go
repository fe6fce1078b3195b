package backendtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/swampd/swampd/backend"
)

var replaceTests = []subtest{
	{"puts new bytes under a new version", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("zero")).Version
		for i, n := range []int{0, 1, 500, 70_000, 3} {
			data := noise(n, uint64(i+1))
			info := e.replace(e.handle(i), "_control/x", data, v)
			obj := e.holds(e.handle(i+1), "_control/x", data)
			if info.Version == "" || info.Version == v || info.Version != obj.Version || info.Size != int64(n) {
				e.Fatalf("replace of %q by %d bytes said Version %q, Size %d; get says %q", v, n, info.Version, info.Size, obj.Version)
			}
			v = info.Version
		}
	}},
	{"both handles see it at once", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("0")).Version
		for i := range e.pick(10, 30, 4) {
			data := fmt.Appendf(nil, "%d", i)
			v = e.replace(e.handle(i), "_control/x", data, v).Version
			if obj := e.holds(e.handle(i+1), "_control/x", data); obj.Version != v {
				e.Fatalf("version %q, replace said %q", obj.Version, v)
			}
		}
	}},
	{"a stale version is ErrChanged and changes nothing", func(e *env) {
		v1 := e.create(e.a, "_control/x", []byte("one")).Version
		v2 := e.replace(e.a, "_control/x", []byte("two"), v1).Version
		v3 := e.replace(e.b, "_control/x", []byte("three"), v2).Version
		for i, v := range []backend.Version{v1, v2} {
			_, err := e.handle(i).Replace(e.ctx, "_control/x", backend.Bytes([]byte("bad")), v)
			e.fails(err, backend.ErrChanged, "replace of a stale version")
			if obj := e.holds(e.handle(i), "_control/x", []byte("three")); obj.Version != v3 {
				e.Fatalf("version %q, was %q", obj.Version, v3)
			}
		}
	}},
	{"the version of another key is ErrChanged and changes nothing", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("x")).Version
		other := e.create(e.a, "_control/y", []byte("y"))
		for n := 0; other.Version == v; n++ {
			other = e.replace(e.a, "_control/y", fmt.Appendf(nil, "y%d", n), other.Version)
		}
		_, err := e.b.Replace(e.ctx, "_control/x", backend.Bytes([]byte("bad")), other.Version)
		e.fails(err, backend.ErrChanged, "replace of another key's version")
		e.holds(e.a, "_control/x", []byte("x"))
	}},
	{"a missing key is ErrChanged and makes nothing", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("x")).Version
		_, err := e.b.Replace(e.ctx, "_control/y", backend.Bytes([]byte("bad")), v)
		e.fails(err, backend.ErrChanged, "replace of a key that never was")
		e.absent("_control/y")
		e.remove(e.a, "_control/x")
		_, err = e.b.Replace(e.ctx, "_control/x", backend.Bytes([]byte("bad")), v)
		e.fails(err, backend.ErrChanged, "replace of a key that was deleted")
		e.absent("_control/x")
	}},
	{"a version never comes back", func(e *env) {
		seen := map[backend.Version]bool{}
		note := func(v backend.Version, what string) backend.Version {
			if seen[v] {
				e.Errorf("%s: the version %q was there before", what, v)
			}
			seen[v] = true
			return v
		}
		v := note(e.create(e.a, "_control/x", []byte("first")).Version, "create")
		for i := range e.pick(3, 10, 2) {
			// Stores whose versions are derived from the content get other bytes.
			data := []byte("same")
			if e.h.ContentVersions {
				data = fmt.Appendf(nil, "other %d", i)
			}
			v = note(e.replace(e.handle(i), "_control/x", data, v).Version, "replace")
			old := v
			e.remove(e.handle(i), "_control/x")
			if e.h.ContentVersions {
				data = fmt.Appendf(nil, "again %d", i)
			}
			v = note(e.create(e.handle(i+1), "_control/x", data).Version, "create after delete")
			_, err := e.handle(i).Replace(e.ctx, "_control/x", backend.Bytes([]byte("bad")), old)
			e.fails(err, backend.ErrChanged, "replace of a version from before the delete")
			_, err = e.handle(i).Get(e.ctx, "_control/x", backend.GetOptions{IfVersion: old})
			e.fails(err, backend.ErrChanged, "get of a version from before the delete")
			e.holds(e.handle(i), "_control/x", data)
		}
	}},
	{"only keys below _control can be replaced", func(e *env) {
		for _, k := range []string{"data/x", "control/x", "commits/1", "x"} {
			v := e.create(e.a, k, []byte("one")).Version
			_, err := e.a.Replace(e.ctx, k, backend.Bytes([]byte("two")), v)
			e.fails(err, backend.ErrBadKey, "replace of "+k)
			e.holds(e.b, k, []byte("one"))
		}
	}},
	{"no version is refused", func(e *env) {
		e.create(e.a, "_control/x", []byte("one"))
		if _, err := e.a.Replace(e.ctx, "_control/x", backend.Bytes([]byte("two")), ""); err == nil {
			e.Error("replace without a version succeeded")
		}
		if _, err := e.a.Replace(e.ctx, "_control/y", backend.Bytes([]byte("two")), ""); err == nil {
			e.Error("replace of a missing key without a version succeeded")
		}
		e.holds(e.a, "_control/x", []byte("one"))
		e.absent("_control/y")
	}},
	{"a bad content is refused and changes nothing", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("one")).Version
		for _, c := range []struct {
			what string
			f    *feed
			more int64
			sum  bool
			want error
		}{
			{"a wrong sha256", &feed{data: noise(5000, 1)}, 0, true, backend.ErrBadContent},
			{"a short content", &feed{data: noise(5000, 1)}, 1, false, backend.ErrBadContent},
			{"a long content", &feed{data: noise(5000, 1)}, -1, false, backend.ErrBadContent},
			{"a failing reader", &feed{data: noise(5000, 1), failAt: 2500, failErr: errSource}, 0, false, errSource},
		} {
			body := c.f.body(true)
			body.Size += c.more
			if c.sum {
				body.SHA256 = sha256.Sum256(nil)
			}
			_, err := e.b.Replace(e.ctx, "_control/x", body, v)
			if !errors.Is(err, c.want) || errors.Is(err, backend.ErrUnknown) {
				e.Errorf("replace by %s: %v; want %q", c.what, errText(err), c.want)
			}
			if err := c.f.check(); err != nil {
				e.Errorf("replace by %s: %v", c.what, err)
			}
			if obj := e.holds(e.a, "_control/x", []byte("one")); obj.Version != v {
				e.Fatalf("after %s: version %q, was %q", c.what, obj.Version, v)
			}
		}
		e.replace(e.b, "_control/x", []byte("two"), v)
		e.holds(e.a, "_control/x", []byte("two"))
	}},
	{"a context cancelled while the content is read leaves the old or the new", func(e *env) {
		v := e.create(e.a, "_control/x", []byte("old")).Version
		for _, n := range []int{1000, 3 << 20} {
			ctx, cancel := context.WithCancel(e.ctx)
			f := &feed{data: noise(n, uint64(n)), gateAt: n / 2, gate: cancel}
			info, err := e.a.Replace(ctx, "_control/x", f.body(true), v)
			cancel()
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, backend.ErrUnknown) {
				e.Errorf("replace with a cancelled context: %v, want %v or %v", err, context.Canceled, backend.ErrUnknown)
			}
			if cerr := f.check(); cerr != nil {
				e.Errorf("replace with a cancelled context: %v", cerr)
			}
			_, obj := e.get(e.b, "_control/x", backend.GetOptions{})
			switch {
			case obj.Version != v && err != nil && !errors.Is(err, backend.ErrUnknown):
				e.Errorf("replace with a cancelled context: %v, and it was done; want %v", err, backend.ErrUnknown)
			case err == nil && obj.Version != info.Version:
				e.Errorf("replace said version %q, get says %q", info.Version, obj.Version)
			case obj.Version == v:
				obj.Version = e.replace(e.b, "_control/x", f.data, v).Version
			}
			e.holds(e.b, "_control/x", f.data)
			v = obj.Version
		}
	}},
	{"many times in a row", func(e *env) {
		v := e.create(e.a, "_control/deep/x", []byte("begin")).Version
		e.create(e.a, "_control/deep/x-1", []byte("neighbour"))
		for i := range e.pick(80, 200, 4) {
			v = e.replace(e.handle(i), "_control/deep/x", fmt.Appendf(nil, "record %d", i), v).Version
		}
		got := e.list(e.b, "_control/", "")
		if len(got) != 2 || got[0].Key != "_control/deep/x" || got[1].Key != "_control/deep/x-1" {
			e.Fatalf("list: %v, want the record and its neighbour", got)
		}
		held, obj := e.get(e.a, "_control/deep/x", backend.GetOptions{})
		if !bytes.HasPrefix(held, []byte("record ")) || obj.Version != v || got[0].Size != obj.Size {
			e.Errorf("holds %q of version %q, listed with %d bytes; want version %q", held, obj.Version, got[0].Size, v)
		}
		e.remove(e.b, "_control/deep/x", "_control/deep/x-1")
		e.sameKeys(e.keys(e.a, "", ""), nil, "after deleting both")
	}},
}
