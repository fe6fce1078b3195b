package writer

import (
	"context"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// For the race detector: the fence is lifted while the heartbeat may tell of it.
func TestBreakerTheFenceIsLiftedInTurn(t *testing.T) {
	w := newWorld(t)
	w.log.barriers = []barrier{{fence: 7}}
	f := w.faulty()
	// The first renewal, the third write, finds another's record; who put it there
	// knows nothing of the raising.
	renewal := f.Add(faults.Rule{Ops: writes, Prefix: format.LeaseKey, Nth: 3, Do: faults.Block()})
	go func() {
		<-renewal.Reached()
		w.put(dead(20))
		renewal.Release()
	}()
	r := w.log.replica()
	r.barrier = func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	_, err := Acquire(t.Context(), f.Bucket(), r, w.options(Options{TTL: 300 * time.Millisecond}))
	wantErr(t, err, ErrFenced)
}
