package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/swampd/swampd/backend"
)

// condition is what must hold for a write: nothing is there, or one version.
type condition struct{ ifNoneMatch, ifMatch *string }

func create() condition                   { return condition{ifNoneMatch: aws.String("*")} }
func replace(v backend.Version) condition { return condition{ifMatch: aws.String(string(v))} }
func (c condition) isCreate() bool        { return c.ifMatch == nil }

// Create makes an object that is not there.
func (d *Driver) Create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	return d.put(ctx, key, body, create())
}

// Replace puts another object in the place of one version.
func (d *Driver) Replace(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
	return d.put(ctx, key, body, replace(old))
}

// CreateInParts is Create as a large body is sent, whatever its size. It is for
// backend.Probe: stores decide conditions of the two ways in different places.
func (d *Driver) CreateInParts(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	if err := d.begin(ctx); err != nil {
		return backend.Info{}, err
	}
	if body.Size <= 0 || body.Open == nil {
		return backend.Info{}, fmt.Errorf("no parts can be made of a content of %d bytes", body.Size)
	}
	return d.putParts(ctx, key, body, create())
}

func (d *Driver) put(ctx context.Context, key string, body backend.Body, cond condition) (backend.Info, error) {
	if err := d.begin(ctx); err != nil {
		return backend.Info{}, err
	}
	if body.Size < 0 || body.Open == nil {
		return backend.Info{}, fmt.Errorf("the content has no size or cannot be opened (size %d)", body.Size)
	}
	if body.Size > maxObject {
		return backend.Info{}, fmt.Errorf("%w: an object of %d bytes, S3 takes at most %d", backend.ErrUnsupported, body.Size, int64(maxObject))
	}
	if body.Size > d.opts.MultipartOver {
		return d.putParts(ctx, key, body, cond)
	}
	return d.putWhole(ctx, key, body, cond)
}

// putWhole sends the body with one request.
func (d *Driver) putWhole(ctx context.Context, key string, body backend.Body, cond condition) (backend.Info, error) {
	if !body.HasSHA256 {
		sum, err := hashBody(ctx, body)
		if err != nil {
			return backend.Info{}, fmt.Errorf("hashing the content: %w", err)
		}
		body.SHA256 = sum
	}
	var etag string
	ex, err := d.call(ctx, decisive, func(ctx context.Context, ex *exchange) error {
		up := newUpload(ctx, body)
		defer up.close()
		r, err := up.reader()
		if err != nil {
			return err
		}
		ex.reopen = up.reopen
		out, err := d.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket:         &d.bucket,
			Key:            d.name(key),
			Body:           r,
			ContentLength:  aws.Int64(body.Size),
			ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(body.SHA256[:])),
			IfNoneMatch:    cond.ifNoneMatch,
			IfMatch:        cond.ifMatch,
		}, payloadHash(hex.EncodeToString(body.SHA256[:])))
		sent, ferr := up.close()
		if ferr != nil {
			return ferr
		}
		ex.partial = !sent
		if err == nil {
			etag, err = quotedETag(out.ETag)
		} else if ex.cut() && ctx.Err() == nil {
			if decided := d.decided(ctx, ex, key, cond); decided != nil {
				return decided
			}
		}
		return err
	})
	if err != nil {
		return backend.Info{}, backend.WithDate(writeError(err, cond), ex.date)
	}
	return written(ex, body.Size, etag), nil
}

// decidedError is a condition that was found not to hold by looking, where the
// store's own answer did not arrive.
type decidedError struct {
	says     string
	sentinel error
}

func (e *decidedError) Error() string { return e.says }

// decided looks at a key after a connection was cut before the end of the body.
// Stores answer a write whose condition fails without reading the body, and close
// the connection; with the body still on its way, the answer may be discarded by
// the sender's own kernel. Nothing of this call was made, so what is there decides
// it as the lost answer did. It returns nil if the write may still succeed, or if
// nothing could be learned.
func (d *Driver) decided(ctx context.Context, ex *exchange, key string, cond condition) error {
	look := &exchange{}
	out, err := d.client.HeadObject(withExchange(ctx, look), &s3.HeadObjectInput{Bucket: &d.bucket, Key: d.name(key)})
	var sentinel error
	switch {
	case err != nil:
		if cond.isCreate() || !d.examine(ctx, look, err).isMissing() {
			return nil
		}
		sentinel = backend.ErrChanged
	case cond.isCreate():
		sentinel = backend.ErrExists
	default:
		etag, err := quotedETag(out.ETag)
		if err != nil || etag == *cond.ifMatch {
			return nil
		}
		sentinel = backend.ErrChanged
	}
	ex.date = look.date
	return &decidedError{"the connection was lost before all of the content was sent, and a look at the object decided it", sentinel}
}

// payloadHash signs a request over a hash that is known, so that the SDK does
// not read the body to compute it.
func payloadHash(hash string) func(*s3.Options) {
	return func(o *s3.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("swampd:PayloadHash",
				func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
					return next.HandleInitialize(v4.SetPayloadHash(ctx, hash), in)
				}), middleware.After)
		})
	}
}

// unsignedPayload leaves the body out of the signature; its checksum is in it.
const unsignedPayload = "UNSIGNED-PAYLOAD"

// errNoETag is a success that gives no version.
var errNoETag = errors.New("the answer to a write has no ETag")

// quotedETag is the ETag as all answers give it; the body of a completion may
// have it without quotes.
func quotedETag(etag *string) (string, error) {
	if etag == nil || *etag == "" {
		return "", errNoETag
	}
	if v := *etag; strings.HasPrefix(v, `"`) || strings.HasPrefix(v, "W/") {
		return v, nil
	}
	return `"` + *etag + `"`, nil
}

// written is the Info of a write that succeeded.
func written(ex *exchange, size int64, etag string) backend.Info {
	return backend.Info{Size: size, Version: backend.Version(etag), Modified: ex.date, Now: ex.date, Date: ex.date}
}

// writeError says what the failure of a conditional write means.
func writeError(err error, cond condition) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	if f.verdict == final {
		switch {
		case f.isChanged() && cond.isCreate():
			return f.as(backend.ErrExists)
		case f.isChanged(), f.isMissing() && !cond.isCreate():
			return f.as(backend.ErrChanged)
		}
	}
	return f.meaning(decisive)
}
