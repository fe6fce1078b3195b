package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(childOrder); order != "" {
		os.Exit(child(order))
	}
	goleak.VerifyTestMain(m,
		// Google's client has a package that starts one when it is linked in.
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// world is a store, a log, and the machine's boot clock. The store's clock is
// the bubble's plus skew.
type world struct {
	t     *testing.T
	store *memory.Store
	log   commitLog
	born  time.Time

	mu   sync.Mutex
	skew time.Duration
	tick float64 // how fast the store's clock runs
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, born: time.Now(), tick: 1}
	w.store = memory.New(&memory.Options{Now: func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.born.Add(time.Duration(float64(time.Since(w.born))*w.tick) + w.skew)
	}})
	return w
}

func (w *world) storeClock(skew time.Duration, tick float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skew, w.tick = skew, tick
}

func (w *world) boot() time.Duration { return time.Since(w.born) }

// options is o with the world's boot clock.
func (w *world) options(o Options) *Options {
	if o.Boot == nil {
		o.Boot = w.boot
	}
	if o.Process == nil {
		o.Process = w.stranger()
	}
	return &o
}

// stranger is a process that no other can see.
func (w *world) stranger() *Process {
	return w.process(&Identity{Hostname: uuid.NewString(), PID: 4711}, nil)
}

func (w *world) process(id *Identity, judge func(*Identity, *Guard, *Identity) Verdict) *Process {
	p := NewProcess(id, judge)
	w.t.Cleanup(p.End)
	return p
}

// acquire is Acquire by a process of its own, which has its own replica.
func (w *world) acquire(o Options) (*Hold, error) {
	return Acquire(w.t.Context(), w.store.Bucket(), w.log.replica(), w.options(o))
}

func (w *world) mustAcquire(o Options) *Hold {
	w.t.Helper()
	h, err := w.acquire(o)
	if err != nil {
		w.t.Fatalf("acquire: %v", err)
	}
	return h
}

func (w *world) mustClose(h *Hold) {
	w.t.Helper()
	if err := h.Close(context.Background()); err != nil {
		w.t.Errorf("close: %v", err)
	}
	if h.s.proc.session(h.s.id) != nil {
		w.t.Error("a session that was given back is remembered for ever")
	}
}

// lease is what the store holds.
func (w *world) lease() *Lease {
	w.t.Helper()
	l, err := DecodeLease(w.bytes())
	if err != nil {
		w.t.Fatalf("the lease in the store: %v", err)
	}
	return l
}

func (w *world) bytes() []byte {
	w.t.Helper()
	s, err := w.cell().look(w.t.Context())
	if err != nil {
		w.t.Fatalf("the lease in the store: %v", err)
	}
	return s.data
}

func (w *world) cell() *cell {
	return &cell{bucket: w.store.Bucket(), boot: w.boot, call: time.Minute}
}

// checkStamp: the hold never believes to be younger than its record is.
func (w *world) checkStamp(h *Hold) {
	w.t.Helper()
	s, err := w.cell().look(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if stamp, written := time.Duration(h.s.stamp.Load()), s.info.Modified.Sub(w.born); stamp > written {
		w.t.Errorf("the stamp is %v, but the record was written at %v", stamp, written)
	}
}

// put makes l the lease in the store, whatever it holds.
func (w *world) put(l *Lease) {
	w.t.Helper()
	c := w.cell()
	s, err := c.look(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	data, err := l.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	c.version = s.info.Version
	if _, err := c.swap(w.t.Context(), data); err != nil {
		w.t.Fatal(err)
	}
}

// dead is the lease of a process that will not renew it any more.
func dead(fence uint64) *Lease {
	return &Lease{
		Format: format.Version, MinReader: format.MinReader, Fence: fence, Session: uuid.New(),
		Identity: &Identity{Hostname: "elsewhere", PID: 4711}, Command: "lostd",
		Acquired: time.Now().UTC(), Renewed: time.Now().UTC(), TTLMillis: 30000, Beat: 7,
	}
}

// commitLog is the part of a commit log that barriers are: slots that are made
// once.
type commitLog struct {
	mu       sync.Mutex
	barriers []barrier
}

type barrier struct {
	fence   uint64
	session uuid.UUID
}

func (l *commitLog) replica() *replica { return &replica{log: l} }

func (l *commitLog) all() []barrier {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]barrier(nil), l.barriers...)
}

// replica is one process's Log.
type replica struct {
	log  *commitLog
	seen []barrier
	// catchUp, barrier and recover, when set, run first and may fail.
	catchUp, barrier, recover func(context.Context) error
}

func (r *replica) CatchUp(ctx context.Context) error {
	if r.catchUp != nil {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
	}
	r.seen = r.log.all()
	return nil
}

func (r *replica) Fence() (fence uint64) {
	for _, b := range r.seen {
		fence = max(fence, b.fence)
	}
	return fence
}

func (r *replica) Barrier(ctx context.Context, h *Hold) error {
	fence, session := h.Fence(), h.Session()
	if r.barrier != nil {
		if err := r.barrier(ctx); err != nil {
			return err
		}
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for _, b := range r.log.barriers {
		if b.fence >= fence && b.session != session {
			return fmt.Errorf("fence %d: %w", b.fence, ErrFenced)
		}
	}
	r.log.barriers = append(r.log.barriers, barrier{fence, session})
	return nil
}

func (r *replica) Recover(ctx context.Context, h *Hold) error {
	if r.recover != nil {
		return r.recover(ctx)
	}
	return nil
}

// faulty is the store as one process sees it, whose calls can be made to fail.
func (w *world) faulty() *faults.Driver { return faults.Wrap(w.store.Open()) }

// on makes a rule for writes or reads of the lease.
func on(ops faults.Op, times int, do faults.Action) faults.Rule {
	return faults.Rule{Ops: ops, Prefix: format.LeaseKey, Times: times, Do: do}
}

const writes = faults.Create | faults.Replace

// acquireOn is acquire by a process that sees the store through f.
func (w *world) acquireOn(f *faults.Driver, o Options) (*Hold, error) {
	return Acquire(w.t.Context(), f.Bucket(), w.log.replica(), w.options(o))
}

func (w *world) mustAcquireOn(f *faults.Driver) *Hold {
	w.t.Helper()
	h, err := w.acquireOn(f, Options{})
	if err != nil {
		w.t.Fatalf("acquire: %v", err)
	}
	return h
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, e := range want {
		if !errors.Is(err, e) {
			t.Fatalf("got the error %v, want one that wraps %q", err, e)
		}
	}
}

// pass lets time pass in a bubble of synctest.
func pass(d time.Duration) { <-time.After(d) }
