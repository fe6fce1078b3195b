package datastore

import (
	"context"
	"fmt"
	"log/slog"
	"sort"
	"strings"
	"sync"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// overlay is rule R10: it shows a landed record at once, while the catalog is
// brought up behind it by one goroutine in log order. A landed record is never
// turned into a failure by the catalog: if that fails, the overlay keeps
// showing it and the next catch-up tries again.
type overlay struct {
	bucket *backend.Bucket
	cat    *catalog.DB
	log    *slog.Logger

	mu sync.Mutex
	// cond is signalled when pending or err changes.
	changed chan struct{} // closed and replaced at each change
	pending []*landed     // in slot order, not yet in the catalog
	tip     catalog.State // after the last pending record
	err     error         // why accounting stopped; cleared by retry
	closing bool

	wake chan struct{}
	done chan struct{}
	ctx  context.Context // of accounting
	stop context.CancelFunc
}

// landed is a record on its way into the catalog.
type landed struct {
	rec   *format.Record
	hash  format.Hash
	size  int64
	lists *listFiles // its change lists, so that no request is needed
	// puts are the record's own inline changes, sorted by path; nil if the
	// record has lists: then readers wait for the catalog.
	changes []*overlayChange
	big     bool
	// contents are those of changes that other commits may share, by sha256.
	contents func() map[format.Hash]*Version
}

type overlayChange struct {
	path string
	v    Version
}

func newOverlay(bucket *backend.Bucket, cat *catalog.DB, log *slog.Logger) *overlay {
	o := &overlay{bucket: bucket, cat: cat, log: log, changed: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{})}
	o.ctx, o.stop = context.WithCancel(context.Background())
	go o.run()
	return o
}

// add shows a landed record. tip is the state after it.
func (o *overlay) add(l *landed, tip catalog.State) {
	o.mu.Lock()
	o.pending = append(o.pending, l)
	o.tip = tip
	o.notify()
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *overlay) notify() {
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *overlay) setTip(tip catalog.State) {
	o.mu.Lock()
	o.tip = tip
	o.mu.Unlock()
}

func (o *overlay) head() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tip.Head
}

// accounted returns the slot up to which the catalog has what was seen.
func (o *overlay) accounted() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) > 0 {
		return o.pending[0].rec.Slot - 1
	}
	return o.tip.Head
}

// run is the accounting goroutine; close ends it.
func (o *overlay) run() {
	defer close(o.done)
	for range o.wake {
		for o.account() {
		}
		o.mu.Lock()
		end := o.closing
		o.mu.Unlock()
		if end {
			return
		}
	}
}

// account puts what is pending into the catalog, in one transaction.
func (o *overlay) account() bool {
	o.mu.Lock()
	todo := append([]*landed(nil), o.pending...)
	o.mu.Unlock()
	if len(todo) == 0 {
		return false
	}
	// The catalog may be another process's for a while; only close ends the wait.
	err := o.cat.Update(o.ctx, func(tx *catalog.Tx) error {
		for _, l := range todo {
			if err := tx.Fold(o.ctx, l.rec, l.hash, l.size, o.list(l)); err != nil {
				return fmt.Errorf("slot %d: %w", l.rec.Slot, err)
			}
		}
		return nil
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.err = err
		o.log.Warn("the local catalog could not take landed records; they are in the log and will be read again", "error", err)
		o.notify()
		return false
	}
	o.err = nil
	o.pending = o.pending[len(todo):]
	o.notify()
	for _, l := range todo {
		if err := l.lists.remove(); err != nil {
			o.log.Warn("local copies of change lists were not removed", "error", err)
		}
	}
	return len(o.pending) > 0
}

// list reads a change list of a landed record: its local copy, or, if somebody
// removed that, the object.
func (o *overlay) list(l *landed) func(format.ListRef) (*format.Block, error) {
	return func(ref format.ListRef) (*format.Block, error) {
		b, err := l.lists.read(ref)
		if err != nil {
			b, err = readList(o.ctx, o.bucket, ref)
		}
		return b, err
	}
}

// flush waits until everything that landed is in the catalog.
func (o *overlay) flush(ctx context.Context) error {
	retried := false
	for {
		o.mu.Lock()
		n, err, changed := len(o.pending), o.err, o.changed
		if n > 0 && err != nil && !retried {
			retried, o.err, err = true, nil, nil
			select {
			case o.wake <- struct{}{}:
			default:
			}
		}
		o.mu.Unlock()
		if n == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the local catalog does not take what has landed: %w; free space, or delete the state directory (it is a cache)", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the local catalog: %w", context.Cause(ctx))
		}
	}
}

// shown is what is pending at one moment, newest last.
func (o *overlay) shown() []*landed {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending[:len(o.pending):len(o.pending)]
}

// close joins the goroutine, after one last try to account what is pending,
// which lasts as long as ctx.
func (o *overlay) close(ctx context.Context) {
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	select {
	case <-o.done:
	case <-ctx.Done():
	}
	o.stop()
	<-o.done
}

// overlayOf makes the overlay's picture of a record without lists.
func overlayOf(rec *format.Record) []*overlayChange {
	last := map[string]*overlayChange{}
	var index uint64
	for i := range rec.Entries {
		e := &rec.Entries[i]
		for j := range e.Block.Changes {
			c := &e.Block.Changes[j]
			v := versionOf(rec, e, c)
			index++
			last[c.Path] = &overlayChange{c.Path, v}
		}
	}
	out := make([]*overlayChange, 0, len(last))
	for _, c := range last {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].path < out[j].path })
	return out
}

// sharedContents finds the contents that lie in data objects.
func sharedContents(changes []*overlayChange) map[format.Hash]*Version {
	m := map[format.Hash]*Version{}
	for _, c := range changes {
		if !c.v.Deleted && !c.v.place.Inline {
			m[c.v.SHA256] = &c.v
		}
	}
	return m
}

// find returns the newest pending version of path at or before slot at.
func find(pending []*landed, path string, at uint64) (Version, bool) {
	for i := len(pending) - 1; i >= 0; i-- {
		l := pending[i]
		if l.rec.Slot > at {
			continue
		}
		k := sort.Search(len(l.changes), func(k int) bool { return l.changes[k].path >= path })
		if k < len(l.changes) && l.changes[k].path == path {
			return l.changes[k].v, true
		}
	}
	return Version{}, false
}

// merged returns, sorted by path, the newest pending version of each path with
// the prefix that is greater than after, at or before slot at.
func merged(pending []*landed, prefix, after string, at uint64) []*overlayChange {
	seen := map[string]*overlayChange{}
	for _, l := range pending {
		if l.rec.Slot > at {
			break
		}
		for _, c := range l.changes {
			if strings.HasPrefix(c.path, prefix) && c.path > after {
				seen[c.path] = c
			}
		}
	}
	out := make([]*overlayChange, 0, len(seen))
	for _, c := range seen {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].path < out[j].path })
	return out
}
