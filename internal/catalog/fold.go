package catalog

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// Fold applies one record. hash is the sha256 of its object, size the stored
// bytes of the object and of its lists. rec.ContentsAt must be set where a
// content is inline. block reads one change list; the lists are asked for one at
// a time, and none is kept.
//
// A record at or below the head is skipped, unless the catalog holds another at
// that slot: ErrFork. ErrGap and ErrChain say what they say. A Fold that fails
// leaves the transaction as it was before it, unless it was the context that
// ended: then all of the Update may be lost.
func (tx *Tx) Fold(ctx context.Context, rec *format.Record, hash format.Hash, size int64,
	block func(format.ListRef) (*format.Block, error)) error {
	if err := tx.usable(); err != nil {
		return err
	}
	head := tx.st.Head
	switch {
	case rec.Slot == 0 || rec.Slot > maxSlot:
		return fmt.Errorf("record with slot %d: %w", rec.Slot, format.ErrCorrupt)
	case rec.Slot <= head:
		return tx.skip(ctx, rec.Slot, hash)
	case rec.Slot > head+1:
		return fmt.Errorf("record %d after head %d: %w", rec.Slot, head, ErrGap)
	case rec.Prev != tx.st.Hash:
		return fmt.Errorf("record %d follows a record with hash %x, the head %d has hash %x: %w",
			rec.Slot, rec.Prev[:8], head, tx.st.Hash[:8], ErrChain)
	}
	return tx.atomic(ctx, func() error {
		f := folding{tx: tx, rec: rec, slot: rec.Slot, sweep: tx.st.Sweep, block: block}
		f.puts.into(tx.c, "INSERT OR FAIL INTO"+versionInsert, 5)
		return f.fold(ctx, hash, size)
	})
}

const maxSlot = 1<<63 - 1 // what SQLite can count

// skip looks at a record that was folded before.
func (tx *Tx) skip(ctx context.Context, slot uint64, hash format.Hash) error {
	row, err := tx.c.row(ctx, `SELECT hash FROM log WHERE slot = ?`, int64(slot))
	if err != nil || row == nil {
		return err // nil: it is older than the checkpoint, nothing to compare with
	}
	if have, _ := row[0].([]byte); string(have) != string(hash[:]) {
		return fmt.Errorf("record %d has hash %x, the local catalog has folded one with hash %x: %w",
			slot, hash[:8], have[:min(8, len(have))], ErrFork)
	}
	return nil
}

// folding is one record being applied.
type folding struct {
	tx    *Tx
	rec   *format.Record
	slot  uint64
	sweep uint64 // the sweep mark before this record
	block func(format.ListRef) (*format.Block, error)

	index  uint64 // of the next change
	last   string // the path before, as long as paths rise
	twice  bool   // they do not: a path may be there twice
	puts   bulk
	fresh  uint64  // contents for contents_new
	places []known // of the block at hand, by index of its object table
}

func (f *folding) fold(ctx context.Context, hash format.Hash, size int64) error {
	rec, st := f.rec, &f.tx.st
	if err := f.checkWriter(ctx); err != nil {
		return err
	}
	row := format.LogRow{
		Slot: rec.Slot, Kind: rec.Kind, Fence: rec.Fence, Session: rec.Session, Writer: rec.Writer,
		Time: rec.Time, Size: size, Hash: hash, Entries: make([]format.LogEntry, len(rec.Entries)),
		// Not rec.Unknown: its fields are those of a record, and mean something
		// else in a log row.
	}
	for i := range rec.Entries {
		e := &rec.Entries[i]
		before := f.index
		if err := f.blocks(ctx, e.ID, &e.Block, e.Lists); err != nil {
			return err
		}
		row.Entries[i] = format.LogEntry{ID: e.ID, Digest: e.Digest, Message: e.Message, Time: e.Time,
			Base: e.Base, Changes: f.index - before}
	}
	if err := f.blocks(ctx, uuid.Nil, &rec.Block, rec.Lists); err != nil {
		return err
	}
	if err := f.finishChanges(ctx); err != nil {
		return err
	}
	if err := f.tx.addLog(ctx, &row); err != nil {
		return err
	}
	st.Head, st.Hash = rec.Slot, hash
	st.LogSlots++
	st.LogBytes += size
	if rec.Fence >= st.Fence {
		st.Fence = rec.Fence
		if rec.Kind == format.KindFence {
			st.Session = rec.Session
		}
	}
	if rec.Kind == format.KindSweep {
		st.Sweep = max(st.Sweep, rec.Sweep)
	}
	return nil
}

// checkWriter notes a record of somebody who was fenced: after a barrier only
// its session writes, appends apart, which carry the highest fence they saw.
func (f *folding) checkWriter(ctx context.Context) error {
	rec, st := f.rec, &f.tx.st
	if rec.Kind == format.KindAppend {
		return nil
	}
	what := ""
	switch {
	case rec.Fence < st.Fence:
		what = fmt.Sprintf("written under fence %d after fence %d", rec.Fence, st.Fence)
	case rec.Kind != format.KindFence && st.Session != uuid.Nil && rec.Session != st.Session:
		what = fmt.Sprintf("written by session %s after the barrier of session %s", rec.Session, st.Session)
	default:
		return nil
	}
	return f.tx.defect(ctx, Defect{Slot: f.slot, What: what})
}

// blocks applies a block and then the lists with more of the same.
func (f *folding) blocks(ctx context.Context, entry uuid.UUID, b *format.Block, lists []format.ListRef) error {
	if err := f.apply(ctx, entry, b); err != nil {
		return err
	}
	for i := range lists {
		l := &lists[i]
		o := l.Object
		o.New = true
		if _, err := f.resolve(ctx, &o); err != nil {
			return err
		}
		b, err := f.block(*l)
		if err != nil {
			return fmt.Errorf("record %d: change list %s: %w", f.slot, l.Object.Name, err)
		}
		n := uint64(len(b.Changes) + len(b.Moves) + len(b.Drops) + len(b.Dead))
		if n != l.Items {
			what := fmt.Sprintf("change list of %d items was announced with %d", n, l.Items)
			if err := f.tx.defect(ctx, Defect{Slot: f.slot, Object: l.Object.Name, What: what}); err != nil {
				return err
			}
		}
		if err := f.apply(ctx, entry, b); err != nil {
			return err
		}
	}
	return nil
}

// apply applies one block.
func (f *folding) apply(ctx context.Context, entry uuid.UUID, b *format.Block) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	f.places = f.places[:0]
	for i := range b.Objects {
		k, err := f.resolve(ctx, &b.Objects[i])
		if err != nil {
			return err
		}
		f.places = append(f.places, *k)
	}
	for i := range b.Changes {
		if err := f.change(ctx, entry, &b.Changes[i]); err != nil {
			return err
		}
	}
	if len(b.Moves)+len(b.Drops) > 0 { // they may speak of what this record just put
		if err := f.puts.flush(ctx); err != nil {
			return err
		}
	}
	for i := range b.Moves {
		if err := f.move(ctx, &b.Moves[i]); err != nil {
			return err
		}
	}
	for i := range b.Drops {
		if err := f.drop(ctx, &b.Drops[i]); err != nil {
			return err
		}
	}
	for _, name := range b.Dead {
		if err := f.dead(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// locate turns a format.Place into one of this catalog.
func (f *folding) locate(path string, size int64, p *format.Place) (place, error) {
	at := place{offset: p.Offset, length: p.Length, codec: p.Codec, unknown: p.Unknown}
	switch {
	case p.Object >= 0 && p.Object < len(f.places):
		at.object = f.places[p.Object].id
	case p.Object != format.Inline:
		return at, fmt.Errorf("record %d: %q lies in object %d of %d: %w", f.slot, path, p.Object, len(f.places), format.ErrCorrupt)
	case p.Length > 0 && f.rec.ContentsAt <= 0:
		return at, fmt.Errorf("record %d: %q is inline and the record does not say where its contents begin", f.slot, path)
	case p.Length > 0:
		at.offset += f.rec.ContentsAt
	}
	if p.Offset < 0 || p.Length < 0 || size < 0 || at.offset < 0 {
		return at, fmt.Errorf("record %d: %q has a size or place below zero: %w", f.slot, path, format.ErrCorrupt)
	}
	return at, nil
}

// OR FAIL spares SQLite the copies of pages with which it could undo a part of a
// statement: Fold undoes the whole.
const versionInsert = ` versions (path, slot, size, sha, data) VALUES `

func (f *folding) change(ctx context.Context, entry uuid.UUID, ch *format.Change) error {
	var at place
	var size, sha driver.Value // NULL for a delete, and where there is nothing to share
	if ch.Op != format.OpDelete {
		var err error
		if at, err = f.locate(ch.Path, ch.Size, &ch.Place); err != nil {
			return err
		}
		size = ch.Size
		if at.object != 0 {
			sha = shaKey(&ch.SHA256)
			f.fresh++
		}
	}
	if !f.twice && ch.Path <= f.last {
		// Of two changes to a path the later one holds.
		if err := f.puts.flush(ctx); err != nil {
			return err
		}
		f.twice = true
		f.puts.into(f.tx.c, "INSERT OR REPLACE INTO"+versionInsert, 5)
	}
	f.last = ch.Path
	b := f.puts.buffer()
	*b = encodeVersion((*b)[:0], f.slot, f.index, entry, ch, &at)
	f.index++
	return f.puts.add(ctx, ch.Path, int64(f.slot), size, sha, *b)
}

// finishChanges writes what is left and does for all changes at once what would
// cost a statement for each: the totals, and the index of contents.
func (f *folding) finishChanges(ctx context.Context) error {
	if f.index == 0 {
		return nil
	}
	if err := f.puts.flush(ctx); err != nil {
		return err
	}
	c, st := f.tx.c, &f.tx.st
	row, err := c.row(ctx, `
		SELECT count(*), count(n.size), total(n.size), count(o.size), total(o.size)
		FROM versions n INDEXED BY versions_slot
		LEFT JOIN versions o ON o.path = n.path AND o.until IS NULL
			AND o.slot = (SELECT max(q.slot) FROM versions q WHERE q.path = n.path AND q.slot < ?1)
		WHERE n.slot = ?1`, int64(f.slot))
	if err != nil {
		return err
	}
	st.versions += uint64(row[0].(int64))
	st.paths += uint64(row[1].(int64) - row[3].(int64))
	st.pathBytes += clamp(row[2].(float64) - row[4].(float64))
	if f.fresh == 0 {
		return nil
	}
	into := "contents_new"
	if f.fresh > freshMax {
		into = "contents"
	} else {
		st.fresh += f.fresh
	}
	return c.exec(ctx, `INSERT OR IGNORE INTO `+into+` (sha, id)
		SELECT sha, id FROM versions INDEXED BY versions_slot WHERE slot = ? AND sha IS NOT NULL ORDER BY sha, id`, int64(f.slot))
}

// bulk inserts rows, several with each statement.
type bulk struct {
	c         *conn
	one, many string // statements for one row and for bulkRows
	width     int

	n    int
	args []driver.Value
	bufs [bulkRows][]byte
}

const bulkRows = 8

// into sets the statement: head and what follows VALUES.
func (b *bulk) into(c *conn, head string, width int) {
	row := "(?" + strings.Repeat(",?", width-1) + ")"
	b.c, b.width = c, width
	b.one = head + row
	b.many = b.one + strings.Repeat(","+row, bulkRows-1)
}

// buffer lends memory for a blob of the next row.
func (b *bulk) buffer() *[]byte { return &b.bufs[b.n] }

func (b *bulk) add(ctx context.Context, row ...driver.Value) error {
	b.args = append(b.args, row...)
	b.n++
	if b.n < bulkRows {
		return nil
	}
	err := b.c.exec(ctx, b.many, b.args...)
	b.n, b.args = 0, b.args[:0]
	return err
}

// flush writes the rows that are left.
func (b *bulk) flush(ctx context.Context) error {
	args := b.args
	b.n, b.args = 0, b.args[:0]
	for ; len(args) > 0; args = args[b.width:] {
		if err := b.c.exec(ctx, b.one, args[:b.width]...); err != nil {
			return err
		}
	}
	return nil
}
