package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
)

// Bodies are protobuf messages, written field by field: numbers rise, values
// that are zero are left out, and what a newer program added comes last. The
// reader is stricter than protobuf asks: numbers must rise, and a field that
// occurs once may not occur twice, so that there is one way to read an object.

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// appendSize writes a number that checks have shown not to be negative.
func appendSize(b []byte, num protowire.Number, v int64) []byte {
	return appendUint(b, num, uint64(v))
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	return appendUint(b, num, protowire.EncodeBool(v))
}

// appendTime writes a time as 8 bytes: as a varint it would take 9.
func appendTime(b []byte, num protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), uint64(v))
}

func appendText(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendHash(b []byte, num protowire.Number, v *Hash) []byte {
	if *v == (Hash{}) {
		return b
	}
	return appendBytes(b, num, v[:])
}

func appendUUID(b []byte, num protowire.Number, v *uuid.UUID) []byte {
	if *v == uuid.Nil {
		return b
	}
	return appendBytes(b, num, v[:])
}

// beginMessage writes the tag of a message and room for a length of one byte;
// endMessage makes the room as large as the length needs.
func beginMessage(b []byte, num protowire.Number) (grown []byte, at int) {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return append(b, 0), len(b) + 1
}

func endMessage(b []byte, at int) []byte {
	n := len(b) - at
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		var room [binary.MaxVarintLen64]byte
		b = append(b, room[:more]...)
		copy(b[at+more:], b[at:at+n])
	}
	binary.PutUvarint(b[at-1:], uint64(n))
	return b
}

// endOptional ends a message that is left out when it is empty. All field
// numbers are below 16, so a tag has one byte.
func endOptional(b []byte, at int) []byte {
	if len(b) == at {
		return b[:at-2]
	}
	return endMessage(b, at)
}

// scratch lends the memory in which bodies are put together.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

const scratchKeep = 16 << 20 // larger ones are left to the garbage collector

func borrow() *[]byte {
	p := scratch.Get().(*[]byte)
	*p = (*p)[:0]
	return p
}

func giveBack(p *[]byte, b []byte) {
	if cap(b) <= scratchKeep {
		*p = b
		scratch.Put(p)
	}
}

// parsing is one body being read. text holds the same bytes as data: strings of
// the result are parts of it, so that all of them together are one allocation.
type parsing struct {
	data []byte
	text string
	err  error // the first one; everything stops at it
}

func parse(body []byte, name string) message {
	return message{p: &parsing{data: body, text: string(body)}, name: name, end: len(body)}
}

// message reads the fields of one message in turn:
//
//	for m.next() {
//		switch m.num { case 1: x.Slot = m.uint() … default: x.Unknown = m.unknown(x.Unknown) }
//	}
//	return m.p.err
type message struct {
	p         *parsing
	name      string
	pos, end  int
	from      int              // where the present field begins
	num, last protowire.Number // of the present field and of the one before
	typ       protowire.Type
}

// fail notes the first error.
func (m *message) fail(err error) {
	if m.p.err == nil {
		m.p.err = fmt.Errorf("%s: field %d: %w", m.name, m.num, err)
	}
}

// check notes an error of what was read, if it is the first one.
func (m *message) check(err error) {
	if err != nil && m.p.err == nil {
		m.p.err = fmt.Errorf("%s: %w", m.name, err)
	}
}

var (
	errTruncated = errors.New("it is cut off or not protobuf")
	errWireType  = errors.New("wrong wire type")
	errTwice     = errors.New("it occurs twice")
	errOrder     = errors.New("it comes after a higher one")
	errRange     = errors.New("number out of range")
)

func (m *message) next() bool {
	if m.p.err != nil || m.pos >= m.end {
		return false
	}
	m.from = m.pos
	num, typ, n := protowire.ConsumeTag(m.p.data[m.pos:m.end])
	if n < 0 {
		m.fail(errTruncated)
		return false
	}
	m.last = m.num
	m.num, m.typ, m.pos = num, typ, m.pos+n
	if num < m.last {
		m.fail(errOrder)
		return false
	}
	return true
}

// once checks a field that may occur only once.
func (m *message) once(typ protowire.Type) bool {
	switch {
	case m.typ != typ:
		m.fail(errWireType)
	case m.num == m.last:
		m.fail(errTwice)
	default:
		return true
	}
	return false
}

func (m *message) uint() uint64 {
	if !m.once(protowire.VarintType) {
		return 0
	}
	v, n := protowire.ConsumeVarint(m.p.data[m.pos:m.end])
	if n < 0 {
		m.fail(errTruncated)
		return 0
	}
	m.pos += n
	return v
}

func (m *message) uintTo(limit uint64) uint64 {
	v := m.uint()
	if v > limit {
		m.fail(errRange)
		return 0
	}
	return v
}

func (m *message) size() int64 { return int64(m.uintTo(math.MaxInt64)) }
func (m *message) bool() bool  { return m.uintTo(1) == 1 }

// enum reads a value of an enumeration in a byte.
func (m *message) enum(what string) uint8 {
	v := m.uint()
	if v > math.MaxUint8 {
		m.fail(errUnknownValue{what, v})
		return 0
	}
	return uint8(v)
}

func (m *message) time() int64 {
	if !m.once(protowire.Fixed64Type) {
		return 0
	}
	v, n := protowire.ConsumeFixed64(m.p.data[m.pos:m.end])
	if n < 0 {
		m.fail(errTruncated)
		return 0
	}
	m.pos += n
	return int64(v)
}

// span reads a length and returns where the bytes behind it lie.
func (m *message) span() (from, to int) {
	if m.typ != protowire.BytesType {
		m.fail(errWireType)
		return 0, 0
	}
	v, n := protowire.ConsumeBytes(m.p.data[m.pos:m.end])
	if n < 0 {
		m.fail(errTruncated)
		return 0, 0
	}
	m.pos += n
	return m.pos - len(v), m.pos
}

// text reads text; that it is UTF-8 is checked with the rest of the value.
func (m *message) text() string {
	if !m.once(protowire.BytesType) {
		return ""
	}
	return m.texts()
}

// texts reads one element of a list of texts.
func (m *message) texts() string {
	from, to := m.span()
	return m.p.text[from:to]
}

func (m *message) bytes() []byte {
	if !m.once(protowire.BytesType) {
		return nil
	}
	from, to := m.span()
	if from == to {
		return nil
	}
	return append([]byte(nil), m.p.data[from:to]...)
}

// exactly reads bytes of a fixed length.
func (m *message) exactly(into []byte) {
	if !m.once(protowire.BytesType) {
		return
	}
	from, to := m.span()
	if m.p.err != nil {
		return
	}
	if to-from != len(into) {
		m.fail(fmt.Errorf("%d bytes, should be %d", to-from, len(into)))
		return
	}
	copy(into, m.p.data[from:to])
}

func (m *message) hash() (h Hash)      { m.exactly(h[:]); return h }
func (m *message) uuid() (u uuid.UUID) { m.exactly(u[:]); return u }

// sub reads one element of a list of messages.
func (m *message) sub(name string) message {
	from, to := m.span()
	return message{p: m.p, name: name, pos: from, end: to}
}

// subOnce reads a message that may occur once.
func (m *message) subOnce(name string) message {
	if !m.once(protowire.BytesType) {
		return message{p: m.p, name: name}
	}
	return m.sub(name)
}

// unknown appends the present field, as it is, to what is kept of newer ones.
func (m *message) unknown(kept []byte) []byte {
	n := protowire.ConsumeFieldValue(m.num, m.typ, m.p.data[m.pos:m.end])
	if n < 0 {
		m.fail(errTruncated)
		return kept
	}
	m.pos += n
	return append(kept, m.p.data[m.from:m.pos]...)
}

// tooNew refuses a field in a message that will never have more of them.
func (m *message) tooNew() { m.fail(errors.New("there is no such field")) }

// counts says how often each field below 16 occurs, so that lists are allocated
// once. What is wrong with the message is found by reading it.
func (m message) counts() (n [16]int) {
	b := m.p.data[m.pos:m.end]
	for len(b) > 0 {
		num, _, used := protowire.ConsumeField(b)
		if used < 0 {
			return n
		}
		if num < 16 {
			n[num]++
		}
		b = b[used:]
	}
	return n
}

// room is the capacity for a list of count elements in a message of size bytes
// when one takes least bytes: a count that cannot be true takes no memory.
func room(count, size, least int) int { return min(count, size/least+1) }

// checkUnknown keeps an encoder from writing what no decoder reads: Unknown
// holds whole fields, all above the known ones.
func checkUnknown(unknown []byte, known protowire.Number) error {
	for len(unknown) > 0 {
		num, _, n := protowire.ConsumeField(unknown)
		if n < 0 || num <= known {
			return fmt.Errorf("its Unknown holds other things than whole fields above %d", known)
		}
		unknown = unknown[n:]
	}
	return nil
}

// packed reads a list of up to count numbers up to limit.
func (m *message) packed(count int, limit uint64, set func(int, uint64)) int {
	if !m.once(protowire.BytesType) {
		return 0
	}
	from, to := m.span()
	i := 0
	for ; from < to; i++ {
		v, n := protowire.ConsumeVarint(m.p.data[from:to])
		if n < 0 || v > limit || i >= count {
			m.fail(errRange)
			return i
		}
		set(i, v)
		from += n
	}
	return i
}
