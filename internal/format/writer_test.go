package format

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// What a writer refuses leaves no trace in what it writes.
func TestBlockWriterRefusesWithoutATrace(t *testing.T) {
	pack, other := packObject(1), packObject(2)
	twin := pack
	twin.Size++
	bad := packObject(3)
	bad.FooterSize = 0
	good := put("m", "hello", Place{Offset: 5, Length: 5})
	change := func(path string, set func(*Change)) *Change {
		c := good
		c.Path = path
		set(&c)
		return &c
	}
	same := func(*Change) {}
	var w, clean BlockWriter
	for _, x := range []*BlockWriter{&w, &clean} {
		if err := errors.Join(x.AddChange(&good, &pack), x.AddDead(DataKey(5, testUUID(1)))); err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"the path before":       w.AddChange(change("l", same), nil),
		"the same path":         w.AddChange(change("m", same), nil),
		"a bad path":            w.AddChange(change("n/", same), nil),
		"a bad object":          w.AddChange(change("n", same), &bad),
		"an object's twin":      w.AddChange(change("n", same), &twin),
		"a place behind it":     w.AddChange(change("n", func(c *Change) { c.Place.Offset = 1 << 20 }), &other),
		"inline too far behind": w.AddChange(change("n", func(c *Change) { c.Place.Offset = MaxInline }), nil),
		"a delete in an object": w.AddChange(&Change{Op: OpDelete, Path: "n", Place: Place{Length: 1}}, &other),
		"a move in the record":  w.AddMove(&Move{VersionRef{Path: "a", Slot: 1}, Place{Length: 1}}, nil),
		"a move without slot":   w.AddMove(&Move{VersionRef{Path: "a"}, Place{Length: 1}}, &other),
		"a move to its twin":    w.AddMove(&Move{VersionRef{Path: "a", Slot: 1}, Place{Length: 1}}, &twin),
		"a drop without slot":   w.AddDrop(&VersionRef{Path: "a"}),
		"a drop of nothing":     w.AddDrop(&VersionRef{Slot: 1}),
		"a bad dead name":       w.AddDead("x"),
		"a dead name before":    w.AddDead(DataKey(4, testUUID(1))),
		"the same dead name":    w.AddDead(DataKey(5, testUUID(1))),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	last := change("z", same)
	for _, x := range []*BlockWriter{&w, &clean} {
		if err := x.AddChange(last, &other); err != nil {
			t.Fatal(err)
		}
	}
	got, _, err := w.Flush()
	want, _, err2 := clean.Flush()
	if err != nil || err2 != nil || !bytes.Equal(got, want) {
		t.Errorf("what was refused left a trace: %v, %v", err, err2)
	}
	if err := w.AddChange(change("y", same), nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path before those of the list before: got %v", err)
	}
	if _, _, err := w.Flush(); !errors.Is(err, ErrInvalid) {
		t.Errorf("Flush of nothing: got %v", err)
	}
}

// A delete may come with a zero place or an inline one, in and out it is zero.
func TestDeletesHaveNoPlace(t *testing.T) {
	var w BlockWriter
	for i, place := range []Place{{}, {Object: Inline}, {Object: 7}} {
		if err := w.AddChange(&Change{Op: OpDelete, Path: fmt.Sprint(i), Place: place}, nil); err != nil {
			t.Fatal(err)
		}
	}
	b, err := w.Take()
	if err != nil {
		t.Fatal(err)
	}
	want := Block{Changes: []Change{{Op: OpDelete, Path: "0"}, {Op: OpDelete, Path: "1"}, {Op: OpDelete, Path: "2"}}}
	if !reflect.DeepEqual(b, want) {
		t.Errorf("got %+v", b)
	}
	if _, err := EncodeBlock(&Block{Changes: []Change{{Op: OpDelete, Path: "a", Place: Place{Object: Inline}}}}); err != nil {
		t.Errorf("an inline place: %v", err)
	}
}

func TestBlockWriterIsFullAtItsLimits(t *testing.T) {
	var w BlockWriter
	for i := range MaxListItems {
		if w.Full() {
			t.Fatalf("full after %d items", i)
		}
		if err := w.AddDrop(&VersionRef{Path: "a", Slot: uint64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if !w.Full() || w.Items() != MaxListItems {
		t.Errorf("not full with %d items", w.Items())
	}
	if err := w.AddDrop(&VersionRef{Path: "a", Slot: 1}); !errors.Is(err, ErrLimit) {
		t.Errorf("one more: got %v", err)
	}
	object, items, err := w.Flush()
	if err != nil || items != MaxListItems {
		t.Fatalf("Flush: %d items, %v", items, err)
	}
	if _, err := DecodeBlock(object); err != nil {
		t.Fatal(err)
	}
	// By size: the largest items.
	for i := 0; !w.Full(); i++ {
		c := put(fmt.Sprintf("%06d%s", i, strings.Repeat("x", MaxPath-6)), "", Place{Object: Inline})
		c.Meta.ContentType = strings.Repeat("x", MaxMeta-4)
		if err := w.AddChange(&c, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.Size(); n < ListTarget || n > ListTarget+MaxPath+MaxMeta+200 {
		t.Errorf("full at %d bytes, should be at %d", n, ListTarget)
	}
	if object, _, err = w.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeBlock(object); err != nil {
		t.Fatal(err)
	}
}

func TestShardWriterRefusesWithoutATrace(t *testing.T) {
	row := func(path string, slot uint64) *VersionRow {
		return &VersionRow{Slot: slot, Change: put(path, "hello", Place{Length: 5})}
	}
	name, other := DataKey(1, testUUID(1)), DataKey(1, testUUID(2))
	w, clean := NewShardWriter(TableVersions), NewShardWriter(TableVersions)
	for _, x := range []*ShardWriter{w, clean} {
		if err := x.AddVersion(row("m", 5), name); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range map[string]error{
		"the path before":    w.AddVersion(row("l", 6), name),
		"the slot before":    w.AddVersion(row("m", 4), name),
		"the same":           w.AddVersion(row("m", 5), name),
		"slot 0":             w.AddVersion(row("n", 0), name),
		"a bad path":         w.AddVersion(row("n/", 1), other),
		"a bad name":         w.AddVersion(row("n", 1), "x"),
		"a row of objects":   w.AddObject(&ObjectRow{Object: packObject(1), Born: 1}),
		"a row of the log":   w.AddLog(&LogRow{Slot: 1, Kind: KindCommit}),
		"a delete in a pack": w.AddVersion(&VersionRow{Slot: 1, Change: Change{Op: OpDelete, Path: "n", Place: Place{Length: 1}}}, other),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	for _, x := range []*ShardWriter{w, clean} {
		if err := errors.Join(x.AddVersion(row("m", 6), ""), x.AddVersion(row("n", 1), other)); err != nil {
			t.Fatal(err)
		}
	}
	got, ref, err := w.Flush()
	want, ref2, err2 := clean.Flush()
	if err != nil || err2 != nil || !bytes.Equal(got, want) || !reflect.DeepEqual(ref, ref2) {
		t.Errorf("what was refused left a trace: %v, %v", err, err2)
	}
	if err := w.AddVersion(row("m", 9), ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path before those of the shard before: got %v", err)
	}
	if _, _, err := w.Flush(); !errors.Is(err, ErrInvalid) {
		t.Errorf("Flush of nothing: got %v", err)
	}
	objects := NewShardWriter(TableObjects)
	if err := objects.AddObject(&ObjectRow{Object: packObject(1), Born: 1}); err != nil { // marked new
		t.Error(err)
	}
}

func TestChangeIsNeverLargerThanItsEncodedSize(t *testing.T) {
	_, changes := manyChanges(10)
	rich := sampleFull().Entries[0].Block.Changes
	for _, c := range append(changes, rich...) {
		if got, most := len(appendChange(nil, 6, &c, true)), c.EncodedSize(); got > most {
			t.Errorf("%q: %d bytes, EncodedSize %d", c.Path, got, most)
		}
	}
	long := put(strings.Repeat("x", MaxPath), "x", Place{Offset: 1<<62 - 1, Length: 1 << 61, Codec: CodecBlocks, Object: 1 << 30})
	long.Size, long.Mode = 1<<62, 1<<31
	if got, most := len(appendChange(nil, 6, &long, true)), long.EncodedSize(); got > most {
		t.Errorf("the longest: %d bytes, EncodedSize %d", got, most)
	}
}

// Entry.EncodedSize is what an entry adds to a body, beside tag and length.
func TestEntrySizeIsExact(t *testing.T) {
	r := sampleFull()
	with, _ := appendRecord(nil, r)
	e := r.Entries[0]
	r.Entries = r.Entries[1:]
	without, _ := appendRecord(nil, r)
	if got, want := e.EncodedSize()+3, len(with)-len(without); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}
