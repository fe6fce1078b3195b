package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/filelock"
)

// Several processes may find the same file missing, old or damaged at once, and
// others may be working with it. The rules that keep them apart:
//
//   - A connection is opened under a shared lock of <file>.lock, and checked
//     before the lock is given back: then SQLite has its three files open. It is
//     closed under that lock too.
//   - The file is made, and removed, under the exclusive lock, after a second
//     look: what another process made meanwhile is kept.
//   - Who has the removed file open goes on with it undisturbed, and notices at
//     the next transaction that the path names another file (see fits).
//
// The database itself is never opened in another way than by SQLite: closing
// any descriptor of it would drop the locks of the whole process.

// verdict is what a look at the file says.
type verdict int

const (
	verdictGood    verdict = iota
	verdictMissing         // no file, or one in which nothing was made yet
	verdictStale           // ours, but of an older schema, another datastore, or condemned
	verdictForeign         // not a database, or another program's: kept aside
)

// connect opens a checked connection, and makes the file anew where it must.
// condemned is the generation of a file that turned out to be damaged.
func connect(ctx context.Context, path string, opts Options, condemned uuid.UUID) (*conn, error) {
	c, v, err := inspect(ctx, path, opts, condemned, false)
	if err != nil || v == verdictGood {
		return c, err
	}
	lock, err := lockFile(ctx, path, true)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if c, v, err = inspect(ctx, path, opts, condemned, true); err != nil || v == verdictGood {
		return c, err
	}
	// Also what is left of a missing file goes: others may still have it open.
	if err := remove(path, v == verdictForeign); err != nil {
		return nil, err
	}
	return build(ctx, path, opts)
}

// lockFile takes the lock beside the file. The context bounds the wait.
func lockFile(ctx context.Context, path string, exclusive bool) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the local catalog: %w", err)
	}
	try := filelock.TryRLock
	if exclusive {
		try = filelock.TryLock
	}
	for attempt := 0; ; attempt++ {
		ok, err := try(f)
		if ok {
			return f, nil
		}
		if err == nil && !pause(ctx, attempt) {
			err = fmt.Errorf("%w: waited for %s, which is held while the file is made anew: %w",
				ErrBusy, f.Name(), context.Cause(ctx))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
		}
	}
}

// inspect opens a connection and looks whether the file is what opts ask for.
// The connection is returned with verdictGood only.
func inspect(ctx context.Context, path string, opts Options, condemned uuid.UUID, locked bool) (*conn, verdict, error) {
	if !locked {
		lock, err := lockFile(ctx, path, false)
		if err != nil {
			return nil, 0, err
		}
		defer lock.Close()
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, verdictMissing, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("local catalog: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("local catalog: %s is not a regular file: choose another path or move it away", path)
	}
	var c *conn
	err = retry(ctx, path, "open it", func() (err error) {
		c, err = dial(path)
		return err
	})
	if err != nil {
		return nil, verdictForeign, damageOnly(err)
	}
	v, err := c.judge(ctx, opts, condemned)
	if err == nil && v == verdictGood {
		c.info = info
		return c, v, nil
	}
	return nil, v, errors.Join(err, c.closeLocked())
}

// damageOnly passes all errors but damage, which is a verdict.
func damageOnly(err error) error {
	if errors.Is(err, ErrDamaged) {
		return nil
	}
	return err
}

func (c *conn) judge(ctx context.Context, opts Options, condemned uuid.UUID) (verdict, error) {
	var app, version, tables int64
	err := retry(ctx, c.path, "read its header", func() error {
		for text, n := range map[string]*int64{
			"PRAGMA application_id":              &app,
			"PRAGMA user_version":                &version,
			"SELECT count(*) FROM sqlite_schema": &tables,
		} {
			row, err := c.row(ctx, text)
			if err != nil {
				return err
			}
			*n, _ = row[0].(int64)
		}
		return nil
	})
	switch {
	case errors.Is(err, ErrDamaged):
		return verdictForeign, nil
	case err != nil:
		return 0, err
	case app == 0 && version == 0 && tables == 0:
		return verdictMissing, nil
	case app != applicationID:
		return verdictForeign, nil
	case version > schemaVersion:
		return 0, fmt.Errorf("%s has schema %d, this program knows %d: upgrade it, or delete the file, which is a cache (%w)",
			c.path, version, schemaVersion, ErrUpgrade)
	case version < schemaVersion:
		return verdictStale, nil
	}
	s, err := c.readState(ctx)
	switch {
	case errors.Is(err, ErrDamaged):
		return verdictStale, nil
	case err != nil:
		return 0, err
	case s.datastore != opts.Datastore, s.genesis != opts.Genesis:
		return verdictStale, nil
	case s.generation == condemned:
		return verdictStale, nil
	}
	c.generation = s.generation
	return verdictGood, c.configure(ctx)
}

// configure sets what holds for a connection, not for the file.
func (c *conn) configure(ctx context.Context) error {
	return c.script(ctx,
		"PRAGMA synchronous = NORMAL",
		"PRAGMA cell_size_check = ON",
		"PRAGMA trusted_schema = OFF",
		fmt.Sprintf("PRAGMA journal_size_limit = %d", walKeep),
		fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", walBackstop/pageSize),
	)
}

const (
	pageSize    = 4096
	cacheWriter = 16 << 20 // bytes of pages that the writing connection keeps
	cacheReader = 2 << 20  // and each reading one
	walKeep     = 4 << 20  // the write-ahead log is cut back to this size
	walWake     = 8 << 20  // beyond it, maintenance copies it into the file
	walBackstop = 128 << 20
)

// build makes an empty catalog, under the exclusive lock.
func build(ctx context.Context, path string, opts Options) (*conn, error) {
	// SQLite gives the write-ahead log the mode of the file, so it is made here.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("local catalog: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("local catalog: %w", err)
	}
	c, err := dial(path)
	if err != nil {
		return nil, err
	}
	s := emptyState(opts, uuid.New())
	err = retry(ctx, path, "make it", func() error {
		return c.script(ctx, fmt.Sprintf("PRAGMA page_size = %d", pageSize), "PRAGMA journal_mode = WAL")
	})
	if err == nil {
		err = c.configure(ctx)
	}
	if err == nil {
		err = c.within(ctx, func() error { return c.create(ctx, &s, true) })
	}
	if err == nil {
		c.info, err = os.Stat(path)
	}
	if err != nil {
		return nil, errors.Join(err, c.closeLocked())
	}
	c.generation = s.generation
	return c, nil
}

// remove takes the database away, under the exclusive lock. The main file goes
// first: SQLite ignores a log that it finds beside an empty or missing file. What
// is not ours is kept under another name, the newest one only.
func remove(path string, aside bool) error {
	var err error
	if aside {
		err = os.Rename(path, path+".damaged")
	} else {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("local catalog cannot be used and not be replaced: %w", err)
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("local catalog cannot be used and not be replaced: %w", err)
		}
	}
	return nil
}

// within runs f in a write transaction of its own.
func (c *conn) within(ctx context.Context, f func() error) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // f panicked
			_ = c.rollback(ctx, nil)
		}
	}()
	err := f()
	done = true
	if err != nil {
		return c.rollback(ctx, err)
	}
	// The lock is held and the pages are there: this does not wait, and a
	// context that ends now must not make it unclear what happened.
	if err := c.exec(context.WithoutCancel(ctx), "COMMIT"); err != nil {
		return c.rollback(ctx, err)
	}
	return nil
}

// begin waits for the right to write to the file.
func (c *conn) begin(ctx context.Context) error {
	return retry(ctx, c.path, "write to it", func() error { return c.exec(ctx, "BEGIN IMMEDIATE") })
}

// rollback ends a transaction that SQLite itself may have ended already, which
// it does on some errors; then there is nothing to do.
func (c *conn) rollback(ctx context.Context, cause error) error {
	err := c.exec(context.WithoutCancel(ctx), "ROLLBACK")
	if err != nil && classify(err) != faultSchema {
		c.broken = true
		return errors.Join(cause, err)
	}
	return cause
}

// fits says whether the path still names the file that this connection has
// open: another process, or a person, may have put another in its place.
func (c *conn) fits(condemned uuid.UUID) bool {
	info, err := os.Stat(c.path)
	return err == nil && !c.broken && os.SameFile(info, c.info) && c.generation != condemned
}
