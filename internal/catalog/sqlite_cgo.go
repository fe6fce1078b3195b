//go:build cgo

package catalog

import (
	"errors"

	"github.com/mattn/go-sqlite3"
)

// HasCgo says whether this program was built with cgo, without which there is
// no SQLite: Open then fails with ErrNoCgo.
const HasCgo = true

// classify says what an error of the driver means to this package.
func classify(err error) fault {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return faultOther
	}
	switch e.Code {
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrProtocol:
		return faultBusy
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return faultDamaged
	case sqlite3.ErrFull:
		return faultFull
	case sqlite3.ErrError:
		return faultSchema
	}
	if e.ExtendedCode == sqlite3.ErrIoErrShortRead {
		return faultDamaged
	}
	return faultOther
}
