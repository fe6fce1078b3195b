package main

import (
	"io/fs"
	"time"

	"github.com/swampd/swampd/datastore"
)

// The objects that --json writes, one line each. Fields are only ever added.
// Sizes are bytes; times are RFC 3339; hashes are lower-case hexadecimal; a slot
// is the number of a state; paths are as stored.

// errorJSON goes to standard error when a command fails.
type errorJSON struct {
	Error string `json:"error"` // what happened, to what
	// Kind is one of the kinds in errors.go: busy, unconfirmed, not-found …
	Kind     string    `json:"kind"`
	ExitCode int       `json:"exit_code"`
	Hint     string    `json:"hint,omitempty"`     // what to do next
	Detail   string    `json:"detail,omitempty"`   // the error as the program saw it
	Commit   string    `json:"commit,omitempty"`   // the id to ask about, when unconfirmed
	Problems []problem `json:"problems,omitempty"` // at most 10
	Count    int       `json:"problem_count,omitempty"`
}

// problem is one file that could not be stored or restored.
type problem struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// initJSON: swampd init.
type initJSON struct {
	Store     string `json:"store"`
	Datastore string `json:"datastore"` // id
}

// putJSON: swampd put. The counts are of files.
type putJSON struct {
	Store  string `json:"store"`
	Commit string `json:"commit,omitempty"` // id; absent when there was nothing new
	Slot   uint64 `json:"slot"`             // the state that holds what was put
	Again  bool   `json:"again,omitempty"`  // this commit had landed before
	Stored int64  `json:"stored"`           // in this commit
	Bytes  int64  `json:"bytes"`            // of these
	// Unchanged were stored like this already; Deduplicated, of the stored ones,
	// have contents that the datastore held already.
	Unchanged    int64     `json:"unchanged"`
	Deduplicated int64     `json:"deduplicated"`
	Skipped      int64     `json:"skipped"` // with --skip-unreadable
	Problems     []problem `json:"problems,omitempty"`
	Seconds      float64   `json:"seconds"`
}

// getJSON: swampd get.
type getJSON struct {
	Store     string    `json:"store"`
	Slot      uint64    `json:"slot"` // the state that was read
	Directory string    `json:"directory"`
	Written   int64     `json:"written"`
	Bytes     int64     `json:"bytes"`
	Unchanged int64     `json:"unchanged"` // were there already
	Damaged   int64     `json:"damaged"`   // left out, with --skip-damaged
	Problems  []problem `json:"problems,omitempty"`
	Seconds   float64   `json:"seconds"`
}

// versionJSON is one version of a path: the stream of ls and of log PATH.
type versionJSON struct {
	Path string `json:"path"`
	// Type is file, symlink, directory (folded by ls, then only Path is set) or
	// deleted (log PATH).
	Type        string            `json:"type"`
	Slot        uint64            `json:"slot,omitempty"`
	Until       uint64            `json:"until,omitempty"` // first slot without it
	Commit      string            `json:"commit,omitempty"`
	Size        *int64            `json:"size,omitempty"`
	SHA256      string            `json:"sha256,omitempty"`
	Mode        string            `json:"mode,omitempty"` // octal permissions
	MTime       *time.Time        `json:"mtime,omitempty"`
	ContentType string            `json:"content_type,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
	Lifetime    float64           `json:"lifetime_seconds,omitempty"`
	Keep        []string          `json:"keep,omitempty"`
	Time        *time.Time        `json:"time,omitempty"`    // of the commit; log PATH
	Message     string            `json:"message,omitempty"` // of the commit; log PATH
}

// catJSON: swampd cat, one object for each path; the content comes last.
type catJSON struct {
	versionJSON
	Offset  int64  `json:"offset"`
	Content string `json:"content_base64"`
}

// rmJSON: swampd rm.
type rmJSON struct {
	Store   string `json:"store"`
	Commit  string `json:"commit"`
	Slot    uint64 `json:"slot"`
	Again   bool   `json:"again,omitempty"`
	Removed int    `json:"removed"`
}

// logJSON: the stream of swampd log, newest first.
type logJSON struct {
	Slot    uint64    `json:"slot"`
	Kind    string    `json:"kind"`
	Fence   uint64    `json:"fence,omitempty"`
	Session string    `json:"session,omitempty"`
	Writer  string    `json:"writer,omitempty"`
	Time    time.Time `json:"time"`
	Bytes   int64     `json:"bytes,omitempty"`
	Commit  string    `json:"commit,omitempty"`
	Message string    `json:"message,omitempty"`
	Changes uint64    `json:"changes"`
}

// diffJSON: the stream of swampd diff.
type diffJSON struct {
	Change string       `json:"change"` // added, modified, deleted
	Path   string       `json:"path"`
	From   *versionJSON `json:"from,omitempty"`
	To     *versionJSON `json:"to,omitempty"`
}

// versionInfoJSON: swampd version.
type versionInfoJSON struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cgo      bool   `json:"cgo"`
}

// completionJSON: swampd completion.
type completionJSON struct {
	Shell  string `json:"shell"`
	Script string `json:"script"`
}

func describeVersion(v *datastore.Version) versionJSON {
	d := versionJSON{Path: v.Path, Slot: v.Slot, Until: v.Until, Commit: idText(v.Commit)}
	if v.Deleted {
		d.Type = "deleted"
		return d
	}
	d.Type = "file"
	if v.Mode&fs.ModeSymlink != 0 {
		d.Type = "symlink"
	}
	d.Size = &v.Size
	d.SHA256 = hexText(v.SHA256)
	d.Mode = octal(v.Mode)
	if !v.MTime.IsZero() {
		t := v.MTime.UTC()
		d.MTime = &t
	}
	d.ContentType, d.Tags, d.Keep = v.Meta.ContentType, v.Meta.Tags, v.Meta.Keep
	d.Lifetime = v.Meta.Lifetime.Seconds()
	return d
}

// verifyJSON: swampd verify.
type verifyJSON struct {
	Store       string        `json:"store"`
	OK          bool          `json:"ok"` // nothing but harmless findings
	Head        uint64        `json:"head"`
	Checkpoint  uint64        `json:"checkpoint"`
	Floor       uint64        `json:"floor"`
	Records     uint64        `json:"records"`
	Versions    uint64        `json:"versions"`
	Objects     uint64        `json:"objects"`
	StoredBytes int64         `json:"stored_bytes"`
	BytesRead   int64         `json:"bytes_read"`
	Findings    []findingJSON `json:"findings"`
	More        uint64        `json:"more_findings"`
}

// findingJSON is one thing that is wrong; harmless ones cost only space.
type findingJSON struct {
	Key      string `json:"key"`
	What     string `json:"what"`
	Harmless bool   `json:"harmless"`
}

// lockJSON: swampd lock status.
type lockJSON struct {
	Store string     `json:"store"`
	Held  bool       `json:"held"`
	Lease *leaseJSON `json:"lease,omitempty"` // the newest, also if it was given back
	// Age is since the last renewal, on the store's clock; nil if not known.
	Age     *float64     `json:"age_seconds,omitempty"`
	Verdict *verdictJSON `json:"verdict,omitempty"` // nil if nobody holds it
	// Takeover is when a new writer takes over; nil if no time decides that.
	Takeover *float64 `json:"takeover_seconds,omitempty"`
	Plan     string   `json:"plan"` // of a new writer, in words
}

// leaseJSON is a writer, as it describes itself.
type leaseJSON struct {
	Fence    uint64        `json:"fence"`
	Session  string        `json:"session"`
	Released bool          `json:"released"`
	Command  string        `json:"command,omitempty"`
	Checkout string        `json:"checkout,omitempty"`
	Writer   string        `json:"writer,omitempty"`
	Epoch    string        `json:"epoch,omitempty"`
	Identity *identityJSON `json:"identity,omitempty"`
	Acquired time.Time     `json:"acquired"` // by the writer's clock, as is renewed
	Renewed  time.Time     `json:"renewed"`
	TTL      float64       `json:"ttl_seconds"`
	Guard    string        `json:"guard,omitempty"` // path of the file

	FastAdoption *adoptionJSON `json:"fast_adoption,omitempty"`
}

type identityJSON struct {
	Hostname      string `json:"hostname,omitempty"`
	PID           int    `json:"pid,omitempty"`
	StartTime     string `json:"start_time,omitempty"`
	BootID        string `json:"boot_id,omitempty"`
	PIDNamespace  string `json:"pid_namespace,omitempty"`
	TimeNamespace string `json:"time_namespace,omitempty"`
}

type adoptionJSON struct {
	Beat      float64 `json:"beat_seconds"`
	SelfFence float64 `json:"self_fence_seconds"`
	Silence   float64 `json:"silence_seconds"`
}

type verdictJSON struct {
	Standing string `json:"standing"` // alive, gone, unknown
	Evidence string `json:"evidence"`
}

// lockReleaseJSON: swampd lock release.
type lockReleaseJSON struct {
	Store  string     `json:"store"`
	Fenced *leaseJSON `json:"fenced"` // nil if nobody held the lease
}

// doctorJSON: swampd doctor.
type doctorJSON struct {
	Store  string      `json:"store"`
	OK     bool        `json:"ok"` // no check failed
	Checks []checkJSON `json:"checks"`
}

// checkJSON is one thing that doctor looked at.
type checkJSON struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, note, failed
	Text   string `json:"text"`
	Hint   string `json:"hint,omitempty"`
}
