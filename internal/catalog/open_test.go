package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/format"
)

// rawly runs statements on a file that no DB has open.
func rawly(t *testing.T, path string, lines ...string) {
	t.Helper()
	c, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.script(t.Context(), lines...); err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
}

// madeAt makes a catalog with a few records and closes it.
func madeAt(t *testing.T, path string) *chain {
	t.Helper()
	db, c := openAt(t, path), newChain()
	fold(t, db, c, c.entry(many(c, 300)), c.entry(many(c, 300)))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOpenKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "commits.db")
	c := madeAt(t, path)
	db := openAt(t, path)
	if st, err := db.State(t.Context()); err != nil || st.Head != 2 || st.Hash != c.hash {
		t.Fatalf("state %+v, %v", st, err)
	}
}

// A path may hold what means something in a URI.
func TestOpenAnyPath(t *testing.T) {
	for _, name := range []string{"a?b=c", "50%25", "x#y", "sp ace", "é"} {
		if runtime.GOOS == "windows" && strings.Contains(name, "?") {
			continue
		}
		path := filepath.Join(t.TempDir(), name, "commits.db")
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		madeAt(t, path)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpenModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // it has no permission bits
	}
	path := filepath.Join(t.TempDir(), "commits.db")
	db, c := openAt(t, path), newChain()
	fold(t, db, c, c.entry(many(c, 10)))
	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		info, err := os.Stat(path + suffix)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", path+suffix, info.Mode(), err)
		}
	}
	s := snap(t, db)
	for pragma, want := range map[string]any{"PRAGMA journal_mode": "wal", "PRAGMA synchronous": int64(1),
		"PRAGMA cache_size": int64(-cacheReader >> 10), "PRAGMA query_only": int64(1)} {
		if row, err := s.c.row(t.Context(), pragma); err != nil || row[0] != want {
			t.Errorf("%s = %v, %v, want %v", pragma, row, err, want)
		}
	}
}

func TestOpenNewerSchemaSaysUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "commits.db")
	madeAt(t, path)
	rawly(t, path, fmt.Sprint("PRAGMA user_version = ", schemaVersion+1))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), path, testOptions)
	if !errors.Is(err, ErrUpgrade) || !errors.Is(err, format.ErrUpgrade) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "delete the file") {
		t.Fatalf("Open: %v, want ErrUpgrade with the path and what to do", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Fatalf("the file was changed (%v)", err)
	}
}

func TestOpenMakesAnew(t *testing.T) {
	tests := []struct {
		name  string
		opts  Options
		spoil func(t *testing.T, path string)
		aside bool // what was there is kept
	}{
		{name: "an older schema", spoil: func(t *testing.T, path string) { rawly(t, path, "PRAGMA user_version = 0") }},
		{name: "another datastore", opts: Options{Datastore: id(3), Genesis: testGenesis}},
		{name: "another genesis", opts: Options{Datastore: testStore, Genesis: format.Hash{3}}},
		{name: "no state", spoil: func(t *testing.T, path string) { rawly(t, path, "DELETE FROM state") }},
		{name: "a table less", spoil: func(t *testing.T, path string) { rawly(t, path, "DROP TABLE state") }},
		{name: "text", aside: true, spoil: func(t *testing.T, path string) { write(t, path, []byte(strings.Repeat("not a database ", 99))) }},
		{name: "another program's database", aside: true, spoil: func(t *testing.T, path string) {
			rawly(t, path, "PRAGMA application_id = 5", "PRAGMA user_version = 900")
		}},
		{name: "an empty file", spoil: func(t *testing.T, path string) { write(t, path, nil) }},
		{name: "no file, but its log", spoil: func(t *testing.T, path string) {
			write(t, path+"-wal", bytes.Repeat([]byte("old log"), 999))
			write(t, path+"-shm", make([]byte, 32<<10))
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "commits.db")
			madeAt(t, path)
			if test.spoil != nil {
				test.spoil(t, path)
			}
			opts := test.opts
			if opts == (Options{}) {
				opts = testOptions
			}
			db, err := Open(t.Context(), path, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if st, err := db.State(t.Context()); err != nil || st != (State{Hash: opts.Genesis}) {
				t.Fatalf("state %+v, %v, want an empty one", st, err)
			}
			if err := db.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path + ".damaged"); (err == nil) != test.aside {
				t.Fatalf("kept aside: %v, want %v", err == nil, test.aside)
			}
			if opts == testOptions {
				c := newChain()
				fold(t, db, c, c.entry(many(c, 10)))
			}
		})
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(t.Context(), dir, testOptions); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Open of a directory: %v", err)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "none", "commits.db"), testOptions); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open in no directory: %v", err)
	}
}

// TestDamage spoils pages of a file in many places. Whatever is read then is
// right, or missing, or an error that says damaged; after such an error the
// catalog starts empty and works.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.db")
	c := madeAt(t, good)
	image, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	tests := make(map[string][]byte)
	for page := 0; page*pageSize < len(image); page++ {
		for _, offset := range []int{0, 5, 100, pageSize / 2, pageSize - 20} {
			b := bytes.Clone(image)
			for i := range 20 {
				b[page*pageSize+offset+i] ^= byte(1 + rng.IntN(255))
			}
			tests[fmt.Sprintf("page %d offset %d", page, offset)] = b
		}
	}
	for _, n := range []int{1, 50, 100, pageSize, pageSize + 1, len(image) / 2, len(image) - pageSize, len(image) - 1} {
		tests[fmt.Sprintf("cut to %d", n)] = image[:n]
	}
	found := 0
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "commits.db")
			write(t, path, b)
			db, err := Open(t.Context(), path, testOptions)
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			defer db.Close()
			damaged := useDamaged(t, db)
			if err := db.Check(t.Context()); errors.Is(err, ErrDamaged) {
				damaged = true
			} else if err != nil {
				t.Fatalf("Check: %v", err)
			}
			if st, err := db.State(t.Context()); err != nil || damaged && st.Head != 0 {
				t.Fatalf("state after damage was found: %+v, %v", st, err)
			} else if st.Head == 0 {
				found++
				again := newChain()
				fold(t, db, again, again.entry(many(again, 300)), again.entry(many(again, 300)))
				if st, err := db.State(t.Context()); err != nil || st.Hash != c.hash {
					t.Fatalf("the log does not fill it again: %+v, %v", st, err)
				}
			}
			if err := db.Check(t.Context()); err != nil {
				t.Fatalf("Check: %v", err)
			}
		})
	}
	if found < len(tests)/2 {
		t.Errorf("damage was found in %d of %d files only", found, len(tests))
	}
}

// useDamaged reads all of a catalog that may be damaged, and says whether it was
// told so.
func useDamaged(t *testing.T, db *DB) (damaged bool) {
	t.Helper()
	judge := func(err error) bool {
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("%v: want an error that says damaged", err)
		}
		return err != nil
	}
	s, err := db.Snapshot(t.Context())
	if judge(err) {
		return true
	}
	defer s.Close()
	for v, err := range s.List(t.Context(), "", "", 0) {
		if judge(err) {
			return true
		}
		var slot, i int
		var dir int
		if n, _ := fmt.Sscanf(v.Path, "tree/%06d/dir-%03d/file-%06d.txt", &slot, &dir, &i); n != 3 || v.SHA256 != sha(fmt.Sprint(slot, i)) || v.Place.Offset != int64(i) {
			t.Fatalf("wrong version %+v", v)
		}
	}
	for r, err := range s.Log(t.Context(), 0, 0, false) {
		if judge(err) {
			return true
		}
		if len(r.Entries) != 1 || r.Entries[0].Message != fmt.Sprint("commit ", r.Slot) {
			t.Fatalf("wrong log row %+v", r)
		}
	}
	for _, err := range s.Objects(t.Context(), "") {
		if judge(err) {
			return true
		}
	}
	_, err = s.Lookup(t.Context(), manyPath(20_000, 10_050), 0)
	return !errors.Is(err, ErrNoVersion) && judge(err)
}

// A file that is deleted while a process works with it is made anew, and what is
// open goes on.
func TestFileDeletedWhileOpen(t *testing.T) {
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprintf("with its log: %v", all), func(t *testing.T) {
			db, c := openTemp(t), newChain()
			l := c.entry(many(c, 300))
			fold(t, db, c, l)
			s := snap(t, db)
			if err := os.Remove(db.Path()); err != nil {
				t.Fatal(err)
			}
			if all {
				for _, suffix := range []string{"-wal", "-shm", ".lock"} {
					if err := os.Remove(db.Path() + suffix); err != nil {
						t.Fatal(err)
					}
				}
			}
			if st, err := db.State(t.Context()); err != nil || st.Head != 0 {
				t.Fatalf("state %+v, %v, want an empty one", st, err)
			}
			fold(t, db, c, l)
			if got := len(collect(t, s.List(t.Context(), "", "", 0))); got != 300 {
				t.Errorf("the snapshot of before lists %d paths, want 300", got)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			other := openAt(t, db.Path())
			if err := other.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if st, err := other.State(t.Context()); err != nil || st.Head != 1 {
				t.Errorf("another process sees %+v, %v", st, err)
			}
		})
	}
}

// Closing the last connection to a file that was replaced must not take the log
// of the file that is there now.
func TestOldConnectionsDoNotHarmTheNewFile(t *testing.T) {
	old, c := openTemp(t), newChain()
	l := c.entry(many(c, 300))
	fold(t, old, c, l)
	if err := os.Remove(old.Path()); err != nil {
		t.Fatal(err)
	}
	fresh := openAt(t, old.Path())
	fold(t, fresh, c, l)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	third := openAt(t, old.Path())
	if st, err := third.State(t.Context()); err != nil || st.Head != 1 {
		t.Fatalf("state %+v, %v: the log of the new file is gone", st, err)
	}
	fold(t, third, c, c.entry(many(c, 300)))
	if err := fresh.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, err := fresh.State(t.Context()); err != nil || st.Head != 2 {
		t.Fatalf("state %+v, %v, want head 2", st, err)
	}
}

func TestResetEmpties(t *testing.T) {
	db, c := openTemp(t), newChain()
	l := c.entry(many(c, 300))
	fold(t, db, c, l)
	s := snap(t, db)
	if err := db.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(collect(t, s.List(t.Context(), "", "", 0))); got != 300 {
		t.Errorf("a snapshot of before lists %d paths, want 300", got)
	}
	if st, err := db.State(t.Context()); err != nil || st != (State{Hash: testGenesis}) {
		t.Fatalf("state %+v, %v", st, err)
	}
	fold(t, db, c, l)
	if err := db.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Every wait ends with its context, and says for what it waited.
func TestWaitsAreBounded(t *testing.T) {
	soon := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), 30*time.Millisecond)
	}
	db, c := openTemp(t), newChain()
	other := openAt(t, db.Path()) // another process
	check := func(what string, err error, want string) {
		t.Helper()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), db.Path()) {
			t.Errorf("%s: %v, want a deadline, the path, and %q", what, err, want)
		}
	}
	update := func(db *DB) error {
		ctx, cancel := soon()
		defer cancel()
		return db.Update(ctx, func(*Tx) error { return nil })
	}
	err := db.Update(t.Context(), func(tx *Tx) error {
		check("Update in the same process", update(db), "waited for an update of this process")
		err := update(other)
		check("Update in another", err, "to write to it")
		if !errors.Is(err, ErrBusy) {
			t.Errorf("%v is no ErrBusy", err)
		}
		// Readers wait for nobody.
		ctx, cancel := soon()
		defer cancel()
		s, err := other.Snapshot(ctx)
		if err != nil {
			t.Fatalf("Snapshot during an update: %v", err)
		}
		defer s.Close()
		return tx.foldAll(t.Context(), c, c.entry(many(c, 10)))
	})
	if err != nil {
		t.Fatal(err)
	}

	lock, err := lockFile(t.Context(), db.Path(), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := soon()
	defer cancel()
	_, err = Open(ctx, db.Path(), testOptions)
	check("Open while the file is made anew", err, ".lock")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}

	var open []*Snapshot
	for range maxSnapshots {
		open = append(open, snap(t, db))
	}
	ctx, cancel = soon()
	defer cancel()
	_, err = db.Snapshot(ctx)
	check("one Snapshot too many", err, "snapshots are open")
	go open[0].Close()
	s, err := db.Snapshot(t.Context())
	if err != nil {
		t.Fatalf("Snapshot after another was closed: %v", err)
	}
	s.Close()
}

func TestClosed(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 2000)))
	s := snap(t, db)
	for range 2 {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Update: %v", err)
	}
	if _, err := db.Snapshot(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Snapshot: %v", err)
	}
	if _, err := s.Lookup(t.Context(), "a", 0); !errors.Is(err, ErrClosed) {
		t.Errorf("Lookup: %v", err)
	}
	listErr := error(nil)
	for _, err := range s.List(t.Context(), "", "", 0) {
		listErr = err
	}
	if !errors.Is(listErr, ErrClosed) {
		t.Errorf("List: %v", listErr)
	}
}

// A connection whose transaction could not be ended is not used again.
func TestBrokenConnectionsAreReplaced(t *testing.T) {
	db, c := openTemp(t), newChain()
	fold(t, db, c, c.entry(many(c, 10)))
	old := db.writer
	old.broken = true
	fold(t, db, c, c.entry(many(c, 10)))
	if db.writer == old {
		t.Error("an update ran on a broken connection")
	}
	s := snap(t, db)
	reader := s.c
	reader.broken = true
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s := snap(t, db); s.c == reader {
		t.Error("a snapshot reads from a broken connection")
	}
}
