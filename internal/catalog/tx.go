package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/swampd/swampd/internal/format"
)

// Tx is a write transaction, valid inside of Update's function and for one
// goroutine.
type Tx struct {
	c      *conn
	st     fileState
	was    fileState // as it is in the file
	steps  int       // done or begun
	done   bool
	broken error // SQLite gave up the transaction; nothing of it can stay

	// Caches of rows of this transaction.
	objects map[string]*known
	writers map[string]int64
}

// known is a row of the table objects.
type known struct {
	id int64
	*Object
}

const knownMax = 8192 // rows kept in memory

func newTx(c *conn, st fileState) *Tx {
	return &Tx{c: c, st: st, was: st, objects: make(map[string]*known), writers: make(map[string]int64)}
}

// State returns where the transaction stands, what it did so far included.
func (tx *Tx) State() State { return tx.st.State }

func (tx *Tx) usable() error {
	if tx.done {
		return fmt.Errorf("transaction of the local catalog: %w", ErrClosed)
	}
	return tx.broken
}

// atomic runs f so that it happens as a whole or not at all. The first step of a
// transaction needs no savepoint, which would keep a copy of every page that the
// step changes: it is undone by beginning the transaction again. A context that
// ends inside of a statement may make SQLite give up the whole transaction; then
// Update fails, whatever its function returns.
func (tx *Tx) atomic(ctx context.Context, f func() error) error {
	if err := tx.usable(); err != nil {
		return err
	}
	before, first := tx.st, tx.steps == 0
	if !first {
		if err := tx.c.exec(ctx, "SAVEPOINT step"); err != nil {
			return err
		}
	}
	tx.steps++
	returned := false
	defer func() {
		if !returned {
			tx.broken = errors.New("local catalog: panic in the middle of a step")
		}
	}()
	err := f()
	returned = true
	if err == nil && !first {
		err = tx.c.exec(context.WithoutCancel(ctx), "RELEASE step")
	}
	if err == nil {
		return nil
	}
	tx.st = before
	clear(tx.objects)
	clear(tx.writers)
	undo := tx.undo(ctx, first)
	if undo != nil {
		tx.broken = fmt.Errorf("%w (the transaction cannot go on: %w)", err, undo)
	}
	return err
}

// undo takes back a step that failed. Where that begins the transaction again,
// another process may have come in between, and the state is a newer one.
func (tx *Tx) undo(ctx context.Context, first bool) error {
	free := context.WithoutCancel(ctx)
	if !first {
		err := tx.c.exec(free, "ROLLBACK TO step")
		if err == nil {
			err = tx.c.exec(free, "RELEASE step")
		}
		return err
	}
	tx.steps = 0
	err := tx.c.rollback(ctx, nil)
	if err == nil {
		err = tx.c.begin(ctx)
	}
	if err == nil {
		tx.st, err = tx.c.readState(ctx)
	}
	tx.was = tx.st
	return err
}

// SetCheckpoint notes the newest checkpoint of the store. Nothing in it moves
// backwards; what was kept for making this checkpoint is forgotten.
func (tx *Tx) SetCheckpoint(ctx context.Context, ck format.Checkpoint) error {
	if err := tx.usable(); err != nil {
		return err
	}
	st := &tx.st
	if ck.Seq <= st.CheckpointSeq && ck.Sweep <= st.Sweep && ck.Horizon <= st.Horizon {
		return nil
	}
	if ck.Seq > st.Head {
		return fmt.Errorf("checkpoint %d is ahead of the local catalog, which is at %d: %w", ck.Seq, st.Head, ErrGap)
	}
	return tx.atomic(ctx, func() error {
		st.Sweep = max(st.Sweep, ck.Sweep)
		st.Horizon = max(st.Horizon, ck.Horizon)
		if ck.Seq <= st.CheckpointSeq {
			return nil
		}
		st.CheckpointSeq = ck.Seq
		row, err := tx.c.row(ctx, `SELECT count(*), total(size) FROM log WHERE slot > ?`, int64(ck.Seq))
		if err != nil {
			return err
		}
		st.LogSlots, st.LogBytes = uint64(row[0].(int64)), clamp(row[1].(float64))
		for _, table := range []string{"dirty_versions", "dirty_objects"} {
			if err := tx.c.exec(ctx, `DELETE FROM `+table+` WHERE at <= ?`, int64(ck.Seq)); err != nil {
				return err
			}
		}
		return nil
	})
}

// clamp turns a sum of SQLite into an integer; sums of sizes that a record made
// up may be beyond all bounds.
func clamp(f float64) int64 {
	const most = 1 << 62
	return int64(min(max(f, -most), most))
}

// defect writes down what cannot be.
func (tx *Tx) defect(ctx context.Context, d Defect) error {
	tx.st.defects++
	if tx.st.defects > MaxDefects {
		return nil
	}
	return tx.c.exec(ctx, `INSERT INTO defects (slot, path, object, what) VALUES (?, ?, ?, ?)`,
		int64(d.Slot), d.Path, d.Object, d.What)
}

// object finds an object's row, or returns nil.
func (tx *Tx) object(ctx context.Context, name string) (*known, error) {
	if k := tx.objects[name]; k != nil {
		return k, nil
	}
	row, err := tx.c.row(ctx, `SELECT `+objectColumns+` FROM objects WHERE name = ?`, name)
	if err != nil || row == nil {
		return nil, err
	}
	id, o, err := decodeObject(row)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tx.c.path, err)
	}
	return tx.know(id, o), nil
}

func (tx *Tx) know(id int64, o *Object) *known {
	if len(tx.objects) >= knownMax {
		clear(tx.objects)
	}
	k := &known{id, o}
	tx.objects[o.Name] = k
	return k
}

// addObject makes a row for an object, whatever it is that is wrong with it.
func (tx *Tx) addObject(ctx context.Context, o *Object) (*known, error) {
	o.New = false
	row, err := tx.c.row(ctx, `INSERT INTO objects (name, born, dead, data) VALUES (?, ?, ?, ?) RETURNING id`,
		o.Name, int64(o.Born), int64(o.Dead), encodeObject(o))
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, fmt.Errorf("%s: %w: no row for object %s", tx.c.path, ErrDamaged, o.Name)
	}
	tx.count(o)
	return tx.know(row[0].(int64), o), nil
}

// count adds a new object to the totals.
func (tx *Tx) count(o *Object) {
	if o.described() {
		tx.st.objects++
	}
	if o.Dead == 0 {
		tx.st.live++
		tx.st.bytes += o.Size
	}
}

// writerRow returns the row of a writer's identity, which many records share.
func (tx *Tx) writerRow(ctx context.Context, data []byte) (int64, error) {
	if id, ok := tx.writers[string(data)]; ok {
		return id, nil
	}
	if data == nil {
		data = []byte{}
	}
	row, err := tx.c.row(ctx, `SELECT id FROM writers WHERE data = ?`, data)
	if err == nil && row == nil {
		row, err = tx.c.row(ctx, `INSERT INTO writers (data) VALUES (?) RETURNING id`, data)
	}
	if err != nil {
		return 0, err
	}
	if row == nil {
		return 0, fmt.Errorf("%s: %w: no row for a writer", tx.c.path, ErrDamaged)
	}
	id, _ := row[0].(int64)
	if len(tx.writers) >= writersMax {
		clear(tx.writers)
	}
	tx.writers[string(data)] = id
	return id, nil
}

// addLog makes a log row and the rows that find its entries.
func (tx *Tx) addLog(ctx context.Context, r *format.LogRow) error {
	writer, err := tx.writerRow(ctx, r.Writer)
	if err != nil {
		return err
	}
	err = tx.c.exec(ctx, `INSERT INTO log (slot, size, hash, data) VALUES (?, ?, ?, ?)`,
		int64(r.Slot), r.Size, r.Hash[:], encodeLog(r, writer))
	if err != nil {
		return err
	}
	tx.st.slots++
	for i := range r.Entries {
		id := &r.Entries[i].ID
		row, err := tx.c.row(ctx, `INSERT INTO entries (id, slot) VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING slot`,
			id[:], int64(r.Slot))
		if err != nil {
			return err
		}
		if row == nil {
			d := Defect{Slot: r.Slot, What: fmt.Sprintf("entry %s is in the log twice", id)}
			if err := tx.defect(ctx, d); err != nil {
				return err
			}
		}
	}
	return nil
}
