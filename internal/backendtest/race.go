package backendtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/swampd/swampd/backend"
)

// racers is how many callers meet at one key.
const racers = 8

// attempt is one racer's call and what it was told.
type attempt struct {
	body backend.Body
	data []byte
	info backend.Info
	err  error
}

// race lets the racers write distinct contents to key at once with write, and
// judges the outcome: exactly one winner, whose bytes and version the key holds
// through both handles; the others were told refused.
func (e *env) race(key string, racers int, size func(i int) int, refused error, write func(b *backend.Bucket, body backend.Body) (backend.Info, error)) backend.Version {
	e.Helper()
	tries := make([]attempt, racers)
	e.races++
	for i := range tries {
		// No two contents are ever equal: their versions may be.
		tries[i].data = append(fmt.Appendf(nil, "race %d for %s racer %d: ", e.races, key, i), noise(size(i), uint64(i))...)
		tries[i].body = backend.Bytes(tries[i].data)
	}
	together(racers, func(i int) {
		tries[i].info, tries[i].err = write(e.handle(i), tries[i].body)
	})
	head, _ := e.get(e.a, key, backend.GetOptions{Length: 100})
	owner := slices.IndexFunc(tries, func(a attempt) bool { return bytes.HasPrefix(a.data, head) })
	if owner < 0 || len(head) == 0 {
		e.Fatalf("%s holds %s, which no racer sent", key, brief(head))
	}
	obj := e.holds(e.a, key, tries[owner].data)
	e.holds(e.b, key, tries[owner].data)
	winners := 0
	for i, a := range tries {
		switch {
		case a.err == nil:
			winners++
			if i != owner {
				e.Errorf("racer %d was told that it won %s, which holds the bytes of racer %d", i, key, owner)
			} else if a.info.Version != obj.Version {
				e.Errorf("the winner of %s was told version %q, get says %q", key, a.info.Version, obj.Version)
			}
		case i == owner && !(e.h.LostAnswers && errors.Is(a.err, backend.ErrUnknown)):
			e.Errorf("racer %d was told %q and %s holds its bytes", i, a.err, key)
		case !errors.Is(a.err, refused) && !e.mayHappen(a.err):
			e.Errorf("a loser of the race for %s was told %q, want %q", key, a.err, refused)
		}
	}
	if winners > 1 || winners == 0 && !e.h.LostAnswers {
		e.Errorf("the race for %s has %d winners, want exactly 1", key, winners)
	}
	if e.Failed() {
		e.FailNow()
	}
	return obj.Version
}

// mayHappen says whether the harness allows this error to the loser of a race.
func (e *env) mayHappen(err error) bool {
	return e.h.LostAnswers && errors.Is(err, backend.ErrUnknown) ||
		e.h.SlowRaces && (errors.Is(err, backend.ErrBusy) || errors.Is(err, backend.ErrConflict))
}

var createRaceTests = []subtest{
	{"one winner with small bodies", func(e *env) {
		for r := range e.pick(20, 100, 5) {
			e.createRace(fmt.Sprintf("commits/%020d", r), racers, func(int) int { return 100 })
		}
	}},
	{"one winner with bodies over 64 KiB", func(e *env) {
		for r := range e.pick(5, 25, 3) {
			e.createRace(fmt.Sprintf("data/%020d", r), racers, func(i int) int { return 65_537 + i*50_000 })
		}
	}},
	{"one winner with bodies of several parts", func(e *env) {
		// Few racers: all their bodies are in memory at once.
		e.createRace("data/parts", 2, func(i int) int { return e.parts() + i })
	}},
	{"the same bytes win once", func(e *env) {
		for r := range e.pick(5, 25, 3) {
			key, wins := fmt.Sprintf("commits/%020d", r), atomic.Int32{}
			together(racers, func(i int) {
				_, err := e.handle(i).Create(e.ctx, key, backend.Bytes([]byte("same")))
				if err == nil {
					wins.Add(1)
				} else if !errors.Is(err, backend.ErrExists) && !e.mayHappen(err) {
					e.Errorf("create: %v", err)
				}
			})
			if n := wins.Load(); n > 1 || n == 0 && !e.h.LostAnswers {
				e.Fatalf("%d of %d creates of the same bytes succeeded, want 1", n, racers)
			}
		}
	}},
	{"a half-sent object is absent for readers and lists", testHalfSent},
	{"readers see nothing or all of the winner", func(e *env) {
		for r := range e.pick(3, 10, 2) {
			key := fmt.Sprintf("data/%020d", r)
			stop := e.watch(key, 4)
			e.createRace(key, racers, func(i int) int { return 200_000 + i*10_000 })
			stop()
		}
	}},
	{"creates beside deletes of neighbours succeed", func(e *env) {
		// The last object of a directory goes while another is made in it.
		rounds := e.pick(20, 60, 10)
		together(4, func(i int) {
			for r := range rounds {
				key := fmt.Sprintf("data/dir/sub/%d-%d", i, r)
				if _, err := e.handle(i).Create(e.ctx, key, backend.Bytes([]byte(key))); err != nil {
					e.Errorf("create: %v", err)
					return
				}
				if got, _, err := read(e.ctx, e.handle(i+1), key, backend.GetOptions{}); err != nil || string(got) != key {
					e.Errorf("get after the create of %s: %q, %v", key, got, err)
					return
				}
				if err := e.handle(i).Delete(e.ctx, []string{key}); err != nil {
					e.Errorf("delete: %v", err)
					return
				}
			}
		})
		e.sameKeys(e.keys(e.a, "", ""), nil, "after deleting everything")
	}},
}

func (e *env) createRace(key string, racers int, size func(int) int) {
	e.Helper()
	e.race(key, racers, size, backend.ErrExists, func(b *backend.Bucket, body backend.Body) (backend.Info, error) {
		return b.Create(e.ctx, key, body)
	})
}

// testHalfSent holds a create in the middle of its body while others look.
func testHalfSent(e *env) {
	for i, n := range []int{200_000, e.parts()} {
		key := fmt.Sprintf("data/half%d", i)
		f := &feed{data: noise(n, 1), gateAt: n / 2, gate: func() {
			for j := range 6 {
				b := e.handle(j)
				if _, _, err := read(e.ctx, b, key, backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
					e.Errorf("get while half of %d bytes are sent: %v, want %v", n, errText(err), backend.ErrNotFound)
				}
				for entry, err := range b.List(e.ctx, "", key) {
					e.Errorf("list while half of %d bytes are sent: %q, %v", n, entry.Key, err)
				}
			}
		}}
		if _, err := e.a.Create(e.ctx, key, f.body(true)); err != nil {
			e.Fatal(err)
		}
		e.holds(e.b, key, f.data)
		e.remove(e.a, key)
	}
}

// watch polls key over both handles: nothing first, then one whole object for
// ever. The returned function waits until each reader has seen the object.
func (e *env) watch(key string, readers int) (stop func()) {
	var wg, looked sync.WaitGroup
	ctx, cancel := context.WithCancel(e.ctx)
	looked.Add(readers)
	for i := range readers {
		wg.Go(func() {
			var seen []byte
			first := sync.OnceFunc(looked.Done)
			defer first()
			for n := 0; ; first() {
				got, _, err := read(e.ctx, e.handle(i), key, backend.GetOptions{})
				switch {
				case errors.Is(err, backend.ErrNotFound) && seen == nil:
				case err != nil:
					e.Errorf("get of %s while it is made: %v (seen before: %s)", key, err, brief(seen))
					return
				case seen != nil && !bytes.Equal(seen, got):
					e.Errorf("%s held %s and then %s", key, brief(seen), brief(got))
					return
				case !strings.Contains(string(got[:min(len(got), 100)]), "for "+key+" "):
					e.Errorf("%s holds %s, which no racer sent", key, brief(got))
					return
				default:
					seen = got
				}
				if ctx.Err() != nil {
					if n++; seen != nil || n > 3 {
						break
					}
				}
			}
			e.sentBytes(key, seen)
		})
	}
	looked.Wait()
	end := sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	e.Cleanup(end) // where the race ends the test
	return func() {
		end()
		if e.Failed() {
			e.FailNow()
		}
	}
}

// sentBytes checks that what a reader saw is a whole body of some racer.
func (e *env) sentBytes(key string, got []byte) {
	head, body, _ := bytes.Cut(got, []byte(": "))
	var i int
	if _, err := fmt.Sscanf(string(head), fmt.Sprintf("race %d for %s racer %%d", e.races, key), &i); err != nil {
		e.Errorf("readers of %s saw %s last: %v", key, brief(got), err)
		return
	}
	if !bytes.Equal(body, noise(len(body), uint64(i))) {
		e.Errorf("readers of %s saw %d bytes of racer %d that are not what it sent", key, len(got), i)
	}
}

var replaceRaceTests = []subtest{
	{"one winner for each version", func(e *env) {
		key := "_control/race"
		v := e.create(e.a, key, []byte("begin")).Version
		for range e.pick(15, 60, 3) {
			v = e.replaceRace(key, v, func(int) int { return 50 })
		}
	}},
	{"one winner with bodies over 64 KiB", func(e *env) {
		key := "_control/race"
		v := e.create(e.a, key, []byte("begin")).Version
		for range e.pick(5, 20, 2) {
			v = e.replaceRace(key, v, func(i int) int { return 65_537 + i*30_000 })
		}
	}},
	{"a counter loses no increment", testCounter},
	{"readers see whole records and never an older one", testReplaceReaders},
	{"create and delete against replace", testChurn},
}

func (e *env) replaceRace(key string, old backend.Version, size func(int) int) backend.Version {
	e.Helper()
	return e.race(key, racers, size, backend.ErrChanged, func(b *backend.Bucket, body backend.Body) (backend.Info, error) {
		return b.Replace(e.ctx, key, body, old)
	})
}

// testCounter lets workers append their marks to one record. Each mark must be
// there exactly once, and no version may have two successors.
func testCounter(e *env) {
	const key = "_control/counter"
	workers, marks := racers, e.pick(5, 20, 2)
	if e.h.SlowRaces {
		workers = 4
	}
	e.create(e.a, key, []byte("begin"))
	var mu sync.Mutex
	next := map[backend.Version]string{}
	together(workers, func(i int) {
		for m := range marks {
			mark := fmt.Sprintf(" %d:%d", i, m)
			for tries := 0; ; tries++ {
				held, obj, err := read(e.ctx, e.handle(i), key, backend.GetOptions{})
				if err != nil {
					e.Errorf("reading the counter: %v", err)
					return
				}
				if bytes.Contains(append(held, ' '), []byte(mark+" ")) {
					if tries == 0 {
						e.Errorf("the mark%s is there before it was made", mark)
					}
					break // an answer was lost
				}
				_, err = e.handle(i).Replace(e.ctx, key, backend.Bytes(append(held, mark...)), obj.Version)
				if err == nil {
					mu.Lock()
					if other, taken := next[obj.Version]; taken {
						e.Errorf("version %q was replaced by%s and by%s", obj.Version, other, mark)
					}
					next[obj.Version] = mark
					mu.Unlock()
					break
				}
				if !errors.Is(err, backend.ErrChanged) && !e.mayHappen(err) {
					e.Errorf("replacing the counter: %v", err)
					return
				}
			}
		}
	})
	held, _ := e.get(e.b, key, backend.GetOptions{})
	count := map[string]int{}
	for _, mark := range strings.Fields(strings.TrimPrefix(string(held), "begin")) {
		count[mark]++
	}
	for i := range workers {
		for m := range marks {
			if mark := fmt.Sprintf("%d:%d", i, m); count[mark] != 1 {
				e.Errorf("the mark %s is there %d times, want once", mark, count[mark])
			}
		}
	}
}

// numbered is a record that says its number and is as long and as noisy as the
// number demands, so that a mixture of two shows.
func numbered(n uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, n)
	return append(b, noise(66_000+int(n%7)*9_000, n)...)
}

func testReplaceReaders(e *env) {
	const key = "_control/numbered"
	v := e.create(e.a, key, numbered(0)).Version
	done := make(chan struct{})
	var wg sync.WaitGroup
	var reads atomic.Int32
	for i := range 4 {
		wg.Go(func() {
			for last, more := uint64(0), true; more; {
				select {
				case <-done:
					more = false
				default:
				}
				got, obj, err := read(e.ctx, e.handle(i), key, backend.GetOptions{})
				if err != nil || len(got) < 8 {
					e.Errorf("get while it is replaced: %d bytes, %v", len(got), err)
					return
				}
				n := binary.BigEndian.Uint64(got)
				if n < last {
					e.Errorf("record %d was read after record %d", n, last)
				}
				if !bytes.Equal(got, numbered(n)) || obj.Size != int64(len(got)) {
					e.Errorf("record %d of %d bytes is torn: %s", n, obj.Size, brief(got))
					return
				}
				last = n
				reads.Add(1)
			}
		})
	}
	rounds := e.pick(20, 60, 4)
	for n := 0; n < rounds || n < 20*rounds && reads.Load() < 40; n++ {
		info, err := e.handle(n).Replace(e.ctx, key, backend.Bytes(numbered(uint64(n+1))), v)
		if err != nil {
			e.Errorf("replace: %v", err)
			break
		}
		v = info.Version
	}
	close(done)
	wg.Wait()
}

// testChurn deletes and creates a record again while others replace it: a
// replace that succeeds must have met the version that it named.
func testChurn(e *env) {
	const key = "_control/churn"
	var mu sync.Mutex
	next := map[backend.Version]int{}
	rounds := e.pick(10, 40, 2)
	together(4, func(i int) {
		for r := range rounds {
			data := []byte(fmt.Sprintf("worker %d round %d", i, r))
			if i == 0 {
				if err := e.a.Delete(e.ctx, []string{key}); err != nil {
					e.Errorf("delete: %v", err)
				}
				continue
			}
			_, obj, err := read(e.ctx, e.handle(i), key, backend.GetOptions{})
			switch {
			case errors.Is(err, backend.ErrNotFound):
				if _, err := e.handle(i).Create(e.ctx, key, backend.Bytes(data)); err != nil && !errors.Is(err, backend.ErrExists) && !e.mayHappen(err) {
					e.Errorf("create: %v", err)
				}
			case err != nil:
				e.Errorf("get: %v", err)
			default:
				_, err := e.handle(i).Replace(e.ctx, key, backend.Bytes(data), obj.Version)
				if err == nil {
					mu.Lock()
					next[obj.Version]++
					mu.Unlock()
				} else if !errors.Is(err, backend.ErrChanged) && !e.mayHappen(err) {
					e.Errorf("replace: %v", err)
				}
			}
		}
	})
	for v, n := range next {
		if n > 1 {
			e.Errorf("version %q was replaced %d times", v, n)
		}
	}
	e.remove(e.a, key)
	e.absent(key)
}
