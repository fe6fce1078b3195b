package writer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

const (
	maxLease = 1 << 20 // bytes of an encoded lease
	maxFence = 1 << 62 // far beyond any number of writers, far below overflow
	maxTTL   = time.Hour
)

// Lease is the record at format.LeaseKey: who the writer is. It is JSON for
// people, replaced by CAS only and never deleted. It gives progress, never
// safety: that is the barrier's work.
//
// Fields that this program does not know are kept in Extra, at every level.
// Those at the top survive a change of the writer, so a later format may put
// there only what holds for the datastore; what holds for one writer belongs
// into identity, adoption or guard, which each writer sets anew.
type Lease struct {
	Format    int       `json:"format"`
	MinReader int       `json:"minimum_reader"`
	Fence     uint64    `json:"fence"`
	Session   uuid.UUID `json:"session"`
	Released  bool      `json:"released"`
	// Writer and Epoch are the stable names that the writer was configured with.
	Writer string `json:"writer,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
	// Identity is the process; nil means unknown.
	Identity *Identity `json:"identity,omitempty"`
	Checkout string    `json:"checkout,omitempty"`
	Command  string    `json:"command,omitempty"`
	// Acquired and Renewed are by the writer's clock, for people only.
	Acquired time.Time `json:"acquired"`
	Renewed  time.Time `json:"renewed"`
	// TTLMillis is how long after its last renewal the writer may still act.
	TTLMillis int64 `json:"ttl_ms"`
	// Beat grows with each write of one session: no two contents are equal.
	Beat     uint64    `json:"beat"`
	Adoption *Adoption `json:"adoption,omitempty"`
	Guard    *Guard    `json:"guard,omitempty"`

	Extra map[string]json.RawMessage `json:"-"`
}

// Adoption is the promise that allows a fast takeover by the same writer: it
// renews every beat and stops by itself after self_fence without success.
type Adoption struct {
	BeatMillis      int64 `json:"beat_ms"`
	SelfFenceMillis int64 `json:"self_fence_ms"`
	SilenceMillis   int64 `json:"silence_ms"`

	Extra map[string]json.RawMessage `json:"-"`
}

// Guard names the file that the writer keeps under an exclusive flock.
type Guard struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
	ID    string `json:"id"`

	Extra map[string]json.RawMessage `json:"-"`
}

// TTL is the recorded time to live.
func (l *Lease) TTL() time.Duration { return time.Duration(l.TTLMillis) * time.Millisecond }

// Encode gives the bytes of the record. Equal records give equal bytes.
func (l *Lease) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the writer's lease: %w", err)
	}
	if data = append(data, '\n'); len(data) > maxLease {
		return nil, fmt.Errorf("the writer's lease has %d bytes, %d are possible; shorten its command, checkout or writer id", len(data), maxLease)
	}
	return data, nil
}

// DecodeLease reads a record. Errors: format.ErrUpgrade for what a newer
// program wrote, format.ErrCorrupt for all else that is no lease.
func DecodeLease(data []byte) (*Lease, error) {
	if len(data) > maxLease {
		return nil, corrupt("it has %d bytes, %d are possible", len(data), maxLease)
	}
	// Nothing but the minimum reader is looked at before it is known to fit.
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, corrupt("%w", err)
	}
	var minimum int
	if err := json.Unmarshal(all["minimum_reader"], &minimum); err != nil {
		return nil, corrupt("minimum_reader: %w", err)
	}
	if minimum > format.Version {
		return nil, fmt.Errorf("the writer's lease needs format %d, this program knows %d: %w", minimum, format.Version, format.ErrUpgrade)
	}
	l := &Lease{}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, corrupt("%w", err)
	}
	switch {
	case l.Format < l.MinReader || l.MinReader <= 0:
		return nil, corrupt("format %d with minimum_reader %d", l.Format, l.MinReader)
	case l.Fence == 0 || l.Fence > maxFence:
		return nil, corrupt("fence %d", l.Fence)
	case l.Session == uuid.Nil:
		return nil, corrupt("no session")
	case l.TTLMillis <= 0 || l.TTLMillis > maxTTL.Milliseconds():
		return nil, corrupt("ttl_ms %d", l.TTLMillis)
	}
	return l, nil
}

func corrupt(text string, args ...any) error {
	return fmt.Errorf("the writer's lease: %w: %w", format.ErrCorrupt, fmt.Errorf(text, args...))
}

// The JSON of each struct keeps what it does not know.

func (l *Lease) UnmarshalJSON(b []byte) (err error) {
	type plain Lease
	l.Extra, err = splitExtra(b, (*plain)(l))
	return err
}

func (l Lease) MarshalJSON() ([]byte, error) {
	type plain Lease
	return joinExtra(plain(l), l.Extra)
}

func (a *Adoption) UnmarshalJSON(b []byte) (err error) {
	type plain Adoption
	a.Extra, err = splitExtra(b, (*plain)(a))
	return err
}

func (a Adoption) MarshalJSON() ([]byte, error) {
	type plain Adoption
	return joinExtra(plain(a), a.Extra)
}

func (g *Guard) UnmarshalJSON(b []byte) (err error) {
	type plain Guard
	g.Extra, err = splitExtra(b, (*plain)(g))
	return err
}

func (g Guard) MarshalJSON() ([]byte, error) {
	type plain Guard
	return joinExtra(plain(g), g.Extra)
}

// splitExtra decodes the fields of *to by their exact names and returns the
// others. (encoding/json alone would also take "FENCE" for the fence.)
func splitExtra(b []byte, to any) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	known := map[string]json.RawMessage{}
	for f := range reflect.TypeOf(to).Elem().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if raw, ok := all[name]; ok {
			known[name] = raw
			delete(all, name)
		}
	}
	exact, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		all = nil
	}
	return all, json.Unmarshal(exact, to)
}

// joinExtra is the inverse: the known fields in their order, then the others,
// sorted.
func joinExtra(known any, extra map[string]json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(known)
	if err != nil || len(extra) == 0 {
		return b, err
	}
	more, err := json.Marshal(extra)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(b, []byte("{}")) {
		return more, nil
	}
	return append(append(b[:len(b)-1], ','), more[1:]...), nil
}
