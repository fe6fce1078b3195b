package catalog

import (
	"context"
	"database/sql/driver"
	"fmt"
	"iter"

	"github.com/swampd/swampd/internal/format"
)

// Iterators read a page of rows, give the statement back, and hand the page
// over: so they can be nested, and what is held does not grow. A page begins
// after the last key of the one before.

const (
	pageFirst = 32 // rows of the first page: who wants one row does not wait for many
	pageRows  = 512
)

// beyond returns the least string above all that begin with prefix; ok is false
// if there is none.
func beyond(prefix string) (end string, ok bool) {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1]), true
		}
	}
	return "", false
}

// pathEnd is above every path: UTF-8 has no byte 0xff.
const pathEnd = "\xff"

// pages yields what read appends to a page, until a page comes back empty. read
// runs under the Snapshot's lock; it remembers where it is.
func pages[T any](s *Snapshot, read func(c *conn, page []T, rows int64) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var page []T
		for rows := int64(pageFirst); ; rows = pageRows {
			err := s.with(func(c *conn) (err error) {
				page, err = read(c, page[:0], rows)
				return err
			})
			for i := range page {
				if !yield(page[i], nil) {
					return
				}
			}
			if err != nil {
				var none T
				yield(none, err)
			}
			if err != nil || len(page) == 0 {
				return
			}
		}
	}
}

// List yields the paths that were alive after slot at (0 = head), begin with
// prefix and are greater than after, in byte order.
func (s *Snapshot) List(ctx context.Context, prefix, after string, at uint64) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		end, ok := beyond(prefix)
		if !ok {
			end = pathEnd
		}
		slot, last, inclusive := s.slotArg(at), after, after < prefix || after == ""
		if after < prefix {
			last = prefix
		}
		old := slot < int64(s.st.Head)
		// walk finds path after path, however many versions each has; a page of
		// it may hold none that is alive.
		walk := func(c *conn, page []Version, rows int64) ([]Version, error) {
			for len(page) == 0 {
				found := int64(0)
				err := c.page(ctx, func(row []driver.Value) error {
					found++
					last, _ = row[6].(string)
					if row[0] == nil { // no version at or below the slot
						return nil
					}
					r := new(record)
					if err := r.decode(row); err != nil {
						return fmt.Errorf("%s: %w", c.path, err)
					}
					if r.Op == format.OpDelete || r.until != 0 && r.until <= uint64(slot) {
						return nil
					}
					if next, ok := row[7].(int64); ok && r.until == 0 {
						r.Until = uint64(next)
					}
					if err := s.fill(ctx, c, r); err != nil {
						return err
					}
					page = append(page, r.Version)
					return nil
				}, walkText(inclusive, old), last, end, slot, rows)
				inclusive = false
				if err != nil || found == 0 {
					return page, err
				}
			}
			return page, nil
		}
		pages(s, walk)(yield)
	}
}

// walkText is a loose scan over the paths between ?1 and ?2: it jumps from each
// path to the next, and takes its newest version at or below ?3.
func walkText(inclusive, old bool) string {
	from, end := ">", "NULL"
	if inclusive {
		from = ">="
	}
	if old {
		end = `(SELECT min(w.slot) FROM versions w WHERE w.path = p.path AND w.slot > v.slot)`
	}
	return `WITH RECURSIVE p (path) AS (
			SELECT min(path) FROM versions WHERE path ` + from + ` ?1 AND path < ?2
			UNION ALL
			SELECT (SELECT min(n.path) FROM versions n WHERE n.path > p.path AND n.path < ?2) FROM p WHERE p.path IS NOT NULL
			LIMIT ?4)
		SELECT ` + versionColumns + `, p.path, ` + end + `
		FROM p LEFT JOIN versions v ON v.path = p.path
			AND v.slot = (SELECT max(w.slot) FROM versions w WHERE w.path = p.path AND w.slot <= ?3)
		WHERE p.path IS NOT NULL`
}

// History yields the retained versions of path, newest first, delete markers
// included.
func (s *Snapshot) History(ctx context.Context, path string) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		below, newer := int64(maxSlot), uint64(0)
		pages(s, func(c *conn, page []Version, rows int64) ([]Version, error) {
			err := s.eachVersion(ctx, c, path, below, func(r *record) error {
				if r.until == 0 {
					r.Until = newer
				}
				newer, below = r.Slot, int64(r.Slot)
				if err := s.fill(ctx, c, r); err != nil {
					return err
				}
				if page = append(page, r.Version); int64(len(page)) == rows {
					return errStop
				}
				return nil
			})
			return page, orStopped(err)
		})(yield)
	}
}

// Log yields the slots in (from, to] (to 0 = head).
func (s *Snapshot) Log(ctx context.Context, from, to uint64, newestFirst bool) iter.Seq2[format.LogRow, error] {
	return func(yield func(format.LogRow, error) bool) {
		low, high := int64(min(from, maxSlot)), s.slotArg(to)
		text := logText + `ASC LIMIT ?3`
		if newestFirst {
			text = logText + `DESC LIMIT ?3`
		}
		pages(s, func(c *conn, page []format.LogRow, rows int64) ([]format.LogRow, error) {
			err := c.page(ctx, func(row []driver.Value) error {
				r, writer, err := decodeLog(row)
				if err != nil {
					return fmt.Errorf("%s: %w", c.path, err)
				}
				if r.Writer, err = s.writer(ctx, c, writer); err != nil {
					return err
				}
				if newestFirst {
					high = int64(r.Slot) - 1
				} else {
					low = int64(r.Slot)
				}
				page = append(page, r)
				return nil
			}, text, low, high, rows)
			return page, err
		})(yield)
	}
}

const logText = `SELECT ` + logColumns + ` FROM log l WHERE l.slot > ?1 AND l.slot <= ?2 ORDER BY l.slot `

// Objects yields the data objects with names greater than after, dead ones
// included, in byte order.
func (s *Snapshot) Objects(ctx context.Context, after string) iter.Seq2[Object, error] {
	return s.objectsFrom(ctx, after, false)
}

func (s *Snapshot) objectsFrom(ctx context.Context, first string, inclusive bool) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last := first
		pages(s, func(c *conn, page []Object, rows int64) ([]Object, error) {
			text := `SELECT ` + objectColumns + ` FROM objects WHERE name > ? ORDER BY name LIMIT ?`
			if inclusive {
				text = `SELECT ` + objectColumns + ` FROM objects WHERE name >= ? ORDER BY name LIMIT ?`
			}
			inclusive = false
			err := c.page(ctx, func(row []driver.Value) error {
				_, o, err := decodeObject(row)
				if err != nil {
					return fmt.Errorf("%s: %w", c.path, err)
				}
				last = o.Name
				page = append(page, *o)
				return nil
			}, text, last, rows)
			return page, err
		})(yield)
	}
}

// Defects yields what records said that cannot be, in the order of their slots:
// the first MaxDefects of them since the catalog was empty or took a checkpoint.
func (s *Snapshot) Defects(ctx context.Context) iter.Seq2[Defect, error] {
	return func(yield func(Defect, error) bool) {
		last := int64(0)
		pages(s, func(c *conn, page []Defect, rows int64) ([]Defect, error) {
			err := c.page(ctx, func(row []driver.Value) error {
				var d Defect
				last, _ = row[0].(int64)
				slot, _ := row[1].(int64)
				d.Slot = uint64(slot)
				d.Path, _ = row[2].(string)
				d.Object, _ = row[3].(string)
				d.What, _ = row[4].(string)
				page = append(page, d)
				return nil
			}, `SELECT id, slot, path, object, what FROM defects WHERE id > ? ORDER BY id LIMIT ?`, last, rows)
			return page, err
		})(yield)
	}
}
