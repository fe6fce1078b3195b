package format

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A frame is the shape of every binary object: a header of 64 bytes, the body
// (protobuf, raw or zstd), and a raw tail. The first 16 bytes of the header keep
// their layout for ever, so that any program can say "upgrade" of any other's.
const (
	frameMagic  = "\x89SWAMPD\n"
	frameHeader = 64
	frameHash   = 32 // where the hash lies in the header; it covers all but itself
)

type frameKind byte

const (
	frameRecord frameKind = 'R'
	frameList   frameKind = 'L'
	frameFooter frameKind = 'F'
	frameRoot   frameKind = 'C'
	frameShard  frameKind = 'S'
)

func (k frameKind) String() string {
	switch k {
	case frameRecord:
		return "record"
	case frameList:
		return "change list"
	case frameFooter:
		return "footer"
	case frameRoot:
		return "checkpoint root"
	case frameShard:
		return "checkpoint shard"
	}
	return fmt.Sprintf("frame of kind %q", byte(k))
}

// tailLimit is the longest raw tail of a kind.
func (k frameKind) tailLimit() int64 {
	switch k {
	case frameRecord:
		return MaxInline
	case frameFooter:
		return MaxBlocks * sha256.Size
	}
	return 0
}

// bodyLimit is the longest decoded body of a kind with this tail. A footer's
// body may grow with the hashes in its tail, so that its size has proof in bytes
// that are really there.
func (k frameKind) bodyLimit(tail int64) int64 {
	switch k {
	case frameRecord:
		return MaxRecordBody
	case frameFooter:
		return MaxBody + tail/sha256.Size*blockRefMax
	}
	return MaxBody
}

// objectLimit is the longest object of a kind.
func (k frameKind) objectLimit() int64 {
	if k == frameRecord {
		return MaxRecord
	}
	return frameHeader + k.bodyLimit(k.tailLimit()) + k.tailLimit()
}

// sealFrame makes an object of body and tail, with room for extra bytes behind.
func sealFrame(kind frameKind, body, tail []byte, extra int) ([]byte, error) {
	if n, limit := int64(len(tail)), kind.tailLimit(); n > limit {
		return nil, overLimit("bytes of the raw tail", n, limit)
	}
	if n, limit := int64(len(body)), kind.bodyLimit(int64(len(tail))); n > limit {
		return nil, overLimit("bytes of the body", n, limit)
	}
	out := make([]byte, frameHeader, frameHeader+len(body)+len(tail)+extra)
	out, codec := Compress(out, body)
	stored := len(out) - frameHeader
	out = append(out, tail...)
	if n, limit := int64(len(out)), kind.objectLimit(); n > limit {
		return nil, overLimit("bytes of the object", n, limit)
	}
	copy(out, frameMagic)
	out[8], out[9] = byte(kind), byte(codec)
	binary.LittleEndian.PutUint16(out[10:], Version)
	binary.LittleEndian.PutUint16(out[12:], MinReader)
	binary.LittleEndian.PutUint32(out[16:], uint32(stored))
	binary.LittleEndian.PutUint32(out[20:], uint32(len(body)))
	binary.LittleEndian.PutUint64(out[24:], uint64(len(tail)))
	sum := frameSum(out)
	copy(out[frameHash:], sum[:])
	return out, nil
}

func frameSum(object []byte) (sum Hash) {
	h := sha256.New()
	h.Write(object[:frameHash])
	h.Write(object[frameHeader:])
	h.Sum(sum[:0])
	return sum
}

// frame is an opened object. body and tail may lie in the object's memory.
type frame struct {
	body, tail []byte
	tailAt     int64 // where the tail begins in the object
}

// openFrame checks everything that can be checked without knowing the body, in
// the order of design/format.md.
func openFrame(object []byte, kind frameKind) (frame, error) {
	var f frame
	if len(object) < len(frameMagic) || string(object[:len(frameMagic)]) != frameMagic {
		return f, fmt.Errorf("%w: it does not begin as an object of a datastore", ErrCorrupt)
	}
	if len(object) < 16 {
		return f, fmt.Errorf("%w: cut off after %d bytes", ErrCorrupt, len(object))
	}
	if reader := binary.LittleEndian.Uint16(object[12:]); reader > Version {
		return f, fmt.Errorf("it needs format %d, this program knows %d: %w", reader, Version, ErrUpgrade)
	}
	if k := frameKind(object[8]); k != kind {
		return f, fmt.Errorf("%w: it is a %v", ErrCorrupt, k)
	}
	if len(object) < frameHeader {
		return f, fmt.Errorf("%w: cut off after %d bytes", ErrCorrupt, len(object))
	}
	stored := int64(binary.LittleEndian.Uint32(object[16:]))
	decoded := int64(binary.LittleEndian.Uint32(object[20:]))
	tail := binary.LittleEndian.Uint64(object[24:])
	if tail > uint64(kind.tailLimit()) {
		return f, fmt.Errorf("%w: a raw tail of %d bytes, possible are %d", ErrCorrupt, tail, kind.tailLimit())
	}
	if limit := kind.bodyLimit(int64(tail)); decoded > limit {
		return f, fmt.Errorf("%w: a body of %d bytes, possible are %d", ErrCorrupt, decoded, limit)
	}
	if n := int64(len(object)); n > kind.objectLimit() || n != frameHeader+stored+int64(tail) {
		return f, fmt.Errorf("%w: it has %d bytes, its header says %d, possible are %d", ErrCorrupt,
			n, frameHeader+stored+int64(tail), kind.objectLimit())
	}
	if frameSum(object) != Hash(object[frameHash:frameHeader]) {
		return f, fmt.Errorf("%w: its sha256 is not the one in its header", ErrCorrupt)
	}
	f.tailAt = frameHeader + stored
	f.body, f.tail = object[frameHeader:f.tailAt:f.tailAt], object[f.tailAt:]
	var err error
	switch Codec(object[9]) {
	case CodecRaw:
		if stored != decoded {
			err = fmt.Errorf("%w: a raw body of %d bytes that should be %d", ErrCorrupt, stored, decoded)
		}
	case CodecZstd:
		f.body, err = decompress(nil, f.body, int(decoded))
	default:
		err = errUnknownValue{"the codec of the body", uint64(object[9])}
	}
	return f, err
}
