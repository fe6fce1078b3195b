package s3_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

// isCompletion matches the request that makes an object of its parts.
func isCompletion(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
}

// A store may keep the conditions of a PUT and not those of the completion of a
// multipart upload: the two came years apart.
func TestProbeTriesUploadsInParts(t *testing.T) {
	w := newWired(t)
	report, err := backend.Probe(t.Context(), w.b)
	if err != nil {
		t.Fatal(err)
	}
	if _, ran := report.Check(backend.CheckParts); !ran {
		t.Errorf("no check of uploads in parts:\n%v", report)
	}
	for key := range keysOf(t, w.direct) {
		t.Errorf("%s is left", key)
	}
	for name, fault := range map[string]testserver.Fault{
		"ignores the condition of a completion": {Match: isCompletion, DropConditions: true},
		"knows no uploads in parts":             {Match: testserver.HasQuery("uploads"), Status: http.StatusNotImplemented, Code: "NotImplemented"},
	} {
		t.Run(name, func(t *testing.T) {
			injected := w.proxy.Inject(fault)
			defer injected.Remove()
			report, err := backend.Probe(t.Context(), w.b)
			wantError(t, err, backend.ErrUnsupported)
			if failed := report.Failed(); len(failed) != 1 || failed[0] != backend.CheckParts {
				t.Errorf("failed: %q, want %q", failed, backend.CheckParts)
			}
		})
	}
}

// A store, or a proxy before it, that drops all conditions is found out by the same
// checks on S3 as on GCS, and by that of uploads in parts.
func TestProbeFindsDroppedConditions(t *testing.T) {
	w := newWired(t)
	w.proxy.Inject(testserver.Fault{DropConditions: true})
	report, err := backend.Probe(t.Context(), w.b)
	wantError(t, err, backend.ErrUnsupported)
	want := []string{backend.CheckCreate, backend.CheckCreateRace, backend.CheckParts, backend.CheckReplace, backend.CheckReplaceRace}
	if got := report.Failed(); !slices.Equal(got, want) {
		t.Errorf("failed: %q, want %q", got, want)
	}
}

// In a bucket that keeps versions, what was deleted leaves a mark behind. To the
// server of the tests the mark is an object, so that nothing can be created there
// again: that is found out, and said. On S3 itself a mark is nothing, as it is
// behind the proxy.
func TestProbeOfAVersionedBucket(t *testing.T) {
	srv := testserver.S3(t)
	store := srv.NewVersionedBucket(t)
	report, err := backend.Probe(t.Context(), srv.Open(t, store))
	wantError(t, err, backend.ErrUnsupported, "the create of a key that was deleted failed", "a bucket without versioning")
	if got := report.Failed(); len(got) != 1 || got[0] != backend.CheckReadWrites {
		t.Errorf("failed: %q, want %q", got, backend.CheckReadWrites)
	}

	p := srv.Proxy(t)
	again := p.Inject(testserver.Fault{Match: testserver.All(isPut, testserver.HasHeader("If-None-Match"), func(r *http.Request) bool {
		return strings.Contains(r.URL.Path, "/reread-")
	}), Skip: 1, DropConditions: true})
	b := srv.Open(t, srv.ProxyURL(t, p, store))
	if report, err := backend.Probe(t.Context(), b); err != nil || again.Hits() != 1 {
		t.Errorf("%v; %d creates after a delete, want 1\n%v", err, again.Hits(), report)
	}
	for key := range keysOf(t, b) {
		t.Errorf("%s is left", key)
	}
}

func keysOf(t *testing.T, b *backend.Bucket) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for e, err := range b.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		keys[e.Key] = true
	}
	return keys
}
