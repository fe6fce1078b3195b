package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
)

const (
	freshMax   = 1 << 16 // rows of contents_new from which on they are moved over
	freshSlice = 1024    // rows moved in one transaction, so that updates wait for milliseconds only
)

// wakeMaintenance is called after each write. Where there is nothing to do, that
// costs one look at the size of a file.
func (db *DB) wakeMaintenance() {
	select {
	case db.wake <- struct{}{}:
	default:
	}
}

// maintain keeps slow work off the path of updates: it copies the write-ahead
// log into the file, and moves rows of contents_new over. It needs no answer;
// what fails is tried again after the next update.
func (db *DB) maintain(ctx context.Context) {
	defer close(db.finished)
	var c *conn // for the log: it must not wait for updates, nor they for it
	for {
		select {
		case <-ctx.Done():
			if c != nil {
				db.maintainErr = errors.Join(db.maintainErr, c.close())
			}
			return
		case <-db.wake:
		}
		err := db.moveFresh(ctx)
		if err == nil {
			c, err = db.copyLog(ctx, c)
		}
		if ctx.Err() == nil && !errors.Is(err, ErrDamaged) {
			db.maintainErr = err
		}
	}
}

// copyLog copies the write-ahead log into the file once it is large.
func (db *DB) copyLog(ctx context.Context, c *conn) (*conn, error) {
	info, err := os.Stat(db.path + "-wal")
	if err != nil || info.Size() < walWake {
		return c, nil // none: nothing to copy
	}
	condemned := db.condemnedFile()
	if c != nil && !c.fits(condemned) {
		if err := c.close(); err != nil && !errors.Is(err, ErrDamaged) {
			return nil, err
		}
		c = nil
	}
	if c == nil {
		if c, err = connect(ctx, db.path, db.opts, condemned); err != nil {
			return nil, err
		}
	}
	if err = c.exec(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
		db.notice(c, err)
		return c, fmt.Errorf("copy the write-ahead log of the local catalog: %w", err)
	}
	return c, nil
}

// moveFresh moves the rows of contents_new into contents, in order, so that each
// page of the large index is touched once for many rows.
func (db *DB) moveFresh(ctx context.Context) error {
	if db.fresh.Load() <= freshMax {
		return nil
	}
	for more := true; more; {
		err := db.write(ctx, func(c *conn) (err error) {
			more, err = c.moveFreshSlice(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("move the index of contents: %w", err)
		}
	}
	db.fresh.Store(0)
	return nil
}

func (c *conn) moveFreshSlice(ctx context.Context) (more bool, err error) {
	st, err := c.readState(ctx)
	if err != nil {
		return false, err
	}
	row, err := c.row(ctx, `SELECT max(sha), count(*) FROM (SELECT sha FROM contents_new ORDER BY sha LIMIT ?)`, int64(freshSlice))
	if err != nil {
		return false, err
	}
	last, n := row[0], row[1].(int64)
	if n > 0 {
		if err := c.exec(ctx, `INSERT OR IGNORE INTO contents SELECT sha, id FROM contents_new WHERE sha <= ? ORDER BY sha, id`, last); err != nil {
			return false, err
		}
		if err := c.exec(ctx, `DELETE FROM contents_new WHERE sha <= ?`, last); err != nil {
			return false, err
		}
	}
	// Rows of a sha that many share go together, so the count may be too small.
	st.fresh -= min(st.fresh, uint64(n))
	if n < freshSlice {
		st.fresh = 0
	}
	return n == freshSlice, c.writeState(ctx, &st)
}
