// Package writer decides who may write a datastore: at any time at most one
// process, the holder of the lease at format.LeaseKey.
//
// The lease gives progress, never safety. Safety comes from the log: a new
// writer occupies the next slot with a barrier of its fence (I2), by the same
// conditional create that a commit uses, and whoever meets a newer barrier of
// another session has lost for good. So every error here, of a clock, of a
// store, of this package, can cost time but no acknowledged commit.
//
// Acquire goes like this:
//
//  1. Read the lease, and judge its holder by its identity (design/judge.md),
//     never by its hostname and never by its age alone. Nobody's, given back,
//     left over by this very process (R12), or of a process that is gone: go on
//     at once. Of one that is alive: wait, whatever the age. Unknown: take it over
//     when it is older than its TTL + skew on the store's clock and has also stood
//     unchanged for TTL/2 of this machine's clock (R19), since stores' clocks
//     jump; or after a much shorter silence, if the holder promised that to a
//     writer of the same id and this one has its guard (fast adoption). Of this
//     process, and current: join it.
//  2. Replace exactly the version that was judged, under the fence
//     max(lease, log) + 1 (R8). A renewal that comes first makes this fail.
//     From here on the heartbeat renews.
//  3. Catch up with the log; put the barrier into its next slot; recover.
//
// A store's answer that was lost is resolved by reading back what the lease
// holds now (I4, R9). Clocks of hosts are written into the record for people
// and decide nothing. design/writer.md says why each step is safe.
package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/swampd/swampd/backend"
)

// The errors of this package, named by what the caller does next.
var (
	// ErrBusy: another process is writing. Nothing happened; wait or try later.
	// See *BusyError for who it is.
	ErrBusy = errors.New("another process is writing")
	// ErrFenced: another writer has taken over. Stop; do not blindly retry.
	ErrFenced = errors.New("fenced: another writer has taken over")
	// ErrExpired: the lease was not renewed for its whole TTL. Stop, as when
	// fenced; whether somebody took over is not known.
	ErrExpired = errors.New("the writer's lease could not be renewed")
	// ErrReleased: the hold was closed.
	ErrReleased = errors.New("the writer's lease was given back")
	// ErrNotConfirmed: Confirm had no answer in time. The effect that it was for
	// must not happen now; the hold may stand, and Confirm may be called again.
	ErrNotConfirmed = errors.New("not confirmed in time that this is still the writer")
	// ErrHalted: this process is about to end and begins no more writes.
	ErrHalted = errors.New("the process is ending and writes no more")
)

// Log is what this package needs of the commit log. The calls come one after the
// other, from the goroutine that called Acquire or ForceRelease.
type Log interface {
	// CatchUp reads what is new in the log.
	CatchUp(ctx context.Context) error
	// Fence returns the highest fence seen in the log so far, 0 if none. It does
	// not block.
	Fence() uint64
	// Barrier occupies the next slot with a record of kind fence that has the
	// hold's fence and session, catching up as often as it takes. An error that
	// wraps ErrFenced says that the log holds a barrier of another session with
	// this fence or a higher one.
	Barrier(ctx context.Context, h *Hold) error
	// Recover does what must be done after the barrier and before anybody may
	// write under the hold: it decides the fate of what earlier writers left.
	Recover(ctx context.Context, h *Hold) error
}

// Options of Acquire, Inspect and ForceRelease. Nil and zero mean the default.
type Options struct {
	// Writer and Epoch are stable names of this writer, as configured: who, and
	// in which incarnation of its configuration.
	Writer, Epoch string
	// Checkout is the directory that is worked in; Command says what runs and is
	// shown to whoever waits, so it must hold no secrets. Default: the name of
	// the program without its arguments.
	Checkout, Command string
	// TTL is how long the hold stands without a renewal (every TTL/3): 30 s by
	// default, 100 ms to 1 h. Skew, 10 s by default, is what a taker waits on
	// top of the recorded TTL of another.
	TTL, Skew time.Duration
	// MaxWait bounds the waiting for another writer: zero means 60 s, negative
	// means no wait. It does not bound catching up; ctx does.
	MaxWait time.Duration
	// Waiting is called after each look at a lease that is another's, several
	// times a second. It must return soon.
	Waiting func(Wait)
	// Guard is the absolute path of a file on a local disk that is kept locked as
	// long as the session lasts; it is made if it is missing, and must never be
	// copied or removed. With it, a copy of this machine cannot be mistaken for it.
	// Where it cannot be had, the session has none, and Logger is told why.
	Guard string
	// FastAdoption, for daemons that a supervisor restarts: a process with the same
	// Writer, Epoch and Guard may take over after four missed beats instead of
	// TTL + skew. It needs all three. Start no second process with the same writer
	// id by hand while the first may live.
	FastAdoption bool
	// Beat is how often a session with FastAdoption renews: 250 ms on directories,
	// 2 s on buckets by default; 10 ms to TTL/4.
	Beat time.Duration
	// Connect opens the heartbeat's own connection to the same store. Nil: it uses
	// the given bucket, and once that is closed, what Close could not give back
	// stays behind, and who sees that this process lives waits for it.
	Connect func(ctx context.Context) (*backend.Bucket, error)
	// Logger gets what is worth knowing and no error of a call; default none.
	Logger *slog.Logger
	// Process is who acquires, This by default.
	Process *Process
	// Now is the clock that is written down for people, time.Now by default.
	Now func() time.Time
	// Boot is the clock that decides: it is never set and counts while the
	// machine sleeps. Where it begins to count does not matter.
	Boot func() time.Duration
}

const (
	defaultTTL  = 30 * time.Second
	defaultSkew = 10 * time.Second
	defaultWait = 60 * time.Second
	releaseTime = 5 * time.Second  // for giving the lease back
	callTime    = 10 * time.Second // for one call to the store; less with a short TTL
	decideTime  = 30 * time.Second // for finding out what became of a write
	forceTime   = time.Minute      // for taking the lease by force
	guardTime   = time.Second      // for a guard that is handed over, and its looks
	pollMin     = 50 * time.Millisecond
	pollMoving  = 200 * time.Millisecond
	pollMax     = time.Second
	beatFiles   = 250 * time.Millisecond // of fast adoption, on directories
	beatBuckets = 2 * time.Second        // and where each beat is a request that costs
)

func (o *Options) withDefaults(bucket *backend.Bucket) (Options, error) {
	var d Options
	if o != nil {
		d = *o
	}
	if d.TTL == 0 {
		d.TTL = defaultTTL
	}
	if d.Skew == 0 {
		d.Skew = defaultSkew
	}
	if d.MaxWait == 0 {
		d.MaxWait = defaultWait
	}
	if d.TTL < 100*time.Millisecond || d.TTL > maxTTL || d.Skew < 0 {
		return d, fmt.Errorf("a writer's TTL of %v with a skew of %v: 100ms to %v with 0s or more are possible", d.TTL, d.Skew, maxTTL)
	}
	d.TTL = d.TTL.Truncate(time.Millisecond) // as it is recorded
	if d.Command == "" && len(os.Args) > 0 {
		d.Command = filepath.Base(os.Args[0])
	}
	if err := d.adoptionDefaults(bucket); err != nil {
		return d, err
	}
	if d.Process == nil {
		d.Process = This()
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Waiting == nil {
		d.Waiting = func(Wait) {}
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Boot == nil {
		d.Boot = bootClock
	}
	return d, nil
}

func (o *Options) adoptionDefaults(bucket *backend.Bucket) error {
	if o.Guard != "" && !filepath.IsAbs(o.Guard) {
		return fmt.Errorf("a writer's guard at %s: the path must be absolute", word(o.Guard))
	}
	if !o.FastAdoption {
		return nil
	}
	if o.Writer == "" || o.Epoch == "" || o.Guard == "" {
		return errors.New("fast adoption needs a writer id, an epoch and a guard")
	}
	if o.Beat == 0 {
		o.Beat = beatBuckets
		if strings.HasPrefix(bucket.URL(), "file:") {
			o.Beat = beatFiles
		}
		o.Beat = min(o.Beat, o.TTL/4)
	}
	if o.Beat < 10*time.Millisecond || o.Beat > o.TTL/4 {
		return fmt.Errorf("a writer's beat of %v: 10ms to %v, a quarter of its TTL, are possible", o.Beat, o.TTL/4)
	}
	return nil
}
