package s3

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/swampd/swampd/backend"
)

// List yields objects page by page. Pages are asked for as they are needed.
func (d *Driver) List(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
	return func(yield func(backend.Entry, error) bool) {
		if err := d.begin(ctx); err != nil {
			yield(backend.Entry{}, err)
			return
		}
		in := &s3.ListObjectsV2Input{
			Bucket: &d.bucket,
			Prefix: d.name(prefix),
			// Keys of others below the prefix may hold what XML cannot.
			EncodingType: types.EncodingTypeUrl,
			MaxKeys:      aws.Int32(1000),
		}
		if after != "" {
			in.StartAfter = d.name(after)
		}
		previous := ""
		for {
			out, err := d.page(ctx, in)
			if err != nil {
				yield(backend.Entry{}, err)
				return
			}
			for i := range out.Contents {
				e, ok, err := d.entry(out, &out.Contents[i], &previous)
				if err != nil {
					yield(backend.Entry{}, err)
					return
				}
				if ok && e.Key > after && !yield(e, nil) {
					return
				}
			}
			if !aws.ToBool(out.IsTruncated) {
				return
			}
			next := aws.ToString(out.NextContinuationToken)
			if next == "" || next == aws.ToString(in.ContinuationToken) {
				yield(backend.Entry{}, fmt.Errorf("%w: the store cuts a listing off and does not say how to go on", backend.ErrUnsupported))
				return
			}
			in.ContinuationToken = out.NextContinuationToken
		}
	}
}

func (d *Driver) page(ctx context.Context, in *s3.ListObjectsV2Input) (*s3.ListObjectsV2Output, error) {
	var out *s3.ListObjectsV2Output
	ex, err := d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) (err error) {
		out, err = d.client.ListObjectsV2(ctx, in)
		return err
	})
	var f *failure
	if errors.As(err, &f) {
		err = f.meaning(repeatable)
	}
	return out, backend.WithDate(err, ex.date)
}

// entry makes one entry. ok is false for objects that no datastore makes.
func (d *Driver) entry(out *s3.ListObjectsV2Output, o *types.Object, previous *string) (e backend.Entry, ok bool, err error) {
	name := aws.ToString(o.Key)
	if out.EncodingType == types.EncodingTypeUrl {
		if name, err = url.QueryUnescape(name); err != nil {
			return e, false, fmt.Errorf("%w: the store lists the key %q, which it says is URL-encoded", backend.ErrUnsupported, aws.ToString(o.Key))
		}
	}
	if name <= *previous && *previous != "" {
		return e, false, fmt.Errorf("%w: the store lists %q after %q; swampd needs byte order", backend.ErrUnsupported, name, *previous)
	}
	*previous = name
	key, found := strings.CutPrefix(name, d.prefix)
	if !found || backend.CheckKey(key) != nil {
		return e, false, nil
	}
	return backend.Entry{Key: key, Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)}, true, nil
}

// CleanUploads ends the multipart uploads below the prefix that were begun more
// than age ago by the store's clock.
func (d *Driver) CleanUploads(ctx context.Context, age time.Duration) (int, error) {
	if err := d.begin(ctx); err != nil {
		return 0, err
	}
	in := &s3.ListMultipartUploadsInput{Bucket: &d.bucket, Prefix: &d.prefix, EncodingType: types.EncodingTypeUrl}
	n := 0
	for {
		var out *s3.ListMultipartUploadsOutput
		ex, err := d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) (err error) {
			out, err = d.client.ListMultipartUploads(ctx, in)
			return err
		})
		var f *failure
		if errors.As(err, &f) {
			err = f.meaning(repeatable)
		}
		if err == nil && age > 0 && ex.date.IsZero() {
			err = fmt.Errorf("%w: the store's answers have no Date, so that the age of uploads is not known", backend.ErrUnsupported)
		}
		if err != nil {
			return n, backend.WithDate(err, ex.date)
		}
		removed, err := d.abortOlder(ctx, out, age, ex.date)
		if n += removed; err != nil {
			return n, err
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextKeyMarker) == "" {
			return n, nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
		if out.EncodingType == types.EncodingTypeUrl {
			if marker, err := url.QueryUnescape(*out.NextKeyMarker); err == nil {
				in.KeyMarker = &marker
			}
		}
	}
}

// abortOlder ends the uploads of one page. Every upload is older than no time at
// all: Date may be a second or two behind, where a server computes it rarely.
func (d *Driver) abortOlder(ctx context.Context, out *s3.ListMultipartUploadsOutput, age time.Duration, now time.Time) (n int, err error) {
	for _, u := range out.Uploads {
		name := aws.ToString(u.Key)
		if out.EncodingType == types.EncodingTypeUrl {
			if name, err = url.QueryUnescape(name); err != nil {
				return n, fmt.Errorf("%w: the store lists an upload to %q, which it says is URL-encoded", backend.ErrUnsupported, aws.ToString(u.Key))
			}
		}
		if !strings.HasPrefix(name, d.prefix) {
			continue
		}
		if age > 0 && (u.Initiated == nil || now.Sub(*u.Initiated) < age) {
			continue
		}
		if err := d.abort(ctx, name, aws.ToString(u.UploadId)); err != nil {
			return n, fmt.Errorf("ending the upload to %s: %w", name, err)
		}
		n++
	}
	return n, nil
}
