package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheFirstPutMakesTheDefaultDatastore(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withDefault()
	c.file("a/b", "b")
	place := c.defaultStore()
	for _, args := range [][]string{{"ls"}, {"cat", "x"}, {"get", "."}, {"rm", "x"}, {"log"}, {"diff", "1"}, {"verify"}} {
		c.run(args...).wantCode(1).wantErr(place, "SWAMPD_STORE", "swampd put PATH")
		if _, err := os.Stat(place); err == nil {
			t.Fatalf("%v made the default datastore", args)
		}
	}
	c.ok("put", ".").wantErr("made the default datastore at " + place)
	if r := c.ok("put", "."); !strings.HasPrefix(r.out, "nothing new") || r.err != "" {
		t.Errorf("the second put said %q and %q", r.out, r.err)
	}
	if got := c.paths(); got != "a/b" {
		t.Errorf("stored %q", got)
	}
}

func TestTwoFirstPutsAtOnceUseOneDefaultDatastore(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withDefault()
	c.file("one", "1")
	c.file("two", "2")
	codes := make(chan int)
	for _, name := range []string{"one", "two"} {
		cmd := c.command("put", name)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("put %s: %v: %s", name, err, out)
			}
			codes <- 0
		}()
	}
	<-codes
	<-codes
	if got := c.paths(); got != "one two" {
		t.Errorf("stored %q", got)
	}
}

func TestInitAndOtherCommandsCanUseTheDefaultDatastore(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withDefault()
	c.ok("init")
	c.ok("ls").wantOut("")
	c.run("init").wantCode(1).wantErr("there is a datastore already")
}

func TestAPutOfTheHomeDirectoryLeavesTheDatastoreItselfOut(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withDefault()
	c.file("x", "x")
	c.dir = c.base
	for range 2 {
		c.ok("put", ".").wantErr("left out data/swampd/default", "left out state/swampd")
	}
	if got := c.paths(); got != "work/x" {
		t.Errorf("stored %q", got)
	}
	c.ok("put", ".", "-s", c.storeAt("elsewhere"), "--exclude", "work", "--state-dir", filepath.Join(c.base, "other-state")).wantErr("left out elsewhere", "left out other-state")
}

func (c *cli) defaultStore() string { return filepath.Join(c.base, "data", "swampd", "default") }

// withDefault makes the test end with a check of the default datastore.
func (c *cli) withDefault() *cli {
	c.sound(c.defaultStore())
	return c
}

func (c *cli) storeAt(name string) string {
	c.t.Helper()
	dir := filepath.Join(c.base, name)
	c.ok("init", dir)
	c.sound(dir)
	return dir
}
