package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"cloud.google.com/go/storage"

	"github.com/swampd/swampd/backend"
)

const (
	// maxResumes is how often a body that breaks off is taken up again.
	maxResumes = 3
	// maxGrowths bounds the turns of a Get beyond the end of an object that
	// grows each time before its size can be asked.
	maxGrowths = 3
)

// noGeneration is what stands for a version that is none of this driver's: no
// object has it, and the store says so itself.
const noGeneration = math.MaxInt64

func generation(v backend.Version) int64 {
	gen, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || gen <= 0 {
		return noGeneration
	}
	return gen
}

func version(gen int64) backend.Version { return backend.Version(strconv.FormatInt(gen, 10)) }

// Get reads an object or a part of it, by one request; a begin at or beyond the
// end takes a second one.
func (d *Driver) Get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	op := opRead
	h := d.object(key).ReadCompressed(true)
	if opts.IfVersion != "" {
		op = opPinned
		h = h.If(storage.Conditions{GenerationMatch: generation(opts.IfVersion)})
	}
	for turn := 0; ; turn++ {
		obj, err := d.read(ctx, op, h, opts)
		var r *reply
		if err == nil || !errors.As(err, &r) || r.status != http.StatusRequestedRangeNotSatisfiable {
			return obj, d.missing(ctx, op, err)
		}
		// The range begins at or beyond the end. What is there is asked for without
		// its content; if it has grown meanwhile, the range is read after all.
		obj, err = d.head(ctx, op, h)
		if err != nil {
			return nil, d.missing(ctx, op, err)
		}
		if opts.Offset < 0 && obj.Size == 0 || opts.Offset >= obj.Size {
			obj.Offset = obj.Size
			return obj, nil
		}
		if turn == maxGrowths {
			return nil, errors.New("the object changed again and again while it was read; try again")
		}
	}
}

// read makes the request for the range of opts.
func (d *Driver) read(ctx context.Context, op operation, h *storage.ObjectHandle, opts backend.GetOptions) (*backend.Object, error) {
	offset, length := max(opts.Offset, -math.MaxInt64), opts.Length
	if length == 0 || offset < 0 || length > math.MaxInt64-offset {
		length = -1 // up to the end; a suffix cannot be cut short by its request
	}
	var obj *backend.Object
	err := d.do(ctx, op, func(ctx context.Context, rec *record) error {
		rec.limit = 1 + maxResumes
		r, err := h.NewRangeReader(ctx, offset, length)
		if err != nil {
			return err
		}
		o, err := readerObject(r, rec)
		if err == nil {
			err = cut(o, r, opts)
		}
		if err != nil {
			r.Close()
			return decided{err}
		}
		obj = o
		return nil
	})
	return obj, err
}

// head asks for an object without its content.
func (d *Driver) head(ctx context.Context, op operation, h *storage.ObjectHandle) (*backend.Object, error) {
	var obj *backend.Object
	err := d.do(ctx, op, func(ctx context.Context, rec *record) error {
		r, err := h.NewRangeReader(ctx, 0, 0)
		if err != nil {
			return err
		}
		r.Close()
		o, err := readerObject(r, rec)
		if err != nil {
			return decided{err}
		}
		o.Body = http.NoBody
		obj = o
		return nil
	})
	return obj, err
}

// readerObject takes what the answer said about the object.
func readerObject(r *storage.Reader, rec *record) (*backend.Object, error) {
	a := r.Attrs
	if a.Generation <= 0 || a.Size < 0 {
		return nil, fmt.Errorf("%w: an answer without generation or size; is this really Google Cloud Storage?", backend.ErrUnsupported)
	}
	date := rec.snapshot().date
	return &backend.Object{Info: backend.Info{
		Size:     a.Size,
		Version:  version(a.Generation),
		Modified: a.LastModified.UTC(),
		Now:      date,
		Date:     date,
	}}, nil
}

// cut works out where the body of r lies in the object, and makes sure that it is
// what was asked for.
func cut(o *backend.Object, r *storage.Reader, opts backend.GetOptions) error {
	begin := opts.Offset
	if begin < 0 {
		begin = o.Size + max(begin, -o.Size)
	}
	begin = min(begin, o.Size)
	length := o.Size - begin
	if opts.Length > 0 {
		length = min(length, opts.Length)
	}
	if r.Attrs.StartOffset != begin {
		return fmt.Errorf("%w: asked for bytes from %d, the store sent those from %d", backend.ErrUnsupported, begin, r.Attrs.StartOffset)
	}
	o.Offset, o.Length = begin, length
	o.Body = &body{r: r, length: length, remain: length, whole: length == o.Size}
	return nil
}

// missing turns a 404 into ErrNotFound, ErrChanged for a pinned read, or
// ErrNoBucket; it asks the store where the answer did not say what is missing.
func (d *Driver) missing(ctx context.Context, op operation, err error) error {
	missing, certain := isMissing(err)
	if !missing {
		return err
	}
	date := backend.Date(err)
	if !certain && !d.seen.Load() {
		if e := d.findBucket(ctx); errors.Is(e, backend.ErrNoBucket) {
			return e
		} else if e != nil {
			return fmt.Errorf("%w; whether the bucket exists could not be found out: %w", err, e)
		}
	}
	sentinel := backend.ErrNotFound
	if op == opPinned || op == opReplace {
		sentinel = backend.ErrChanged
	}
	return backend.WithDate(fmt.Errorf("%w: %w", sentinel, err), date)
}

// body delivers remain bytes of a reader, and no end of them before that.
type body struct {
	r              io.ReadCloser
	length, remain int64
	whole          bool // the reader checks the object's crc32c at its end
	err            error
}

func (b *body) Read(p []byte) (int, error) {
	if b.err == nil && b.remain == 0 {
		b.err = b.end()
	}
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.remain)])
	b.remain -= int64(n)
	switch {
	case err == io.EOF && b.remain > 0:
		b.err = fmt.Errorf("%w: the store sent %d of %d bytes", io.ErrUnexpectedEOF, b.length-b.remain, b.length)
	case err != nil && err != io.EOF:
		b.err = b.broken(err)
		if b.remain == 0 {
			n = 0
		}
	case b.remain == 0:
		// The last bytes are given out only after the checksum was right: a reader
		// that knows the size never reads beyond them.
		if b.err = b.end(); b.err != io.EOF {
			n = 0
		}
	}
	return n, b.err
}

// end reads the end of a body whose bytes have all come. Of a part it is of no
// interest, but reading it lets the connection be used again.
func (b *body) end() error {
	var one [1]byte
	n, err := b.r.Read(one[:])
	switch {
	case !b.whole:
		return io.EOF
	case n > 0:
		return fmt.Errorf("%w: the store sent more than the %d bytes that it announced", backend.ErrBadContent, b.length)
	case err == nil || err == io.EOF:
		return io.EOF
	}
	return b.broken(err)
}

// broken says why a body ended: the call was given up, the bytes are not those
// that the store keeps, or they stopped coming.
func (b *body) broken(err error) error {
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case b.remain == 0:
		return fmt.Errorf("%w: what was read differs from what the store keeps: %w", backend.ErrBadContent, err)
	}
	return fmt.Errorf("%w: after %d of %d bytes: %w", io.ErrUnexpectedEOF, b.length-b.remain, b.length, err)
}

func (b *body) Close() error {
	if b.err == nil {
		b.err = errors.New("the body was closed")
	}
	return b.r.Close()
}

// second is the resolution of the times that a read tells.
func second(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
