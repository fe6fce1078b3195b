package writer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/fs"
	_ "github.com/swampd/swampd/backend/gcs"
	_ "github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/childproc"
	"github.com/swampd/swampd/internal/testserver"
)

// An actor is a process of its own that acquires, keeps and loses the lease of a
// real store as it is told to.

func init() {
	a := &acting{}
	childproc.Serve("writer", func(line []byte) any {
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
	// Do: open (URL; with Nobody, as that user; with Apart, in namespaces that the
	// process was started in), acquire (Options), lost (wait for the loss), err,
	// confirm, close, inspect, probe (what kill says of PID), next pid (PID is the next
	// that is given in its pid namespace).
	Do            string
	URL           string
	Nobody, Apart bool
	Options       actorOptions
	PID           int
}

type actorOptions struct {
	MaxWait, TTL, Skew, Beat time.Duration
	Writer, Epoch, Guard     string
	FastAdoption             bool
	// Beats: give up after so many renewals of another were seen.
	Beats int
}

// report is what an actor answers.
type report struct {
	Err     string
	Is      []string // the sentinels in Err
	Fence   uint64
	Session string
	Self    *Identity
	Log     string // what was logged

	// Of acquire: when it began and ended, and how many renewals of others it saw.
	Began, Ended time.Time
	Took         time.Duration
	Beats        int
	// Of acquire, if it waited, and of inspect: what it saw last.
	Waited             bool
	Standing, Evidence string
	Holder             *Lease
	Age, Takeover      time.Duration
	Adoption           bool
}

var sentinels = map[string]error{
	"busy": ErrBusy, "fenced": ErrFenced, "expired": ErrExpired, "released": ErrReleased,
	"not confirmed": ErrNotConfirmed, "canceled": context.Canceled,
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

// acting is the actor in its own process.
type acting struct {
	bucket *backend.Bucket
	log    *bucketLog
	hold   *Hold
}

func (a *acting) carryOut(r *request, rep *report) (err error) {
	ctx := context.Background()
	switch r.Do {
	case "open":
		if r.Apart {
			err = childproc.OwnProc()
		}
		if err == nil && r.Nobody {
			err = childproc.BecomeNobody()
		}
		if err == nil {
			a.bucket, err = backend.Open(ctx, r.URL)
		}
		rep.Self = Self()
		a.log = &bucketLog{bucket: a.bucket}
	case "acquire":
		return a.acquire(&r.Options, rep)
	case "lost":
		<-a.hold.Context().Done()
		return context.Cause(a.hold.Context())
	case "err":
		return a.hold.Err()
	case "confirm":
		return a.hold.Confirm(ctx)
	case "close":
		return a.hold.Close(ctx)
	case "inspect":
		st, err := Inspect(ctx, a.bucket, nil)
		if err == nil {
			rep.Holder, rep.Age, rep.Takeover = st.Lease, st.Age, st.Takeover
			rep.Standing, rep.Evidence = st.Verdict.Standing.String(), st.Verdict.Evidence
		}
		return err
	case "next pid":
		return childproc.NextPID(r.PID)
	case "probe":
		if err := syscall.Kill(r.PID, 0); err != nil {
			return err
		}
	default:
		return fmt.Errorf("nobody knows how to %q", r.Do)
	}
	return err
}

func (a *acting) acquire(o *actorOptions, rep *report) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var logged bytes.Buffer
	seen := map[string]bool{}
	start := bootClock()
	rep.Began = time.Now()
	h, err := Acquire(ctx, a.bucket, a.log, &Options{
		MaxWait: o.MaxWait, TTL: o.TTL, Skew: o.Skew, Beat: o.Beat,
		Writer: o.Writer, Epoch: o.Epoch, Guard: o.Guard, FastAdoption: o.FastAdoption,
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Waiting: func(w Wait) {
			rep.Waited, rep.Holder, rep.Adoption = true, &w.Holder, w.Adoption
			rep.Standing, rep.Evidence = w.Verdict.Standing.String(), w.Verdict.Evidence
			rep.Age, rep.Takeover = w.Age, w.Takeover
			seen[fmt.Sprint(w.Holder.Session, w.Holder.Beat)] = true
			if o.Beats > 0 && len(seen) > o.Beats {
				cancel()
			}
		},
	})
	rep.Took, rep.Ended = bootClock()-start, time.Now()
	rep.Beats, rep.Log = max(len(seen)-1, 0), logged.String()
	if err != nil {
		return err
	}
	a.hold = h
	rep.Fence, rep.Session = h.Fence(), h.Session().String()
	return nil
}

// actor is such a process as the test sees it.
type actor struct {
	t testing.TB
	*childproc.Process
	self *Identity
}

// place is where an actor runs.
type place int

const (
	beside    place = iota // where the test does
	elsewhere              // in a pid namespace of its own, with the same hostname
	nobody                 // as another user
)

func startActor(t testing.TB, s *testserver.Store, where place) *actor {
	t.Helper()
	o := &childproc.Options{Env: s.Env}
	if where == elsewhere {
		o.Attr = childproc.Apart()
	}
	a := &actor{t: t, Process: childproc.Start(t, "writer", o)}
	a.self = a.must(request{Do: "open", URL: s.URL, Apart: where == elsewhere, Nobody: where == nobody}).Self
	return a
}

// startIn starts an actor in the pid namespace of another.
func startIn(t testing.TB, s *testserver.Store, other *actor) *actor {
	t.Helper()
	a := &actor{t: t, Process: childproc.StartBeside(t, "writer", other.Process, s.Env)}
	a.self = a.must(request{Do: "open", URL: s.URL, Apart: true}).Self
	return a
}

func (a *actor) call(r request) *report {
	a.t.Helper()
	rep := &report{}
	a.Call(r, rep)
	return rep
}

func (a *actor) must(r request) *report {
	a.t.Helper()
	rep := a.call(r)
	if rep.Err != "" {
		a.t.Fatalf("%s: %s", r.Do, rep.Err)
	}
	return rep
}

func (a *actor) acquire(o actorOptions) *report {
	a.t.Helper()
	return a.call(request{Do: "acquire", Options: o})
}

// mustAcquire wants the hold with this fence.
func (a *actor) mustAcquire(o actorOptions, fence uint64) *report {
	a.t.Helper()
	rep := a.must(request{Do: "acquire", Options: o})
	if rep.Fence != fence {
		a.t.Fatalf("acquired fence %d, want %d", rep.Fence, fence)
	}
	return rep
}

// wantBusy wants that it was refused for a holder of this standing.
func (a *actor) wantBusy(rep *report, want Standing) {
	a.t.Helper()
	if !rep.is("busy") || rep.Standing != want.String() {
		a.t.Fatalf("got %+v, want busy, the holder %v", rep, want)
	}
}
