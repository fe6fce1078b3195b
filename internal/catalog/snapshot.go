package catalog

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// Snapshot is a view of one state. Its methods are safe for concurrent use, and
// its iterators may be nested and left early; each ends with at most one error.
// It is to be closed soon: the write-ahead log cannot be cut back before.
type Snapshot struct {
	db *DB

	mu      sync.Mutex
	c       *conn // nil when closed
	st      fileState
	streams map[*stream]struct{}
	// Caches of rows: a Snapshot sees no change.
	objects map[int64]*Object
	writers map[int64]json.RawMessage
}

// Snapshot opens a view of the newest state. The caller closes it.
func (db *DB) Snapshot(ctx context.Context) (*Snapshot, error) {
	select {
	case db.places <- struct{}{}:
	default:
		select {
		case db.places <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %d snapshots are open, waited for one to be closed: %w", db.path, maxSnapshots, context.Cause(ctx))
		}
	}
	s, err := db.snapshot(ctx)
	if err != nil {
		<-db.places
	}
	return s, err
}

func (db *DB) snapshot(ctx context.Context) (*Snapshot, error) {
	c, err := db.readerConn(ctx)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{db: db, c: c}
	err = retry(ctx, db.path, "read it", func() error {
		err := c.exec(ctx, "BEGIN")
		if err != nil {
			return err
		}
		if s.st, err = c.readState(ctx); err != nil {
			return c.rollback(ctx, err)
		}
		return nil
	})
	if err != nil {
		db.notice(c, err)
		return nil, errors.Join(err, db.giveBack(c))
	}
	db.mu.Lock()
	closed := db.closed
	if !closed {
		db.snapshots[s] = struct{}{}
	}
	db.mu.Unlock()
	if closed {
		err := c.rollback(ctx, fmt.Errorf("local catalog %s: %w", db.path, ErrClosed))
		return nil, errors.Join(err, db.giveBack(c))
	}
	return s, nil
}

// Close ends the view. Iterators that are still running fail with ErrClosed.
func (s *Snapshot) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.c
	if c == nil {
		return nil
	}
	s.c = nil
	var errs []error
	for st := range s.streams {
		errs = append(errs, st.close())
	}
	errs = append(errs, c.rollback(context.Background(), nil))
	s.db.mu.Lock()
	delete(s.db.snapshots, s)
	s.db.mu.Unlock()
	errs = append(errs, s.db.giveBack(c))
	<-s.db.places
	return errors.Join(errs...)
}

// State returns where the view stands.
func (s *Snapshot) State() State { return s.st.State }

// Counts returns totals; its cost does not grow with the state.
func (s *Snapshot) Counts() Counts {
	st := &s.st
	return Counts{Versions: st.versions, Paths: st.paths, PathBytes: st.pathBytes, Objects: st.live, Bytes: st.bytes,
		ObjectRows: st.objects, Slots: st.slots, Defects: st.defects}
}

// with runs f with the connection.
func (s *Snapshot) with(f func(c *conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		return fmt.Errorf("snapshot of the local catalog: %w", ErrClosed)
	}
	err := f(s.c)
	s.db.notice(s.c, err)
	return err
}

// page runs a statement and hands its rows over one at a time; each may run
// other statements, not this one.
func (c *conn) page(ctx context.Context, each func(row []driver.Value) error, text string, args ...driver.Value) error {
	r, err := c.query(ctx, text, args...)
	if err != nil {
		return err
	}
	for {
		ok, err := r.next()
		if err == nil && ok {
			err = each(r.dest)
		}
		if err != nil || !ok {
			return errors.Join(err, r.close())
		}
	}
}

// slotArg turns 0, which means the head, into the head, and keeps slots that
// nobody has reached within what SQLite counts.
func (s *Snapshot) slotArg(at uint64) int64 {
	if at == 0 || at > s.st.Head {
		at = s.st.Head
	}
	return int64(at)
}

// fill completes a version that was decoded: where its bytes are.
func (s *Snapshot) fill(ctx context.Context, c *conn, r *record) error {
	at := &r.Version.Place
	at.Offset, at.Length, at.Codec = r.place.offset, r.place.length, r.place.codec
	if r.Op == format.OpDelete {
		return nil
	}
	if r.place.object == 0 {
		at.Inline, at.Slot = true, r.Slot
		return nil
	}
	o, err := s.object(ctx, c, r.place.object)
	if err != nil {
		return err
	}
	at.Object, at.Dead, at.Suspect = o.Object, o.Dead, o.Suspect
	return nil
}

// object reads the row of an object that a version names.
func (s *Snapshot) object(ctx context.Context, c *conn, id int64) (*Object, error) {
	if o := s.objects[id]; o != nil {
		return o, nil
	}
	row, err := c.row(ctx, `SELECT `+objectColumns+` FROM objects WHERE id = ?`, id)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, fmt.Errorf("%s: %w: a version names object row %d, which does not exist", c.path, ErrDamaged, id)
	}
	_, o, err := decodeObject(row)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	if s.objects == nil || len(s.objects) >= knownMax {
		s.objects = make(map[int64]*Object)
	}
	s.objects[id] = o
	return o, nil
}

// writer reads the row of a writer's identity.
func (s *Snapshot) writer(ctx context.Context, c *conn, id int64) (json.RawMessage, error) {
	if w, ok := s.writers[id]; ok {
		return w, nil
	}
	row, err := c.row(ctx, `SELECT data FROM writers WHERE id = ?`, id)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, fmt.Errorf("%s: %w: a log row names writer row %d, which does not exist", c.path, ErrDamaged, id)
	}
	var w json.RawMessage
	if data, _ := row[0].([]byte); len(data) > 0 {
		w = data
	}
	if s.writers == nil || len(s.writers) >= writersMax {
		s.writers = make(map[int64]json.RawMessage)
	}
	s.writers[id] = w
	return w, nil
}

const writersMax = 256 // kept in memory

// newest reads the newest version of path at or below a slot, or nil.
func (s *Snapshot) newest(ctx context.Context, c *conn, path string, at int64) (*record, error) {
	row, err := c.row(ctx, `SELECT `+versionColumns+` FROM versions v WHERE v.path = ? AND v.slot <= ? ORDER BY v.slot DESC LIMIT 1`, path, at)
	if err != nil || row == nil {
		return nil, err
	}
	r := new(record)
	if err := r.decode(row); err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	return r, s.fill(ctx, c, r)
}

// Lookup returns the version that path had after slot at (0 = head). Otherwise
// the error wraps ErrNoVersion, and the Version says more: its Op is OpDelete
// where the path was deleted and the marker of that is kept; its Until is above
// 0 and at most at where retention removed the version of that time; it is zero
// where the path was never put, or nothing of it is left.
func (s *Snapshot) Lookup(ctx context.Context, path string, at uint64) (Version, error) {
	var v Version
	err := s.with(func(c *conn) error {
		slot := s.slotArg(at)
		r, err := s.newest(ctx, c, path, slot)
		if err != nil {
			return err
		}
		if r == nil {
			return fmt.Errorf("%q: %w", path, ErrNoVersion)
		}
		if r.until == 0 && slot < int64(s.st.Head) {
			if err := s.findEnd(ctx, c, r); err != nil {
				return err
			}
		}
		v = r.Version
		switch {
		case r.until != 0 && r.until <= uint64(slot):
			return fmt.Errorf("%q: the version that it had at %d was removed or deleted: %w", path, slot, ErrNoVersion)
		case r.Op == format.OpDelete:
			return fmt.Errorf("%q: deleted by record %d: %w", path, r.Slot, ErrNoVersion)
		}
		return nil
	})
	return v, err
}

// findEnd sets Until of a version that may not be the current one.
func (s *Snapshot) findEnd(ctx context.Context, c *conn, r *record) error {
	row, err := c.row(ctx, `SELECT slot FROM versions WHERE path = ? AND slot > ? ORDER BY slot LIMIT 1`, r.Path, int64(r.Slot))
	if err == nil && row != nil {
		r.Until = uint64(row[0].(int64))
	}
	return err
}

// Entry finds an entry by its id.
func (s *Snapshot) Entry(ctx context.Context, id uuid.UUID) (slot uint64, entry format.LogEntry, found bool, err error) {
	err = s.with(func(c *conn) error {
		row, err := c.row(ctx, `SELECT `+logColumns+` FROM entries e JOIN log l ON l.slot = e.slot WHERE e.id = ?`, id[:])
		if err != nil || row == nil {
			return err
		}
		r, _, err := decodeLog(row)
		if err != nil {
			return fmt.Errorf("%s: %w", c.path, err)
		}
		for i := range r.Entries {
			if r.Entries[i].ID == id {
				slot, entry, found = r.Slot, r.Entries[i], true
				return nil
			}
		}
		return fmt.Errorf("%s: %w: slot %d does not hold entry %s", c.path, ErrDamaged, r.Slot, id)
	})
	return slot, entry, found, err
}

// ChangedSince finds the newest change of path by a slot above base that the
// entry own did not make (R11). The entry is uuid.Nil where all that is left of
// the change is that it ended another version.
func (s *Snapshot) ChangedSince(ctx context.Context, path string, base uint64, own uuid.UUID) (slot uint64, entry uuid.UUID, found bool, err error) {
	err = s.with(func(c *conn) error {
		newer := uint64(0) // slot of the version after the one at hand
		return orStopped(s.eachVersion(ctx, c, path, maxSlot, func(r *record) error {
			if r.until > base && r.until != newer {
				slot, entry, found = r.until, uuid.Nil, true
				return errStop
			}
			if r.Slot <= base {
				return errStop
			}
			if r.Entry != own {
				slot, entry, found = r.Slot, r.Entry, true
				return errStop
			}
			newer = r.Slot
			return nil
		}))
	})
	return slot, entry, found, err
}

// errStop ends a walk early.
var errStop = errors.New("stopped early")

func orStopped(err error) error {
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// eachVersion walks over the versions of path below a slot, newest first.
func (s *Snapshot) eachVersion(ctx context.Context, c *conn, path string, below int64, each func(*record) error) error {
	return c.page(ctx, func(row []driver.Value) error {
		r := new(record)
		if err := r.decode(row); err != nil {
			return fmt.Errorf("%s: %w", c.path, err)
		}
		return each(r)
	}, `SELECT `+versionColumns+` FROM versions v WHERE v.path = ? AND v.slot < ? ORDER BY v.slot DESC`, path, below)
}

// FindContent finds a place in a live data object that holds this content. It
// never returns an inline place (R6).
func (s *Snapshot) FindContent(ctx context.Context, sha256 format.Hash, size int64) (place Located, found bool, err error) {
	err = s.with(func(c *conn) error {
		key := shaKey(&sha256)
		var same []*record
		err := c.page(ctx, func(row []driver.Value) error {
			r := new(record)
			if err := r.decode(row); err != nil {
				return fmt.Errorf("%s: %w", c.path, err)
			}
			if r.SHA256 == sha256 && r.place.object != 0 {
				same = append(same, r)
			}
			return nil
		}, `SELECT `+versionColumns+` FROM (
				SELECT id FROM contents_new WHERE sha = ?1 UNION ALL SELECT id FROM contents WHERE sha = ?1
			) x JOIN versions v ON v.id = x.id WHERE v.size = ?2 LIMIT ?3`, key, size, int64(sameMax))
		if err != nil {
			return err
		}
		for _, r := range same {
			o, err := s.object(ctx, c, r.place.object)
			if err != nil {
				return err
			}
			if !o.Live() {
				continue
			}
			if err := s.fill(ctx, c, r); err != nil {
				return err
			}
			place, found = r.Version.Place, true
			return nil
		}
		return nil
	})
	return place, found, err
}

// sameMax bounds the search for a live place among equal contents. Where all of
// these are dead, the content is stored once more, which does no harm.
const sameMax = 64

// Object finds a data object by name.
func (s *Snapshot) Object(ctx context.Context, name string) (o Object, found bool, err error) {
	err = s.with(func(c *conn) error {
		row, err := c.row(ctx, `SELECT `+objectColumns+` FROM objects WHERE name = ?`, name)
		if err != nil || row == nil {
			return err
		}
		_, p, err := decodeObject(row)
		if err != nil {
			return fmt.Errorf("%s: %w", c.path, err)
		}
		o, found = *p, true
		return nil
	})
	return o, found, err
}
