package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// refusal is a value that the format cannot hold. It is given to the encoder,
// and, written by a program without checks, to the decoder.
type refusal[T any] struct {
	name string
	set  func(*T)
	want error // of the decoder: ErrCorrupt if nil
	also error // of the encoder, beside ErrInvalid
}

func testRefusals[T any](t *testing.T, c codec, sample func() *T, write func(*T) []byte, tail func(*T) []byte, cases []refusal[T]) {
	for _, r := range cases {
		t.Run(r.name, func(t *testing.T) {
			x := sample()
			if _, err := c.encode(x); err != nil {
				t.Fatalf("the sample is refused itself: %v", err)
			}
			r.set(x)
			b, err := c.encode(x)
			if !errors.Is(err, ErrInvalid) || r.also != nil && !errors.Is(err, r.also) || b != nil || isRefusal(err) {
				t.Errorf("encode: got %v", err)
			}
			want := r.want
			if want == nil {
				want = ErrCorrupt
			}
			if got, err := c.decode(seal(c.kind, write(x), tail(x))); !errors.Is(err, want) || errors.Is(err, ErrBadPath) || got != nil {
				t.Errorf("decode: got %v", err)
			}
		})
	}
}

func noTail[T any](*T) []byte { return nil }

func testRecordRefusals(t *testing.T, cases []refusal[Record]) {
	testRefusals(t, codecs["record"], sampleFull, func(r *Record) []byte { b, _ := appendRecord(nil, r); return b },
		func(r *Record) []byte { return r.Contents }, cases)
}

func entryOf(r *Record) *Entry { return &r.Entries[0] }

func changeOf(r *Record, path string) *Change {
	for i := range entryOf(r).Block.Changes {
		if c := &entryOf(r).Block.Changes[i]; c.Path == path {
			return c
		}
	}
	panic(path)
}

func inlineOf(r *Record) *Change { return changeOf(r, "d/e\\f\n.txt") }

func TestRecordsThatCannotBeAreRefused(t *testing.T) {
	testRecordRefusals(t, []refusal[Record]{
		{name: "slot 0", set: func(r *Record) { r.Slot = 0 }},
		{name: "no kind", set: func(r *Record) { r.Kind, r.Sweep = 0, 0 }},
		{name: "a kind of a newer program", set: func(r *Record) { r.Kind, r.Sweep = KindSweep+1, 0 }, want: ErrUpgrade},
		{name: "a sweep mark in a commit", set: func(r *Record) { r.Kind = KindCommit }},
		{name: "a barrier that holds something", set: func(r *Record) { r.Kind, r.Sweep = KindFence, 0 }},
		{name: "a writer that is not JSON", set: func(r *Record) { r.Writer = json.RawMessage("{") }},
		{name: "a writer that is too long", set: func(r *Record) {
			r.Writer = json.RawMessage(`"` + strings.Repeat("x", MaxWriter-1) + `"`)
		}, also: ErrLimit},
		{name: "contents over the limit", set: func(r *Record) { r.Contents = make([]byte, MaxInline+1) }, also: ErrLimit},
		{name: "changes of no entry", set: func(r *Record) { r.Block.Changes = []Change{{Op: OpDelete, Path: "a"}} }},
		{name: "moves in an entry", set: func(r *Record) { entryOf(r).Block.Moves = []Move{{VersionRef{Path: "a", Slot: 1}, Place{Length: 1}}} }},
		{name: "drops in an entry", set: func(r *Record) { entryOf(r).Block.Drops = r.Block.Drops }},
		{name: "dead names in an entry", set: func(r *Record) { entryOf(r).Block.Dead = r.Block.Dead }},
		{name: "an entry without an id", set: func(r *Record) { entryOf(r).ID = uuid.Nil }},
		{name: "an entry twice", set: func(r *Record) { r.Entries[1].ID = r.Entries[0].ID }},
		{name: "entries over the limit", set: func(r *Record) {
			r.Entries = make([]Entry, MaxEntries+1)
			for i := range r.Entries {
				r.Entries[i].ID = testUUID(i)
			}
		}, also: ErrLimit},
		{name: "a message over the limit", set: func(r *Record) { entryOf(r).Message = strings.Repeat("x", MaxMessage+1) }, also: ErrLimit},
		{name: "a message that is not UTF-8", set: func(r *Record) { entryOf(r).Message = "\xff" }},
		{name: "changes over the limit", set: func(r *Record) {
			entryOf(r).Block = Block{Changes: manyDeletes(MaxChangesHere, "")}
		}, also: ErrLimit},
		{name: "lists over the limit", set: func(r *Record) {
			r.Lists = make([]ListRef, MaxLists)
			for i := range r.Lists {
				r.Lists[i] = ListRef{Object: listObject(100 + i), Items: 1}
			}
		}, also: ErrLimit},
		{name: "a body over the limit", set: func(r *Record) { r.Entries = longMessages(MaxRecordBody/MaxMessage+1, "x") }, also: ErrLimit},
		{name: "an object over the limit", set: func(r *Record) { r.Entries = longMessages(MaxRecord/MaxMessage+1, "") }, also: ErrLimit},
	})
}

func TestObjectsThatCannotBeAreRefused(t *testing.T) {
	testRecordRefusals(t, []refusal[Record]{
		{name: "an object twice", set: func(r *Record) { entryOf(r).Block.Objects[1].Name = entryOf(r).Block.Objects[0].Name }},
		{name: "an object without a good name", set: func(r *Record) { entryOf(r).Block.Objects[0].Name += "x" }},
		{name: "an object of no kind", set: func(r *Record) { entryOf(r).Block.Objects[0].Kind = 0 }},
		{name: "an object of a newer kind", set: func(r *Record) { entryOf(r).Block.Objects[0].Kind = 4 }, want: ErrUpgrade},
		{name: "an object smaller than its footer", set: func(r *Record) { entryOf(r).Block.Objects[0].Size = 4095 }},
		{name: "an object without a footer", set: func(r *Record) { entryOf(r).Block.Objects[0].FooterSize = 0 }},
		{name: "an object of negative size", set: func(r *Record) { entryOf(r).Block.Objects[0].Size = -1 }},
		{name: "a footer over the limit", set: func(r *Record) {
			entryOf(r).Block.Objects[0].Size, entryOf(r).Block.Objects[0].FooterSize = math.MaxInt64, MaxFooter+1
		}},
		{name: "unknown fields that are known", set: func(r *Record) { entryOf(r).Block.Objects[0].Unknown = unknownField(6, "x") }},
		{name: "unknown fields that are none", set: func(r *Record) { entryOf(r).Block.Objects[0].Unknown = []byte{0xff} }},
		{name: "a list that is a pack", set: func(r *Record) { r.Lists[0].Object = packObject(21) }},
		{name: "a list with a footer", set: func(r *Record) { r.Lists[0].Object.FooterSize = 100 }},
		{name: "a list of nothing", set: func(r *Record) { r.Lists[0].Items = 0 }},
		{name: "a list over the limit", set: func(r *Record) { r.Lists[0].Items = MaxListItems + 1 }, also: ErrLimit},
		{name: "a list twice in an entry", set: func(r *Record) { entryOf(r).Lists = append(entryOf(r).Lists, entryOf(r).Lists[0]) }},
		{name: "a list twice", set: func(r *Record) { r.Lists[0] = entryOf(r).Lists[0] }},
	})
}

func TestChangesThatCannotBeAreRefused(t *testing.T) {
	testRecordRefusals(t, []refusal[Record]{
		{name: "a path twice", set: func(r *Record) { changeOf(r, "big").Path = "packed" }},
		{name: "a bad path", set: func(r *Record) { changeOf(r, "big").Path = "../x" }, also: ErrBadPath},
		{name: "a path that is too long", set: func(r *Record) { changeOf(r, "big").Path = strings.Repeat("x", MaxPath+1) }, also: ErrBadPath},
		{name: "no operation", set: func(r *Record) { changeOf(r, "big").Op = 0 }},
		{name: "an operation of a newer program", set: func(r *Record) { changeOf(r, "big").Op = 3 }, want: ErrUpgrade},
		{name: "a mode of a newer program", set: func(r *Record) { changeOf(r, "big").Mode = 1 << 20 }, want: ErrUpgrade},
		{name: "a negative size", set: func(r *Record) { changeOf(r, "big").Size = -1 }},
		{name: "a delete with a size", set: func(r *Record) { changeOf(r, "gone").Size = 1 }},
		{name: "a delete with a hash", set: func(r *Record) { changeOf(r, "gone").SHA256[0] = 1 }},
		{name: "a delete with a mode", set: func(r *Record) { changeOf(r, "gone").Mode = 1 }},
		{name: "a delete with a time", set: func(r *Record) { changeOf(r, "gone").MTime = 1 }},
		{name: "a delete with metadata", set: func(r *Record) { changeOf(r, "gone").Meta.Lifetime = 1 }},
		{name: "metadata over the limit", set: func(r *Record) { inlineOf(r).Meta.ContentType = strings.Repeat("x", MaxMeta) }, also: ErrLimit},
		{name: "a negative lifetime", set: func(r *Record) { inlineOf(r).Meta.Lifetime = -1 }},
		{name: "a content type that is not UTF-8", set: func(r *Record) { inlineOf(r).Meta.ContentType = "\xff" }},
		{name: "a tag that is not UTF-8", set: func(r *Record) { inlineOf(r).Meta.Tags[1].Value = "\xff" }},
		{name: "a tag without a key", set: func(r *Record) { inlineOf(r).Meta.Tags[0].Key = "" }},
		{name: "tags that are not sorted", set: func(r *Record) { inlineOf(r).Meta.Tags[0].Key = "z" }},
		{name: "a tag twice", set: func(r *Record) { inlineOf(r).Meta.Tags[0].Key = "b" }},
		{name: "a keep rule that is not UTF-8", set: func(r *Record) { inlineOf(r).Meta.Keep[0] = "\xff" }},
	})
}

func TestPlacesThatCannotBeAreRefused(t *testing.T) {
	testRecordRefusals(t, []refusal[Record]{
		{name: "an inline place behind the contents", set: func(r *Record) { inlineOf(r).Place.Offset = 3 }},
		{name: "an inline place that overflows", set: func(r *Record) { inlineOf(r).Place.Offset = math.MaxInt64 }},
		{name: "an inline place with a negative offset", set: func(r *Record) { inlineOf(r).Place.Offset = -1 }},
		{name: "a raw place of another length", set: func(r *Record) { inlineOf(r).Place.Length = 4 }},
		{name: "an inline place in blocks", set: func(r *Record) { inlineOf(r).Place.Codec = CodecBlocks }},
		{name: "no bytes for some", set: func(r *Record) { inlineOf(r).Place.Length, inlineOf(r).Place.Codec = 0, CodecZstd }},
		{name: "a codec of a newer program", set: func(r *Record) { inlineOf(r).Place.Codec = 3 }, want: ErrUpgrade},
		{name: "some bytes for none", set: func(r *Record) { changeOf(r, "empty").Place.Length = 1 }},
		{name: "no bytes in an object", set: func(r *Record) { changeOf(r, "empty").Place.Object = 0 }},
		{name: "an object that is not in the table", set: func(r *Record) { changeOf(r, "packed").Place.Object = 2 }},
		{name: "an object below the first", set: func(r *Record) { changeOf(r, "packed").Place.Object = -2 }},
		{name: "a place behind the data", set: func(r *Record) { changeOf(r, "packed").Place.Offset = 1<<20 - 4096 - 89 }},
		{name: "a place that overflows", set: func(r *Record) { changeOf(r, "packed").Place.Offset = math.MaxInt64 - 5 }},
		{name: "a small content that is too large", set: func(r *Record) { changeOf(r, "packed").Size = MaxSmall + 1 }, also: ErrLimit},
		{name: "a large content that is too large", set: func(r *Record) { changeOf(r, "big").Size = MaxBlocks*BlockSize + 1 }, also: ErrLimit},
		{name: "a large content that grew", set: func(r *Record) { changeOf(r, "big").Size = 2_999_999 }},
		{name: "a pack in blocks", set: func(r *Record) { changeOf(r, "packed").Place.Codec = CodecBlocks }},
		{name: "a part of a large object", set: func(r *Record) { changeOf(r, "big").Place.Length-- }},
		{name: "a large object in one piece", set: func(r *Record) { changeOf(r, "big").Place.Codec = CodecZstd }},
		{name: "a content in a list", set: func(r *Record) { entryOf(r).Block.Objects[0] = listObject(10) }},
	})
}

func TestMovesAndDropsThatCannotBeAreRefused(t *testing.T) {
	testRecordRefusals(t, []refusal[Record]{
		{name: "a move of slot 0", set: func(r *Record) { r.Block.Moves[0].Slot = 0 }},
		{name: "a move of a bad path", set: func(r *Record) { r.Block.Moves[0].Path = "" }, also: ErrBadPath},
		{name: "a move into the record", set: func(r *Record) { r.Block.Moves[0].Place = Place{Object: Inline, Length: 1} }},
		{name: "a move to nowhere", set: func(r *Record) { r.Block.Moves[0].Place.Object = 1 }},
		{name: "a drop of slot 0", set: func(r *Record) { r.Block.Drops[0].Slot = 0 }},
		{name: "a drop of a bad path", set: func(r *Record) { r.Block.Drops[0].Path = "a//b" }, also: ErrBadPath},
		{name: "a bad dead name", set: func(r *Record) { r.Block.Dead[0] = "commits/1" }},
		{name: "a dead name twice", set: func(r *Record) { r.Block.Dead[0] = r.Block.Dead[1] }},
	})
}

// manyDeletes are changes of exactly so many bytes in a block.
func manyDeletes(size int, prefix string) []Change {
	var b Block
	b.Changes = []Change{{Op: OpDelete, Path: fmt.Sprintf("%s%06d", prefix, 0)}}
	one := b.EncodedSize()
	n := size/one - 1
	for i := 1; i < n; i++ {
		b.Changes = append(b.Changes, Change{Op: OpDelete, Path: fmt.Sprintf("%s%06d", prefix, i)})
	}
	rest := size - n*one // between one and two
	b.Changes = append(b.Changes, Change{Op: OpDelete, Path: prefix + "z" + strings.Repeat("z", rest-one+5)})
	if prefix == "" { // one byte over
		b.Changes[n].Path += "z"
	}
	return b.Changes
}

// longMessages are entries with the longest messages: of one letter, or of
// letters that cannot be compressed much.
func longMessages(n int, letter string) []Entry {
	entries := make([]Entry, n)
	rng := rand.New(rand.NewPCG(7, 8))
	for i := range entries {
		entries[i].ID = testUUID(i)
		if letter != "" {
			entries[i].Message = strings.Repeat(letter, MaxMessage)
			continue
		}
		message := make([]rune, MaxMessage/2)
		for j := range message {
			message[j] = 0x80 + rune(rng.IntN(0x800-0x80)) // two bytes each
		}
		entries[i].Message = string(message)
	}
	return entries
}

// At the limit, records are possible.
func TestRecordsAtTheLimitsArePossible(t *testing.T) {
	for name, set := range map[string]func(*Record){
		"entries": func(r *Record) {
			r.Entries = make([]Entry, MaxEntries)
			for i := range r.Entries {
				r.Entries[i].ID = testUUID(i)
			}
		},
		"message":  func(r *Record) { r.Entries[0].Message = strings.Repeat("x", MaxMessage) },
		"body":     func(r *Record) { r.Entries = longMessages(MaxRecordBody/MaxMessage-1, "x") },
		"path":     func(r *Record) { r.Entries[0].Block.Changes[1].Path = strings.Repeat("x", MaxPath) },
		"contents": func(r *Record) { r.Contents = make([]byte, MaxInline) },
		"writer":   func(r *Record) { r.Writer = json.RawMessage(`"` + strings.Repeat("x", MaxWriter-2) + `"`) },
		"changes":  func(r *Record) { r.Entries[0].Block = Block{Changes: manyDeletes(MaxChangesHere, "x")} },
		"changes of all entries": func(r *Record) {
			r.Entries[0].Block = Block{Changes: manyDeletes(MaxChangesHere/2, "x")}
			r.Entries = append(r.Entries, Entry{ID: testUUID(9), Block: Block{Changes: manyDeletes(MaxChangesHere/2, "x")}})
		},
		"metadata": func(r *Record) {
			r.Entries[0].Block.Changes[0].Meta.ContentType = strings.Repeat("x", MaxMeta-4)
			if n := len(appendMeta(nil, &r.Entries[0].Block.Changes[0].Meta)); n != MaxMeta {
				panic(n)
			}
		},
		"lists": func(r *Record) {
			r.Entries[0].Lists = make([]ListRef, MaxLists-1)
			for i := range r.Entries[0].Lists {
				r.Entries[0].Lists[i] = ListRef{Object: listObject(100 + i), Items: MaxListItems}
			}
			r.Lists = []ListRef{{Object: listObject(99), Items: 1}}
		},
	} {
		r := sampleInline()
		set(r)
		b, err := EncodeRecord(r)
		if err != nil {
			t.Errorf("%s: encode: %v", name, err)
			continue
		}
		if _, err := DecodeRecord(b); err != nil {
			t.Errorf("%s: decode: %v", name, err)
		}
	}
}

func TestListsThatCannotBeAreRefused(t *testing.T) {
	testRefusals(t, codecs["list"], sampleList, func(b *Block) []byte { return appendBlock(nil, b) }, noTail[Block], []refusal[Block]{
		{name: "nothing", set: func(b *Block) { *b = Block{Objects: b.Objects} }},
		{name: "items over the limit", set: func(b *Block) {
			*b = Block{Changes: make([]Change, MaxListItems+1)}
			for i := range b.Changes {
				b.Changes[i] = Change{Op: OpDelete, Path: fmt.Sprintf("%06d", i)}
			}
		}, also: ErrLimit},
		{name: "objects over the limit", set: func(b *Block) {
			b.Objects = make([]Object, MaxListItems+1)
			for i := range b.Objects {
				b.Objects[i] = packObject(i)
			}
		}, also: ErrLimit},
		{name: "a path twice", set: func(b *Block) { b.Changes[0].Path = b.Changes[200].Path }},
		{name: "an inline place behind any contents", set: func(b *Block) {
			b.Changes[0].Place = Place{Object: Inline, Offset: MaxInline, Length: 1, Codec: CodecZstd}
		}},
		{name: "a body over the limit", set: func(b *Block) { b.Unknown = unknownField(6, strings.Repeat("x", MaxBody)) }, also: ErrLimit},
	})
}

func TestInlinePlacesOfAListLieInTheContents(t *testing.T) {
	b := sampleList()
	b.Changes[5].Place = Place{Object: Inline, Offset: 10, Length: 20, Codec: CodecZstd}
	got, err := DecodeBlock(mustEncode(t, EncodeBlock, b))
	if err != nil {
		t.Fatal(err)
	}
	if err := got.CheckInline(30); err != nil {
		t.Errorf("all inside: %v", err)
	}
	if err := got.CheckInline(29); !errors.Is(err, ErrCorrupt) {
		t.Errorf("one byte outside: got %v", err)
	}
}

func TestShardsThatCannotBeAreRefused(t *testing.T) {
	write := func(s *Shard) []byte { return appendShard(nil, s) }
	c := codecs["shard"]
	testRefusals(t, c, func() *Shard { return sampleShard(TableVersions, 5) }, write, noTail[Shard], []refusal[Shard]{
		{name: "no table", set: func(s *Shard) { s.Table = 0 }},
		{name: "a newer table", set: func(s *Shard) { s.Table = 4 }, want: ErrUpgrade},
		{name: "no rows", set: func(s *Shard) { s.Versions = nil }},
		{name: "another table", set: func(s *Shard) { s.Table = TableObjects }},
		{name: "rows of two tables", set: func(s *Shard) { s.Log = sampleShard(TableLog, 1).Log }},
		{name: "a bad name", set: func(s *Shard) { s.Names[0] = "x" }},
		{name: "a name twice", set: func(s *Shard) { s.Names = append(s.Names, s.Names[0]) }},
		{name: "a place in no name", set: func(s *Shard) { s.Versions[0].Change.Place.Object = 1 }},
		{name: "an inline place behind any record", set: func(s *Shard) { s.Versions[5].Change.Place.Offset = MaxRecord }},
		{name: "slot 0", set: func(s *Shard) { s.Versions[0].Slot = 0 }},
		{name: "an end before the beginning", set: func(s *Shard) { s.Versions[5].Until = 3 }},
		{name: "a bad path", set: func(s *Shard) { s.Versions[0].Change.Path = ".swamp/x" }, also: ErrBadPath},
		{name: "paths that do not rise", set: func(s *Shard) { s.Versions[0], s.Versions[1] = s.Versions[1], s.Versions[0] }},
		{name: "slots of a path that do not rise", set: func(s *Shard) { s.Versions[6].Slot = 3 }},
		{name: "rows over the limit", set: func(s *Shard) {
			s.Versions = make([]VersionRow, MaxShardItems+1)
			for i := range s.Versions {
				s.Versions[i] = VersionRow{Slot: 1, Change: Change{Op: OpDelete, Path: fmt.Sprintf("%06d", i)}}
			}
		}, also: ErrLimit},
		{name: "names over the limit", set: func(s *Shard) {
			s.Names = make([]string, MaxShardItems+1)
			for i := range s.Names {
				s.Names[i] = DataKey(uint64(i), testUUID(1))
			}
		}, also: ErrLimit},
	})
	testRefusals(t, c, func() *Shard { return sampleShard(TableObjects, 5) }, write, noTail[Shard], []refusal[Shard]{
		{name: "an object that is new", set: func(s *Shard) { s.Objects[0].Object.New = true }},
		{name: "an object never born", set: func(s *Shard) { s.Objects[0].Born = 0 }},
		{name: "an object dead before it was born", set: func(s *Shard) { s.Objects[0].Born = 10 }},
		{name: "an object without a good name", set: func(s *Shard) { s.Objects[4].Object.Name = "data/1" }},
		{name: "names that do not rise", set: func(s *Shard) { s.Objects[1] = s.Objects[0] }},
		{name: "names of data objects", set: func(s *Shard) { s.Names = []string{DataKey(1, testUUID(1))} }},
	})
	testRefusals(t, c, func() *Shard { return sampleShard(TableLog, 5) }, write, noTail[Shard], []refusal[Shard]{
		{name: "a body over the limit", set: func(s *Shard) { s.Unknown = unknownField(6, strings.Repeat("x", MaxBody)) }, also: ErrLimit},
		{name: "slot 0 in the log", set: func(s *Shard) { s.Log[0].Slot = 0 }},
		{name: "slots that do not rise", set: func(s *Shard) { s.Log[1].Slot = 1 }},
		{name: "a newer kind of record", set: func(s *Shard) { s.Log[0].Kind = 7 }, want: ErrUpgrade},
		{name: "a negative size", set: func(s *Shard) { s.Log[0].Size = -1 }},
		{name: "a writer that is not JSON", set: func(s *Shard) { s.Log[0].Writer = json.RawMessage("x") }},
		{name: "an entry without an id", set: func(s *Shard) { s.Log[0].Entries[0].ID = uuid.Nil }},
		{name: "a message over the limit", set: func(s *Shard) { s.Log[0].Entries[0].Message = strings.Repeat("x", MaxMessage+1) }, also: ErrLimit},
		{name: "entries over the limit", set: func(s *Shard) { s.Log[0].Entries = manyLogEntries(MaxEntries + 1) }, also: ErrLimit},
		{name: "entries of all rows over the limit", set: func(s *Shard) {
			s.Log = nil
			for i := range MaxShardItems / MaxEntries {
				s.Log = append(s.Log, LogRow{Slot: uint64(i + 1), Kind: KindCommit, Entries: manyLogEntries(MaxEntries)})
			}
		}, also: ErrLimit},
	})
}

func manyLogEntries(n int) []LogEntry {
	entries := make([]LogEntry, n)
	for i := range entries {
		entries[i].ID = testUUID(1)
	}
	return entries
}

func TestRootsThatCannotBeAreRefused(t *testing.T) {
	testRefusals(t, codecs["root"], sampleRoot, func(r *Root) []byte { return appendRoot(nil, r) }, noTail[Root], []refusal[Root]{
		{name: "slot 0", set: func(r *Root) { *r = Root{Datastore: r.Datastore} }},
		{name: "a body over the limit", set: func(r *Root) { r.Unknown = unknownField(13, strings.Repeat("x", MaxBody)) }, also: ErrLimit},
		{name: "no datastore", set: func(r *Root) { r.Datastore = uuid.Nil }},
		{name: "no table", set: func(r *Root) { r.Shards[0].Table = 0 }},
		{name: "a newer table", set: func(r *Root) { r.Shards[3].Table = 4 }, want: ErrUpgrade},
		{name: "a shard without a good name", set: func(r *Root) { r.Shards[0].Name += "x" }},
		{name: "a shard that is a root", set: func(r *Root) { r.Shards[0].Name = RootKey(1, testUUID(1)) }},
		{name: "a shard of a later checkpoint", set: func(r *Root) { r.Shards[0].Name = ShardKey(101, testUUID(1), 0) }},
		{name: "a shard twice", set: func(r *Root) { r.Shards[0].Name = r.Shards[1].Name }},
		{name: "a shard without rows", set: func(r *Root) { r.Shards[0].Rows, r.Versions = 0, 15 }},
		{name: "rows over the limit", set: func(r *Root) { r.Shards[0].Rows, r.Versions = MaxShardItems+1, MaxShardItems+16 }, also: ErrLimit},
		{name: "a shard without size", set: func(r *Root) { r.Shards[0].Size = 0 }},
		{name: "tables that do not rise", set: func(r *Root) { r.Shards[2], r.Shards[3] = r.Shards[3], r.Shards[2] }},
		{name: "keys that do not rise", set: func(r *Root) { r.Shards[1].First = "" }},
		{name: "a key that is not UTF-8", set: func(r *Root) { r.Shards[1].First = "\xff" }},
		{name: "a key over the limit", set: func(r *Root) { r.Shards[1].First = strings.Repeat("x", MaxPath+22) }, also: ErrLimit},
		{name: "another number of versions", set: func(r *Root) { r.Versions++ }},
		{name: "another number of objects", set: func(r *Root) { r.Objects++ }},
		{name: "another number of slots", set: func(r *Root) { r.Slots++ }},
		{name: "shards over the limit", set: func(r *Root) {
			r.Shards = make([]ShardRef, MaxShards+1)
			for i := range r.Shards {
				r.Shards[i] = ShardRef{Table: TableLog, First: SlotKey(uint64(i + 1)), Name: ShardKey(1, testUUID(1), i), Size: 100, Rows: 1}
			}
			r.Versions, r.Objects, r.Slots = 0, 0, MaxShards+1
		}, also: ErrLimit},
	})
}

// Unknown holds fields that are not known: others would be read as something
// else, or not at all.
func TestUnknownFieldsThatAreKnownAreRefused(t *testing.T) {
	known := func(num int, unknown *[]byte) {
		if len(*unknown) == 0 {
			t.Fatal("the sample has no unknown field here")
		}
		*unknown = unknownField(num, "x")
	}
	testRecordRefusals(t, []refusal[Record]{
		{name: "record", set: func(r *Record) { known(recordFields, &r.Unknown) }},
		{name: "entry", set: func(r *Record) { known(entryFields, &entryOf(r).Unknown) }},
		{name: "block", set: func(r *Record) { known(blockFields, &entryOf(r).Block.Unknown) }},
		{name: "object", set: func(r *Record) { known(objectFields, &entryOf(r).Block.Objects[1].Unknown) }},
		{name: "list", set: func(r *Record) { known(listRefFields, &entryOf(r).Lists[0].Unknown) }},
		{name: "put", set: func(r *Record) { known(changeFields, &inlineOf(r).Unknown) }},
		{name: "delete", set: func(r *Record) { known(changeFields, &changeOf(r, "gone").Unknown) }},
		{name: "place", set: func(r *Record) { known(placeFields, &inlineOf(r).Place.Unknown) }},
		{name: "move", set: func(r *Record) { known(moveFields, &r.Block.Moves[0].Unknown) }},
		{name: "drop", set: func(r *Record) { known(versionRefFields, &r.Block.Drops[0].Unknown) }},
		{name: "half a field", set: func(r *Record) { r.Unknown = r.Unknown[:3] }},
	})
	for name, encode := range map[string]func() ([]byte, error){
		"metadata": func() ([]byte, error) {
			r := sampleFull()
			known(metaFields, &inlineOf(r).Meta.Unknown)
			return EncodeRecord(r)
		},
		"footer": func() ([]byte, error) {
			f := samplePackFooter()
			known(footerFields, &f.Unknown)
			return EncodeFooter(f)
		},
		"root": func() ([]byte, error) {
			r := sampleRoot()
			known(rootFields, &r.Unknown)
			return EncodeRoot(r)
		},
		"shard in a root": func() ([]byte, error) {
			r := sampleRoot()
			known(shardRefFields, &r.Shards[1].Unknown)
			return EncodeRoot(r)
		},
		"shard": func() ([]byte, error) {
			s := sampleShard(TableLog, 2)
			known(shardFields, &s.Unknown)
			return EncodeShard(s)
		},
		"version row": func() ([]byte, error) {
			s := sampleShard(TableVersions, 2)
			known(versionRowFields, &s.Versions[2].Unknown)
			return EncodeShard(s)
		},
		"object row": func() ([]byte, error) {
			s := sampleShard(TableObjects, 2)
			known(objectRowFields, &s.Objects[0].Unknown)
			return EncodeShard(s)
		},
		"log row": func() ([]byte, error) {
			s := sampleShard(TableLog, 2)
			known(logRowFields, &s.Log[0].Unknown)
			return EncodeShard(s)
		},
		"log entry": func() ([]byte, error) {
			s := sampleShard(TableLog, 2)
			known(logEntryFields, &s.Log[0].Entries[0].Unknown)
			return EncodeShard(s)
		},
	} {
		if _, err := encode(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
