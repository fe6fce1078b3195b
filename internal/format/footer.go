package format

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The last 16 bytes of a pack or large object: the length of the footer with
// this trailer, and a magic. Like the first 16 bytes of a frame, they keep their
// layout for ever.
const (
	trailerSize  = 16
	TrailerSize  = trailerSize
	trailerMagic = "SWAMPEND"
)

const (
	footerFields = 8
	// blockRefMax is what a block may take of a footer's body: a length of 3
	// bytes, a codec of 1, and room.
	blockRefMax = 8
	// MaxFooterBody is the longest decoded body of any frame.
	MaxFooterBody = MaxBody + MaxBlocks*blockRefMax
	// MaxFooter is the longest footer, trailer included.
	MaxFooter = frameHeader + MaxFooterBody + MaxBlocks*sha256.Size + trailerSize
	// MaxFooterChanges is how many contents one pack holds, and FooterTarget the
	// sum of EncodedSize of its changes at which a pack is full.
	MaxFooterChanges = MaxListItems
	FooterTarget     = 8 << 20
)

// EncodedSize is about what c takes in a footer or list, never less.
func (c *Change) EncodedSize() int {
	n := 128 + len(c.Path) + len(c.Unknown) + len(c.Place.Unknown) + len(c.Meta.ContentType) + len(c.Meta.Unknown)
	for _, t := range c.Meta.Tags {
		n += 12 + len(t.Key) + len(t.Value)
	}
	for _, k := range c.Meta.Keep {
		n += 4 + len(k)
	}
	return n
}

// EncodeFooter makes the end of a data object: footer and trailer.
func EncodeFooter(f *Footer) ([]byte, error) {
	if err := checkFooter(f); err != nil {
		return nil, refused("footer", err)
	}
	p := borrow()
	body := appendFooter(*p, f)
	defer func() { giveBack(p, body) }()
	tail := make([]byte, 0, len(f.Blocks)*sha256.Size)
	for i := range f.Blocks {
		tail = append(tail, f.Blocks[i].SHA256[:]...)
	}
	out, err := sealFrame(frameFooter, body, tail, trailerSize)
	if err != nil {
		return nil, refused("footer", err)
	}
	out = binary.LittleEndian.AppendUint64(out, uint64(len(out)+trailerSize))
	return append(out, trailerMagic...), nil
}

// ParseTrailer reads the last 16 bytes of a data object and returns the length
// of what DecodeFooter needs, the trailer included.
func ParseTrailer(last []byte) (footerSize int64, err error) {
	if len(last) != trailerSize || string(last[8:]) != trailerMagic {
		return 0, fmt.Errorf("trailer: %w: the object does not end as a data object does", ErrCorrupt)
	}
	n := binary.LittleEndian.Uint64(last)
	if n < frameHeader+trailerSize || n > MaxFooter {
		return 0, fmt.Errorf("trailer: %w: a footer of %d bytes, possible are %d", ErrCorrupt, n, MaxFooter)
	}
	return int64(n), nil
}

// DecodeFooter reads exactly the footer and the trailer behind it. It cannot
// know where the object begins: CheckData proves that the places lie inside.
func DecodeFooter(end []byte) (*Footer, error) {
	object, trailer := end, []byte(nil)
	if n := len(end) - trailerSize; n >= 0 {
		object, trailer = end[:n], end[n:]
	}
	fr, err := openFrame(object, frameFooter)
	if err != nil {
		return nil, damaged("footer", err)
	}
	n, err := ParseTrailer(trailer)
	if err != nil {
		return nil, damaged("footer", err)
	}
	if n != int64(len(end)) {
		return nil, damaged("footer", fmt.Errorf("it has %d bytes, its trailer says %d", len(end), n))
	}
	if len(fr.tail)%sha256.Size != 0 {
		return nil, damaged("footer", errors.New("its tail is not a list of hashes"))
	}
	f := &Footer{}
	m := parse(fr.body, "body")
	decodeFooter(&m, f, fr.tail)
	if m.p.err == nil {
		m.check(checkFooterShape(f))
	}
	if err := m.p.err; err != nil {
		return nil, damaged("footer", err)
	}
	return f, nil
}

// CheckData says whether all places lie in the data bytes before the footer; of
// a large object they must be all of it.
func (f *Footer) CheckData(data int64) error {
	for i := range f.Changes {
		p := &f.Changes[i].Place
		if end := p.Offset + p.Length; end > data || f.Kind == ObjectLarge && end != data {
			return damaged("footer", fmt.Errorf("change %d, %q: %w", i, f.Changes[i].Path, errPlace))
		}
	}
	return nil
}

// footerScope: places lie in the object itself.
var footerScope = &scope{names: 1, inline: -1}

func checkFooter(f *Footer) error {
	for i := range f.Changes {
		if err := checkChange(&f.Changes[i], footerScope); err != nil {
			return fmt.Errorf("change %d, %q: %w", i, f.Changes[i].Path, err)
		}
	}
	return checkFooterShape(f)
}

func checkFooterShape(f *Footer) error {
	if n := len(f.Changes); n > MaxFooterChanges {
		return overLimit("contents of a pack", int64(n), MaxFooterChanges)
	}
	for i := range f.Changes {
		c := &f.Changes[i]
		if c.Op != OpPut {
			return fmt.Errorf("change %d, %q: a footer knows contents only", i, c.Path)
		}
		if blocks := c.Place.Codec == CodecBlocks; blocks != (f.Kind == ObjectLarge) {
			return fmt.Errorf("change %d, %q: codec %d is not possible here", i, c.Path, c.Place.Codec)
		}
	}
	switch f.Kind {
	case ObjectPack:
		if len(f.Blocks) > 0 {
			return errors.New("a pack has no blocks")
		}
	case ObjectLarge:
		if len(f.Changes) != 1 {
			return errors.New("a large object has one content")
		}
		if err := checkBlockRefs(f.Blocks, &f.Changes[0]); err != nil {
			return err
		}
	case ObjectList:
		return errors.New("a change list has no footer")
	default:
		return errUnknownValue{"kind of object", uint64(f.Kind)}
	}
	return checkUnknown(f.Unknown, footerFields)
}

// checkBlockRefs: the blocks are those of the content, one after the other.
func checkBlockRefs(blocks []BlockRef, c *Change) error {
	if want := (c.Size + BlockSize - 1) / BlockSize; int64(len(blocks)) != want {
		return fmt.Errorf("%d blocks, should be %d", len(blocks), want)
	}
	var stored int64
	rest := c.Size
	for i := range blocks {
		raw := min(rest, BlockSize)
		rest -= raw
		switch b := &blocks[i]; {
		case b.Codec != CodecRaw && b.Codec != CodecZstd:
			return errUnknownValue{"codec of a block", uint64(b.Codec)}
		case b.Length <= 0 || b.Length > raw || b.Codec == CodecRaw && b.Length != raw:
			return fmt.Errorf("block %d: %d bytes stored with codec %d for %d is not possible", i, b.Length, b.Codec, raw)
		default:
			stored += b.Length
		}
	}
	if c.Place.Offset != 0 || c.Place.Length != stored {
		return errPlaceSize
	}
	return nil
}

func appendFooter(b []byte, f *Footer) []byte {
	b = appendUint(b, 1, uint64(f.Kind))
	b = appendUint(b, 2, f.Head)
	b = appendUUID(b, 3, &f.Entry)
	b = appendUUID(b, 4, &f.Session)
	b = appendTime(b, 5, f.Time)
	for i := range f.Changes {
		b = appendChange(b, 6, &f.Changes[i], true)
	}
	if len(f.Blocks) > 0 {
		var at int
		b, at = beginMessage(b, 7)
		for i := range f.Blocks {
			b = protowire.AppendVarint(b, uint64(f.Blocks[i].Length))
		}
		b = endMessage(b, at)
		b, at = beginMessage(b, 8)
		for i := range f.Blocks {
			b = protowire.AppendVarint(b, uint64(f.Blocks[i].Codec))
		}
		b = endMessage(b, at)
	}
	return append(b, f.Unknown...)
}

func decodeFooter(m *message, f *Footer, hashes []byte) {
	n := m.counts()
	if n[6] > MaxFooterChanges {
		m.check(overLimit("contents of a pack", int64(n[6]), MaxFooterChanges))
		return
	}
	if n[6] > 0 {
		f.Changes = make([]Change, 0, room(n[6], m.end-m.pos, leastItem))
	}
	if len(hashes) > 0 {
		f.Blocks = make([]BlockRef, len(hashes)/sha256.Size)
		for i := range f.Blocks {
			f.Blocks[i].SHA256 = Hash(hashes[i*sha256.Size:])
		}
	}
	var lengths, codecs int
	for m.next() {
		switch m.num {
		case 1:
			f.Kind = ObjectKind(m.enum("kind of object"))
		case 2:
			f.Head = m.uint()
		case 3:
			f.Entry = m.uuid()
		case 4:
			f.Session = m.uuid()
		case 5:
			f.Time = m.time()
		case 6:
			f.Changes = append(f.Changes, Change{})
			decodeChange(m.sub("change"), &f.Changes[len(f.Changes)-1], footerScope)
		case 7:
			lengths = m.packed(len(f.Blocks), BlockSize, func(i int, v uint64) { f.Blocks[i].Length = int64(v) })
		case 8:
			codecs = m.packed(len(f.Blocks), 255, func(i int, v uint64) { f.Blocks[i].Codec = Codec(v) })
		default:
			f.Unknown = m.unknown(f.Unknown)
		}
	}
	if m.p.err == nil && (lengths != len(f.Blocks) || codecs != len(f.Blocks)) {
		m.check(fmt.Errorf("%d hashes, %d lengths and %d codecs of blocks", len(f.Blocks), lengths, codecs))
	}
}
