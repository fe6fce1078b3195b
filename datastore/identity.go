package datastore

import (
	"encoding/json"
	"sync"

	"github.com/swampd/swampd/writer"
)

// selfIdentity is this process's identity as records carry it; it does not
// change while the process lives.
var selfIdentity = sync.OnceValue(func() json.RawMessage {
	b, err := json.Marshal(writer.Self())
	if err != nil { // strings and numbers only
		panic(err)
	}
	return b
})

func parseIdentity(raw json.RawMessage) (*writer.Identity, error) {
	var id writer.Identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return nil, err
	}
	return &id, nil
}
