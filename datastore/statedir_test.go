package datastore

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/swampd/swampd/backend/fs"
	"github.com/swampd/swampd/internal/format"
)

// Two Stores with one state directory are to each other as two processes.
func TestOnlyWhatNobodyStagesIsCleanedUp(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	b, err := p.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "x", bytes.NewReader(noise(1, format.SmallContent+1)), nil); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(p.dir, "staging", "of-a-dead-process")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	e.open(&Options{StateDir: p.dir}).close()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what a dead process staged is still there (%v)", err)
	}
	if _, err := os.Stat(p.staging); err != nil {
		t.Errorf("what is being staged was removed: %v", err)
	}
	if _, err := b.Commit(t.Context(), "after it"); err != nil {
		t.Fatal(err)
	}
	p.want(map[string][]byte{"x": noise(1, format.SmallContent+1)})
}

// filesystems is what the system says, of what exists, until the test ends.
func filesystems(t *testing.T, say func(path string) (string, error)) {
	was := networkFilesystem
	t.Cleanup(func() { networkFilesystem = was })
	networkFilesystem = func(path string) (string, error) {
		if _, err := os.Stat(path); err != nil {
			return "", err
		}
		return say(path)
	}
}

func nfsAt(root string) func(string) (string, error) {
	return func(path string) (string, error) {
		if path == root || strings.HasPrefix(path, root+string(filepath.Separator)) {
			return "NFS", nil
		}
		return "", nil
	}
}

// entries counts what is in dir; a directory that is missing has nothing.
func entries(t *testing.T, dir string) int {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return len(found)
}

func TestLocalFilesOnANetworkFilesystemAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ state, home string }{
		"itself":            {state: "."},
		"not made yet":      {state: "a/b/c"},
		"the user's":        {home: "."},
		"the user's, later": {home: "a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			nfs, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
			opts := &Options{SkipProbe: true}
			if c.state != "" {
				opts.StateDir = filepath.Join(nfs, c.state)
			}
			t.Setenv("XDG_STATE_HOME", filepath.Join(nfs, c.home))
			filesystems(t, nfsAt(nfs))
			refused := func(s *Store, err error) {
				t.Helper()
				if err == nil {
					t.Fatalf("it is opened (%v)", s.Close())
				}
				for _, want := range []string{nfs, "(NFS)", "Options.StateDir", "XDG_STATE_HOME", "locks"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q does not say %q", err, want)
					}
				}
				if n := entries(t, nfs); n > 0 {
					t.Errorf("%d entries were made there", n)
				}
			}
			refused(Init(t.Context(), store, opts))
			if n := entries(t, store); n > 0 {
				t.Errorf("%d entries were made in the store", n)
			}
			s, err := Init(t.Context(), store, &Options{SkipProbe: true, StateDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			refused(Open(t.Context(), store, opts))
		})
	}
}

// An automounter says what is there only after the first use.
func TestWhatIsMountedWhenItIsMadeIsRefused(t *testing.T) {
	e, dir := newEnv(t, nil), filepath.Join(t.TempDir(), "auto", "state")
	filesystems(t, nfsAt(filepath.Dir(dir)))
	if _, err := e.tryOpen(&Options{StateDir: dir}); err == nil || !strings.Contains(err.Error(), "(NFS)") {
		t.Errorf("got %v, want a refusal", err)
	}
	if n := entries(t, dir); n > 0 {
		t.Errorf("%d entries were made there", n)
	}
}

func TestAFilesystemOfWhichNothingIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		opens bool
	}{
		"the system has no such question": {errors.ErrUnsupported, true},
		"no answer":                       {errors.New("stale file handle"), false},
	} {
		e, dir := newEnv(t, nil), filepath.Join(t.TempDir(), "state")
		filesystems(t, func(string) (string, error) { return "", c.err })
		_, err := e.tryOpen(&Options{StateDir: dir})
		if (err == nil) != c.opens || !c.opens && !errors.Is(err, c.err) {
			t.Errorf("%s: got %v, want it opened: %v", name, err, c.opens)
		}
		e.damaged = true // the check at the end would open it too
	}
}
