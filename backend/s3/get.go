package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/swampd/swampd/backend"
)

// Get reads an object or a part of it.
func (d *Driver) Get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	// A range that begins at or beyond the end is an error to S3. Then a HEAD
	// says how large the object is; it may have been replaced by a larger one in
	// between, so that reading it is tried again.
	for range 4 {
		obj, err := d.get(ctx, key, opts)
		if !isRangeError(err) {
			return obj, err
		}
		if obj, err = d.beyond(ctx, key, opts); obj != nil || err != nil {
			return obj, err
		}
	}
	return nil, fmt.Errorf("the object is replaced again and again while it is read")
}

func isRangeError(err error) bool {
	var f *failure
	return errors.As(err, &f) && (f.status == http.StatusRequestedRangeNotSatisfiable || f.code == "InvalidRange")
}

func (d *Driver) get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	in := &s3.GetObjectInput{Bucket: &d.bucket, Key: d.name(key), Range: rangeHeader(opts)}
	if opts.IfVersion != "" {
		in.IfMatch = aws.String(string(opts.IfVersion))
	}
	var out *s3.GetObjectOutput
	ex, err := d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) (err error) {
		out, err = d.client.GetObject(ctx, in)
		return err
	})
	if err != nil {
		return nil, backend.WithDate(readError(err, opts), ex.date)
	}
	obj, err := d.object(ctx, ex, out, opts)
	if err != nil {
		out.Body.Close()
		return nil, backend.WithDate(err, ex.date)
	}
	return obj, nil
}

// rangeHeader is what to ask for, nil for everything.
func rangeHeader(opts backend.GetOptions) *string {
	switch {
	case opts.Offset < 0 && opts.Offset > math.MinInt64:
		return aws.String("bytes=-" + strconv.FormatInt(-opts.Offset, 10))
	case opts.Length > 0 && opts.Offset >= 0 && opts.Length-1 <= math.MaxInt64-opts.Offset:
		return aws.String(fmt.Sprintf("bytes=%d-%d", opts.Offset, opts.Offset+opts.Length-1))
	case opts.Offset > 0:
		return aws.String(fmt.Sprintf("bytes=%d-", opts.Offset))
	}
	return nil
}

// object makes the answer, from what the store says about the range.
func (d *Driver) object(ctx context.Context, ex *exchange, out *s3.GetObjectOutput, opts backend.GetOptions) (*backend.Object, error) {
	etag, err := quotedETag(out.ETag)
	if err != nil {
		return nil, fmt.Errorf("%w: the answer to a read has no ETag", backend.ErrUnsupported)
	}
	first, length, size := int64(0), int64(-1), int64(-1)
	if out.ContentLength != nil {
		length, size = *out.ContentLength, *out.ContentLength
	}
	if ex.status == http.StatusPartialContent {
		var last int64
		if first, last, size, err = parseContentRange(aws.ToString(out.ContentRange)); err != nil {
			return nil, err
		}
		length = last - first + 1
	}
	if length < 0 {
		return nil, fmt.Errorf("%w: the answer to a read does not say how long it is", backend.ErrUnsupported)
	}
	offset, want := span(opts, size)
	if first != offset || length < want {
		return nil, fmt.Errorf("%w: asked for %d bytes from byte %d, the store sends %d from byte %d (of %d)",
			backend.ErrUnsupported, want, offset, length, first, size)
	}
	obj := &backend.Object{Offset: offset, Length: want, Info: ex.info(size, etag, out.LastModified)}
	obj.Body = &objectBody{ctx: ctx, rc: out.Body, left: want}
	return obj, nil
}

func (ex *exchange) info(size int64, etag string, modified *time.Time) backend.Info {
	return backend.Info{Size: size, Version: backend.Version(etag), Modified: aws.ToTime(modified), Now: ex.date, Date: ex.date}
}

// span is the part of an object of that size that opts name.
func span(opts backend.GetOptions, size int64) (offset, length int64) {
	offset = opts.Offset
	if offset < 0 {
		offset = max(0, size+max(offset, -size))
	}
	offset = min(offset, size)
	length = size - offset
	if opts.Length > 0 {
		length = min(length, opts.Length)
	}
	return offset, length
}

// parseContentRange reads "bytes 0-9/100".
func parseContentRange(s string) (first, last, size int64, err error) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	span, total, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(span, "-")
	if ok && ok2 && ok3 {
		var e1, e2, e3 error
		first, e1 = strconv.ParseInt(from, 10, 64)
		last, e2 = strconv.ParseInt(to, 10, 64)
		size, e3 = strconv.ParseInt(total, 10, 64)
		if errors.Join(e1, e2, e3) == nil && first >= 0 && first <= last && last < size {
			return first, last, size, nil
		}
	}
	return 0, 0, 0, fmt.Errorf("%w: the store sends the range %q of an object", backend.ErrUnsupported, s)
}

// beyond answers a read that begins at or after the end. It returns nothing if
// the object is larger than that by now.
func (d *Driver) beyond(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	in := &s3.HeadObjectInput{Bucket: &d.bucket, Key: d.name(key)}
	if opts.IfVersion != "" {
		in.IfMatch = aws.String(string(opts.IfVersion))
	}
	var out *s3.HeadObjectOutput
	ex, err := d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) (err error) {
		out, err = d.client.HeadObject(ctx, in)
		return err
	})
	if err != nil {
		return nil, backend.WithDate(readError(err, opts), ex.date)
	}
	etag, err := quotedETag(out.ETag)
	if err != nil || out.ContentLength == nil {
		return nil, fmt.Errorf("%w: the answer to a HEAD has no ETag or no length", backend.ErrUnsupported)
	}
	size := *out.ContentLength
	offset, length := span(opts, size)
	if length > 0 {
		return nil, nil
	}
	return &backend.Object{Body: http.NoBody, Offset: offset, Info: ex.info(size, etag, out.LastModified)}, nil
}

// readError says what the failure of a read means.
func readError(err error, opts backend.GetOptions) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	if f.verdict == final {
		switch {
		case opts.IfVersion != "" && (f.isChanged() || f.isMissing()):
			return f.as(backend.ErrChanged)
		case f.isMissing():
			return f.as(backend.ErrNotFound)
		}
	}
	return f.meaning(repeatable)
}

// objectBody delivers exactly the bytes that the answer promised, or an error
// that is not io.EOF.
type objectBody struct {
	ctx  context.Context // of the call: it bounds the body too
	rc   io.ReadCloser
	left int64
}

func (b *objectBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.rc.Read(p)
	b.left -= int64(n)
	switch {
	case err == nil || b.left == 0:
		return n, nil
	case b.ctx.Err() != nil:
		return n, contextError(b.ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return n, fmt.Errorf("%w: the store's answer ends %d bytes too early", io.ErrUnexpectedEOF, b.left)
	}
	return n, fmt.Errorf("%w: %d bytes before the end: %w", io.ErrUnexpectedEOF, b.left, err)
}

func (b *objectBody) Close() error { return b.rc.Close() }
