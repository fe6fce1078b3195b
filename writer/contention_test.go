package writer

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/fs"
	_ "github.com/swampd/swampd/backend/gcs"
	"github.com/swampd/swampd/backend/memory"
	_ "github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/testserver"
)

// Eight processes want to write all the time: at each moment one may, all get
// their turn, and the fence grows by one each time.
func TestContendersWriteOneAtATime(t *testing.T) {
	const contenders, rounds = 8, 20
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		var fences []uint64
		writing := 0
		var wg sync.WaitGroup
		for range contenders {
			wg.Go(func() {
				r := w.log.replica()
				bucket := w.store.Bucket()
				for range rounds {
					h, err := Acquire(t.Context(), bucket, r, w.options(Options{MaxWait: time.Hour}))
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					mu.Lock()
					writing++
					if writing != 1 {
						t.Errorf("%d write at once", writing)
					}
					fences = append(fences, h.Fence())
					mu.Unlock()
					pass(30 * time.Millisecond)
					mu.Lock()
					writing--
					mu.Unlock()
					w.mustClose(h)
				}
			})
		}
		wg.Wait()
		for i, f := range fences {
			if f != uint64(i+1) {
				t.Fatalf("the fences are %v, want 1, 2, 3 …", fences)
			}
		}
		if len(fences) != contenders*rounds {
			t.Errorf("%d turns, want %d", len(fences), contenders*rounds)
		}
		for i, b := range w.log.all() {
			if b.fence != uint64(i+1) {
				t.Fatalf("barrier %d in the log has the fence %d", i, b.fence)
			}
		}
	})
}

// A renewal and a takeover that meet on one version: exactly one wins, and who
// loses knows it.
func TestRenewalAndTakeoverOnOneVersion(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		store := memory.New(nil)
		raceRenewalAndTakeover(t, store.Bucket(), store.Bucket(), 1000)
	})
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		if s.External {
			t.Skip("a thousand rounds are for a server of the tests' own, without a limit of writes to one name")
		}
		raceRenewalAndTakeover(t, s.Open(t), s.Open(t), testserver.Rounds(1000, 150))
	})
}

func raceRenewalAndTakeover(t *testing.T, one, two *backend.Bucket, rounds int) {
	o, err := (*Options)(nil).withDefaults(one)
	if err != nil {
		t.Fatal(err)
	}
	log := (&commitLog{}).replica()
	look := func(c *cell) (*Lease, *sight) {
		t.Helper()
		seen, err := c.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l, err := DecodeLease(seen.data)
		if err != nil {
			t.Fatal(err)
		}
		return l, seen
	}
	holder := newSession(t.Context(), one, o)
	if err := holder.replace(t.Context(), log, nil, &sight{}); err != nil {
		t.Fatal(err)
	}
	renewals := 0
	for round := range rounds {
		bucket := two
		if holder.cell.bucket == two {
			bucket = one
		}
		taker := newSession(t.Context(), bucket, o)
		old, seen := look(&taker.cell)
		var renewed, taken error
		var wg sync.WaitGroup
		start := make(chan struct{})
		wg.Go(func() { <-start; renewed = holder.write(t.Context(), func(*Lease) {}) })
		wg.Go(func() { <-start; taken = taker.replace(t.Context(), log, old, seen) })
		close(start)
		wg.Wait()
		l, _ := look(&taker.cell)
		switch {
		case renewed == nil && errors.As(taken, new(*foreignError)):
			renewals++
			if l.Session != holder.id || l.Fence != old.Fence || l.Beat != old.Beat+1 {
				t.Fatalf("round %d: renewed, and the lease is %+v", round, l)
			}
		case taken == nil && errors.Is(renewed, ErrFenced):
			if l.Session != taker.id || l.Fence != old.Fence+1 {
				t.Fatalf("round %d: taken over, and the lease is %+v", round, l)
			}
			holder = taker
		default:
			t.Fatalf("round %d: the renewal got %v and the takeover %v", round, renewed, taken)
		}
	}
	if renewals == 0 || renewals == rounds {
		t.Errorf("%d renewals won of %d: there was no race", renewals, rounds)
	}
	t.Logf("%d renewals and %d takeovers won", renewals, rounds-renewals)
}

// Who gives the lease back and wants it again at once does not overtake who waits
// for it, however often.
func TestWhoGaveTheLeaseBackGivesOthersATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		var turns []int
		var wg sync.WaitGroup
		for who := range 2 {
			me, r := w.stranger(), w.log.replica()
			wg.Go(func() {
				for range 100 {
					h, err := Acquire(t.Context(), w.store.Bucket(), r, w.options(Options{Process: me}))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					turns = append(turns, who)
					mu.Unlock()
					pass(20 * time.Millisecond)
					w.mustClose(h)
				}
			})
		}
		wg.Wait()
		row, longest := 0, 0
		var had [2]int
		for i, who := range turns {
			if had[who]++; had[1-who] == 100 {
				break // alone
			}
			if row++; i > 0 && who != turns[i-1] {
				row = 1
			}
			longest = max(longest, row)
		}
		if longest > 50 { // chance has its part; without the rule it is always 100
			t.Errorf("%d turns in a row: %v", longest, turns)
		}
		// Where nobody waits, it takes a moment at most; without waiting, none.
		me := w.stranger()
		w.mustClose(w.mustAcquire(Options{Process: me}))
		began := time.Now()
		w.mustClose(w.mustAcquire(Options{Process: me, MaxWait: -1}))
		w.mustClose(w.mustAcquire(Options{Process: me}))
		if took := time.Since(began); took > 3*pollMin {
			t.Errorf("it took %v", took)
		}
	})
}
