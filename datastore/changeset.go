package datastore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"

	_ "github.com/mattn/go-sqlite3"
	"github.com/swampd/swampd/internal/format"
)

// spillAt is how many changes of a batch stay in memory; more go to a
// temporary SQLite file in the staging area, so that a batch of a million
// paths needs no more memory than one of ten thousand.
const spillAt = 16384

// changeSet is the changes of a batch by path. Called under Batch.mu.
type changeSet struct {
	mem map[string]*staged
	db  *spill
	n   int // in db
}

func (c *changeSet) len() int { return c.n + len(c.mem) }

// set adds a change or takes the place of the one for the same path.
func (c *changeSet) set(ctx context.Context, sc *staged, st *staging) error {
	if c.db != nil {
		// A path is in one of the two only.
		if removed, err := c.db.remove(ctx, sc.change.Path); err != nil {
			return err
		} else if removed {
			c.n--
		}
	}
	c.mem[sc.change.Path] = sc
	if len(c.mem) < spillAt {
		return nil
	}
	return c.spill(ctx, st)
}

func (c *changeSet) spill(ctx context.Context, st *staging) error {
	if c.db == nil {
		dir, err := st.stagingDir()
		if err == nil {
			c.db, err = openSpill(ctx, filepath.Join(dir, "changes.db"))
		}
		if err != nil {
			return fmt.Errorf("the local staging area: %w", err)
		}
	}
	if err := c.db.add(ctx, c.mem); err != nil {
		return fmt.Errorf("the local staging area: %w", err)
	}
	c.n += len(c.mem)
	clear(c.mem)
	return nil
}

func (c *changeSet) has(ctx context.Context, path string) (bool, error) {
	_, has, err := c.op(ctx, path)
	return has, err
}

// op returns what the batch does to path.
func (c *changeSet) op(ctx context.Context, path string) (format.Op, bool, error) {
	if sc := c.mem[path]; sc != nil {
		return sc.change.Op, true, nil
	}
	if c.db == nil {
		return 0, false, nil
	}
	sc, err := c.db.get(ctx, path)
	if sc == nil || err != nil {
		return 0, false, err
	}
	return sc.change.Op, true, nil
}

func (c *changeSet) remove(ctx context.Context, path string) error {
	delete(c.mem, path)
	if c.db == nil {
		return nil
	}
	removed, err := c.db.remove(ctx, path)
	if removed {
		c.n--
	}
	return err
}

// all yields the changes in the order of their paths.
func (c *changeSet) all(ctx context.Context, st *staging) iter.Seq2[*staged, error] {
	return func(yield func(*staged, error) bool) {
		if c.db == nil {
			for _, path := range slices.Sorted(maps.Keys(c.mem)) {
				if !yield(c.mem[path], nil) {
					return
				}
			}
			return
		}
		if len(c.mem) > 0 {
			if err := c.spill(ctx, st); err != nil {
				yield(nil, err)
				return
			}
		}
		c.db.all(ctx, yield)
	}
}

func (c *changeSet) close() error {
	c.mem = nil
	if c.db == nil {
		return nil
	}
	return c.db.close()
}

// spill is the temporary file. It is never read by another process or later
// run, so it is neither synced nor versioned. Its journal is in memory: a full disk
// or a context that ends costs the last step only.
type spill struct {
	db   *sql.DB
	name string
	// Prepared on the only connection, for what is done with each change.
	one, del *sql.Stmt
}

func openSpill(ctx context.Context, name string) (*spill, error) {
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite3", "file:"+pathToURI(name)+"?_journal_mode=MEMORY&_synchronous=OFF&_locking_mode=EXCLUSIVE&_cache_size=-8192")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, `CREATE TABLE c (path BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID`); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &spill{db: db, name: name}
	if s.one, err = db.PrepareContext(ctx, `SELECT v FROM c WHERE path = ?`); err == nil {
		s.del, err = db.PrepareContext(ctx, `DELETE FROM c WHERE path = ?`)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// pathToURI escapes what SQLite gives a meaning in a file name.
func pathToURI(name string) string {
	var b []byte
	for i := range len(name) {
		switch c := name[i]; c {
		case '%', '?', '#':
			b = append(b, fmt.Sprintf("%%%02x", c)...)
		default:
			b = append(b, c)
		}
	}
	return filepath.ToSlash(string(b))
}

func (s *spill) add(ctx context.Context, changes map[string]*staged) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	ins, err := tx.PrepareContext(ctx, `INSERT OR REPLACE INTO c VALUES (?, ?)`)
	if err != nil {
		return err
	}
	var buf []byte
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		if buf, err = appendStaged(buf[:0], changes[path]); err != nil {
			return err
		}
		if _, err := ins.ExecContext(ctx, []byte(path), buf); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *spill) get(ctx context.Context, path string) (*staged, error) {
	var v []byte
	err := s.one.QueryRowContext(ctx, []byte(path)).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeStaged(path, v)
}

func (s *spill) remove(ctx context.Context, path string) (bool, error) {
	res, err := s.del.ExecContext(ctx, []byte(path))
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// spillPage is how many changes are read at once; between pages the only
// connection is free, so that what iterates may also change.
const spillPage = 1024

func (s *spill) all(ctx context.Context, yield func(*staged, error) bool) {
	after := []byte{}
	for {
		page, err := s.page(ctx, after)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, sc := range page {
			if !yield(sc, nil) {
				return
			}
		}
		if len(page) < spillPage {
			return
		}
		after = []byte(page[len(page)-1].change.Path)
	}
}

func (s *spill) page(ctx context.Context, after []byte) ([]*staged, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT path, v FROM c WHERE path > ? ORDER BY path LIMIT ?`, after, spillPage)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	page := make([]*staged, 0, spillPage)
	for rows.Next() {
		var path, v sql.RawBytes
		if err := rows.Scan(&path, &v); err != nil {
			return nil, err
		}
		sc, err := decodeStaged(string(path), v)
		if err != nil {
			return nil, err
		}
		page = append(page, sc)
	}
	return page, rows.Err()
}

func (s *spill) close() error { return errors.Join(s.db.Close(), removeIfThere(s.name)) }

// appendStaged and decodeStaged turn a change into the bytes of one row.
func appendStaged(b []byte, sc *staged) ([]byte, error) {
	c := &sc.change
	for _, v := range []int64{int64(c.Op), c.Size, int64(c.Mode), c.MTime, int64(sc.dup)} {
		b = binary.AppendVarint(b, v)
	}
	for _, p := range []*format.Place{&c.Place, &sc.dupPlace} {
		for _, v := range []int64{int64(p.Object), p.Offset, p.Length, int64(p.Codec)} {
			b = binary.AppendVarint(b, v)
		}
	}
	b = append(b, c.SHA256[:]...)
	if c.Meta.IsZero() {
		return b, nil
	}
	meta, err := json.Marshal(&c.Meta)
	return append(b, meta...), err
}

func decodeStaged(path string, b []byte) (*staged, error) {
	bad := false
	next := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	sc := &staged{}
	c := &sc.change
	c.Path, c.Op, c.Size, c.Mode, c.MTime, sc.dup = path, format.Op(next()), next(), uint32(next()), next(), int(next())
	for _, p := range []*format.Place{&c.Place, &sc.dupPlace} {
		p.Object, p.Offset, p.Length, p.Codec = int(next()), next(), next(), format.Codec(next())
	}
	if bad || len(b) < len(c.SHA256) {
		return nil, fmt.Errorf("%w: the staged change of %q; put it again", ErrCorrupt, path)
	}
	b = b[copy(c.SHA256[:], b):]
	if len(b) > 0 {
		if err := json.Unmarshal(b, &c.Meta); err != nil {
			return nil, fmt.Errorf("%w: the staged change of %q: %w", ErrCorrupt, path, err)
		}
	}
	return sc, nil
}
