package datastore

import (
	"context"
	"sync"
	"time"

	"github.com/swampd/swampd/internal/catalog"
)

// Views that are not in use stay open for the next lookup, a few and not for
// long: an open one keeps SQLite's write-ahead log from being cut back.
const (
	idleViews = 4
	viewAge   = 100 * time.Millisecond
)

// view is a picture of the newest state, used by one caller at a time.
type view struct {
	head    uint64 // of the Store when it was opened
	born    time.Time
	pending []*landed
	snap    *catalog.Snapshot
}

// views keeps views open between lookups: opening one costs several times what
// a lookup does.
type views struct {
	mu    sync.Mutex
	idle  []*view
	ended bool

	kept chan struct{} // has room for one; told when a view was kept
	done chan struct{} // closed when the goroutine that drops them has ended
}

func newViews() *views { return &views{kept: make(chan struct{}, 1), done: make(chan struct{})} }

// dropViews closes views that are not in use, some time after one was kept. It
// ends with ctx.
func (s *Store) dropViews(ctx context.Context) {
	defer close(s.views.done)
	for {
		select {
		case <-s.views.kept:
		case <-ctx.Done():
			return
		}
		timer := time.NewTimer(viewAge)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		s.dropIdle()
	}
}

// borrow returns a view of the newest state that this Store has seen. It is to
// be given back soon.
func (s *Store) borrow(ctx context.Context) (*view, error) {
	head := s.Head()
	if v := s.views.take(head); v != nil {
		return v, nil
	}
	born := time.Now()
	pending, snap, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	return &view{head, born, pending, snap}, nil
}

// giveBack ends the use of a view. If it failed, it is not used again.
func (s *Store) giveBack(v *view, failed bool) {
	if failed || v.head != s.Head() || !s.views.put(v) {
		s.discard(v)
	}
}

func (s *Store) discard(v *view) {
	if err := v.snap.Close(); err != nil {
		s.opts.Logger.Warn("a view of the local catalog was not closed well", "error", err)
	}
}

// take returns an idle view of that head, or nil.
func (vs *views) take(head uint64) *view {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	n := len(vs.idle)
	if n == 0 {
		return nil
	}
	v := vs.idle[n-1]
	if v.head != head || time.Since(v.born) > viewAge {
		return nil // dropViews closes it
	}
	vs.idle = vs.idle[:n-1]
	return v
}

// put keeps a view for later and says whether it did.
func (vs *views) put(v *view) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.ended || len(vs.idle) >= idleViews || time.Since(v.born) > viewAge {
		return false
	}
	vs.idle = append(vs.idle, v)
	select {
	case vs.kept <- struct{}{}:
	default:
	}
	return true
}

// dropIdle closes the views that are not in use.
func (s *Store) dropIdle() {
	s.views.mu.Lock()
	idle := s.views.idle
	s.views.idle = nil
	s.views.mu.Unlock()
	for _, v := range idle {
		s.discard(v)
	}
}

// endViews closes the views that are not in use; from now on none is kept. The
// context of dropViews has ended.
func (s *Store) endViews() {
	s.views.mu.Lock()
	s.views.ended = true
	s.views.mu.Unlock()
	<-s.views.done
	s.dropIdle()
}
