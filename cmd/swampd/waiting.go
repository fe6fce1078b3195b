package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/swampd/swampd/writer"
)

// waitingEvery is how often people are told that a command still waits.
const waitingEvery = 10 * time.Second

// waiting tells people whom this command waits for: once, and then now and then.
func (a *app) waiting() func(writer.Wait) {
	var mu sync.Mutex
	next := time.Duration(0)
	return func(w writer.Wait) {
		mu.Lock()
		defer mu.Unlock()
		if w.Left <= 0 || w.Waited < next {
			return
		}
		next = w.Waited + waitingEvery
		lives := "it is alive"
		if w.Verdict.Standing != writer.Alive {
			lives = "if it has died, it can be replaced " + replaced(w.Takeover)
		}
		a.note("waiting for %s; %s; up to %s more", holder(&w.Holder), lives, took(w.Left))
	}
}

// holder says who writes.
func holder(l *writer.Lease) string {
	return nameOfWriter(l) + ", which writes since " + when(l.Acquired)
}

// nameOfWriter names another writer. All of it is that writer's word.
func nameOfWriter(l *writer.Lease) string {
	s := "another writer"
	if l.Command != "" {
		s = printable(clip(l.Command))
	}
	if l.Identity != nil {
		s += fmt.Sprintf(" (process %d on %s)", l.Identity.PID, printable(clip(l.Identity.Hostname)))
	}
	return s
}

// replaced says when a writer that cannot be seen from here can be replaced.
func replaced(d time.Duration) string {
	switch {
	case d < 0:
		return "at a time that is not known, since the store does not tell its own"
	case d < time.Second:
		return "in a moment"
	}
	return "in " + took(d)
}

// busy is the sentence about a writer that was waited for in vain, with the
// evidence by which it was judged.
func busy(e *writer.BusyError) string {
	s := "another writer is at work: " + holder(&e.Holder)
	if e.Age >= 0 {
		s += ", last heard of " + took(e.Age) + " ago"
	}
	if e.Verdict.Standing == writer.Alive {
		return s + "; it is alive (" + e.Verdict.Evidence + ")"
	}
	return s + "; whether it lives cannot be seen from here (" + e.Verdict.Evidence + "); if it has died, it can be replaced " + replaced(e.Takeover)
}

// busyHint says what to do about it. A forced release is spoken of only where
// nobody can see that the holder lives: taking the lease from one that does would
// cost it its work.
func (a *app) busyHint(e *writer.BusyError) string {
	if e.Verdict.Standing == writer.Alive {
		return "nothing was changed; wait for it longer with --max-wait, or end it; then run this again"
	}
	force := "swampd lock release --force"
	if a.store != "" {
		force += " -s " + quoteArg(a.shownStore())
	}
	return "nothing was changed; try again when it is done, or wait longer with --max-wait; only if you know that it has died: " + force
}
