package format

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestControlRecordsThatCannotBeAreRefused(t *testing.T) {
	for name, set := range map[string]func(*Checkpoint){
		"no beat":                  func(c *Checkpoint) { c.Beat = uuid.Nil },
		"floor over previous":      func(c *Checkpoint) { c.Floor = 51 },
		"previous over seq":        func(c *Checkpoint) { c.Previous = 101 },
		"a root of another slot":   func(c *Checkpoint) { c.Root = RootKey(99, testUUID(1)) },
		"a root without a slot":    func(c *Checkpoint) { c.Seq, c.Previous, c.Floor = 0, 0, 0 },
		"no root":                  func(c *Checkpoint) { c.Root = "" },
		"a bad hash":               func(c *Checkpoint) { c.RootHash = c.RootHash[1:] },
		"no size":                  func(c *Checkpoint) { c.RootSize = 0 },
		"a known field in Extra":   func(c *Checkpoint) { c.Extra["seq"] = json.RawMessage("1") },
		"an Extra that is no JSON": func(c *Checkpoint) { c.Extra["x"] = json.RawMessage("{") },
		"too much Extra":           func(c *Checkpoint) { c.Extra["x"] = json.RawMessage(`"` + strings.Repeat("x", MaxControl) + `"`) },
		"no format":                func(c *Checkpoint) { c.Format = 0 },
		"a reader over the format": func(c *Checkpoint) { c.MinReader = 4 },
	} {
		c := sampleCheckpoint()
		set(c)
		if b, err := EncodeCheckpoint(c); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, set := range map[string]func(*Marker){
		"no datastore": func(m *Marker) { m.Datastore = uuid.Nil },
		"no reader":    func(m *Marker) { m.MinReader = 0 },
		"too long":     func(m *Marker) { m.Program = strings.Repeat("x", MaxControl) },
	} {
		m := sampleMarker()
		set(m)
		if b, err := EncodeMarker(m); !errors.Is(err, ErrInvalid) || b != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
