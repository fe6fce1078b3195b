package datastore

import (
	"errors"
	"fmt"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// The errors of the engine, named by what the caller does next. errors.Is finds
// them in everything that this package returns.
var (
	// ErrBusy: another writer has the datastore. Nothing happened; wait and try
	// again.
	ErrBusy = writer.ErrBusy
	// ErrUnconfirmed: the commit may have landed, or may land yet. Ask with
	// Store.Outcome, or call Commit again: with the same id nothing is done twice.
	ErrUnconfirmed = errors.New("not confirmed: it may have landed")
	// ErrFenced: another writer took over. Nothing of this commit landed, and
	// nothing will; look at the new state before doing it again.
	ErrFenced = writer.ErrFenced
	// ErrConflict: a path was changed by somebody else since the base of the
	// commit. Nothing landed; reload and decide.
	ErrConflict = errors.New("changed by somebody else meanwhile")
	// ErrChanged: the content is not what was staged (its file changed).
	ErrChanged = errors.New("content changed after it was staged")
	// ErrNotFound: there is no such path, version, commit or datastore.
	ErrNotFound = errors.New("not found")
	// ErrExists: there is a datastore already.
	ErrExists = errors.New("exists already")
	// ErrGone: that version was removed by retention.
	ErrGone = errors.New("this version was removed")
	// ErrCorrupt: what the store holds is damaged.
	ErrCorrupt = format.ErrCorrupt
	// ErrUpgrade: a newer program wrote this.
	ErrUpgrade = format.ErrUpgrade
	// ErrUnsupportedStore: the store lacks what the engine needs.
	ErrUnsupportedStore = errors.New("this store cannot hold a datastore")
	// ErrBadPath: a path breaks the rules, see CheckPath.
	ErrBadPath = format.ErrBadPath
	// ErrIDReused: the commit id was used for another commit.
	ErrIDReused = errors.New("this commit id was used for something else")
	// ErrEmpty: the batch holds no change, so there is nothing to commit.
	ErrEmpty = errors.New("nothing to commit")
	// ErrClosed: the store or the batch was closed.
	ErrClosed = errors.New("closed")
)

// Error says which operation failed, on what, and why.
type Error struct {
	Op  string // init, open, update, begin, put, delete, commit, get, list, log, diff, verify …
	Key string // path, commit id or object, where there is one
	Err error
}

func (e *Error) Error() string {
	// A driver's error about opening the same store says all that.
	if b, ok := e.Err.(*backend.Error); ok && b.Op == e.Op && b.Store == e.Key && b.Key == "" {
		return b.Error()
	}
	if e.Key == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.Key, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// fail wraps err once.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return &Error{Op: op, Key: key, Err: err}
}
