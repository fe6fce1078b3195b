package catalog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/mattn/go-sqlite3"
)

// fault is what an error of the driver means to this package.
type fault int

const (
	faultOther   fault = iota
	faultBusy          // another connection holds a lock: ask again
	faultDamaged       // the file's bytes are not a database
	faultFull          // the disk
	faultSchema        // SQLITE_ERROR: as the answer to preparing one of our own statements, damage
)

// conn is one connection. It is used by one goroutine at a time. It talks to
// the driver directly: the pool of database/sql would cost as much as the
// statements do.
type conn struct {
	raw   driver.Conn
	path  string
	stmts map[string]*stmt

	info       os.FileInfo // of the file as it was opened, to notice when another takes its place
	generation uuid.UUID   // of the database in it
	broken     bool        // a transaction could not be ended: not to be used again
}

// stmt is a prepared statement with room for its arguments and for a row.
type stmt struct {
	raw  driver.Stmt
	q    driver.StmtQueryContext
	args []driver.NamedValue
	dest []driver.Value
}

// dial opens a connection and nothing else. SQLite's own waiting is off: it
// would not end with the context (see retry).
func dial(path string) (*conn, error) {
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	raw, err := (&sqlite3.SQLiteDriver{}).Open("file:" + escaped + "?_busy_timeout=0&_mutex=no")
	c := &conn{raw: raw, path: path, stmts: make(map[string]*stmt)}
	if err != nil {
		return nil, c.explain("open", err)
	}
	return c, nil
}

// close ends the connection under the shared lock: the last connection to a file
// removes its log by name, and must not find another file's there (see open.go).
func (c *conn) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	lock, err := lockFile(ctx, c.path, false)
	if err != nil {
		return errors.Join(err, c.closeLocked())
	}
	defer lock.Close()
	return c.closeLocked()
}

// closeWait is far beyond what making a file anew takes.
const closeWait = 10 * time.Second

func (c *conn) closeLocked() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.raw.Close())
	}
	errs = append(errs, c.raw.Close())
	c.stmts = nil
	if err := errors.Join(errs...); err != nil {
		return c.explain("close", err)
	}
	return nil
}

func (c *conn) prepare(text string) (*stmt, error) {
	raw, err := c.raw.Prepare(text)
	if err != nil {
		if classify(err) == faultSchema {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil, c.explain("prepare", err)
	}
	q, ok := raw.(driver.StmtQueryContext)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s: the driver's statements take no context", c.path), raw.Close())
	}
	s := &stmt{raw: raw, q: q, args: make([]driver.NamedValue, raw.NumInput())}
	for i := range s.args {
		s.args[i].Ordinal = i + 1
	}
	return s, nil
}

// rows is a statement being stepped.
type rows struct {
	c    *conn
	r    driver.Rows
	dest []driver.Value
}

// run starts a statement: bound and stepped once, which is all that a statement
// without rows needs.
func (c *conn) run(ctx context.Context, s *stmt, args []driver.Value) (rows, error) {
	if len(args) != len(s.args) {
		return rows{}, fmt.Errorf("%s: %d arguments for a statement that takes %d", c.path, len(args), len(s.args))
	}
	for i := range args {
		s.args[i].Value = args[i]
	}
	r, err := s.q.QueryContext(ctx, s.args)
	if err != nil {
		return rows{}, c.explain("run", err)
	}
	if s.dest == nil {
		s.dest = make([]driver.Value, len(r.Columns()))
	}
	return rows{c: c, r: r, dest: s.dest}, nil
}

func (c *conn) kept(text string) (*stmt, error) {
	if s := c.stmts[text]; s != nil {
		return s, nil
	}
	s, err := c.prepare(text)
	if err == nil {
		c.stmts[text] = s
	}
	return s, err
}

// query runs a prepared statement; the caller closes the rows before the same
// text is run again. Values in a row are valid until the next row.
func (c *conn) query(ctx context.Context, text string, args ...driver.Value) (rows, error) {
	s, err := c.kept(text)
	if err != nil {
		return rows{}, err
	}
	return c.run(ctx, s, args)
}

// exec runs a prepared statement whose rows, if any, do not matter.
func (c *conn) exec(ctx context.Context, text string, args ...driver.Value) error {
	r, err := c.query(ctx, text, args...)
	if err != nil {
		return err
	}
	return r.close()
}

// row runs a prepared statement and returns its first row, or nil.
func (c *conn) row(ctx context.Context, text string, args ...driver.Value) ([]driver.Value, error) {
	r, err := c.query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	ok, err := r.next()
	if err = errors.Join(err, r.close()); err != nil || !ok {
		return nil, err
	}
	return r.dest, nil
}

// script runs statements that are needed once, each on a line of its own.
func (c *conn) script(ctx context.Context, lines ...string) error {
	for _, text := range lines {
		s, err := c.prepare(text)
		if err != nil {
			return err
		}
		r, err := c.run(ctx, s, nil)
		if err == nil {
			err = r.close()
		}
		if err = errors.Join(err, s.raw.Close()); err != nil {
			return fmt.Errorf("%w (in %q)", err, text)
		}
	}
	return nil
}

func (r *rows) next() (bool, error) {
	switch err := r.r.Next(r.dest); {
	case err == nil:
		return true, nil
	case errors.Is(err, io.EOF):
		return false, nil
	default:
		return false, r.c.explain("read", err)
	}
}

func (r *rows) close() error {
	if err := r.r.Close(); err != nil {
		return r.c.explain("read", err)
	}
	return nil
}

// explain says of which file an error speaks, and marks damage and a full disk.
func (c *conn) explain(what string, err error) error {
	switch classify(err) {
	case faultDamaged:
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	case faultFull:
		err = fmt.Errorf("%w: %w", syscall.ENOSPC, err)
	}
	return fmt.Errorf("%s %s: %w", what, c.path, err)
}

// pause waits before another attempt at a lock, longer each time, and returns
// false when the context ends first.
func pause(ctx context.Context, attempt int) bool {
	d := min(100*time.Microsecond<<min(attempt, 10), 10*time.Millisecond)
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// retry repeats f for as long as another connection holds the file; the
// context bounds the wait.
func retry(ctx context.Context, path, what string, f func() error) error {
	begun := time.Now()
	for attempt := 0; ; attempt++ {
		err := f()
		if err == nil || classify(err) != faultBusy {
			return err
		}
		if !pause(ctx, attempt) {
			return fmt.Errorf("%s: %w: waited %s to %s: %w (%w)",
				path, ErrBusy, time.Since(begun).Round(time.Millisecond), what, context.Cause(ctx), err)
		}
	}
}
