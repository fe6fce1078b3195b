package catalog

import (
	"fmt"
	"sort"
	"strings"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// model is what the log says, kept as plainly as possible: every version that
// ever was, and which of them retention took away.
type model struct {
	head     uint64
	versions map[string][]*modelVersion // by slot
	objects  map[string]*modelObject
	entries  map[uuid.UUID]uint64
	log      []format.LogRow
	sweep    uint64
	fence    uint64
	session  uuid.UUID
	touched  map[string]uint64 // keys of version rows that changed, by slot
}

type modelVersion struct {
	slot, index uint64
	entry       uuid.UUID
	change      format.Change // Place.Object is not used
	object      string        // "" = inline
	dropped     bool
}

type modelObject struct {
	object     format.Object
	born, dead uint64
}

func newModel() *model {
	return &model{versions: make(map[string][]*modelVersion), objects: make(map[string]*modelObject),
		entries: make(map[uuid.UUID]uint64), touched: make(map[string]uint64)}
}

func (m *model) fold(l link, lists map[string]*format.Block) {
	r := l.rec
	m.head = r.Slot
	index := uint64(0)
	row := format.LogRow{Slot: r.Slot, Kind: r.Kind, Fence: r.Fence, Session: r.Session, Writer: r.Writer, Time: r.Time, Size: l.size, Hash: l.hash}
	all := func(b *format.Block, refs []format.ListRef) []*format.Block {
		blocks := []*format.Block{b}
		for i := range refs {
			o := refs[i].Object
			m.objects[o.Name] = &modelObject{object: o, born: r.Slot}
			blocks = append(blocks, lists[o.Name])
		}
		return blocks
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		n := uint64(0)
		for _, b := range all(&e.Block, e.Lists) {
			n += uint64(len(b.Changes))
			index = m.apply(r, e.ID, b, index)
		}
		m.entries[e.ID] = r.Slot
		row.Entries = append(row.Entries, format.LogEntry{ID: e.ID, Digest: e.Digest, Message: e.Message, Time: e.Time, Base: e.Base, Changes: n})
	}
	for _, b := range all(&r.Block, r.Lists) {
		index = m.apply(r, uuid.Nil, b, index)
	}
	m.log = append(m.log, row)
	m.fence = max(m.fence, r.Fence)
	if r.Kind == format.KindFence {
		m.session = r.Session
	}
	if r.Kind == format.KindSweep {
		m.sweep = max(m.sweep, r.Sweep)
	}
}

func (m *model) apply(r *format.Record, entry uuid.UUID, b *format.Block, index uint64) uint64 {
	for _, o := range b.Objects {
		if m.objects[o.Name] == nil {
			o.New = false
			m.objects[o.Name] = &modelObject{object: o, born: r.Slot}
		}
	}
	for _, ch := range b.Changes {
		v := &modelVersion{slot: r.Slot, index: index, entry: entry, change: ch}
		index++
		if ch.Op == format.OpPut {
			if ch.Place.Object >= 0 {
				v.object = b.Objects[ch.Place.Object].Name
			} else if ch.Place.Length > 0 {
				v.change.Place.Offset += r.ContentsAt
			}
		}
		list := m.versions[ch.Path]
		if n := len(list); n > 0 && list[n-1].slot == r.Slot {
			list[n-1] = v
		} else {
			list = append(list, v)
		}
		m.versions[ch.Path] = list
	}
	for _, mv := range b.Moves {
		v := m.find(mv.Path, mv.Slot)
		v.object = b.Objects[mv.Place.Object].Name
		v.change.Place = mv.Place
		m.touched[format.VersionKey(mv.Path, mv.Slot)] = r.Slot
	}
	for _, d := range b.Drops {
		m.find(d.Path, d.Slot).dropped = true
		m.touched[format.VersionKey(d.Path, d.Slot)] = r.Slot
		// The version that ended there now has to say so itself.
		for _, v := range m.versions[d.Path] {
			if !v.dropped && m.until(d.Path, v) == d.Slot {
				m.touched[format.VersionKey(d.Path, v.slot)] = r.Slot
			}
		}
	}
	for _, name := range b.Dead {
		if o := m.objects[name]; o != nil && o.dead == 0 {
			o.dead = r.Slot
		}
	}
	return index
}

func (m *model) find(path string, slot uint64) *modelVersion {
	for _, v := range m.versions[path] {
		if v.slot == slot {
			return v
		}
	}
	panic(fmt.Sprintf("no version %d of %q", slot, path))
}

// at is what the path held after a slot, or nil.
func (m *model) at(path string, slot uint64) *modelVersion {
	var last *modelVersion
	for _, v := range m.versions[path] {
		if v.slot <= slot {
			last = v
		}
	}
	if last == nil || last.dropped || last.change.Op == format.OpDelete {
		return nil
	}
	return last
}

// until is the slot of the change after a version, 0 = none.
func (m *model) until(path string, v *modelVersion) uint64 {
	for _, w := range m.versions[path] {
		if w.slot > v.slot {
			return w.slot
		}
	}
	return 0
}

func (m *model) paths() []string {
	var all []string
	for path := range m.versions {
		all = append(all, path)
	}
	sort.Strings(all)
	return all
}

// version is what the catalog should return for a model's version.
func (m *model) version(path string, v *modelVersion) Version {
	ch := v.change
	w := Version{Path: path, Slot: v.slot, Index: v.index, Entry: v.entry, Op: ch.Op, Until: m.until(path, v)}
	if ch.Op == format.OpDelete {
		return w
	}
	w.Size, w.SHA256, w.Mode, w.MTime, w.Meta = ch.Size, ch.SHA256, ch.Mode, ch.MTime, ch.Meta
	w.Place = Located{Offset: ch.Place.Offset, Length: ch.Place.Length, Codec: ch.Place.Codec}
	if v.object == "" {
		w.Place.Inline, w.Place.Slot = true, v.slot
		return w
	}
	o := m.objects[v.object]
	w.Place.Object, w.Place.Dead = o.object, o.dead
	return w
}

func (m *model) list(prefix, after string, slot uint64) []Version {
	var all []Version
	for _, path := range m.paths() {
		if v := m.at(path, slot); v != nil && strings.HasPrefix(path, prefix) && path > after {
			all = append(all, m.version(path, v))
		}
	}
	return all
}

func (m *model) history(path string) []Version {
	var all []Version
	for i := len(m.versions[path]) - 1; i >= 0; i-- {
		if v := m.versions[path][i]; !v.dropped {
			all = append(all, m.version(path, v))
		}
	}
	return all
}

func (m *model) counts() (n Counts) {
	for _, path := range m.paths() {
		for _, v := range m.versions[path] {
			if !v.dropped {
				n.Versions++
			}
		}
		if v := m.at(path, m.head); v != nil {
			n.Paths++
			n.PathBytes += v.change.Size
		}
	}
	for _, o := range m.objects {
		n.ObjectRows++
		if o.dead == 0 {
			n.Objects++
			n.Bytes += o.object.Size
		}
	}
	n.Slots = m.head
	return n
}

// hasContent says whether a live object holds a content.
func (m *model) hasContent(sha format.Hash, size int64) bool {
	for _, list := range m.versions {
		for _, v := range list {
			if !v.dropped && v.object != "" && v.change.SHA256 == sha && v.change.Size == size && m.objects[v.object].dead == 0 {
				return true
			}
		}
	}
	return false
}
