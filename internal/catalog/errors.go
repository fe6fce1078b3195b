package catalog

import (
	"errors"
	"fmt"

	"github.com/swampd/swampd/internal/format"
)

// The errors of this package, named by what the caller does next.
var (
	// ErrUpgrade: a newer program made the file. It wraps format.ErrUpgrade.
	ErrUpgrade = fmt.Errorf("local catalog: %w", format.ErrUpgrade)
	// ErrGap: the record is not the one after the head; fold those between first.
	ErrGap = errors.New("records between are missing")
	// ErrChain: the record does not follow from the record at the head. Read the
	// floor again before calling the store damaged (R2); if the floor does not
	// explain it, Reset and catch up from nothing.
	ErrChain = errors.New("record does not follow from the one before")
	// ErrFork: the catalog holds another record at this slot. Reset and catch up.
	ErrFork = errors.New("catalog holds another record at this slot")
	// ErrNoVersion: the path has no living version there: it was never put, or is
	// deleted, or the version of that time was removed by retention.
	ErrNoVersion = errors.New("no version of this path")
	// ErrDamaged: the file does not hold what this program wrote. The next call
	// on the DB starts with an empty catalog: repeat, after catching up.
	ErrDamaged = errors.New("local catalog is damaged")
	// ErrBusy: another process holds the file, and the context ended first. It is
	// always joined with the context's error.
	ErrBusy = errors.New("another process holds the local catalog")
	// ErrPruned: changes were asked since a slot below the newest checkpoint, and
	// their record is kept only from there.
	ErrPruned = errors.New("changes before the newest checkpoint are not kept")
	// ErrClosed: the DB, Tx or Snapshot was closed.
	ErrClosed = errors.New("closed")
	// ErrNoCgo: this program was built without cgo, and SQLite needs it.
	ErrNoCgo = errors.New("this program was built without cgo, and SQLite needs cgo: build it with CGO_ENABLED=1 and a C compiler")
)
