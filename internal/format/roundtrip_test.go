package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func mustEncode[T any](t testing.TB, encode func(*T) ([]byte, error), x *T) []byte {
	t.Helper()
	b, err := encode(x)
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	return b
}

func roundTrip[T any](t *testing.T, encode func(*T) ([]byte, error), decode func([]byte) (*T, error), x *T) {
	t.Helper()
	b := mustEncode(t, encode, x)
	if again := mustEncode(t, encode, x); !bytes.Equal(b, again) {
		t.Fatal("two encodings of one value differ")
	}
	got, err := decode(bytes.Clone(b))
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	if !reflect.DeepEqual(got, x) {
		t.Fatalf("decoded differs:\ngot  %+v\nwant %+v", got, x)
	}
	if again := mustEncode(t, encode, got); !bytes.Equal(b, again) {
		t.Fatal("what was decoded encodes to other bytes")
	}
}

func TestEncodedValuesComeBack(t *testing.T) {
	for name, r := range map[string]*Record{"minimal": sampleMinimal(), "inline": sampleInline(), "full": sampleFull(),
		"fence": {Slot: 2, Kind: KindFence, Fence: 7, Session: testUUID(9)}} {
		t.Run("record "+name, func(t *testing.T) {
			r.ContentsAt = int64(len(mustEncode(t, EncodeRecord, r)) - len(r.Contents))
			roundTrip(t, EncodeRecord, DecodeRecord, r)
		})
	}
	t.Run("list", func(t *testing.T) { roundTrip(t, EncodeBlock, DecodeBlock, sampleList()) })
	t.Run("pack footer", func(t *testing.T) { roundTrip(t, EncodeFooter, DecodeFooter, samplePackFooter()) })
	for _, n := range []int{0, 1, 5, 10_240} {
		t.Run(fmt.Sprintf("large footer %d", n), func(t *testing.T) {
			roundTrip(t, EncodeFooter, DecodeFooter, sampleLargeFooter(n))
		})
	}
	for _, table := range []Table{TableVersions, TableObjects, TableLog} {
		t.Run(fmt.Sprintf("shard of table %d", table), func(t *testing.T) {
			roundTrip(t, EncodeShard, DecodeShard, sampleShard(table, 100))
		})
	}
	t.Run("root", func(t *testing.T) { roundTrip(t, EncodeRoot, DecodeRoot, sampleRoot()) })
	t.Run("root of an empty state", func(t *testing.T) {
		roundTrip(t, EncodeRoot, DecodeRoot, &Root{Datastore: testUUID(1), Seq: 1})
	})
	t.Run("marker", func(t *testing.T) { roundTrip(t, EncodeMarker, DecodeMarker, sampleMarker()) })
	t.Run("checkpoint", func(t *testing.T) { roundTrip(t, EncodeCheckpoint, DecodeCheckpoint, sampleCheckpoint()) })
	t.Run("first checkpoint record", func(t *testing.T) {
		roundTrip(t, EncodeCheckpoint, DecodeCheckpoint, &Checkpoint{Format: 3, MinReader: 3, Beat: uuid.New()})
	})
}

func TestJSONRecordsAreForPeople(t *testing.T) {
	got := string(mustEncode(t, EncodeCheckpoint, sampleCheckpoint()))
	want := `{
  "format": 3,
  "minimum_reader": 3,
  "seq": 100,
  "root": "` + RootKey(100, testUUID(1)) + `",
  "root_size": 5000,
  "root_sha256": "` + fmt.Sprintf("%x", testHash("root")) + `",
  "floor": 40,
  "previous": 50,
  "sweep": 30,
  "horizon": 20,
  "beat": "` + testUUID(2).String() + `",
  "Seq": 1,
  "later": {"a":[1,"<&>"]}
}
`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !json.Valid([]byte(got)) {
		t.Error("it is not JSON")
	}
}

// A writer that streams gives the very bytes of a writer that holds all.
func TestBlockWriterWritesWhatEncodeBlockWrites(t *testing.T) {
	b := sampleList()
	b.Unknown = nil
	var w BlockWriter
	for round := range 2 { // the second round uses the memory of the first
		last := w.Items()
		if last != 0 {
			t.Fatalf("round %d begins with %d items", round, last)
		}
		w.path, w.dead = "", ""
		fillWriter(t, &w, b)
		size := w.Size()
		if want := b.EncodedSize(); size != want {
			t.Errorf("Size: got %d, want %d", size, want)
		}
		if round == 0 {
			got, err := w.Take()
			if err != nil || !reflect.DeepEqual(&got, b) {
				t.Fatalf("Take: %v\ngot  %+v\nwant %+v", err, got, b)
			}
			continue
		}
		object, items, err := w.Flush()
		if err != nil || items != uint64(b.items()) {
			t.Fatalf("Flush: %d items, %v", items, err)
		}
		if want := mustEncode(t, EncodeBlock, b); !bytes.Equal(object, want) {
			t.Error("the object differs from EncodeBlock's")
		}
	}
}

func addRows(t *testing.T, w *ShardWriter, s *Shard) {
	t.Helper()
	for i := range s.Versions {
		r, name := &s.Versions[i], ""
		if p := r.Change.Place.Object; r.Change.Op == OpPut && p != Inline {
			name = s.Names[p]
		}
		if err := w.AddVersion(r, name); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.Objects {
		if err := w.AddObject(&s.Objects[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.Log {
		if err := w.AddLog(&s.Log[i]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestShardWriterWritesWhatEncodeShardWrites(t *testing.T) {
	first := map[Table]string{TableObjects: DataKey(0, testUUID(0)), TableLog: SlotKey(1),
		TableVersions: VersionKey("src/module-000/file-000000.go", 40)}
	for _, table := range []Table{TableVersions, TableObjects, TableLog} {
		s := sampleShard(table, 5000)
		s.Unknown = nil
		w := NewShardWriter(table)
		for round := range 2 { // the second uses the memory of the first
			w.begun = false
			addRows(t, w, s)
			object, ref, err := w.Flush()
			if err != nil {
				t.Fatal(err)
			}
			if want := mustEncode(t, EncodeShard, s); !bytes.Equal(object, want) {
				t.Errorf("table %d, round %d: the object differs from EncodeShard's", table, round)
			}
			want := ShardRef{Table: table, First: first[table], Size: int64(len(object)), Checksum: sha256.Sum256(object),
				Rows: uint64(s.items() - entriesOf(s))}
			if !reflect.DeepEqual(ref, want) {
				t.Errorf("table %d: got %+v, want %+v", table, ref, want)
			}
		}
	}
}

func entriesOf(s *Shard) (n int) {
	for i := range s.Log {
		n += len(s.Log[i].Entries)
	}
	return n
}

// A shard is full when it is as large as one fetch should be, by what it will
// be when it is stored, and at the latest at 4 MiB.
func TestShardIsFullAtItsStoredSize(t *testing.T) {
	w := NewShardWriter(TableVersions)
	_, changes := manyChanges(60_000)
	var sizes []int64
	for i := range changes {
		row := VersionRow{Slot: 1, Index: uint64(i), Entry: testUUID(1), Change: changes[i]}
		if err := w.AddVersion(&row, packObject(1).Name); err != nil {
			t.Fatal(err)
		}
		if w.Full() {
			object, _, err := w.Flush()
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, int64(len(object)))
		}
	}
	if len(sizes) < 2 {
		t.Fatalf("%d shards, should be several", len(sizes))
	}
	for _, n := range sizes {
		if n < ShardStored*8/10 || n > ShardStored*12/10 {
			t.Errorf("a full shard has %d bytes, should have about %d", n, ShardStored)
		}
	}
}

func TestShardThatCompressesWellIsFullAtItsRawSize(t *testing.T) {
	w := NewShardWriter(TableLog)
	message := strings.Repeat("m", 1000)
	var slot uint64
	for !w.Full() {
		slot++
		row := LogRow{Slot: slot, Kind: KindCommit, Entries: []LogEntry{{ID: testUUID(1), Message: message}}}
		if err := w.AddLog(&row); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.rows); n < ShardRaw || n > ShardRaw+2000 {
		t.Errorf("full at %d raw bytes, should be %d", n, ShardRaw)
	}
	// The largest row that a record can give still fits.
	big := LogRow{Slot: slot + 1, Kind: KindCommit}
	for i := range MaxRecordBody / MaxMessage {
		big.Entries = append(big.Entries, LogEntry{ID: testUUID(i), Message: strings.Repeat("x", MaxMessage)})
	}
	if err := w.AddLog(&big); err != nil {
		t.Fatal(err)
	}
	object, _, err := w.Flush()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeShard(object); err != nil {
		t.Fatal(err)
	}
}

func fillWriter(t *testing.T, w *BlockWriter, b *Block) {
	t.Helper()
	object := func(p Place) *Object {
		if p.Object == Inline {
			return nil
		}
		return &b.Objects[p.Object]
	}
	for i := range b.Changes {
		c := &b.Changes[i]
		o := object(c.Place)
		if c.Op == OpDelete {
			o = nil
		}
		if err := w.AddChange(c, o); err != nil {
			t.Fatal(err)
		}
	}
	for i := range b.Moves {
		if err := w.AddMove(&b.Moves[i], object(b.Moves[i].Place)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range b.Drops {
		if err := w.AddDrop(&b.Drops[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range b.Dead {
		if err := w.AddDead(name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDigestCoversWhatTheCallerAskedForAndNothingElse(t *testing.T) {
	digest := func(message string, changes ...Change) Hash {
		refs := make([]*Change, len(changes))
		for i := range changes {
			refs[i] = &changes[i]
		}
		h, err := Digest(&Entry{Message: message}, slices.Values(refs))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	base := put("a", "one", Place{Object: Inline, Length: 3})
	base.Meta = Meta{ContentType: "x", Tags: []Tag{{"k", "v"}}, Lifetime: 1, Keep: []string{"last 1"}}
	want := digest("m", base)
	if got := fmt.Sprintf("%x", want); got != goldenDigest {
		t.Errorf("the digest of the same change has changed for ever: got %s, want %s", got, goldenDigest)
	}
	same := base
	same.Place = Place{Object: 3, Offset: 9, Length: 2, Codec: CodecZstd}
	same.Unknown = unknownField(9, "x")
	if digest("m", same) != want {
		t.Error("place and unknown fields are covered")
	}
	other := map[string]func(*Change){
		"path":     func(c *Change) { c.Path = "b" },
		"op":       func(c *Change) { *c = Change{Op: OpDelete, Path: "a"} },
		"size":     func(c *Change) { c.Size++ },
		"sha256":   func(c *Change) { c.SHA256[0]++ },
		"mode":     func(c *Change) { c.Mode++ },
		"mtime":    func(c *Change) { c.MTime++ },
		"type":     func(c *Change) { c.Meta.ContentType = "y" },
		"tag":      func(c *Change) { c.Meta.Tags = []Tag{{"k", "w"}} },
		"lifetime": func(c *Change) { c.Meta.Lifetime++ },
		"keep":     func(c *Change) { c.Meta.Keep = nil },
	}
	for name, change := range other {
		c := base
		change(&c)
		if digest("m", c) == want {
			t.Errorf("%s is not covered", name)
		}
	}
	if digest("n", base) == want || digest("m") == want || digest("m", base, put("b", "two", Place{})) == want {
		t.Error("message or number of changes is not covered")
	}
	d := NewDigester("m")
	if err := d.Add(&base); err != nil {
		t.Fatal(err)
	}
	if err := d.Add(&base); err == nil {
		t.Error("the same path twice is no error")
	}
}

const goldenDigest = "dc82b8774461e3e9db15bb0b2daf793b6442c86b87a7abb989aa331e1cb9aee8"
