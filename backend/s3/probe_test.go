package s3_test

import (
	"net/http"
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
