package catalog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/format"
)

// childEnv makes the test binary another process: its value says what to do.
const childEnv = "CATALOG_TEST_CHILD"

const childSteps = 40 // records that each process folds

// child is what such a process does; arguments follow the name, after spaces.
func child(run string) int {
	args := strings.Fields(run)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	switch args[0] {
	case "share":
		err = childShare(ctx, args[1], args[2] == "spoil")
	case "killed":
		err = childKilled(ctx, args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func startChild(t *testing.T, run string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	// Programs with the race detector sleep for a second before they end.
	cmd.Env = append(os.Environ(), childEnv+"="+run, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s", run, errs.String())
		}
	})
	return cmd, bufio.NewScanner(out)
}

// sharedLog is the log that all processes fold: record n puts the path "n" and
// overwrites "last".
func sharedLog(n int) (*chain, []link) {
	c := newChain()
	var links []link
	for i := 1; i <= n; i++ {
		content := fmt.Sprint(i)
		links = append(links, c.entry(nil, []format.Change{put("last", content, format.Inline), put(content, content, format.Inline)}))
	}
	return c, links
}

// childShare catches up with the log, a record at a time, while others do the
// same, and looks at what it reads. Now and then it spoils the file, as another
// program or a bad disk would, by making it foreign under the exclusive lock.
func childShare(ctx context.Context, path string, spoil bool) (err error) {
	c, links := sharedLog(childSteps)
	db, err := Open(ctx, path, testOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for step := 0; ; step++ {
		st := State{}
		err := db.Update(ctx, func(tx *Tx) error {
			if st = tx.State(); st.Head == childSteps {
				return nil
			}
			return tx.foldAll(ctx, c, links[st.Head])
		})
		if errors.Is(err, ErrDamaged) {
			continue
		}
		if err != nil {
			return err
		}
		if err := childLook(ctx, db); err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		if spoil && step%13 == 12 && step < 60 {
			if err := childSpoil(ctx, path); err != nil {
				return err
			}
		}
		if st.Head == childSteps {
			return nil
		}
	}
}

// childLook reads a state and checks that it is one.
func childLook(ctx context.Context, db *DB) (err error) {
	s, err := db.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	head := s.State().Head
	n := uint64(0)
	for v, err := range s.List(ctx, "", "", 0) {
		if err != nil {
			return err
		}
		n++
		if v.Path == "last" && v.SHA256 != sha(fmt.Sprint(head)) {
			return fmt.Errorf("head %d, and last is of record %d", head, v.Slot)
		}
	}
	if want := head + 1; n != want && head > 0 {
		return fmt.Errorf("%d paths at head %d, want %d", n, head, want)
	}
	return nil
}

func childSpoil(ctx context.Context, path string) error {
	lock, err := lockFile(ctx, path, true)
	if err != nil {
		return err
	}
	defer lock.Close()
	return os.Rename(path, path+".spoiled")
}

// Processes fold and read one file at the same time, and one of them takes it
// away again and again: each sees only states that exist, and comes to the end.
func TestProcessesShareAFile(t *testing.T) {
	for _, how := range []string{"calm", "spoil"} {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "commits.db")
			var cmds []*exec.Cmd
			for i := range 3 {
				mode := "calm"
				if i == 0 {
					mode = how
				}
				cmd, _ := startChild(t, fmt.Sprintf("share %s %s", path, mode))
				cmds = append(cmds, cmd)
			}
			for _, cmd := range cmds {
				if err := cmd.Wait(); err != nil {
					t.Errorf("a process failed: %v", err)
				}
			}
			db := openAt(t, path)
			if err := db.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Many processes find no file, or a bad one, at once: all come to work with the
// same new one.
func TestProcessesMakeAFileOnce(t *testing.T) {
	for _, start := range []string{"missing", "foreign"} {
		t.Run(start, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "commits.db")
			if start == "foreign" {
				write(t, path, []byte(strings.Repeat("not a database ", 99)))
			}
			opened := make(chan *DB)
			const n = 8
			for range n {
				go func() {
					db, err := Open(t.Context(), path, testOptions)
					if err != nil {
						t.Errorf("Open: %v", err)
					}
					opened <- db
				}()
			}
			var dbs []*DB
			for range n {
				if db := <-opened; db != nil {
					dbs = append(dbs, db)
					defer db.Close()
				}
			}
			c, links := sharedLog(n)
			for i, db := range dbs {
				fold(t, db, c, links[i]) // each follows the one before: they share
			}
		})
	}
}

// childKilled folds records of many changes until it is killed, and says which
// ones are done.
func childKilled(ctx context.Context, path string) error {
	db, err := Open(ctx, path, testOptions)
	if err != nil {
		return err
	}
	c, links := killedLog()
	for _, l := range links {
		err := db.Update(ctx, func(tx *Tx) error {
			if l.rec.Slot <= tx.State().Head {
				return nil
			}
			return tx.foldAll(ctx, c, l)
		})
		if err != nil {
			return err
		}
		fmt.Println(l.rec.Slot)
	}
	return db.Close()
}

func killedLog() (*chain, []link) {
	c := newChain()
	var links []link
	for range 60 {
		links = append(links, c.entry(many(c, 400)))
	}
	return c, links
}

// A process that is killed in the middle of an update leaves a whole state: that
// of an update that was done, or one later.
func TestKilledInTheMiddle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "commits.db")
	c, links := killedLog()
	done := 0
	for round := range 6 {
		cmd, lines := startChild(t, "killed "+path)
		for range 3 + round { // somewhere behind the update after this line
			if !lines.Scan() {
				break
			}
			var slot int
			if _, err := fmt.Sscan(lines.Text(), &slot); err != nil {
				t.Fatal(err)
			}
			done = max(done, slot)
		}
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		for lines.Scan() {
			var slot int
			if _, err := fmt.Sscan(lines.Text(), &slot); err == nil {
				done = max(done, slot)
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatalf("round %d: the process was not killed", round)
		}
		db, err := Open(t.Context(), path, testOptions)
		if err != nil {
			t.Fatal(err)
		}
		st, err := db.State(t.Context())
		if err != nil || int(st.Head) < done || int(st.Head) > done+1 {
			t.Fatalf("round %d: head %d, %v; the process had said %d", round, st.Head, err, done)
		}
		if st.Head > 0 && st.Hash != links[st.Head-1].hash {
			t.Fatalf("round %d: hash of head %d is wrong", round, st.Head)
		}
		if err := db.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := snap(t, db).Counts(); n.Versions != 400*st.Head {
			t.Fatalf("round %d: %d versions at head %d", round, n.Versions, st.Head)
		}
		if round == 5 {
			fold(t, db, c, links[st.Head])
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
