package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/backendtest/liar"
	"github.com/swampd/swampd/internal/faults"
)

var checks = []string{
	backend.CheckCreate, backend.CheckCreateRace, backend.CheckReplace, backend.CheckReplaceRace,
	backend.CheckReadWrites, backend.CheckListOrder, backend.CheckRanges, backend.CheckContent, backend.CheckCleanUp,
}

func ran(r *backend.ProbeReport) []string {
	var names []string
	for _, c := range r.Checks {
		names = append(names, c.Name)
	}
	return names
}

func TestProbePassesWhereTheContractHolds(t *testing.T) {
	for _, c := range []struct {
		name string
		opts memory.Options
	}{
		{"like a bucket", memory.Options{}},
		{"like a directory", memory.Options{NoDate: true}},
		{"with ETags", memory.Options{ContentVersions: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := memory.New(&c.opts)
			f := faults.Wrap(store.Open())
			report, err := backend.Probe(t.Context(), f.Bucket())
			if err != nil {
				t.Fatal(err)
			}
			if got := ran(report); !slices.Equal(got, checks) {
				t.Errorf("ran %q, want %q", got, checks)
			}
			for _, c := range report.Checks {
				if c.Err != nil || c.Promise == "" || c.Took < 0 {
					t.Errorf("%+v", c)
				}
			}
			if failed := report.Failed(); failed != nil {
				t.Errorf("failed: %q", failed)
			}
			if store.Len() != 0 {
				t.Errorf("%d objects are left", store.Len())
			}
			n := f.Counts()
			if want := "15 get, 22 create, 9 replace, 2 delete, 2 list"; n.String() != want {
				t.Errorf("requests: %v, want %v", n, want)
			}
			if report.Requests != n.Requests() {
				t.Errorf("the report says %d requests, the driver saw %d", report.Requests, n.Requests())
			}
		})
	}
}

// Two probes of one store at once do not meet.
func TestProbesDoNotMeet(t *testing.T) {
	store := memory.New(nil)
	errs := make(chan error)
	for range 4 {
		go func() {
			_, err := backend.Probe(t.Context(), store.Bucket())
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if store.Len() != 0 {
		t.Errorf("%d objects are left", store.Len())
	}
}

// refusedBy says which checks refuse which liar. What the probe does not look
// at, since the engine notices it by itself, is not here.
var refusedBy = map[string][]string{
	"create overwrites":                                  {backend.CheckCreate, backend.CheckCreateRace},
	"create answers ErrExists and overwrites":            {backend.CheckCreate},
	"create says ErrExists where nothing is":             {backend.CheckCreate, backend.CheckCreateRace},
	"create says ErrExists and makes it":                 {backend.CheckCreate, backend.CheckCreateRace},
	"create says done and makes nothing":                 {backend.CheckCreate, backend.CheckCreateRace},
	"create of the same bytes succeeds again":            {backend.CheckCreate},
	"create looks and then writes":                       {backend.CheckCreateRace},
	"replace ignores the version":                        {backend.CheckReplace, backend.CheckReplaceRace},
	"replace takes the version of any object":            {backend.CheckReplace},
	"replace makes what is missing":                      {backend.CheckReplace},
	"replace says done and does nothing":                 {backend.CheckReplace, backend.CheckReplaceRace},
	"replace tells the old version":                      {backend.CheckReplace},
	"IfVersion is ignored":                               {backend.CheckReplace},
	"replace looks and then writes":                      {backend.CheckReplaceRace},
	"a handle shows what it saw before":                  {backend.CheckReadWrites},
	"what was missing is still missing at the next look": {backend.CheckReadWrites},
	"a deleted key stays taken":                          {backend.CheckReadWrites},
	"delete says done and does nothing":                  {backend.CheckReadWrites},
	"a missing key is an empty object":                   {backend.CheckReadWrites},
	"list walks directories":                             {backend.CheckListOrder},
	"list has no order":                                  {backend.CheckListOrder},
	"after is included":                                  {backend.CheckListOrder},
	"after is ignored below a prefix":                    {backend.CheckListOrder},
	"a prefix ends at a slash":                           {backend.CheckReadWrites},
	"ranges are off by one":                              {backend.CheckRanges},
	"ranges are ignored":                                 {backend.CheckRanges},
	"the sha256 is not verified":                         {backend.CheckContent},
	"bad content is refused and stored":                  {backend.CheckContent},
	"the last byte is not stored":                        {backend.CheckCreate},
	"the last byte is not delivered":                     {backend.CheckCreate},
}

func TestProbeRefusesLiars(t *testing.T) {
	for name, by := range refusedBy {
		t.Run(name, func(t *testing.T) {
			b := liar.Named(name).New()()
			report, err := backend.Probe(t.Context(), b)
			if !errors.Is(err, backend.ErrUnsupported) {
				t.Fatalf("error %v, want %v", err, backend.ErrUnsupported)
			}
			for _, check := range by {
				c, _ := report.Check(check)
				if !errors.Is(c.Err, backend.ErrUnsupported) {
					t.Errorf("%s: %v, want %v", check, c.Err, backend.ErrUnsupported)
					continue
				}
				for _, part := range []string{check, "expected that " + c.Promise, "seen: ", ". "} {
					if !strings.Contains(c.Err.Error(), part) {
						t.Errorf("%q says nothing of %q", c.Err, part)
					}
				}
			}
			var berr *backend.Error
			if !errors.As(err, &berr) || berr.Op != "probe" || berr.Store != "liar://" {
				t.Errorf("%v is no error of a probe of liar://", err)
			}
			for _, f := range report.Failed() {
				if !strings.Contains(err.Error(), f) {
					t.Errorf("the error does not name %q, which failed", f)
				}
			}
		})
	}
}

// What a probe makes goes away whatever happens, at whatever call.
func TestProbeCleansUpAfterFaults(t *testing.T) {
	for name, do := range faults.Usual() {
		t.Run(name, func(t *testing.T) {
			faults.Sweep(t, func(t *testing.T, n int) bool {
				store := memory.New(nil)
				f := faults.Wrap(store.Open())
				fault := f.Add(faults.Rule{Nth: n, Do: do})
				report, err := backend.Probe(t.Context(), f.Bucket())
				if errors.Is(err, backend.ErrUnsupported) {
					t.Errorf("a fault is taken for a broken promise: %v", err)
				}
				if clean, ok := report.Check(backend.CheckCleanUp); ok && clean.Err == nil && store.Len() != 0 {
					t.Errorf("%d objects are left", store.Len())
				}
				if (err == nil) != (report.Failed() == nil) {
					t.Errorf("failed %q, error %v", report.Failed(), err)
				}
				return fault.Fired() > 0
			})
		})
	}
}

// Writes without a decision are asked again or read back: a probe passes over
// one of them at any write.
func TestProbePassesOverUndecidedWrites(t *testing.T) {
	for _, name := range []string{"no answer, not done", "no answer, but done", "busy", "conflict"} {
		t.Run(name, func(t *testing.T) {
			faults.Sweep(t, func(t *testing.T, n int) bool {
				f := faults.Wrap(memory.New(nil).Open())
				fault := f.Add(faults.Rule{Ops: faults.Create | faults.Replace, Nth: n, Do: faults.Usual()[name]})
				if report, err := backend.Probe(t.Context(), f.Bucket()); err != nil {
					t.Errorf("%v\n%v", err, report)
				}
				return fault.Fired() > 0
			})
		})
	}
}

func TestProbeThatCannotFinishSaysWhy(t *testing.T) {
	for _, want := range []error{backend.ErrDenied, backend.ErrNoBucket, backend.ErrUnknown, backend.ErrBusy, backend.ErrFull} {
		store := memory.New(nil)
		f := faults.Wrap(store.Open())
		f.Add(faults.Rule{Times: faults.Always, Do: faults.Fail(want)})
		report, err := backend.Probe(t.Context(), f.Bucket())
		if !errors.Is(err, want) || errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("error %v, want %v alone", err, want)
		}
		if n := f.Counts().Requests(); n > 10 {
			t.Errorf("%v: %d requests after the first that failed", want, n)
		}
		if first := report.Checks[0]; first.Name != backend.CheckCreate || !errors.Is(first.Err, want) || !strings.Contains(report.String(), "not finished") {
			t.Errorf("%v: the report says\n%v", want, report)
		}
		clean := slices.Contains(ran(report), backend.CheckCleanUp)
		if undecided := want == backend.ErrUnknown || want == backend.ErrBusy; clean != undecided {
			t.Errorf("%v: clean-up ran: %t, want %t", want, clean, undecided)
		}
	}
}

func TestProbeStopsWithItsContextAndCleansUp(t *testing.T) {
	store := memory.New(nil)
	f := faults.Wrap(store.Open())
	fault := f.Add(faults.Rule{Ops: faults.Replace, Do: faults.Block()})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-fault.Reached()
		cancel()
	}()
	report, err := backend.Probe(ctx, f.Bucket())
	if !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if got, want := report.Failed(), []string{backend.CheckReplace}; !slices.Equal(got, want) {
		t.Errorf("failed: %q, want %q", got, want)
	}
	if store.Len() != 0 {
		t.Errorf("%d objects are left", store.Len())
	}
}

func TestProbeTellsWhatRemains(t *testing.T) {
	store := memory.New(nil)
	f := faults.Wrap(store.Open())
	f.Add(faults.Rule{Ops: faults.Delete, Nth: 2, Times: faults.Always, Do: faults.Fail(backend.ErrDenied)})
	report, err := backend.Probe(t.Context(), f.Bucket())
	if !errors.Is(err, backend.ErrDenied) || !slices.Equal(report.Failed(), []string{backend.CheckCleanUp}) {
		t.Fatalf("failed %q, error %v, want %q, %v", report.Failed(), err, backend.CheckCleanUp, backend.ErrDenied)
	}
	for e, lerr := range store.Bucket().List(t.Context(), "", "") {
		if lerr != nil {
			t.Fatal(lerr)
		}
		if id := e.Key[strings.LastIndexByte(e.Key, '-')+1:]; !strings.Contains(err.Error(), "end with "+id) {
			t.Errorf("%v does not lead to %s", err, e.Key)
		}
	}
}

func TestProbeAsksAgainToCleanUp(t *testing.T) {
	store := memory.New(nil)
	f := faults.Wrap(store.Open())
	f.Add(faults.Rule{Ops: faults.Delete, Nth: 2, Do: faults.Fail(backend.ErrUnknown)})
	if _, err := backend.Probe(t.Context(), f.Bucket()); err != nil {
		t.Error(err)
	}
	if store.Len() != 0 {
		t.Errorf("%d objects are left", store.Len())
	}
}

func TestProbeShowsTheSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, skew := range []time.Duration{0, 90 * time.Second, -time.Hour} {
			store := memory.New(&memory.Options{Now: func() time.Time { return time.Now().Add(skew) }})
			f := faults.Wrap(store.Open())
			// Answers take a second each; the best is one that takes 200 ms.
			f.Add(faults.Rule{Ops: faults.Get, Nth: 2, Do: faults.Delay(200 * time.Millisecond)})
			f.Add(faults.Rule{Times: faults.Always, Do: faults.Delay(time.Second)})
			report, err := backend.Probe(t.Context(), f.Bucket())
			if err != nil {
				t.Fatal(err)
			}
			if d := report.Skew - skew; d.Abs() > 100*time.Millisecond || report.RoundTrip != 200*time.Millisecond {
				t.Errorf("skew %v, round trip %v; want %v, 200ms", report.Skew, report.RoundTrip, skew)
			}
			if report.Took < 20*time.Second {
				t.Errorf("took %v", report.Took)
			}
			word := map[bool]string{true: "behind", false: "ahead of"}[report.Skew < 0]
			if want := fmt.Sprintf("%v %s this machine's", report.Skew.Abs().Round(time.Millisecond), word); !strings.Contains(report.String(), want) {
				t.Errorf("the report does not say %q:\n%v", want, report)
			}
		}
	})
}

func TestProbeReportForPeople(t *testing.T) {
	report := &backend.ProbeReport{
		Checks: []backend.ProbeCheck{
			{Name: backend.CheckCreate, Took: 120 * time.Millisecond},
			{Name: backend.CheckReplace, Took: time.Second, Err: fmt.Errorf("%w: x", backend.ErrUnsupported)},
			{Name: backend.CheckRanges, Err: http.ErrHandlerTimeout},
		},
		Requests: 45,
		Took:     2 * time.Second,
	}
	want := `create-if-absent    passed        120ms
replace-if-version  FAILED        1s
ranges              not finished  0s
The store showed no clock.
45 requests in 2s
`
	if got := report.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
