package format

import (
	"crypto/sha256"
	"fmt"
)

// The sizes at which a ShardWriter is full: what a reader fetches for one row,
// and what it holds while it reads. One more row always fits behind them.
const (
	ShardStored = 1 << 20
	ShardRaw    = 4 << 20
	shardItems  = MaxShardItems / 2
)

// After each trialStep of new bytes the last trialPart of them are compressed by
// themselves, to learn how large the shard will be when it is stored.
const (
	trialStep = 256 << 10
	trialPart = 64 << 10
)

// ShardWriter puts the rows of one table into shards, in the order of their
// keys, without holding more than the encoded rows of one shard. A failed Add
// changed nothing. It is not safe for concurrent use.
type ShardWriter struct {
	table Table
	// Of the present shard.
	names  map[string]int
	listed []byte // the encoded names
	rows   []byte // the encoded rows
	count  uint64
	items  int
	first  string
	// The stored size of rows[:tried], by trial.
	tried, stored int
	// The key of the last row, of earlier shards too.
	lastKey  string
	lastSlot uint64
	begun    bool
}

// NewShardWriter begins the shards of a table.
func NewShardWriter(table Table) *ShardWriter {
	return &ShardWriter{table: table, names: make(map[string]int)}
}

// AddVersion adds a row of TableVersions. The place lies in the data object with
// this name, or inline where name is empty; Place.Object is not looked at.
func (w *ShardWriter) AddVersion(row *VersionRow, name string) error {
	if err := w.addVersion(row, name); err != nil {
		return refused(fmt.Sprintf("version %d of %q", row.Slot, row.Change.Path), err)
	}
	return nil
}

func (w *ShardWriter) addVersion(row *VersionRow, name string) error {
	if err := w.room(TableVersions, 1, row.Change.Path, row.Slot); err != nil {
		return err
	}
	x := *row
	at, known := Inline, true
	if name != "" {
		if at, known = w.names[name]; !known {
			if err := checkDataName(name); err != nil {
				return err
			}
			at = len(w.names)
		}
	}
	if x.Change.Place.Object = at; x.Change.Op == OpDelete && name == "" {
		x.Change.Place.Object = 0
	}
	if err := checkVersionRow(&x, &scope{names: max(len(w.names), at+1), inline: MaxRecord}); err != nil {
		return err
	}
	if !known {
		w.names[name] = at
		w.listed = appendText(w.listed, 2, name)
	}
	w.rows = appendVersionRow(w.rows, &x)
	w.added(1, row.Change.Path, row.Slot)
	return nil
}

// AddObject adds a row of TableObjects. Object.New is not looked at.
func (w *ShardWriter) AddObject(row *ObjectRow) error {
	x := *row
	x.Object.New = false
	err := w.room(TableObjects, 1, x.Object.Name, 0)
	if err == nil {
		err = checkObjectRow(&x)
	}
	if err != nil {
		return refused("row of object "+x.Object.Name, err)
	}
	w.rows = appendObjectRow(w.rows, &x)
	w.added(1, x.Object.Name, 0)
	return nil
}

// AddLog adds a row of TableLog.
func (w *ShardWriter) AddLog(row *LogRow) error {
	err := w.room(TableLog, 1+len(row.Entries), "", row.Slot)
	if err == nil {
		err = checkLogRow(row)
	}
	if err != nil {
		return refused(fmt.Sprintf("row of slot %d", row.Slot), err)
	}
	w.rows = appendLogRow(w.rows, row)
	w.added(1+len(row.Entries), "", row.Slot)
	return nil
}

// room checks that a row of a table may come next.
func (w *ShardWriter) room(table Table, items int, key string, slot uint64) error {
	switch {
	case table != w.table:
		return fmt.Errorf("it is of table %d, the shard of table %d", table, w.table)
	case w.begun && (key < w.lastKey || key == w.lastKey && slot <= w.lastSlot):
		return fmt.Errorf("it comes after %q, slot %d: rows are added in the order of their keys, none twice", w.lastKey, w.lastSlot)
	case w.items+items > MaxShardItems:
		return fmt.Errorf("the shard is full, it must be flushed first: %w", ErrLimit)
	}
	return nil
}

func (w *ShardWriter) added(items int, key string, slot uint64) {
	if w.count == 0 {
		switch w.table {
		case TableVersions:
			w.first = VersionKey(key, slot)
		case TableObjects:
			w.first = key
		case TableLog:
			w.first = SlotKey(slot)
		}
	}
	w.count++
	w.items += items
	w.lastKey, w.lastSlot, w.begun = key, slot, true
	if fresh := len(w.rows) - w.tried; fresh >= trialStep {
		p := borrow()
		out, _ := Compress(*p, w.rows[len(w.rows)-trialPart:])
		giveBack(p, out)
		w.tried, w.stored = len(w.rows), w.stored+int(int64(fresh)*int64(len(out))/trialPart)
	}
}

// Rows is the number of rows in the shard.
func (w *ShardWriter) Rows() uint64 { return w.count }

// Full says that the shard should be flushed before more is added.
func (w *ShardWriter) Full() bool {
	raw := len(w.rows) + len(w.listed)
	return raw >= ShardRaw || w.items >= shardItems || w.stored+len(w.listed)/2 >= ShardStored
}

// Flush returns the object of a shard with all rows since the last Flush, and a
// reference to it in which only the name is missing. An empty shard is an error.
func (w *ShardWriter) Flush() (object []byte, ref ShardRef, err error) {
	if w.count == 0 {
		return nil, ref, refused("checkpoint shard", errEmpty)
	}
	p := borrow()
	body := appendUint(*p, 1, uint64(w.table))
	body = append(append(body, w.listed...), w.rows...)
	object, err = sealFrame(frameShard, body, nil, 0)
	giveBack(p, body)
	if err != nil {
		return nil, ref, refused("checkpoint shard", err)
	}
	ref = ShardRef{Table: w.table, First: w.first, Size: int64(len(object)), Checksum: sha256.Sum256(object), Rows: w.count}
	clear(w.names)
	w.listed, w.rows = w.listed[:0], w.rows[:0]
	w.count, w.items, w.tried, w.stored = 0, 0, 0, 0
	return object, ref, nil
}
