package testserver

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/swampd/swampd/backend"
)

// Store is an empty store on one of the backends, for tests with several
// processes.
type Store struct {
	Name string // fs, s3, gcs
	URL  string
	// Env gives a child process access to URL, for the end of exec.Cmd.Env.
	Env []string
	// Dir is the directory of a store on fs, empty for the others.
	Dir string
	// External: the store is one that the environment names.
	External bool

	open func(testing.TB) *backend.Bucket
}

// Open opens the store in this process until the test ends.
func (s *Store) Open(t testing.TB) *backend.Bucket {
	t.Helper()
	return s.open(t)
}

// Backends are the names that NewStore knows.
var Backends = []string{"fs", "s3", "gcs"}

// NewStore makes an empty store on a backend, whose package the test imports.
// Servers of the tests' own run until the test ends, without a limit of rate.
func NewStore(t testing.TB, name string) *Store {
	t.Helper()
	s := &Store{Name: name}
	s.open = func(t testing.TB) *backend.Bucket {
		t.Helper()
		b, err := backend.Open(t.Context(), s.URL)
		if err != nil {
			t.Fatalf("testserver: %v", err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	switch name {
	case "fs":
		s.Dir = filepath.Join(t.TempDir(), "store")
		s.URL = (&url.URL{Scheme: "file", Path: filepath.ToSlash(s.Dir)}).String()
	case "s3":
		srv := S3(t)
		s.URL, s.Env, s.External = srv.NewBucket(t), srv.Env(), srv.External()
		s.open = func(t testing.TB) *backend.Bucket { return srv.Open(t, s.URL) }
	case "gcs":
		srv := GCS(t)
		s.URL, s.External = srv.NewBucket(t), srv.External()
	default:
		t.Fatalf("testserver: there is no backend %q", name)
	}
	return s
}

// FullVariable, set to anything, makes tests do as many rounds as is claimed of
// them (a thousand races on each backend, fifty processes that contend), which
// takes minutes. Without it they do a part of that.
const FullVariable = "SWAMPD_TEST_FULL"

// Rounds is full, or the smaller part of it that is done by default.
func Rounds(full, part int) int {
	if os.Getenv(FullVariable) != "" {
		return full
	}
	return part
}

// OnEachStore runs f as a parallel subtest for each backend, with a store of its own.
func OnEachStore(t *testing.T, f func(*testing.T, *Store)) {
	t.Helper()
	for _, name := range Backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, NewStore(t, name))
		})
	}
}
