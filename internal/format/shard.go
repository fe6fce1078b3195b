package format

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

const (
	shardFields      = 5
	versionRowFields = 5
	objectRowFields  = 3
	logRowFields     = 9
	logEntryFields   = 6
)

// The fewest bytes that a row takes.
const (
	leastVersionRow = 11
	leastObjectRow  = 70
	leastLogRow     = 6
)

// EncodeShard makes the object of one shard. A ShardWriter makes it without
// holding the rows.
func EncodeShard(s *Shard) ([]byte, error) {
	if err := checkShard(s); err != nil {
		return nil, refused("checkpoint shard", err)
	}
	p := borrow()
	body := appendShard(*p, s)
	defer func() { giveBack(p, body) }()
	out, err := sealFrame(frameShard, body, nil, 0)
	if err != nil {
		return nil, refused("checkpoint shard", err)
	}
	return out, nil
}

// DecodeShard reads the object of one shard. The strings of a shard share one
// copy of its body.
func DecodeShard(object []byte) (*Shard, error) {
	f, err := openFrame(object, frameShard)
	if err != nil {
		return nil, damaged("checkpoint shard", err)
	}
	s := &Shard{}
	m := parse(f.body, "body")
	decodeShard(&m, s)
	if m.p.err == nil {
		m.check(checkShardShape(s))
	}
	if err := m.p.err; err != nil {
		return nil, damaged("checkpoint shard", err)
	}
	return s, nil
}

// items is what counts for MaxShardItems.
func (s *Shard) items() int {
	n := len(s.Versions) + len(s.Objects) + len(s.Log)
	for i := range s.Log {
		n += len(s.Log[i].Entries)
	}
	return n
}

func checkShard(s *Shard) error {
	in := &scope{names: len(s.Names), inline: MaxRecord}
	for i := range s.Versions {
		if err := checkVersionRow(&s.Versions[i], in); err != nil {
			return fmt.Errorf("version %d, %q: %w", i, s.Versions[i].Change.Path, err)
		}
	}
	for i := range s.Objects {
		if err := checkObjectRow(&s.Objects[i]); err != nil {
			return fmt.Errorf("object %d: %w", i, err)
		}
	}
	for i := range s.Log {
		if err := checkLogRow(&s.Log[i]); err != nil {
			return fmt.Errorf("log row %d, slot %d: %w", i, s.Log[i].Slot, err)
		}
	}
	for _, name := range s.Names {
		if err := checkDataName(name); err != nil {
			return err
		}
	}
	return checkShardShape(s)
}

// checkShardShape checks what a decoder does not check row by row.
func checkShardShape(s *Shard) error {
	if err := checkTable(s.Table); err != nil {
		return err
	}
	rows := map[Table]int{TableVersions: len(s.Versions), TableObjects: len(s.Objects), TableLog: len(s.Log)}
	for t, n := range rows {
		if (n > 0) != (t == s.Table) {
			return fmt.Errorf("it has %d rows of table %d and says that it is of table %d", n, t, s.Table)
		}
	}
	if n := max(s.items(), len(s.Names)); n > MaxShardItems {
		return overLimit("rows and entries", int64(n), MaxShardItems)
	}
	if len(s.Names) > 0 && s.Table != TableVersions {
		return errors.New("only versions name data objects")
	}
	if name, ok := twice(len(s.Names), func(i int) string { return s.Names[i] }); ok {
		return fmt.Errorf("the name %s is there twice", name)
	}
	for i := 1; i < rows[s.Table]; i++ {
		if !s.rises(i) {
			return fmt.Errorf("row %d should come before the one before it", i)
		}
	}
	return checkUnknown(s.Unknown, shardFields)
}

// rises says whether row i comes after row i-1 in the order of the table.
func (s *Shard) rises(i int) bool {
	switch s.Table {
	case TableVersions:
		a, b := &s.Versions[i-1], &s.Versions[i]
		return a.Change.Path < b.Change.Path || a.Change.Path == b.Change.Path && a.Slot < b.Slot
	case TableObjects:
		return s.Objects[i-1].Object.Name < s.Objects[i].Object.Name
	}
	return s.Log[i-1].Slot < s.Log[i].Slot
}

var errNoSlot = errors.New("a row without a slot")

func checkVersionRow(r *VersionRow, in *scope) error {
	switch {
	case r.Slot == 0:
		return errNoSlot
	case r.Until != 0 && r.Until <= r.Slot:
		return fmt.Errorf("a version of slot %d cannot end at slot %d", r.Slot, r.Until)
	}
	if err := checkChange(&r.Change, in); err != nil {
		return err
	}
	return checkUnknown(r.Unknown, versionRowFields)
}

func checkObjectRow(r *ObjectRow) error {
	switch {
	case r.Born == 0:
		return errNoSlot
	case r.Dead != 0 && r.Dead < r.Born:
		return fmt.Errorf("%s cannot be dead in slot %d before it was born in slot %d", r.Object.Name, r.Dead, r.Born)
	case r.Object.New:
		return fmt.Errorf("%s is marked new, which nothing is in a checkpoint", r.Object.Name)
	}
	if err := checkObject(&r.Object); err != nil {
		return err
	}
	return checkUnknown(r.Unknown, objectRowFields)
}

func checkLogRow(r *LogRow) error {
	if err := checkKind(r.Kind); err != nil {
		return err
	}
	switch {
	case r.Slot == 0:
		return errNoSlot
	case r.Size < 0:
		return errNegative
	case len(r.Entries) > MaxEntries:
		return overLimit("entries", int64(len(r.Entries)), MaxEntries)
	}
	if err := checkWriter(r.Writer); err != nil {
		return err
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		err := checkMessage(e.Message)
		if err == nil && e.ID == uuid.Nil {
			err = errors.New("it has no id")
		}
		if err == nil {
			err = checkUnknown(e.Unknown, logEntryFields)
		}
		if err != nil {
			return fmt.Errorf("entry %d (%v): %w", i, e.ID, err)
		}
	}
	return checkUnknown(r.Unknown, logRowFields)
}

func appendShard(b []byte, s *Shard) []byte {
	b = appendUint(b, 1, uint64(s.Table))
	for _, name := range s.Names {
		b = appendText(b, 2, name)
	}
	for i := range s.Versions {
		b = appendVersionRow(b, &s.Versions[i])
	}
	for i := range s.Objects {
		b = appendObjectRow(b, &s.Objects[i])
	}
	for i := range s.Log {
		b = appendLogRow(b, &s.Log[i])
	}
	return append(b, s.Unknown...)
}

func decodeShard(m *message, s *Shard) {
	n := m.counts()
	size := m.end - m.pos
	if got := max(n[2], n[3]+n[4]+n[5]); got > MaxShardItems {
		m.check(overLimit("rows", int64(got), MaxShardItems))
		return
	}
	if n[2] > 0 {
		s.Names = make([]string, 0, room(n[2], size, leastDead))
	}
	if n[3] > 0 {
		s.Versions = make([]VersionRow, 0, room(n[3], size, leastVersionRow))
	}
	if n[4] > 0 {
		s.Objects = make([]ObjectRow, 0, room(n[4], size, leastObjectRow))
	}
	if n[5] > 0 {
		s.Log = make([]LogRow, 0, room(n[5], size, leastLogRow))
	}
	entries := MaxShardItems
	for m.next() {
		switch m.num {
		case 1:
			s.Table = Table(m.enum("table"))
		case 2:
			s.Names = append(s.Names, m.texts())
			m.check(checkDataName(s.Names[len(s.Names)-1]))
		case 3:
			s.Versions = append(s.Versions, VersionRow{})
			decodeVersionRow(m.sub("version"), &s.Versions[len(s.Versions)-1], len(s.Names))
		case 4:
			s.Objects = append(s.Objects, ObjectRow{})
			decodeObjectRow(m.sub("object row"), &s.Objects[len(s.Objects)-1])
		case 5:
			s.Log = append(s.Log, LogRow{})
			decodeLogRow(m.sub("log row"), &s.Log[len(s.Log)-1], &entries)
		default:
			s.Unknown = m.unknown(s.Unknown)
		}
	}
}

func appendVersionRow(b []byte, r *VersionRow) []byte {
	b, at := beginMessage(b, 3)
	b = appendUint(b, 1, r.Slot)
	b = appendUint(b, 2, r.Index)
	b = appendUUID(b, 3, &r.Entry)
	b = appendChange(b, 4, &r.Change, true)
	b = appendUint(b, 5, r.Until)
	b = append(b, r.Unknown...)
	return endMessage(b, at)
}

func decodeVersionRow(m message, r *VersionRow, names int) {
	in := scope{names: names, inline: MaxRecord}
	for m.next() {
		switch m.num {
		case 1:
			r.Slot = m.uint()
		case 2:
			r.Index = m.uint()
		case 3:
			r.Entry = m.uuid()
		case 4:
			decodeChange(m.subOnce("change"), &r.Change, &in)
		case 5:
			r.Until = m.uint()
		default:
			r.Unknown = m.unknown(r.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkVersionRow(r, &in))
	}
}

func appendObjectRow(b []byte, r *ObjectRow) []byte {
	b, at := beginMessage(b, 4)
	b = appendObject(b, 1, &r.Object)
	b = appendUint(b, 2, r.Born)
	b = appendUint(b, 3, r.Dead)
	b = append(b, r.Unknown...)
	return endMessage(b, at)
}

func decodeObjectRow(m message, r *ObjectRow) {
	for m.next() {
		switch m.num {
		case 1:
			decodeObject(m.subOnce("object"), &r.Object)
		case 2:
			r.Born = m.uint()
		case 3:
			r.Dead = m.uint()
		default:
			r.Unknown = m.unknown(r.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkObjectRow(r))
	}
}

func appendLogRow(b []byte, r *LogRow) []byte {
	b, at := beginMessage(b, 5)
	b = appendUint(b, 1, r.Slot)
	b = appendUint(b, 2, uint64(r.Kind))
	b = appendUint(b, 3, r.Fence)
	b = appendUUID(b, 4, &r.Session)
	b = appendBytes(b, 5, r.Writer)
	b = appendTime(b, 6, r.Time)
	b = appendSize(b, 7, r.Size)
	b = appendHash(b, 8, &r.Hash)
	for i := range r.Entries {
		e := &r.Entries[i]
		var in int
		b, in = beginMessage(b, 9)
		b = appendUUID(b, 1, &e.ID)
		b = appendHash(b, 2, &e.Digest)
		b = appendText(b, 3, e.Message)
		b = appendTime(b, 4, e.Time)
		b = appendUint(b, 5, e.Base)
		b = appendUint(b, 6, e.Changes)
		b = append(b, e.Unknown...)
		b = endMessage(b, in)
	}
	b = append(b, r.Unknown...)
	return endMessage(b, at)
}

func decodeLogRow(m message, r *LogRow, entries *int) {
	if n := m.counts()[9]; n > 0 {
		if *entries -= n; *entries < 0 {
			m.check(overLimit("entries of a shard", int64(MaxShardItems-*entries), MaxShardItems))
			return
		}
		r.Entries = make([]LogEntry, 0, n)
	}
	for m.next() {
		switch m.num {
		case 1:
			r.Slot = m.uint()
		case 2:
			r.Kind = Kind(m.enum("kind of record"))
		case 3:
			r.Fence = m.uint()
		case 4:
			r.Session = m.uuid()
		case 5:
			r.Writer = m.bytes()
		case 6:
			r.Time = m.time()
		case 7:
			r.Size = m.size()
		case 8:
			r.Hash = m.hash()
		case 9:
			r.Entries = append(r.Entries, LogEntry{})
			decodeLogEntry(m.sub("entry"), &r.Entries[len(r.Entries)-1])
		default:
			r.Unknown = m.unknown(r.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkLogRow(r))
	}
}

func decodeLogEntry(m message, e *LogEntry) {
	for m.next() {
		switch m.num {
		case 1:
			e.ID = m.uuid()
		case 2:
			e.Digest = m.hash()
		case 3:
			e.Message = m.text()
		case 4:
			e.Time = m.time()
		case 5:
			e.Base = m.uint()
		case 6:
			e.Changes = m.uint()
		default:
			e.Unknown = m.unknown(e.Unknown)
		}
	}
}
