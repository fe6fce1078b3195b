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
		a.note("waiting for %s; up to %s more", holder(&w.Holder), took(w.Left))
	}
}

// holder names another writer. All of it is that writer's word.
func holder(l *writer.Lease) string {
	s := "another writer"
	if l.Command != "" {
		s = printable(l.Command)
	}
	if l.Identity != nil {
		s += fmt.Sprintf(" (process %d on %s)", l.Identity.PID, printable(l.Identity.Hostname))
	}
	return s + ", which writes since " + when(l.Acquired)
}

// busy is the sentence about a writer that was waited for in vain.
func busy(e *writer.BusyError) string {
	s := "another writer is at work: " + holder(&e.Holder)
	if e.Age >= 0 {
		s += ", last heard of " + took(e.Age) + " ago"
	}
	if e.Takeover > 0 {
		s += "; if it has died, it can be replaced in " + took(e.Takeover)
	}
	return s
}
