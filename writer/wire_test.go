package writer

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/fs"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/internal/testserver"
)

// Answers about the lease that are lost, over each backend: on the wire where there
// is one, else between the driver and its caller.

// lossy is a store of which the process under test loses answers.
type lossy struct {
	seen   *backend.Bucket // as the process under test sees it
	direct *backend.Bucket
	// lose sets off what is lost, until end is called. lost counts the writes whose
	// answer was.
	lose func(loss) (lost func() int, end func())
}

// loss is how many answers to writes of the lease are lost, which are carried out;
// and how many reads of it fail, after so many that do not. -1 is all.
type loss struct{ writes, skip, reads int }

// attempts is how often the drivers send a read whose answer does not come.
const attempts = 5

func lossyStores() map[string]func(t *testing.T) *lossy {
	return map[string]func(t *testing.T) *lossy{
		"fs": func(t *testing.T) *lossy {
			dir := filepath.Join(t.TempDir(), "store")
			d, err := fs.New(dir, nil)
			must(t, err)
			f := faults.Wrap(d)
			t.Cleanup(func() { d.Close() })
			return &lossy{f.Bucket(), directory(t, dir), func(l loss) (func() int, func()) {
				writes := f.Add(faults.Rule{Ops: writes, Prefix: format.LeaseKey, Times: times(l.writes, faults.Always), Do: faults.Lose()})
				if l.reads != 0 {
					f.Add(faults.Rule{Ops: faults.Get, Prefix: format.LeaseKey, Nth: l.skip + 1, Times: times(l.reads, faults.Always), Do: faults.Fail(backend.ErrUnknown)})
				}
				return writes.Fired, f.Clear
			}}
		},
		"s3": func(t *testing.T) *lossy {
			srv := testserver.S3(t)
			p, url := srv.Proxy(t), srv.NewBucket(t)
			return &lossy{srv.Open(t, srv.ProxyURL(t, p, url)), srv.Open(t, url), onTheWire(p)}
		},
		"gcs": func(t *testing.T) *lossy {
			srv := testserver.GCS(t)
			p, url := srv.Proxy(t), srv.NewBucket(t)
			open := func(url string) *backend.Bucket {
				b, err := backend.Open(t.Context(), url)
				must(t, err)
				t.Cleanup(func() { b.Close() })
				return b
			}
			return &lossy{open(srv.ProxyURL(t, p, url)), open(url), onTheWire(p)}
		},
	}
}

func times(n, always int) int {
	if n < 0 {
		return always
	}
	return n
}

func onTheWire(p *testserver.Proxy) func(loss) (lost func() int, end func()) {
	lease := func(r *http.Request) bool {
		return strings.Contains(r.URL.Path, format.LeaseKey) || strings.Contains(r.URL.Query().Get("name"), format.LeaseKey)
	}
	isWrite := func(r *http.Request) bool { return r.Method == http.MethodPut || r.Method == http.MethodPost }
	return func(l loss) (func() int, func()) {
		all := []*testserver.Injected{p.Inject(testserver.Fault{Match: testserver.All(lease, isWrite), Times: times(l.writes, 0), LoseAnswer: true})}
		if l.reads != 0 {
			all = append(all, p.Inject(testserver.Fault{Match: testserver.All(lease, testserver.Not(isWrite)), Skip: l.skip, Times: times(l.reads*attempts, 0), Cut: true}))
		}
		return all[0].Hits, func() {
			for _, i := range all {
				i.Remove()
			}
		}
	}
}

func TestLostAnswersAboutTheLeaseOnEachBackend(t *testing.T) {
	for name, open := range lossyStores() {
		for what, reads := range map[string]int{"the answer": 0, "and of the look that was to tell": 1} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				loseEach(t, open(t), reads)
			})
		}
	}
}

// loseEach loses the answer of each kind of write, one after the other.
func loseEach(t *testing.T, s *lossy, reads int) {
	me, log := madeProcess(t, Self()), &bucketLog{bucket: s.direct}
	losing := func(what string, looks int, do func() error) {
		t.Helper()
		lost, end := s.lose(loss{1, looks, reads})
		defer end()
		if err := do(); err != nil || lost() != 1 {
			t.Fatalf("%s: %v, with %d answers lost, want 1", what, err, lost())
		}
	}
	for fence := uint64(1); fence <= 3; fence += 2 { // on nothing, and on a lease that was given back
		var h *Hold
		losing("acquire", 1, func() (err error) {
			h, err = Acquire(t.Context(), s.seen, log, &Options{Process: me, MaxWait: -1})
			return err
		})
		wantHeld(t, s, h, fence)
		losing("renewal", 0, func() error {
			return h.s.write(t.Context(), func(*Lease) {})
		})
		wantHeld(t, s, h, fence)
		losing("release", 0, func() error { return h.Close(t.Context()) })
		wantReleased(t, s, h.Session(), fence+1)
	}
}

// madeProcess is a process of its own within this one.
func madeProcess(t *testing.T, id *Identity) *Process {
	p := NewProcess(id, nil)
	t.Cleanup(p.End)
	return p
}

func anyone(t *testing.T) *Options {
	return &Options{Process: madeProcess(t, &Identity{Hostname: uuid.NewString(), PID: 4711}), MaxWait: -1}
}

// wantHeld: the hold stands, the store says so, and another is refused.
func wantHeld(t *testing.T, s *lossy, h *Hold, fence uint64) {
	t.Helper()
	if h.Err() != nil || h.Fence() != fence {
		t.Fatalf("fence %d, %v; want %d", h.Fence(), h.Err(), fence)
	}
	_, err := Acquire(t.Context(), s.direct, &bucketLog{bucket: s.direct}, anyone(t))
	busy := (*BusyError)(nil)
	if !errors.As(err, &busy) || busy.Holder.Session != h.Session() {
		t.Fatalf("another got %v, want busy for session %s", err, h.Session())
	}
}

// wantReleased: the session's record says released, and another gets the lease,
// with this fence.
func wantReleased(t *testing.T, s *lossy, session uuid.UUID, fence uint64) {
	t.Helper()
	st, err := Inspect(t.Context(), s.direct, nil)
	if err != nil || st.Held() || st.Lease.Session != session {
		t.Fatalf("the lease is %+v, %v; want that of %s, released", st, err, session)
	}
	h, err := Acquire(t.Context(), s.direct, &bucketLog{bucket: s.direct}, anyone(t))
	if err != nil || h.Fence() != fence {
		t.Fatalf("another got %+v, %v; want fence %d", h, err, fence)
	}
	must(t, h.Close(t.Context()))
}

// A process that could not find out whether it got the lease, for as long as it
// was willing to, is not in its own way later.
func TestAProcessIsNeverBusyWithItselfOnEachBackend(t *testing.T) {
	t.Parallel()
	type lost struct {
		*lossy
		o    *Options
		hits func() int
		end  func()
		err  chan error
	}
	all := map[string]*lost{}
	for name, open := range lossyStores() { // all of them at once: each takes some seconds
		s := &lost{lossy: open(t), o: &Options{Process: madeProcess(t, Self()), MaxWait: -1}, err: make(chan error, 1)}
		all[name] = s
		s.hits, s.end = s.lose(loss{writes: -1, skip: 1, reads: -1})
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := Acquire(ctx, s.seen, &bucketLog{bucket: s.direct}, s.o)
			s.err <- err
		}()
	}
	for name, s := range all {
		defer s.end()
		if err := <-s.err; err == nil || errors.Is(err, ErrBusy) || s.hits() == 0 {
			t.Fatalf("%s: got %v, with %d answers lost", name, err, s.hits())
		}
		st, err := Inspect(t.Context(), s.direct, nil)
		if err != nil || !st.Held() {
			t.Fatalf("%s: the lease is %+v, %v; want held: it had arrived", name, st, err)
		}
		s.end()
		h, err := Acquire(t.Context(), s.seen, &bucketLog{bucket: s.direct}, s.o)
		if err != nil || h.Fence() <= st.Lease.Fence {
			t.Fatalf("%s: got %+v, %v after fence %d", name, h, err, st.Lease.Fence)
		}
		wantHeld(t, s.lossy, h, h.Fence())
		must(t, h.Close(t.Context()))
	}
}
