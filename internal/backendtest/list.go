package backendtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/swampd/swampd/backend"
)

// traps are keys whose byte order is not the order of a walk through
// directories. Some are prefixes of others; none is the parent of another.
var traps = []string{
	"_control/a", "_control/a-b", "_control/b/c", "_control/b-c",
	"a--", "a-/x", "a-x", "a.b", "a.b-c/d", "a/-", "a/b", "a/b.c", "a/c/d", "a/c-d", "a/c.d/e", "a/c0",
	"a0", "a0/x-", "a00", "aa", "a_", "b", "b-/0", "b-0", "commits/00000000000000000009", "commits/00000000000000000010",
}

func init() {
	// "a0" is there as an object, so nothing lies below it.
	traps = slices.DeleteFunc(traps, func(k string) bool { return k == "a0/x-" })
	slices.Sort(traps)
}

func (e *env) plantTraps() {
	e.Helper()
	shuffled := slices.Clone(traps)
	for i := range shuffled {
		j := (i*7 + 3) % len(shuffled)
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	}
	e.createAll(shuffled, func(k string) []byte { return []byte(k) })
}

// expect is what a listing of keys must show.
func expect(keys []string, prefix, after string) []string {
	var want []string
	for _, k := range keys {
		if strings.HasPrefix(k, prefix) && k > after {
			want = append(want, k)
		}
	}
	return want
}

var listTests = []subtest{
	{"an empty store lists nothing", func(e *env) {
		for _, prefix := range []string{"", "a", "data/"} {
			e.sameKeys(e.keys(e.a, prefix, ""), nil, "list of "+prefix)
			e.sameKeys(e.keys(e.b, prefix, "a/b"), nil, "list of "+prefix)
		}
	}},
	{"byte order of the whole key", func(e *env) {
		e.plantTraps()
		e.sameKeys(e.keys(e.a, "", ""), traps, "list of everything")
		e.sameKeys(e.keys(e.b, "", ""), traps, "list of everything")
	}},
	{"prefix", func(e *env) {
		e.plantTraps()
		for _, p := range []string{"_", "_control/", "_control/b", "a", "a-", "a.", "a/", "a/c", "a/c.", "a/c.d/", "a0", "a0/", "b", "b-", "commits/", "commits/0000000000000000000", "commits/00000000000000000010", "z", "a/b/c", "/"} {
			e.sameKeys(e.keys(e.a, p, ""), expect(traps, p, ""), fmt.Sprintf("list of %q", p))
		}
	}},
	{"after", func(e *env) {
		e.plantTraps()
		afters := append([]string{"!", "0", "a", "a-", "a/", "a/bb", "a/c", "a/c/", "a/c/e", "a0/", "ab", "commits/1", "zz"}, traps...)
		for i, after := range afters {
			e.sameKeys(e.keys(e.handle(i), "", after), expect(traps, "", after), fmt.Sprintf("list after %q", after))
		}
	}},
	{"prefix and after together", func(e *env) {
		e.plantTraps()
		for i, p := range []string{"a", "a/", "a/c", "_control/", "b"} {
			for _, after := range []string{"_control/b-c", "a", "a-x", "a/b", "a/b0", "a/c", "a/c-d", "a0", "b", "b-0", "c"} {
				e.sameKeys(e.keys(e.handle(i), p, after), expect(traps, p, after), fmt.Sprintf("list of %q after %q", p, after))
			}
		}
	}},
	{"pages", testPages},
	{"entries say size and time", func(e *env) {
		e.create(e.a, "data/one", noise(1, 1))
		e.create(e.b, "data/more", noise(100_001, 1))
		v := e.create(e.b, "_control/rec", noise(10, 1)).Version
		e.replace(e.a, "_control/rec", noise(20, 1), v)
		entries := e.list(e.a, "", "")
		if len(entries) != 3 {
			e.Fatalf("list: %v, want 3 entries", entries)
		}
		for _, entry := range entries {
			_, obj := e.get(e.b, entry.Key, backend.GetOptions{})
			if entry.Size != obj.Size {
				e.Errorf("%s: listed with %d bytes, has %d", entry.Key, entry.Size, obj.Size)
			}
			if d := entry.Modified.Sub(obj.Modified); entry.Modified.IsZero() || d.Abs() > slack {
				e.Errorf("%s: listed as of %v, get says %v", entry.Key, entry.Modified, obj.Modified)
			}
		}
	}},
	{"a replaced record is listed once", func(e *env) {
		v := e.create(e.a, "_control/rec", []byte("0")).Version
		for i := range e.pick(5, 12, 3) {
			v = e.replace(e.handle(i), "_control/rec", noise(i+2, 1), v).Version
			entries := e.list(e.handle(i+1), "_control/", "")
			if len(entries) != 1 || entries[0].Key != "_control/rec" || entries[0].Size != int64(i+2) {
				e.Fatalf("after %d replaces: %v, want _control/rec with %d bytes", i+1, entries, i+2)
			}
		}
		e.sameKeys(e.keys(e.a, "", "_control/rec"), nil, "list after the record")
	}},
	{"may be left early", func(e *env) {
		e.plantTraps()
		for n := range 5 {
			var got []string
			for entry, err := range e.a.List(e.ctx, "", "") {
				if err != nil {
					e.Fatal(err)
				}
				if got = append(got, entry.Key); len(got) > n {
					break
				}
			}
			e.sameKeys(got, traps[:n+1], "the beginning of a list")
		}
		e.sameKeys(e.keys(e.a, "", ""), traps, "list of everything")
	}},
	{"shows what stays while others come and go", testListChanging},
	{"refused contents are not listed", func(e *env) {
		for _, n := range []int{100, e.parts()} {
			f := &feed{data: noise(n, 1), failAt: n / 2, failErr: errSource}
			if _, err := e.a.Create(e.ctx, "data/bad", f.body(true)); !errors.Is(err, errSource) {
				e.Fatalf("create: %v", errText(err))
			}
			body := backend.Bytes(noise(n, 1))
			body.SHA256[3] ^= 4
			if _, err := e.a.Create(e.ctx, "_control/bad", body); !errors.Is(err, backend.ErrBadContent) {
				e.Fatalf("create: %v", errText(err))
			}
			e.sameKeys(e.keys(e.b, "", ""), nil, "list after refused creates")
		}
	}},
	{"a cancelled context ends it with one error", testListCancel},
	{"a prefix that begins no key is ErrBadKey", func(e *env) {
		for _, p := range []string{"A", "a b", "a\x00", "ä", "a\\b", "*"} {
			n := 0
			for _, err := range e.a.List(e.ctx, p, "") {
				e.fails(err, backend.ErrBadKey, fmt.Sprintf("list of %q", p))
				n++
			}
			if n != 1 {
				e.Errorf("list of %q yielded %d times, want one error", p, n)
			}
		}
	}},
}

// manyObjects is a store with more objects than go into a page. Some stores take
// long to fill, so the tests that only read share it.
type manyObjects struct {
	t    testing.TB // lives longer than the tests
	open func() *backend.Bucket
	keys []string // sorted
}

// openMany turns the handles of e to that store and returns its keys.
func (e *env) openMany() []string {
	e.Helper()
	m := e.many
	if m.keys != nil {
		e.a, e.b = e.opened(m.open), e.opened(m.open)
		return m.keys
	}
	m.open = e.h.New(m.t)
	e.a, e.b = e.opened(m.open), e.opened(m.open)
	keys := make([]string, e.pick(1100, 2500, 2500))
	for i := range keys {
		// Spread over a few directories, with the trap of "-" against "/"; most keys
		// begin with the one before them, so that pages end between such two.
		k := fmt.Sprintf("%05d%s", i/21, strings.Repeat("0", i/3%7))
		keys[i] = []string{"data/00/", "data/01-", "data/01/"}[i%3] + k
	}
	e.createAll(keys, func(k string) []byte { return []byte(k[len(k)-2:]) })
	slices.Sort(keys)
	m.keys = keys
	return keys
}

// testPages lists more objects than any store puts into one page.
func testPages(e *env) {
	keys := e.openMany()
	n := len(keys)
	e.sameKeys(e.keys(e.a, "", ""), keys, "list of everything")
	for i, after := range []string{keys[0], keys[n/2], keys[n/2] + "x", keys[998], keys[999], keys[1000], keys[n-2], keys[n-1], "data/01", "data/01/"} {
		e.sameKeys(e.keys(e.handle(i), "", after), expect(keys, "", after), "list after "+after)
	}
	for _, p := range []string{"data/00/", "data/01", "data/01-"} {
		e.sameKeys(e.keys(e.b, p, ""), expect(keys, p, ""), "list of "+p)
		e.sameKeys(e.keys(e.b, p, keys[n/3]), expect(keys, p, keys[n/3]), "list of "+p+" after "+keys[n/3])
	}
	for _, stop := range []int{999, 1000, 1001} {
		got := 0
		for _, err := range e.a.List(e.ctx, "", "") {
			if err != nil {
				e.Fatal(err)
			}
			if got++; got == stop {
				break
			}
		}
		if got != stop {
			e.Errorf("a list that is left after %d entries gave %d", stop, got)
		}
	}
}

// testListChanging lists while other objects, between the ones that stay, are
// made and deleted all the time.
func testListChanging(e *env) {
	n := e.pick(300, 1050, 300)
	stay := make([]string, n)
	for i := range stay {
		stay[i] = fmt.Sprintf("data/%05d/stay", i)
	}
	e.createAll(stay, func(string) []byte { return []byte("x") })
	rec := e.create(e.a, "_control/rec", []byte("0")).Version
	stay = append([]string{"_control/rec"}, stay...)

	ctx, stop := context.WithCancel(e.ctx)
	var wg sync.WaitGroup
	var changes atomic.Int32
	for w := range 2 {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i += 7 {
				// Beside, below and between what stays; directories come and go.
				k := []string{"data/%05d/go", "data/%05d-go", "data/%05d0/go", "data/%05d/a/b"}[i%4]
				k = fmt.Sprintf(k, i%n)
				if _, err := e.handle(w).Create(e.ctx, k, backend.Bytes([]byte("y"))); err != nil && !errors.Is(err, backend.ErrExists) && !e.mayHappen(err) {
					e.Errorf("create: %v", err)
					return
				}
				changes.Add(1)
				runtime.Gosched() // or a fast store never shows what goes again
				if err := e.handle(w).Delete(e.ctx, []string{k}); err != nil {
					e.Errorf("delete: %v", err)
					return
				}
			}
		})
	}
	if !e.h.SlowRaces {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				info, err := e.a.Replace(e.ctx, "_control/rec", backend.Bytes(fmt.Appendf(nil, "%d", i)), rec)
				if err != nil {
					e.Errorf("replace: %v", err)
					return
				}
				rec = info.Version
			}
		})
	}
	rounds := e.pick(3, 8, 3)
	for r := 0; !e.Failed() && (r < rounds || r < 20*rounds && changes.Load() < 50); r++ {
		var got []string
		last := ""
		for entry, err := range e.b.List(e.ctx, "", "") {
			if err != nil {
				e.Errorf("list: %v", err)
				break
			}
			if entry.Key <= last {
				e.Errorf("%q comes after %q", entry.Key, last)
			}
			last = entry.Key
			if _, there := slices.BinarySearch(stay, entry.Key); there {
				got = append(got, entry.Key)
			} else if !strings.Contains(entry.Key, "go") && !strings.HasSuffix(entry.Key, "/a/b") {
				e.Errorf("%q is listed and was never made", entry.Key)
			}
		}
		if !slices.Equal(got, stay) {
			e.Errorf("%d of %d objects that stay were listed", len(got), len(stay))
		}
	}
	stop()
	wg.Wait()
}

func testListCancel(e *env) {
	n := len(e.openMany())
	for _, at := range []int{0, 1, 500, 1000} {
		ctx, cancel := context.WithCancel(e.ctx)
		if at == 0 {
			cancel()
		}
		got, failed := 0, 0
		for _, err := range e.a.List(ctx, "", "") {
			if failed > 0 {
				e.Fatal("the list goes on after an error")
			}
			if err != nil {
				failed++
				if !errors.Is(err, context.Canceled) {
					e.Errorf("cancelled after %d entries: %v, want %v", at, err, context.Canceled)
				}
				continue
			}
			if got++; got == at {
				cancel()
			}
		}
		cancel()
		if failed == 0 && (got < n || at == 0) {
			e.Errorf("cancelled after %d entries: it ends after %d of %d without an error", at, got, n)
		}
	}
}
