package testserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDirectoriesOfDeadTestProcessesAreRemoved(t *testing.T) {
	in := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for name, made := range map[string]time.Time{"alive": old, "dead": old, "unlocked": old, "fresh": time.Now()} {
		dir := filepath.Join(in, s3DirPrefix+name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if name != "unlocked" {
			lock, err := lockFile(filepath.Join(dir, "lock"), true)
			if err != nil {
				t.Fatal(err)
			}
			if name == "alive" {
				defer lock.Close()
			} else {
				lock.Close()
			}
		}
		if err := os.Chtimes(dir, made, made); err != nil {
			t.Fatal(err)
		}
	}
	removeAbandoned(in)
	for name, want := range map[string]bool{"alive": true, "dead": false, "unlocked": false, "fresh": true} {
		if _, err := os.Stat(filepath.Join(in, s3DirPrefix+name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", name, err, want)
		}
	}
}

func TestALockedFileIsNotLockedTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockFile(path, false)
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	if second, err := lockFile(path, false); err != nil || second != nil {
		t.Fatalf("a second lock: %v, %v", second, err)
	}
	first.Close()
	third, err := lockFile(path, true)
	if err != nil || third == nil {
		t.Fatal(third, err)
	}
	third.Close()
}

func TestThePinnedVersionIsReadFromTheModule(t *testing.T) {
	dir, err := devtoolsDir()
	if err != nil {
		t.Fatal(err)
	}
	v, err := pinnedVersion(filepath.Join(dir, "go.mod"), s3Module)
	if err != nil || v == "" || v[0] != 'v' {
		t.Errorf("version %q, %v", v, err)
	}
	if v, err := pinnedVersion(filepath.Join(dir, "go.mod"), "example.org/none"); err == nil {
		t.Errorf("a module that is not required has the version %q", v)
	}
}

// The server stops with the last test that holds it, unless Main keeps it.
func TestTheServerRunsForAsLongAsItIsHeld(t *testing.T) {
	if os.Getenv(S3URLVariable) != "" {
		t.Skip("there is no server of the tests' own")
	}
	var own sharedServer
	a, err := own.acquire()
	if err != nil {
		t.Fatal(err)
	}
	b, err := own.acquire()
	if err != nil || a != b {
		t.Fatalf("%p and %p, %v", a, b, err)
	}
	runs := func() bool {
		select {
		case <-a.proc.done:
			return false
		default:
			return true
		}
	}
	own.release()
	if !runs() {
		t.Error("the server stopped while a test held it")
	}
	own.keep(true)
	own.release()
	if !runs() {
		t.Error("the server stopped although Main keeps it")
	}
	own.keep(false)
	if runs() {
		t.Error("the server goes on with nobody to hold it")
	}
	if _, err := os.Stat(a.dir); err == nil {
		t.Errorf("%s is left", a.dir)
	}
}
