package datastore

import (
	"context"
	"fmt"
	"time"
)

// Bounds of single store calls. A call on a small object that takes longer is
// given up (and, where it was a create, read back); a transfer gets time for
// its bytes on top, at a rate that no usable link falls below.
const (
	callTimeout = 30 * time.Second
	slowestRate = 64 << 10 // bytes per second
)

// bounded gives one store call its own deadline and a name, so that an error
// says which wait ended.
func bounded(ctx context.Context, phase string, bytes int64) (context.Context, context.CancelFunc) {
	d := callTimeout + time.Duration(bytes/slowestRate)*time.Second
	return context.WithTimeoutCause(ctx, d, &timeoutError{phase, d})
}

// timeoutError is the cause of a bounded context that ran out.
type timeoutError struct {
	phase string
	after time.Duration
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("no answer within %v while waiting for: %s", e.after, e.phase)
}

func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// named puts the cause of ctx's end before an error that only says that it
// ended.
func named(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && cause != ctx.Err() {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}
