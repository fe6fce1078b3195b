// Package catalog is the local replica of a datastore's commit log: commits.db,
// a SQLite file that answers what the log says without asking the store.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

var errSkeleton = errors.New("catalog: not yet")

// Options say whose catalog it is.
type Options struct {
	Datastore uuid.UUID
	Genesis   format.Hash // what slot 1 has as Prev: the sha256 of _control/format
}

// DB is one open catalog. All methods are safe for concurrent use, by several
// processes too.
type DB struct{ path string }

// Open opens the catalog at path, or makes an empty one.
func Open(ctx context.Context, path string, opts Options) (*DB, error) { return nil, errSkeleton }

// Path returns the file's path.
func (db *DB) Path() string { return db.path }

// Close ends all connections. Snapshots that are still open fail afterwards.
func (db *DB) Close() error { return errSkeleton }

// State returns where the catalog stands.
func (db *DB) State(ctx context.Context) (State, error) { return State{}, errSkeleton }

// Update runs fn in one write transaction: all of what it folded stays, or,
// when it returns an error, nothing.
func (db *DB) Update(ctx context.Context, fn func(*Tx) error) error { return errSkeleton }

// Reset empties the catalog.
func (db *DB) Reset(ctx context.Context) error { return errSkeleton }

// LoadCheckpoint replaces all content by the checkpoint's, in one transaction,
// with bounded memory. shard is asked for the shards in the order of
// root.Shards. It does nothing if the catalog is at root.Seq or beyond.
func (db *DB) LoadCheckpoint(ctx context.Context, root *format.Root, ck format.Checkpoint,
	shard func(format.ShardRef) (*format.Shard, error)) error {
	return errSkeleton
}

// Snapshot opens a view of one state, which updates do not change. The caller
// closes it.
func (db *DB) Snapshot(ctx context.Context) (*Snapshot, error) { return nil, errSkeleton }

// Tx is a write transaction, valid inside of Update's function.
type Tx struct{}

// State returns where the transaction stands, earlier folds included.
func (tx *Tx) State() State { return State{} }

// Fold applies one record. size is that of its object and of its lists; hash is
// the sha256 of the object. block reads one change list.
//
// A record at or below the head is skipped, unless the catalog holds another at
// that slot (ErrFork). ErrGap and ErrChain as they say. A Fold that fails leaves
// the transaction as it was before it.
func (tx *Tx) Fold(ctx context.Context, rec *format.Record, hash format.Hash, size int64,
	block func(format.ListRef) (*format.Block, error)) error {
	return errSkeleton
}

// SetCheckpoint notes the newest checkpoint of the store. Nothing in it moves
// backwards; what was kept for making this checkpoint is forgotten.
func (tx *Tx) SetCheckpoint(ctx context.Context, ck format.Checkpoint) error { return errSkeleton }

// Snapshot is a view of one state. Its methods are safe for concurrent use and
// its iterators may be nested; each iterator ends with at most one error.
type Snapshot struct{}

// Close ends the view.
func (s *Snapshot) Close() error { return errSkeleton }

// State returns where the view stands.
func (s *Snapshot) State() State { return State{} }

// Lookup returns the version that path had after slot at (0 = head). ErrNoVersion
// if it had none or was deleted; with a delete marker, the Version is returned
// beside the error (Op is OpDelete, otherwise 0).
func (s *Snapshot) Lookup(ctx context.Context, path string, at uint64) (Version, error) {
	return Version{}, errSkeleton
}

// List yields the paths that were alive after slot at (0 = head), begin with
// prefix and are greater than after, in byte order.
func (s *Snapshot) List(ctx context.Context, prefix, after string, at uint64) iter.Seq2[Version, error] {
	return nil
}

// History yields the retained versions of path, newest first, delete markers
// included.
func (s *Snapshot) History(ctx context.Context, path string) iter.Seq2[Version, error] { return nil }

// Changed yields the paths that begin with prefix and have a retained version of
// a slot in (from, to], each once, in byte order. Its cost grows with the number
// of those versions only.
func (s *Snapshot) Changed(ctx context.Context, from, to uint64, prefix string) iter.Seq2[string, error] {
	return nil
}

// Log yields the slots in (from, to] (to 0 = head).
func (s *Snapshot) Log(ctx context.Context, from, to uint64, newestFirst bool) iter.Seq2[format.LogRow, error] {
	return nil
}

// Entry finds an entry by its id.
func (s *Snapshot) Entry(ctx context.Context, id uuid.UUID) (slot uint64, entry format.LogEntry, found bool, err error) {
	return 0, format.LogEntry{}, false, errSkeleton
}

// ChangedSince finds the newest version of path of a slot above base that the
// entry own did not make (R11).
func (s *Snapshot) ChangedSince(ctx context.Context, path string, base uint64, own uuid.UUID) (slot uint64, entry uuid.UUID, found bool, err error) {
	return 0, uuid.Nil, false, errSkeleton
}

// FindContent finds a place in a live data object that holds this content. It
// never returns an inline place (R6).
func (s *Snapshot) FindContent(ctx context.Context, sha256 format.Hash, size int64) (place Located, found bool, err error) {
	return Located{}, false, errSkeleton
}

// Object finds a data object by name.
func (s *Snapshot) Object(ctx context.Context, name string) (row Object, found bool, err error) {
	return Object{}, false, errSkeleton
}

// Objects yields the data objects with names greater than after, dead ones
// included, in byte order.
func (s *Snapshot) Objects(ctx context.Context, after string) iter.Seq2[Object, error] { return nil }

// Counts returns totals; its cost does not grow with the state.
func (s *Snapshot) Counts(ctx context.Context) (Counts, error) { return Counts{}, errSkeleton }

// Defects yields what records said that cannot be, by slot.
func (s *Snapshot) Defects(ctx context.Context) iter.Seq2[Defect, error] { return nil }

// Dirty yields the keys of the rows of a table that slots above since inserted,
// changed or removed, each once, in byte order. ErrPruned if since is below
// State().CheckpointSeq.
func (s *Snapshot) Dirty(ctx context.Context, table format.Table, since uint64) iter.Seq2[string, error] {
	return nil
}

// VersionRows yields the rows of a checkpoint's version shards with keys (see
// format.VersionKey) from first up to and without limit; an empty limit is none.
func (s *Snapshot) VersionRows(ctx context.Context, first, limit string) iter.Seq2[VersionRow, error] {
	return nil
}

// ObjectRows likewise; keys are names.
func (s *Snapshot) ObjectRows(ctx context.Context, first, limit string) iter.Seq2[format.ObjectRow, error] {
	return nil
}

// LogRows likewise; keys are as in format.SlotKey.
func (s *Snapshot) LogRows(ctx context.Context, first, limit string) iter.Seq2[format.LogRow, error] {
	return nil
}

// Error makes a Defect an error.
func (d *Defect) Error() string { return fmt.Sprintf("record %d: %s", d.Slot, d.What) }

// Unwrap returns format.ErrCorrupt.
func (d *Defect) Unwrap() error { return format.ErrCorrupt }
