package writer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/fs"
	"github.com/swampd/swampd/internal/format"
)

// These tests use real processes, a real directory and the real clock. The test
// program starts itself again with an order in its environment.
const childOrder = "SWAMPD_TEST_WRITER"

// Short enough to wait for, long enough for a busy machine.
var hasty = Options{TTL: 3 * time.Second, Skew: time.Second}

// directory opens the datastore in dir.
func directory(t testing.TB, dir string) *backend.Bucket {
	t.Helper()
	b, err := openDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func openDirectory(dir string) (*backend.Bucket, error) {
	d, err := fs.New(dir, nil)
	if err != nil {
		return nil, err
	}
	return backend.NewBucket(d, "file://"+dir), nil
}

// bucketLog is a log of barriers in the store, made like the real one: one
// conditional create for each slot.
type bucketLog struct {
	bucket *backend.Bucket
	head   uint64
	fence  uint64
	by     uuid.UUID
}

type slotRecord struct {
	Fence   uint64
	Session uuid.UUID
}

func (l *bucketLog) CatchUp(ctx context.Context) error {
	for {
		obj, err := l.bucket.Get(ctx, format.SlotKey(l.head+1), backend.GetOptions{})
		if errors.Is(err, backend.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		var r slotRecord
		err = json.NewDecoder(obj.Body).Decode(&r)
		obj.Body.Close()
		if err != nil {
			return err
		}
		l.head++
		l.fence, l.by = r.Fence, r.Session
	}
}

func (l *bucketLog) Fence() uint64 { return l.fence }

func (l *bucketLog) Recover(context.Context, *Hold) error { return nil }

func (l *bucketLog) Barrier(ctx context.Context, h *Hold) error {
	fence, session := h.Fence(), h.Session()
	for {
		if err := l.CatchUp(ctx); err != nil {
			return err
		}
		if l.fence >= fence && l.by != session {
			return fmt.Errorf("slot %d has fence %d: %w", l.head, l.fence, ErrFenced)
		}
		data, err := json.Marshal(slotRecord{fence, session})
		if err != nil {
			return err
		}
		if _, err = l.bucket.Create(ctx, format.SlotKey(l.head+1), backend.Bytes(data)); !errors.Is(err, backend.ErrExists) {
			return err
		}
	}
}

// child carries out an order: "contend DIR" or "hold DIR".
func child(order string) int {
	what, dir, _ := strings.Cut(order, " ")
	bucket, err := openDirectory(filepath.Join(dir, "store"))
	if err == nil {
		if what == "contend" {
			err = contend(bucket, dir)
		} else {
			err = holdOn(bucket)
		}
	}
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	return 0
}

const turns = 10

// contend takes its turns, and looks whether another one has its turn too.
func contend(bucket *backend.Bucket, dir string) error {
	ctx := context.Background()
	log := &bucketLog{bucket: bucket}
	for range turns {
		h, err := Acquire(ctx, bucket, log, &Options{MaxWait: 3 * time.Minute})
		if err != nil {
			return err
		}
		alone := filepath.Join(dir, "alone")
		f, err := os.OpenFile(alone, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("two at a time: %w", err)
		}
		fmt.Println("fence", h.Fence())
		if err := errors.Join(f.Close(), os.Remove(alone), h.Err(), h.Close(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// holdOn holds until the hold is lost.
func holdOn(bucket *backend.Bucket) error {
	o := hasty
	h, err := Acquire(context.Background(), bucket, &bucketLog{bucket: bucket}, &o)
	if err != nil {
		return err
	}
	fmt.Println("holding", h.Fence())
	<-h.Context().Done()
	fmt.Println("lost")
	if err := h.Close(context.Background()); !errors.Is(err, ErrFenced) {
		return fmt.Errorf("closing a hold that another has taken: %v", err)
	}
	fmt.Println("fenced")
	return nil
}

// start runs this test program again with an order.
func start(t *testing.T, order string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	// Programs with the race detector sleep for a second before they end.
	cmd.Env = append(os.Environ(), childOrder+"="+order, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		io.Copy(io.Discard, out)
		cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

// says waits for the next line of a child.
func says(t *testing.T, s *bufio.Scanner, want string) {
	t.Helper()
	line := make(chan string, 1)
	go func() { s.Scan(); line <- s.Text() }()
	select {
	case got := <-line:
		if got != want {
			t.Fatalf("the child says %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the child says nothing, want %q", want)
	}
}

func TestProcessesWriteOneAtATime(t *testing.T) {
	t.Parallel()
	const children = 8
	dir := t.TempDir()
	fences := make(chan string, children*turns+children)
	done := make(chan error, children)
	for range children {
		cmd, out := start(t, "contend "+dir)
		go func() {
			for out.Scan() {
				fences <- out.Text()
			}
			done <- cmd.Wait()
		}()
	}
	for range children {
		if err := <-done; err != nil {
			t.Errorf("a child: %v", err)
		}
	}
	close(fences)
	seen := map[string]bool{}
	for line := range fences {
		if seen[line] || !strings.HasPrefix(line, "fence ") {
			t.Errorf("a child says %q, a second time or not as it should", line)
		}
		seen[line] = true
	}
	// None was skipped: the fences are 1 … children*turns.
	for i := range children * turns {
		if want := fmt.Sprintf("fence %d", i+1); !seen[want] {
			t.Errorf("nobody had %s", want)
		}
	}
	log := &bucketLog{bucket: directory(t, filepath.Join(dir, "store"))}
	if err := log.CatchUp(t.Context()); err != nil || log.head != children*turns || log.fence != children*turns {
		t.Errorf("the log has %d barriers up to fence %d (%v), want %d", log.head, log.fence, err, children*turns)
	}
}
