package writer

import "sync"

// sent tells the records of a session that this process sent from those of a
// copy of the process, which has the same session (R9).
//
// It need not remember all. Whoever sends slot n has examined all slots before,
// so below the highest that landed, everything was examined by this process
// before it was sent.
type sent struct {
	mu     sync.Mutex
	flying map[[32]byte]int
	landed uint64 // the highest slot of this process's own
}

// Sending tells that the record with this hash is about to be sent. The returned
// func tells what became of it: landed in that slot, or 0 if it did not.
func (h *Hold) Sending(hash [32]byte) (decided func(slot uint64)) {
	t := &h.s.sent
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flying == nil {
		t.flying = map[[32]byte]int{}
	}
	t.flying[hash]++
	return func(slot uint64) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.landed = max(t.landed, slot)
		if t.flying[hash]--; t.flying[hash] <= 0 {
			delete(t.flying, hash)
		}
	}
}

// Landed is the highest slot in which a record of this session landed that this
// process sent, through whichever hold; 0 if none did yet.
func (h *Hold) Landed() uint64 {
	t := &h.s.sent
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.landed
}

// Sent says whether a record of this session that is in the log was sent by this
// process. If not, a copy of the process exists.
func (h *Hold) Sent(slot uint64, hash [32]byte) bool {
	t := &h.s.sent
	t.mu.Lock()
	defer t.mu.Unlock()
	return slot <= t.landed || t.flying[hash] > 0
}
