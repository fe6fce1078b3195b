package main

import (
	"strings"
	"testing"
)

// A put that finds nothing new makes no record, however often it runs.
func TestAPutOfNothingNewLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("a", "a")
	c.file("dir/b", "b")
	c.ok("put", ".")
	before := c.ok("log", "--all", "--json").out
	for range 3 {
		if out := c.ok("put", ".").out; !strings.Contains(out, "nothing new") {
			t.Error(out)
		}
	}
	if after := c.ok("log", "--all", "--json").out; after != before {
		t.Errorf("the log was\n%sand is\n%s", before, after)
	}
	c.file("dir/b", "another b")
	if out := c.ok("put", ".").out; !strings.Contains(out, "stored 1 file") {
		t.Errorf("after a change: %s", out)
	}
}
