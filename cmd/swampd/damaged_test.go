package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// random makes a file that nothing makes smaller, below the working directory.
func (c *cli) random(name string, n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	rand.Read(b)
	c.file(name, string(b))
	return b
}

// objects are the files of the store's data objects, the largest first.
func (c *cli) objects() []string {
	c.t.Helper()
	names, err := filepath.Glob(filepath.Join(c.store(), "data", "*"))
	if err != nil {
		c.t.Fatal(err)
	}
	bytes := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			c.t.Fatal(err)
		}
		return info.Size()
	}
	slices.SortFunc(names, func(x, y string) int { return int(bytes(y) - bytes(x)) })
	return names
}

// flip changes one byte of a file.
func flip(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{b[0] ^ 1}, at); err != nil {
		t.Fatal(err)
	}
}

// files lists what regular files are below a directory.
func files(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			names = append(names, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func TestGetGoesOnWithoutWhatIsDamaged(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.damaged = true
	want := map[string][]byte{}
	for name, n := range map[string]int{"d/large": 3 << 20, "d/a": 300 << 10, "d/b": 300 << 10, "d/c": 300 << 10, "small": 100, "empty": 0} {
		want[name] = c.random(name, n)
	}
	c.ok("put", ".", "--exclude", "small")
	c.ok("put", "small") // in the record itself
	out := func(name string) string { return filepath.Join(c.base, name) }
	check := func(r *result, dir string, bad ...string) {
		t.Helper()
		r.wantCode(1).wantPlain()
		var g getJSON
		if err := json.Unmarshal([]byte(r.out), &g); err != nil {
			t.Fatalf("%v: %s", err, r.out)
		}
		var e errorJSON
		if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.Kind != "damaged" || e.Count != len(bad) || e.Hint == "" {
			t.Errorf("%v: %s", err, r.err)
		}
		var named []string
		for _, p := range g.Problems {
			named = append(named, p.Path)
			if p.Error == "" || strings.Contains(p.Error, p.Path+":") {
				t.Errorf("%s: %q", p.Path, p.Error)
			}
		}
		if g.Damaged != int64(len(bad)) || !slices.Equal(named, bad) || g.Written != int64(len(want)-len(bad)) {
			t.Errorf("%d files written, %d damaged: %v, want %v", g.Written, g.Damaged, named, bad)
		}
		var there []string
		for name, content := range want {
			if slices.Contains(bad, name) {
				continue
			}
			there = append(there, name)
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(content) {
				t.Errorf("%s: %d bytes, want %d, %v", name, len(got), len(content), err)
			}
		}
		slices.Sort(there)
		if got := files(t, dir); got != strings.Join(there, " ") {
			t.Errorf("written %q, want %q", got, there)
		}
	}
	// Byte 2,500,000 is in the third block of the large content, so that a part of
	// it was written when that is seen; byte 400,000 of the pack is in the middle of
	// the second of its contents.
	objects := c.objects()
	if len(objects) != 2 {
		t.Fatal(objects)
	}
	flip(t, objects[0], 2_500_000)
	c.run("get", ".", "-o", out("one")).wantCode(1).wantErr("d/large: damaged: ", "--skip-damaged", "swampd verify --read-data").wantPlain()
	c.run("get", "d/large", "-o", out("none"), "--skip-damaged").wantCode(1).wantErr("swampd: 1 file is damaged", "\n  d/large: damaged: ")
	if got := files(t, out("none")); got != "" {
		t.Errorf("%s was left behind", got)
	}
	check(c.run("get", ".", "-o", out("two"), "--skip-damaged", "--json"), out("two"), "d/large")
	flip(t, objects[1], 400_000)
	r := c.run("get", ".", "-o", out("three"), "--skip-damaged", "--json")
	var g getJSON
	if err := json.Unmarshal([]byte(r.out), &g); err != nil || len(g.Problems) != 2 {
		t.Fatalf("%v: %s", err, r.out)
	}
	check(r, out("three"), g.Problems[0].Path, "d/large")
	// What cannot be had replaces nothing.
	kept := filepath.Join(out("four"), "d", "large")
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.run("get", "d/large", "-o", out("four"), "--skip-damaged", "--force").wantCode(1)
	if got, err := os.ReadFile(kept); string(got) != "mine" {
		t.Errorf("the file that was there holds %q, %v", got, err)
	}
	for _, name := range objects {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	c.run("get", "d/b", "-o", out("five")).wantCode(1).wantErr("d/b: its content is missing from the store: data/", "--skip-damaged")
	check(c.run("get", ".", "-o", out("six"), "--skip-damaged", "--json"), out("six"), "d/a", "d/b", "d/c", "d/large")
	c.ok("get", "small", "empty", "-o", out("seven"), "--skip-damaged")
}

func TestTheFirstDamagedFilesAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.damaged = true
	for i := range 12 {
		c.random(fmt.Sprintf("f%02d", i), 100<<10)
	}
	c.ok("put", ".")
	for _, name := range c.objects() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	r := c.run("get", ".", "-o", "out", "--skip-damaged").wantCode(1).wantErr("12 files are damaged or missing", "… and 2 more").wantPlain()
	if n := strings.Count(r.err, "its content is missing"); n != maxProblems {
		t.Errorf("%d files are named, want %d:\n%s", n, maxProblems, r.err)
	}
}
