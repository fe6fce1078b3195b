package catalog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"

	"github.com/swampd/swampd/internal/format"
)

// LoadCheckpoint replaces all content by the checkpoint's, in one transaction
// and with bounded memory. shard is asked for one shard at a time: those of the
// objects first, then of the log, then of the versions, each in the order of
// root.Shards. It checks that keys rise and that counts are right; what is wrong
// with the checkpoint wraps format.ErrCorrupt, and nothing was changed then.
//
// Other writers wait meanwhile; readers see the state of before. It does nothing
// if the catalog is at root.Seq or beyond, by another process
// perhaps; ErrFork if it holds another record at root.Seq.
func (db *DB) LoadCheckpoint(ctx context.Context, root *format.Root, ck format.Checkpoint,
	shard func(format.ShardRef) (*format.Shard, error)) error {
	if root.Datastore != db.opts.Datastore {
		return fmt.Errorf("checkpoint %d is of datastore %s, not of %s: %w", root.Seq, root.Datastore, db.opts.Datastore, format.ErrCorrupt)
	}
	if root.Seq == 0 || root.Seq > maxSlot {
		return fmt.Errorf("checkpoint of slot %d: %w", root.Seq, format.ErrCorrupt)
	}
	return db.write(ctx, func(c *conn) error {
		st, err := c.readState(ctx)
		if err != nil {
			return err
		}
		tx := newTx(c, st)
		if st.Head >= root.Seq {
			return tx.skip(ctx, root.Seq, root.ChainHash)
		}
		l := loading{tx: tx, root: root, shard: shard}
		if err := l.load(ctx, emptyState(db.opts, c.generation), ck); err != nil {
			return err
		}
		return c.writeState(ctx, &tx.st)
	})
}

// loading is one checkpoint being read.
type loading struct {
	tx    *Tx
	root  *format.Root
	shard func(format.ShardRef) (*format.Shard, error)

	last string // greatest key of the table so far
	rows uint64

	versionRows, objectRows, logRows, entryRows bulk
	entries                                     uint64 // sent to entryRows
	// The version before the one at hand.
	path   string
	living bool
	size   int64
	end    uint64
}

func (l *loading) load(ctx context.Context, st fileState, ck format.Checkpoint) error {
	tx, root := l.tx, l.root
	st.Head, st.Hash = root.Seq, root.ChainHash
	st.Fence, st.Session = root.Fence, root.Session
	st.Sweep, st.Horizon = max(root.Sweep, ck.Sweep), max(root.Horizon, ck.Horizon)
	st.CheckpointSeq = root.Seq
	tx.st = st
	if err := tx.c.create(ctx, &tx.st, false); err != nil {
		return err
	}
	l.versionRows.into(tx.c, `INSERT OR FAIL INTO versions (path, slot, size, sha, until, data) VALUES `, 6)
	l.objectRows.into(tx.c, `INSERT OR FAIL INTO objects (name, born, dead, data) VALUES `, 4)
	l.logRows.into(tx.c, `INSERT OR FAIL INTO log (slot, size, hash, data) VALUES `, 4)
	l.entryRows.into(tx.c, `INSERT OR IGNORE INTO entries (id, slot) VALUES `, 2)
	for _, t := range []struct {
		table format.Table
		rows  uint64
		read  func(context.Context, *format.Shard) error
	}{
		{format.TableObjects, root.Objects, l.objects},
		{format.TableLog, root.Slots, l.log},
		{format.TableVersions, root.Versions, l.versions},
	} {
		if err := l.table(ctx, t.table, t.rows, t.read); err != nil {
			return err
		}
	}
	l.endPath()
	tx.st.versions, tx.st.slots = root.Versions, root.Slots
	if err := l.checkEntries(ctx); err != nil {
		return err
	}
	return tx.c.script(ctx, schemaSlotIndex,
		`INSERT INTO contents (sha, id) SELECT sha, id FROM versions WHERE sha IS NOT NULL ORDER BY sha, id`)
}

// table reads the shards of one table.
func (l *loading) table(ctx context.Context, table format.Table, rows uint64, read func(context.Context, *format.Shard) error) error {
	l.last, l.rows = "", 0
	for i := range l.root.Shards {
		ref := &l.root.Shards[i]
		if ref.Table != table {
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		s, err := l.shard(*ref)
		if err != nil {
			return fmt.Errorf("checkpoint %d: shard %s: %w", l.root.Seq, ref.Name, err)
		}
		before := l.rows
		if err := read(ctx, s); err != nil {
			return fmt.Errorf("checkpoint %d: shard %s: %w", l.root.Seq, ref.Name, err)
		}
		if s.Table != table || l.rows-before != ref.Rows {
			return fmt.Errorf("checkpoint %d: shard %s holds %d rows of table %d instead of %d of table %d: %w",
				l.root.Seq, ref.Name, l.rows-before, s.Table, ref.Rows, table, format.ErrCorrupt)
		}
	}
	if l.rows != rows {
		return fmt.Errorf("checkpoint %d: %d rows in table %d instead of %d: %w", l.root.Seq, l.rows, table, rows, format.ErrCorrupt)
	}
	return nil
}

// next checks that keys rise and that no slot is above the checkpoint.
func (l *loading) next(key string, slots ...uint64) error {
	if l.rows > 0 && key <= l.last {
		return fmt.Errorf("row %q comes after %q: %w", key, l.last, format.ErrCorrupt)
	}
	for _, slot := range slots {
		if slot > l.root.Seq {
			return fmt.Errorf("row %q is of slot %d, the checkpoint of %d: %w", key, slot, l.root.Seq, format.ErrCorrupt)
		}
	}
	l.last = key
	l.rows++
	return nil
}

func (l *loading) objects(ctx context.Context, s *format.Shard) error {
	for i := range s.Objects {
		r := &s.Objects[i]
		if err := l.next(r.Object.Name, r.Born, r.Dead); err != nil {
			return err
		}
		o := Object{Object: r.Object, Born: r.Born, Dead: r.Dead, rowUnknown: r.Unknown}
		o.New = false
		l.tx.count(&o)
		if err := l.objectRows.add(ctx, o.Name, int64(o.Born), int64(o.Dead), encodeObject(&o)); err != nil {
			return err
		}
	}
	return l.objectRows.flush(ctx)
}

func (l *loading) log(ctx context.Context, s *format.Shard) error {
	for i := range s.Log {
		r := &s.Log[i]
		if r.Slot == 0 {
			return fmt.Errorf("log row of slot 0: %w", format.ErrCorrupt)
		}
		if err := l.next(format.SlotKey(r.Slot), r.Slot); err != nil {
			return err
		}
		writer, err := l.tx.writerRow(ctx, r.Writer)
		if err != nil {
			return err
		}
		if err := l.logRows.add(ctx, int64(r.Slot), r.Size, r.Hash[:], encodeLog(r, writer)); err != nil {
			return err
		}
		l.entries += uint64(len(r.Entries))
		for k := range r.Entries {
			if err := l.entryRows.add(ctx, r.Entries[k].ID[:], int64(r.Slot)); err != nil {
				return err
			}
		}
	}
	return errors.Join(l.logRows.flush(ctx), l.entryRows.flush(ctx))
}

// checkEntries notes entries that are in the log twice: the first one counts.
func (l *loading) checkEntries(ctx context.Context) error {
	row, err := l.tx.c.row(ctx, `SELECT count(*) FROM entries`)
	if err != nil {
		return err
	}
	if n, _ := row[0].(int64); uint64(n) != l.entries {
		what := fmt.Sprintf("%d of the checkpoint's entries are in the log twice", l.entries-uint64(n))
		return l.tx.defect(ctx, Defect{Slot: l.root.Seq, What: what})
	}
	return nil
}

func (l *loading) versions(ctx context.Context, s *format.Shard) error {
	objects, err := l.names(ctx, s.Names)
	if err != nil {
		return err
	}
	for i := range s.Versions {
		r := &s.Versions[i]
		if err := l.next(format.VersionKey(r.Change.Path, r.Slot), r.Slot, r.Until); err != nil {
			return err
		}
		if err := l.version(ctx, r, objects); err != nil {
			return err
		}
	}
	return l.versionRows.flush(ctx)
}

// names finds the rows of the objects that a shard's versions name. One that the
// checkpoint does not list is set aside, as a fold would.
func (l *loading) names(ctx context.Context, names []string) ([]int64, error) {
	ids := make([]int64, len(names))
	for i, name := range names {
		k, err := l.tx.object(ctx, name)
		if err == nil && k == nil {
			d := Defect{Slot: l.root.Seq, Object: name, What: "versions of the checkpoint name it, and it is not in the checkpoint"}
			if err := l.tx.defect(ctx, d); err != nil {
				return nil, err
			}
			k, err = l.tx.addObject(ctx, &Object{Object: format.Object{Name: name}, Suspect: true})
		}
		if err != nil {
			return nil, err
		}
		ids[i] = k.id
	}
	return ids, nil
}

func (l *loading) version(ctx context.Context, r *format.VersionRow, objects []int64) error {
	ch := &r.Change
	at := place{offset: ch.Place.Offset, length: ch.Place.Length, codec: ch.Place.Codec,
		unknown: ch.Place.Unknown, rowUnknown: r.Unknown}
	var size, sha, until driver.Value
	put := ch.Op != format.OpDelete
	if put {
		size = ch.Size
		switch p := ch.Place.Object; {
		case p >= 0 && p < len(objects):
			at.object = objects[p]
			sha = shaKey(&ch.SHA256)
		case p != format.Inline:
			return fmt.Errorf("%q lies in object %d of %d: %w", ch.Path, p, len(objects), format.ErrCorrupt)
		}
		if ch.Size < 0 || at.offset < 0 || at.length < 0 {
			return fmt.Errorf("%q has a size or place below zero: %w", ch.Path, format.ErrCorrupt)
		}
	} else {
		at = place{unknown: at.unknown, rowUnknown: r.Unknown}
	}
	if r.Slot == 0 || r.Until != 0 && r.Until <= r.Slot || l.path == ch.Path && l.end > r.Slot {
		return fmt.Errorf("version %d of %q, which ends at %d, overlaps another: %w", r.Slot, ch.Path, r.Until, format.ErrCorrupt)
	}
	if r.Until != 0 {
		until = int64(r.Until)
	}
	if l.path != ch.Path {
		l.endPath()
	}
	l.path, l.living, l.size, l.end = ch.Path, put && r.Until == 0, ch.Size, r.Until
	b := l.versionRows.buffer()
	*b = encodeVersion((*b)[:0], r.Slot, r.Index, r.Entry, ch, &at)
	return l.versionRows.add(ctx, ch.Path, int64(r.Slot), size, sha, until, *b)
}

// endPath counts the path whose last version has been read.
func (l *loading) endPath() {
	if l.living {
		l.tx.st.paths++
		l.tx.st.pathBytes += min(l.size, math.MaxInt64-l.tx.st.pathBytes)
	}
	l.living = false
}
