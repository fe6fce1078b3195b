package catalog

import (
	"context"
	"database/sql/driver"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/swampd/swampd/internal/format"
)

// VersionRows yields the rows of a checkpoint's version shards with keys (see
// format.VersionKey) from first up to and without limit; an empty limit is none.
func (s *Snapshot) VersionRows(ctx context.Context, first, limit string) iter.Seq2[VersionRow, error] {
	path, slot, err := splitVersionKey(first)
	if err != nil {
		return failed[VersionRow](err)
	}
	return func(yield func(VersionRow, error) bool) {
		path, slot := path, slot
		pages(s, func(c *conn, page []VersionRow, rows int64) ([]VersionRow, error) {
			each := func(row []driver.Value) error {
				var r record
				if err := r.decode(row); err != nil {
					return fmt.Errorf("%s: %w", c.path, err)
				}
				if limit != "" && format.VersionKey(r.Path, r.Slot) >= limit {
					return errStop
				}
				v, err := s.versionRow(ctx, c, &r)
				if err != nil {
					return err
				}
				path, slot = r.Path, int64(r.Slot)+1
				page = append(page, v)
				return nil
			}
			// First what is left of the path at hand, then the paths after it.
			err := c.page(ctx, each, `SELECT `+versionColumns+` FROM versions v
				WHERE v.path = ? AND v.slot >= ? ORDER BY v.slot LIMIT ?`, path, slot, rows)
			if err == nil && int64(len(page)) < rows {
				err = c.page(ctx, each, `SELECT `+versionColumns+` FROM versions v
					WHERE v.path > ? ORDER BY v.path, v.slot LIMIT ?`, path, rows-int64(len(page)))
			}
			return page, orStopped(err)
		})(yield)
	}
}

// splitVersionKey is the inverse of format.VersionKey; a string that is no such
// key stands for all keys that begin with it.
func splitVersionKey(key string) (path string, slot int64, err error) {
	path, digits, ok := strings.Cut(key, "\x00")
	if !ok {
		return path, 0, nil
	}
	slot, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || slot < 0 {
		return "", 0, fmt.Errorf("%q is not the key of a version", key)
	}
	return path, slot, nil
}

func (s *Snapshot) versionRow(ctx context.Context, c *conn, r *record) (VersionRow, error) {
	v := VersionRow{VersionRow: format.VersionRow{Slot: r.Slot, Index: r.Index, Entry: r.Entry, Until: r.until, Change: r.change(), Unknown: r.place.rowUnknown}}
	if r.Op == format.OpDelete {
		return v, nil
	}
	v.Change.Place = format.Place{Object: format.Inline, Offset: r.place.offset, Length: r.place.length,
		Codec: r.place.codec, Unknown: r.place.unknown}
	if r.place.object == 0 {
		return v, nil
	}
	o, err := s.object(ctx, c, r.place.object)
	if err != nil {
		return v, err
	}
	v.Change.Place.Object, v.Object = 0, o.Name
	return v, nil
}

// ObjectRows yields the rows of a checkpoint's object shards with names from
// first up to and without limit; an empty limit is none. Orphans that were marked
// dead are left out: only their names are known, and the sweep mark covers them.
func (s *Snapshot) ObjectRows(ctx context.Context, first, limit string) iter.Seq2[format.ObjectRow, error] {
	return func(yield func(format.ObjectRow, error) bool) {
		for o, err := range s.objectsFrom(ctx, first, true) {
			if err == nil && !o.described() {
				continue
			}
			if err == nil && limit != "" && o.Name >= limit || !yield(o.Row(), err) {
				return
			}
		}
	}
}

// LogRows yields the rows of a checkpoint's log shards with keys (see
// format.SlotKey) from first up to and without limit; empty ones are no bounds.
func (s *Snapshot) LogRows(ctx context.Context, first, limit string) iter.Seq2[format.LogRow, error] {
	var bounds [2]uint64
	for i, key := range []string{first, limit} {
		if key == "" {
			continue
		}
		slot, ok := format.ParseSlotKey(key)
		if !ok {
			return failed[format.LogRow](fmt.Errorf("%q is not the key of a slot", key))
		}
		bounds[i] = slot - 1
	}
	if limit != "" && bounds[1] == 0 {
		return func(func(format.LogRow, error) bool) {}
	}
	return s.Log(ctx, bounds[0], bounds[1], false)
}
