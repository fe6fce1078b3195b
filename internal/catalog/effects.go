package catalog

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/swampd/swampd/internal/format"
)

// resolve finds or makes the row of an object that a block names (I5): one that
// the record made, with a name that no sweep has covered, or one that was live
// before it.
func (f *folding) resolve(ctx context.Context, o *format.Object) (*known, error) {
	k, err := f.tx.object(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	what, suspect := "", false
	head, ok := format.DataHead(o.Name)
	switch {
	case !ok:
		what, suspect = "this is not a name of a data object", true
	case k == nil && !o.New:
		what, suspect = "it is referenced and was never live", true
	case k == nil && head <= f.sweep && f.sweep > 0:
		what, suspect = fmt.Sprintf("it is new, and the sweep of names up to head %d has covered it", f.sweep), true
	case k == nil:
	case k.Dead != 0:
		what = fmt.Sprintf("it is referenced and was marked dead by record %d", k.Dead)
	case k.Size != o.Size || k.Checksum != o.Checksum || k.Kind != o.Kind || k.FooterSize != o.FooterSize:
		what = "it is described differently from the record that made it"
	case k.Suspect && k.Born != f.slot:
		what = "it is referenced and was never live"
	case o.New && k.Born != f.slot:
		what = fmt.Sprintf("it is new, and record %d has made it already", k.Born)
	}
	if what != "" {
		if err := f.tx.defect(ctx, Defect{Slot: f.slot, Object: o.Name, What: what}); err != nil {
			return nil, err
		}
	}
	if k != nil {
		return k, nil
	}
	row := &Object{Object: *o, Born: f.slot, Suspect: suspect}
	if k, err = f.tx.addObject(ctx, row); err != nil {
		return nil, err
	}
	return k, f.dirtyObject(ctx, o.Name)
}

func (f *folding) dirtyObject(ctx context.Context, name string) error {
	return f.tx.c.exec(ctx, `INSERT OR REPLACE INTO dirty_objects (name, at) VALUES (?, ?)`, name, int64(f.slot))
}

func (f *folding) dirtyVersion(ctx context.Context, path string, slot uint64) error {
	return f.tx.c.exec(ctx, `INSERT OR REPLACE INTO dirty_versions (path, slot, at) VALUES (?, ?, ?)`,
		path, int64(slot), int64(f.slot))
}

// version finds the row of one version, or returns nil.
func (f *folding) version(ctx context.Context, ref *format.VersionRef) (*record, error) {
	if ref.Slot > maxSlot {
		return nil, nil
	}
	row, err := f.tx.c.row(ctx, `SELECT `+versionColumns+` FROM versions v WHERE v.path = ? AND v.slot = ?`,
		ref.Path, int64(ref.Slot))
	if err != nil || row == nil {
		return nil, err
	}
	r := new(record)
	if err := r.decode(row); err != nil {
		return nil, fmt.Errorf("%s: %w", f.tx.c.path, err)
	}
	return r, nil
}

// move gives a version another place, in a data object.
func (f *folding) move(ctx context.Context, m *format.Move) error {
	r, err := f.version(ctx, &m.VersionRef)
	if err != nil {
		return err
	}
	what := ""
	switch {
	case r == nil:
		what = "it is moved and does not exist"
	case r.Op == format.OpDelete:
		what = "it is moved and is a delete marker"
	case m.Place.Object == format.Inline:
		what = "it is moved into a record"
	}
	if what != "" {
		what = fmt.Sprintf("version %d: %s", m.Slot, what)
		return f.tx.defect(ctx, Defect{Slot: f.slot, Path: m.Path, What: what})
	}
	at, err := f.locate(m.Path, r.Size, &m.Place)
	if err != nil {
		return err
	}
	at.rowUnknown = r.place.rowUnknown
	ch := r.change()
	sha := shaKey(&r.SHA256)
	blob := encodeVersion(nil, r.Slot, r.Index, r.Entry, &ch, &at)
	if err := f.tx.c.exec(ctx, `UPDATE versions SET sha = ?, data = ? WHERE id = ?`, sha, blob, r.id); err != nil {
		return err
	}
	if r.place.object == 0 && r.Slot != f.slot { // those of this record come at its end
		err := f.tx.c.exec(ctx, `INSERT OR IGNORE INTO contents_new (sha, id) VALUES (?, ?)`, sha, r.id)
		if err != nil {
			return err
		}
		f.tx.st.fresh++
	}
	return f.dirtyVersion(ctx, r.Path, r.Slot)
}

// change is what made the version.
func (r *record) change() format.Change {
	return format.Change{
		Op: r.Op, Path: r.Path, Size: r.Size, SHA256: r.SHA256, Mode: r.Mode, MTime: r.MTime,
		Meta: r.Meta, Unknown: r.unknown,
	}
}

// drop removes a version. The current one stays, unless it is a delete marker:
// a record that drops it is wrong, and what the path holds must not be lost.
func (f *folding) drop(ctx context.Context, ref *format.VersionRef) error {
	c, st := f.tx.c, &f.tx.st
	r, err := f.version(ctx, ref)
	if err != nil {
		return err
	}
	next := int64(0)
	if r != nil {
		row, err := c.row(ctx, `SELECT slot FROM versions WHERE path = ? AND slot > ? ORDER BY slot LIMIT 1`, r.Path, int64(r.Slot))
		if err != nil {
			return err
		}
		if row != nil {
			next = row[0].(int64)
		}
	}
	living := r != nil && r.Op != format.OpDelete && r.until == 0
	what := ""
	switch {
	case r == nil:
		what = "it is dropped and does not exist"
	case r.Slot >= f.slot:
		what = "it is dropped by the record that made it"
	case living && next == 0:
		what = "it is dropped and is the current one; it stays"
	}
	if what != "" {
		what = fmt.Sprintf("version %d: %s", ref.Slot, what)
		return f.tx.defect(ctx, Defect{Slot: f.slot, Path: ref.Path, What: what})
	}
	if living && uint64(next) == f.slot {
		// It was alive until this record, and finishChanges will not find it.
		st.paths--
		st.pathBytes -= r.Size
	}
	if err := f.removeVersion(ctx, r); err != nil {
		return err
	}
	st.versions--
	// The version before it ended here, which its neighbour no longer shows.
	row, err := c.row(ctx, `SELECT id, slot, until FROM versions WHERE path = ? AND slot < ? ORDER BY slot DESC LIMIT 1`,
		r.Path, int64(r.Slot))
	if err != nil || row == nil || row[2] != nil {
		return err
	}
	id, slot := row[0], row[1].(int64)
	if err := c.exec(ctx, `UPDATE versions SET until = ? WHERE id = ?`, int64(r.Slot), id); err != nil {
		return err
	}
	return f.dirtyVersion(ctx, r.Path, uint64(slot))
}

func (f *folding) removeVersion(ctx context.Context, r *record) error {
	c := f.tx.c
	if err := c.exec(ctx, `DELETE FROM versions WHERE id = ?`, r.id); err != nil {
		return err
	}
	if r.place.object != 0 {
		sha := driver.Value(shaKey(&r.SHA256))
		for _, table := range []string{"contents", "contents_new"} {
			if err := c.exec(ctx, `DELETE FROM `+table+` WHERE sha = ? AND id = ?`, sha, r.id); err != nil {
				return err
			}
		}
	}
	return f.dirtyVersion(ctx, r.Path, r.Slot)
}

// dead marks an object dead, for ever. A name that is not known is an orphan:
// it gets a row, so that those who delete what is dead find it.
func (f *folding) dead(ctx context.Context, name string) error {
	k, err := f.tx.object(ctx, name)
	if err != nil {
		return err
	}
	if k == nil {
		_, err := f.tx.addObject(ctx, &Object{Object: format.Object{Name: name}, Dead: f.slot})
		return err
	}
	if k.Dead != 0 {
		return nil
	}
	if err := f.tx.c.exec(ctx, `UPDATE objects SET dead = ? WHERE id = ?`, int64(f.slot), k.id); err != nil {
		return err
	}
	k.Dead = f.slot
	f.tx.st.live--
	f.tx.st.bytes -= k.Size
	return f.dirtyObject(ctx, name)
}
