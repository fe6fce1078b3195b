package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/writer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// database/sql's opener goroutine ends with the database, a little later.
		goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"),
		// Google's client has a package that starts one when it is linked in.
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// env is one datastore on the reference store, with any number of processes
// (Stores with their own state directory and fault driver). When the test ends,
// Verify must find nothing.
type env struct {
	t     *testing.T
	store *memory.Store
	clock *clock
	// damaged is set by tests that break the store on purpose.
	damaged bool
}

// clock is the store's clock, set by tests.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newEnv(t *testing.T, opts *memory.Options) *env {
	t.Helper()
	e := &env{t: t, clock: &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}}
	if opts == nil {
		opts = &memory.Options{}
	}
	if opts.Now == nil {
		opts.Now = e.clock.Now
	}
	e.store = memory.New(opts)
	o := (*Options)(nil).withDefaults()
	o.SkipProbe = true
	if err := initBucket(t.Context(), e.store.Bucket(), &o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() && !e.damaged {
			e.verify()
		}
	})
	return e
}

// verify checks every byte with a process of its own.
func (e *env) verify() *VerifyReport {
	e.t.Helper()
	p := e.open(nil)
	defer p.close()
	r, err := p.Verify(context.Background(), &VerifyOptions{ReadData: true})
	if err != nil {
		e.t.Fatalf("verify: %v", err)
	}
	if !r.OK() {
		e.t.Fatalf("verify found: %+v", r.Findings)
	}
	return r
}

// proc is one process: a Store with its own fault driver and state directory.
type proc struct {
	*Store
	t      *testing.T
	faults *faults.Driver
	dir    string
}

// open starts a process with an empty state directory, unless opts names one.
func (e *env) open(opts *Options) *proc {
	e.t.Helper()
	p, err := e.tryOpen(opts)
	if err != nil {
		e.t.Fatalf("open: %v", err)
	}
	return p
}

func (e *env) tryOpen(opts *Options) (*proc, error) {
	e.t.Helper()
	f := faults.Wrap(e.store.Open())
	o := opts.withDefaults()
	if o.StateDir == "" {
		o.StateDir = e.t.TempDir()
	}
	if o.process == nil {
		o.process = stranger(e.t)
	}
	s, err := openBucket(context.Background(), f.Bucket(), o)
	if err != nil {
		return nil, err
	}
	p := &proc{Store: s, t: e.t, faults: f, dir: o.StateDir}
	e.t.Cleanup(p.close)
	return p, nil
}

// stranger is a process that no other can see.
func stranger(t testing.TB) *writer.Process {
	p := writer.NewProcess(&writer.Identity{Hostname: uuid.NewString(), PID: 4711}, nil)
	t.Cleanup(p.End)
	return p
}

func (p *proc) close() {
	p.t.Helper()
	p.faults.Clear()
	if err := p.Close(); err != nil {
		p.t.Errorf("close: %v", err)
	}
}

// put commits contents by path and returns the commit.
func (p *proc) put(contents map[string][]byte) *Commit {
	p.t.Helper()
	c, err := p.tryPut(uuid.Nil, contents)
	if err != nil {
		p.t.Fatalf("commit: %v", err)
	}
	return c
}

func (p *proc) tryPut(id uuid.UUID, contents map[string][]byte) (*Commit, error) {
	p.t.Helper()
	ctx := context.Background()
	b, err := p.Begin(ctx, &BatchOptions{ID: id})
	if err != nil {
		return nil, err
	}
	for path, data := range contents {
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			return nil, errors.Join(err, b.Discard())
		}
	}
	return b.Commit(ctx, fmt.Sprintf("put %d", len(contents)))
}

// want checks the newest content of each path; nil means: not there.
func (p *proc) want(contents map[string][]byte) {
	p.t.Helper()
	p.wantAt(Newest, contents)
}

func (p *proc) wantAt(at uint64, contents map[string][]byte) {
	p.t.Helper()
	for path, data := range contents {
		got, err := p.Get(context.Background(), path, &ReadOptions{At: at})
		switch {
		case data == nil && !errors.Is(err, ErrNotFound):
			p.t.Errorf("%s: got %d bytes, error %v, want ErrNotFound", path, len(got), err)
		case data != nil && err != nil:
			p.t.Errorf("%s: %v", path, err)
		case data != nil && !bytes.Equal(got, data):
			p.t.Errorf("%s: got %d bytes, want %d others", path, len(got), len(data))
		}
	}
}

func (p *proc) paths(o *ListOptions) []string {
	p.t.Helper()
	var paths []string
	for v, err := range p.List(context.Background(), o) {
		if err != nil {
			p.t.Fatal(err)
		}
		paths = append(paths, v.Path)
	}
	return paths
}

// noise makes bytes that do not compress, always the same for one seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	r.Read(b)
	return b
}

func text(n int) []byte { return bytes.Repeat([]byte("It was a dark and stormy bucket. "), n/33+1)[:n] }
