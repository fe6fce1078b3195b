package datastore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// LockStatus says who writes the datastore at url, what the judge of this machine
// says of that process, and what a new writer would do now. It reads two objects,
// needs no local files, changes nothing and disturbs nobody. ErrNotFound if there
// is no datastore.
func LockStatus(ctx context.Context, url string, opts *Options) (*writer.Status, error) {
	st, err := lockStatus(ctx, url, opts)
	return st, fail("lock status", backend.Redact(url), err)
}

func lockStatus(ctx context.Context, url string, o *Options) (_ *writer.Status, err error) {
	opts := o.withDefaults()
	bucket, err := opts.dial(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()
	if _, _, err := readMarker(ctx, bucket); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, "reading "+format.LeaseKey, 0)
	defer cancel()
	st, err := writer.Inspect(ctx, bucket, opts.forLock())
	return st, named(ctx, err)
}

// ForceRelease takes the writer's lease away from whoever holds it, alive or not,
// and gives it back: a barrier in the log keeps the holder from committing
// anything more (it is told ErrFenced), and others need not wait for it. What it
// had acknowledged stays. The record of whom it fenced is returned, nil if nobody
// held the lease; the barrier is put up all the same.
//
// It is for a holder that is known to be dead, or must be taken for it, where no
// judge can see that. It waits for no lock and uses no local files, which the
// holder may have locked. Together with an error, a record says that its holder
// lost the lease but perhaps not yet the log: call it again.
func ForceRelease(ctx context.Context, url string, opts *Options) (*writer.Lease, error) {
	victim, err := forceRelease(ctx, url, opts)
	return victim, fail("lock release", backend.Redact(url), err)
}

func forceRelease(ctx context.Context, url string, o *Options) (_ *writer.Lease, err error) {
	opts := o.withDefaults()
	bucket, err := opts.dial(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()
	return forceReleaseIn(ctx, bucket, opts)
}

func forceReleaseIn(ctx context.Context, bucket *backend.Bucket, opts Options) (*writer.Lease, error) {
	_, genesis, err := readMarker(ctx, bucket)
	if err != nil {
		return nil, err
	}
	return writer.ForceRelease(ctx, bucket, newLogTip(bucket, genesis, opts), opts.forLock())
}

func (o *Options) forLock() *writer.Options {
	return &writer.Options{Command: o.Command, Logger: o.Logger, Process: o.process}
}

// logTip is a writer.Log that keeps nothing of the log but where it ends: no
// catalog, no files, no locks. It reads the root of the newest checkpoint and the
// records after it.
type logTip struct {
	// s decides records; of a Store it has only what that takes.
	s       *Store
	genesis format.Hash
}

func newLogTip(bucket *backend.Bucket, genesis format.Hash, opts Options) *logTip {
	s := &Store{bucket: bucket, opts: opts, follow: &follower{bucket: bucket, progress: opts.Progress}}
	s.follow.tip = catalog.State{Hash: genesis}
	return &logTip{s: s, genesis: genesis}
}

func (l *logTip) Fence() uint64 { return l.s.follow.tip.Fence }

func (l *logTip) Recover(context.Context, *writer.Hold) error { return nil }

// CatchUp is follower.catchUp (R2) without a catalog.
func (l *logTip) CatchUp(ctx context.Context) error {
	f := l.s.follow
	for {
		answers, err := f.round(ctx, f.tip.Head, window)
		if err != nil {
			return err
		}
		if f.behind(f.tip.Head) {
			err := l.toCheckpoint(ctx)
			if errors.Is(err, ErrCorrupt) && f.ck.Floor <= f.tip.Head {
				f.ignoreCheckpoint = true // every record is still there
			} else if err != nil {
				return err
			}
			continue
		}
		for _, a := range answers {
			if a.data == nil {
				return nil
			}
			if bad := l.follow(a); bad != nil {
				if err := f.damaged(ctx, a.slot, bad); err != nil {
					return err
				}
				break // the floor has passed it
			}
		}
	}
}

func (l *logTip) toCheckpoint(ctx context.Context) error {
	f := l.s.follow
	root, err := readRoot(ctx, f.bucket, &f.ck)
	if errors.Is(err, backend.ErrNotFound) {
		// Its successor may have taken its place: the next round tells.
		before := f.ck.Root
		if _, rerr := f.readCheckpoint(ctx); rerr != nil {
			return rerr
		}
		if f.ck.Root != before {
			return nil
		}
	}
	if err != nil {
		return err
	}
	f.tip = catalog.State{Head: root.Seq, Hash: root.ChainHash, Fence: root.Fence, Session: root.Session}
	return nil
}

func (l *logTip) follow(a answer) error {
	rec, err := format.DecodeRecord(a.data)
	if err != nil {
		return err
	}
	tip := &l.s.follow.tip
	if rec.Slot != a.slot {
		return fmt.Errorf("%w: it says it is slot %d", ErrCorrupt, rec.Slot)
	}
	if rec.Prev != tip.Hash {
		return catalog.ErrChain
	}
	l.advance(rec, sha256.Sum256(a.data))
	return nil
}

func (l *logTip) advance(rec *format.Record, hash format.Hash) {
	tip := &l.s.follow.tip
	tip.Head, tip.Hash = rec.Slot, hash
	if rec.Fence >= tip.Fence {
		tip.Fence = rec.Fence
		if rec.Kind == format.KindFence {
			tip.Session = rec.Session
		}
	}
}

func (l *logTip) Barrier(ctx context.Context, hold *writer.Hold) error {
	s := l.s
	ctx, cancel := s.deciding(ctx, "the barrier of a forced release")
	defer cancel()
	for {
		if err := fenced(s.follow.tip, hold.Fence(), hold.Session()); err != nil {
			return err
		}
		rec := barrier(s.follow.tip, hold, s.opts.now())
		data, err := format.EncodeRecord(rec)
		if err != nil {
			return err
		}
		r := newSent(rec, data, s.follow.proof)
		if err := r.under(hold); err != nil {
			return err
		}
		v, _, err := s.decide(ctx, r, true)
		r.decided(err == nil && v == mine)
		if err != nil {
			return err
		}
		if v == mine {
			l.advance(rec, r.hash)
			return nil
		}
		if err := l.CatchUp(ctx); err != nil {
			return err
		}
	}
}
