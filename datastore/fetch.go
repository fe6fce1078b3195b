package datastore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"slices"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
	"golang.org/x/sync/errgroup"
)

// Bounds of a bulk read: how many versions are sorted together, how far apart
// two contents of one object may lie to be read in one request, how large such
// a request gets, and how many run at once.
const (
	fetchWindow = 8192
	fetchGap    = 64 << 10
	fetchRange  = 4 << 20
	fetchAtOnce = 8
)

// FetchOptions says what Fetch does with what cannot be had. Nil means: the
// first error ends it.
type FetchOptions struct {
	// Damaged is told of a version whose content is damaged, missing, or was
	// removed (ErrCorrupt, ErrGone). If it returns nil, Fetch goes on with the
	// others. It is called concurrently, also for a version whose content fn has
	// begun to read: fn's error is what it gets then.
	Damaged func(v Version, err error) error
}

// Fetch reads many contents with few requests: what lies close together in a
// pack is read at once. fn is called concurrently, in no particular order, once
// for each version, with its whole content, already checked (a large one is
// checked block by block while fn reads it). The first error ends everything,
// except as o says. Memory is bounded, whatever is read.
func (s *Store) Fetch(ctx context.Context, versions iter.Seq2[Version, error], o *FetchOptions, fn func(ctx context.Context, v Version, r io.Reader) error) error {
	if o == nil {
		o = &FetchOptions{}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetchAtOnce)
	f := &fetching{s: s, o: o, fn: fn, g: g}
	err := func() error {
		var window []Version
		for v, err := range versions {
			if err != nil {
				return err
			}
			if gctx.Err() != nil {
				return nil // g.Wait has the reason
			}
			if v.Deleted {
				continue
			}
			if v.place.Codec == format.CodecBlocks || v.Size == 0 {
				g.Go(func() error { return f.one(gctx, v) })
				continue
			}
			if window = append(window, v); len(window) == fetchWindow {
				f.window(gctx, window)
				window = make([]Version, 0, fetchWindow)
			}
		}
		f.window(gctx, window)
		return nil
	}()
	if gerr := g.Wait(); gerr != nil {
		err = gerr
	}
	return fail("fetch", "", err)
}

// fetching is one Fetch at work.
type fetching struct {
	s  *Store
	o  *FetchOptions
	fn func(context.Context, Version, io.Reader) error
	g  *errgroup.Group
}

// isDamage says that err is about what is stored, and not about the way to it.
func isDamage(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrGone) || errors.Is(err, backend.ErrNotFound)
}

// damaged asks what to do about a version that cannot be had.
func (f *fetching) damaged(ctx context.Context, v Version, err error) error {
	if err == nil || f.o.Damaged == nil || ctx.Err() != nil || !isDamage(err) {
		return err
	}
	return f.o.Damaged(v, err)
}

func (f *fetching) one(ctx context.Context, v Version) error {
	r, err := f.s.OpenVersion(ctx, &v, 0, 0)
	if err != nil {
		return f.damaged(ctx, v, fail("get", v.Path, err))
	}
	defer r.Close()
	return f.damaged(ctx, v, f.fn(ctx, v, r))
}

// window sorts the versions by where they lie and reads runs of them.
func (f *fetching) window(ctx context.Context, window []Version) {
	slices.SortFunc(window, func(a, b Version) int {
		return cmp.Or(cmp.Compare(a.place.key(), b.place.key()), cmp.Compare(a.place.Offset, b.place.Offset))
	})
	for len(window) > 0 {
		n := runOf(window)
		run := window[:n]
		window = window[n:]
		f.g.Go(func() error { return f.run(ctx, run) })
	}
}

// runOf returns how many versions from the first on are read in one request.
func runOf(window []Version) int {
	first := &window[0].place
	end := first.Offset + first.Length
	for i := 1; i < len(window); i++ {
		p := &window[i].place
		if p.data != nil || first.data != nil || p.key() != first.key() || p.Offset > end+fetchGap ||
			max(end, p.Offset+p.Length)-first.Offset > fetchRange {
			return i
		}
		end = max(end, p.Offset+p.Length)
	}
	return len(window)
}

// run reads contents that lie close together with one request, or one by one
// where that one fails because of what is stored.
func (f *fetching) run(ctx context.Context, run []Version) error {
	first := &run[0]
	if len(run) == 1 {
		return f.one(ctx, *first)
	}
	var end int64
	for i := range run {
		end = max(end, run[i].place.Offset+run[i].place.Length)
	}
	from := first.place.Offset
	data, err := f.s.getRange(ctx, first, first.place.key(), from, end-from)
	if err != nil && f.o.Damaged != nil && isDamage(err) && ctx.Err() == nil {
		for i := range run {
			if err := f.one(ctx, run[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return fail("get", first.Path, err)
	}
	for i := range run {
		v := &run[i]
		at := v.place.Offset - from
		content, err := decodeSmall(v, data[at:at+v.place.Length])
		if err != nil {
			err = fail("get", v.Path, err)
		} else {
			err = f.fn(ctx, *v, bytes.NewReader(content))
		}
		if err := f.damaged(ctx, *v, err); err != nil {
			return err
		}
	}
	return nil
}
