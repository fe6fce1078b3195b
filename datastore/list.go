package datastore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// Every read looks at the overlay first and takes the catalog's snapshot second:
// what leaves the overlay in between is in the catalog by then.

// slotOf turns Newest and zero into 0 (the head), and refuses what is not there
// yet.
func (s *Store) slotOf(at uint64) (uint64, error) {
	if at == 0 || at == Newest {
		return 0, nil
	}
	if head := s.Head(); at > head {
		return 0, fmt.Errorf("%w: slot %d; the newest that was seen is %d (update first)", ErrNotFound, at, head)
	}
	return at, nil
}

// lookup returns what the path holds after slot at, a delete marker included.
func (s *Store) lookup(ctx context.Context, path string, at uint64) (Version, bool, error) {
	slot, err := s.slotOf(at)
	if err != nil {
		return Version{}, false, err
	}
	view, err := s.borrow(ctx)
	if err != nil {
		return Version{}, false, err
	}
	if v, ok := find(view.pending, path, or(slot, Newest)); ok {
		s.giveBack(view, false)
		return v, true, nil
	}
	// A slot that is pending is beyond the catalog's head: there, its head counts.
	cv, err := view.snap.Lookup(ctx, path, clip(slot, view.snap))
	s.giveBack(view, err != nil && !errors.Is(err, catalog.ErrNoVersion))
	if errors.Is(err, catalog.ErrNoVersion) {
		if cv.Op == format.OpDelete {
			return fromCatalog(&cv), true, nil
		}
		return Version{}, false, nil
	}
	if err != nil {
		return Version{}, false, err
	}
	return fromCatalog(&cv), true, nil
}

// clip bounds a slot by what the catalog has.
func clip(slot uint64, snap *catalog.Snapshot) uint64 {
	if slot >= snap.State().Head {
		return 0
	}
	return slot
}

func or(v, otherwise uint64) uint64 {
	if v == 0 {
		return otherwise
	}
	return v
}

// Stat returns the version of path in the state after slot at (0 or Newest: the
// newest seen). ErrNotFound if there is none, or if the slot is newer than Head;
// ErrBadPath. It asks the local catalog, not the store, and waits as List does.
func (s *Store) Stat(ctx context.Context, path string, at uint64) (*Version, error) {
	v, err := s.stat(ctx, path, at)
	return v, fail("stat", path, err)
}

func (s *Store) stat(ctx context.Context, path string, at uint64) (*Version, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	v, found, err := s.lookup(ctx, path, at)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("%w: no such path%s", ErrNotFound, inState(at))
	case v.Deleted:
		return nil, fmt.Errorf("%w: it was deleted in slot %d", ErrNotFound, v.Slot)
	}
	return &v, nil
}

func inState(at uint64) string {
	if at == 0 || at == Newest {
		return ""
	}
	return fmt.Sprintf(" in the state after slot %d", at)
}

// List yields the living paths in byte order. It holds a snapshot of the state
// while it runs, whatever is committed meanwhile, so the loop should not take
// long. What has just landed is shown from memory, but for commits with change
// lists: those wait for the local catalog. The last pair has the error, if any:
// ErrNotFound if At is newer than Head, ErrClosed, ctx's, those of the catalog.
func (s *Store) List(ctx context.Context, o *ListOptions) iter.Seq2[Version, error] {
	if o == nil {
		o = &ListOptions{}
	}
	return func(yield func(Version, error) bool) {
		for v, err := range s.list(ctx, o) {
			if err == nil && v.Deleted {
				continue
			}
			if !yield(v, fail("list", o.Prefix, err)) || err != nil {
				return
			}
		}
	}
}

// list merges the overlay with the catalog; deletions of the overlay are
// yielded as such.
func (s *Store) list(ctx context.Context, o *ListOptions) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		slot, err := s.slotOf(o.At)
		if err != nil {
			yield(Version{}, err)
			return
		}
		pending, snap, err := s.view(ctx)
		if err != nil {
			yield(Version{}, err)
			return
		}
		defer snap.Close()
		over := merged(pending, o.Prefix, o.After, or(slot, Newest))
		for cv, err := range snap.List(ctx, o.Prefix, o.After, clip(slot, snap)) {
			if err != nil {
				yield(Version{}, err)
				return
			}
			for len(over) > 0 && over[0].path < cv.Path {
				if !yield(over[0].v, nil) {
					return
				}
				over = over[1:]
			}
			v := fromCatalog(&cv)
			if len(over) > 0 && over[0].path == cv.Path {
				v, over = over[0].v, over[1:]
			}
			if !yield(v, nil) {
				return
			}
		}
		for _, c := range over {
			if !yield(c.v, nil) {
				return
			}
		}
	}
}

// History yields the versions of a path, newest first, deletions included; none
// for a path that was never there. It waits and fails as List does, and with
// ErrBadPath.
func (s *Store) History(ctx context.Context, path string) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		if err := s.history(ctx, path, yield); err != nil {
			yield(Version{}, fail("history", path, err))
		}
	}
}

func (s *Store) history(ctx context.Context, path string, yield func(Version, error) bool) error {
	if err := CheckPath(path); err != nil {
		return err
	}
	pending, snap, err := s.view(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	until := uint64(0)
	for _, l := range slices.Backward(pending) {
		if v, ok := find([]*landed{l}, path, Newest); ok {
			v.Until, until = until, v.Slot
			if !yield(v, nil) {
				return nil
			}
		}
	}
	for cv, err := range snap.History(ctx, path) {
		if err != nil {
			return err
		}
		v := fromCatalog(&cv)
		if v.Until == 0 {
			v.Until = until
		}
		if !yield(v, nil) {
			return nil
		}
	}
	return nil
}

// Log yields commits, newest first, up to Head. One record can hold several. It
// first waits, as long as ctx lasts, until the local catalog has all that landed.
// Errors: ErrClosed, ctx's, those of the catalog.
func (s *Store) Log(ctx context.Context, o *LogOptions) iter.Seq2[LogEntry, error] {
	if o == nil {
		o = &LogOptions{}
	}
	return func(yield func(LogEntry, error) bool) {
		if err := s.flush(ctx); err != nil {
			yield(LogEntry{}, fail("log", "", err))
			return
		}
		snap, err := s.snapshot(ctx)
		if err != nil {
			yield(LogEntry{}, fail("log", "", err))
			return
		}
		defer snap.Close()
		from := o.From
		if from > 0 {
			from--
		}
		for row, err := range snap.Log(ctx, from, clip(or(o.To, Newest), snap), !o.OldestFirst) {
			if err != nil {
				yield(LogEntry{}, fail("log", "", err))
				return
			}
			if !yieldRow(&row, o.All, o.OldestFirst, yield) {
				return
			}
		}
	}
}

func yieldRow(row *format.LogRow, all, oldestFirst bool, yield func(LogEntry, error) bool) bool {
	e := LogEntry{
		Slot: row.Slot, Kind: kindName(row.Kind), Fence: row.Fence, Session: row.Session,
		Writer: writerName(row.Writer), Time: time.Unix(0, row.Time), Bytes: row.Size,
	}
	if len(row.Entries) == 0 {
		return !all || yield(e, nil)
	}
	entries := slices.Clone(row.Entries)
	if !oldestFirst {
		slices.Reverse(entries)
	}
	for i := range entries {
		one := e
		one.Commit = commitOf(row.Slot, &entries[i])
		if !yield(one, nil) {
			return false
		}
	}
	return true
}

func kindName(k format.Kind) string {
	names := [...]string{"", "commit", "append", "fence", "retention", "repack", "sweep"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// Diff yields the paths below prefix that differ between the states after slots
// from and to (Newest: the newest seen; 0 as from: the empty state), in byte
// order. Paths whose content and metadata are equal in both are left out. Its
// cost is that of the changes between the two. It waits as Log does. ErrNotFound
// if one of the slots is newer than Head, and the errors of Log.
func (s *Store) Diff(ctx context.Context, from, to uint64, prefix string) iter.Seq2[Difference, error] {
	return func(yield func(Difference, error) bool) {
		if err := s.diff(ctx, from, to, prefix, yield); err != nil {
			yield(Difference{}, fail("diff", prefix, err))
		}
	}
}

func (s *Store) diff(ctx context.Context, from, to uint64, prefix string, yield func(Difference, error) bool) error {
	if err := s.flush(ctx); err != nil {
		return err
	}
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	head := snap.State().Head
	for _, slot := range []*uint64{&from, &to} {
		if *slot == Newest {
			*slot = head
		}
		if *slot > head {
			return fmt.Errorf("%w: slot %d; the newest that was seen is %d", ErrNotFound, *slot, head)
		}
	}
	low, high := min(from, to), max(from, to)
	if low == high {
		return nil
	}
	for path, err := range snap.Changed(ctx, low, high, prefix) {
		if err != nil {
			return err
		}
		d := Difference{Path: path}
		if d.From, err = at(ctx, snap, path, from); err != nil {
			return err
		}
		if d.To, err = at(ctx, snap, path, to); err != nil {
			return err
		}
		if sameVersion(d.From, d.To) {
			continue
		}
		if !yield(d, nil) {
			return nil
		}
	}
	return nil
}

// at returns what a path holds after a slot, nil for nothing.
func at(ctx context.Context, snap *catalog.Snapshot, path string, slot uint64) (*Version, error) {
	if slot == 0 {
		return nil, nil
	}
	cv, err := snap.Lookup(ctx, path, slot)
	if errors.Is(err, catalog.ErrNoVersion) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := fromCatalog(&cv)
	return &v, nil
}

func sameVersion(a, b *Version) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Slot == b.Slot || a.Size == b.Size && a.SHA256 == b.SHA256 && a.Mode == b.Mode && a.MTime.Equal(b.MTime) &&
		metaEqual(metaOf(&a.Meta), metaOf(&b.Meta))
}

// fromCatalog makes a Version of a catalog's row.
func fromCatalog(cv *catalog.Version) Version {
	return Version{
		Path: cv.Path, Slot: cv.Slot, Until: cv.Until, Commit: cv.Entry, Deleted: cv.Op == format.OpDelete,
		Size: cv.Size, SHA256: cv.SHA256, Mode: fs.FileMode(cv.Mode), MTime: fromNano(cv.MTime), Meta: fromMeta(&cv.Meta),
		place: located{Located: cv.Place},
	}
}

// versionOf makes a Version of a change in a record that is pending.
func versionOf(rec *format.Record, e *format.Entry, c *format.Change) Version {
	v := Version{
		Path: c.Path, Slot: rec.Slot, Commit: e.ID, Deleted: c.Op == format.OpDelete,
		Size: c.Size, SHA256: c.SHA256, Mode: fs.FileMode(c.Mode), MTime: fromNano(c.MTime), Meta: fromMeta(&c.Meta),
	}
	if v.Deleted {
		return v
	}
	p := catalog.Located{Offset: c.Place.Offset, Length: c.Place.Length, Codec: c.Place.Codec}
	if c.Place.Object == format.Inline {
		p.Inline, p.Slot = true, rec.Slot
		v.place.data = rec.Contents[p.Offset : p.Offset+p.Length]
		p.Offset += rec.ContentsAt
	} else {
		p.Object = e.Block.Objects[c.Place.Object]
	}
	v.place.Located = p
	return v
}

func fromNano(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

func fromMeta(m *format.Meta) Meta {
	meta := Meta{ContentType: m.ContentType, Lifetime: time.Duration(m.Lifetime), Keep: m.Keep}
	if len(m.Tags) > 0 {
		meta.Tags = make(map[string]string, len(m.Tags))
		for _, t := range m.Tags {
			meta.Tags[t.Key] = t.Value
		}
	}
	return meta
}

// writerName is a record's writer for people.
func writerName(raw []byte) string {
	id, err := parseIdentity(raw)
	if err != nil || id.Hostname == "" {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s pid %d", id.Hostname, id.PID)
	return b.String()
}
