package backend

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors of a Driver, named by what the caller does next.
var (
	// ErrNotFound: the key holds nothing.
	ErrNotFound = errors.New("not found")
	// ErrExists: the key holds something already; read it to learn whether it is
	// what was sent.
	ErrExists = errors.New("exists already")
	// ErrChanged: the key does not hold the version that was named.
	ErrChanged = errors.New("holds another version")
	// ErrConflict: the store could not decide now because of other requests to
	// the key (HTTP 409). It says nothing about what the key holds: try again.
	ErrConflict = errors.New("conflicting requests, not decided")
	// ErrBusy: the store asks for fewer requests (429, 503 slow down). It was
	// tried again, with back-off, until the deadline did not allow more.
	ErrBusy = errors.New("the store is busy")
	// ErrUnknown: no answer, or one that does not say whether the request was
	// carried out. It may have been, or may be later.
	ErrUnknown = errors.New("no answer: it may or may not have been done")
	// ErrDenied: credentials are missing, wrong, or do not allow this.
	ErrDenied = errors.New("access denied")
	// ErrUnsupported: the store cannot do what the engine needs.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrBadContent: the bytes of a Body are not those it promised.
	ErrBadContent = errors.New("content differs from what was announced")
	// ErrFull: the store has no room, or a quota is used up.
	ErrFull = errors.New("no space left in the store")
	// ErrNoBucket: the bucket or directory does not exist.
	ErrNoBucket = errors.New("no such bucket or directory")
	// ErrBadKey: the key breaks the rules of CheckKey.
	ErrBadKey = errors.New("bad key")
	// ErrClosed: the driver was closed.
	ErrClosed = errors.New("closed")
)

// Error says which operation failed on which key of which store, and why. Err
// wraps a sentinel of this package where one fits.
type Error struct {
	Op    string // get, create, replace, delete, list, clean, open, probe
	Store string // the store's URL, without secrets
	Key   string // empty where no single key is meant
	Err   error
	// Date is the store's clock in the answer that said so, zero if there was
	// none: an ErrNotFound with a Date is a proof of rule R1.
	Date time.Time
}

func (e *Error) Error() string {
	where := e.Store
	if e.Key != "" {
		if where != "" {
			where += ": "
		}
		where += e.Key
	}
	return fmt.Sprintf("%s %s: %v", e.Op, where, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// RemainError is the error of a Delete that did not remove all keys.
type RemainError struct {
	Keys []string // that may still hold something
	Of   int      // of how many
	Err  error    // why: of the first of them, or of several
}

// maxNamed is how many keys the text of a RemainError names.
const maxNamed = 20

func (e *RemainError) Error() string {
	more := ""
	if n := len(e.Keys) - maxNamed; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%d of %d keys may remain (%s%s): %v", len(e.Keys), e.Of, strings.Join(e.Keys[:min(maxNamed, len(e.Keys))], " "), more, e.Err)
}

func (e *RemainError) Unwrap() error { return e.Err }

// WithDate attaches the store's clock to an error of a driver, for Bucket to
// find. A nil err stays nil.
func WithDate(err error, date time.Time) error {
	if err == nil || date.IsZero() {
		return err
	}
	return &dated{err, date}
}

type dated struct {
	error
	date time.Time
}

func (d *dated) Unwrap() error { return d.error }

// Date returns the store's clock that came with an error, or the zero time.
func Date(err error) time.Time {
	var e *Error
	if errors.As(err, &e) && !e.Date.IsZero() {
		return e.Date
	}
	var d *dated
	if errors.As(err, &d) {
		return d.date
	}
	return time.Time{}
}
