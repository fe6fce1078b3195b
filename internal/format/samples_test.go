package format

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"

	"github.com/google/uuid"
)

// The samples are the same in every run: they are the seeds of the fuzz corpus
// and the source of the golden files.

func testUUID(n int) uuid.UUID {
	sum := sha256.Sum256(fmt.Appendf(nil, "uuid %d", n))
	u := uuid.UUID(sum[:16])
	u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
	return u
}

func testHash(s string) Hash { return sha256.Sum256([]byte(s)) }

const testTime = 1_767_225_600_123_456_789 // 2026-01-01

// unknownField is a whole field that this program does not know.
func unknownField(num int, text string) []byte {
	return appendText(nil, fieldNumber(num), text)
}

func packObject(n int) Object {
	return Object{Name: DataKey(41, testUUID(n)), Kind: ObjectPack, Size: 1 << 20, FooterSize: 4096,
		Checksum: testHash("footer"), New: true}
}

func listObject(n int) Object {
	return Object{Name: DataKey(41, testUUID(n)), Kind: ObjectList, Size: 1 << 20, Checksum: testHash("list"), New: true}
}

func put(path, content string, p Place) Change {
	return Change{Op: OpPut, Path: path, Size: int64(len(content)), SHA256: testHash(content), Mode: 0o644,
		MTime: testTime, Place: p}
}

// sampleMinimal has as little as a record may have.
func sampleMinimal() *Record {
	return &Record{Slot: 1, Kind: KindCommit, ContentsAt: 0}
}

// sampleInline is the record of design/format.md: one small commit.
func sampleInline() *Record {
	r := &Record{
		Slot: 42, Kind: KindCommit, Fence: 3, Session: testUUID(1), Writer: json.RawMessage(`{"host":"a"}`),
		Time: testTime, Prev: testHash("record 41"),
		Entries: []Entry{{
			ID: testUUID(2), Message: "say hello", Time: testTime, Base: 41,
			Block: Block{Changes: []Change{
				put("hello.txt", "hello, world\n", Place{Object: Inline, Length: 13}),
				{Op: OpDelete, Path: "old.txt"},
			}},
		}},
		Contents: []byte("hello, world\n"),
	}
	e := &r.Entries[0]
	d := NewDigester(e.Message)
	for i := range e.Block.Changes {
		if err := d.Add(&e.Block.Changes[i]); err != nil {
			panic(err)
		}
	}
	e.Digest = d.Sum()
	return r
}

// sampleFull has every field of a record, and unknown ones everywhere.
func sampleFull() *Record {
	large := Object{Name: DataKey(7, testUUID(11)), Kind: ObjectLarge, Size: 3_000_000 + 500, FooterSize: 500,
		Checksum: testHash("large"), Unknown: unknownField(9, "object")}
	rich := put("d/e\\f\n.txt", "hello", Place{Object: Inline, Offset: 2, Length: 5, Unknown: unknownField(5, "place")})
	rich.Meta = Meta{ContentType: "text/plain; charset=utf-8", Tags: []Tag{{"a", ""}, {"b", "ü"}}, Lifetime: 1 << 50,
		Keep: []string{"last 3", "daily 7"}, Unknown: unknownField(6, "meta")}
	rich.Unknown = unknownField(10, "change")
	link := put("link", "hello", Place{Object: 0, Offset: 100, Length: 5})
	link.Mode = uint32(fs.ModeSymlink | 0o777)
	link.MTime = -1
	return &Record{
		Slot: 1 << 40, Kind: KindSweep, Fence: 1 << 33, Session: testUUID(1),
		Writer: json.RawMessage(`{"host":"a","pid":1}`), Time: testTime, Prev: testHash("before"),
		Entries: []Entry{
			{
				ID: testUUID(2), Digest: testHash("digest"), Message: "a\nmessage", Time: -5, Base: 9,
				Block: Block{
					Objects: []Object{packObject(10), large},
					Changes: []Change{
						{Op: OpPut, Path: "big", Size: 4_000_000, SHA256: testHash("big"), Mode: 0o600,
							Place: Place{Object: 1, Length: 3_000_000, Codec: CodecBlocks}},
						rich,
						{Op: OpPut, Path: "empty", SHA256: testHash(""), Place: Place{Object: Inline}},
						{Op: OpDelete, Path: "gone", Unknown: unknownField(11, "delete")},
						link,
						{Op: OpPut, Path: "packed", Size: 5000, SHA256: testHash("x"), Mode: 0o755,
							Place: Place{Object: 0, Offset: 300, Length: 90, Codec: CodecZstd}},
					},
					Unknown: unknownField(15, "block"),
				},
				Lists:   []ListRef{{Object: listObject(20), Items: 65536, Unknown: unknownField(3, "ref")}},
				Unknown: unknownField(8, "entry"),
			},
			{ID: testUUID(3), Digest: testHash("other")},
		},
		Block: Block{
			Objects: []Object{packObject(12)},
			Moves: []Move{{VersionRef{Path: "m", Slot: 3, Unknown: unknownField(4, "move")},
				Place{Object: 0, Offset: 7, Length: 9, Codec: CodecZstd}}},
			Drops: []VersionRef{{Path: "v", Slot: 5, Unknown: unknownField(3, "drop")}, {Path: "v", Slot: 6}},
			Dead:  []string{DataKey(1, testUUID(30)), DataKey(2, testUUID(31))},
		},
		Lists:    []ListRef{{Object: listObject(21), Items: 1}},
		Sweep:    40,
		Contents: []byte("..hello"),
		Unknown:  append(unknownField(12, "record"), unknownField(1000, "record")...),
	}
}

// manyChanges are n changes in path order in packs, as a commit of a source
// tree makes them.
func manyChanges(n int) ([]Object, []Change) {
	rng := rand.New(rand.NewPCG(1, 2))
	var objects []Object
	changes := make([]Change, n)
	for i := range changes {
		if i%4096 == 0 {
			objects = append(objects, packObject(1000+i))
		}
		c := put(fmt.Sprintf("src/module-%03d/file-%06d.go", i/100, i), "", Place{})
		for j := range c.SHA256 {
			c.SHA256[j] = byte(rng.Uint32())
		}
		c.Size = int64(rng.IntN(4096)) + 1
		c.MTime += int64(rng.IntN(1 << 30))
		c.Place = Place{Object: len(objects) - 1, Offset: int64(i%4096) * 200, Length: c.Size/20 + 1, Codec: CodecZstd}
		changes[i] = c
	}
	return objects, changes
}

func sampleList() *Block {
	objects, changes := manyChanges(200)
	changes = append(changes, Change{Op: OpDelete, Path: "src/z"})
	b := sampleFull().Block
	b.Objects = append(objects, b.Objects...)
	b.Moves[0].Place.Object = len(b.Objects) - 1
	b.Changes = changes
	return &b
}

func samplePackFooter() *Footer {
	_, changes := manyChanges(50)
	return &Footer{Kind: ObjectPack, Head: 41, Entry: testUUID(2), Session: testUUID(1), Time: testTime, Changes: changes,
		Unknown: unknownField(9, "footer")}
}

// sampleLargeFooter is that of a content of n blocks and a half.
func sampleLargeFooter(n int) *Footer {
	f := &Footer{Kind: ObjectLarge, Head: 41, Entry: testUUID(2), Session: testUUID(1), Time: testTime}
	var stored int64
	for i := range n + 1 {
		b := BlockRef{Length: BlockSize, Codec: CodecRaw, SHA256: testHash(fmt.Sprint(i))}
		switch {
		case i == n:
			b.Length = BlockSize / 2
		case i%3 == 0:
			b.Length, b.Codec = 1000+int64(i), CodecZstd
		}
		stored += b.Length
		f.Blocks = append(f.Blocks, b)
	}
	f.Changes = []Change{{Op: OpPut, Path: "big", Size: int64(n)*BlockSize + BlockSize/2, SHA256: testHash("big"), Mode: 0o600,
		MTime: testTime, Place: Place{Length: stored, Codec: CodecBlocks}}}
	return f
}

func sampleMarker() *Marker {
	return &Marker{Format: Version, MinReader: MinReader, Datastore: testUUID(1), Created: "2026-01-01T00:00:00Z",
		Program: "swampd 0.1.0"}
}

func sampleCheckpoint() *Checkpoint {
	return &Checkpoint{Format: Version, MinReader: MinReader, Seq: 100, Root: RootKey(100, testUUID(1)), RootSize: 5000,
		RootHash: fmt.Sprintf("%x", testHash("root")), Floor: 40, Previous: 50, Sweep: 30, Horizon: 20, Beat: testUUID(2),
		Extra: map[string]json.RawMessage{"later": json.RawMessage(`{"a":[1,"<&>"]}`), "Seq": json.RawMessage("1")}}
}

// sampleShard is a shard of n rows.
func sampleShard(table Table, n int) *Shard {
	s := &Shard{Table: table, Unknown: unknownField(6, "shard")}
	switch table {
	case TableVersions:
		objects, changes := manyChanges(n)
		for i := range objects {
			s.Names = append(s.Names, objects[i].Name)
		}
		for i := range changes {
			s.Versions = append(s.Versions, VersionRow{Slot: 40, Index: uint64(i), Entry: testUUID(2), Change: changes[i]})
		}
		last := put("src/z", "hello", Place{Object: Inline, Offset: 1 << 20, Length: 5})
		s.Versions = append(s.Versions,
			VersionRow{Slot: 3, Entry: testUUID(2), Change: last, Until: 5, Unknown: unknownField(6, "row")},
			VersionRow{Slot: 7, Index: 1, Entry: testUUID(3), Change: Change{Op: OpDelete, Path: "src/z"}})
	case TableObjects:
		for i := range n {
			o := packObject(i)
			o.Name, o.New = DataKey(uint64(i), testUUID(i)), false
			s.Objects = append(s.Objects, ObjectRow{Object: o, Born: uint64(i + 1), Unknown: unknownField(4, "row")})
		}
		s.Objects[0].Dead = 9
	case TableLog:
		for i := range n {
			s.Log = append(s.Log, LogRow{Slot: uint64(i + 1), Kind: KindCommit, Fence: 1, Session: testUUID(1),
				Writer: json.RawMessage(`{"host":"a"}`), Time: testTime, Size: 500, Hash: testHash(fmt.Sprint(i)),
				Entries: []LogEntry{{ID: testUUID(i), Digest: testHash("d"), Message: "m", Time: testTime, Base: uint64(i),
					Changes: 3, Unknown: unknownField(7, "entry")}}, Unknown: unknownField(10, "row")})
		}
	}
	return s
}

func sampleRoot() *Root {
	shard := func(table Table, first string, seq uint64, n int, rows uint64) ShardRef {
		return ShardRef{Table: table, First: first, Name: ShardKey(seq, testUUID(1), n), Size: 5000,
			Checksum: testHash("shard"), Rows: rows}
	}
	r := &Root{Datastore: testUUID(5), Seq: 100, ChainHash: testHash("record 100"), Fence: 3, Session: testUUID(1), Sweep: 30,
		Horizon: 20, Time: testTime, Versions: 25, Objects: 3, Slots: 60,
		Shards: []ShardRef{
			shard(TableVersions, "", 100, 0, 10),
			shard(TableVersions, VersionKey("m", 7), 50, 1, 15),
			shard(TableObjects, "", 100, 2, 3),
			shard(TableLog, SlotKey(41), 100, 3, 60),
		},
		Unknown: unknownField(13, "root")}
	r.Shards[1].Unknown = unknownField(7, "ref")
	return r
}
