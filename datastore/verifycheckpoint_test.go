package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// wholeCheckpoint is a checkpoint with all its rows, to be written anew.
type wholeCheckpoint struct {
	record format.Checkpoint
	root   format.Root
	shards []*format.Shard // in the order of root.Shards
}

func (e *env) readCheckpoint() *wholeCheckpoint {
	e.t.Helper()
	ctx := context.Background()
	ck, _ := e.checkpointRecord()
	root, err := readRoot(ctx, e.store.Bucket(), ck)
	if err != nil {
		e.t.Fatal(err)
	}
	w := &wholeCheckpoint{record: *ck, root: *root}
	for _, ref := range root.Shards {
		sh, err := readShard(ctx, e.store.Bucket(), ref)
		if err != nil {
			e.t.Fatal(err)
		}
		w.shards = append(w.shards, sh)
	}
	return w
}

// writeCheckpoint makes w, with all checksums right, the checkpoint of the store.
func (e *env) writeCheckpoint(w *wholeCheckpoint) {
	e.t.Helper()
	ctx := context.Background()
	create := func(key string, data []byte) {
		if _, err := e.store.Bucket().Create(ctx, key, backend.Bytes(data)); err != nil {
			e.t.Fatal(err)
		}
	}
	id := uuid.New()
	root := w.root
	root.Shards, root.Versions, root.Objects, root.Slots = nil, 0, 0, 0
	for i, sh := range w.shards {
		rows := uint64(len(sh.Versions) + len(sh.Objects) + len(sh.Log))
		if rows == 0 {
			continue
		}
		data, err := format.EncodeShard(sh)
		if err != nil {
			e.t.Fatalf("the shard cannot be written: %v", err)
		}
		ref := w.root.Shards[i]
		ref.Name, ref.Size, ref.Checksum, ref.Rows = format.ShardKey(root.Seq, id, i+1), int64(len(data)), sha256.Sum256(data), rows
		create(ref.Name, data)
		root.Shards = append(root.Shards, ref)
		root.Versions += uint64(len(sh.Versions))
		root.Objects += uint64(len(sh.Objects))
		root.Slots += uint64(len(sh.Log))
	}
	data, err := format.EncodeRoot(&root)
	if err != nil {
		e.t.Fatalf("the root cannot be written: %v", err)
	}
	sum := sha256.Sum256(data)
	rec := w.record
	rec.Root, rec.RootSize, rec.RootHash, rec.Beat = format.RootKey(root.Seq, id), int64(len(data)), hex.EncodeToString(sum[:]), uuid.New()
	create(rec.Root, data)
	if data, err = format.EncodeCheckpoint(&rec); err != nil {
		e.t.Fatal(err)
	}
	_, version := e.checkpointRecord()
	if _, err := e.store.Bucket().Replace(ctx, format.CheckpointKey, backend.Bytes(data), version); err != nil {
		e.t.Fatal(err)
	}
}

func (w *wholeCheckpoint) table(t format.Table) *format.Shard {
	for _, sh := range w.shards {
		if sh.Table == t {
			return sh
		}
	}
	return nil
}

// richState makes a datastore whose rows have something in every field, and
// returns the slot that killed an object.
func (e *env) richState(p *proc) (dead uint64) {
	e.t.Helper()
	ctx := context.Background()
	put := func(path string, data []byte, o *PutOptions) uint64 {
		b, err := p.Begin(ctx, nil)
		if err != nil {
			e.t.Fatal(err)
		}
		if data == nil {
			err = b.Delete(ctx, path)
		} else {
			_, err = b.Put(ctx, path, bytes.NewReader(data), o)
		}
		if err != nil {
			e.t.Fatal(err)
		}
		c, err := b.Commit(ctx, "about "+path)
		if err != nil {
			e.t.Fatal(err)
		}
		return c.Slot
	}
	put("rich", text(3000), &PutOptions{Mode: 0o640, MTime: time.Unix(1_700_000_000, 1), Meta: Meta{
		ContentType: "text/plain", Tags: map[string]string{"k": "v"}, Lifetime: time.Hour, Keep: []string{"last=3"},
	}})
	put("packed", packed(1), nil)
	put("large", noise(2, 2<<20), nil)
	put("gone", text(5), nil)
	put("gone", nil, nil)
	var dropped []uint64
	for i := range 3 {
		dropped = append(dropped, put("dropped", packed(10+uint64(i)), nil))
	}
	v, err := p.Stat(ctx, "dropped", dropped[1])
	if err != nil {
		e.t.Fatal(err)
	}
	return e.own(p, func(r *format.Record) {
		r.Kind, r.Writer = format.KindRetention, json.RawMessage(`{"hostname":"here"}`)
		r.Block.Drops = []format.VersionRef{{Path: "dropped", Slot: dropped[1]}}
		r.Block.Dead = []string{v.place.Object.Name}
	}).Slot
}

// unknown is a field that no row has.
var unknown = protowire.AppendVarint(protowire.AppendTag(nil, 100, protowire.VarintType), 1)

// A checkpoint that is whole and says something else than the log is found,
// whichever field it is.
func TestVerifyComparesEveryFieldOfTheCheckpoint(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	dead := e.richState(p)
	if err := p.Checkpoint(ctx); err != nil {
		t.Fatal(err)
	}
	// findings are those that cost data.
	findings := func() (all []string) {
		r, err := p.Verify(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Findings {
			if !f.Harmless {
				all = append(all, f.What)
			}
		}
		return all
	}
	right := e.readCheckpoint()
	e.writeCheckpoint(right)
	if got := findings(); got != nil {
		t.Fatalf("the same rows written anew: %q", got)
	}
	head := p.Head()
	first := func(w *wholeCheckpoint, path string) *format.VersionRow {
		rows := w.table(format.TableVersions).Versions
		return &rows[slices.IndexFunc(rows, func(r format.VersionRow) bool { return r.Change.Path == path })]
	}
	rich := func(w *wholeCheckpoint) *format.VersionRow { return first(w, "rich") } // the last one
	object := func(w *wholeCheckpoint, live bool) *format.ObjectRow {
		sh := w.table(format.TableObjects)
		return &sh.Objects[slices.IndexFunc(sh.Objects, func(r format.ObjectRow) bool { return (r.Dead == 0) == live })]
	}
	log := func(w *wholeCheckpoint) *format.LogRow { return &w.table(format.TableLog).Log[1] }
	entry := func(w *wholeCheckpoint) *format.LogEntry { return &log(w).Entries[0] }

	type wrong struct {
		field string // in the finding
		edit  func(w *wholeCheckpoint)
	}
	tables := []struct {
		name string
		row  any // whose fields must all be among the cases
		all  []wrong
	}{
		{"state", standing{}, []wrong{
			{"Hash", func(w *wholeCheckpoint) { w.root.ChainHash[0]++ }},
			{"Fence", func(w *wholeCheckpoint) { w.root.Fence++ }},
			{"Session", func(w *wholeCheckpoint) { w.root.Session[0]++ }},
			{"Sweep", func(w *wholeCheckpoint) { w.root.Sweep++ }},
		}},
		{"versions", format.VersionRow{}, []wrong{
			{"Slot", func(w *wholeCheckpoint) { rich(w).Slot++ }},
			{"Index", func(w *wholeCheckpoint) { rich(w).Index++ }},
			{"Entry", func(w *wholeCheckpoint) { rich(w).Entry[0]++ }},
			{"Until", func(w *wholeCheckpoint) { first(w, "dropped").Until = 0 }},
			{"Until", func(w *wholeCheckpoint) { rich(w).Until = head }},
			{"Change.Op", func(w *wholeCheckpoint) {
				rich(w).Change = format.Change{Op: format.OpDelete, Path: "rich", Place: format.Place{Object: format.Inline}}
			}},
			{"Change.Path", func(w *wholeCheckpoint) { rich(w).Change.Path = "richer" }},
			{"Change.Size", func(w *wholeCheckpoint) { rich(w).Change.Size++ }},
			{"Change.SHA256", func(w *wholeCheckpoint) { rich(w).Change.SHA256[31]++ }},
			{"Change.Mode", func(w *wholeCheckpoint) { rich(w).Change.Mode ^= 1 }},
			{"Change.MTime", func(w *wholeCheckpoint) { rich(w).Change.MTime++ }},
			{"Change.Meta.ContentType", func(w *wholeCheckpoint) { rich(w).Change.Meta.ContentType = "" }},
			{"Change.Meta.Tags[0].Key", func(w *wholeCheckpoint) { rich(w).Change.Meta.Tags[0].Key = "other" }},
			{"Change.Meta.Tags[0].Value", func(w *wholeCheckpoint) { rich(w).Change.Meta.Tags[0].Value = "other" }},
			{"Change.Meta.Tags", func(w *wholeCheckpoint) { rich(w).Change.Meta.Tags = nil }},
			{"Change.Meta.Lifetime", func(w *wholeCheckpoint) { rich(w).Change.Meta.Lifetime++ }},
			{"Change.Meta.Keep", func(w *wholeCheckpoint) { rich(w).Change.Meta.Keep[0] = "last=4" }},
			{"Change.Meta.Unknown", func(w *wholeCheckpoint) { rich(w).Change.Meta.Unknown = unknown }},
			{"Change.Place.Object", func(w *wholeCheckpoint) {
				first(w, "packed").Change.Place.Object = first(w, "large").Change.Place.Object
			}},
			{"Change.Place.Offset", func(w *wholeCheckpoint) { rich(w).Change.Place.Offset++ }},
			{"Change.Place.Length", func(w *wholeCheckpoint) { rich(w).Change.Place.Length-- }},
			{"Change.Place.Codec", func(w *wholeCheckpoint) { first(w, "packed").Change.Place.Codec = format.CodecZstd }},
			{"Change.Place.Unknown", func(w *wholeCheckpoint) { rich(w).Change.Place.Unknown = unknown }},
			{"Change.Unknown", func(w *wholeCheckpoint) { rich(w).Change.Unknown = unknown }},
			{"Unknown", func(w *wholeCheckpoint) { rich(w).Unknown = unknown }},
			{"lacks rich", func(w *wholeCheckpoint) {
				sh := w.table(format.TableVersions)
				sh.Versions = sh.Versions[:len(sh.Versions)-1]
			}},
			{"has more of slot", func(w *wholeCheckpoint) {
				sh, more := w.table(format.TableVersions), *rich(w)
				more.Change.Path = "more"
				at := slices.IndexFunc(sh.Versions, func(r format.VersionRow) bool { return r.Change.Path > more.Change.Path })
				sh.Versions = slices.Insert(sh.Versions, at, more)
			}},
		}},
		{"objects", format.ObjectRow{}, []wrong{
			{"Object.Name", func(w *wholeCheckpoint) {
				sh := w.table(format.TableObjects)
				last := &sh.Objects[len(sh.Objects)-1].Object
				last.Name = last.Name[:len(last.Name)-36] + "ffffffff-ffff-7fff-bfff-ffffffffffff"
			}},
			{"Object.Kind", func(w *wholeCheckpoint) { object(w, true).Object.Kind ^= format.ObjectPack ^ format.ObjectLarge }},
			{"Object.Size", func(w *wholeCheckpoint) { object(w, true).Object.Size++ }},
			{"Object.FooterSize", func(w *wholeCheckpoint) { object(w, true).Object.FooterSize++ }},
			{"Object.Checksum", func(w *wholeCheckpoint) { object(w, true).Object.Checksum[0]++ }},
			{"Object.Unknown", func(w *wholeCheckpoint) { object(w, true).Object.Unknown = unknown }},
			{"Born", func(w *wholeCheckpoint) { object(w, true).Born++ }},
			{"Dead", func(w *wholeCheckpoint) { object(w, false).Dead = 0 }},
			{"Dead", func(w *wholeCheckpoint) { object(w, true).Dead = dead }},
			{"Unknown", func(w *wholeCheckpoint) { object(w, true).Unknown = unknown }},
			{"lacks data/", func(w *wholeCheckpoint) { // no sweep has covered its name
				sh := w.table(format.TableObjects)
				sh.Objects = slices.DeleteFunc(sh.Objects, func(r format.ObjectRow) bool { return r.Dead != 0 })
			}},
		}},
		{"log", format.LogRow{}, []wrong{
			{"Slot", func(w *wholeCheckpoint) { w.table(format.TableLog).Log = w.table(format.TableLog).Log[1:] }},
			{"Kind", func(w *wholeCheckpoint) { log(w).Kind = format.KindAppend }},
			{"Fence", func(w *wholeCheckpoint) { log(w).Fence++ }},
			{"Session", func(w *wholeCheckpoint) { log(w).Session[0]++ }},
			{"Writer", func(w *wholeCheckpoint) { log(w).Writer = json.RawMessage(`{}`) }},
			{"Time", func(w *wholeCheckpoint) { log(w).Time++ }},
			{"Size", func(w *wholeCheckpoint) { log(w).Size++ }},
			{"Hash", func(w *wholeCheckpoint) { log(w).Hash[0]++ }},
			{"Entries[0].ID", func(w *wholeCheckpoint) { entry(w).ID[15]++ }},
			{"Entries[0].Digest", func(w *wholeCheckpoint) { entry(w).Digest[0]++ }},
			{"Entries[0].Message", func(w *wholeCheckpoint) { entry(w).Message += "." }},
			{"Entries[0].Time", func(w *wholeCheckpoint) { entry(w).Time++ }},
			{"Entries[0].Base", func(w *wholeCheckpoint) { entry(w).Base++ }},
			{"Entries[0].Changes", func(w *wholeCheckpoint) { entry(w).Changes++ }},
			{"Entries[0].Unknown", func(w *wholeCheckpoint) { entry(w).Unknown = unknown }},
			{"Entries", func(w *wholeCheckpoint) { log(w).Entries = nil }},
			{"Unknown", func(w *wholeCheckpoint) { log(w).Unknown = unknown }},
		}},
	}
	// What the finding says where it is not the field's name: keys that differ
	// make two rows, and a place names its object by its key.
	said := map[string]string{
		"versions Slot": "lacks rich of slot", "versions Change.Path": "has richer", "versions Change.Place.Object": "(Object)",
		"objects Object.Name": "lacks data/", "log Slot": "lacks commits/",
	}
	for _, table := range tables {
		named := map[string]bool{}
		for _, c := range table.all {
			named[c.field] = true
			t.Run(table.name+" "+c.field, func(t *testing.T) {
				w := e.readCheckpointOf(right)
				c.edit(w)
				e.writeCheckpoint(w)
				want := "(" + c.field + ")"
				if strings.Contains(c.field, " ") || strings.HasSuffix(c.field, "/") {
					want = c.field
				}
				if s := said[table.name+" "+c.field]; s != "" {
					want = s
				}
				got := findings()
				if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, want) }) {
					t.Errorf("findings %q, want one with %q", got, want)
				}
			})
		}
		for _, field := range leaves("", reflect.TypeOf(table.row)) {
			if !named[field] && field != "Object.New" {
				t.Errorf("no case has a wrong %s of the table of %s", field, table.name)
			}
		}
	}
	e.writeCheckpoint(right)
}

// readCheckpointOf reads w's own objects again, so that edits of one case do not
// reach the next.
func (e *env) readCheckpointOf(right *wholeCheckpoint) *wholeCheckpoint {
	e.t.Helper()
	w := &wholeCheckpoint{record: right.record, root: right.root}
	for _, ref := range right.root.Shards {
		sh, err := readShard(context.Background(), e.store.Bucket(), ref)
		if err != nil {
			e.t.Fatal(err)
		}
		w.shards = append(w.shards, sh)
	}
	return w
}

// leaves names the fields of a type that have no fields of their own.
func leaves(name string, t reflect.Type) []string {
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		t, name = t.Elem(), name+"[0]"
	}
	if t.Kind() != reflect.Struct {
		return []string{name}
	}
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		all = append(all, leaves(strings.TrimPrefix(name+"."+f.Name, "."), f.Type)...)
	}
	return all
}

// What a checkpoint need not have: slots up to its horizon, and dead objects
// whose names a sweep has covered.
func TestWhatACheckpointMayForgetIsNoFinding(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		forget func(w *wholeCheckpoint)
		ok     bool
	}{
		{"slots up to the horizon", func(w *wholeCheckpoint) {
			w.root.Horizon = 3
			w.table(format.TableLog).Log = w.table(format.TableLog).Log[3:]
		}, true},
		{"one slot more", func(w *wholeCheckpoint) {
			w.root.Horizon = 3
			w.table(format.TableLog).Log = w.table(format.TableLog).Log[4:]
		}, false},
		{"dead objects", func(w *wholeCheckpoint) {
			sh := w.table(format.TableObjects)
			sh.Objects = slices.DeleteFunc(sh.Objects, func(r format.ObjectRow) bool { return r.Dead != 0 })
		}, true},
		{"a live object", func(w *wholeCheckpoint) {
			sh := w.table(format.TableObjects)
			sh.Objects = slices.DeleteFunc(sh.Objects, func(r format.ObjectRow) bool { return r.Dead == 0 })
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, nil)
			e.damaged = !c.ok
			p := e.open(nil)
			dead := e.richState(p)
			e.own(p, func(r *format.Record) { r.Kind, r.Sweep = format.KindSweep, dead })
			if err := p.Checkpoint(ctx); err != nil {
				t.Fatal(err)
			}
			w := e.readCheckpoint()
			c.forget(w)
			e.writeCheckpoint(w)
			r, err := p.Verify(ctx, nil)
			if err != nil || r.OK() != c.ok {
				t.Errorf("OK %v, %v, findings %+v; want OK %v", r.OK(), err, r.Findings, c.ok)
			}
		})
	}
}
