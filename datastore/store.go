package datastore

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// Store is an opened datastore.
//
// Lock order: lane, then mu, then overlay.mu. The lane is held across store calls, the
// mutexes never.
type Store struct {
	bucket *backend.Bucket
	marker format.Marker
	opts   Options
	dir    string // <StateDir>

	// lane serialises what moves along the log: catching up and landing. A
	// channel, so that waiting for it ends with the caller's context.
	lane chan struct{}
	// Owned by the lane.
	follow    *follower
	undecided *sent // a record whose fate is still open (I4)

	cat     *catalog.DB
	overlay *overlay
	views   *views

	// bytesRead and uploaded are for Options.Progress.
	bytesRead, uploaded atomic.Int64

	// session is held while a lease is acquired or released.
	session chan struct{}

	mu     sync.Mutex
	hold   *writer.Hold // changed under session and mu
	closed bool
	batch  map[*Batch]struct{}
	// staging is this Store's own staging area, made with the first need.
	staging     string
	stagingLock *os.File
	work        sync.WaitGroup // checkpoint makers
	ckBusy      bool
	ckState     catalog.State // after this Store's newest checkpoint

	// closing ends when Close begins, ctx when it has waited for a checkpoint.
	closing context.Context
	shut    context.CancelCauseFunc
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Uploads <= 0 {
		c.Uploads = 4
	}
	c.Uploads = min(c.Uploads, 64)
	if c.CheckpointSlots == 0 {
		c.CheckpointSlots = 1000
	}
	if c.CheckpointBytes == 0 {
		c.CheckpointBytes = 64 << 20
	}
	if c.LandingTimeout <= 0 {
		c.LandingTimeout = 60 * time.Second
	}
	if c.closeWait <= 0 {
		c.closeWait = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	if c.now == nil {
		c.now = time.Now
	}
	return c
}

// dial opens the store, and remembers how: the heartbeat wants a connection of its
// own.
func (o *Options) dial(ctx context.Context, url string) (*backend.Bucket, error) {
	o.connect = func(ctx context.Context) (*backend.Bucket, error) { return backend.Open(ctx, url) }
	return o.connect(ctx)
}

func initStore(ctx context.Context, url string, o *Options) (*Store, error) {
	opts := o.withDefaults()
	if !catalog.HasCgo {
		return nil, catalog.ErrNoCgo
	}
	// Before anything is made that could not be opened then.
	dir, err := opts.stateDir()
	if err == nil {
		err = CheckStateDir(dir)
	}
	if err != nil {
		return nil, err
	}
	bucket, err := opts.dial(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := initBucket(ctx, bucket, &opts); err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	return openBucket(ctx, bucket, opts)
}

func initBucket(ctx context.Context, bucket *backend.Bucket, opts *Options) error {
	_, err := getControl(ctx, bucket, format.FormatKey)
	if err == nil {
		return fmt.Errorf("%w: there is a datastore already", ErrExists)
	}
	if !errors.Is(err, backend.ErrNotFound) {
		return err
	}
	if !opts.SkipProbe {
		if _, err := backend.Probe(ctx, bucket); err != nil {
			if errors.Is(err, backend.ErrUnsupported) {
				err = fmt.Errorf("%w: %w", ErrUnsupportedStore, err)
			}
			return err
		}
	}
	// The checkpoint record first, the marker last: a datastore exists once its
	// marker does, and what an interrupted init left is used by the next one.
	ck, err := format.EncodeCheckpoint(&format.Checkpoint{Format: format.Version, MinReader: format.MinReader, Beat: uuid.New()})
	if err != nil {
		return err
	}
	if err := createControl(ctx, bucket, format.CheckpointKey, ck); err != nil && !errors.Is(err, ErrExists) {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	data, err := format.EncodeMarker(&format.Marker{
		Format: format.Version, MinReader: format.MinReader, Datastore: id,
		Created: opts.now().UTC().Format(time.RFC3339), Program: "swampd",
	})
	if err != nil {
		return err
	}
	return createControl(ctx, bucket, format.FormatKey, data)
}

// createControl makes one of the objects that Init makes, and finds out what
// became of it where the answer was lost: no two of them have equal bytes.
// ErrExists if it is another's. It gives up after some attempts; what may have
// landed then does no harm to the next Init.
func createControl(ctx context.Context, bucket *backend.Bucket, key string, data []byte) error {
	for attempt := 1; ; attempt++ {
		cctx, cancel := bounded(ctx, "the create of "+key, 0)
		_, err := bucket.Create(cctx, key, backend.Bytes(data))
		err = named(cctx, err)
		cancel()
		if err == nil || !mayHaveLanded(err) {
			return err
		}
		got, rerr := getControl(ctx, bucket, key)
		switch {
		case rerr == nil && bytes.Equal(got, data):
			return nil
		case rerr == nil:
			return fmt.Errorf("%w: another init was faster with %s", ErrExists, key)
		case errors.Is(rerr, backend.ErrNotFound):
			rerr = nil
		}
		if attempt >= uploadAttempts {
			return errors.Join(err, rerr)
		}
		if perr := pause(ctx, attempt); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// getControl reads a small object, within the bound of one call.
func getControl(ctx context.Context, bucket *backend.Bucket, key string) ([]byte, error) {
	gctx, cancel := bounded(ctx, "reading "+key, 0)
	defer cancel()
	data, _, err := getWhole(gctx, bucket, key, format.MaxControl)
	return data, named(gctx, err)
}

func openStore(ctx context.Context, url string, o *Options) (*Store, error) {
	opts := o.withDefaults()
	if !catalog.HasCgo {
		return nil, catalog.ErrNoCgo
	}
	bucket, err := opts.dial(ctx, url)
	if err != nil {
		return nil, err
	}
	return openBucket(ctx, bucket, opts)
}

// openBucket opens the datastore in bucket, which it closes on failure.
func openBucket(ctx context.Context, bucket *backend.Bucket, opts Options) (_ *Store, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, bucket.Close())
		}
	}()
	marker, genesis, err := readMarker(ctx, bucket)
	if err != nil {
		return nil, err
	}
	dir, err := opts.stateDir()
	if err != nil {
		return nil, err
	}
	if opts.StateDir == "" {
		dir = filepath.Join(dir, marker.Datastore.String())
	}
	if err := makeStateDir(dir); err != nil {
		return nil, err
	}
	cat, err := catalog.Open(ctx, filepath.Join(dir, "commits.db"), catalog.Options{Datastore: marker.Datastore, Genesis: genesis})
	if err != nil {
		return nil, err
	}
	s := &Store{
		bucket: bucket, marker: *marker, opts: opts, dir: dir, cat: cat,
		lane: make(chan struct{}, 1), session: make(chan struct{}, 1),
		batch: map[*Batch]struct{}{}, views: newViews(),
	}
	s.closing, s.shut = context.WithCancelCause(context.Background())
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.overlay = newOverlay(bucket, cat, opts.Logger)
	s.follow = &follower{bucket: bucket, cat: cat, folded: s.seen, progress: opts.Progress,
		warn: func(msg string, err error) { opts.Logger.Warn(msg, "error", err) }}
	s.cleanStaging()
	go s.dropViews(s.closing)
	if err := s.firstUpdate(ctx); err != nil {
		s.shut(err)
		s.endViews()
		s.overlay.close(ctx)
		return nil, errors.Join(err, cat.Close())
	}
	return s, nil
}

// firstUpdate catches up, and at the same time looks whether the log still has
// the record that the catalog ends with: a store that was restored from an old
// copy has not, and then the catalog tells of commits that are no more.
func (s *Store) firstUpdate(ctx context.Context) error {
	if err := s.follow.reload(ctx); err != nil {
		return err
	}
	tip := s.follow.tip
	same := make(chan error, 1)
	go func() { same <- s.follow.hasTip(ctx, tip) }()
	_, err := s.Update(ctx)
	lost := <-same
	if !errors.Is(lost, errOtherLog) || s.follow.ck.Floor >= tip.Head {
		return err // any other trouble shows itself in Update
	}
	s.opts.Logger.Warn("the local catalog is ahead of the log or of another one; it is made anew", "slot", tip.Head, "reason", lost)
	if err := s.cat.Reset(ctx); err != nil {
		return err
	}
	_, err = s.Update(ctx)
	return err
}

func readMarker(ctx context.Context, bucket *backend.Bucket) (*format.Marker, format.Hash, error) {
	gctx, cancel := bounded(ctx, "the format marker", 0)
	defer cancel()
	data, _, err := getWhole(gctx, bucket, format.FormatKey, format.MaxControl)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, format.Hash{}, fmt.Errorf("%w: there is no datastore at %s; make one with swampd init", ErrNotFound, bucket.URL())
	}
	if err != nil {
		return nil, format.Hash{}, named(gctx, err)
	}
	marker, err := format.DecodeMarker(data)
	if err != nil {
		return nil, format.Hash{}, fmt.Errorf("%s: %w", format.FormatKey, err)
	}
	return marker, sha256.Sum256(data), nil
}

// enter takes the lane. The returned func gives it back.
func (s *Store) enter(ctx context.Context, what string) (func(), error) {
	return take(ctx, s.lane, what)
}

func take(ctx context.Context, lane chan struct{}, what string) (func(), error) {
	select {
	case lane <- struct{}{}:
		return func() { <-lane }, nil
	default:
	}
	select {
	case lane <- struct{}{}:
		return func() { <-lane }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for %s of this process to end: %w", what, context.Cause(ctx))
	}
}

// Update catches up with the log and returns the newest slot: one round trip if
// there is no news. It waits, as long as ctx lasts, for a commit of this Store
// that is landing and for the local catalog. ErrCorrupt if the log or the
// checkpoint is damaged, ErrUpgrade, ErrClosed, ctx's error and those of the store;
// what was read until then stays.
func (s *Store) Update(ctx context.Context) (uint64, error) {
	if err := s.open(); err != nil {
		return 0, fail("update", "", err)
	}
	leave, err := s.enter(ctx, "a commit or update")
	if err != nil {
		return 0, fail("update", "", err)
	}
	defer leave()
	err = s.catchUp(ctx)
	return s.follow.tip.Head, fail("update", "", err)
}

// catchUp is follower.catchUp for the lane's holder, after what waits for
// accounting is in the catalog. A catalog that does not take it, because it was
// emptied meanwhile, gets it from the log: all of it landed.
func (s *Store) catchUp(ctx context.Context) error {
	refused := s.overlay.flush(ctx)
	if refused != nil && !catalogStartsAnew(refused) {
		return refused
	}
	tip, proof := s.follow.tip, s.follow.proof
	err := s.follow.reload(ctx)
	if err == nil {
		err = s.follow.catchUp(ctx)
	}
	if err == nil && refused != nil {
		err = s.overlay.flush(ctx)
	}
	unseen := s.seenByOthers(ctx, s.overlay.head()) // also after an error, which may come after some news
	if err == nil {
		err = unseen
	}
	if err != nil {
		// What was seen stays seen, whatever became of the catalog; what was not
		// looked at is not built on.
		if s.follow.tip.Head < tip.Head || unseen != nil {
			s.follow.tip, s.follow.proof = tip, proof
		}
		return errors.Join(err, refused)
	}
	s.overlay.setTip(s.follow.tip)
	return nil
}

// flush waits until everything that landed is in the catalog. The lane must not
// be held.
func (s *Store) flush(ctx context.Context) error {
	err := s.overlay.flush(ctx)
	if !catalogStartsAnew(err) {
		return err
	}
	leave, err := s.enter(ctx, "a commit or update")
	if err != nil {
		return err
	}
	defer leave()
	return s.laneFlush(ctx)
}

// laneFlush is flush for the lane's holder.
func (s *Store) laneFlush(ctx context.Context) error {
	err := s.overlay.flush(ctx)
	if catalogStartsAnew(err) {
		err = s.catchUp(ctx)
	}
	return err
}

// view is a consistent picture of the newest state: a snapshot, and the landed
// records that it does not have yet, newest last.
func (s *Store) view(ctx context.Context) ([]*landed, *catalog.Snapshot, error) {
	pending, err := s.pending(ctx)
	if err != nil {
		return nil, nil, err
	}
	snap, err := s.snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	for len(pending) > 0 && pending[0].rec.Slot <= snap.State().Head {
		pending = pending[1:]
	}
	return pending, snap, nil
}

// pending is what landed and is not in the catalog yet, at one moment. Big
// records are waited for: they cannot be shown from memory.
func (s *Store) pending(ctx context.Context) ([]*landed, error) {
	for {
		pending := s.overlay.shown()
		if !slices.ContainsFunc(pending, func(l *landed) bool { return l.big }) {
			return pending, nil
		}
		if err := s.flush(ctx); err != nil {
			return nil, err
		}
	}
}

// errCacheLost: the catalog does not hold what this Store has read or landed. It
// was deleted, damaged or emptied, by a person or another process.
var errCacheLost = errors.New("the local catalog was lost")

// snapshot opens a view of the catalog that holds all that this Store has seen,
// but for what the overlay shows. A catalog that was lost is filled again from
// the log first. The lane must not be held.
func (s *Store) snapshot(ctx context.Context) (*catalog.Snapshot, error) {
	snap, err := s.whole(ctx)
	if !errors.Is(err, errCacheLost) {
		return snap, err
	}
	leave, err := s.enter(ctx, "a commit or update")
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.laneSnapshot(ctx)
}

// laneSnapshot is snapshot for the lane's holder.
func (s *Store) laneSnapshot(ctx context.Context) (*catalog.Snapshot, error) {
	for attempt := 0; ; attempt++ {
		snap, err := s.whole(ctx)
		if !errors.Is(err, errCacheLost) || attempt == 2 {
			return snap, err
		}
		if err := s.catchUp(ctx); err != nil {
			return nil, err
		}
	}
}

// whole opens a view of the catalog, or says errCacheLost.
func (s *Store) whole(ctx context.Context) (*catalog.Snapshot, error) {
	need := s.overlay.accounted()
	snap, err := s.cat.Snapshot(ctx)
	switch {
	case errors.Is(err, catalog.ErrDamaged):
		return nil, fmt.Errorf("%w: %w", errCacheLost, err)
	case errors.Is(err, catalog.ErrClosed):
		return nil, ErrClosed
	case err != nil:
		return nil, err
	case snap.State().Head < need:
		return nil, errors.Join(errCacheLost, snap.Close())
	}
	return snap, nil
}

// Head returns the newest slot that this Store has seen.
func (s *Store) Head() uint64 { return s.overlay.head() }

// seen is told of each record that others wrote (or that an earlier process of
// ours did), before it is applied.
func (s *Store) seen(rec *format.Record, hash format.Hash) error {
	hold := s.held()
	if hold == nil || rec.Slot <= s.overlay.head() { // read before, and again for a catalog that was lost
		return nil
	}
	wrote(hold, rec.Session, rec.Slot, hash)
	return nil
}

// wrote looks whether a record in the log carries the session of hold, though this
// process did not send it: then a clone of it exists (R9).
func wrote(hold *writer.Hold, session uuid.UUID, slot uint64, hash format.Hash) {
	if session == hold.Session() && !hold.Sent(slot, hash) {
		hold.Lost(fmt.Errorf("%w: slot %d carries this session but was written by a copy of this process", ErrFenced, slot))
	}
}

// seenByOthers is seen for the slots after from that another process, which shares
// the catalog, has folded: these were not told of.
func (s *Store) seenByOthers(ctx context.Context, from uint64) error {
	hold := s.held()
	if hold == nil || s.follow.tip.Head <= from {
		return nil
	}
	snap, err := s.cat.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	for row, err := range snap.Log(ctx, from, s.follow.tip.Head, false) {
		if err != nil {
			return err
		}
		wrote(hold, row.Session, row.Slot, row.Hash)
	}
	return nil
}

func (s *Store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return nil
}

// whileOpen ends ctx when Close begins, too.
func (s *Store) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.closing, func() { cancel(context.Cause(s.closing)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Close gives the lease back, waits for accounting, and ends everything that
// the Store started: uploads and a Begin that waits fail with ErrClosed, batches
// that were not committed are discarded. Its waits are bounded: a record that is
// being created is decided (Options.LandingTimeout), a checkpoint that is being
// made gets 2 min, the lease 5 s, accounting 30 s (what is missing in the cache
// afterwards is read from the log next time).
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	batches := make([]*Batch, 0, len(s.batch))
	for b := range s.batch {
		batches = append(batches, b)
	}
	s.mu.Unlock()
	s.shut(ErrClosed)
	var errs []error
	for _, b := range batches {
		errs = append(errs, b.Discard())
	}
	s.finishCheckpoint()
	s.cancel(ErrClosed)
	s.work.Wait()
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.opts.closeWait, &timeoutError{"closing the datastore", s.opts.closeWait})
	defer cancel()
	errs = append(errs, s.release(ctx, true))
	s.overlay.close(ctx)
	s.endViews()
	errs = append(errs, s.closeStaging(), s.cat.Close(), s.bucket.Close())
	return fail("close", "", errors.Join(errs...))
}

// newID makes a UUIDv7.
func newID() uuid.UUID {
	id, err := uuid.NewV7FromReader(rand.Reader)
	if err != nil { // crypto/rand.Reader does not fail
		panic(err)
	}
	return id
}

// bytesBody is a backend.Body of b, whose sum is known.
func bytesBody(b []byte, sum format.Hash) backend.Body {
	body := backend.Body{Size: int64(len(b)), SHA256: sum, HasSHA256: true}
	body.Open = func() (io.ReadSeekCloser, error) { return bytesReader(b), nil }
	return body
}
