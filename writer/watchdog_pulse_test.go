package writer

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// Rounds of a pulse with a limit of 8 s, whose silence is looked at each second.
func TestARoundThatComesLateCountsNothing(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		rounds []time.Duration // after so long; -1: a beat instead
		want   int             // the one that finds it stuck; 0: none
	}{
		{"in time", []time.Duration{s, s, s, s, s, s, s, s}, 8},
		{"a little late, each", []time.Duration{3 * s / 2, 3 * s / 2, 3 * s / 2, 3 * s / 2, 3 * s / 2, s}, 6},
		{"stopped for an hour", []time.Duration{s, s, s, s, s, s, s, time.Hour}, 0},
		{"stopped, and still silent", []time.Duration{s, s, s, s, s, s, s, time.Hour, s}, 9},
		{"stopped for a moment", []time.Duration{s, s, s, s, s, s, s, 2*s + 1, s}, 9},
		{"stopped, then a beat", []time.Duration{s, s, s, s, s, s, s, time.Hour, -1, s, s, s, s, s, s, s, s}, 0},
		{"stopped again and again", []time.Duration{time.Hour, s, time.Hour, s, time.Hour, s, time.Hour, s, time.Hour, s, time.Hour, s, time.Hour, s, s}, 15},
		{"a slow machine", []time.Duration{5 * s, 5 * s, 5 * s, 5 * s, 5 * s, 5 * s, 5 * s, 5 * s, 5 * s}, 9},
	} {
		p := &Pulse{limit: 8 * s, step: s}
		got := 0
		for i, elapsed := range c.rounds {
			if elapsed < 0 {
				p.Beat()
			} else if p.stuck(elapsed) {
				got = i + 1
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: found stuck in round %d, want %d", c.name, got, c.want)
		}
	}
}

// A round may still have the list as it was before a pulse ended.
func TestAPulseThatEndsIsNotFoundStuck(t *testing.T) {
	w := NewWatchdog(nil)
	p := w.Watch("landing", 8*time.Second)
	w.Close() // the rounds are these
	p.stuck(0)
	for range 7 {
		if p.stuck(time.Second) {
			t.Fatal("found stuck after less than 8s")
		}
	}
	p.End()
	if p.stuck(time.Second) {
		t.Error("found stuck after its end")
	}
}

// The list of pulses is changed by many without a lock.
func TestPulsesAreNotLostInAnothersChange(t *testing.T) {
	w := NewWatchdog(nil)
	defer w.Close()
	a, b := w.Watch("a", time.Minute), w.Watch("b", time.Minute)
	before := *w.pulses.Load()
	a.End()
	if before[0] != a || before[1] != b {
		t.Error("a list changed under the eyes of a round")
	}
	once := false
	w.change(func(all []*Pulse) []*Pulse {
		if !once {
			once = true
			w.Watch("c", time.Minute)
		}
		return all
	})
	var got []string
	for _, p := range *w.pulses.Load() {
		got = append(got, p.subsystem)
	}
	if want := []string{"b", "c"}; !slices.Equal(got, want) {
		t.Errorf("watched are %q, want %q", got, want)
	}
}

// Subsystems that come, go and beat from many goroutines, on real processors.
func TestPulsesAreSafeForConcurrentUse(t *testing.T) {
	w := NewWatchdog(&WatchdogOptions{Exit: func(int) { t.Error("it exits") }})
	defer w.Close()
	shared := w.Watch("shared", time.Minute)
	defer shared.End()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 200 {
				own := w.Watch(fmt.Sprint("own ", i), time.Minute)
				for _, p := range []*Pulse{own, shared} {
					p.Phase(fmt.Sprint("phase ", j))
					p.Beat()
					p.Idle()
					p.Phase("again")
				}
				own.End()
			}
		})
	}
	all.Wait()
	if got := *w.pulses.Load(); len(got) != 1 || got[0] != shared {
		t.Errorf("%d pulses are left, want the shared one", len(got))
	}
}
