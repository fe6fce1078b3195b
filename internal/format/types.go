// Package format holds the bytes of a datastore: records of the commit log,
// change lists, the footers of data objects, checkpoints and control records.
// design/format.md is its specification.
//
// Encoding is deterministic: equal values give equal bytes. Decoding trusts
// nothing: every length is checked against a limit before memory is taken, and
// what is damaged gives ErrCorrupt with the reason. What a newer program wrote
// gives ErrUpgrade, before anything else is looked at. Fields that this program
// does not know are kept in Unknown and written back.
package format

import (
	"crypto/sha256"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
)

// Version is the format that this program writes; MinReader is the oldest
// program (by its own Version) that can read what this one writes.
const (
	Version   = 3
	MinReader = 3
)

// Limits on decoded sizes. An encoder refuses to exceed them too.
const (
	MaxPath        = 4096     // bytes of a path
	MaxMessage     = 64 << 10 // bytes of a commit message
	MaxMeta        = 64 << 10 // bytes of a change's metadata, encoded
	MaxBody        = 32 << 20 // bytes of a frame's body, decoded
	MaxControl     = 1 << 20  // bytes of a control record
	MaxWriter      = 64 << 10 // bytes of a writer's identity
	MaxInline      = 256 << 10
	MaxRecord      = 4 << 20  // bytes of a whole record object
	MaxRecordBody  = 16 << 20 // bytes of its body, decoded: its row in a shard fits a body too
	MaxChangesHere = 2 << 20  // bytes of all blocks of a record; more go to change lists
	MaxListItems   = 1 << 16  // items in one block of a change list
	MaxEntries     = 4096     // entries in one record
	MaxLists       = 1 << 15  // change lists of one record
	BlockSize      = 1 << 20  // raw bytes of one block of a large content
	MaxBlocks      = 1 << 24  // blocks of a large content: 16 TiB
	SmallContent   = 1 << 20  // contents up to this size share packs
	MaxSmall       = 16 << 20 // bytes of a content that is stored in one piece: a reader takes this memory
	PackTarget     = 16 << 20
	MaxShards      = 1 << 17 // shards of one checkpoint
	MaxShardItems  = 1 << 17 // rows of one shard, entries of log rows included
)

// ErrCorrupt: the bytes are not what a correct program wrote.
// ErrUpgrade: a newer program wrote them; this one must be upgraded.
var (
	ErrCorrupt = errors.New("damaged")
	ErrUpgrade = errors.New("written by a newer version of this program: upgrade it")
)

// Hash is a sha256.
type Hash [sha256.Size]byte

// Kind says what a record does.
type Kind uint8

// The kinds of records. KindFence is a barrier: it only occupies its slot.
const (
	KindCommit    Kind = 1
	KindAppend    Kind = 2
	KindFence     Kind = 3
	KindRetention Kind = 4
	KindRepack    Kind = 5
	KindSweep     Kind = 6
)

// Record is one object of the commit log.
type Record struct {
	Slot    uint64 // 1, 2, 3 …
	Kind    Kind
	Fence   uint64
	Session uuid.UUID
	Writer  json.RawMessage // identity of the process, as in the lease; may be empty
	Time    int64           // ns since 1970 by the writer's clock, for people
	Prev    Hash            // sha256 of the whole object before; slot 1: of _control/format
	Entries []Entry
	// Block holds what belongs to no entry: moves, drops, dead names. Lists
	// name data objects with more of the same.
	Block Block
	Lists []ListRef
	// Sweep, in a sweep record: every name with a head at or below it that is
	// not live is dead for ever (R5).
	Sweep uint64
	// Contents are the inline contents of all entries, one after the other, as
	// the raw tail of the object. The offset of an inline Place counts from the
	// start of Contents. ContentsAt, set by decoding, is where the tail begins
	// in the object.
	Contents   []byte
	ContentsAt int64
	Unknown    []byte
}

// Entry is one caller's commit.
type Entry struct {
	ID      uuid.UUID
	Digest  Hash // of what the caller asked for: see Digest
	Message string
	Time    int64  // ns since 1970 by the caller's clock, for people
	Base    uint64 // the newest slot the caller had seen
	Block   Block
	Lists   []ListRef
	Unknown []byte
}

// Block is a set of changes with the table of the data objects they name.
type Block struct {
	Objects []Object // sorted by use, no name twice
	Changes []Change
	Moves   []Move
	Drops   []VersionRef
	Dead    []string
	Unknown []byte
}

// ListRef names a data object that holds one Block (kind ObjectList).
type ListRef struct {
	Object  Object
	Items   uint64 // changes, moves, drops and dead names together
	Unknown []byte
}

// ObjectKind says how a data object is laid out.
type ObjectKind uint8

// A pack holds many small contents, a large object one content in blocks; both
// end in a footer. A list is one frame with a Block.
const (
	ObjectPack  ObjectKind = 1
	ObjectLarge ObjectKind = 2
	ObjectList  ObjectKind = 3
)

// Object describes a data object.
type Object struct {
	Name string // key: data/<20-digit head>-<uuid>
	Kind ObjectKind
	Size int64 // stored bytes, footer and trailer included
	// FooterSize is the length of footer frame and trailer at the end; 0 for a
	// list. Checksum is the sha256 of those bytes, or of the whole list: the
	// footer holds a hash of everything else, so nothing is left unproved.
	FooterSize int64
	Checksum   Hash
	// New: made for this record; otherwise it must be live in the state before.
	New     bool
	Unknown []byte
}

// Op says what a change does to its path.
type Op uint8

// The operations.
const (
	OpPut    Op = 1
	OpDelete Op = 2
)

// Change is what an entry does to one path. For OpDelete only Path is set.
type Change struct {
	Op      Op
	Path    string
	Size    int64  // bytes of the content
	SHA256  Hash   // of the content
	Mode    uint32 // permission bits as in fs.FileMode, plus fs.ModeSymlink: content is the target
	MTime   int64  // ns since 1970; 0 = none
	Meta    Meta
	Place   Place
	Unknown []byte
}

// Meta is what a caller may say of a content; retention reads Lifetime and Keep.
type Meta struct {
	ContentType string
	Tags        []Tag    // sorted by Key, no key twice
	Lifetime    int64    // ns after the commit, 0 = for ever
	Keep        []string // keep rules, as written by the caller
	Unknown     []byte
}

// IsZero says whether nothing was said.
func (m *Meta) IsZero() bool {
	return m.ContentType == "" && len(m.Tags) == 0 && m.Lifetime == 0 && len(m.Keep) == 0 && len(m.Unknown) == 0
}

// Tag is a key and a value.
type Tag struct{ Key, Value string }

// Codec says how stored bytes become content.
type Codec uint8

// CodecRaw: as they are. CodecZstd: one zstd frame. CodecBlocks: blocks of
// BlockSize raw bytes, each raw or one zstd frame, as the footer says.
const (
	CodecRaw    Codec = 0
	CodecZstd   Codec = 1
	CodecBlocks Codec = 2
)

// Inline as Place.Object: the bytes lie in the record itself.
const Inline = -1

// Place says where the stored bytes of a content are. The content of size 0
// has the place {Object: Inline, Length: 0} and no bytes anywhere.
type Place struct {
	Object  int // index in Block.Objects, or Inline
	Offset  int64
	Length  int64 // stored bytes
	Codec   Codec
	Unknown []byte
}

// VersionRef names one version of a path: the one that slot made.
type VersionRef struct {
	Path    string
	Slot    uint64
	Unknown []byte
}

// Move gives a version another place (repack).
type Move struct {
	VersionRef
	Place Place
}

// Footer is the index at the end of a pack or large object, so that a lost
// catalog can be rebuilt: all that is known about each content when the object
// is made. Changes' places have Object 0 (this one).
type Footer struct {
	Kind    ObjectKind
	Head    uint64 // the replica's head when the object was named
	Entry   uuid.UUID
	Session uuid.UUID
	Time    int64
	Changes []Change
	// Blocks, for a large object: the blocks of its only content in order.
	Blocks  []BlockRef
	Unknown []byte
}

// BlockRef is one block of a large content.
type BlockRef struct {
	Length int64 // stored bytes
	Codec  Codec // CodecRaw or CodecZstd
	SHA256 Hash  // of the raw block
}

// Root is a checkpoint's first object.
type Root struct {
	Datastore uuid.UUID
	Seq       uint64 // the state is that after this slot
	ChainHash Hash   // sha256 of the record at Seq
	Fence     uint64 // of the newest barrier at or below Seq
	Session   uuid.UUID
	Sweep     uint64
	Horizon   uint64 // entry ids of slots above it are kept
	Time      int64
	Versions  uint64 // rows in the version shards, and so on
	Objects   uint64
	Slots     uint64
	Shards    []ShardRef // by table, then by First
	Unknown   []byte
}

// Table says what the rows of a shard are.
type Table uint8

// The tables of a checkpoint and their sort keys (byte order).
const (
	TableVersions Table = 1 // path, then slot
	TableObjects  Table = 2 // name
	TableLog      Table = 3 // slot
)

// ShardRef names one shard: rows of one table with keys from First up to the
// next shard's First. Keys are as in VersionKey, the name, and SlotKey.
type ShardRef struct {
	Table    Table
	First    string
	Name     string // key: checkpoints/<20-digit seq>-<uuid>-<n>
	Size     int64
	Checksum Hash // sha256 of the whole object
	Rows     uint64
	Unknown  []byte
}

// Shard holds rows of exactly one table.
type Shard struct {
	Table    Table
	Names    []string // data objects that the versions' places name
	Versions []VersionRow
	Objects  []ObjectRow
	Log      []LogRow
	Unknown  []byte
}

// VersionRow is one retained version of one path.
type VersionRow struct {
	Slot  uint64
	Index uint64 // position of the change in its record, lists included
	Entry uuid.UUID
	// Until is set only where the next version of the path was dropped: the slot
	// that had made it. Without it a state between would show this version
	// instead of saying that it is gone. 0 = until the slot of the next row.
	Until  uint64
	Change Change // Place.Object is an index in Shard.Names, or Inline
	// For an inline place Place.Offset counts from the start of the record's
	// object, not of its contents.
	Unknown []byte
}

// ObjectRow is one data object that is live, or dead and not yet forgotten.
type ObjectRow struct {
	Object  Object // New is not used
	Born    uint64 // slot that made it live
	Dead    uint64 // slot that marked it dead, 0 = live
	Unknown []byte
}

// LogRow is what people and R3 need of one slot when its record is gone.
type LogRow struct {
	Slot    uint64
	Kind    Kind
	Fence   uint64
	Session uuid.UUID
	Writer  json.RawMessage
	Time    int64
	Size    int64 // bytes of the record and of its lists
	Hash    Hash
	Entries []LogEntry
	Unknown []byte
}

// LogEntry is an entry without its changes.
type LogEntry struct {
	ID      uuid.UUID
	Digest  Hash
	Message string
	Time    int64
	Base    uint64
	Changes uint64
	Unknown []byte
}
