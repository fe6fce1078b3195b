package s3

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/swampd/swampd/backend"
)

// deleteBatch is the most keys that S3 deletes with one request.
const deleteBatch = 1000

// Delete removes keys, without conditions.
func (d *Driver) Delete(ctx context.Context, keys []string) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	var left remaining
	for batch := range slices.Chunk(keys, deleteBatch) {
		if left.whole != nil {
			left.keys = append(left.keys, batch...)
			continue
		}
		if err := d.deleteBatch(ctx, batch, &left); err != nil {
			left.whole = err
			left.keys = append(left.keys, batch...)
		}
	}
	return left.err(len(keys))
}

// deleteBatch removes one batch. Keys that could not be removed for a reason of
// their own go to left; an error means that nothing is known of any.
func (d *Driver) deleteBatch(ctx context.Context, keys []string, left *remaining) error {
	p := pace{limit: d.opts.MaxWait}
	for {
		var out *s3.DeleteObjectsOutput
		ex, err := d.call(ctx, repeatable, func(ctx context.Context, _ *exchange) (err error) {
			out, err = d.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &d.bucket, Delete: d.deletion(keys)})
			return err
		})
		var f *failure
		if errors.As(err, &f) {
			err = f.meaning(repeatable)
		}
		if err != nil {
			return backend.WithDate(err, ex.date)
		}
		again, worst := d.sortOut(ex, out.Errors, left)
		if len(again) == 0 {
			return nil
		}
		if ctx.Err() != nil || !p.wait(ctx, worst, ex) {
			left.fail(worst.meaning(repeatable))
			left.keys = append(left.keys, again...)
			return nil
		}
		keys = again
	}
}

func (d *Driver) deletion(keys []string) *types.Delete {
	objects := make([]types.ObjectIdentifier, len(keys))
	for i, k := range keys {
		objects[i].Key = d.name(k)
	}
	return &types.Delete{Objects: objects, Quiet: aws.Bool(true)}
}

// sortOut parts the keys that a batch could not remove into those to try again
// and those that remain.
func (d *Driver) sortOut(ex *exchange, errs []types.Error, left *remaining) (again []string, worst *failure) {
	for _, e := range errs {
		key := strings.TrimPrefix(aws.ToString(e.Key), d.prefix)
		f := &failure{code: aws.ToString(e.Code)}
		if f.isMissing() {
			continue
		}
		f.answer(d, ex, aws.ToString(e.Message))
		if f.verdict == passing && !passingCodes[f.code] {
			f.verdict = final // there is no status to go by
		}
		if f.verdict == final {
			left.fail(f.meaning(repeatable))
			left.keys = append(left.keys, key)
			continue
		}
		again, worst = append(again, key), f
	}
	return again, worst
}

// remaining collects the keys that are still there.
type remaining struct {
	keys  []string
	first error // of the first key
	whole error // of a batch
}

func (r *remaining) fail(err error) {
	if r.first == nil {
		r.first = err
	}
}

func (r *remaining) err(of int) error {
	if len(r.keys) == 0 {
		return nil
	}
	cause := r.whole
	if cause == nil {
		cause = r.first
	}
	return backend.WithDate(&backend.RemainError{Keys: r.keys, Of: of, Err: cause}, backend.Date(cause))
}
