package main

import (
	"encoding/json"
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
// command, which can tell that its owner is dead. Its lease must still run out, since nobody
// can tell from the store whether it lives: that is said to who does not wait.
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
	var e errorJSON
	r := c.run("put", "x", "--max-wait", "0", "--json").wantCode(75)
	if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.Kind != "busy" || !strings.Contains(e.Error, "if it has died, it can be replaced in ") {
		t.Errorf("%v: %s", err, r.err)
	}
	c.ok("doctor").wantLine("note", "writer", "swampd put - (process ")
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
	if got := files(t, c.store()); strings.Contains(got, "data/") || strings.Contains(got, "tmp") {
		t.Errorf("the store holds %s", got)
	}
}
