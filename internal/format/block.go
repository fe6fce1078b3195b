package format

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

type fieldNumber = protowire.Number

// The highest field number of each message that this program knows.
const (
	blockFields      = 5
	changeFields     = 8
	metaFields       = 4
	placeFields      = 4
	objectFields     = 6
	listRefFields    = 2
	versionRefFields = 2
	moveFields       = 3
)

// The fewest bytes that an element of a list takes.
const (
	leastItem   = 7  // tag and length, path and operation or slot
	leastObject = 68 // tag and length, and a name
	leastDead   = 64
)

// ListTarget is the size at which a BlockWriter is full; one more item always
// fits behind it.
const ListTarget = 8 << 20

// EncodedSize is the length of b in a record, as it counts for MaxChangesHere.
// It checks nothing.
func (b *Block) EncodedSize() int {
	p := borrow()
	out := appendBlock(*p, b)
	giveBack(p, out)
	return len(out)
}

// EncodeBlock makes the object of a change list.
func EncodeBlock(b *Block) ([]byte, error) {
	if err := checkListBlock(b); err != nil {
		return nil, refused("change list", err)
	}
	p := borrow()
	body := appendBlock(*p, b)
	out, err := sealFrame(frameList, body, nil, 0)
	giveBack(p, body)
	if err != nil {
		return nil, refused("change list", err)
	}
	return out, nil
}

// DecodeBlock reads the object of a change list. That inline places lie inside
// the contents of the record which names the list is for the caller to check,
// with CheckInline.
func DecodeBlock(object []byte) (*Block, error) {
	f, err := openFrame(object, frameList)
	if err != nil {
		return nil, damaged("change list", err)
	}
	m := parse(f.body, "list")
	b := &Block{}
	decodeBlock(m, b, MaxInline, MaxListItems)
	if err := m.p.err; err != nil {
		return nil, damaged("change list", err)
	}
	if b.items() == 0 {
		return nil, damaged("change list", errEmpty)
	}
	return b, nil
}

var errEmpty = errors.New("it holds nothing")

func checkListBlock(b *Block) error {
	switch n := b.items(); {
	case n == 0:
		return errEmpty
	case n > MaxListItems || len(b.Objects) > MaxListItems:
		return overLimit("items of a change list", int64(max(n, len(b.Objects))), MaxListItems)
	}
	return checkBlock(b, MaxInline)
}

func (b *Block) items() int { return len(b.Changes) + len(b.Moves) + len(b.Drops) + len(b.Dead) }

// CheckInline says whether the inline places of b lie inside the contents of
// that length, those of the record that names the list.
func (b *Block) CheckInline(contents int64) error {
	for i := range b.Changes {
		c := &b.Changes[i]
		if c.Op == OpPut && c.Place.Object == Inline && c.Place.Offset+c.Place.Length > contents {
			return damaged("change list", fmt.Errorf("change %d, %q: %w", i, c.Path, errPlace))
		}
	}
	return nil
}

// checkBlock is what decodeBlock checks as it reads.
func checkBlock(b *Block, inline int64) error {
	for i := range b.Objects {
		if err := checkObject(&b.Objects[i]); err != nil {
			return fmt.Errorf("object %d: %w", i, err)
		}
	}
	in := &scope{objects: b.Objects, inline: inline}
	for i := range b.Changes {
		if err := checkChange(&b.Changes[i], in); err != nil {
			return fmt.Errorf("change %d, %q: %w", i, b.Changes[i].Path, err)
		}
	}
	for i := range b.Moves {
		if err := checkMove(&b.Moves[i], in); err != nil {
			return fmt.Errorf("move %d, %q: %w", i, b.Moves[i].Path, err)
		}
	}
	for i := range b.Drops {
		if err := checkVersionRef(&b.Drops[i], versionRefFields); err != nil {
			return fmt.Errorf("drop %d, %q: %w", i, b.Drops[i].Path, err)
		}
	}
	for i, name := range b.Dead {
		if err := checkDataName(name); err != nil {
			return fmt.Errorf("dead name %d: %w", i, err)
		}
	}
	if err := checkTwice(b); err != nil {
		return err
	}
	return checkUnknown(b.Unknown, blockFields)
}

func checkTwice(b *Block) error {
	if name, ok := twice(len(b.Objects), func(i int) string { return b.Objects[i].Name }); ok {
		return fmt.Errorf("object %s is in the table twice", name)
	}
	if path, ok := twice(len(b.Changes), func(i int) string { return b.Changes[i].Path }); ok {
		return fmt.Errorf("path %q is changed twice", path)
	}
	if name, ok := twice(len(b.Dead), func(i int) string { return b.Dead[i] }); ok {
		return fmt.Errorf("dead name %s is there twice", name)
	}
	return nil
}

func appendBlock(b []byte, x *Block) []byte {
	for i := range x.Objects {
		b = appendObject(b, 1, &x.Objects[i])
	}
	for i := range x.Changes {
		b = appendChange(b, 2, &x.Changes[i], true)
	}
	for i := range x.Moves {
		b = appendMove(b, 3, &x.Moves[i])
	}
	for i := range x.Drops {
		b = appendVersionRef(b, 4, &x.Drops[i])
	}
	for _, name := range x.Dead {
		b = appendText(b, 5, name)
	}
	return append(b, x.Unknown...)
}

// decodeBlock reads a block whose inline places end at inline and which may
// hold so many items. Errors are left in m.p.err.
func decodeBlock(m message, b *Block, inline int64, items int) {
	n := m.counts()
	if got := n[2] + n[3] + n[4] + n[5]; got > items || n[1] > items {
		m.check(overLimit("items of a block", int64(max(got, n[1])), int64(items)))
		return
	}
	size := m.end - m.pos
	if n[1] > 0 {
		b.Objects = make([]Object, 0, room(n[1], size, leastObject))
	}
	if n[2] > 0 {
		b.Changes = make([]Change, 0, room(n[2], size, leastItem))
	}
	if n[3] > 0 {
		b.Moves = make([]Move, 0, room(n[3], size, leastItem))
	}
	if n[4] > 0 {
		b.Drops = make([]VersionRef, 0, room(n[4], size, leastItem))
	}
	if n[5] > 0 {
		b.Dead = make([]string, 0, room(n[5], size, leastDead))
	}
	in := &scope{inline: inline}
	for m.next() {
		switch m.num {
		case 1:
			b.Objects = append(b.Objects, Object{})
			decodeObject(m.sub("object"), &b.Objects[len(b.Objects)-1])
		case 2:
			in.objects = b.Objects
			b.Changes = append(b.Changes, Change{})
			decodeChange(m.sub("change"), &b.Changes[len(b.Changes)-1], in)
		case 3:
			in.objects = b.Objects
			b.Moves = append(b.Moves, Move{})
			decodeMove(m.sub("move"), &b.Moves[len(b.Moves)-1], in)
		case 4:
			b.Drops = append(b.Drops, VersionRef{})
			decodeVersionRef(m.sub("drop"), &b.Drops[len(b.Drops)-1])
		case 5:
			b.Dead = append(b.Dead, m.texts())
			m.check(checkDataName(b.Dead[len(b.Dead)-1]))
		default:
			b.Unknown = m.unknown(b.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkTwice(b))
	}
}

func appendObject(b []byte, num fieldNumber, o *Object) []byte {
	b, at := beginMessage(b, num)
	b = appendText(b, 1, o.Name)
	b = appendUint(b, 2, uint64(o.Kind))
	b = appendSize(b, 3, o.Size)
	b = appendSize(b, 4, o.FooterSize)
	b = appendHash(b, 5, &o.Checksum)
	b = appendBool(b, 6, o.New)
	b = append(b, o.Unknown...)
	return endMessage(b, at)
}

func decodeObject(m message, o *Object) {
	for m.next() {
		switch m.num {
		case 1:
			o.Name = m.text()
		case 2:
			o.Kind = ObjectKind(m.enum("kind of object"))
		case 3:
			o.Size = m.size()
		case 4:
			o.FooterSize = m.size()
		case 5:
			o.Checksum = m.hash()
		case 6:
			o.New = m.bool()
		default:
			o.Unknown = m.unknown(o.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkObject(o))
	}
}

func appendListRef(b []byte, num fieldNumber, l *ListRef) []byte {
	b, at := beginMessage(b, num)
	b = appendObject(b, 1, &l.Object)
	b = appendUint(b, 2, l.Items)
	b = append(b, l.Unknown...)
	return endMessage(b, at)
}

func decodeListRef(m message, l *ListRef) {
	for m.next() {
		switch m.num {
		case 1:
			decodeObject(m.subOnce("object"), &l.Object)
		case 2:
			l.Items = m.uint()
		default:
			l.Unknown = m.unknown(l.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkListRef(l))
	}
}

// appendChange writes a change; what a Digest covers is a change without place
// and without what this program does not know.
func appendChange(b []byte, num fieldNumber, c *Change, whole bool) []byte {
	b, at := beginMessage(b, num)
	b = appendUint(b, 1, uint64(c.Op))
	b = appendText(b, 2, c.Path)
	b = appendSize(b, 3, c.Size)
	b = appendHash(b, 4, &c.SHA256)
	b = appendUint(b, 5, uint64(c.Mode))
	b = appendTime(b, 6, c.MTime)
	if !c.Meta.IsZero() {
		var in int
		b, in = beginMessage(b, 7)
		b = endMessage(appendMeta(b, &c.Meta), in)
	}
	if whole {
		if c.Op != OpDelete {
			b = appendPlace(b, 8, &c.Place)
		}
		b = append(b, c.Unknown...)
	}
	return endMessage(b, at)
}

func decodeChange(m message, c *Change, in *scope) {
	c.Place.Object = Inline
	for m.next() {
		switch m.num {
		case 1:
			c.Op = Op(m.enum("operation"))
		case 2:
			c.Path = m.text()
		case 3:
			c.Size = m.size()
		case 4:
			c.SHA256 = m.hash()
		case 5:
			c.Mode = uint32(m.uintTo(math.MaxUint32))
		case 6:
			c.MTime = m.time()
		case 7:
			decodeMeta(m.subOnce("meta"), &c.Meta)
		case 8:
			decodePlace(m.subOnce("place"), &c.Place)
		default:
			c.Unknown = m.unknown(c.Unknown)
		}
	}
	if m.p.err != nil {
		return
	}
	if err := checkChange(c, in); err != nil {
		m.check(fmt.Errorf("%q: %w", c.Path, err))
		return
	}
	if c.Op == OpDelete {
		c.Place = Place{} // as it was given: it means nothing
	}
}

func appendMeta(b []byte, m *Meta) []byte {
	b = appendText(b, 1, m.ContentType)
	for i := range m.Tags {
		var at int
		b, at = beginMessage(b, 2)
		b = appendText(b, 1, m.Tags[i].Key)
		b = appendText(b, 2, m.Tags[i].Value)
		b = endMessage(b, at)
	}
	b = appendSize(b, 3, m.Lifetime)
	for _, k := range m.Keep {
		b = appendText(b, 4, k)
	}
	return append(b, m.Unknown...)
}

func decodeMeta(m message, meta *Meta) {
	if n := m.end - m.pos; n > MaxMeta {
		m.check(overLimit("bytes of metadata", int64(n), MaxMeta))
		return
	}
	for m.next() {
		switch m.num {
		case 1:
			meta.ContentType = m.text()
		case 2:
			meta.Tags = append(meta.Tags, decodeTag(m.sub("tag")))
		case 3:
			meta.Lifetime = m.size()
		case 4:
			meta.Keep = append(meta.Keep, m.texts())
		default:
			meta.Unknown = m.unknown(meta.Unknown)
		}
	}
}

func decodeTag(m message) (t Tag) {
	for m.next() {
		switch m.num {
		case 1:
			t.Key = m.text()
		case 2:
			t.Value = m.text()
		default:
			m.tooNew()
		}
	}
	return t
}

func appendPlace(b []byte, num fieldNumber, p *Place) []byte {
	b, at := beginMessage(b, num)
	b = appendUint(b, 1, uint64(p.Object+1))
	b = appendSize(b, 2, p.Offset)
	b = appendSize(b, 3, p.Length)
	b = appendUint(b, 4, uint64(p.Codec))
	b = append(b, p.Unknown...)
	return endOptional(b, at)
}

func decodePlace(m message, p *Place) {
	p.Object = Inline
	for m.next() {
		switch m.num {
		case 1:
			p.Object = int(m.uintTo(math.MaxInt32)) - 1
		case 2:
			p.Offset = m.size()
		case 3:
			p.Length = m.size()
		case 4:
			p.Codec = Codec(m.enum("codec"))
		default:
			p.Unknown = m.unknown(p.Unknown)
		}
	}
}

func appendVersionRef(b []byte, num fieldNumber, v *VersionRef) []byte {
	b, at := beginMessage(b, num)
	b = appendText(b, 1, v.Path)
	b = appendUint(b, 2, v.Slot)
	b = append(b, v.Unknown...)
	return endMessage(b, at)
}

func decodeVersionRef(m message, v *VersionRef) {
	for m.next() {
		switch m.num {
		case 1:
			v.Path = m.text()
		case 2:
			v.Slot = m.uint()
		default:
			v.Unknown = m.unknown(v.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkVersionRef(v, versionRefFields))
	}
}

func appendMove(b []byte, num fieldNumber, x *Move) []byte {
	b, at := beginMessage(b, num)
	b = appendText(b, 1, x.Path)
	b = appendUint(b, 2, x.Slot)
	b = appendPlace(b, 3, &x.Place)
	b = append(b, x.Unknown...)
	return endMessage(b, at)
}

func decodeMove(m message, x *Move, in *scope) {
	x.Place.Object = Inline
	for m.next() {
		switch m.num {
		case 1:
			x.Path = m.text()
		case 2:
			x.Slot = m.uint()
		case 3:
			decodePlace(m.subOnce("place"), &x.Place)
		default:
			x.Unknown = m.unknown(x.Unknown)
		}
	}
	if m.p.err == nil {
		m.check(checkMove(x, in))
	}
}
