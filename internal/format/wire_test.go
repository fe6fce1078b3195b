package format

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// A body that protobuf would take, and this format does not, or the other way
// round.
func TestBodiesOfAnotherShapeAreCorrupt(t *testing.T) {
	base, _ := appendRecord(nil, sampleInline())
	fields := splitFields(t, base)
	join := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	raw := func(num protowire.Number, typ protowire.Type, v ...byte) []byte {
		return append(protowire.AppendTag(nil, num, typ), v...)
	}
	varint := appendUint(nil, 12, 1)
	for _, c := range []struct {
		name string
		body []byte
		ok   bool
	}{
		{"as it is", base, true},
		{"a field of a newer program", join(base, varint), true},
		{"a group of a newer program", join(base, raw(12, protowire.StartGroupType), varint, raw(12, protowire.EndGroupType)), true},
		{"two of them with one number", join(base, varint, varint), true},
		{"a zero that is written", join([]byte{1 << 3, 42}, fields[1], raw(3, protowire.VarintType, 0)), true},
		{"an overlong number", join([]byte{1 << 3, 0xaa, 0x00}, fields[1]), true},
		{"a field twice", join(fields[0], fields[0], join(fields[1:]...)), false},
		{"fields that do not rise", join(fields[1], fields[0], join(fields[2:]...)), false},
		{"newer fields that do not rise", join(base, appendUint(nil, 13, 1), varint), false},
		{"a newer field before known ones", join(fields[0], fields[1], varint, join(fields[2:]...)), false},
		{"a number that is bytes", join(raw(1, protowire.BytesType, 42), join(fields[1:]...)), false},
		{"a message that is a number with a message behind", join(join(fields[:7]...), raw(8, protowire.VarintType), fields[7][1:]), false},
		{"a time that is a number", join(join(fields[:5]...), raw(6, protowire.VarintType, make([]byte, 8)...)), false},
		{"the number 0 at the beginning", join([]byte{0, 0}, base), false},
		{"a tag without end at the beginning", []byte{0x80}, false},
		{"another wire type", join(raw(1, protowire.Fixed64Type, 1, 0, 0, 0, 0, 0, 0, 0), join(fields[1:]...)), false},
		{"a message that is a number", join(join(fields[:7]...), raw(8, protowire.VarintType, 1)), false},
		{"the number 0", join(base, []byte{0, 0}), false},
		{"the end of a group", join(base, raw(12, protowire.EndGroupType)), false},
		{"a group without end", join(base, raw(12, protowire.StartGroupType)), false},
		{"a reserved wire type", join(base, raw(12, 6)), false},
		{"a length behind the end", join(base, raw(12, protowire.BytesType, 5, 1)), false},
		{"a number of more than 64 bits", join(base, raw(12, protowire.VarintType, slices.Repeat([]byte{0xff}, 10)...)), false},
		{"a number without end", join(base, raw(12, protowire.VarintType, 0x80)), false},
		{"a uuid of 15 bytes", join(fields[0], fields[1], raw(4, protowire.BytesType, append([]byte{15}, make([]byte, 15)...)...)), false},
		{"a hash of 33 bytes", join(fields[0], fields[1], raw(7, protowire.BytesType, append([]byte{33}, make([]byte, 33)...)...)), false},
		{"a kind of more than 8 bits", join(fields[0], appendUint(nil, 2, 256+1)), false},
	} {
		_, err := DecodeRecord(seal(frameRecord, c.body, sampleInline().Contents))
		if c.ok != (err == nil) || err != nil && !isRefusal(err) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

// A body that ends early is damaged wherever it ends, unless it ends between two
// fields of the record itself.
func TestBodiesThatEndEarlyAreCorrupt(t *testing.T) {
	for name, c := range codecs {
		if c.kind == 0 {
			continue
		}
		for _, x := range c.samples() {
			object, err := c.encode(x)
			if err != nil {
				t.Fatal(err)
			}
			object, _ = trailer(c.kind, object)
			f, err := openFrame(object, c.kind)
			if err != nil {
				t.Fatal(err)
			}
			between := make(map[int]bool)
			at := 0
			for _, field := range splitFields(t, f.body) {
				between[at] = true
				at += len(field)
			}
			for n := range f.body {
				if _, err := c.decode(seal(c.kind, f.body[:n], f.tail)); err == nil && !between[n] || err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s: the first %d of %d bytes: got %v", name, n, len(f.body), err)
				}
			}
		}
	}
}

func TestNumbersThatDoNotFitAreCorrupt(t *testing.T) {
	object := func(isNew uint64) []byte {
		o := packObject(1)
		o.New = false
		b, at := beginMessage(nil, 1)
		body := appendObject(nil, 1, &o)
		b = append(b, body[2:]...)
		return endMessage(appendUint(b, 6, isNew), at)
	}
	change := func(mode, object uint64) []byte {
		b, at := beginMessage(nil, 2)
		b = appendText(appendUint(b, 1, 1), 2, "p")
		b = appendUint(appendUint(b, 3, 1), 5, mode)
		b, in := beginMessage(b, 8)
		b = appendUint(appendUint(b, 1, object), 3, 1)
		return endMessage(endMessage(b, in), at)
	}
	for name, c := range map[string]struct {
		body []byte
		ok   bool
	}{
		"as it should be":            {slices.Concat(object(1), change(0o644, 1)), true},
		"a flag of 2":                {slices.Concat(object(2), change(0o644, 1)), false},
		"a mode of 33 bits":          {slices.Concat(object(1), change(1<<32|0o644, 1)), false},
		"an index of 64 bits":        {slices.Concat(object(1), change(0o644, 1<<63+1)), false},
		"an index of 33 bits":        {slices.Concat(object(1), change(0o644, 1<<32+1)), false},
		"a slot of 64 bits and drop": {slices.Concat(appendVersionRef(nil, 4, &VersionRef{Path: "p", Slot: 1<<64 - 1})), true},
	} {
		if _, err := DecodeBlock(seal(frameList, c.body, nil)); c.ok != (err == nil) || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestTagsHaveNoOtherFields(t *testing.T) {
	tag := append(appendText(nil, 1, "k"), appendUint(nil, 3, 1)...)
	meta := appendBytes(nil, 2, tag)
	change := slices.Concat(appendUint(nil, 1, 1), appendText(nil, 2, "p"), appendBytes(nil, 7, meta))
	block := appendBytes(nil, 2, change)
	if _, err := DecodeBlock(seal(frameList, block, nil)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "tag: field 3") {
		t.Errorf("got %v", err)
	}
}

func splitFields(t *testing.T, b []byte) (fields [][]byte) {
	for len(b) > 0 {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			t.Fatal("not a message")
		}
		fields, b = append(fields, b[:n:n]), b[n:]
	}
	return fields
}

// Lists that claim many elements in few bytes must not take memory for them.
func TestCountsThatCannotBeTrueTakeNoMemory(t *testing.T) {
	encoder()
	for name, c := range map[string]struct {
		kind frameKind
		body []byte
	}{
		// An empty message takes 2 bytes, a change in memory about 280.
		"changes": {frameList, slices.Repeat(appendBytesAlways(2), MaxListItems)},
		"objects": {frameList, slices.Repeat(appendBytesAlways(1), MaxListItems)},
		"changes in a record": {frameRecord, slices.Concat(appendUint(nil, 1, 1), appendUint(nil, 2, 1),
			appendBytes(nil, 9, slices.Repeat(appendBytesAlways(2), MaxChangesHere/2)))},
		"rows":        {frameShard, append(appendUint(nil, 1, 1), slices.Repeat(appendBytesAlways(3), MaxShardItems)...)},
		"too many":    {frameList, slices.Repeat(appendBytesAlways(2), MaxBody/2)},
		"entries":     {frameRecord, slices.Repeat(appendBytesAlways(8), MaxRecordBody/2)},
		"shards":      {frameRoot, slices.Repeat(appendBytesAlways(12), MaxBody/2)},
		"log entries": {frameShard, append(appendUint(nil, 1, 3), appendBytes(nil, 5, slices.Repeat(appendBytesAlways(9), MaxBody/2-100))...)},
	} {
		object := seal(c.kind, c.body, nil)
		var err error
		took := allocated(func() {
			for _, codec := range codecs {
				if codec.kind == c.kind {
					_, err = codec.decode(object)
				}
			}
		})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v", name, err)
		}
		// Beside the text of the body itself.
		if extra := int64(took) - int64(len(c.body)); extra > 60*int64(min(len(c.body), MaxChangesHere)) {
			t.Errorf("%s: %d bytes of body took %d bytes of memory", name, len(c.body), took)
		}
	}
}

func appendBytesAlways(num protowire.Number) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), nil)
}
