package catalog

import (
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"unsafe"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// Blobs of rows begin with a checksum over themselves and over the columns
// beside them: SQLite does not notice a bit that flips on the disk, and a wrong
// size or hash would be taken for the truth.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal fills in the checksum in the first four bytes; sum is that of the
// columns.
func seal(b []byte, sum uint32) []byte {
	binary.LittleEndian.PutUint32(b, crc32.Update(sum, castagnoli, b[4:]))
	return b
}

func sealed(b []byte, sum uint32) bool {
	return len(b) >= 4 && binary.LittleEndian.Uint32(b) == crc32.Update(sum, castagnoli, b[4:])
}

// sumOf reads the text in place: a copy of each path would be most of its cost.
func sumOf(text string, numbers ...int64) uint32 {
	var b [16]byte
	for i, n := range numbers {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
	sum := crc32.Update(0, castagnoli, unsafe.Slice(unsafe.StringData(text), len(text)))
	return crc32.Update(sum, castagnoli, b[:8*len(numbers)])
}

// place is a format.Place whose object is a row number, 0 = inline.
type place struct {
	object         int64
	offset, length int64 // inline: from the start of the record object
	codec          format.Codec
	unknown        []byte
	rowUnknown     []byte // of a checkpoint's row, which has the place in it
}

// shaKey is what contents are found by. 0 stands for none: such a content (one
// in 2^48) is only not shared.
func shaKey(h *format.Hash) int64 { return int64(binary.BigEndian.Uint64(h[:8]) >> 16) }

const (
	versionMTime = 1 << iota
	versionMeta
	versionUnknown
	versionPlaceUnknown
	versionRowUnknown
	versionDelete
)

const deleteSize = -1 // in checksums, for a size of NULL

// encodeVersion appends the blob of a version's row.
func encodeVersion(b []byte, slot, index uint64, entry uuid.UUID, ch *format.Change, p *place) []byte {
	start := len(b)
	flags := byte(0)
	size := ch.Size
	if ch.Op == format.OpDelete {
		flags |= versionDelete
		size = deleteSize
	}
	if ch.MTime != 0 {
		flags |= versionMTime
	}
	if !ch.Meta.IsZero() {
		flags |= versionMeta
	}
	if len(ch.Unknown) > 0 {
		flags |= versionUnknown
	}
	if len(p.unknown) > 0 {
		flags |= versionPlaceUnknown
	}
	if len(p.rowUnknown) > 0 {
		flags |= versionRowUnknown
	}
	b = append(b, 0, 0, 0, 0, flags)
	b = append(b, entry[:]...)
	b = binary.AppendUvarint(b, index)
	if flags&versionDelete == 0 {
		b = append(b, ch.SHA256[:]...)
		b = binary.AppendUvarint(b, uint64(ch.Mode))
		b = append(b, byte(p.codec))
		b = binary.AppendUvarint(b, uint64(p.object))
		b = binary.AppendUvarint(b, uint64(p.offset))
		b = binary.AppendUvarint(b, uint64(p.length))
	}
	if flags&versionMTime != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(ch.MTime))
	}
	if flags&versionMeta != 0 {
		b = encodeMeta(b, &ch.Meta)
	}
	if flags&versionUnknown != 0 {
		b = appendBytes(b, ch.Unknown)
	}
	if flags&versionPlaceUnknown != 0 {
		b = appendBytes(b, p.unknown)
	}
	if flags&versionRowUnknown != 0 {
		b = appendBytes(b, p.rowUnknown)
	}
	seal(b[start:], sumOf(ch.Path, int64(slot), size))
	return b
}

// record is a version's row, decoded.
type record struct {
	Version
	id      int64
	until   uint64 // as written down, see schemaTables
	place   place
	unknown []byte
}

// versionColumns are what decode takes.
const versionColumns = `v.id, v.path, v.slot, v.size, v.until, v.data`

// decode reads versionColumns.
func (r *record) decode(row []driver.Value) error {
	*r = record{}
	r.id, _ = row[0].(int64)
	r.Path, _ = row[1].(string)
	slot, _ := row[2].(int64)
	size, put := row[3].(int64)
	until, _ := row[4].(int64)
	data, _ := row[5].([]byte)
	r.Slot, r.until, r.Until = uint64(slot), uint64(until), uint64(until)
	r.Op, r.Size = format.OpPut, size
	sum := size
	if !put {
		r.Op, sum = format.OpDelete, deleteSize
	}
	if !sealed(data, sumOf(r.Path, slot, sum)) {
		return fmt.Errorf("%w: bad row of version %d of %q", ErrDamaged, slot, r.Path)
	}
	d := reader{b: data[4:]}
	flags := d.byte()
	copy(r.Entry[:], d.take(16))
	r.Index = d.uvarint()
	if flags&versionDelete == 0 {
		copy(r.SHA256[:], d.take(32))
		r.Mode = uint32(d.uvarint())
		r.place.codec = format.Codec(d.byte())
		r.place.object = int64(d.uvarint())
		r.place.offset = int64(d.uvarint())
		r.place.length = int64(d.uvarint())
	}
	if flags&versionMTime != 0 {
		r.MTime = d.fixed64()
	}
	if flags&versionMeta != 0 {
		r.Meta = decodeMeta(&d)
	}
	if flags&versionUnknown != 0 {
		r.unknown = d.bytes()
	}
	if flags&versionPlaceUnknown != 0 {
		r.place.unknown = d.bytes()
	}
	if flags&versionRowUnknown != 0 {
		r.place.rowUnknown = d.bytes()
	}
	if !d.done() || put != (flags&versionDelete == 0) {
		return fmt.Errorf("%w: bad row of version %d of %q", ErrDamaged, slot, r.Path)
	}
	return nil
}

func encodeMeta(b []byte, m *format.Meta) []byte {
	b = appendString(b, m.ContentType)
	b = binary.AppendUvarint(b, uint64(len(m.Tags)))
	for _, t := range m.Tags {
		b = appendString(appendString(b, t.Key), t.Value)
	}
	b = binary.AppendVarint(b, m.Lifetime)
	b = binary.AppendUvarint(b, uint64(len(m.Keep)))
	for _, k := range m.Keep {
		b = appendString(b, k)
	}
	return appendBytes(b, m.Unknown)
}

func decodeMeta(d *reader) (m format.Meta) {
	m.ContentType = d.string()
	if n := d.count(); n > 0 {
		m.Tags = make([]format.Tag, n)
		for i := range m.Tags {
			m.Tags[i] = format.Tag{Key: d.string(), Value: d.string()}
		}
	}
	m.Lifetime = d.varint()
	if n := d.count(); n > 0 {
		m.Keep = make([]string, n)
		for i := range m.Keep {
			m.Keep[i] = d.string()
		}
	}
	m.Unknown = d.bytes()
	return m
}

// encodeObject makes the blob of an object's row.
func encodeObject(o *Object) []byte {
	b := make([]byte, 5, 64+len(o.Unknown)+len(o.rowUnknown))
	if o.Suspect {
		b[4] = 1
	}
	b = append(b, byte(o.Kind))
	b = binary.AppendUvarint(b, uint64(o.Size))
	b = binary.AppendUvarint(b, uint64(o.FooterSize))
	b = append(b, o.Checksum[:]...)
	b = appendBytes(b, o.Unknown)
	b = appendBytes(b, o.rowUnknown)
	return seal(b, sumOf(o.Name))
}

// objectColumns are what decodeObject takes.
const objectColumns = `id, name, born, dead, data`

func decodeObject(row []driver.Value) (id int64, o *Object, err error) {
	o = new(Object)
	id, _ = row[0].(int64)
	o.Name, _ = row[1].(string)
	born, _ := row[2].(int64)
	dead, _ := row[3].(int64)
	data, _ := row[4].([]byte)
	o.Born, o.Dead = uint64(born), uint64(dead)
	if !sealed(data, sumOf(o.Name)) {
		return 0, nil, fmt.Errorf("%w: bad row of object %q", ErrDamaged, o.Name)
	}
	d := reader{b: data[4:]}
	o.Suspect = d.byte() == 1
	o.Kind = format.ObjectKind(d.byte())
	o.Size = int64(d.uvarint())
	o.FooterSize = int64(d.uvarint())
	copy(o.Checksum[:], d.take(32))
	o.Unknown = d.bytes()
	o.rowUnknown = d.bytes()
	if !d.done() {
		return 0, nil, fmt.Errorf("%w: bad row of object %q", ErrDamaged, o.Name)
	}
	return id, o, nil
}

// encodeLog makes the blob of a log row; writer is the row of its writer.
func encodeLog(r *format.LogRow, writer int64) []byte {
	b := make([]byte, 4, 64+64*len(r.Entries))
	b = append(b, byte(r.Kind))
	b = binary.AppendUvarint(b, r.Fence)
	b = append(b, r.Session[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Time))
	b = binary.AppendUvarint(b, uint64(writer))
	b = appendBytes(b, r.Unknown)
	b = binary.AppendUvarint(b, uint64(len(r.Entries)))
	for i := range r.Entries {
		e := &r.Entries[i]
		b = append(b, e.ID[:]...)
		b = append(b, e.Digest[:]...)
		b = appendString(b, e.Message)
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Time))
		b = binary.AppendUvarint(b, e.Base)
		b = binary.AppendUvarint(b, e.Changes)
		b = appendBytes(b, e.Unknown)
	}
	return seal(b, sumOf(string(r.Hash[:]), int64(r.Slot), r.Size))
}

// logColumns are what decodeLog takes.
const logColumns = `l.slot, l.size, l.hash, l.data`

func decodeLog(row []driver.Value) (r format.LogRow, writer int64, err error) {
	slot, _ := row[0].(int64)
	r.Slot = uint64(slot)
	r.Size, _ = row[1].(int64)
	hash, _ := row[2].([]byte)
	data, _ := row[3].([]byte)
	if len(hash) != len(r.Hash) || !sealed(data, sumOf(string(hash), slot, r.Size)) {
		return r, 0, fmt.Errorf("%w: bad log row of slot %d", ErrDamaged, slot)
	}
	copy(r.Hash[:], hash)
	d := reader{b: data[4:]}
	r.Kind = format.Kind(d.byte())
	r.Fence = d.uvarint()
	copy(r.Session[:], d.take(16))
	r.Time = d.fixed64()
	writer = int64(d.uvarint())
	r.Unknown = d.bytes()
	if n := d.count(); n > 0 {
		r.Entries = make([]format.LogEntry, n)
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		copy(e.ID[:], d.take(16))
		copy(e.Digest[:], d.take(32))
		e.Message = d.string()
		e.Time = d.fixed64()
		e.Base = d.uvarint()
		e.Changes = d.uvarint()
		e.Unknown = d.bytes()
	}
	if !d.done() {
		return r, 0, fmt.Errorf("%w: bad log row of slot %d", ErrDamaged, slot)
	}
	return r, writer, nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBytes(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// reader takes a blob apart. After a mistake it gives zeros, and done is false.
type reader struct {
	b   []byte
	bad bool
}

func (d *reader) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *reader) byte() byte {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *reader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.take(-1)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *reader) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.take(-1)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *reader) fixed64() int64 {
	if p := d.take(8); p != nil {
		return int64(binary.LittleEndian.Uint64(p))
	}
	return 0
}

// count reads how many items follow, each of which takes a byte at least.
func (d *reader) count() int {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.take(-1)
		return 0
	}
	return int(n)
}

// bytes copies, so that a small field does not keep the whole row.
func (d *reader) bytes() []byte {
	n := d.count()
	if n == 0 {
		return nil
	}
	return append([]byte(nil), d.take(n)...)
}

func (d *reader) string() string { return string(d.take(d.count())) }

func (d *reader) done() bool { return !d.bad && len(d.b) == 0 }
