package catalog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"

	"github.com/swampd/swampd/internal/format"
)

// stream is a statement of its own that stays open from page to page: for rows
// that SQLite sorts, which it does once, and on disk where they are many.
type stream struct {
	stmt *stmt
	rows rows
}

func (st *stream) close() error {
	return errors.Join(st.rows.close(), st.stmt.raw.Close())
}

func (s *Snapshot) openStream(ctx context.Context, text string, args ...driver.Value) (*stream, error) {
	st := new(stream)
	err := s.with(func(c *conn) (err error) {
		if st.stmt, err = c.prepare(text); err != nil {
			return err
		}
		if st.rows, err = c.run(ctx, st.stmt, args); err != nil {
			return errors.Join(err, st.stmt.raw.Close())
		}
		if s.streams == nil {
			s.streams = make(map[*stream]struct{})
		}
		s.streams[st] = struct{}{}
		return nil
	})
	return st, err
}

// endStream closes a stream that the Snapshot has not closed already.
func (s *Snapshot) endStream(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.streams[st]; !open || s.c == nil {
		return nil
	}
	delete(s.streams, st)
	return st.close()
}

// streamed yields what scan makes of the rows of a statement.
func streamed[T any](ctx context.Context, s *Snapshot, scan func(row []driver.Value) T, text string, args ...driver.Value) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		st, err := s.openStream(ctx, text, args...)
		if err != nil {
			yield(none, err)
			return
		}
		ended := false
		defer func() {
			if err := s.endStream(st); err != nil && !ended {
				yield(none, err)
			}
		}()
		page := make([]T, 0, pageRows)
		for more := true; more; {
			page = page[:0]
			err := s.with(func(*conn) (err error) {
				for more && err == nil && len(page) < pageRows {
					if more, err = st.rows.next(); more && err == nil {
						page = append(page, scan(st.rows.dest))
					}
				}
				return err
			})
			for i := range page {
				if !yield(page[i], nil) {
					ended = true
					return
				}
			}
			if err != nil {
				ended = true
				yield(none, err)
				return
			}
		}
	}
}

// Changed yields the paths that begin with prefix and were changed by a slot in
// (from, to] (to 0 = head), as far as retained versions show it, each once, in
// byte order. Its cost grows with the number of those changes only.
func (s *Snapshot) Changed(ctx context.Context, from, to uint64, prefix string) iter.Seq2[string, error] {
	end, ok := beyond(prefix)
	if !ok {
		end = pathEnd
	}
	scan := func(row []driver.Value) string {
		path, _ := row[0].(string)
		return path
	}
	low, high := int64(min(from, maxSlot)), s.slotArg(to)
	if low == 0 {
		// All that there is under the prefix: already in order.
		return streamed(ctx, s, scan, `SELECT DISTINCT path FROM versions INDEXED BY versions_path
			WHERE path >= ? AND path < ? AND slot <= ? ORDER BY path`, prefix, end, high)
	}
	return streamed(ctx, s, scan, changedText, low, high, prefix, end)
}

const (
	changedText = `
		SELECT path FROM versions INDEXED BY versions_slot WHERE slot > ?1 AND slot <= ?2 AND path >= ?3 AND path < ?4
		UNION
		SELECT path FROM versions INDEXED BY versions_until WHERE until > ?1 AND until <= ?2 AND path >= ?3 AND path < ?4
		ORDER BY path`
	dirtyVersionsText = `
		SELECT path, slot FROM versions INDEXED BY versions_slot WHERE slot > ?1
		UNION
		SELECT path, slot FROM dirty_versions WHERE at > ?1
		ORDER BY path, slot`
	dirtyObjectsText = `SELECT name FROM dirty_objects WHERE at > ? ORDER BY name`
	dirtyLogText     = `SELECT slot FROM log WHERE slot > ? ORDER BY slot`
)

// Dirty yields the keys of the rows of a checkpoint's table that slots above
// since inserted, changed or removed, each once, in byte order (see
// format.VersionKey, the object's name, and format.SlotKey). ErrPruned if since
// is below State().CheckpointSeq.
func (s *Snapshot) Dirty(ctx context.Context, table format.Table, since uint64) iter.Seq2[string, error] {
	low := int64(min(since, maxSlot))
	if since < s.st.CheckpointSeq {
		return failed[string](fmt.Errorf("changes above %d, newest checkpoint %d: %w", since, s.st.CheckpointSeq, ErrPruned))
	}
	switch table {
	case format.TableVersions:
		return streamed(ctx, s, func(row []driver.Value) string {
			path, _ := row[0].(string)
			slot, _ := row[1].(int64)
			return format.VersionKey(path, uint64(slot))
		}, dirtyVersionsText, low)
	case format.TableObjects:
		return streamed(ctx, s, func(row []driver.Value) string {
			name, _ := row[0].(string)
			return name
		}, dirtyObjectsText, low)
	case format.TableLog:
		return streamed(ctx, s, func(row []driver.Value) string {
			slot, _ := row[0].(int64)
			return format.SlotKey(uint64(slot))
		}, dirtyLogText, low)
	}
	return failed[string](fmt.Errorf("a checkpoint has no table %d", table))
}

func failed[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		yield(none, err)
	}
}
