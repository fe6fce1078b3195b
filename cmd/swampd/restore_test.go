//go:build unix

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swampd/swampd/datastore"
)

var old = time.Date(2021, 3, 4, 5, 6, 7, 123456789, time.UTC)

func version(path, content string, mode fs.FileMode) *datastore.Version {
	return &datastore.Version{Path: path, Size: int64(len(content)), SHA256: sha256.Sum256([]byte(content)), Mode: mode, MTime: old}
}

func restoring(t *testing.T, dir string, force bool) *restorer {
	t.Helper()
	r, err := newRestorer(dir, force)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
		wantNoTemporaryFiles(t, dir)
	})
	return r
}

func wantNoTemporaryFiles(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".swampd-") {
			t.Errorf("%s was left behind", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func put(r *restorer, path, content string, mode fs.FileMode) error {
	return r.write(version(path, content, mode), strings.NewReader(content))
}

func TestRestoredFilesHaveContentModeTimeAndLinks(t *testing.T) {
	for _, force := range []bool{false, true} {
		dir := t.TempDir()
		r := restoring(t, dir, force)
		for i, c := range []struct {
			content string
			mode    fs.FileMode
		}{{"", 0o644}, {"x", 0o777}, {"y", 0o400}, {"z", 0o000}, {"program", 0o755}, {"a/../target", fs.ModeSymlink | 0o777}, {"/etc/passwd", fs.ModeSymlink | 0o777}} {
			name := fmt.Sprintf("d/e%d/f", i)
			if err := put(r, name, c.content, c.mode); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !info.ModTime().Equal(old) {
				t.Errorf("%v: time %v", c, info.ModTime())
			}
			if c.mode&fs.ModeSymlink != 0 {
				if target, err := os.Readlink(filepath.Join(dir, name)); target != c.content {
					t.Errorf("%v: link to %q, %v", c, target, err)
				}
				continue
			}
			if info.Mode() != c.mode {
				t.Errorf("%v: mode %v", c, info.Mode())
			}
			if os.Getuid() == 0 || c.mode&0o400 != 0 {
				if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != c.content {
					t.Errorf("%v: %q, %v", c, got, err)
				}
			}
		}
	}
}

func TestNothingIsWrittenOutsideOfTheDirectory(t *testing.T) {
	base := t.TempDir()
	dir, outside := filepath.Join(base, "dir"), filepath.Join(base, "outside")
	for _, d := range []string{dir, outside, filepath.Join(dir, "sub")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"absolute": outside, "relative": "../outside", "inside": "sub", "deep": "sub/../../outside", "file": victim, "dangling": filepath.Join(outside, "new"),
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, force := range []bool{false, true} {
		r := restoring(t, dir, force)
		for _, p := range []string{
			"absolute/victim", "relative/victim", "deep/victim", "absolute/new/x", "relative/new", "inside/x", "file/x", "dangling/x",
			"../outside/victim", "/" + victim, victim, "sub/../../outside/victim", "", ".", "..", "sub/..",
		} {
			if err := put(r, p, "evil", 0o644); err == nil {
				t.Errorf("%q was written (force %v)", p, force)
			}
		}
		// A link in the place of the file is not followed either: it is in the
		// way, or replaced.
		for _, p := range []string{"file", "dangling"} {
			err := put(r, p, "evil", 0o644)
			if force && err != nil || !force && !errors.Is(err, errDiffers) {
				t.Errorf("%q: %v (force %v)", p, err, force)
			}
		}
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside holds %v, %v", entries, err)
	}
	if got, err := os.ReadFile(victim); string(got) != "mine" {
		t.Errorf("the victim holds %q, %v", got, err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "sub")); err != nil || len(entries) > 0 {
		t.Errorf("a link inside of the directory was followed: %v, %v", entries, err)
	}
}

func TestFilesInTheWayAreKeptOrReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"same", "other", "longer"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(r *restorer, path, content string, want error) {
		t.Helper()
		if err := put(r, path, content, 0o644); !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	r := restoring(t, dir, false)
	check(r, "same", "same", nil)
	check(r, "other", "OTHER", errDiffers)
	check(r, "longer", "long", errDiffers)
	check(r, "same/x", "x", errNoDirectory)
	check(r, "d", "file", errDiffers)
	r = restoring(t, dir, true)
	check(r, "d", "file", errDirectory)
	check(r, "other/x", "x", errNoDirectory)
	check(r, "other", "OTHER", nil)
	if got, err := os.ReadFile(filepath.Join(dir, "other")); string(got) != "OTHER" {
		t.Errorf("%q, %v", got, err)
	}
}

// brokenReader ends in the middle, as a damaged content does.
type brokenReader struct{ r io.Reader }

var errBroken = errors.New("broken")

func (b *brokenReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = errBroken
	}
	return n, err
}

func TestAContentThatBreaksOffLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	for _, force := range []bool{false, true} {
		r := restoring(t, dir, force)
		for _, mode := range []fs.FileMode{0o644, fs.ModeSymlink | 0o777} {
			v := version("x", strings.Repeat("x", 1<<20), mode)
			if err := r.write(v, &brokenReader{strings.NewReader("half")}); !errors.Is(err, errBroken) {
				t.Errorf("got %v", err)
			}
		}
		if _, err := os.Lstat(filepath.Join(dir, "x")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the half file is there (%v)", err)
		}
	}
}

func TestManyDirectoriesAreNotHeldOpen(t *testing.T) {
	dir := t.TempDir()
	r := restoring(t, dir, false)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if err := put(r, fmt.Sprintf("a%d/b%d/c/f%d", i%7, i, w), "x", 0o644); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(r.dirs); n > maxOpenDirs+1 {
		t.Errorf("%d directories are open", n)
	}
	for name, d := range r.dirs {
		if d.users != 0 {
			t.Errorf("%s has %d users", name, d.users)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "a*/b*/c/f*"))
	if err != nil || len(files) != 800 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func TestTheSameFileFromManySidesIsWrittenOnce(t *testing.T) {
	dir := t.TempDir()
	r := restoring(t, dir, false)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := put(r, "d/x", "content", 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := os.ReadFile(filepath.Join(dir, "d/x")); !bytes.Equal(got, []byte("content")) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWhereAFileCannotExistIsKnownWithoutLookingTwice(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	look := presence{root: root}
	for _, c := range []struct {
		path    string
		want    bool
		blocked string
	}{
		{"x", true, ""}, {"a/x", true, ""}, {"a/b/x", true, ""}, {"a/b/c/d/x", false, ""}, {"a/b/c/x", false, ""}, {"a/b/c2/x", false, ""},
		{"a/b/y", true, ""}, {"a/file/x/y", false, "a/file"}, {"a/file/z", false, "a/file"}, {"b/x", false, ""}, {"c", true, ""},
		{"link", true, ""}, {"link/b/x", false, "link"}, {"link/file", false, "link"},
	} {
		if got, blocked := look.at(c.path); got != c.want || blocked != c.blocked {
			t.Errorf("%s: %v, blocked by %q", c.path, got, blocked)
		}
	}
	none := presence{}
	if there, _ := none.at("x"); there {
		t.Error("without a directory nothing exists")
	}
}

// What is behind a link in the target is not what was asked for: it is neither
// taken for the file, nor given its permissions, and it is known to be in the way
// before anything is written.
func TestALinkInPlaceOfADirectoryIsInTheWay(t *testing.T) {
	c := newCLI(t).withStore()
	c.file("a", "a")
	c.file("d/x", "x")
	c.file("d/y", "y")
	c.ok("put", ".")
	for _, content := range []string{"x", "other", ""} {
		c.dir = c.mkdir("out" + content)
		if err := os.MkdirAll(filepath.Join(c.dir, "elsewhere"), 0o755); err != nil {
			t.Fatal(err)
		}
		behind := filepath.Join(c.dir, "elsewhere", "x")
		if content != "" {
			if err := os.WriteFile(behind, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("elsewhere", filepath.Join(c.dir, "d")); err != nil {
			t.Fatal(err)
		}
		c.run("get", ".").wantCode(1).wantErr("1 file is in the way, so nothing was written", "d: is there already and is not a directory").wantPlain()
		c.run("get", ".", "--force").wantCode(1).wantErr("1 file is in the way, so nothing was written", "d: is there already and is not a directory")
		if info, err := os.Stat(behind); content != "" && (err != nil || info.Mode() != 0o600) {
			t.Errorf("what is behind the link has mode %v, %v", info.Mode(), err)
		}
	}
}

func TestForceReplacesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	for name, content := range map[string]string{"same": "same", "other": "new", "d/same": "s", "d/new": "n", "z": "z"} {
		c.file(name, content)
	}
	c.ok("put", ".")
	c.dir = c.mkdir("out")
	c.file("other", "old")
	c.file("d/same", "s")
	kept := c.file("same", "same")
	if err := os.Chmod(kept, 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(kept)
	if err != nil {
		t.Fatal(err)
	}
	// What no force replaces is found before anything is written.
	for _, obstacle := range []string{"d/new/x", "z/x"} {
		c.file(obstacle, "x")
	}
	c.run("get", ".", "--force").wantCode(1).wantErr("2 files are in the way, so nothing was written", "d/new: is a directory already", "z: is a directory already").wantPlain()
	if got, err := os.ReadFile(filepath.Join(c.dir, "other")); string(got) != "old" {
		t.Errorf("other holds %q, %v", got, err)
	}
	for _, obstacle := range []string{"d/new", "z"} {
		if err := os.RemoveAll(filepath.Join(c.dir, obstacle)); err != nil {
			t.Fatal(err)
		}
	}
	if r := c.ok("get", ".", "--force"); !strings.HasPrefix(r.out, "wrote 3 files (5 B) ") || !strings.HasSuffix(r.out, "; 2 files were there already\n") {
		t.Errorf("it said %q", r.out)
	}
	after, err := os.Stat(kept)
	if err != nil || !os.SameFile(before, after) || after.Mode() != 0o644 {
		t.Errorf("the file that was the same was replaced, or has mode %v, %v", after.Mode(), err)
	}
	for name, want := range map[string]string{"same": "same", "other": "new", "d/same": "s", "d/new": "n", "z": "z"} {
		if got, err := os.ReadFile(filepath.Join(c.dir, name)); string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
}

func TestNamesThatDifferOnlyByCase(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	for _, name := range []string{"README", "a", "d/É.txt", "d/é.txt", "readme.md", "z/x", "Z/y"} {
		c.runIn(strings.NewReader(name), "put", "-", "--as", name).wantCode(0)
	}
	out := c.mkdir("out")
	r := restoring(t, out, false)
	folds, err := foldsCase(r)
	if err != nil {
		t.Fatal(err)
	}
	if !folds {
		c.ok("get", ".", "-o", out)
	}
	c.env = append(c.env, foldsEnv+"=1")
	for _, more := range []string{"", "--force"} {
		dir := c.mkdir("folding" + more)
		c.run(strings.Fields("get . -o "+dir+" "+more)...).wantCode(1).wantErr("d/É.txt and d/é.txt are one name on this disk", "nothing was written").wantPlain()
		if got := files(t, dir); got != "" {
			t.Errorf("%s was written", got)
		}
		c.ok(strings.Fields("get README a readme.md z Z d/é.txt -o " + dir + " " + more)...)
	}
}
