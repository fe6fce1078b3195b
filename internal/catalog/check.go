package catalog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
)

// Check reads the whole catalog and compares what is kept twice: SQLite's own
// structure, the checksums of all rows, the indexes against the tables, the
// totals. What is wrong wraps ErrDamaged, and the next call starts with an empty
// catalog. It takes seconds for a million versions and blocks nobody.
func (db *DB) Check(ctx context.Context) error {
	s, err := db.Snapshot(ctx)
	if err != nil {
		return err
	}
	err = s.with(func(c *conn) error { return s.check(ctx, c) })
	return errors.Join(err, s.Close())
}

func (s *Snapshot) check(ctx context.Context, c *conn) error {
	bad := func(what string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", c.path, ErrDamaged, fmt.Sprintf(what, args...))
	}
	row, err := c.row(ctx, "PRAGMA integrity_check(1)")
	if err != nil {
		return err
	}
	if len(row) == 0 || row[0] != "ok" {
		return bad("%v", row)
	}
	var versions, objects, slots uint64
	err = errors.Join(
		c.page(ctx, func(row []driver.Value) error {
			versions++
			return new(record).decode(row)
		}, `SELECT `+versionColumns+` FROM versions v`),
		c.page(ctx, func(row []driver.Value) error {
			_, o, err := decodeObject(row)
			if err == nil && o.described() {
				objects++
			}
			return err
		}, `SELECT `+objectColumns+` FROM objects`),
		c.page(ctx, func(row []driver.Value) error {
			slots++
			_, _, err := decodeLog(row)
			return err
		}, `SELECT `+logColumns+` FROM log l`))
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	st := &s.st
	if versions != st.versions || objects != st.objects || slots != st.slots {
		return bad("%d versions, %d objects, %d slots instead of %d, %d, %d",
			versions, objects, slots, st.versions, st.objects, st.slots)
	}
	for text, want := range map[string]uint64{
		// Contents that cannot be found, and finds that are not there.
		`SELECT count(*) FROM versions v WHERE v.sha IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM contents x WHERE x.sha = v.sha AND x.id = v.id)
			AND NOT EXISTS (SELECT 1 FROM contents_new x WHERE x.sha = v.sha AND x.id = v.id)`: 0,
		`SELECT count(*) FROM (SELECT sha, id FROM contents UNION ALL SELECT sha, id FROM contents_new) x
			WHERE NOT EXISTS (SELECT 1 FROM versions v WHERE v.id = x.id AND v.sha = x.sha)`: 0,
		`SELECT count(*) FROM entries e WHERE NOT EXISTS (SELECT 1 FROM log l WHERE l.slot = e.slot)`: 0,
		`SELECT count(*) FROM log WHERE slot > ` + fmt.Sprint(st.CheckpointSeq):                       st.LogSlots,
	} {
		row, err := c.row(ctx, text)
		if err != nil {
			return err
		}
		if got, _ := row[0].(int64); uint64(got) != want {
			return bad("%d instead of %d: %s", got, want, text)
		}
	}
	return nil
}
