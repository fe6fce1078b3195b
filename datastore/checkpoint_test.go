package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

func manyPaths(n int) map[string][]byte {
	m := make(map[string][]byte, n)
	for i := range n {
		m[fmt.Sprintf("dir-%03d/file-%06d", i%100, i)] = []byte(fmt.Sprint("content ", i))
	}
	return m
}

func (e *env) checkpointRecord() (*format.Checkpoint, backend.Version) {
	e.t.Helper()
	data, info, err := getWhole(context.Background(), e.store.Bucket(), format.CheckpointKey, format.MaxControl)
	if err != nil {
		e.t.Fatal(err)
	}
	ck, err := format.DecodeCheckpoint(data)
	if err != nil {
		e.t.Fatal(err)
	}
	return ck, info.Version
}

func TestOpeningWithoutACacheReadsTheCheckpointAndOnlyTheRecordsAfterIt(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	want := manyPaths(500)
	p.put(want)
	for i := range 20 {
		path := fmt.Sprintf("dir-000/file-%06d", i*100%500)
		want[path] = []byte(fmt.Sprint("newer ", i))
		p.put(map[string][]byte{path: want[path]})
	}
	if err := p.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.put(map[string][]byte{"after": text(3)})
	want["after"] = text(3)
	q := e.open(nil)
	n := q.faults.CountsOf("commits/").Requests()
	q.want(want)
	if n > 12 {
		t.Errorf("%d requests for records; the checkpoint covers all but one", n)
	}
	if q.follow.tip.Head != p.Head() || q.follow.tip.Fence != p.follow.tip.Fence || q.follow.tip.Session != p.follow.tip.Session || q.follow.tip.Hash != p.follow.tip.Hash {
		t.Errorf("the state from the checkpoint is %+v, from the log %+v", q.follow.tip, p.follow.tip)
	}
	// Old versions, the log and ids come out of the checkpoint too.
	q.wantAt(2, map[string][]byte{"dir-000/file-000100": []byte("content 100"), "after": nil})
	n = 0
	for l, err := range q.Log(context.Background(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if c, err := q.Outcome(context.Background(), l.Commit.ID); err != nil || c.Slot != l.Slot {
			t.Errorf("outcome of slot %d: %+v, %v", l.Slot, c, err)
		}
		n++
	}
	if n != 22 {
		t.Errorf("the log has %d commits, want 22", n)
	}
}

func TestACheckpointSharesWhatDidNotChange(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(manyPaths(60_000))
	if err := p.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	first := e.keys("checkpoints/")
	p.put(map[string][]byte{"dir-050/file-000050": text(9)})
	p.faults.Reset()
	if err := p.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	made := p.faults.CountsOf("checkpoints/")
	if len(first) < 6 {
		t.Fatalf("only %d objects in the first checkpoint", len(first))
	}
	// One shard of versions, one of the log, the root; the objects' shard is new
	// if the commit named one.
	if n := len(e.keys("checkpoints/")) - len(first); n > 4 {
		t.Errorf("one changed path made %d new checkpoint objects of %d (%v)", n, len(first), made)
	}
	e.open(nil).want(map[string][]byte{"dir-050/file-000050": text(9), "dir-051/file-000051": []byte("content 51")})
}

// Rule R22.
func TestACheckpointThatLostIsMadeAnew(t *testing.T) {
	e := newEnv(t, nil)
	a, b := e.open(nil), e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	if _, err := b.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	hold := a.faults.Add(faults.Rule{Ops: faults.Replace, Prefix: format.CheckpointKey, Do: faults.Block()})
	done := make(chan error, 1)
	go func() { done <- a.Checkpoint(context.Background()) }()
	<-hold.Reached()
	if err := b.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	bs, _ := e.checkpointRecord()
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if now, _ := e.checkpointRecord(); now.Beat != bs.Beat {
		t.Errorf("the loser replaced the winner's checkpoint of the same state")
	}
}

func TestTheCheckpointRecordNeverMovesBack(t *testing.T) {
	e := newEnv(t, nil)
	e.damaged = true
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1)})
	if err := p.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	ck, version := e.checkpointRecord()
	old := format.Checkpoint{Format: ck.Format, MinReader: ck.MinReader, Beat: uuid.New()}
	data, err := format.EncodeCheckpoint(&old)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.store.Bucket().Replace(context.Background(), format.CheckpointKey, backend.Bytes(data), version); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Update(context.Background()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an older checkpoint record: %v, want ErrCorrupt", err)
	}
}

func TestCheckpointsAreMadeByLogSize(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(&Options{CheckpointSlots: 10})
	for i := range 25 {
		p.put(map[string][]byte{"x": text(i)})
	}
	p.close()
	ck, _ := e.checkpointRecord()
	if ck.Seq < 10 {
		t.Errorf("after 26 slots the checkpoint is at %d", ck.Seq)
	}
	e.open(nil).want(map[string][]byte{"x": text(24)})
}

func TestDeletingTheCacheLosesNothing(t *testing.T) {
	e := newEnv(t, nil)
	dir := t.TempDir()
	p := e.open(&Options{StateDir: dir})
	want := contentsOfAllSizes()
	p.put(want)
	p.close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	e.open(&Options{StateDir: dir}).want(want)
}

func TestDamagedCacheIsMadeAnew(t *testing.T) {
	for _, damage := range []string{"garbage", "empty", "cut"} {
		t.Run(damage, func(t *testing.T) {
			e := newEnv(t, nil)
			dir := t.TempDir()
			p := e.open(&Options{StateDir: dir})
			want := manyPaths(2000)
			p.put(want)
			p.close()
			file := filepath.Join(dir, "commits.db")
			switch damage {
			case "garbage":
				if err := os.WriteFile(file, noise(1, 100_000), 0o600); err != nil {
					t.Fatal(err)
				}
			case "empty":
				if err := os.Truncate(file, 0); err != nil {
					t.Fatal(err)
				}
			case "cut":
				fi, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(file, fi.Size()/2/4096*4096); err != nil {
					t.Fatal(err)
				}
			}
			e.open(&Options{StateDir: dir}).want(want)
		})
	}
}

func TestANewerCacheSaysUpgrade(t *testing.T) {
	e := newEnv(t, nil)
	dir := t.TempDir()
	e.open(&Options{StateDir: dir}).close()
	file := filepath.Join(dir, "commits.db")
	db, err := sql.Open("sqlite3", file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version = 1000000"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.tryOpen(&Options{StateDir: dir}); !errors.Is(err, ErrUpgrade) || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want ErrUpgrade that names the file", err)
	}
}

func TestACacheThatIsAheadOfARestoredStoreIsMadeAnew(t *testing.T) {
	e := newEnv(t, nil)
	dir := t.TempDir()
	p := e.open(&Options{StateDir: dir})
	p.put(map[string][]byte{"x": text(1)})
	old := e.store.Clone()
	p.put(map[string][]byte{"x": text(2)})
	p.put(map[string][]byte{"y": text(3)})
	p.close()
	e.store = old
	q := e.open(&Options{StateDir: dir})
	q.want(map[string][]byte{"x": text(1), "y": nil})
	e.takeLease()
	q.put(map[string][]byte{"z": text(4)})
	e.open(nil).want(map[string][]byte{"x": text(1), "z": text(4)})
}

// Two processes on one host share commits.db.
func TestTwoStoresShareOneCache(t *testing.T) {
	e := newEnv(t, nil)
	dir := t.TempDir()
	a, b := e.open(&Options{StateDir: dir}), e.open(&Options{StateDir: dir})
	want := map[string][]byte{}
	for i := range 30 {
		path := fmt.Sprint("p", i%7)
		want[path] = text(i)
		a.put(map[string][]byte{path: want[path]})
		if i%3 == 0 {
			if _, err := b.Update(context.Background()); err != nil {
				t.Fatal(err)
			}
			b.want(want)
		}
	}
	if _, err := b.Update(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.want(want)
	b.want(want)
}

// Rule R10: the catalog is locked by another process; a commit lands and shows
// all the same.
func TestALandedCommitIsShownWhileTheCatalogIsStuck(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1), "y": text(2), "z": text(3)})
	if err := p.overlay.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", filepath.Join(p.dir, "commits.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	b, err := p.Begin(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(context.Background(), "x", strings.NewReader("new"), nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(context.Background(), "y"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	p.want(map[string][]byte{"x": []byte("new"), "y": nil, "z": text(3)})
	if got := strings.Join(p.paths(nil), " "); got != "x z" {
		t.Errorf("list: %s", got)
	}
	p.wantAt(p.Head()-1, map[string][]byte{"x": text(1), "y": text(2)})
	// What must have the catalog waits, and says for what, within its bound.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Outcome(ctx, b.ID()); err == nil || !strings.Contains(err.Error(), "catalog") {
		t.Errorf("got %v, want an error that names the catalog", err)
	}
	if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Outcome(context.Background(), b.ID()); err != nil {
		t.Error(err)
	}
}
