package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/format"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	return &o
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
	// catchUp and barrier, when set, run first and may fail.
	catchUp, barrier func(context.Context) error
}

func (r *replica) CatchUp(ctx context.Context) error {
	if r.catchUp != nil {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
	}
	r.seen = r.log.all()
	return ctx.Err()
}

func (r *replica) Fence() (fence uint64) {
	for _, b := range r.seen {
		fence = max(fence, b.fence)
	}
	return fence
}

func (r *replica) Barrier(ctx context.Context, fence uint64, session uuid.UUID) error {
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
	return ctx.Err()
}

// faulty stands before the driver of one process. write and read, when set,
// decide what becomes of a call on the lease.
type faulty struct {
	backend.Driver
	mu    sync.Mutex
	write func(ctx context.Context, do func(context.Context) (backend.Info, error)) (backend.Info, error)
	read  func(ctx context.Context) error
}

func (f *faulty) set(write func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error), read func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.write, f.read = write, read
}

func (f *faulty) hooks() (func(context.Context, func(context.Context) (backend.Info, error)) (backend.Info, error), func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write, f.read
}

func (f *faulty) Get(ctx context.Context, key string, o backend.GetOptions) (*backend.Object, error) {
	if _, read := f.hooks(); read != nil {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	return f.Driver.Get(ctx, key, o)
}

func (f *faulty) Create(ctx context.Context, key string, b backend.Body) (backend.Info, error) {
	do := func(ctx context.Context) (backend.Info, error) { return f.Driver.Create(ctx, key, b) }
	if write, _ := f.hooks(); write != nil {
		return write(ctx, do)
	}
	return do(ctx)
}

func (f *faulty) Replace(ctx context.Context, key string, b backend.Body, old backend.Version) (backend.Info, error) {
	do := func(ctx context.Context) (backend.Info, error) { return f.Driver.Replace(ctx, key, b, old) }
	if write, _ := f.hooks(); write != nil {
		return write(ctx, do)
	}
	return do(ctx)
}

// hang is a store that does not answer before the caller gives up.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", backend.ErrUnknown, ctx.Err())
}

// faultyBucket is a bucket whose driver's calls may be made to fail.
func (w *world) faultyBucket() (*faulty, *backend.Bucket) {
	f := &faulty{Driver: w.store.Open()}
	return f, backend.NewBucket(f, "mem://faulty")
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
