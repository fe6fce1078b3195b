package datastore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/testserver"
)

// What becomes of a writer whose process is killed or stopped, over each backend.

func TestAKilledWriterKeepsNobodyWaitingAndLosesNothing(t *testing.T) {
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		a := startActor(t, s, "init")
		a.put("kept", 1)
		a.must(request{Do: "stage", Path: "late", Data: strings.Repeat("late", 100<<10)})
		b := startActor(t, s, "open")
		b.refused(request{Do: "commit", Path: "b"}, "busy")
		a.Kill()
		b.put("b", 2)
		wantPaths(t, s, "b", "kept")
	})
}

// stoppedTTL is short enough to wait for it many times, and farBeyond is an age at
// which a lease of that TTL would be taken over, if nobody could see its holder.
const (
	stoppedTTL = 1500 * time.Millisecond
	farBeyond  = stoppedTTL + actorSkew + 2*time.Second // the TTL, a taker's skew, rounded dates
)

// A writer that stands still keeps its lease, however old that is, and looking at it
// does not wake it. When it goes on, its hold has run out by its own clock; nobody
// took the lease, so it has it anew and commits.
func TestAWriterThatWasStoppedForManyTTLsIsLeftAloneAndGoesOn(t *testing.T) {
	t.Parallel()
	type stopped struct {
		*testserver.Store
		a, b *actor
	}
	var all []stopped
	for _, name := range testserver.Backends { // they grow old together
		s := testserver.NewStore(t, name)
		st := stopped{s, startActor(t, s, "init"), startPatient(t, s)}
		st.a.put("before", 1)
		st.a.must(request{Do: "release"})
		st.a.must(request{Do: "hold", TTL: stoppedTTL})
		if rep := st.a.must(request{Do: "stage", Path: "late", Data: "late"}); rep.Fence != 2 {
			t.Fatalf("%s: the batch has fence %d, want 2", name, rep.Fence)
		}
		st.a.Stop()
		all = append(all, st)
	}
	for _, s := range all {
		a, b := s.a, s.b
		awaitAge(t, b, farBeyond)
		before := leaseBytes(t, s.Store)
		lookAtStopped(t, a, b)
		if after := leaseBytes(t, s.Store); after != before {
			t.Errorf("%s: the lease was\n%s\nand is\n%s", s.Name, before, after)
		}
		a.Continue()
		a.refused(request{Do: "land"}, "expired")
		a.put("after", 3)
		wantPaths(t, s.Store, "after", "before")
	}
}

// Within its TTL it goes on with the hold that it had.
func TestAWriterThatWasStoppedForAMomentGoesOnWithItsHold(t *testing.T) {
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		a, b := startActor(t, s, "init"), startActor(t, s, "open")
		a.put("before", 1)
		a.must(request{Do: "stage", Path: "late", Data: "late"})
		a.Stop()
		lookAtStopped(t, a, b)
		a.Continue()
		if rep := a.must(request{Do: "land"}); rep.Fence != 1 {
			t.Errorf("it goes on with fence %d, want 1", rep.Fence)
		}
		a.must(request{Do: "confirm"})
		a.put("after", 1)
		wantPaths(t, s, "after", "before", "late")
	})
}

// startPatient starts an actor that waits for other writers for longer than a lease
// of that TTL must have stood still.
func startPatient(t *testing.T, s *testserver.Store) *actor {
	t.Helper()
	return start(t, s, request{Do: "open", MaxWait: 2 * stoppedTTL})
}

// awaitAge waits until the lease was not renewed for so long, by the store's clock.
func awaitAge(t *testing.T, by *actor, age time.Duration) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		st := by.must(request{Do: "status"}).Status
		if st.Lease.TTL() != stoppedTTL {
			t.Fatalf("the lease has the TTL %v, want %v", st.Lease.TTL(), stoppedTTL)
		}
		if st.Age > age {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("the lease is %v old after a minute, want %v", st.Age, age)
		}
	}
}

// lookAtStopped: whatever b does, a is left alone and stays stopped.
func lookAtStopped(t *testing.T, a, b *actor) {
	t.Helper()
	st := b.must(request{Do: "status"}).Status
	if st.Standing != "alive" || !strings.Contains(st.Evidence, "its state is T") || st.Takeover >= 0 {
		t.Errorf("lock status: %+v", st)
	}
	a.WantStopped("lock status")
	b.refused(request{Do: "commit", Path: "b"}, "busy")
	a.WantStopped("acquire")
	b.must(request{Do: "update"})
	for _, read := range readNames {
		b.must(request{Do: read, Path: "before"})
		a.WantStopped(read)
	}
}

// A forced release fences by itself, before anybody else has written.
func TestAForcedReleaseFencesAStoppedWriter(t *testing.T) {
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		a, b := startActor(t, s, "init"), startActor(t, s, "open")
		a.put("kept", 1)
		a.must(request{Do: "stage", Path: "late", Data: "late"})
		a.Stop()
		b.must(request{Do: "force"})
		a.Continue()
		a.refused(request{Do: "land"}, "fenced")
		a.put("after", 3)
		wantPaths(t, s, "kept", "after")
	})
}

// A writer that was stopped, fenced by a forced release, replaced by another that
// commits, and continued: whatever it does first then, it changes nothing in lease
// and log, and learns that it was fenced. All that it had acknowledged is there.
func TestAStoppedWriterThatWasReplacedChangesNothing(t *testing.T) {
	first := map[string]func(a *actor){
		"commit":  func(a *actor) { a.refused(request{Do: "land"}, "fenced") },
		"discard": func(a *actor) { a.must(request{Do: "discard"}) },
		"confirm": func(a *actor) { a.refused(request{Do: "confirm"}, "fenced") },
		"renewal": func(a *actor) { a.refused(request{Do: "lost"}, "fenced") },
		"release": func(a *actor) { a.must(request{Do: "release"}) },
		"close":   func(a *actor) { a.do(request{Do: "close"}) },
	}
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		b := startActor(t, s, "init")
		var paths []string
		fence := uint64(0)
		for name, act := range first {
			kept, next, last := name+"/kept", name+"/next", name+"/last"
			paths = append(paths, kept, next, last)
			a, c := startActor(t, s, "open"), startActor(t, s, "open")
			if name == "renewal" { // every 3 s
				a.must(request{Do: "hold", TTL: 9 * time.Second})
			}
			mine := a.put(kept, fence+1)
			a.must(request{Do: "stage", Path: name + "/late", Data: strings.Repeat("late", 100<<10)})
			a.Stop()
			if victim := b.must(request{Do: "force"}); victim.Session != mine.Session {
				t.Fatalf("%s: fenced %s, want %s", name, victim.Session, mine.Session)
			}
			c.put(next, fence+3)
			c.Stop() // so that the lease stands still
			before := picture(t, s, b)

			a.Continue()
			act(a)
			wantPicture(t, s, b, before, name)
			if name != "close" {
				switch name {
				case "discard":
					a.refused(request{Do: "commit", Path: "x"}, "fenced")
				case "commit":
				default:
					a.refused(request{Do: "land"}, "fenced")
				}
				// It does not come back to the hold that it lost.
				a.refused(request{Do: "commit", Path: "x"}, "busy")
				a.do(request{Do: "close"})
			}
			wantPicture(t, s, b, before, name+", then close")
			a.Kill()

			c.Continue()
			c.put(last, fence+3)
			c.must(request{Do: "close"})
			fence += 3
		}
		wantPaths(t, s, paths...)
	})
}

// picture is the lease and the log.
func picture(t *testing.T, s *testserver.Store, reader *actor) []string {
	t.Helper()
	reader.must(request{Do: "update"})
	return append(reader.must(request{Do: "log"}).Log, leaseBytes(t, s))
}

func wantPicture(t *testing.T, s *testserver.Store, reader *actor, want []string, after string) {
	t.Helper()
	if got := picture(t, s, reader); !slices.Equal(got, want) {
		t.Errorf("after %s: lease and log were\n%s\nand are\n%s", after, strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}
