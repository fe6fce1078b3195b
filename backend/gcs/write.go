package gcs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/googleapi"

	"github.com/swampd/swampd/backend"
)

const (
	contentType = "application/octet-stream"
	// cacheControl keeps caches away from the objects of buckets that are public
	// (the default there is an hour), and keeps the bytes as they are.
	cacheControl = "no-store, no-transform"
	// maxPartFailures is how often in a row a part of a resumable upload is sent
	// again, and partTime for how long.
	maxPartFailures = 6
	partTime        = 32 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Create makes an object under the condition that its name holds none.
func (d *Driver) Create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	if backend.Replaceable(key) {
		defer d.pace.wrote(key)
	}
	return d.upload(ctx, opCreate, key, body, storage.Conditions{DoesNotExist: true})
}

// Replace makes a new generation under the condition that old is the current one.
// It waits until the name may be written again (see Options.ReplaceInterval).
func (d *Driver) Replace(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
	if err := d.pace.wait(ctx, key); err != nil {
		return backend.Info{}, err
	}
	defer d.pace.wrote(key)
	return d.upload(ctx, opReplace, key, body, storage.Conditions{GenerationMatch: generation(old)})
}

func (d *Driver) upload(ctx context.Context, op operation, key string, b backend.Body, cond storage.Conditions) (backend.Info, error) {
	var info backend.Info
	err := d.do(ctx, op, func(ctx context.Context, rec *record) error {
		src, err := b.Open()
		if err != nil {
			return decided{fmt.Errorf("opening what is to be uploaded: %w", err)}
		}
		defer src.Close()
		info, err = d.send(ctx, rec, d.object(key).If(cond), b, src)
		var left *leftover
		if errors.As(err, &left) {
			return decided{d.undo(ctx, op, key, left)}
		}
		return err
	})
	if missing, certain := isMissing(err); missing {
		switch {
		case op == opReplace:
			err = d.missing(ctx, op, err)
		case !certain:
			// A name that must hold nothing is not what was missed.
			err = backend.WithDate(fmt.Errorf("%w: %w", backend.ErrNoBucket, err), backend.Date(err))
		}
	}
	if err != nil {
		return backend.Info{}, err
	}
	return info, nil
}

// send makes one upload of b, read from src. Errors that it knows the meaning of
// are decided, a *leftover among them; the others are for judge.
func (d *Driver) send(ctx context.Context, rec *record, h *storage.ObjectHandle, b backend.Body, src io.ReadSeeker) (backend.Info, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)

	in := &verifier{src: src, body: b, sha: sha256.New()}
	rec.resumable, rec.complete = b.Size > int64(d.chunk), in.done.Load
	if rec.resumable {
		h = h.Retryer(storage.WithPolicy(storage.RetryAlways), storage.WithErrorFunc(partAgain(rec)),
			storage.WithBackoff(gax.Backoff{Initial: 200 * time.Millisecond, Max: 8 * time.Second}))
	}
	w := h.NewWriter(ctx)
	w.ContentType = contentType
	w.CacheControl = cacheControl
	if rec.resumable {
		// The client counts the crc32c on the way and sends it with the last part.
		w.ChunkSize, w.ChunkRetryDeadline = d.chunk, partTime
		w.ProgressFunc = func(int64) { rec.progress() }
	} else {
		crc, err := checksum(src, b.Size, *buf)
		if err != nil {
			return backend.Info{}, decided{err}
		}
		w.ChunkSize = 0
		w.SendCRC32C, w.CRC32C = true, crc
		in.announced = &crc
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, *buf)
	if err == nil {
		err = in.finish() // an empty body, which no Read has checked
	}
	if in.err != nil {
		// Both the request that breaks off and the checksum that does not fit what
		// came of it keep the store from making the object.
		cancel()
		_ = w.Close() // waits for the end of the request
		return backend.Info{}, decided{in.err}
	}
	if cerr := w.Close(); cerr != nil {
		return backend.Info{}, cerr
	}
	if err != nil {
		return backend.Info{}, decided{fmt.Errorf("%w: %w: %w", backend.ErrUnknown, errEarly, err)}
	}
	return uploaded(w.Attrs(), in, rec.snapshot().date)
}

// uploaded checks what the store says it made.
func uploaded(a *storage.ObjectAttrs, in *verifier, date time.Time) (backend.Info, error) {
	if a == nil || a.Generation <= 0 {
		return backend.Info{}, decided{fmt.Errorf("%w: the store answered an upload without a generation", backend.ErrUnknown)}
	}
	if a.Size != in.n || a.CRC32C != in.crc {
		return backend.Info{}, &leftover{a.Generation, fmt.Errorf("sent %d bytes with crc32c %08x, the store keeps %d with %08x",
			in.n, in.crc, a.Size, a.CRC32C)}
	}
	return backend.Info{
		Size:     a.Size,
		Version:  version(a.Generation),
		Modified: second(a.Updated),
		Now:      date,
		Date:     date,
	}, nil
}

// leftover is an object that was made with other bytes than were sent.
type leftover struct {
	generation int64
	err        error
}

func (l *leftover) Error() string { return l.err.Error() }
func (l *leftover) Unwrap() error { return l.err }

// undo removes a leftover: exactly the generation that was made. Nothing has
// been built on it yet, since its maker was not told of it. What Replace has made
// stays: with it gone the name would hold nothing, which says something else
// than bytes that nobody can read.
func (d *Driver) undo(ctx context.Context, op operation, key string, left *leftover) error {
	if op == opReplace {
		return fmt.Errorf("%w: it accepted damaged bytes, which %s holds now as generation %d: %w",
			backend.ErrUnsupported, key, left.generation, left)
	}
	// The call's context may be over; the removal is short and worth more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partTime)
	defer cancel()
	err := d.do(ctx, opRead, func(ctx context.Context, _ *record) error {
		return d.object(key).Generation(left.generation).Delete(ctx)
	})
	if missing, _ := isMissing(err); err != nil && !missing {
		return fmt.Errorf("%w: it accepted damaged bytes, which %s holds now as generation %d, since they could not be removed (%w): %w",
			backend.ErrUnsupported, key, left.generation, err, left)
	}
	return fmt.Errorf("%w: the bytes were damaged on their way to the store, which made the object all the same; it was removed again: %w",
		backend.ErrBadContent, left)
}

// partAgain says of a request of a resumable upload whether to send it again. All
// but the last can be repeated: they make nothing, and the store drops what it
// has already. The last only where it was not carried out.
func partAgain(rec *record) func(error) bool {
	return func(err error) bool {
		if err == nil {
			return false
		}
		s := rec.snapshot()
		var e *googleapi.Error
		switch errors.As(err, &e); {
		case rec.failed() > maxPartFailures || errors.Is(err, errEarly):
			return false
		case s.deciding:
			return e != nil && e.Code == http.StatusTooManyRequests
		case e != nil:
			return e.Code == http.StatusRequestTimeout || e.Code == http.StatusTooManyRequests || e.Code >= 500
		}
		return s.sent && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	}
}

// buffers are what bodies are copied through.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// checksum reads src once and goes back to its beginning.
func checksum(src io.ReadSeeker, size int64, buf []byte) (uint32, error) {
	var crc uint32
	var n int64
	for {
		m, err := src.Read(buf)
		crc = crc32.Update(crc, castagnoli, buf[:m])
		n += int64(m)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("reading what is to be uploaded: %w", err)
		}
		if n > size {
			break
		}
	}
	if n != size {
		return 0, wrongSize(n, size)
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("going back to the beginning of what is to be uploaded: %w", err)
	}
	return crc, nil
}

func wrongSize(n, size int64) error {
	if n > size {
		return fmt.Errorf("%w: more than the %d bytes that were announced", backend.ErrBadContent, size)
	}
	return fmt.Errorf("%w: it ends after %d of %d bytes", backend.ErrBadContent, n, size)
}

// verifier passes the bytes of a body on and gives out the last of them only
// after all have been found to be what the body promised. Without them no upload
// can be completed.
type verifier struct {
	src  io.Reader
	body backend.Body
	sha  hash.Hash
	// announced is the crc32c that an earlier pass over src gave, if there was one.
	announced *uint32

	n    int64
	crc  uint32
	err  error       // what was wrong with the body
	done atomic.Bool // all was right
}

func (v *verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	if v.done.Load() {
		return 0, io.EOF
	}
	rest := v.body.Size - v.n
	n, err := v.src.Read(p[:min(int64(len(p)), max(rest, 1))])
	if int64(n) > rest {
		return 0, v.fail(wrongSize(v.body.Size+1, v.body.Size))
	}
	v.n += int64(n)
	v.crc = crc32.Update(v.crc, castagnoli, p[:n])
	if v.body.HasSHA256 {
		v.sha.Write(p[:n])
	}
	switch {
	case err != nil && err != io.EOF:
		return 0, v.fail(fmt.Errorf("reading what is to be uploaded: %w", err))
	case v.n == v.body.Size:
		if err := v.finish(); err != nil {
			return 0, err
		}
	case err == io.EOF:
		return 0, v.fail(wrongSize(v.n, v.body.Size))
	}
	return n, nil
}

// finish looks whether the body ends where it should and is what it should be.
func (v *verifier) finish() error {
	if v.done.Load() || v.err != nil {
		return v.err
	}
	var one [1]byte
	for {
		n, err := v.src.Read(one[:])
		if n > 0 {
			return v.fail(wrongSize(v.body.Size+1, v.body.Size))
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return v.fail(fmt.Errorf("reading what is to be uploaded: %w", err))
		}
	}
	if v.n != v.body.Size {
		return v.fail(wrongSize(v.n, v.body.Size))
	}
	if v.body.HasSHA256 && !bytes.Equal(v.sha.Sum(nil), v.body.SHA256[:]) {
		return v.fail(fmt.Errorf("%w: its sha256 is %x, announced was %x", backend.ErrBadContent, v.sha.Sum(nil), v.body.SHA256))
	}
	if v.announced != nil && v.crc != *v.announced {
		return v.fail(fmt.Errorf("%w: it changed while it was read", backend.ErrBadContent))
	}
	v.done.Store(true)
	return nil
}

func (v *verifier) fail(err error) error {
	v.err = err
	return err
}
