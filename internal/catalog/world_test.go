package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

var (
	testStore   = uuid.MustParse("6f1c2f0e-3b0a-4d0c-9a53-5d2f7f0f6a01")
	testGenesis = format.Hash{0: 1, 31: 2}
	testOptions = Options{Datastore: testStore, Genesis: testGenesis}
)

// id makes a uuid from a number.
func id(n int) uuid.UUID {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	u[0], u[6], u[8] = 0x5a, 0x70, 0x80
	return u
}

func sha(text string) format.Hash { return sha256.Sum256([]byte(text)) }

func openAt(t tester, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path, testOptions)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return db
}

func openTemp(t testing.TB) *DB {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "commits.db"))
}

func snap(t tester, db *DB) *Snapshot {
	t.Helper()
	s, err := db.Snapshot(t.Context())
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Snapshot.Close: %v", err)
		}
	})
	return s
}

// chain writes records in order, as a writer does.
type chain struct {
	slot    uint64
	hash    format.Hash
	fence   uint64
	session uuid.UUID
	lists   map[string]*format.Block
	objects int
}

func newChain() *chain {
	return &chain{hash: testGenesis, lists: make(map[string]*format.Block)}
}

// link is a record with its hash.
type link struct {
	rec  *format.Record
	hash format.Hash
	size int64
}

func (c *chain) add(rec *format.Record) link {
	c.slot++
	rec.Slot, rec.Prev = c.slot, c.hash
	if rec.Kind == 0 {
		rec.Kind = format.KindCommit
	}
	if rec.Kind == format.KindFence {
		c.fence++
		c.session = id(900_000 + int(c.fence))
	}
	rec.Fence, rec.Session = c.fence, c.session
	rec.Writer = json.RawMessage(`{"host":"a"}`)
	rec.Time = int64(1_000_000 * c.slot)
	rec.ContentsAt = 500
	var seed [40]byte
	copy(seed[:], c.hash[:])
	binary.BigEndian.PutUint64(seed[32:], c.slot)
	c.hash = sha256.Sum256(seed[:])
	return link{rec, c.hash, 100 + int64(c.slot)}
}

// entry wraps changes into a record with one entry.
func (c *chain) entry(objects []format.Object, changes []format.Change) link {
	n := int(c.slot + 1)
	return c.add(&format.Record{Entries: []format.Entry{{
		ID: id(1000 + n), Digest: sha(fmt.Sprint("digest", n)), Message: fmt.Sprint("commit ", n), Time: int64(n), Base: c.slot,
		Block: format.Block{Objects: objects, Changes: changes},
	}}})
}

func (c *chain) object(kind format.ObjectKind) format.Object {
	c.objects++
	o := format.Object{Name: format.DataKey(c.slot, id(c.objects)), Kind: kind, Size: 1 << 20, FooterSize: 300, New: true}
	if kind == format.ObjectList {
		o.FooterSize = 0
	}
	o.Checksum = sha(o.Name)
	return o
}

// list stores a block as a change list.
func (c *chain) list(b *format.Block) format.ListRef {
	o := c.object(format.ObjectList)
	o.New = false
	c.lists[o.Name] = b
	return format.ListRef{Object: o, Items: uint64(len(b.Changes) + len(b.Moves) + len(b.Drops) + len(b.Dead))}
}

func (c *chain) block(l format.ListRef) (*format.Block, error) {
	if b := c.lists[l.Object.Name]; b != nil {
		return b, nil
	}
	return nil, errors.New("no such list")
}

func put(path, content string, object int) format.Change {
	ch := format.Change{Op: format.OpPut, Path: path, Size: int64(len(content)), SHA256: sha(content), Mode: 0o644, MTime: 77}
	ch.Place = format.Place{Object: object, Offset: 10, Length: ch.Size}
	return ch
}

func del(path string) format.Change { return format.Change{Op: format.OpDelete, Path: path} }

func (tx *Tx) foldAll(ctx context.Context, c *chain, links ...link) error {
	for _, l := range links {
		if err := tx.Fold(ctx, l.rec, l.hash, l.size, c.block); err != nil {
			return err
		}
	}
	return nil
}

func fold(t tester, db *DB, c *chain, links ...link) {
	t.Helper()
	if err := db.Update(t.Context(), func(tx *Tx) error { return tx.foldAll(t.Context(), c, links...) }); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func collect[T any](t tester, seq iter.Seq2[T, error]) []T {
	t.Helper()
	var all []T
	for v, err := range seq {
		if err != nil {
			t.Fatalf("iterator: %v", err)
		}
		all = append(all, v)
	}
	return all
}

// checkpointOf makes a checkpoint of a snapshot, with shards of so many rows.
// Its shards are kept in memory.
func checkpointOf(t tester, s *Snapshot, rows int) (*format.Root, func(format.ShardRef) (*format.Shard, error)) {
	t.Helper()
	ctx, st, n := t.Context(), s.State(), s.Counts()
	root := &format.Root{
		Datastore: testStore, Seq: st.Head, ChainHash: st.Hash, Fence: st.Fence, Session: st.Session,
		Sweep: st.Sweep, Horizon: st.Horizon, Versions: n.Versions, Objects: n.ObjectRows, Slots: n.Slots,
	}
	shards := make(map[string]*format.Shard)
	var cur *format.Shard
	begin := func(table format.Table, count int, key string) int {
		if cur == nil || cur.Table != table || count == rows {
			cur, count = &format.Shard{Table: table}, 0
			ref := format.ShardRef{Table: table, First: key, Name: fmt.Sprint("shard", len(shards))}
			shards[ref.Name] = cur
			root.Shards = append(root.Shards, ref)
		}
		root.Shards[len(root.Shards)-1].Rows++
		return count + 1
	}
	count := 0
	for v, err := range s.VersionRows(ctx, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		count = begin(format.TableVersions, count, format.VersionKey(v.Change.Path, v.Slot))
		if v.Object != "" {
			at := len(cur.Names)
			for i, name := range cur.Names {
				if name == v.Object {
					at = i
				}
			}
			if at == len(cur.Names) {
				cur.Names = append(cur.Names, v.Object)
			}
			v.Change.Place.Object = at
		}
		cur.Versions = append(cur.Versions, v.VersionRow)
	}
	for o, err := range s.ObjectRows(ctx, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		count = begin(format.TableObjects, count, o.Object.Name)
		cur.Objects = append(cur.Objects, o)
	}
	for r, err := range s.LogRows(ctx, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		count = begin(format.TableLog, count, format.SlotKey(r.Slot))
		cur.Log = append(cur.Log, r)
	}
	return root, func(ref format.ShardRef) (*format.Shard, error) {
		if s := shards[ref.Name]; s != nil {
			return s, nil
		}
		return nil, errors.New("no such shard")
	}
}

// tester is what the helpers need of *testing.T, *testing.B and *rapid.T.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
	Context() context.Context
	Cleanup(func())
}
