package format

import (
	"errors"
	"fmt"
)

// ErrInvalid: an encoder was given what the format cannot hold; nothing was
// encoded. It says what to change. Where a number is over a limit, the error is
// ErrLimit too, and what is too large must be split or made smaller.
var (
	ErrInvalid = errors.New("cannot be stored")
	ErrLimit   = errors.New("over a limit of the format")
)

// errUnknownValue is a value of an enumeration (kind, operation, codec, table)
// that this program does not know: in bytes with the right checksum it is from a
// newer program, in a value to encode it is a mistake.
type errUnknownValue struct {
	what  string
	value uint64
}

func (e errUnknownValue) Error() string { return fmt.Sprintf("%s %d is not known", e.what, e.value) }

func overLimit(what string, got, limit int64) error {
	return fmt.Errorf("%s: %d, possible are %d: %w", what, got, limit, ErrLimit)
}

// damaged is what a decoder returns. The reason is kept as text only: a path in
// a record that breaks the rules is damage, not a caller's bad path.
func damaged(what string, reason error) error {
	var unknown errUnknownValue
	switch {
	case errors.Is(reason, ErrUpgrade) || errors.Is(reason, ErrCorrupt):
		return fmt.Errorf("%s: %w", what, reason)
	case errors.As(reason, &unknown) && unknown.value != 0: // nothing at all is no news
		return fmt.Errorf("%s: %v: %w", what, reason, ErrUpgrade)
	}
	return fmt.Errorf("%s: %w: %v", what, ErrCorrupt, reason)
}

// refused is what an encoder returns.
func refused(what string, reason error) error {
	return fmt.Errorf("%s %w: %w", what, ErrInvalid, reason)
}
