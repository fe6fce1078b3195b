package faults

import (
	"errors"
	"fmt"
	"strings"

	"github.com/swampd/swampd/backend"
)

// Call is one call that was made, and what the caller was told.
type Call struct {
	Op Op
	// Keys is the key, or all keys of a Delete, or the prefix of a List.
	Keys []string
	// Get is what a Get asked for, After where a List began.
	Get   backend.GetOptions
	After string
	// Bytes is the size of the body of a Create or Replace, and what was read of
	// the body of a Get. Entries is how many entries a List yielded.
	Bytes   int64
	Entries int
	// Err is what the caller was told; Fault names what struck the call, if
	// anything.
	Err   error
	Fault string

	done bool
}

// String is one line of a trace.
func (c Call) String() string { return c.text(func(s string) string { return s }) }

func (c Call) text(key func(string) string) string {
	var b strings.Builder
	b.WriteString(c.Op.String())
	for _, k := range c.Keys {
		if k != "" {
			b.WriteString(" " + key(k))
		}
	}
	switch c.Op {
	case Get:
		if o := c.Get; o.Offset != 0 || o.Length != 0 {
			fmt.Fprintf(&b, " from %d", o.Offset)
			if o.Length != 0 {
				fmt.Fprintf(&b, " length %d", o.Length)
			}
		}
		if c.Get.IfVersion != "" {
			b.WriteString(" pinned")
		}
	case List:
		if c.After != "" {
			b.WriteString(" after " + key(c.After))
		}
	}
	switch {
	case !c.done:
		b.WriteString(": no answer yet")
	case c.Err != nil:
		fmt.Fprintf(&b, ": %v", short(c.Err))
	case c.Op == List:
		fmt.Fprintf(&b, ": %d entries", c.Entries)
	case c.Op&(Get|Create|Replace) != 0:
		fmt.Fprintf(&b, ": %d bytes", c.Bytes)
	default:
		b.WriteString(": ok")
	}
	if c.Fault != "" {
		fmt.Fprintf(&b, " (%s)", c.Fault)
	}
	return b.String()
}

// short is the sentinel of an error where it has one, so that traces do not
// change with the words of a store.
func short(err error) error {
	for _, s := range []error{
		backend.ErrUnknown, backend.ErrNotFound, backend.ErrExists, backend.ErrChanged, backend.ErrConflict,
		backend.ErrBusy, backend.ErrDenied, backend.ErrUnsupported, backend.ErrBadContent, backend.ErrFull,
		backend.ErrNoBucket, backend.ErrBadKey, backend.ErrClosed,
	} {
		if errors.Is(err, s) {
			return s
		}
	}
	return err
}

// Calls returns the calls since the beginning or the last Reset, in the order
// in which they were made.
func (d *Driver) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := make([]Call, len(d.calls))
	for i, c := range d.calls {
		calls[i] = *c
	}
	return calls
}

// Reset forgets the calls that were made. Rules and their counts stay.
func (d *Driver) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

// Trace returns the calls as text, a line for each. If name is given, keys are
// shown as it says: tests give names to keys that hold a uuid or a time.
func (d *Driver) Trace(name func(key string) string) string {
	if name == nil {
		name = func(s string) string { return s }
	}
	var b strings.Builder
	for _, c := range d.Calls() {
		b.WriteString(c.text(name) + "\n")
	}
	return b.String()
}

// Counts is how often each kind of call was made, whatever its outcome, and how
// many bytes of content were read by Gets and sent by Creates and Replaces.
type Counts struct {
	Get, Create, Replace, Delete, List, Clean int
	BytesRead, BytesSent                      int64
}

// Requests is the number of all calls.
func (c Counts) Requests() int {
	return c.Get + c.Create + c.Replace + c.Delete + c.List + c.Clean
}

// String names what is not zero, requests only: "2 get, 1 create".
func (c Counts) String() string {
	var s []string
	for _, k := range []struct {
		n    int
		name string
	}{{c.Get, "get"}, {c.Create, "create"}, {c.Replace, "replace"}, {c.Delete, "delete"}, {c.List, "list"}, {c.Clean, "clean"}} {
		if k.n != 0 {
			s = append(s, fmt.Sprintf("%d %s", k.n, k.name))
		}
	}
	if s == nil {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

// Counts counts all calls since the beginning or the last Reset.
func (d *Driver) Counts() Counts { return d.CountsOf("") }

// CountsOf counts those on keys that begin with prefix.
func (d *Driver) CountsOf(prefix string) Counts {
	var n Counts
	for _, c := range d.Calls() {
		if !(&Rule{Prefix: prefix, Do: Action{ops: everyOp}}).matches(c.Op, c.Keys) {
			continue
		}
		switch c.Op {
		case Get:
			n.Get++
			n.BytesRead += c.Bytes
		case Create:
			n.Create++
			n.BytesSent += c.Bytes
		case Replace:
			n.Replace++
			n.BytesSent += c.Bytes
		case Delete:
			n.Delete++
		case List:
			n.List++
		case Clean:
			n.Clean++
		}
	}
	return n
}
