package format

import (
	"slices"
	"testing"
)

// What a commit of 10,000 small files costs in this package.
const benchChanges = 10_000

func benchBlock() *Block {
	objects, changes := manyChanges(benchChanges)
	return &Block{Objects: objects, Changes: changes}
}

func BenchmarkEncodeList(b *testing.B) {
	block := benchBlock()
	b.ReportAllocs()
	for b.Loop() {
		object, err := EncodeBlock(block)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(object)))
	}
}

func BenchmarkDecodeList(b *testing.B) {
	object := mustEncode(b, EncodeBlock, benchBlock())
	b.SetBytes(int64(len(object)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeBlock(object); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBlockWriter(b *testing.B) {
	block := benchBlock()
	b.ReportAllocs()
	var w BlockWriter
	for b.Loop() {
		w.path = ""
		for i := range block.Changes {
			c := &block.Changes[i]
			if err := w.AddChange(c, &block.Objects[c.Place.Object]); err != nil {
				b.Fatal(err)
			}
		}
		if _, _, err := w.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	_, changes := manyChanges(benchChanges)
	refs := make([]*Change, len(changes))
	for i := range changes {
		refs[i] = &changes[i]
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Digest(&Entry{Message: "m"}, slices.Values(refs)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeSmallRecord(b *testing.B) {
	r := sampleInline()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeRecord(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeSmallRecord(b *testing.B) {
	object := mustEncode(b, EncodeRecord, sampleInline())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRecord(object); err != nil {
			b.Fatal(err)
		}
	}
}

// A record with 6,000 changes has about 1 MiB of them.
func BenchmarkDecodeFullRecord(b *testing.B) {
	objects, changes := manyChanges(6000)
	r := sampleInline()
	r.Entries[0].Block = Block{Objects: objects, Changes: changes}
	object := mustEncode(b, EncodeRecord, r)
	b.SetBytes(int64(len(object)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRecord(object); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkShardWriter(b *testing.B) {
	_, changes := manyChanges(benchChanges)
	name, entry := packObject(1).Name, testUUID(1)
	b.ReportAllocs()
	for b.Loop() {
		w := NewShardWriter(TableVersions)
		for i := range changes {
			row := VersionRow{Slot: 1, Index: uint64(i), Entry: entry, Change: changes[i]}
			if err := w.AddVersion(&row, name); err != nil {
				b.Fatal(err)
			}
		}
		if _, _, err := w.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeShard(b *testing.B) {
	object := mustEncode(b, EncodeShard, sampleShard(TableVersions, benchChanges))
	b.SetBytes(int64(len(object)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeShard(object); err != nil {
			b.Fatal(err)
		}
	}
}

// The footer of a content of 10 GiB.
func BenchmarkDecodeLargeFooter(b *testing.B) {
	end := mustEncode(b, EncodeFooter, sampleLargeFooter(10_240))
	b.SetBytes(int64(len(end)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeFooter(end); err != nil {
			b.Fatal(err)
		}
	}
}
