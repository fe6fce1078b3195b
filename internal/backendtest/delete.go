package backendtest

import (
	"fmt"

	"github.com/swampd/swampd/backend"
)

var deleteTests = []subtest{
	{"removes many keys, missing ones included", func(e *env) {
		n := e.pick(300, 750, 750) // and as many that are missing
		var all, kept, gone []string
		for i := range n {
			k := fmt.Sprintf("data/%05d", i)
			gone = append(gone, k, fmt.Sprintf("data/missing%05d", i))
			all = append(all, k)
			if i%50 == 0 {
				kept = append(kept, k+"x")
			}
		}
		e.createAll(append(all, kept...), func(k string) []byte { return []byte(k) })
		e.remove(e.a, gone...)
		for i := range 2 {
			e.sameKeys(e.keys(e.handle(i), "", ""), kept, "after deleting")
		}
		e.absent(all[0])
		e.absent(all[n-1])
	}},
	{"a missing key is no error", func(e *env) {
		e.remove(e.a, "data/never", "_control/never", "never")
		e.create(e.a, "data/x", nil)
		e.remove(e.b, "data/x")
		e.remove(e.a, "data/x")
		e.remove(e.b, "data/x", "data/x")
		e.absent("data/x")
	}},
	{"no keys is no error", func(e *env) {
		e.create(e.a, "data/x", nil)
		e.remove(e.a)
		e.holds(e.a, "data/x", nil)
	}},
	{"both handles see it at once", func(e *env) {
		for i := range 10 {
			k := fmt.Sprintf("commits/%d", i)
			e.create(e.handle(i), k, []byte("x"))
			e.holds(e.handle(i+1), k, []byte("x"))
			e.remove(e.handle(i), k)
			e.absent(k)
		}
	}},
	{"leaves neighbours alone", func(e *env) {
		keep := []string{"_control/rec-1", "_control/rec0", "data/a-b", "data/a.b", "data/a0", "data/ab", "data/b/c", "dataa/b"}
		gone := []string{"_control/rec", "data/a/b", "data/b/d"}
		e.createAll(append(gone, keep...), func(k string) []byte { return []byte(k) })
		e.remove(e.b, append(gone, "data/a", "data", "dat", "_control/re", "data/b")...)
		e.sameKeys(e.keys(e.a, "", ""), keep, "after deleting")
		for _, k := range keep {
			e.holds(e.b, k, []byte(k))
		}
	}},
	{"the key can be created again", func(e *env) {
		for i := range 3 {
			for _, k := range []string{"commits/1", "_control/x"} {
				data := fmt.Appendf(nil, "%s %d", k, i)
				v := e.create(e.handle(i), k, data).Version
				if backend.Replaceable(k) {
					data = append(data, '+')
					e.replace(e.handle(i), k, data, v)
				}
				e.holds(e.handle(i+1), k, data)
				e.remove(e.handle(i+1), k)
				e.absent(k)
			}
		}
	}},
}
