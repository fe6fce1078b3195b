package catalog

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if run := os.Getenv(childEnv); run != "" {
		os.Exit(child(run))
	}
	if !HasCgo { // there is one thing left to test
		flag.Parse()
		if err := flag.Set("test.run", "^TestWithoutCgo$"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

func TestWithoutCgo(t *testing.T) {
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "commits.db"), testOptions)
	if HasCgo {
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
		return
	}
	if !errors.Is(err, ErrNoCgo) {
		t.Fatalf("Open: %v, want ErrNoCgo", err)
	}
}
