package writer

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/faults"
)

// judged is a process whose judge always says the same.
func (w *world) judged(s Standing) *Process {
	return w.process(&Identity{Hostname: "here"}, func(*Identity, *Guard, *Identity) Verdict {
		return Verdict{s, "so it is said"}
	})
}

func TestAHolderThatIsGoneIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(5)) // just now
		h := w.mustAcquire(Options{Process: w.judged(Gone), MaxWait: -1, Boot: func() time.Duration { return time.Hour }})
		defer w.mustClose(h)
		if took := time.Since(w.born); h.Fence() != 6 || took != 0 {
			t.Errorf("fence %d after %v, want 6 at once", h.Fence(), took)
		}
	})
}

// No age and no silence makes a holder that is alive one that may be replaced.
func TestAHolderThatIsAliveIsNeverReplacedByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(5))
		w.storeClock(24*time.Hour, 1)
		_, err := w.acquire(Options{Process: w.judged(Alive), MaxWait: 5 * time.Minute})
		wantErr(t, err, ErrBusy)
		if took := time.Since(w.born); took != 5*time.Minute {
			t.Errorf("gave up after %v", took)
		}
		for _, want := range []string{"it is alive (so it is said)", "wait for it to end, or stop it"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		if strings.Contains(err.Error(), "force") || strings.Contains(err.Error(), "replaced") {
			t.Errorf("%q suggests to replace a live writer", err)
		}
	})
}

func TestTheBusyErrorOfAnUnknownHolderNamesTheForcedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(5))
		_, err := w.acquire(Options{Process: w.judged(Unknown), MaxWait: -1})
		wantErr(t, err, ErrBusy)
		for _, want := range []string{"cannot be seen from here (so it is said)", "can be replaced in 40s", "swampd lock release --force"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	})
}

// Who waits for a process that can be seen learns of its end from the system, not
// from the store, which is asked more and more seldom.
func TestTheEndOfAHolderIsSeenWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(dead(5))
		var ended atomic.Bool
		p := w.process(&Identity{Hostname: "here"}, func(*Identity, *Guard, *Identity) Verdict {
			if ended.Load() {
				return Verdict{Standing: Gone}
			}
			return Verdict{Standing: Alive}
		})
		f := w.faulty()
		time.AfterFunc(30*time.Second, func() { ended.Store(true) })
		h, err := w.acquireOn(f, Options{Process: p})
		if err != nil {
			t.Fatal(err)
		}
		defer w.mustClose(h)
		if late := time.Since(w.born) - 30*time.Second; late > pollMin {
			t.Errorf("noticed %v late, want %v at most", late, pollMin)
		}
		if n := f.Counts().Get; n > 60 {
			t.Errorf("the store was read %d times in 30 s", n)
		}
	})
}

// Rule R12, and what it does not cover: a session that this process holds, a
// process that only looks like this one, and a copy of this machine.
func TestALeaseOfThisProcessWithoutASessionIsFree(t *testing.T) {
	me := Self()
	other := *me
	other.PID++
	part := *me
	part.BootID = ""
	for name, c := range map[string]struct {
		id    *Identity
		guard *guardSight
		free  bool
	}{
		"this process":                          {me, nil, true},
		"another pid":                           {&other, nil, false},
		"a part that is not known":              {&part, nil, false},
		"no identity":                           {nil, nil, false},
		"this process, its guard is free":       {me, &guardSight{free: true}, true},
		"a copy of it, whose guard is not free": {me, &guardSight{words: "it is not here"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := dead(5)
				l.Identity = c.id
				p := w.process(me, func(*Identity, *Guard, *Identity) Verdict { return Verdict{} })
				if c.guard != nil {
					l.Guard = &Guard{Path: "/guard", Inode: 1, ID: "x"}
					p.guard = func(*Guard) guardSight { return *c.guard }
				}
				w.put(l)
				h, err := w.acquire(Options{Process: p, MaxWait: -1})
				if !c.free {
					wantErr(t, err, ErrBusy)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if h.Fence() != 6 {
					t.Errorf("fence %d, want 6", h.Fence())
				}
				w.mustClose(h)
			})
		})
	}
}

// A live holder of an equal hostname in another pid namespace, whose pid nobody
// has here, and one of the same namespace number on another machine: both are
// unknown, so time decides, and a live one renews in time.
func TestALookalikeIsWaitedForByTime(t *testing.T) {
	for name, change := range map[string]func(*Identity){
		"another pid namespace": func(i *Identity) { i.PIDNamespace = "pid:[1]" },
		"another boot":          func(i *Identity) { i.BootID = uuid.NewString() },
		"another time namespace": func(i *Identity) {
			i.TimeNamespace = "time:[1]"
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				id := *Self()
				id.PID = 1 << 30
				change(&id)
				h := w.mustAcquire(Options{Process: w.process(&id, nil)})
				_, err := w.acquire(Options{Process: This(), MaxWait: 5 * time.Minute})
				wantErr(t, err, ErrBusy)
				if h.Err() != nil {
					t.Fatal(h.Err())
				}
				w.mustClose(h)
				l := dead(2)
				l.Identity = &id
				w.put(l)
				began := time.Now()
				h2 := w.mustAcquire(Options{Process: This()})
				if took := time.Since(began); took <= 40*time.Second || took > 42*time.Second {
					t.Errorf("taken after %v, want TTL and skew, 40s", took)
				}
				w.mustClose(h2)
			})
		})
	}
}

// A forced release does not ask the judge, and loses no race with renewals.
func TestAForcedReleaseTakesFromALiveHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{Command: "swampd put x"})
		f := w.faulty()
		// The holder renews between each look and the write, three times.
		for n := range 3 {
			f.Add(faults.Rule{Ops: writes, Nth: n + 1, Do: faults.Delay(11 * time.Second)})
		}
		victim, err := ForceRelease(t.Context(), f.Bucket(), w.log.replica(), w.options(Options{Process: w.judged(Alive)}))
		if err != nil {
			t.Fatal(err)
		}
		if victim == nil || victim.Session != h.Session() || victim.Command != "swampd put x" {
			t.Errorf("fenced %+v", victim)
		}
		before := w.bytes()
		if l := w.lease(); !l.Released || l.Fence != h.Fence()+1 {
			t.Errorf("the lease is %+v", l)
		}
		if b := w.log.all(); b[len(b)-1].fence != h.Fence()+1 {
			t.Errorf("the barriers are %v", b)
		}
		<-h.Context().Done()
		wantErr(t, h.Err(), ErrFenced)
		wantErr(t, h.Confirm(t.Context()), ErrFenced)
		wantErr(t, h.Close(t.Context()), ErrFenced)
		if string(w.bytes()) != string(before) {
			t.Errorf("the victim changed the lease to %s", w.bytes())
		}
	})
}

func TestInspectSaysWhatANewWriterWouldDo(t *testing.T) {
	promise := &Adoption{BeatMillis: 250, SelfFenceMillis: 750, SilenceMillis: 1000}
	for name, c := range map[string]struct {
		lease    func(l *Lease)
		age      time.Duration
		says     Standing
		takeover time.Duration
		plan     string
	}{
		"nobody":   {nil, 0, Unknown, 0, "take it at once: nobody has written yet"},
		"released": {func(l *Lease) { l.Released = true }, 0, Alive, 0, "take it at once: it was given back"},
		"gone":     {func(*Lease) {}, 0, Gone, 0, "take it at once: its process is gone"},
		"alive":    {func(*Lease) {}, time.Hour, Alive, -1, "wait for it to be given back: its process is alive"},
		"unknown":  {func(*Lease) {}, 10 * time.Second, Unknown, 30 * time.Second, "take it in 30s, if it is not renewed until then: whether its process lives is not known"},
		"unknown and old": {func(*Lease) {}, time.Hour, Unknown, 15 * time.Second,
			"take it in 15s, if it is not renewed until then: whether its process lives is not known"},
		"with a promise": {func(l *Lease) { l.Writer, l.Epoch, l.Adoption = "ci", "2", promise }, 0, Unknown, 40 * time.Second,
			"take it in 40s, if it is not renewed until then: whether its process lives is not known; or after 1s of silence, as writer ci of epoch 2 with its guard"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if c.lease != nil {
					l := dead(5)
					c.lease(l)
					w.put(l)
				}
				pass(c.age)
				f := w.faulty()
				st, err := Inspect(t.Context(), f.Bucket(), w.options(Options{Process: w.judged(c.says)}))
				if err != nil {
					t.Fatal(err)
				}
				if st.Takeover != c.takeover || st.Plan() != c.plan {
					t.Errorf("takeover %v, plan %q; want %v, %q", st.Takeover, st.Plan(), c.takeover, c.plan)
				}
				if held := c.lease != nil && name != "released"; st.Held() != held || held && (st.Age != c.age || st.Verdict.Standing != c.says) {
					t.Errorf("held %v, age %v, verdict %v", st.Held(), st.Age, st.Verdict)
				}
				if n := f.Counts().Requests(); n != 1 {
					t.Errorf("%d requests, want 1", n)
				}
			})
		})
	}
}

// The lease may be behind the log, and the log behind the lease; the fence is
// above both, also by force (R8).
func TestAForcedReleaseIsAboveLeaseAndLog(t *testing.T) {
	for _, c := range []struct{ lease, log, want uint64 }{{0, 0, 1}, {4, 0, 5}, {4, 9, 10}, {9, 4, 10}} {
		t.Run(fmt.Sprint(c.lease, c.log), func(t *testing.T) {
			w := newWorld(t)
			if c.lease > 0 {
				w.put(dead(c.lease))
			}
			if c.log > 0 {
				w.log.barriers = []barrier{{c.log, uuid.New()}}
			}
			if _, err := ForceRelease(t.Context(), w.store.Bucket(), w.log.replica(), w.options(Options{})); err != nil {
				t.Fatal(err)
			}
			b := w.log.all()
			if l := w.lease(); l.Fence != c.want || !l.Released || b[len(b)-1].fence != c.want {
				t.Errorf("the lease has fence %d, released %v, the log %v; want %d", l.Fence, l.Released, b, c.want)
			}
		})
	}
}
