// Package datastore is a versioned file datastore over a directory, an S3
// bucket or a GCS bucket, without a server.
//
// The state is a map from paths to contents with metadata; it changes only by
// commits. A commit is decided by exactly one conditional create of the next
// numbered record of the log (design/commit.md), so it is there wholly or not
// at all, and one that was acknowledged is never lost. One process at a time
// writes; whoever takes over occupies the next slot first, so that the writer
// before cannot commit any more, whatever its clock or the lease says. Any
// number of processes read.
//
// On failure: an error says by its sentinel what to do next (see ErrBusy,
// ErrUnconfirmed, ErrFenced, ErrConflict …). Local files (Options.StateDir) hold
// only a cache and what is staged; deleting the cache loses nothing.
//
// A Store is safe for concurrent use.
package datastore

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/writer"
)

// Options says more of a Store. Nil and zero fields mean the defaults.
type Options struct {
	// StateDir holds the catalog cache and staged contents of this datastore.
	// Default: <user's state directory>/swampd/<datastore id>. On a network
	// filesystem it is refused, see CheckStateDir.
	StateDir string
	// Command is what other processes are told when they wait for this one.
	Command string
	// MaxWait is how long Begin waits for another writer: zero = 60 s,
	// negative = not at all.
	MaxWait time.Duration
	// Waiting is called while Begin waits, several times a second.
	Waiting func(writer.Wait)
	// Writer and Epoch name this writer, as configured: who, and in which
	// incarnation of its configuration. They are shown to who waits.
	Writer, Epoch string
	// FastAdoption, for daemons that a supervisor restarts: a process with the same
	// Writer, Epoch and StateDir takes over within about a second (buckets: eight)
	// also where it cannot see that the one before has died, as in a new container.
	// It needs Writer, Epoch, and a StateDir that survives the restart. Start no
	// second process with the same writer id by hand while the first may live.
	FastAdoption bool
	// Progress is called now and then during long work, from any goroutine.
	Progress func(Progress)
	// Uploads is how many data objects are sent at once, 1 to 64; default 4.
	Uploads int
	// CheckpointSlots and CheckpointBytes say after how much log a checkpoint is
	// made. Defaults: 1,000 slots, 64 MiB; negative = never.
	CheckpointSlots int
	CheckpointBytes int64
	// LandingTimeout is how long Commit tries to get an answer about its one
	// create before it returns ErrUnconfirmed. Default 60 s.
	LandingTimeout time.Duration
	// Logger gets what is worth knowing and no error of a call; default none.
	Logger *slog.Logger
	// SkipProbe, for Init: trust the store without proving what it can do.
	SkipProbe bool

	now       func() time.Time // for persisted times; tests
	closeWait time.Duration    // of Close for lease and accounting; tests
	process   *writer.Process  // nil: this one; tests
	skew      time.Duration    // writer.Options.Skew; tests
	connect   func(context.Context) (*backend.Bucket, error)
}

// Init makes a new datastore at url and opens it. The store is probed first:
// one that ignores conditions is refused with ErrUnsupportedStore. ErrExists if
// there is a datastore already. An Init that was interrupted can be repeated.
func Init(ctx context.Context, url string, opts *Options) (*Store, error) {
	s, err := initStore(ctx, url, opts)
	return s, fail("init", backend.Redact(url), err)
}

// Open opens the datastore at url and catches up with its log: two round trips
// if the local cache is current. ErrNotFound if there is no datastore.
func Open(ctx context.Context, url string, opts *Options) (*Store, error) {
	s, err := openStore(ctx, url, opts)
	return s, fail("open", backend.Redact(url), err)
}

// ID returns the datastore's id.
func (s *Store) ID() uuid.UUID { return s.marker.Datastore }

// URL returns the address of the store, without secrets.
func (s *Store) URL() string { return s.bucket.URL() }
