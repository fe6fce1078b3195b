package datastore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
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

// Invariant I9: a Put that comes while the batch is being committed does not
// touch what is committed.
func TestAPutDuringCommitChangesNothingOfIt(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	b, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"a": noise(1, 100_000), "b": noise(2, 100_000)}
	for path, data := range want {
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			t.Fatal(err)
		}
	}
	// The late content is being read when the commit begins.
	pr, pw := io.Pipe()
	late := make(chan error, 1)
	go func() {
		_, err := b.Put(ctx, "late", pr, nil)
		late <- err
	}()
	if _, err := pw.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	// The commit has its contents together, and has not made its record yet.
	leave, err := p.enter(ctx, "the test")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.Commit(ctx, "")
		done <- err
	}()
	for b.mu.TryLock() { // until Commit has it
		b.mu.Unlock()
	}
	if _, err := pw.Write(noise(3, 200_000)); err != nil {
		t.Fatal(err)
	}
	if err := pw.Close(); err != nil {
		t.Fatal(err)
	}
	leave()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := <-late; !errors.Is(err, ErrClosed) {
		t.Errorf("the late put: %v, want ErrClosed", err)
	}
	p.want(want)
}

// "Commit may be called again" after an error that says that nothing happened.
func TestCommitAfterAFailedUploadSendsAgain(t *testing.T) {
	for _, when := range []string{"before the commit", "in the commit"} {
		t.Run(when, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t, nil)
			p := e.open(nil)
			b, err := p.Begin(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			denied := p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.DataPrefix, Do: faults.Fail(backend.ErrDenied)})
			size := 300 << 10 // sent by the commit
			if when == "before the commit" {
				size = 2 << 20 // sent at once
			}
			if _, err := b.Put(ctx, "x", bytes.NewReader(noise(1, size)), nil); err != nil {
				t.Fatal(err)
			}
			if when == "before the commit" {
				<-denied.Reached()
				b.st.jobs.Wait()
			} else if _, err := b.Commit(ctx, ""); !errors.Is(err, backend.ErrDenied) {
				t.Fatalf("got %v, want ErrDenied", err)
			}
			if _, err := b.Commit(ctx, ""); err != nil {
				t.Fatalf("again: %v", err)
			}
			p.want(map[string][]byte{"x": noise(1, size)})
		})
	}
}

// Two batches with one id, as when a caller asks twice at once.
func TestTwoBatchesWithOneIDDoNotShareTheirStagedFiles(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	id := newID()
	contents := map[string][]byte{"pack": noise(1, 300<<10), "pack2": noise(3, 300<<10), "large": noise(2, 2<<20)}
	var batches []*Batch
	for range 2 {
		b, err := p.Begin(ctx, &BatchOptions{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"pack", "pack2", "large"} {
			if _, err := b.Put(ctx, path, bytes.NewReader(contents[path]), nil); err != nil {
				t.Fatal(err)
			}
		}
		batches = append(batches, b)
	}
	for i, b := range batches {
		c, err := b.Commit(ctx, "")
		if err != nil || c.Again != (i == 1) {
			t.Errorf("batch %d: %+v, %v", i, c, err)
		}
	}
	p.want(contents)
}

// stagedFiles are the files below the staging area, but for its lock.
func (p *proc) stagedFiles() []string {
	p.t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(p.dir, "staging"), func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return files
}

func TestACommitThatDidNotLandLeavesNoFiles(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	base := p.put(map[string][]byte{"x": text(1)}).Slot
	p.put(map[string][]byte{"x": text(2)})
	b, err := p.Begin(ctx, &BatchOptions{Base: base})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	for path, data := range longPaths(600) {
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(ctx, ""); !errors.Is(err, ErrConflict) {
		t.Fatalf("got %v, want ErrConflict", err)
	}
	if files := p.stagedFiles(); len(files) > 0 {
		t.Errorf("left behind: %q", files)
	}
}

// A disk that was full for a moment costs an error, not the batch.
func TestAPackIsCompletedAfterADiskWasFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full on this system")
	}
	defer full.Close()
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	b, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{}
	for i := range 5 {
		path := fmt.Sprint("p", i)
		want[path] = noise(uint64(i), 200_000)
		if i == 3 { // full while a content is added
			good := b.st.pack.file
			b.st.pack.file = full
			if _, err := b.Put(ctx, path, bytes.NewReader(want[path]), nil); err == nil {
				t.Fatal("a full disk went unnoticed")
			}
			b.st.pack.file = good
			end := b.st.pack.size - int64(len(b.st.pack.buf))
			if _, err := good.WriteAt([]byte("half of it"), end); err != nil { // as a full disk leaves it
				t.Fatal(err)
			}
		}
		if _, err := b.Put(ctx, path, bytes.NewReader(want[path]), nil); err != nil {
			t.Fatal(err)
		}
	}
	good := b.st.pack.file
	b.st.pack.file = full
	if _, err := b.Commit(ctx, ""); err == nil || !strings.Contains(err.Error(), "staging area") {
		t.Fatalf("got %v, want an error that names the staging area", err)
	}
	b.st.pack.file = good
	if _, err := b.Commit(ctx, ""); err != nil {
		t.Fatal(err)
	}
	p.want(want)
}

// Names at their limit: a pack is full, too, when its footer is.
func TestManySmallContentsWithTheLongestPaths(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	b, err := p.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * format.FooterTarget / format.MaxPath {
		path := fmt.Sprintf("%05d/%s", i, strings.Repeat("x", format.MaxPath-6))
		if _, err := b.Put(ctx, path, strings.NewReader(fmt.Sprint(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if b.st.packed < 2 {
		t.Errorf("one pack for a footer of %d bytes", b.st.pack.feet)
	}
	if err := b.Discard(); err != nil {
		t.Fatal(err)
	}
}

// Close ends what a Commit waits for.
func TestCloseDoesNotWaitForUploads(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	stuck := p.faults.Add(faults.Rule{Ops: faults.Create, Prefix: format.DataPrefix, Times: faults.Always, Do: faults.Block()})
	done := p.putLater(uuid.Nil, map[string][]byte{"x": noise(1, 2<<20)})
	<-stuck.Reached()
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("close: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for an upload that does not end")
	}
	if r := <-done; !errors.Is(r.err, ErrClosed) {
		t.Errorf("the commit: %+v, %v; want ErrClosed", r.c, r.err)
	}
}

// Close ends a Begin that is waiting for another writer, and leaves no lease.
func TestCloseEndsABeginThatWaits(t *testing.T) {
	e := newEnv(t, nil)
	a := e.open(nil)
	a.put(map[string][]byte{"x": text(1)})
	stuck := a.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.LeaseKey, Do: faults.Block()})
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := a.putLater(uuid.Nil, map[string][]byte{"x": text(2)})
	<-stuck.Reached()
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("close: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for a Begin")
	}
	if r := <-done; !errors.Is(r.err, ErrClosed) {
		t.Errorf("the commit: %+v, %v; want ErrClosed", r.c, r.err)
	}
	b := e.open(&Options{MaxWait: -1})
	b.put(map[string][]byte{"x": text(3)})
}

// Close waits for another process that has the catalog no longer than it says.
func TestCloseDoesNotWaitForACatalogThatIsStuck(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(&Options{closeWait: 100 * time.Millisecond})
	p.put(map[string][]byte{"x": text(1)})
	if err := p.overlay.flush(ctx); err != nil {
		t.Fatal(err)
	}
	defer p.lockCatalog()()
	p.put(map[string][]byte{"x": text(2)})
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for the catalog")
	}
	e.open(nil).want(map[string][]byte{"x": text(2)})
}

// lockCatalog keeps the catalog from taking anything, as another process may,
// until the returned func is called.
func (p *proc) lockCatalog() (unlock func()) {
	p.t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(p.dir, "commits.db"))
	if err != nil {
		p.t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		if _, err := db.Exec("ROLLBACK"); err != nil {
			p.t.Error(err)
		}
		if err := db.Close(); err != nil {
			p.t.Error(err)
		}
	}
}

func TestAfterCloseEveryCallSaysClosed(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(1)})
	p.close()
	calls := map[string]func() error{
		"stat":       func() error { _, err := p.Stat(ctx, "x", Newest); return err },
		"get":        func() error { _, err := p.Get(ctx, "x", nil); return err },
		"update":     func() error { _, err := p.Update(ctx); return err },
		"begin":      func() error { _, err := p.Begin(ctx, nil); return err },
		"outcome":    func() error { _, err := p.Outcome(ctx, newID()); return err },
		"checkpoint": func() error { return p.Checkpoint(ctx) },
		"verify":     func() error { _, err := p.Verify(ctx, nil); return err },
		"list":       func() error { return last(p.List(ctx, nil)) },
		"log":        func() error { return last(p.Log(ctx, nil)) },
		"diff":       func() error { return last(p.Diff(ctx, 0, Newest, "")) },
		"history":    func() error { return last(p.History(ctx, "x")) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", name, err)
		}
	}
	if files, err := os.ReadDir(filepath.Join(p.dir, "staging")); err == nil && len(files) > 0 {
		t.Errorf("the staging area was made anew: %v", files)
	}
}

func last[T any](seq func(func(T, error) bool)) (err error) {
	seq(func(_ T, e error) bool { err = e; return true })
	return err
}
