package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// cell is one owner's view of the lease object. All writes of the record,
// taking, renewing and giving back, are swaps of this cell: compare-and-swap on
// the exact version that was judged, with every lost answer resolved by reading
// back (I4). Mine are the exact bytes that I sent, nothing less (R9).
//
// One goroutine at a time uses a cell.
type cell struct {
	bucket *backend.Bucket
	boot   func() time.Duration
	call   time.Duration // bound of one call to the store

	// version is what the next swap replaces; empty: the key holds nothing.
	version backend.Version
	// doubts were sent in the place of version, and it is not known whether
	// they arrived. At most one of them can.
	doubts [][]byte
	// trouble is the newest error of the store, for who is told of a loss.
	trouble atomic.Pointer[error]
}

// sight is one read of the key.
type sight struct {
	data []byte // nil: the key holds nothing
	info backend.Info
	// The read lies between these two readings of the boot clock.
	before, after time.Duration
}

// foreignError: the key holds what this cell did not send.
type foreignError struct{ seen *sight }

func (*foreignError) Error() string { return "the writer's lease was replaced by another" }

// look reads the key once.
func (c *cell) look(ctx context.Context) (*sight, error) {
	ctx, cancel := context.WithTimeout(ctx, c.call)
	defer cancel()
	s := &sight{before: c.boot()}
	obj, err := c.bucket.Get(ctx, format.LeaseKey, backend.GetOptions{})
	if errors.Is(err, backend.ErrNotFound) {
		s.after = c.boot()
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the writer's lease: %w", err)
	}
	defer obj.Body.Close()
	// One byte more than allowed, so that what is too long does not decode.
	if s.data, err = io.ReadAll(io.LimitReader(obj.Body, maxLease+1)); err != nil {
		return nil, fmt.Errorf("reading the writer's lease: %w", err)
	}
	s.info, s.after = obj.Info, c.boot()
	return s, nil
}

// swap puts next in the place of c.version, and returns only when that is
// decided, when the store refuses, or when ctx ends; the last leaves a doubt,
// which the next swap resolves. It returns a time (boot clock) before which the
// store did not have next. A *foreignError says who won instead.
func (c *cell) swap(ctx context.Context, next []byte) (time.Duration, error) {
	first := c.boot()
	doubtful := false // it may have arrived, or may yet
	failed := func(err error) (time.Duration, error) {
		if doubtful {
			c.doubts = append(c.doubts, next)
		}
		return 0, fmt.Errorf("writing the writer's lease: %w", err)
	}
	for attempt := 0; ; attempt++ {
		if ctx.Err() != nil {
			return failed(context.Cause(ctx))
		}
		start := c.boot()
		version, err := c.put(ctx, next)
		if err == nil {
			c.settle(version)
			return start, nil
		}
		c.trouble.Store(&err)
		doubtful = doubtful || !refused(err)
		seen, lookErr := c.look(ctx)
		switch {
		case lookErr != nil:
			c.trouble.Store(&lookErr)
			if refused(lookErr) {
				return failed(fmt.Errorf("%w; then %w", err, lookErr))
			}
		case seen.info.Version == c.version:
			// It has not arrived, or not yet.
		case bytes.Equal(seen.data, next):
			c.settle(seen.info.Version)
			return first, nil
		case slices.ContainsFunc(c.doubts, func(d []byte) bool { return bytes.Equal(d, seen.data) }):
			c.settle(seen.info.Version) // an earlier one had: next goes on top of it
			continue
		default:
			return 0, &foreignError{seen}
		}
		if refused(err) {
			return failed(err)
		}
		if !sleep(ctx, backoff(attempt)) {
			return failed(fmt.Errorf("not decided: %w; %w", context.Cause(ctx), err))
		}
	}
}

// settle: the key holds version, which is mine. What else was sent in the place
// of the version before cannot arrive any more.
func (c *cell) settle(version backend.Version) {
	c.version, c.doubts = version, nil
	c.trouble.Store(nil)
}

func (c *cell) put(ctx context.Context, data []byte) (backend.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, c.call)
	defer cancel()
	var info backend.Info
	var err error
	if c.version == "" {
		info, err = c.bucket.Create(ctx, format.LeaseKey, backend.Bytes(data))
	} else {
		info, err = c.bucket.Replace(ctx, format.LeaseKey, backend.Bytes(data), c.version)
	}
	return info.Version, err
}

// refused says that the store surely did not do it, and will not the next time.
// Everything else may have been done, also what no sentinel names.
func refused(err error) bool {
	return slices.ContainsFunc([]error{
		backend.ErrDenied, backend.ErrNoBucket, backend.ErrUnsupported, backend.ErrBadContent,
		backend.ErrBadKey, backend.ErrFull, backend.ErrClosed,
	}, func(e error) bool { return errors.Is(err, e) })
}
