package writer

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
	"testing/synctest"
	"time"
)

// kennel is a watchdog whose exit can be seen, and what it did, with the time
// since it found something stuck (which is when it calls Halt).
type kennel struct {
	*Watchdog
	t *testing.T

	mu     sync.Mutex
	steps  []string
	found  time.Time
	exited time.Time
	codes  []int
	text   string
}

// newKennel fills in what o leaves out: no write in flight, a release that
// succeeds. Each of o's functions runs after its call was noted.
func newKennel(t *testing.T, o WatchdogOptions) *kennel {
	k := &kennel{t: t}
	halt, inFlight, release, report := o.Halt, o.InFlight, o.Release, o.Report
	o.Halt = func() {
		k.note("halt", func() { k.found = time.Now() })
		if halt != nil {
			halt()
		}
	}
	o.InFlight = func() int {
		k.note("count", nil)
		if inFlight != nil {
			return inFlight()
		}
		return 0
	}
	o.Release = func(ctx context.Context) error {
		k.note("release", nil)
		if release != nil {
			return release(ctx)
		}
		return nil
	}
	o.Report = func(text string) {
		k.note("report", func() { k.text = text })
		if report != nil {
			report(text)
		}
	}
	o.Exit = func(code int) {
		k.note("exit", func() { k.exited, k.codes = time.Now(), append(k.codes, code) })
	}
	k.Watchdog = NewWatchdog(&o)
	return k
}

func (k *kennel) note(step string, also func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.steps) == 0 || k.steps[len(k.steps)-1] != step {
		k.steps = append(k.steps, step)
	}
	if also != nil {
		also()
	}
}

// wantExit waits for the end, which must come when the way out took that long,
// and looks at what was reported.
func (k *kennel) wantExit(took time.Duration, says ...string) {
	k.t.Helper()
	<-k.done
	k.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.codes, []int{70}) {
		k.t.Errorf("the exits have the codes %v, want one with 70", k.codes)
	}
	if got := k.exited.Sub(k.found); got != took {
		k.t.Errorf("the exit came after %v, want %v", got, took)
	}
	for _, s := range append(says, "watchdog: ", "exiting with code 70") {
		if !strings.Contains(k.text, s) {
			k.t.Errorf("it reports\n%s\nwithout %q", k.text, s)
		}
	}
	if strings.ContainsAny(k.text, "\n\r") {
		k.t.Errorf("it reports more than one line: %q", k.text)
	}
}

func (k *kennel) wantSteps(want ...string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.steps, want) {
		k.t.Errorf("it did %q, want %q", k.steps, want)
	}
}

// wantAlive: nobody was found stuck.
func (k *kennel) wantAlive(when string) {
	k.t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.steps) != 0 {
		k.t.Fatalf("%s: it did %q, want nothing; it reports %q", when, k.steps, k.text)
	}
}

const (
	givenBack    = "; the lease was given back; "
	notGivenBack = "the lease was not given back, others wait until it runs out: "
)

func TestWatchdogGivesTheLeaseBackAndExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKennel(t, WatchdogOptions{})
		p := k.Watch("landing", 8*time.Second)
		pass(20 * time.Second / 3)
		p.Phase("list")
		pass(3 * time.Second)
		p.Phase("create commits/42")
		last := time.Now()
		k.wantExit(0, `subsystem "landing"`, `in its phase "create commits/42"`, "(limit 8s)", givenBack)
		k.wantSteps("halt", "count", "release", "report", "exit")
		if silent := k.found.Sub(last); silent < 8*time.Second || silent > 10*time.Second {
			t.Errorf("found stuck after %v, want 8s to 10s", silent)
		}
		if !strings.Contains(k.text, "no sign of life for 8s,") {
			t.Errorf("it reports %q, want 8s of silence", k.text)
		}
	})
}

// disturbed is a way in which the way out can be disturbed: how long it takes
// then, what is said, and how far it came.
type disturbed struct {
	name  string
	o     func(hang func()) WatchdogOptions
	took  time.Duration
	says  string
	steps string
}

const (
	undisturbed = "halt count release report exit"
	withheld    = "halt count report exit"
	shut        = "halt report exit"
)

func (d disturbed) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end) // what hangs cannot be joined, except here
		k := newKennel(t, d.o(func() { <-end }))
		k.Watch("landing", time.Second).Phase("create")
		k.wantExit(d.took, `subsystem "landing"`, `its phase "create"`, d.says)
		k.wantSteps(strings.Fields(d.steps)...)
	})
}

func boom() { panic("boom") }

type roughError struct{ do func() }

func (e roughError) Error() string { e.do(); return "" }

func TestWatchdogExitsWhateverTheReleaseDoes(t *testing.T) {
	for _, d := range []disturbed{
		{"the store hangs", func(hang func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error { hang(); return nil }}
		}, 4500 * time.Millisecond, notGivenBack + "no answer to its release within 4.5s", undisturbed},
		{"the store hangs, and the release heeds its context", func(func()) WatchdogOptions {
			return WatchdogOptions{Release: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }}
		}, 4250 * time.Millisecond, notGivenBack + "context deadline exceeded", undisturbed},
		{"the store is slow", func(func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error { pass(4 * time.Second); return nil }}
		}, 4 * time.Second, givenBack, undisturbed},
		{"the store refuses", func(func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error {
				return errors.Join(errors.New("denied"), errors.New("by policy"))
			}}
		}, 0, notGivenBack + "denied by policy; ", undisturbed},
		{"the release panics", func(func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error { boom(); return nil }}
		}, 0, notGivenBack + "it panicked: boom", undisturbed},
		{"the release's error panics", func(func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error { return roughError{boom} }}
		}, 0, notGivenBack + "it panicked: boom", undisturbed},
		{"the release's error hangs", func(hang func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error { return roughError{hang} }}
		}, 4500 * time.Millisecond, notGivenBack + "no answer to its release", undisturbed},
		{"the release ends its goroutine", func(func()) WatchdogOptions {
			return WatchdogOptions{Release: func(context.Context) error { runtime.Goexit(); return nil }}
		}, 0, notGivenBack + "it ended its goroutine", undisturbed},
	} {
		t.Run(d.name, d.run)
	}
}

// Where it is not known that no write is in flight, the release is withheld.
func TestWatchdogExitsWhateverHappens(t *testing.T) {
	for _, d := range []disturbed{
		{"writes stay in flight", func(func()) WatchdogOptions {
			return WatchdogOptions{InFlight: func() int { return 3 }}
		}, 2 * time.Second, notGivenBack + "writes in flight (3) were not decided within 2s", withheld},
		{"writes are miscounted", func(func()) WatchdogOptions {
			return WatchdogOptions{InFlight: func() int { return -1 }}
		}, 2 * time.Second, notGivenBack + "writes in flight (-1) were not decided within 2s", withheld},
		{"the count hangs", func(hang func()) WatchdogOptions {
			return WatchdogOptions{InFlight: func() int { hang(); return 0 }}
		}, 2 * time.Second, notGivenBack + "the writes in flight were not counted within 2s", withheld},
		{"the count panics", func(func()) WatchdogOptions {
			return WatchdogOptions{InFlight: func() int { boom(); return 0 }}
		}, 0, notGivenBack + "the writes in flight were not counted: it panicked: boom", withheld},
		{"admission hangs", func(hang func()) WatchdogOptions {
			return WatchdogOptions{Halt: hang}
		}, 2 * time.Second, notGivenBack + "admission did not close within 2s", shut},
		{"admission panics", func(func()) WatchdogOptions {
			return WatchdogOptions{Halt: boom}
		}, 0, notGivenBack + "admission did not close: it panicked: boom", shut},
		{"the log hangs", func(hang func()) WatchdogOptions {
			return WatchdogOptions{Report: func(string) { hang() }}
		}, 500 * time.Millisecond, givenBack, undisturbed},
		{"the log panics", func(func()) WatchdogOptions {
			return WatchdogOptions{Report: func(string) { boom() }}
		}, 0, givenBack, undisturbed},
		{"admission and the log hang", func(hang func()) WatchdogOptions {
			return WatchdogOptions{Halt: hang, Report: func(string) { hang() }}
		}, 2500 * time.Millisecond, notGivenBack + "admission did not close", shut},
		{"the count and the log hang", func(hang func()) WatchdogOptions {
			return WatchdogOptions{InFlight: func() int { hang(); return 0 }, Report: func(string) { hang() }}
		}, 2500 * time.Millisecond, notGivenBack + "the writes in flight were not counted", withheld},
		{"all is slow, the store and the log hang", func(hang func()) WatchdogOptions {
			return WatchdogOptions{
				Halt:    func() { pass(1900 * time.Millisecond) },
				Release: func(context.Context) error { hang(); return nil },
				Report:  func(string) { hang() },
			}
		}, 5 * time.Second, notGivenBack + "no answer to its release within 2.6s", undisturbed},
	} {
		t.Run(d.name, d.run)
	}
}

func TestWatchdogWaitsForWritesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		writes.Store(2)
		halted := make(chan struct{})
		k := newKennel(t, WatchdogOptions{
			Halt:     func() { close(halted) },
			InFlight: func() int { return int(writes.Load()) },
			Release: func(context.Context) error {
				if n := writes.Load(); n != 0 {
					t.Errorf("given back with %d writes in flight", n)
				}
				return nil
			},
		})
		go func() {
			<-halted
			pass(time.Second)
			writes.Store(1)
			pass(495 * time.Millisecond) // between two counts
			writes.Store(0)
		}()
		k.Watch("landing", time.Second)
		k.wantExit(1500*time.Millisecond, `in its phase "starting"`, givenBack)
		k.wantSteps("halt", "count", "release", "report", "exit")
	})
}

// The release's context ends before the release is given up, and when it has
// returned.
func TestWatchdogBoundsTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var given context.Context
		k := newKennel(t, WatchdogOptions{Release: func(ctx context.Context) error {
			given = ctx
			if end, ok := ctx.Deadline(); !ok || time.Until(end) != 4250*time.Millisecond {
				t.Errorf("the release has until %v (%v), want 4.25s", time.Until(end), ok)
			}
			return nil
		}})
		k.Watch("landing", time.Second)
		k.wantExit(0, givenBack)
		if given.Err() == nil {
			t.Error("the context of the release is still alive")
		}
	})
}

// Without options there is nothing to close, to count or to give back.
func TestWatchdogWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text string
		var codes []int
		w := NewWatchdog(&WatchdogOptions{
			Report: func(s string) { text = s },
			Exit:   func(code int) { codes = append(codes, code) },
		})
		w.Watch("page", 0)
		<-w.done
		w.Close()
		if !slices.Equal(codes, []int{70}) || !strings.Contains(text, "(limit 30s); there was no lease to give back; exiting") {
			t.Errorf("exits %v, report %q", codes, text)
		}
	})
}

func TestWatchdogNeverExitsWithZero(t *testing.T) {
	for code, want := range map[int]int{0: 70, 1: 1, 75: 75, 256: 70, -256: 70, 512: 70, -1: -1} {
		synctest.Test(t, func(t *testing.T) {
			got := 0
			w := NewWatchdog(&WatchdogOptions{Code: code, Report: func(string) {}, Exit: func(c int) { got = c }})
			w.Watch("landing", time.Second)
			<-w.done
			if got != want {
				t.Errorf("with the code %d: exit %d, want %d", code, got, want)
			}
		})
	}
}

func TestWatchdogLeavesAloneWhatBeats(t *testing.T) {
	for _, limit := range []time.Duration{minLimit, 3 * time.Second, 30 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			k := newKennel(t, WatchdogOptions{})
			defer k.Close()
			p := k.Watch("landing", limit)
			p.Phase("replay")
			for range 10 {
				pass(limit - time.Millisecond)
				p.Beat()
			}
			for i := range 10 {
				pass(limit - time.Millisecond)
				p.Phase(fmt.Sprint(i))
			}
			k.wantAlive(fmt.Sprintf("with the limit %v", limit))
		})
	}
}

func TestWatchdogFindsWhatIsStuckInTime(t *testing.T) {
	for _, limit := range []time.Duration{1, minLimit, 700 * time.Millisecond, 3 * time.Second, 30 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			k := newKennel(t, WatchdogOptions{})
			p := k.Watch("landing", limit)
			limit = max(limit, minLimit)
			pass(limit / 3)
			p.Beat()
			last := time.Now()
			k.wantExit(0, givenBack)
			if silent := k.found.Sub(last); silent < limit || silent > limit*5/4 {
				t.Errorf("found stuck after %v, want %v to %v", silent, limit, limit*5/4)
			}
		})
	}
}

func TestWatchdogNamesThePhase(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(*Pulse)
	}{
		{"none yet", "starting", func(*Pulse) {}},
		{"the last one", "b", func(p *Pulse) { p.Phase("a"); p.Phase("b") }},
		{"back in an earlier one", "a", func(p *Pulse) { p.Phase("a"); p.Phase("b"); p.Phase("a") }},
		{"a beat later", "a", func(p *Pulse) { p.Phase("a"); pass(time.Second / 2); p.Beat() }},
		{"after it was idle", "a", func(p *Pulse) { p.Phase("a"); p.Idle(); pass(time.Hour); p.Beat() }},
		{"another after it was idle", "b", func(p *Pulse) { p.Phase("a"); p.Idle(); pass(time.Hour); p.Phase("b") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKennel(t, WatchdogOptions{})
				c.do(k.Watch("landing", time.Second))
				k.wantExit(0, fmt.Sprintf("in its phase %q", c.want))
			})
		})
	}
}

func TestWatchdogLeavesAloneWhatIsIdleOrOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKennel(t, WatchdogOptions{})
		p, q := k.Watch("landing", time.Second), k.Watch("accounting", time.Minute)
		pass(900 * time.Millisecond)
		p.Idle()
		for range 100 {
			pass(30 * time.Second)
			q.Beat()
		}
		k.wantAlive("idle")
		p.Phase("create")
		pass(900 * time.Millisecond)
		k.wantAlive("not idle any more")
		p.End()
		p.End()
		pass(10 * time.Second)
		p.Phase("after its end")
		pass(10 * time.Second)
		k.wantAlive("over")
		last := time.Now().Add(-20 * time.Second)
		k.wantExit(0, `subsystem "accounting"`)
		if strings.Contains(k.text, "landing") || k.found.Sub(last) < time.Minute {
			t.Errorf("after %v it reports %q", k.found.Sub(last), k.text)
		}
	})
}

func TestWatchdogExitsOnceIfAllAreStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKennel(t, WatchdogOptions{Release: func(context.Context) error { pass(4 * time.Second); return nil }})
		defer k.Watch("page", time.Hour).End()
		k.Watch("landing", time.Second).Phase("create")
		k.Watch("accounting", time.Second).Phase("hooks")
		k.Watch("sweep", 3*time.Second).Phase("list") // is stuck before the exit
		k.wantExit(4*time.Second,
			`subsystem "landing" shows no sign of life for 1s, in its phase "create" (limit 1s)`,
			`subsystem "accounting" shows no sign of life for 1s, in its phase "hooks" (limit 1s)`)
		if strings.Contains(k.text, "page") {
			t.Errorf("it reports %q", k.text)
		}
		pass(time.Hour)
		k.wantSteps("halt", "count", "release", "report", "exit")
	})
}

// A beat that comes on the way out changes nothing any more: admission is closed.
func TestWatchdogDoesNotTurnBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *Pulse
		k := newKennel(t, WatchdogOptions{Release: func(context.Context) error { p.Phase("again"); p.End(); return nil }})
		p = k.Watch("landing", time.Second)
		p.Phase("create")
		k.wantExit(0, `in its phase "create"`, givenBack)
	})
}

// A pulse with a short limit does not wait for the rounds of those before.
func TestWatchdogLooksAtNewPulsesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKennel(t, WatchdogOptions{})
		pass(time.Second / 3)
		k.Watch("page", time.Hour)
		synctest.Wait()
		pass(time.Second / 3)
		began := time.Now()
		k.Watch("landing", minLimit)
		k.wantExit(0, `subsystem "landing"`)
		if got := k.found.Sub(began); got > minLimit*5/4 {
			t.Errorf("found stuck after %v, want %v at most", got, minLimit*5/4)
		}
	})
}

func TestWatchdogCloseEndsTheWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKennel(t, WatchdogOptions{})
		p := k.Watch("landing", time.Second)
		k.Close()
		k.Close()
		pass(time.Hour)
		k.Watch("late", time.Second).End()
		p.Phase("after the end")
		p.End()
		k.wantAlive("closed")
	})
}

// Close does not let main return while the watchdog is on its way to an exit
// that is no success.
func TestWatchdogCloseWaitsForTheExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := make(chan struct{})
		k := newKennel(t, WatchdogOptions{
			Halt:    func() { close(found) },
			Release: func(context.Context) error { pass(3 * time.Second); return nil },
		})
		k.Watch("landing", time.Second)
		<-found
		k.Close()
		k.wantSteps("halt", "count", "release", "report", "exit")
		k.wantExit(3*time.Second, givenBack)
	})
}

// Code that runs with or without a watchdog needs no case for it.
func TestNoWatchdogIsNoTrouble(t *testing.T) {
	var w *Watchdog
	p := w.Watch("landing", time.Second)
	p.Phase("create")
	p.Beat()
	p.Idle()
	p.End()
	w.Close()
}
