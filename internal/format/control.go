package format

import (
	"encoding/json"

	"github.com/google/uuid"
)

// Marker is _control/format: created once, never replaced, JSON for people.
type Marker struct {
	Format    int       `json:"format"`
	MinReader int       `json:"minimum_reader"`
	Datastore uuid.UUID `json:"datastore"`
	Created   string    `json:"created"` // RFC 3339
	Program   string    `json:"program"`
}

// Checkpoint is _control/checkpoint, JSON, replaced by CAS; Seq, Floor, Sweep
// and Horizon only ever grow. Fields it does not know are kept by
// DecodeCheckpoint in Extra and written back by EncodeCheckpoint.
type Checkpoint struct {
	Format    int                        `json:"format"`
	MinReader int                        `json:"minimum_reader"`
	Seq       uint64                     `json:"seq"`            // the checkpoint's state; 0 = none was made
	Root      string                     `json:"root,omitempty"` // key of its Root
	RootSize  int64                      `json:"root_size,omitempty"`
	RootHash  string                     `json:"root_sha256,omitempty"` // sha256 of the root object, hex
	Floor     uint64                     `json:"floor"`                 // slots at or below may be gone
	Previous  uint64                     `json:"previous"`              // Seq of the checkpoint before; the floor never passes it (R22)
	Sweep     uint64                     `json:"sweep"`
	Horizon   uint64                     `json:"horizon"`
	Beat      uuid.UUID                  `json:"beat"` // fresh with every write, so that no two contents are equal
	Extra     map[string]json.RawMessage `json:"-"`
}
