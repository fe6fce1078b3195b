package catalog

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// schemaVersion is written as user_version. An older one is not converted: the
// file is a cache, so it is made anew.
const (
	schemaVersion = 1
	applicationID = 0x53574d50 // "SWMP"
)

// What a row says is one encoded blob with a checksum; beside it stand only the
// columns that SQL looks at.
//
// A version's row is appended and never touched by a later version of its path:
// it ends where the next row of the path begins. Only where retention took that
// next row away is the end written down, as until. A size of NULL is a delete
// marker.
//
// contents finds a version by the first bytes of its content's sha256. Those are
// spread evenly, so each of them touches another page of a large index:
// contents_new takes them first and is small; maintenance moves them over in
// order, thousands at a time.
var schemaTables = []string{
	`CREATE TABLE state (k INTEGER PRIMARY KEY, data BLOB NOT NULL)`,
	`CREATE TABLE versions (id INTEGER PRIMARY KEY, path TEXT NOT NULL, slot INTEGER NOT NULL,
		size INTEGER, sha INTEGER, until INTEGER, data BLOB NOT NULL)`,
	`CREATE TABLE contents (sha INTEGER, id INTEGER, PRIMARY KEY (sha, id)) WITHOUT ROWID`,
	`CREATE TABLE contents_new (sha INTEGER, id INTEGER, PRIMARY KEY (sha, id)) WITHOUT ROWID`,
	`CREATE TABLE objects (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, born INTEGER NOT NULL,
		dead INTEGER NOT NULL, data BLOB NOT NULL)`,
	`CREATE TABLE log (slot INTEGER PRIMARY KEY, size INTEGER NOT NULL, hash BLOB NOT NULL, data BLOB NOT NULL)`,
	`CREATE TABLE writers (id INTEGER PRIMARY KEY, data BLOB NOT NULL UNIQUE)`,
	`CREATE TABLE entries (id BLOB PRIMARY KEY, slot INTEGER NOT NULL) WITHOUT ROWID`,
	`CREATE TABLE defects (id INTEGER PRIMARY KEY, slot INTEGER NOT NULL, path TEXT NOT NULL,
		object TEXT NOT NULL, what TEXT NOT NULL)`,
	// Rows that changed or went since the newest checkpoint, for the next one;
	// rows that came are found by their slot.
	`CREATE TABLE dirty_versions (path TEXT, slot INTEGER, at INTEGER NOT NULL, PRIMARY KEY (path, slot)) WITHOUT ROWID`,
	`CREATE TABLE dirty_objects (name TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID`,
	`CREATE UNIQUE INDEX versions_path ON versions (path, slot)`,
	`CREATE INDEX versions_until ON versions (until) WHERE until IS NOT NULL`,
}

// Made after the rows where those come in bulk.
const schemaSlotIndex = `CREATE INDEX versions_slot ON versions (slot)`

var tableNames = []string{"state", "versions", "contents", "contents_new", "objects", "log", "writers",
	"entries", "defects", "dirty_versions", "dirty_objects"}

// fileState is the one row of the table state.
type fileState struct {
	State

	datastore  uuid.UUID
	genesis    format.Hash
	generation uuid.UUID // made with the file: tells it from another at the same path

	versions  uint64
	paths     uint64
	pathBytes int64
	objects   uint64 // rows, dead ones included
	live      uint64
	bytes     int64 // of the live ones
	slots     uint64
	fresh     uint64 // rows of contents_new
	defects   uint64 // found, listed or not
}

func emptyState(opts Options, generation uuid.UUID) fileState {
	return fileState{
		State:      State{Hash: opts.Genesis},
		datastore:  opts.Datastore,
		genesis:    opts.Genesis,
		generation: generation,
	}
}

const stateSize = 4 + 3*16 + 2*32 + 16*8

// encode has a fixed layout: checksum, ids, hashes, numbers.
func (s *fileState) encode() []byte {
	b := make([]byte, 4, stateSize)
	b = append(b, s.datastore[:]...)
	b = append(b, s.generation[:]...)
	b = append(b, s.Session[:]...)
	b = append(b, s.genesis[:]...)
	b = append(b, s.Hash[:]...)
	for _, n := range s.numbers() {
		b = binary.LittleEndian.AppendUint64(b, *n)
	}
	for _, n := range []int64{s.LogBytes, s.pathBytes, s.bytes} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return seal(b, 0)
}

func (s *fileState) numbers() []*uint64 {
	return []*uint64{&s.Head, &s.Fence, &s.Sweep, &s.Horizon, &s.CheckpointSeq, &s.LogSlots,
		&s.versions, &s.paths, &s.objects, &s.live, &s.slots, &s.fresh, &s.defects}
}

func (s *fileState) decode(b []byte) error {
	if len(b) < 4+3*16+2*32 || !sealed(b, 0) {
		return fmt.Errorf("%w: bad state row", ErrDamaged)
	}
	b = b[4:]
	for _, id := range []*uuid.UUID{&s.datastore, &s.generation, &s.Session} {
		b = b[copy(id[:], b):]
	}
	for _, h := range []*format.Hash{&s.genesis, &s.Hash} {
		b = b[copy(h[:], b):]
	}
	numbers := s.numbers()
	if len(b) != (len(numbers)+3)*8 {
		return fmt.Errorf("%w: state row of %d bytes", ErrDamaged, len(b))
	}
	next := func() uint64 {
		n := binary.LittleEndian.Uint64(b)
		b = b[8:]
		return n
	}
	for _, n := range numbers {
		*n = next()
	}
	s.LogBytes, s.pathBytes, s.bytes = int64(next()), int64(next()), int64(next())
	return nil
}

// readState reads the state row; as the first read of a transaction it fixes
// what the transaction sees.
func (c *conn) readState(ctx context.Context) (fileState, error) {
	var s fileState
	row, err := c.row(ctx, `SELECT data FROM state WHERE k = 0`)
	if err != nil {
		return s, err
	}
	if row == nil {
		return s, fmt.Errorf("%s: %w: no state row", c.path, ErrDamaged)
	}
	data, _ := row[0].([]byte)
	if err := s.decode(data); err != nil {
		return s, fmt.Errorf("%s: %w", c.path, err)
	}
	return s, nil
}

func (c *conn) writeState(ctx context.Context, s *fileState) error {
	return c.exec(ctx, `INSERT OR REPLACE INTO state (k, data) VALUES (0, ?)`, s.encode())
}

// create makes the tables inside of a transaction, those of before removed.
func (c *conn) create(ctx context.Context, s *fileState, slotIndex bool) error {
	lines := make([]string, 0, 2*len(tableNames)+4)
	for _, name := range tableNames {
		lines = append(lines, "DROP TABLE IF EXISTS "+name)
	}
	lines = append(lines, schemaTables...)
	if slotIndex {
		lines = append(lines, schemaSlotIndex)
	}
	lines = append(lines,
		fmt.Sprintf("PRAGMA application_id = %d", applicationID),
		fmt.Sprintf("PRAGMA user_version = %d", schemaVersion))
	if err := c.script(ctx, lines...); err != nil {
		return err
	}
	return c.writeState(ctx, s)
}
