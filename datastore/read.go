package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// located says where the stored bytes of a version are, and keeps them if the
// record that holds them is still in memory.
type located struct {
	catalog.Located
	data []byte // of an inline content that is still pending
}

// Reader delivers one content. Its bytes are checked: a Read returns bytes only
// after the block, or the content, that they belong to matched its sha256, so
// that wrong bytes are never delivered, not even before an error.
type Reader struct {
	v    Version
	r    io.Reader
	done func() error
}

// Version returns what is being read.
func (r *Reader) Version() Version { return r.v }

// Read reads the content. Errors: ErrCorrupt, ErrGone, those of the store.
func (r *Reader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if err != nil && err != io.EOF {
		err = fail("read", r.v.Path, err)
	}
	return n, err
}

// Close ends the transfer.
func (r *Reader) Close() error { return r.done() }

// Open reads the content of a path: whole or a range, of any version. The
// caller closes the Reader. A small content is read and checked before Open
// returns; a large one while the Reader is read, which may then fail likewise.
// Errors: ErrNotFound if the path was not there at that time, ErrGone if its
// version was removed since, ErrCorrupt if what is stored is not what was
// committed.
func (s *Store) Open(ctx context.Context, path string, o *ReadOptions) (*Reader, error) {
	if o == nil {
		o = &ReadOptions{}
	}
	v, err := s.stat(ctx, path, o.At)
	if err != nil {
		return nil, fail("get", path, err)
	}
	r, err := s.OpenVersion(ctx, v, o.Offset, o.Length)
	return r, fail("get", path, err)
}

// OpenVersion reads the content of a version that List, Stat, History or Diff
// returned; offset and length as in ReadOptions. Errors are those of Open.
func (s *Store) OpenVersion(ctx context.Context, v *Version, offset, length int64) (*Reader, error) {
	if v.Deleted {
		return nil, fail("get", v.Path, fmt.Errorf("%w: slot %d deleted it", ErrNotFound, v.Slot))
	}
	if offset < 0 {
		offset = max(0, v.Size+offset)
	}
	offset = min(offset, v.Size)
	if length <= 0 || length > v.Size-offset {
		length = v.Size - offset
	}
	r := &Reader{v: *v, done: func() error { return nil }}
	var err error
	switch {
	case length == 0:
		r.r = bytes.NewReader(nil)
	case v.place.Codec == format.CodecBlocks:
		ctx, cancel := context.WithCancelCause(ctx)
		lr := &largeReader{s: s, ctx: ctx, cancel: cancel, v: v, at: offset, end: offset + length}
		r.r, r.done = lr, func() error { cancel(nil); return lr.close() }
	default:
		var data []byte
		if data, err = s.small(ctx, v); err == nil {
			r.r = bytes.NewReader(data[offset : offset+length])
		}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Get reads a whole content, or a range of it, into memory. Errors are those of
// Open.
func (s *Store) Get(ctx context.Context, path string, o *ReadOptions) ([]byte, error) {
	r, err := s.Open(ctx, path, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return data, nil
}

// small reads a content that lies in a pack or inline, and checks it.
func (s *Store) small(ctx context.Context, v *Version) ([]byte, error) {
	if v.Size > format.SmallContent {
		return nil, fmt.Errorf("%w: a content of %d bytes is said to lie in a pack", ErrCorrupt, v.Size)
	}
	stored := v.place.data
	if stored == nil {
		var err error
		if stored, err = s.getRange(ctx, v, v.place.key(), v.place.Offset, v.place.Length); err != nil {
			return nil, err
		}
	}
	return decodeSmall(v, stored)
}

func decodeSmall(v *Version, stored []byte) ([]byte, error) {
	data, err := format.Decompress(nil, stored, v.place.Codec, int(v.Size))
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", v.Path, v.place.key(), err)
	}
	if sha256.Sum256(data) != v.SHA256 {
		return nil, fmt.Errorf("%w: the content of %s in %s has another sha256 than its commit says", ErrCorrupt, v.Path, v.place.key())
	}
	return data, nil
}

// key is the key of the object that holds the bytes.
func (l *located) key() string {
	if l.Inline {
		return format.SlotKey(l.Slot)
	}
	return l.Object.Name
}

// getRange reads stored bytes of a version.
func (s *Store) getRange(ctx context.Context, v *Version, key string, offset, length int64) ([]byte, error) {
	if length < 0 || length > format.MaxBody {
		return nil, fmt.Errorf("%w: a stored length of %d bytes", ErrCorrupt, length)
	}
	gctx, cancel := bounded(ctx, "reading "+key, length)
	defer cancel()
	data := make([]byte, length)
	err := uncut(gctx, func() error {
		obj, err := s.bucket.Get(gctx, key, backend.GetOptions{Offset: offset, Length: length})
		if err != nil {
			return err
		}
		defer obj.Body.Close()
		if obj.Length != length {
			return fmt.Errorf("%w: %s ends before byte %d", ErrCorrupt, key, offset+length)
		}
		return readFull(obj.Body, data, key)
	})
	if err != nil {
		return nil, s.missing(ctx, v, named(gctx, err))
	}
	return data, nil
}

// readAttempts is how often a transfer is begun that is cut off.
const readAttempts = 5

// uncut reads again what a lost connection cut off. Objects do not change, and
// records are only ever taken whole, so nothing is put together of two answers.
func uncut(ctx context.Context, read func() error) error {
	for attempt := 1; ; attempt++ {
		err := read()
		if !errors.Is(err, io.ErrUnexpectedEOF) || attempt == readAttempts || ctx.Err() != nil {
			return err
		}
		if perr := pause(ctx, attempt+3); perr != nil {
			return err
		}
	}
}

func readFull(r io.Reader, data []byte, key string) error {
	if _, err := io.ReadFull(r, data); err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	return nil
}

// missing tells an object that retention removed from one that is lost: after
// catching up, is the version still one that the datastore has?
func (s *Store) missing(ctx context.Context, v *Version, err error) error {
	if !errors.Is(err, backend.ErrNotFound) {
		return err
	}
	if _, uerr := s.Update(ctx); uerr != nil {
		return errors.Join(err, uerr)
	}
	now, found, lerr := s.lookup(ctx, v.Path, v.Slot)
	switch {
	case lerr != nil:
		return errors.Join(err, lerr)
	case !found || now.Slot != v.Slot || now.Deleted:
		return fmt.Errorf("%w: %s of slot %d", ErrGone, v.Path, v.Slot)
	case now.place.key() != v.place.key():
		return fmt.Errorf("%w: the content was moved meanwhile; read it again", ErrGone)
	}
	return fmt.Errorf("%w: the bytes of %s are missing from the store: %w", ErrCorrupt, v.Path, err)
}

// largeReader reads a large content block by block: each is checked before any
// byte of it is delivered. The footer that holds the blocks' hashes is checked
// against the commit. A read of the whole checks the content's sha256 as well.
type largeReader struct {
	s       *Store
	ctx     context.Context
	cancel  context.CancelCauseFunc
	v       *Version
	at, end int64 // of the content

	blocks []format.BlockRef
	next   int // block to read
	// The stored bytes that are still to be read.
	from, length int64
	body         io.ReadCloser
	whole        hash.Hash // nil for a range
	buf          []byte    // the current block
	have         []byte    // what is left of it
	stored       []byte
}

func (r *largeReader) Read(b []byte) (int, error) {
	if r.at >= r.end {
		return 0, r.finish()
	}
	if len(r.have) == 0 {
		if err := r.block(); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.have)
	r.have = r.have[n:]
	r.at += int64(n)
	if r.at >= r.end {
		if err := r.finish(); err != io.EOF {
			return 0, err
		}
	}
	return n, nil
}

func (r *largeReader) finish() error {
	if r.whole != nil {
		var sum format.Hash
		r.whole.Sum(sum[:0])
		if sum != r.v.SHA256 {
			return fmt.Errorf("%w: the content of %s has another sha256 than its commit says", ErrCorrupt, r.v.Path)
		}
	}
	return io.EOF
}

// start reads the footer and begins the transfer at the block of r.at.
func (r *largeReader) start() error {
	foot, err := r.s.footer(r.ctx, r.v, &r.v.place.Object)
	if err != nil {
		return err
	}
	first := r.at / format.BlockSize
	last := (r.end - 1) / format.BlockSize
	if want := (r.v.Size + format.BlockSize - 1) / format.BlockSize; int64(len(foot.Blocks)) != want {
		return fmt.Errorf("%w: %s has %d blocks, not %d", ErrCorrupt, r.v.place.Object.Name, len(foot.Blocks), want)
	}
	var from, length int64
	for i, b := range foot.Blocks[:last+1] {
		if int64(i) < first {
			from += b.Length
		} else {
			length += b.Length
		}
	}
	r.blocks, r.next, r.from, r.length = foot.Blocks, int(first), from, length
	if r.at == 0 && r.end == r.v.Size {
		r.whole = sha256.New()
	}
	return nil
}

// readStored reads the stored bytes of the next block, over a new connection if one
// is cut off.
func (r *largeReader) readStored(stored []byte) error {
	return uncut(r.ctx, func() error {
		if r.body == nil {
			obj, err := r.s.bucket.Get(r.ctx, r.v.place.Object.Name, backend.GetOptions{Offset: r.from, Length: r.length})
			if err != nil {
				return r.s.missing(r.ctx, r.v, err)
			}
			r.body = obj.Body
			if obj.Length != r.length {
				return fmt.Errorf("%w: %s ends before byte %d", ErrCorrupt, r.v.place.Object.Name, r.from+r.length)
			}
		}
		err := readFull(r.body, stored, r.v.place.Object.Name)
		if err != nil {
			r.body.Close()
			r.body = nil
			return err
		}
		r.from += int64(len(stored))
		r.length -= int64(len(stored))
		return nil
	})
}

// block reads and checks the next block. A transfer that stands still fails; the
// time that the reader's user takes does not count.
func (r *largeReader) block() error {
	d := callTimeout + format.BlockSize/slowestRate*time.Second
	stalled := time.AfterFunc(d, func() { r.cancel(&timeoutError{"the next block of " + r.v.place.Object.Name, d}) })
	defer stalled.Stop()
	return named(r.ctx, r.nextBlock())
}

func (r *largeReader) nextBlock() error {
	if r.blocks == nil {
		if err := r.start(); err != nil {
			return err
		}
	}
	ref := r.blocks[r.next]
	raw := min(int64(format.BlockSize), r.v.Size-int64(r.next)*format.BlockSize)
	if ref.Length < 0 || ref.Length > raw {
		return fmt.Errorf("%w: block %d of %s has a stored length of %d bytes", ErrCorrupt, r.next, r.v.place.Object.Name, ref.Length)
	}
	if r.buf == nil {
		r.buf, r.stored = make([]byte, 0, format.BlockSize), make([]byte, format.BlockSize)
	}
	stored := r.stored[:ref.Length]
	if err := r.readStored(stored); err != nil {
		return err
	}
	data := stored
	if ref.Codec != format.CodecRaw {
		var err error
		if data, err = format.Decompress(r.buf[:0], stored, ref.Codec, int(raw)); err != nil {
			return fmt.Errorf("block %d of %s: %w", r.next, r.v.place.Object.Name, err)
		}
	}
	if int64(len(data)) != raw || sha256.Sum256(data) != ref.SHA256 {
		return fmt.Errorf("%w: block %d of %s has another sha256 than its footer says", ErrCorrupt, r.next, r.v.place.Object.Name)
	}
	if r.whole != nil {
		r.whole.Write(data)
	}
	skip := r.at - int64(r.next)*format.BlockSize
	r.have = data[skip:min(raw, r.end-int64(r.next)*format.BlockSize)]
	r.next++
	return nil
}

func (r *largeReader) close() error {
	if r.body == nil {
		return nil
	}
	return r.body.Close()
}

// footer reads the footer of a data object and checks it against the commit.
func (s *Store) footer(ctx context.Context, v *Version, o *format.Object) (*format.Footer, error) {
	gctx, cancel := bounded(ctx, "the footer of "+o.Name, o.FooterSize)
	defer cancel()
	data, size, err := getTail(gctx, s.bucket, o.Name, o.FooterSize)
	if err != nil {
		return nil, s.missing(ctx, v, named(gctx, err))
	}
	if size != o.Size || sha256Of(data) != o.Checksum {
		return nil, fmt.Errorf("%w: %s has another size or footer than its commit says", ErrCorrupt, o.Name)
	}
	foot, err := format.DecodeFooter(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Name, err)
	}
	return foot, nil
}

// getTail reads the last n bytes of an object, and its size.
func getTail(ctx context.Context, bucket *backend.Bucket, key string, n int64) (data []byte, size int64, err error) {
	if n <= 0 || n > format.MaxBody {
		return nil, 0, fmt.Errorf("%w: an end of %d bytes", ErrCorrupt, n)
	}
	err = uncut(ctx, func() error {
		obj, err := bucket.Get(ctx, key, backend.GetOptions{Offset: -n})
		if err != nil {
			return err
		}
		defer obj.Body.Close()
		data, size = make([]byte, min(n, obj.Length)), obj.Size
		return readFull(obj.Body, data, key)
	})
	if err != nil {
		return nil, 0, err
	}
	return data, size, nil
}
