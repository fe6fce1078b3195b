package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

const (
	maxSnapshots = 32 // open at once; more wait
	idleReaders  = 4  // connections kept for the next Snapshot
)

// Options say whose catalog it is.
type Options struct {
	Datastore uuid.UUID
	Genesis   format.Hash // what slot 1 has as Prev: the sha256 of _control/format
}

// DB is one open catalog. All methods are safe for concurrent use, by several
// processes too.
type DB struct {
	path string
	opts Options

	// writing is the right to use writer: a channel, so that waiting ends with
	// the context. Whoever holds it may take mu, not the other way round.
	writing chan struct{}
	writer  *conn // nil until needed

	places chan struct{} // one taken for each open Snapshot

	mu        sync.Mutex
	closed    bool
	idle      []*conn
	snapshots map[*Snapshot]struct{}
	condemned uuid.UUID // generation of a file that turned out to be damaged

	wake     chan struct{} // to maintenance
	fresh    atomic.Uint64 // rows of contents_new after the newest update
	stop     context.CancelFunc
	finished chan struct{} // maintenance has ended; maintainErr is set
	// maintainErr is the last failure of maintenance, for Close.
	maintainErr error
}

// Open opens the catalog at path, or makes an empty one. A file that is damaged,
// of an older schema or of another datastore is replaced by an empty one; one of
// a newer schema is ErrUpgrade. It waits while another process makes the file
// anew, as long as ctx allows.
func Open(ctx context.Context, path string, opts Options) (*DB, error) {
	if !HasCgo {
		return nil, fmt.Errorf("%s: %w", path, ErrNoCgo)
	}
	c, err := connect(ctx, path, opts, uuid.Nil)
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	db := &DB{
		path:      path,
		opts:      opts,
		writing:   make(chan struct{}, 1),
		places:    make(chan struct{}, maxSnapshots),
		snapshots: make(map[*Snapshot]struct{}),
		wake:      make(chan struct{}, 1),
		stop:      stop,
		finished:  make(chan struct{}),
	}
	// Most of who opens a catalog reads it first.
	if err := c.forReading(ctx); err != nil {
		stop()
		return nil, errors.Join(err, c.close())
	}
	db.idle = append(db.idle, c)
	go db.maintain(life)
	return db, nil
}

// Path returns the file's path.
func (db *DB) Path() string { return db.path }

// Close ends all connections and joins what runs in the background. It waits for
// a running Update; snapshots that are still open fail afterwards. A failure of
// maintenance, which needs no answer, is returned here.
func (db *DB) Close() error {
	db.stop()
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		return nil
	}
	db.closed = true
	idle, open := db.idle, db.snapshots
	db.idle, db.snapshots = nil, nil
	db.mu.Unlock()

	<-db.finished
	errs := []error{db.maintainErr}
	for s := range open {
		errs = append(errs, s.Close())
	}
	for _, c := range idle {
		errs = append(errs, c.close())
	}
	db.writing <- struct{}{}
	if db.writer != nil {
		errs = append(errs, db.writer.close())
		db.writer = nil
	}
	<-db.writing
	return errors.Join(errs...)
}

func (db *DB) closedErr() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return fmt.Errorf("local catalog %s: %w", db.path, ErrClosed)
	}
	return nil
}

func (db *DB) condemnedFile() uuid.UUID {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.condemned
}

// notice looks at an error of work on c. Damage condemns the file: whoever opens
// a connection next makes it anew.
func (db *DB) notice(c *conn, err error) {
	if errors.Is(err, ErrDamaged) {
		db.mu.Lock()
		db.condemned = c.generation
		db.mu.Unlock()
	}
}

// State returns where the catalog stands.
func (db *DB) State(ctx context.Context) (State, error) {
	s, err := db.Snapshot(ctx)
	if err != nil {
		return State{}, err
	}
	st := s.State()
	return st, s.Close()
}

// Update runs fn in one write transaction: all of what it did stays, or, when it
// returns an error, nothing. It waits for other writers, of this and of other
// processes, as long as ctx allows; then the error wraps ErrBusy. Readers are
// never waited for. After an error fn may have run, and nothing of it stays.
func (db *DB) Update(ctx context.Context, fn func(*Tx) error) error {
	return db.write(ctx, func(c *conn) error {
		st, err := c.readState(ctx)
		if err != nil {
			return err
		}
		tx := newTx(c, st)
		defer func() { tx.done = true }()
		if err := fn(tx); err != nil {
			return err
		}
		if tx.broken != nil {
			return tx.broken
		}
		if tx.st == tx.was {
			return nil
		}
		db.fresh.Store(tx.st.fresh)
		return c.writeState(ctx, &tx.st)
	})
}

// Reset empties the catalog: it is a cache, and the log fills it again.
func (db *DB) Reset(ctx context.Context) error {
	return db.write(ctx, func(c *conn) error {
		st := emptyState(db.opts, c.generation)
		return c.create(ctx, &st, true)
	})
}

// write runs f in a write transaction on the writing connection.
func (db *DB) write(ctx context.Context, f func(*conn) error) error {
	select {
	case db.writing <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w: waited for an update of this process: %w", db.path, ErrBusy, context.Cause(ctx))
	}
	defer func() { <-db.writing }()
	if err := db.closedErr(); err != nil {
		return err
	}
	c, err := db.writerConn(ctx)
	if err != nil {
		return err
	}
	err = c.within(ctx, func() error { return f(c) })
	db.notice(c, err)
	db.wakeMaintenance()
	return err
}

// writerConn returns the writing connection, a new one where the file is not the
// one it has open. The right to write is held.
func (db *DB) writerConn(ctx context.Context) (*conn, error) {
	condemned := db.condemnedFile()
	if c := db.writer; c != nil {
		if c.fits(condemned) {
			return c, nil
		}
		db.writer = nil
		if err := c.close(); err != nil && !errors.Is(err, ErrDamaged) {
			return nil, err
		}
	}
	c, err := connect(ctx, db.path, db.opts, condemned)
	if err != nil {
		return nil, err
	}
	if err := c.script(ctx, fmt.Sprintf("PRAGMA cache_size = %d", -cacheWriter>>10)); err != nil {
		return nil, errors.Join(err, c.close())
	}
	db.writer = c
	return c, nil
}

func (c *conn) forReading(ctx context.Context) error {
	return c.script(ctx, fmt.Sprintf("PRAGMA cache_size = %d", -cacheReader>>10), "PRAGMA query_only = ON")
}

// readerConn returns a connection for a Snapshot.
func (db *DB) readerConn(ctx context.Context) (*conn, error) {
	for {
		db.mu.Lock()
		if db.closed {
			db.mu.Unlock()
			return nil, fmt.Errorf("local catalog %s: %w", db.path, ErrClosed)
		}
		condemned := db.condemned
		var c *conn
		if n := len(db.idle); n > 0 {
			c, db.idle = db.idle[n-1], db.idle[:n-1]
		}
		db.mu.Unlock()
		if c == nil {
			c, err := connect(ctx, db.path, db.opts, condemned)
			if err != nil {
				return nil, err
			}
			if err := c.forReading(ctx); err != nil {
				return nil, errors.Join(err, c.close())
			}
			return c, nil
		}
		if c.fits(condemned) {
			return c, nil
		}
		if err := c.close(); err != nil && !errors.Is(err, ErrDamaged) {
			return nil, err
		}
	}
}

// giveBack keeps a reader's connection for the next one, or closes it.
func (db *DB) giveBack(c *conn) error {
	db.mu.Lock()
	if !db.closed && !c.broken && len(db.idle) < idleReaders && c.generation != db.condemned {
		db.idle = append(db.idle, c)
		db.mu.Unlock()
		return nil
	}
	db.mu.Unlock()
	if err := c.close(); err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}
	return nil
}
