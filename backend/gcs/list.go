package gcs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"

	"github.com/swampd/swampd/backend"
)

const (
	pageSize = 1000 // the most that the service gives
	// parallelDeletes is how many keys are deleted at once; the service has no
	// request that deletes several.
	parallelDeletes = 16
)

// List reads pages of up to 1,000 names. Objects below the prefix whose names are
// no keys are none of a datastore's and are left out.
func (d *Driver) List(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
	return func(yield func(backend.Entry, error) bool) {
		q := &storage.Query{Prefix: d.prefix + prefix, Projection: storage.ProjectionNoACL}
		if after != "" {
			q.StartOffset = d.prefix + after // that name itself is left out below
		}
		if err := q.SetAttrSelection([]string{"Name", "Size", "Updated"}); err != nil {
			yield(backend.Entry{}, err)
			return
		}
		for token := ""; ; {
			page, next, err := d.page(ctx, q, token, pageSize)
			if err != nil {
				yield(backend.Entry{}, err)
				return
			}
			for _, a := range page {
				key, ok := strings.CutPrefix(a.Name, d.prefix)
				if !ok || key <= after || backend.CheckKey(key) != nil {
					continue
				}
				if !yield(backend.Entry{Key: key, Size: a.Size, Modified: second(a.Updated)}, nil) {
					return
				}
			}
			if token = next; token == "" {
				return
			}
		}
	}
}

// page reads the page that token names.
func (d *Driver) page(ctx context.Context, q *storage.Query, token string, size int) (page []*storage.ObjectAttrs, next string, err error) {
	err = d.do(ctx, opRead, func(ctx context.Context, _ *record) error {
		page = nil
		next, err = iterator.NewPager(d.bucket.Objects(ctx, q), size, token).NextPage(&page)
		return err
	})
	if missing, _ := isMissing(err); missing {
		err = backend.WithDate(fmt.Errorf("%w: %w", backend.ErrNoBucket, err), backend.Date(err))
	}
	return page, next, err
}

// findBucket says ErrNoBucket if there is none.
func (d *Driver) findBucket(ctx context.Context) error {
	q := &storage.Query{Prefix: d.prefix, Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection([]string{"Name"}); err != nil {
		return err
	}
	_, _, err := d.page(ctx, q, "", 1)
	return err
}

// Delete deletes the keys, each by a request of its own.
func (d *Driver) Delete(ctx context.Context, keys []string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	errs := make([]error, len(keys))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(parallelDeletes, len(keys)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = d.delete(ctx, keys[i])
				if hopeless(errs[i]) {
					stop(errs[i])
				}
				if cause := context.Cause(ctx); errs[i] != nil && hopeless(cause) {
					errs[i] = cause // not that the call was cancelled, which nobody did
				}
			}
		})
	}
	for i := range keys {
		next <- i
	}
	close(next)
	wg.Wait()
	return remaining(keys, errs)
}

// hopeless says that what befell one key will befall the others.
func hopeless(err error) bool {
	return errors.Is(err, backend.ErrDenied) || errors.Is(err, backend.ErrNoBucket) || errors.Is(err, backend.ErrClosed)
}

func (d *Driver) delete(ctx context.Context, key string) error {
	err := d.do(ctx, opRead, func(ctx context.Context, _ *record) error {
		return d.object(key).Delete(ctx)
	})
	if err = d.missing(ctx, opRead, err); errors.Is(err, backend.ErrNotFound) {
		return nil
	}
	return err
}

func remaining(keys []string, errs []error) error {
	left := &backend.RemainError{Of: len(keys)}
	seen := map[string]bool{}
	for i, err := range errs {
		if err == nil {
			continue
		}
		left.Keys = append(left.Keys, keys[i])
		if text := err.Error(); !seen[text] && len(seen) < 3 { // each reason once
			seen[text] = true
			if left.Err == nil {
				left.Err = err
			} else {
				left.Err = fmt.Errorf("%w; %w", left.Err, err)
			}
		}
	}
	if len(left.Keys) == 0 {
		return nil
	}
	return left
}
