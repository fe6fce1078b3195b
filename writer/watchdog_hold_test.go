package writer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
)

// A daemon whose landing is stuck ends by its watchdog: the lease is given back
// where nothing is in flight, and not where something is; the process ends in any
// case, and says where it was stuck.
func TestTheWatchdogEndsAStuckHolder(t *testing.T) {
	for name, c := range map[string]struct {
		inFlight bool
		hangs    bool // the store, for everybody
		released bool
		says     string
	}{
		"in time":              {released: true, says: "given back"},
		"writes in flight":     {inFlight: true, says: "in flight"},
		"the store hangs, too": {hangs: true, says: "not given back"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f, aside := w.faulty(), w.faulty()
				h, err := w.acquireOn(f, Options{Connect: func(context.Context) (*backend.Bucket, error) { return aside.Bucket(), nil }})
				if err != nil {
					t.Fatal(err)
				}
				if c.inFlight {
					done, err := h.Begin()
					if err != nil {
						t.Fatal(err)
					}
					defer done()
				}
				h.s.turn <- struct{}{} // its heartbeat is stuck as well
				var said string
				exit := make(chan int, 1)
				dog := NewWatchdog(&WatchdogOptions{
					Halt: h.Halt, InFlight: h.InFlight, Release: h.ReleaseAside,
					Report: func(s string) { said = s }, Exit: func(code int) { exit <- code },
				})
				defer dog.Close()
				landing := dog.Watch("landing", 8*time.Second)
				landing.Phase("the create of commits/7")
				if c.hangs {
					aside.Add(faults.Rule{Ops: faults.Any, Times: faults.Always, Do: faults.Hang()})
				}
				code := <-exit
				if took := time.Since(w.born); took > 8*time.Second*5/4+5*time.Second {
					t.Errorf("ended after %v", took)
				}
				if code == 0 || w.lease().Released != c.released {
					t.Errorf("exit code %d, released %v", code, w.lease().Released)
				}
				for _, want := range []string{"landing", "the create of commits/7", c.says} {
					if !strings.Contains(said, want) {
						t.Errorf("%q does not say %q", said, want)
					}
				}
				if _, err := h.Begin(); err == nil {
					t.Error("a write began after the end")
				}
				aside.Clear()
				<-h.s.turn
				h.Close(context.Background())
			})
		})
	}
}
