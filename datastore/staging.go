package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/google/uuid"
	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// staging holds the contents of one batch on their way to the store, as data
// objects: packs that many small contents share, and large objects. Staged
// bytes stay on the local disk until the commit has landed, also those that
// dedup spared the upload, since the object that has them may die first (R5).
type staging struct {
	s       *Store
	entry   uuid.UUID
	session uuid.UUID // set before the first content is staged

	mu      sync.Mutex
	dir     string // made when the first byte needs it
	objects []*object
	pack    *packWriter // takes small contents to be sent
	reserve *packWriter // takes small contents that a live object has already
	dups    []format.Object
	dupAt   map[string]int
	seen    map[format.Hash]format.Place // own places of contents, bounded
	err     error                        // first failed upload
	packed  int                          // packs sealed or begun, reserve not counted

	slots chan struct{} // limits uploads
	jobs  sync.WaitGroup
	ctx   context.Context // of the uploads; ends with close
	stop  context.CancelCauseFunc
}

// seenMax bounds the memory of finding equal contents inside one batch.
const seenMax = 1 << 16

// object is a data object of this batch. Its fields are set before it is sent;
// meta may be changed by revive while nothing is in flight.
type object struct {
	meta    format.Object
	body    backend.Body // the stored bytes, from staged or in-place files
	ready   bool         // sealed: meta and body are complete
	needed  bool         // some change names it, so it must be in the store
	sent    bool         // it is in the store
	sending bool         // a goroutine of need has it
	close   func() error // removes what is staged for it

	// Of a large object until its footer is known.
	finish  func(foot []byte) (format.Hash, error)
	inPlace bool   // the stored bytes are the source file itself
	source  string // that file
}

func newStaging(s *Store, entry uuid.UUID) *staging {
	st := &staging{
		s: s, entry: entry,
		dupAt: map[string]int{}, seen: map[format.Hash]format.Place{},
		slots: make(chan struct{}, s.opts.Uploads),
	}
	st.ctx, st.stop = context.WithCancelCause(s.closing)
	return st
}

// staged is one change of a batch. change.Place is its own place: Object is an
// index in staging.objects, or Inline for a content of size 0. dup >= 0 is an
// index in staging.dups: a live object that holds the content already, at
// dupPlace.
type staged struct {
	change   format.Change
	dup      int
	dupPlace format.Place
}

// content is one content that was read and measured but not yet staged.
type content struct {
	size int64
	sum  format.Hash
	// small: the bytes, in a buffer of the caller's.
	small []byte
	// large: the object that was written or prepared for it.
	large *object
	place format.Place // of a large content in its object
	foot  *format.Footer
}

func (c *content) discard() error {
	if c.large != nil && c.large.close != nil {
		return c.large.close()
	}
	return nil
}

// failed returns the error of an upload that failed for good.
func (st *staging) failed() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}

// share notes that a live object holds the content of sc.
func (st *staging) share(sc *staged, loc catalog.Located) {
	st.mu.Lock()
	defer st.mu.Unlock()
	i, ok := st.dupAt[loc.Object.Name]
	if !ok {
		i = len(st.dups)
		o := loc.Object
		o.New = false
		st.dups = append(st.dups, o)
		st.dupAt[o.Name] = i
	}
	sc.dup = i
	sc.dupPlace = format.Place{Offset: loc.Offset, Length: loc.Length, Codec: loc.Codec}
}

// stage puts a content where it waits for the commit and sets its own place in
// sc. Small contents are compressed here, outside the lock.
func (st *staging) stage(ctx context.Context, c *content, sc *staged) error {
	switch {
	case c.size == 0:
		sc.change.Place = format.Place{Object: format.Inline}
		return c.discard()
	case c.large != nil:
		return st.stageLarge(c, sc)
	}
	buf := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(buf)
	stored, codec := format.Compress((*buf)[:0], c.small)
	if codec != format.CodecRaw {
		*buf = stored[:0]
	}
	return st.stageSmall(ctx, c, sc, stored, codec)
}

func (st *staging) stageLarge(c *content, sc *staged) error {
	c.foot.Changes = []format.Change{sc.change}
	c.foot.Changes[0].Place = c.place
	if err := st.finishLarge(c); err != nil {
		return errors.Join(err, c.discard())
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if place, ok := st.seen[c.sum]; ok && sc.dup < 0 {
		sc.change.Place = place
		return c.discard()
	}
	c.place.Object = len(st.objects)
	sc.change.Place = c.place
	st.objects = append(st.objects, c.large)
	c.large.ready = true
	if sc.dup < 0 {
		if len(st.seen) < seenMax {
			st.seen[c.sum] = c.place
		}
		st.need(c.place.Object)
	}
	return nil
}

func (st *staging) stageSmall(ctx context.Context, c *content, sc *staged, stored []byte, codec format.Codec) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return st.err
	}
	if place, ok := st.seen[c.sum]; ok && sc.dup < 0 {
		sc.change.Place = place
		return nil
	}
	w := &st.pack
	if sc.dup >= 0 {
		w = &st.reserve
	}
	if *w != nil && (*w).full(len(stored)) {
		if err := st.seal(*w); err != nil {
			return err
		}
		*w = nil
	}
	if *w == nil {
		st.objects = append(st.objects, &object{})
		*w = newPackWriter(len(st.objects) - 1)
		if w == &st.pack {
			st.packed++
		}
	}
	place, err := (*w).add(st, &sc.change, stored, codec)
	if err != nil {
		return fmt.Errorf("the local staging area: %w", err)
	}
	sc.change.Place = place
	if sc.dup < 0 && len(st.seen) < seenMax {
		st.seen[c.sum] = place
	}
	return nil
}

// seal completes a pack and, unless it is a reserve, starts sending it.
func (st *staging) seal(w *packWriter) error {
	o := st.objects[w.index]
	if o.ready {
		return nil
	}
	if err := w.seal(st, o); err != nil {
		return fmt.Errorf("the local staging area: %w", err)
	}
	o.ready = true
	if w != st.reserve {
		st.need(w.index)
	}
	return nil
}

// need sends an object that is ready, once, in the background.
func (st *staging) need(i int) {
	o := st.objects[i]
	o.needed = true
	if o.sent || o.sending {
		return
	}
	o.sending = true
	st.jobs.Go(func() {
		select {
		case st.slots <- struct{}{}:
			defer func() { <-st.slots }()
		case <-st.ctx.Done(): // the batch ended: upload says so
		}
		err := st.s.upload(st.ctx, o)
		st.mu.Lock()
		defer st.mu.Unlock()
		o.sending = false
		if err == nil {
			o.sent = true
		} else if st.err == nil {
			st.err = err
		}
	})
}

// upload makes one data object under a name that nobody else uses. A lost
// answer is resolved by reading back what is there (I4, R9).
func (s *Store) upload(ctx context.Context, o *object) error {
	for attempt := 0; ; attempt++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if attempt > 0 {
			if err := pause(ctx, attempt); err != nil {
				return err
			}
		}
		uctx, cancel := bounded(ctx, "the upload of "+o.meta.Name, o.meta.Size)
		_, err := s.bucket.Create(uctx, o.meta.Name, o.body)
		err = named(uctx, err)
		cancel()
		switch {
		case err == nil:
			s.opts.Progress(Progress{Phase: "upload", Done: s.uploaded.Add(o.meta.Size)})
			return nil
		case (errors.Is(err, backend.ErrBadContent) || errors.Is(err, ErrChanged)) && o.source != "":
			return fmt.Errorf("%w: %s is not what was put; put it again when nothing writes to it (%w)", ErrChanged, o.source, err)
		case errors.Is(err, backend.ErrBadContent):
			return fmt.Errorf("%w: %w", ErrChanged, err)
		case ctx.Err() != nil:
			return err
		case !mayHaveLanded(err) || attempt >= uploadAttempts:
			return err
		}
		there, rerr := s.sameObject(ctx, o)
		if rerr == nil && there {
			return nil
		}
		if rerr != nil && !errors.Is(rerr, backend.ErrNotFound) && attempt >= uploadAttempts/2 {
			return errors.Join(err, rerr)
		}
	}
}

const uploadAttempts = 8

// sameObject says whether the name holds this object: its size, and the hash of
// its end, which covers the hashes of everything before.
func (s *Store) sameObject(ctx context.Context, o *object) (bool, error) {
	tail := o.meta.FooterSize
	if tail == 0 {
		tail = o.meta.Size
	}
	data, size, err := getTail(ctx, s.bucket, o.meta.Name, tail)
	if err != nil {
		return false, err
	}
	if size != o.meta.Size || sha256Of(data) != o.meta.Checksum {
		return false, fmt.Errorf("%w: %s holds something else than what was sent", ErrCorrupt, o.meta.Name)
	}
	return true, nil
}

// settle waits until all that is needed is in the store.
func (st *staging) settle(ctx context.Context) error {
	done := make(chan struct{})
	go func() { st.jobs.Wait(); close(done) }()
	select {
	case <-done:
		return st.failed() // a Commit that is called again sends again
	case <-ctx.Done():
		// The uploads go on; a Commit that is called again waits for them.
		return fmt.Errorf("waiting for uploads: %w", context.Cause(ctx))
	}
}

// stagingDir makes the batch's own directory.
func (st *staging) stagingDir() (string, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.stagingDirLocked()
}

func (st *staging) stagingDirLocked() (string, error) {
	if st.dir != "" {
		return st.dir, nil
	}
	// Two batches may have one id, when a caller asks twice.
	dir, err := st.s.stagingDir(fmt.Sprintf("%s-%s", st.entry, newID()))
	if err == nil {
		st.dir = dir
	}
	return dir, err
}

// close ends uploads and removes what is staged.
func (st *staging) close() error {
	st.stop(ErrClosed)
	st.jobs.Wait()
	var errs []error
	for _, o := range st.objects {
		if o.close != nil {
			errs = append(errs, o.close())
		}
	}
	for _, w := range []*packWriter{st.pack, st.reserve} {
		if w != nil {
			errs = append(errs, w.close())
		}
	}
	if st.dir != "" {
		errs = append(errs, os.RemoveAll(st.dir))
	}
	return errors.Join(errs...)
}
