package writer

import (
	"encoding/json"
	"os"
)

// Identity says which process a record means. A part that could not be found
// out is empty, and then nothing may be concluded from it: hostnames and pids
// repeat, in containers above all.
type Identity struct {
	Hostname      string `json:"hostname,omitempty"`
	PIDNamespace  string `json:"pid_namespace,omitempty"`
	TimeNamespace string `json:"time_namespace,omitempty"`
	BootID        string `json:"boot_id,omitempty"`
	PID           int    `json:"pid,omitempty"`
	// StartTime is when the process began, as the system counts it; only
	// equality means something.
	StartTime string `json:"start_time,omitempty"`

	Extra map[string]json.RawMessage `json:"-"`
}

// Self is the identity of this process.
func Self() *Identity {
	id := &Identity{PID: os.Getpid()}
	id.Hostname, _ = os.Hostname()
	fillIdentity(id)
	return id
}

func (i *Identity) UnmarshalJSON(b []byte) (err error) {
	type plain Identity
	i.Extra, err = splitExtra(b, (*plain)(i))
	return err
}

func (i Identity) MarshalJSON() ([]byte, error) {
	type plain Identity
	return joinExtra(plain(i), i.Extra)
}

// same says that two identities are one process, as far as all parts are known.
func (i *Identity) same(me *Identity) bool {
	if i == nil || me == nil || here.apart(i, me) != "" {
		return false
	}
	return i.PID == me.PID && i.StartTime == me.StartTime
}
