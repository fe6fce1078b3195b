package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// staged is what lies in the staging areas of the local state.
func (c *cli) staged() []string {
	c.t.Helper()
	names, err := filepath.Glob(filepath.Join(c.base, "state", "swampd", "*", "staging", "*"))
	if err != nil {
		c.t.Fatal(err)
	}
	return names
}

// A process that is killed cleans nothing up. What it staged goes with the next
// command, which can tell that its owner is dead, and so can who wants to write:
// its lease is taken over at once.
func TestAKilledPutLeavesNothingHalfMade(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	p := c.startPut("big")
	c.ok("ls")
	if len(c.staged()) == 0 {
		t.Error("a command took the staging area of a living process away")
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != -1 {
		t.Errorf("exit code %d", code)
	}
	c.ok("ls")
	c.wantNothingStaged()
	c.ok("doctor").wantLine("note", "writer", "swampd put - (process ", "verdict gone", "would take it at once: its process is gone")
	st := c.lockStatus()
	if !st.Held || st.Verdict.Standing != "gone" || st.Takeover == nil || *st.Takeover != 0 {
		t.Errorf("the lease of a process that was killed: %+v, verdict %+v", st, st.Verdict)
	}
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
	if got := files(t, c.store()); strings.Contains(got, "data/") || strings.Contains(got, "tmp") {
		t.Errorf("the store holds %s", got)
	}
	c.ok("put", "x", "--max-wait", "0")
	if after := c.lockStatus(); after.Lease.Fence != st.Lease.Fence+1 || after.Held {
		t.Errorf("the lease after %+v is %+v", st.Lease, after.Lease)
	}
	if got := c.paths(); got != "x" {
		t.Errorf("stored %q", got)
	}
}
