package datastore

import (
	"io/fs"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/internal/format"
)

// Newest stands for the newest slot where a version is asked for.
const Newest = ^uint64(0)

// CheckPath says whether a path can be stored: relative, segments joined by
// "/", valid UTF-8 without NUL, no empty segment, no "." or "..", no ".swamp",
// at most 4,096 bytes. The error wraps ErrBadPath.
func CheckPath(path string) error { return format.CheckPath(path) }

// Version is one version of one path.
type Version struct {
	Path string
	// Slot is the record that made it: the version lives in the states from
	// Slot on, until Until (exclusive; 0 = still newest as far as was asked).
	Slot, Until uint64
	Commit      uuid.UUID
	Deleted     bool // a delete marker: only History and Diff show them
	Size        int64
	SHA256      [32]byte
	Mode        fs.FileMode // permission bits, and fs.ModeSymlink
	MTime       time.Time   // zero if none was given
	Meta        Meta

	place located
}

// Meta is what a caller may say of a content.
type Meta struct {
	ContentType string
	Tags        map[string]string
	// Lifetime is how long after its commit retention may remove the version;
	// zero = for ever. Stored now, obeyed by retention.
	Lifetime time.Duration
	// Keep holds keep rules for retention, as the caller writes them.
	Keep []string
}

// PutOptions says more of one content. Nil means: mode 0644, no mtime.
type PutOptions struct {
	Mode fs.FileMode // permission bits and fs.ModeSymlink; zero = 0644
	// MTime is kept to the nanosecond from 1677 to 2262, and as the nearer end
	// of that time beyond. Zero = none; for a file, its own.
	MTime time.Time
	Meta  Meta
	// SkipUnchanged leaves the path out of the commit if its newest version
	// has the same content, mode, mtime and meta.
	SkipUnchanged bool
}

// Put is what a Batch knows of a content after it was staged.
type Put struct {
	Path   string
	Size   int64
	SHA256 [32]byte
	// Unchanged: left out because of SkipUnchanged.
	Unchanged bool
	// Deduplicated: the content was in the datastore already.
	Deduplicated bool
}

// Commit is a landed commit.
type Commit struct {
	ID      uuid.UUID
	Slot    uint64
	Message string
	Time    time.Time // by the committer's clock, for people
	Changes uint64
	// Again: it had landed before; this call did nothing.
	Again bool
}

// LogEntry is one commit of the log, or one record without a commit.
type LogEntry struct {
	Slot    uint64
	Kind    string // commit, append, fence, retention, repack, sweep
	Fence   uint64
	Session uuid.UUID
	Writer  string    // who wrote it, for people
	Time    time.Time // by the writer's clock, for people
	Bytes   int64     // of the record and its change lists
	Commit  *Commit   // nil for records without entries
}

// Difference is one path that differs between two states.
type Difference struct {
	Path string
	From *Version // nil: was not there
	To   *Version // nil: is not there any more
}

// BatchOptions says more of a batch. Nil means: a fresh id, and the newest
// state as base.
type BatchOptions struct {
	// ID is the commit's id (a UUIDv7 of the caller's own). A commit with the
	// same id and the same content lands once, however often it is asked for.
	ID uuid.UUID
	// Base is the slot whose state the caller had seen; zero = the newest. If a
	// path of the batch was changed after it by somebody else, the commit fails
	// with ErrConflict.
	Base uint64
	// Lazy: this process becomes the writer with the first change that is staged,
	// not in Begin, so that a batch which turns out to change nothing disturbs
	// nobody and leaves nothing in the log. The call that stages the first change
	// waits for another writer then, up to Options.MaxWait (ErrBusy). If somebody
	// committed since Begin, it fails with ErrConflict: begin another batch.
	Lazy bool
}

// ReadOptions narrows a read. Nil means: all of the newest version.
type ReadOptions struct {
	At     uint64 // the state after this slot; zero = Newest
	Offset int64  // first byte; negative counts from the end
	Length int64  // bytes at most; zero = to the end
}

// ListOptions narrows a listing. Nil means: all of the newest state.
type ListOptions struct {
	Prefix string // paths that begin with it, byte for byte
	After  string // only paths greater than it
	At     uint64 // the state after this slot; zero = Newest
}

// LogOptions narrows a log. Nil means: all commits, newest first.
type LogOptions struct {
	From, To    uint64 // slots From ≤ n ≤ To; zero = no bound
	OldestFirst bool
	All         bool // records without commits too (fences, retention …)
}

// Progress is told of long work. Calls come from several goroutines and may
// overtake each other; apart from that, Done only grows within a phase.
//
// The phases: "read" (bytes of contents that puts have read since the Store was
// opened), "upload" (bytes that were sent since then), "commit" (a record is on
// its way), "catch up" and "checkpoint" (parts of a checkpoint), "verify log"
// (records), "verify objects" (data objects), "verify data" (bytes of contents).
type Progress struct {
	Phase       string
	Done, Total int64 // Total 0 = not known
}
