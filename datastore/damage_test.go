package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// Invariant I12: what the store holds is not trusted.

// keys returns the keys that begin with prefix.
func (e *env) keys(prefix string) []string {
	e.t.Helper()
	var keys []string
	for o, err := range e.store.Bucket().List(context.Background(), prefix, "") {
		if err != nil {
			e.t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		c := bytes.Clone(b)
		c[(at+len(c))%len(c)] ^= 0x10
		return c
	}
}

func TestADamagedRecordIsRefusedWithItsName(t *testing.T) {
	for name, damage := range map[string]struct {
		edit func([]byte) []byte
		want error
	}{
		"first byte":   {flip(0), ErrCorrupt},
		"in the body":  {flip(80), ErrCorrupt},
		"last byte":    {flip(-1), ErrCorrupt},
		"cut":          {func(b []byte) []byte { return b[:len(b)-1] }, ErrCorrupt},
		"empty":        {func(b []byte) []byte { return []byte{} }, ErrCorrupt},
		"longer":       {func(b []byte) []byte { return append(bytes.Clone(b), 0) }, ErrCorrupt},
		"oversized":    {func(b []byte) []byte { return make([]byte, format.MaxRecord+1) }, ErrCorrupt},
		"newer format": {func(b []byte) []byte { c := bytes.Clone(b); c[10], c[12] = 99, 99; return c }, ErrUpgrade},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			e.damaged = true
			p := e.open(nil)
			p.put(map[string][]byte{"x": text(10)})
			c := p.put(map[string][]byte{"x": text(20)})
			key := format.SlotKey(c.Slot)
			e.store.Tamper(key, damage.edit)
			_, err := e.tryOpen(nil)
			if !errors.Is(err, damage.want) || !strings.Contains(err.Error(), key) {
				t.Fatalf("opening: %v; want %v that names %s", err, damage.want, key)
			}
			r, err := p.Verify(context.Background(), nil)
			if damage.want == ErrUpgrade {
				if !errors.Is(err, ErrUpgrade) {
					t.Errorf("verify: %v, want ErrUpgrade", err)
				}
			} else if err != nil || r.OK() {
				t.Errorf("verify: %+v, %v; want a finding", r, err)
			}
		})
	}
}

func TestARecordThatDoesNotChainIsRefused(t *testing.T) {
	e := newEnv(t, nil)
	e.damaged = true
	p := e.open(nil)
	p.put(map[string][]byte{"x": text(10)})
	e.craft(p, func(r *format.Record) { r.Kind, r.Prev = format.KindFence, format.Hash{1} })
	if _, err := e.tryOpen(nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}

func TestWrongBytesAreNeverDelivered(t *testing.T) {
	ctx := context.Background()
	contents := map[string][]byte{"inline": noise(1, 50), "packed": noise(2, 400<<10), "packed text": append(noise(7, 300<<10), text(300<<10)...), "large": noise(3, 3<<20), "large text": text(3 << 20)}
	for path, data := range contents {
		t.Run(path, func(t *testing.T) {
			e := newEnv(t, nil)
			e.damaged = true
			p := e.open(nil)
			p.put(map[string][]byte{path: data, "fine": noise(9, 2<<20)})
			if path == "inline" {
				p.put(map[string][]byte{path: data})
			}
			q := e.open(nil)
			v, err := q.Stat(ctx, path, Newest)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range []int64{0, v.place.Length / 2, v.place.Length - 1} {
				edit := flip(int(v.place.Offset + at))
				e.store.Tamper(v.place.key(), edit)
				r, err := q.OpenVersion(ctx, v, 0, 0)
				var got []byte
				if err == nil {
					got, err = io.ReadAll(r)
					r.Close()
				}
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("byte %d flipped: %v, want ErrCorrupt", at, err)
				}
				if !bytes.HasPrefix(data, got) {
					t.Errorf("byte %d flipped: wrong bytes were delivered before the error", at)
				}
				q.want(map[string][]byte{"fine": noise(9, 2<<20)})
				if path != "inline" {
					rep, err := q.Verify(ctx, &VerifyOptions{ReadData: true})
					if err != nil || rep.OK() || !strings.Contains(rep.Findings[0].Key, path) {
						t.Errorf("verify: %+v, %v; want a finding that names the path", rep, err)
					}
				}
				e.store.Tamper(v.place.key(), edit) // flips it back
			}
			q.want(contents2(path, data))
		})
	}
}

func contents2(path string, data []byte) map[string][]byte { return map[string][]byte{path: data} }

func TestAMissingOrShortObjectIsFound(t *testing.T) {
	ctx := context.Background()
	for name, hurt := range map[string]func(e *env, key string){
		"missing": func(e *env, key string) {
			if err := e.store.Bucket().Delete(ctx, []string{key}); err != nil {
				e.t.Fatal(err)
			}
		},
		"short": func(e *env, key string) {
			e.store.Tamper(key, func(b []byte) []byte { return b[:len(b)/2] })
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			e.damaged = true
			p := e.open(nil)
			p.put(map[string][]byte{"a": noise(1, 2<<20)})
			key := e.keys("data/")[0]
			hurt(e, key)
			if _, err := p.Get(ctx, "a", nil); !errors.Is(err, ErrCorrupt) {
				t.Errorf("reading: %v, want ErrCorrupt", err)
			}
			r, err := p.Verify(ctx, nil)
			if err != nil || r.OK() || r.Findings[0].Key != key {
				t.Errorf("verify: %+v, %v; want a finding on %s", r, err, key)
			}
		})
	}
}

func TestADamagedCheckpointIsNotNeededWhileTheLogIsWhole(t *testing.T) {
	for _, which := range []string{"root", "shard"} {
		t.Run(which, func(t *testing.T) {
			e := newEnv(t, nil)
			e.damaged = true
			p := e.open(nil)
			p.put(map[string][]byte{"a": noise(1, 2000)})
			if err := p.Checkpoint(context.Background()); err != nil {
				t.Fatal(err)
			}
			for _, key := range e.keys("checkpoints/") {
				if strings.HasSuffix(key, "-root") == (which == "root") {
					e.store.Tamper(key, flip(100))
				}
			}
			q := e.open(nil)
			q.want(map[string][]byte{"a": noise(1, 2000)})
			r, err := q.Verify(context.Background(), nil)
			if err != nil || r.OK() {
				t.Errorf("verify: %+v, %v; want a finding", r, err)
			}
		})
	}
}

// A content that expands beyond the size that its record says.
func TestADecompressionBombIsRefused(t *testing.T) {
	e := newEnv(t, nil)
	e.damaged = true
	p := e.open(nil)
	p.put(map[string][]byte{"a": text(10)})
	stored, codec := format.Compress(nil, make([]byte, 1<<20))
	if codec != format.CodecZstd {
		t.Fatal("zeros do not compress")
	}
	e.craft(p, func(r *format.Record) {
		r.Contents = stored
		r.Entries = []format.Entry{{ID: uuid.New(), Block: format.Block{Changes: []format.Change{{
			Op: format.OpPut, Path: "bomb", Size: 1000, SHA256: sha256.Sum256(make([]byte, 1000)),
			Place: format.Place{Object: format.Inline, Length: int64(len(stored)), Codec: format.CodecZstd},
		}}}}}
	})
	q := e.open(nil)
	if _, err := q.Get(context.Background(), "bomb", nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
	q.want(map[string][]byte{"a": text(10)})
}

func TestAMissingMarkerOrCheckpointRecord(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	e.damaged = true
	e.open(nil).put(map[string][]byte{"a": text(1)})
	if err := e.store.Bucket().Delete(ctx, []string{format.CheckpointKey}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.tryOpen(nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("without the checkpoint record: %v, want ErrCorrupt", err)
	}
	if err := e.store.Bucket().Delete(ctx, []string{format.FormatKey}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.tryOpen(nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("without the marker: %v, want ErrNotFound", err)
	}
	data := []byte(`{"format": 4, "minimum_reader": 4, "datastore": "` + uuid.NewString() + `"}`)
	if _, err := e.store.Bucket().Create(ctx, format.FormatKey, backend.Bytes(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.tryOpen(nil); !errors.Is(err, ErrUpgrade) {
		t.Errorf("a newer datastore: %v, want ErrUpgrade", err)
	}
}
