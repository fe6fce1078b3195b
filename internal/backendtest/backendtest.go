// Package backendtest is the conformance suite of package backend: every
// sentence of the contract of backend.Driver, and every rule of Bucket and of
// keys, is a subtest. Races run over two handles on one store and many
// goroutines. A driver that passes Run can carry a datastore.
//
// A driver's own package runs it like this:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, backendtest.Harness{
//			New: func(t testing.TB) func() *backend.Bucket {
//				dir := t.TempDir()
//				return func() *backend.Bucket {
//					b, err := backend.Open(t.Context(), dir)
//					if err != nil {
//						t.Fatal(err)
//					}
//					return b
//				}
//			},
//		})
//	}
//
// New makes a store that is empty and used by nobody else: a fresh directory, a
// fresh bucket, or a fresh prefix in a bucket. Where the store outlives the
// test, New registers its removal with t.Cleanup; RemoveAll helps. Buckets that
// the returned function opens are closed by the suite, before that clean-up.
// Handles must not share state in the process beyond what the driver shares
// itself, so that two of them stand for two processes. For S3 and GCS the New of
// the harness starts (or shares) a server, makes a bucket, and sets what the
// store is allowed: Dates, ContentVersions on S3, SlowRaces and LostAnswers
// where the server needs them. The other fields say what the store promises, and
// what it promises is then demanded.
//
// Subtests are named Group/what_must_hold; `go test -run
// 'TestConformance/Create'` runs a group. With -short, and with -race, the sizes
// are smaller and the races shorter, nothing is left out. The suite itself is tested by drivers
// that each break one rule (see broken_test.go): every subtest is failed by at
// least one of them.
package backendtest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
)

// Harness is how the suite gets at stores, and what those stores promise beyond
// the contract.
type Harness struct {
	// New makes a fresh empty store for one test and returns how to open one more
	// handle on it. It is called for each subtest; the function it returns several
	// times, also from other goroutines than the test's.
	New func(t testing.TB) (open func() *backend.Bucket)

	// Dates says that every answer carries the store's clock in Info.Date, and
	// the errors that are answers (ErrNotFound, ErrExists, ErrChanged) too. If
	// false, none may carry one.
	Dates bool
	// ContentVersions says that versions are derived from the content (S3 ETags):
	// equal bytes may then have equal versions.
	ContentVersions bool
	// SlowRaces says that the store takes few writes a second to one name. Races
	// are shorter then, and their losers may see ErrBusy or ErrConflict.
	SlowRaces bool
	// LostAnswers says that the store may lose answers in a race (a connection
	// that is reset after a refusal): callers may see ErrUnknown then. What the
	// store holds is judged all the same.
	LostAnswers bool
	// Large says that the store takes large bodies in several parts (multipart,
	// resumable). The tests of such uploads send PartsSize bytes then, or 70 MiB
	// if it is 0; with -short, and where Large is not set, 6 MiB. With -race and no
	// PartsSize it is 24 MiB, since servers in the process of the test would need
	// many times the memory: set PartsSize where a driver can be opened with
	// smaller parts.
	Large     bool
	PartsSize int
	// Timeout bounds each subtest; 0 means 2 minutes.
	Timeout time.Duration
	// IgnoreLeaks names goroutines that belong to the test's server and stay.
	IgnoreLeaks []goleak.Option
}

// subtest is one sentence of the contract.
type subtest struct {
	name string
	run  func(e *env)
}

// env is what a subtest works with: a fresh store and two handles on it.
type env struct {
	testing.TB
	h    Harness
	open func() *backend.Bucket
	ctx  context.Context
	a, b *backend.Bucket

	races int         // races so far
	large atomic.Bool // large bodies were sent
	many  *manyObjects
}

// Run runs the suite against the stores of h.
func Run(t *testing.T, h Harness) {
	if h.New == nil {
		t.Fatal("the harness has no New")
	}
	if h.Timeout == 0 {
		h.Timeout = 2 * time.Minute
	}
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			many := &manyObjects{t: t}
			for _, s := range g.tests {
				t.Run(underscored(s.name), func(t *testing.T) {
					e := newEnv(t, h)
					e.many = many
					s.run(e)
				})
			}
		})
	}
}

// underscored is the name of a subtest as the testing package writes it.
func underscored(name string) string { return strings.ReplaceAll(name, " ", "_") }

type group struct {
	name  string
	tests []subtest
}

func groups() []group {
	return []group{
		{"Get", getTests},
		{"Create", createTests},
		{"CreateRace", createRaceTests},
		{"Replace", replaceTests},
		{"ReplaceRace", replaceRaceTests},
		{"Delete", deleteTests},
		{"List", listTests},
		{"Info", infoTests},
		{"Errors", errorTests},
		{"Life", lifeTests},
		{"Model", modelTests},
	}
}

func newEnv(t *testing.T, h Harness) *env {
	ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
	t.Cleanup(cancel)
	e := &env{TB: t, h: h, ctx: ctx}
	open := h.New(t)
	e.open = func() *backend.Bucket { return e.opened(open) }
	e.a, e.b = e.open(), e.open()
	t.Cleanup(func() {
		// Servers of tests keep what they hold in memory for as long as they live.
		if e.large.Load() && !t.Failed() {
			if err := RemoveAll(context.WithoutCancel(ctx), e.open()); err != nil {
				t.Errorf("removing the objects of the test: %v", err)
			}
		}
	})
	return e
}

// opened opens a handle that is closed at the end of the test.
func (e *env) opened(open func() *backend.Bucket) *backend.Bucket {
	b := open()
	e.Cleanup(func() {
		if err := b.Close(); err != nil && !errors.Is(err, backend.ErrClosed) {
			e.Errorf("closing a handle: %v", err)
		}
	})
	return b
}

// RemoveAll removes every object that b shows, for harnesses whose store
// outlives the test.
func RemoveAll(ctx context.Context, b *backend.Bucket) error {
	var keys []string
	for entry, err := range b.List(ctx, "", "") {
		if err != nil {
			return err
		}
		keys = append(keys, entry.Key)
	}
	return b.Delete(ctx, keys)
}
