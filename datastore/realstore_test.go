package datastore_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/gcs"
	_ "github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/internal/testserver"
)

// The engine's other tests run on the store in memory, where faults are exact.
// These show that what they prove holds through the real drivers, the SDKs below
// them, and HTTP.

func TestTheEngineOnS3(t *testing.T) {
	srv := testserver.S3(t)
	srv.Setenv(t)
	p := srv.Proxy(t)
	direct := srv.NewBucket(t)
	onRealStore(t, p, srv.ProxyURL(t, p, direct), direct)
}

func TestTheEngineOnGCS(t *testing.T) {
	srv := testserver.GCS(t)
	p := srv.Proxy(t)
	direct := srv.NewBucket(t)
	onRealStore(t, p, srv.ProxyURL(t, p, direct), direct)
}

// isRecord matches the request that creates a record of the log: its key is in
// the path on S3 and in the query on GCS.
func isRecord(r *http.Request) bool {
	return (r.Method == http.MethodPut || r.Method == http.MethodPost) &&
		(strings.Contains(r.URL.Path, "/commits/") || strings.Contains(r.URL.Query().Get("name"), "/commits/"))
}

// onRealStore tells of two writers and a reader. The first writer's requests go
// by way of the proxy.
func onRealStore(t *testing.T, proxy *testserver.Proxy, viaProxy, direct string) {
	store, err := datastore.Init(t.Context(), viaProxy, &datastore.Options{StateDir: t.TempDir()})
	one := untilEnd(t, store, err)
	two := openReal(t, direct)

	// An entry of each kind: inline, in a pack, an object of its own.
	first := map[string][]byte{"inline": []byte("one"), "dir/packed": bytesOf(1, format.MaxInline+1), "dir/large": bytesOf(2, 2<<20+5)}
	slot := one.commit(uuid.Nil, first).Slot

	// An answer that is lost is found out by reading back: one commit, no second.
	lost := proxy.Inject(testserver.Fault{Match: isRecord, Times: 1, LoseAnswer: true})
	id := uuid.Must(uuid.NewV7())
	second := map[string][]byte{"inline": []byte("two"), "more": bytesOf(3, format.MaxInline+1)}
	c := one.commit(id, second)
	lost.Remove()
	if lost.Hits() != 1 || c.Slot != slot+1 || c.Again {
		t.Errorf("with %d answers lost it landed in slot %d (again: %v), want 1, slot %d, false", lost.Hits(), c.Slot, c.Again, slot+1)
	}

	two.catchUp(c.Slot)
	two.wantAt(slot, first)
	two.wantAt(datastore.Newest, map[string][]byte{"inline": second["inline"], "more": second["more"], "dir/large": first["dir/large"]})
	two.wantLanded(id, c.Slot, 1)

	// The second takes over while a commit of the first is on its way, and the
	// barrier is in the slot when that comes.
	gate := testserver.NewGate()
	held := proxy.Inject(testserver.Fault{Match: isRecord, Times: 1, Hold: gate})
	lateID := uuid.Must(uuid.NewV7())
	late := make(chan error, 1)
	go func() {
		_, err := one.tryCommit(lateID, map[string][]byte{"inline": []byte("late"), "late": bytesOf(4, format.MaxInline+1)})
		late <- err
	}()
	gate.Await(t)
	freeLease(t, direct)
	third := map[string][]byte{"inline": []byte("three")}
	c = two.commit(uuid.Nil, third)
	gate.Open()
	if err := <-late; !errors.Is(err, datastore.ErrFenced) {
		t.Errorf("the writer that was replaced was told %v, want ErrFenced", err)
	}
	held.Remove()
	for _, s := range []realStore{one, two} {
		s.catchUp(c.Slot)
		s.wantAt(datastore.Newest, map[string][]byte{"inline": third["inline"], "late": nil})
		s.wantLanded(lateID, 0, 0)
	}

	// A third, without a cache, begins with the checkpoint and goes on with the log.
	if err := two.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := two.commit(uuid.Nil, map[string][]byte{"after the checkpoint": []byte("four")})
	three := openReal(t, direct)
	if got := three.Head(); got != after.Slot {
		t.Errorf("opened at slot %d, want %d", got, after.Slot)
	}
	three.wantAt(datastore.Newest, map[string][]byte{"inline": third["inline"], "dir/packed": first["dir/packed"], "dir/large": first["dir/large"],
		"more": second["more"], "after the checkpoint": []byte("four"), "late": nil})
	three.wantAt(slot, first)
	report, err := three.Verify(t.Context(), &datastore.VerifyOptions{ReadData: true})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() || report.Head != after.Slot || report.Checkpoint != c.Slot || report.DataRead < 2<<20 {
		t.Errorf("verify: %+v; want no findings, head %d, checkpoint %d, all data read", report, after.Slot, c.Slot)
	}
}

type realStore struct {
	t *testing.T
	*datastore.Store
}

// openReal opens a store without a cache, until the test ends.
func openReal(t *testing.T, url string) realStore {
	t.Helper()
	s, err := datastore.Open(t.Context(), url, &datastore.Options{StateDir: t.TempDir()})
	return untilEnd(t, s, err)
}

func untilEnd(t *testing.T, s *datastore.Store, err error) realStore {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return realStore{t, s}
}

func (s realStore) tryCommit(id uuid.UUID, contents map[string][]byte) (*datastore.Commit, error) {
	ctx := s.t.Context()
	b, err := s.Begin(ctx, &datastore.BatchOptions{ID: id})
	if err != nil {
		return nil, err
	}
	defer b.Discard()
	for path, data := range contents {
		if _, err := b.Put(ctx, path, bytes.NewReader(data), nil); err != nil {
			return nil, err
		}
	}
	return b.Commit(ctx, "of a test")
}

func (s realStore) commit(id uuid.UUID, contents map[string][]byte) *datastore.Commit {
	s.t.Helper()
	c, err := s.tryCommit(id, contents)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s realStore) catchUp(want uint64) {
	s.t.Helper()
	if got, err := s.Update(s.t.Context()); err != nil || got != want {
		s.t.Fatalf("caught up to slot %d, %v; want %d", got, err, want)
	}
}

// wantAt checks what paths hold after a slot; nil means: not there.
func (s realStore) wantAt(at uint64, contents map[string][]byte) {
	s.t.Helper()
	for path, want := range contents {
		got, err := s.Get(s.t.Context(), path, &datastore.ReadOptions{At: at})
		if want == nil && errors.Is(err, datastore.ErrNotFound) {
			continue
		}
		if err != nil || want == nil || !bytes.Equal(got, want) {
			s.t.Errorf("%s at %d: %d bytes, %v; want %d bytes", path, int64(at), len(got), err, len(want))
		}
	}
}

// wantLanded checks that the entry landed so many times, in this slot.
func (s realStore) wantLanded(id uuid.UUID, slot uint64, times int) {
	s.t.Helper()
	n := 0
	for e, err := range s.Log(s.t.Context(), nil) {
		if err != nil {
			s.t.Fatal(err)
		}
		if e.Commit.ID == id {
			n++
		}
	}
	c, err := s.Outcome(s.t.Context(), id)
	known := times == 0 && errors.Is(err, datastore.ErrNotFound) || times > 0 && err == nil && c.Slot == slot
	if n != times || !known {
		s.t.Errorf("%s is in the log %d times, and its outcome is %+v, %v; want %d times, slot %d", id, n, c, err, times, slot)
	}
}

// freeLease does what time would do: the writer's lease stands in nobody's way
// any more.
func freeLease(t *testing.T, url string) {
	t.Helper()
	b, err := backend.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Delete(t.Context(), []string{format.LeaseKey}); err != nil {
		t.Fatal(err)
	}
}

func bytesOf(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}
