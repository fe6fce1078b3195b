package writer

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// Process is one that may be the writer: who it is, how it judges others, and
// which sessions it holds. A program is one Process, This; only tests and
// simulations make more, to have several writers in one program.
type Process struct {
	self  func() *Identity
	judge func(recorded *Identity, guard *Guard, me *Identity) Verdict
	guard func(*Guard) guardSight

	// background is for the work that goes on after a Close: giving back what
	// could not be given back in time.
	background context.Context
	end        context.CancelFunc
	work       sync.WaitGroup

	// halted: it is about to end, and begins no write and no session.
	halted atomic.Bool

	// given is the session that was given back last.
	given atomic.Pointer[uuid.UUID]

	mu sync.Mutex
	// sessions are those whose record may be in a store: from before it is sent
	// until it is given back or another's is in its place (R12).
	sessions map[uuid.UUID]*session

	// guardMu is held while a guard is taken, which asks the disk.
	guardMu sync.Mutex
	guards  map[string]*heldGuard
}

// This is the process that runs.
func This() *Process { return this() }

var this = sync.OnceValue(func() *Process { return newProcess(Self, Judge) })

// NewProcess is a process for tests and simulations, with the identity id and a
// judge of its own (nil means Judge, which sees the real machine). It shares
// nothing with other Processes of this program.
func NewProcess(id *Identity, judge func(recorded *Identity, guard *Guard, me *Identity) Verdict) *Process {
	if judge == nil {
		judge = Judge
	}
	return newProcess(func() *Identity { return id }, judge)
}

func newProcess(self func() *Identity, judge func(*Identity, *Guard, *Identity) Verdict) *Process {
	p := &Process{
		self: self, judge: judge, guard: lookGuard,
		sessions: map[uuid.UUID]*session{}, guards: map[string]*heldGuard{},
	}
	p.background, p.end = context.WithCancel(context.Background())
	return p
}

// End stops what a made Process still does in the background, as its death
// would, and waits for it. Its leases stay as they are.
func (p *Process) End() {
	p.end()
	p.work.Wait()
}

// session is the one with this id, or nil if this process does not hold it.
func (p *Process) session(id uuid.UUID) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions[id]
}

func (p *Process) remember(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions[s.id] = s
}

func (p *Process) forget(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s.id)
}
