package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/swampd/swampd/backend"
)

// abortTime bounds the removal of the parts of an upload whose caller's context
// is over.
const abortTime = 5 * time.Second

// partSize is the size of the parts of a body: the configured one, or what makes
// no more than 10,000, in whole MiB.
func (d *Driver) partSize(size int64) int64 {
	need := (size + maxParts - 1) / maxParts
	if need <= d.opts.PartSize {
		return d.opts.PartSize
	}
	const mib = 1 << 20
	return (need + mib - 1) / mib * mib
}

// putParts sends the body in parts. S3 forgets an upload whose completion it
// answered with 409, so that all of it is sent again then.
func (d *Driver) putParts(ctx context.Context, key string, body backend.Body, cond condition) (backend.Info, error) {
	p := pace{limit: d.opts.MaxWait}
	for {
		m := &multipart{d: d, key: key, body: body, cond: cond, size: d.partSize(body.Size)}
		ex, etag, err := m.run(ctx)
		if err == nil {
			return written(ex, body.Size, etag), nil
		}
		var f *failure
		if errors.As(err, &f) && f.verdict == contested && m.complete && ctx.Err() == nil && p.wait(ctx, f, ex) {
			continue
		}
		return backend.Info{}, backend.WithDate(err, ex.date)
	}
}

// multipart is one upload in parts.
type multipart struct {
	d    *Driver
	key  string
	body backend.Body
	cond condition
	size int64 // of each part but the last

	id       string
	etags    []types.CompletedPart
	crc      uint32 // of the whole
	complete bool   // the completion was sent
}

func (m *multipart) run(ctx context.Context) (ex *exchange, etag string, err error) {
	if ex, err = m.begin(ctx); err != nil {
		return ex, "", err
	}
	if err = m.sendParts(ctx); err == nil {
		ex, etag, err = m.finish(ctx)
	}
	if err != nil && !errors.Is(err, backend.ErrUnknown) {
		m.abort(ctx)
	}
	return ex, etag, err
}

// begin starts the upload. A start that is repeated leaves an empty upload
// behind, for CleanUploads.
func (m *multipart) begin(ctx context.Context) (*exchange, error) {
	ex, err := m.d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) error {
		out, err := m.d.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
			Bucket: &m.d.bucket,
			Key:    m.d.name(m.key),
			// Both are needed here for the completion to be checked against the CRC
			// of the whole.
			ChecksumAlgorithm: types.ChecksumAlgorithmCrc32,
			ChecksumType:      types.ChecksumTypeFullObject,
		})
		if err != nil {
			return err
		}
		if out.UploadId == nil || *out.UploadId == "" {
			return errors.New("the answer to the start of an upload names no upload")
		}
		m.id = *out.UploadId
		return nil
	})
	return ex, undecidedNothing("starting a multipart upload", err)
}

// undecidedNothing is the error of a request that comes before the one that
// decides: nothing was made, whatever became of it.
func undecidedNothing(what string, err error) error {
	if err == nil {
		return nil
	}
	var f *failure
	if errors.As(err, &f) {
		err = f.meaning(repeatable)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// sendParts reads the body once, from its beginning to its end, and sends parts
// of it at the same time.
func (m *multipart) sendParts(ctx context.Context) error {
	up := newUpload(ctx, m.body)
	defer up.close()
	r, err := up.reader()
	if err != nil {
		return fmt.Errorf("reading the content: %w", err)
	}
	var sum hash.Hash
	if m.body.HasSHA256 {
		sum = sha256.New()
	}
	// A part that fails for good ends the reading. The parts that are on their way
	// are not cut off: one that arrives after the upload was removed can bring it
	// back.
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group errgroup.Group
	m.etags = make([]types.CompletedPart, (m.body.Size+m.size-1)/m.size)
	err = m.readParts(reading, r, sum, func(number int, part []byte, done func()) {
		group.Go(func() error {
			defer done()
			err := m.sendPart(ctx, number, part)
			if err != nil {
				stop(err)
			}
			return err
		})
	})
	if perr := group.Wait(); perr != nil {
		return perr
	}
	if err == nil && sum != nil && !bytes.Equal(sum.Sum(nil), m.body.SHA256[:]) {
		err = fmt.Errorf("%w: its sha256 is %x, announced was %x", backend.ErrBadContent, sum.Sum(nil), m.body.SHA256)
	}
	if err != nil {
		return fmt.Errorf("reading the content: %w", err)
	}
	return nil
}

// readParts cuts the content into parts and hands them to send. Each is in a
// buffer that is given back by done.
func (m *multipart) readParts(ctx context.Context, r io.Reader, sum hash.Hash, send func(number int, part []byte, done func())) error {
	for number := range m.etags {
		want := min(m.size, m.body.Size-int64(number)*m.size)
		buf, done, err := m.d.buffer(ctx, want)
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(r, buf); err != nil {
			done()
			return err
		}
		if sum != nil {
			sum.Write(buf)
		}
		m.crc = crc32.Update(m.crc, crc32.IEEETable, buf)
		send(number, buf, done)
	}
	return nil
}

// buffer waits for room for a part and returns it with how to give it back.
func (d *Driver) buffer(ctx context.Context, size int64) ([]byte, func(), error) {
	weight := min(max(size, d.opts.PartSize), int64(d.opts.Parallel)*d.opts.PartSize)
	if err := d.parts.Acquire(ctx, weight); err != nil {
		return nil, nil, contextError(ctx)
	}
	if size > d.opts.PartSize {
		return make([]byte, size), func() { d.parts.Release(weight) }, nil
	}
	b := d.buffers.Get().(*[]byte)
	return (*b)[:size], func() {
		d.buffers.Put(b)
		d.parts.Release(weight)
	}, nil
}

func (m *multipart) sendPart(ctx context.Context, number int, part []byte) error {
	crc := crcText(crc32.ChecksumIEEE(part))
	n := int32(number + 1)
	_, err := m.d.call(ctx, repeatable, func(ctx context.Context, ex *exchange) error {
		up := newUpload(ctx, partBody(part))
		defer up.close()
		r, err := up.reader()
		if err != nil {
			return err
		}
		ex.reopen = up.reopen
		out, err := m.d.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket:        &m.d.bucket,
			Key:           m.d.name(m.key),
			UploadId:      &m.id,
			PartNumber:    &n,
			Body:          r,
			ContentLength: aws.Int64(int64(len(part))),
			ChecksumCRC32: &crc,
		}, payloadHash(unsignedPayload))
		if err != nil {
			return err
		}
		if out.ETag == nil || *out.ETag == "" {
			return errNoETag
		}
		m.etags[number] = types.CompletedPart{ETag: out.ETag, PartNumber: &n, ChecksumCRC32: &crc}
		return nil
	})
	return undecidedNothing(fmt.Sprintf("sending part %d of %d", n, len(m.etags)), err)
}

// partBody makes a Body of a buffer, which is not read any more once the upload
// is closed.
func partBody(part []byte) backend.Body {
	return backend.Body{Size: int64(len(part)), Open: func() (io.ReadSeekCloser, error) {
		return nopCloser{bytes.NewReader(part)}, nil
	}}
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// finish makes the object of the parts, if the condition holds.
func (m *multipart) finish(ctx context.Context) (*exchange, string, error) {
	m.complete = true
	var etag string
	send := func(ctx context.Context, _ *exchange) error {
		out, err := m.d.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket:          &m.d.bucket,
			Key:             m.d.name(m.key),
			UploadId:        &m.id,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: slices.Clone(m.etags)},
			ChecksumType:    types.ChecksumTypeFullObject,
			ChecksumCRC32:   aws.String(crcText(m.crc)),
			MpuObjectSize:   aws.Int64(m.body.Size),
			IfNoneMatch:     m.cond.ifNoneMatch,
			IfMatch:         m.cond.ifMatch,
		})
		if err == nil {
			etag, err = quotedETag(out.ETag)
		}
		return err
	}
	ex, err := m.d.call(ctx, completing, send)
	if err != nil {
		err = fmt.Errorf("completing a multipart upload: %w", writeError(err, m.cond))
	}
	return ex, etag, err
}

func crcText(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// abort removes the parts of an upload that came to nothing. If it fails, they
// are left for CleanUploads.
func (m *multipart) abort(ctx context.Context) {
	if ctx.Err() == nil {
		m.d.abort(ctx, m.d.prefix+m.key, m.id)
		return
	}
	m.d.detach(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
		defer cancel()
		m.d.abort(ctx, m.d.prefix+m.key, m.id)
	})
}

// abort ends one upload; one that is not there any more is no error.
func (d *Driver) abort(ctx context.Context, name, id string) error {
	_, err := d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) error {
		_, err := d.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &d.bucket, Key: &name, UploadId: &id})
		return err
	})
	var f *failure
	if errors.As(err, &f) {
		if f.code == "NoSuchUpload" || f.isMissing() {
			return nil
		}
		return f.meaning(repeatable)
	}
	return err
}
