package datastore

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"iter"
	"slices"

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

// Fetch reads many contents with few requests: what lies close together in a
// pack is read at once. fn is called concurrently, in no particular order, once
// for each version, with its whole content, already checked (a large one is
// checked block by block while fn reads it). The first error ends everything.
// Memory is bounded, whatever is read.
func (s *Store) Fetch(ctx context.Context, versions iter.Seq2[Version, error], fn func(ctx context.Context, v Version, r io.Reader) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetchAtOnce)
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
				g.Go(func() error { return s.fetchOne(gctx, v, fn) })
				continue
			}
			if window = append(window, v); len(window) == fetchWindow {
				s.fetchWindow(gctx, g, window, fn)
				window = make([]Version, 0, fetchWindow)
			}
		}
		s.fetchWindow(gctx, g, window, fn)
		return nil
	}()
	if gerr := g.Wait(); gerr != nil {
		err = gerr
	}
	return fail("fetch", "", err)
}

func (s *Store) fetchOne(ctx context.Context, v Version, fn func(context.Context, Version, io.Reader) error) error {
	r, err := s.OpenVersion(ctx, &v, 0, 0)
	if err != nil {
		return fail("get", v.Path, err)
	}
	defer r.Close()
	return fn(ctx, v, r)
}

// fetchWindow sorts the versions by where they lie and reads runs of them.
func (s *Store) fetchWindow(ctx context.Context, g *errgroup.Group, window []Version, fn func(context.Context, Version, io.Reader) error) {
	slices.SortFunc(window, func(a, b Version) int {
		return cmp.Or(cmp.Compare(a.place.key(), b.place.key()), cmp.Compare(a.place.Offset, b.place.Offset))
	})
	for len(window) > 0 {
		n := runOf(window)
		run := window[:n]
		window = window[n:]
		g.Go(func() error { return s.fetchRun(ctx, run, fn) })
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

func (s *Store) fetchRun(ctx context.Context, run []Version, fn func(context.Context, Version, io.Reader) error) error {
	first := &run[0]
	if len(run) == 1 {
		return s.fetchOne(ctx, *first, fn)
	}
	var end int64
	for i := range run {
		end = max(end, run[i].place.Offset+run[i].place.Length)
	}
	from := first.place.Offset
	data, err := s.getRange(ctx, first, first.place.key(), from, end-from)
	if err != nil {
		return fail("get", first.Path, err)
	}
	for i := range run {
		v := &run[i]
		at := v.place.Offset - from
		content, err := decodeSmall(v, data[at:at+v.place.Length])
		if err != nil {
			return fail("get", v.Path, err)
		}
		if err := fn(ctx, *v, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return nil
}
