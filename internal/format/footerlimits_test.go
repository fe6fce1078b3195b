package format

import (
	"errors"
	"strings"
	"testing"
)

func TestFootersThatCannotBeAreRefused(t *testing.T) {
	// blocks changes the blocks and keeps their sum right.
	blocks := func(set func(*Footer)) func(*Footer) {
		return func(f *Footer) {
			set(f)
			p := &f.Changes[0].Place
			p.Length = 0
			for i := range f.Blocks {
				p.Length += f.Blocks[i].Length
			}
		}
	}
	hashes := func(f *Footer) (tail []byte) {
		for i := range f.Blocks {
			tail = append(tail, f.Blocks[i].SHA256[:]...)
		}
		return tail
	}
	write := func(f *Footer) []byte { return appendFooter(nil, f) }
	testRefusals(t, codecs["footer"], samplePackFooter, write, hashes, []refusal[Footer]{
		{name: "no kind", set: func(f *Footer) { f.Kind = 0 }},
		{name: "a newer kind", set: func(f *Footer) { f.Kind = 4 }, want: ErrUpgrade},
		{name: "a list", set: func(f *Footer) { f.Kind = ObjectList }},
		{name: "blocks in a pack", set: func(f *Footer) { f.Blocks = []BlockRef{{Length: 5}} }},
		{name: "a delete", set: func(f *Footer) { f.Changes[0] = Change{Op: OpDelete, Path: "a"} }},
		{name: "an inline place", set: func(f *Footer) { f.Changes[0].Place.Object = Inline }},
		{name: "an empty content", set: func(f *Footer) { f.Changes[0].Size, f.Changes[0].Place = 0, Place{Object: Inline} }},
		{name: "another object", set: func(f *Footer) { f.Changes[0].Place.Object = 1 }},
		{name: "a content in blocks", set: func(f *Footer) { f.Changes[0].Place.Codec = CodecBlocks }},
		{name: "a body over the limit", set: func(f *Footer) { f.Unknown = unknownField(9, strings.Repeat("x", MaxBody)) }, also: ErrLimit},
		{name: "contents over the limit", set: func(f *Footer) {
			_, f.Changes = manyChanges(MaxFooterChanges + 1)
			for i := range f.Changes {
				f.Changes[i].Place.Object = 0
			}
		}, also: ErrLimit},
	})
	testRefusals(t, codecs["footer"], func() *Footer { return sampleLargeFooter(5) }, write, hashes, []refusal[Footer]{
		{name: "no content", set: func(f *Footer) { f.Changes = nil }},
		{name: "two contents", set: func(f *Footer) { f.Changes = append(f.Changes, f.Changes[0]) }},
		{name: "a content in one piece", set: func(f *Footer) { f.Changes[0].Place.Codec = CodecZstd }},
		{name: "a block too few", set: blocks(func(f *Footer) { f.Blocks = f.Blocks[:5] })},
		{name: "a block too many", set: blocks(func(f *Footer) { f.Blocks = append(f.Blocks, f.Blocks[1]) })},
		{name: "an empty block", set: blocks(func(f *Footer) { f.Blocks[0].Length = 0 })},
		{name: "a block of negative length", set: blocks(func(f *Footer) { f.Blocks[0].Length = -1 })},
		{name: "a block that grew", set: blocks(func(f *Footer) { f.Blocks[0].Length = BlockSize + 1 })},
		{name: "a short raw block", set: blocks(func(f *Footer) { f.Blocks[1].Length-- })},
		{name: "a long last block", set: blocks(func(f *Footer) { f.Blocks[5].Length, f.Blocks[5].Codec = BlockSize/2+1, CodecZstd })},
		{name: "another sum", set: func(f *Footer) { f.Blocks[0].Length++ }},
		{name: "a content that begins later", set: func(f *Footer) { f.Changes[0].Place.Offset = 1 }},
		{name: "a codec in a block of blocks", set: func(f *Footer) { f.Blocks[0].Codec = CodecBlocks }, want: ErrUpgrade},
		{name: "a size over the limit", set: func(f *Footer) { f.Changes[0].Size = MaxBlocks*BlockSize + 1 }, also: ErrLimit},
	})
}

// A footer whose lists of blocks do not agree cannot be written by this program.
func TestFootersWithUnevenListsAreCorrupt(t *testing.T) {
	f := sampleLargeFooter(5)
	body := appendFooter(nil, f)
	const codecs = 2 + 6 // tag, length, one byte each, at the end of the body
	rest, list := body[:len(body)-codecs:len(body)-codecs], body[len(body)-6:]
	with := func(list []byte) []byte { return append(rest, appendBytes(nil, 8, list)...) }
	hashes := make([]byte, 32*len(f.Blocks))
	if _, err := DecodeFooter(seal(frameFooter, with(list), hashes)); err != nil {
		t.Fatalf("as it should be: %v", err)
	}
	for name, object := range map[string][]byte{
		"a hash too few":   seal(frameFooter, body, hashes[32:]),
		"a hash too many":  seal(frameFooter, body, append(hashes, hashes[:32]...)),
		"half a hash less": seal(frameFooter, body, hashes[16:]),
		"half a hash more": seal(frameFooter, body, append(hashes, hashes[:16]...)),
		"a codec too few":  seal(frameFooter, with(list[:5]), hashes), // the last one is 0 anyway
		"a codec too many": seal(frameFooter, with(append(list[:6:6], 0)), hashes),
		"no codecs":        seal(frameFooter, rest, hashes),
	} {
		if _, err := DecodeFooter(object); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestFooterPlacesLieInTheData(t *testing.T) {
	pack, large := samplePackFooter(), sampleLargeFooter(2)
	last := pack.Changes[49].Place
	size := large.Changes[0].Place.Length
	for _, c := range []struct {
		f    *Footer
		data int64
		ok   bool
	}{
		{pack, last.Offset + last.Length, true}, {pack, last.Offset + last.Length - 1, false}, {pack, 1 << 40, true},
		{large, size, true}, {large, size - 1, false}, {large, size + 1, false},
	} {
		if err := c.f.CheckData(c.data); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("kind %d in %d bytes: got %v", c.f.Kind, c.data, err)
		}
	}
}

// The longest content that is possible has a footer that is possible.
func TestFooterOfTheLongestContentFits(t *testing.T) {
	const body = MaxBlocks * (3 + 1) // a raw block's length takes 3 bytes, a codec 1
	const rest = 1 << 20             // one change with a long path and metadata
	if limit := frameFooter.bodyLimit(frameFooter.tailLimit()); body+rest > limit {
		t.Errorf("the body may have %d bytes, needs %d", limit, body+rest)
	}
	if n := len(appendUint(nil, 1, BlockSize)) - 1; n != 3 {
		t.Errorf("the length of a raw block takes %d bytes", n)
	}
	if limit := frameFooter.objectLimit() + trailerSize; limit != MaxFooter {
		t.Errorf("MaxFooter is %d, the limit %d", MaxFooter, limit)
	}
	// A pack's body may not be longer because a large object's may.
	if limit := frameFooter.bodyLimit(0); limit != MaxBody {
		t.Errorf("the body of a footer without blocks may have %d bytes", limit)
	}
}
