package gcs

import (
	"errors"
	"slices"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

// A proxy that drops the conditions of writes is found out; the server behind it
// passes.
func TestProbe(t *testing.T) {
	srv := testserver.GCS(t)
	store := srv.NewBucket(t)
	if report, err := backend.Probe(t.Context(), backend.NewBucket(openDriver(t, store), store)); err != nil {
		t.Errorf("%v\n%v", err, report)
	}
	p := srv.Proxy(t)
	p.Inject(testserver.Fault{DropConditions: true})
	store = srv.ProxyURL(t, p, srv.NewBucket(t))
	report, err := backend.Probe(t.Context(), backend.NewBucket(openDriver(t, store), store))
	if !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("error %v, want %v", err, backend.ErrUnsupported)
	}
	want := []string{backend.CheckCreate, backend.CheckCreateRace, backend.CheckReplace, backend.CheckReplaceRace}
	if got := report.Failed(); !slices.Equal(got, want) {
		t.Errorf("failed: %q, want %q", got, want)
	}
}

// In a bucket that keeps old generations, a key that was deleted can be created
// again.
func TestProbePassesOnAVersionedBucket(t *testing.T) {
	srv := testserver.GCS(t)
	store := srv.NewVersionedBucket(t)
	if report, err := backend.Probe(t.Context(), backend.NewBucket(openDriver(t, store), store)); err != nil {
		t.Errorf("%v\n%v", err, report)
	}
}
