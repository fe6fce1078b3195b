package datastore

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

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
