package catalog

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// State is where a catalog stands.
type State struct {
	Head    uint64      // newest slot folded, 0 = none
	Hash    format.Hash // chain hash of the record at Head; the genesis at 0
	Fence   uint64      // highest fence of any record
	Session uuid.UUID   // of the newest barrier, or uuid.Nil
	Sweep   uint64      // names with a head at or below it that are not live are dead for ever
	Horizon uint64      // entry ids of slots above it are kept

	CheckpointSeq uint64 // seq of the newest checkpoint that is known
	LogSlots      uint64 // slots above CheckpointSeq
	LogBytes      int64  // bytes of their records and lists
}

// Located says where the stored bytes of a content are.
type Located struct {
	// Inline: they lie in the record object of slot Slot, and Offset counts from
	// the start of that object. A content of size 0 is inline with Length 0.
	Inline bool
	Slot   uint64
	// Object holds them otherwise, and Offset counts from its start.
	Object format.Object
	// A version with a dead or suspect object is a defect of the log: its bytes
	// may be gone.
	Dead    uint64 // slot that marked Object dead, 0 = it is live
	Suspect bool   // no record made Object live as it should
	Offset  int64
	Length  int64 // stored bytes
	Codec   format.Codec
}

// Version is one retained version of one path.
type Version struct {
	Path   string
	Slot   uint64    // of the record that made it
	Index  uint64    // position of the change in its record, lists included
	Entry  uuid.UUID // the entry that made it
	Op     format.Op
	Size   int64
	SHA256 format.Hash
	Mode   uint32
	MTime  int64
	Meta   format.Meta
	Until  uint64 // slot that put another in its place, 0 = it is current
	Place  Located
}

// Object is a data object as the catalog knows it.
type Object struct {
	format.Object        // New is not set
	Born          uint64 // slot that made it live, 0 = none did: an orphan that was marked dead
	Dead          uint64 // slot that marked it dead, 0 = it is live
	// Suspect: a record referenced it that neither made it nor found it live (I5).
	Suspect bool

	rowUnknown []byte
}

// Row returns the object as a row of a checkpoint.
func (o *Object) Row() format.ObjectRow {
	return format.ObjectRow{Object: o.Object, Born: o.Born, Dead: o.Dead, Unknown: o.rowUnknown}
}

// described says whether a record described the object; of an orphan that was
// marked dead only the name is known, which is no row of a checkpoint.
func (o *Object) described() bool { return o.Kind != 0 }

// Live says whether a new commit may reference the object.
func (o *Object) Live() bool { return o.Dead == 0 && !o.Suspect }

// VersionRow is a row for a checkpoint's shard, with the name of its object in
// the place of an index.
type VersionRow struct {
	format.VersionRow
	Object string // empty for an inline place and for a delete
}

// Defect is something that a record says and that cannot be, set aside so that
// the records after it are folded all the same. It is an error that wraps
// format.ErrCorrupt.
type Defect struct {
	Slot   uint64
	Path   string // empty where none is meant
	Object string // likewise
	What   string
}

// Counts are totals of the state at the head.
type Counts struct {
	Versions   uint64 // retained versions, delete markers included: rows of a checkpoint's version shards
	Paths      uint64 // living paths
	PathBytes  int64  // content bytes of the living paths
	Objects    uint64 // live data objects, lists included
	Bytes      int64  // stored bytes of the live data objects
	ObjectRows uint64 // rows of a checkpoint's object shards: live, or dead and not forgotten
	Slots      uint64 // rows of a checkpoint's log shards
	Defects    uint64 // found, of which Defects lists the first MaxDefects
}

// MaxDefects bounds what a damaged or hostile log can make a catalog write down.
const MaxDefects = 10_000

// Error makes a Defect an error.
func (d *Defect) Error() string {
	where := ""
	if d.Path != "" {
		where += fmt.Sprintf(" path %q:", d.Path)
	}
	if d.Object != "" {
		where += fmt.Sprintf(" object %s:", d.Object)
	}
	return fmt.Sprintf("record %d:%s %s", d.Slot, where, d.What)
}

// Unwrap returns format.ErrCorrupt.
func (d *Defect) Unwrap() error { return format.ErrCorrupt }
