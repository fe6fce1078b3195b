package datastore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	_ "github.com/swampd/swampd/backend/fs"
	_ "github.com/swampd/swampd/backend/gcs"
	_ "github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/childproc"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/internal/testserver"
	"github.com/swampd/swampd/writer"
)

// An actor is a process of its own that writes and reads a datastore on a real store
// as it is told to.

func init() {
	a := &acting{}
	childproc.Serve("datastore", func(line []byte) any {
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return &report{Err: err.Error()}
		}
		rep := &report{}
		rep.note(a.carryOut(&r, rep))
		return rep
	})
}

// request is what an actor is told to do.
type request struct {
	// Do: init or open (URL, StateDir, MaxWait); commit or stage (Path, Data), land or
	// discard what was staged; hold (with this TTL), lost (wait for the loss),
	// confirm, release, close; status, force; contend (Data is its name); or a read,
	// see reads.
	Do            string
	URL, StateDir string
	MaxWait       time.Duration
	TTL           time.Duration
	Path, Data    string
	Rounds        int
}

// report is what an actor answers.
type report struct {
	Err     string
	Is      []string // the sentinels in Err
	Slot    uint64
	Fence   uint64
	Session string
	Data    string
	Log     []string
	Paths   []string
	Status  *status
	Waits   []time.Duration // of contend, for each round
}

type status struct {
	Lease              *writer.Lease
	Standing, Evidence string
	Age, Takeover      time.Duration
}

var sentinels = map[string]error{
	"busy": ErrBusy, "fenced": ErrFenced, "expired": writer.ErrExpired, "released": writer.ErrReleased,
	"closed": ErrClosed, "unconfirmed": ErrUnconfirmed, "not found": ErrNotFound,
}

func (r *report) note(err error) {
	if err == nil {
		return
	}
	r.Err = err.Error()
	for name, s := range sentinels {
		if errors.Is(err, s) {
			r.Is = append(r.Is, name)
		}
	}
}

func (r *report) is(what string) bool { return slices.Contains(r.Is, what) }

// actorSkew is what actors wait beyond a TTL, so that tests need not wait for long.
const actorSkew = time.Second

// acting is the actor in its own process.
type acting struct {
	*Store
	url   string
	batch *Batch
}

func (a *acting) carryOut(r *request, rep *report) (err error) {
	ctx := context.Background()
	switch r.Do {
	case "init", "open":
		open := map[string]func(context.Context, string, *Options) (*Store, error){"init": Init, "open": Open}[r.Do]
		a.url = r.URL
		a.Store, err = open(ctx, r.URL, &Options{StateDir: r.StateDir, MaxWait: r.MaxWait, skew: actorSkew})
		return err
	case "commit", "stage":
		err = a.stage(ctx, r)
		if err == nil && r.Do == "commit" {
			err = a.land(ctx, rep)
		}
	case "land":
		err = a.land(ctx, rep)
	case "discard":
		err = a.batch.Discard()
	case "hold":
		err = a.take(ctx, r.TTL)
	case "lost":
		<-a.held().Context().Done()
		err = context.Cause(a.held().Context())
	case "confirm":
		err = a.held().Confirm(ctx)
	case "release":
		err = a.Release(ctx)
	case "close":
		return a.Close()
	case "status":
		return a.status(ctx, rep)
	case "force":
		victim, err := ForceRelease(ctx, a.url, nil)
		if victim != nil {
			rep.Fence, rep.Session = victim.Fence, victim.Session.String()
		}
		return err
	case "contend":
		return a.contend(ctx, r, rep)
	default:
		read := reads[r.Do]
		if read == nil {
			return fmt.Errorf("nobody knows how to %q", r.Do)
		}
		return read(ctx, a.Store, r, rep)
	}
	if h := a.held(); h != nil {
		rep.Fence, rep.Session = h.Fence(), h.Session().String()
	}
	return err
}

func (a *acting) stage(ctx context.Context, r *request) (err error) {
	if a.batch, err = a.Begin(ctx, nil); err != nil {
		return err
	}
	_, err = a.batch.Put(ctx, r.Path, bytes.NewReader([]byte(r.Data)), nil)
	return err
}

func (a *acting) land(ctx context.Context, rep *report) error {
	c, err := a.batch.Commit(ctx, "")
	if err == nil {
		rep.Slot = c.Slot
	}
	return err
}

// take makes the process the writer as Hold does, with another TTL.
func (a *acting) take(ctx context.Context, ttl time.Duration) error {
	o, err := a.writerOptions()
	if err != nil {
		return err
	}
	o.TTL = ttl
	h, err := writer.Acquire(ctx, a.bucket, logSeam{a.Store}, o)
	if err == nil {
		a.setHold(h)
	}
	return err
}

func (a *acting) status(ctx context.Context, rep *report) error {
	st, err := LockStatus(ctx, a.url, nil)
	if err == nil {
		rep.Status = &status{st.Lease, st.Verdict.Standing.String(), st.Verdict.Evidence, st.Age, st.Takeover}
	}
	return err
}

// contend commits a small file in each round and gives the lease back.
func (a *acting) contend(ctx context.Context, r *request, rep *report) error {
	for round := range r.Rounds {
		begun := time.Now()
		err := a.stage(ctx, &request{Path: fmt.Sprintf("%s/%d", r.Data, round), Data: r.Data})
		rep.Waits = append(rep.Waits, time.Since(begun))
		if err == nil {
			err = a.land(ctx, rep)
		}
		if err == nil {
			err = a.Release(ctx)
		}
		if err != nil {
			return fmt.Errorf("round %d, after %v: %w", round, rep.Waits, err)
		}
	}
	return nil
}

// reads are the ways to read: none needs the lease.
var reads = map[string]func(ctx context.Context, s *Store, r *request, rep *report) error{
	"update": func(ctx context.Context, s *Store, _ *request, rep *report) (err error) {
		rep.Slot, err = s.Update(ctx)
		return err
	},
	"get": func(ctx context.Context, s *Store, r *request, rep *report) error {
		data, err := s.Get(ctx, r.Path, nil)
		rep.Data = string(data)
		return err
	},
	"stat": func(ctx context.Context, s *Store, r *request, _ *report) error {
		_, err := s.Stat(ctx, r.Path, Newest)
		return err
	},
	"list": func(ctx context.Context, s *Store, _ *request, rep *report) error {
		for v, err := range s.List(ctx, nil) {
			if err != nil {
				return err
			}
			rep.Paths = append(rep.Paths, v.Path)
		}
		return nil
	},
	"history": func(ctx context.Context, s *Store, r *request, _ *report) error {
		for _, err := range s.History(ctx, r.Path) {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"log": func(ctx context.Context, s *Store, _ *request, rep *report) error {
		for e, err := range s.Log(ctx, &LogOptions{OldestFirst: true, All: true}) {
			if err != nil {
				return err
			}
			rep.Log = append(rep.Log, fmt.Sprintf("%d %s fence %d of %s", e.Slot, e.Kind, e.Fence, e.Session))
		}
		return nil
	},
	"verify": func(ctx context.Context, s *Store, _ *request, _ *report) error {
		v, err := s.Verify(ctx, &VerifyOptions{ReadData: true})
		if err == nil && !v.OK() {
			err = fmt.Errorf("verify found %+v", v.Findings)
		}
		return err
	},
}

// actor is such a process as the test sees it.
type actor struct {
	t testing.TB
	*childproc.Process
}

// startActor starts one with a state directory of its own that has opened s, or
// made the datastore in it. It does not wait for other writers.
func startActor(t testing.TB, s *testserver.Store, do string) *actor {
	t.Helper()
	return start(t, s, request{Do: do, MaxWait: -1})
}

func start(t testing.TB, s *testserver.Store, open request) *actor {
	t.Helper()
	a := &actor{t, childproc.Start(t, "datastore", &childproc.Options{Env: s.Env})}
	open.URL, open.StateDir = s.URL, t.TempDir()
	a.must(open)
	return a
}

func (a *actor) do(r request) *report {
	a.t.Helper()
	rep := &report{}
	a.Call(r, rep)
	return rep
}

func (a *actor) must(r request) *report {
	a.t.Helper()
	rep := a.do(r)
	if rep.Err != "" {
		a.t.Fatalf("%s %s: %s", r.Do, r.Path, rep.Err)
	}
	return rep
}

// refused wants the error of a request to wrap this sentinel.
func (a *actor) refused(r request, want string) *report {
	a.t.Helper()
	rep := a.do(r)
	if !rep.is(want) {
		a.t.Fatalf("%s %s: got %q (%v), want %s", r.Do, r.Path, rep.Err, rep.Is, want)
	}
	return rep
}

// put commits a path whose content is its name, and wants this fence.
func (a *actor) put(path string, fence uint64) *report {
	a.t.Helper()
	rep := a.must(request{Do: "commit", Path: path, Data: path})
	if rep.Fence != fence {
		a.t.Errorf("%s was committed under fence %d, want %d", path, rep.Fence, fence)
	}
	return rep
}

// wantPaths wants exactly these paths, each with its name as content, as a process
// sees it that has nothing but the store; and that verify finds nothing.
func wantPaths(t *testing.T, s *testserver.Store, want ...string) {
	t.Helper()
	a := startActor(t, s, "open")
	defer a.Kill()
	slices.Sort(want)
	if got := a.must(request{Do: "list"}).Paths; !slices.Equal(got, want) {
		t.Errorf("the state has %v, want %v", got, want)
	}
	for _, path := range want {
		if got := a.must(request{Do: "get", Path: path}).Data; got != path {
			t.Errorf("%s holds %q", path, got)
		}
	}
	a.must(request{Do: "verify"})
}

// leaseBytes is the record of the lease in the store.
func leaseBytes(t *testing.T, s *testserver.Store) string {
	t.Helper()
	data, err := getControl(t.Context(), s.Open(t), format.LeaseKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var readNames = slices.Sorted(maps.Keys(reads))
