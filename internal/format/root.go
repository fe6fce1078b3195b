package format

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

const (
	rootFields     = 12
	shardRefFields = 6
)

// EncodeRoot makes the first object of a checkpoint.
func EncodeRoot(r *Root) ([]byte, error) {
	if err := checkRoot(r); err != nil {
		return nil, refused("checkpoint root", err)
	}
	p := borrow()
	body := appendRoot(*p, r)
	defer func() { giveBack(p, body) }()
	out, err := sealFrame(frameRoot, body, nil, 0)
	if err != nil {
		return nil, refused("checkpoint root", err)
	}
	return out, nil
}

// DecodeRoot reads the first object of a checkpoint.
func DecodeRoot(object []byte) (*Root, error) {
	f, err := openFrame(object, frameRoot)
	if err != nil {
		return nil, damaged("checkpoint root", err)
	}
	r := &Root{}
	m := parse(f.body, "body")
	decodeRoot(&m, r)
	if m.p.err == nil {
		m.check(checkRoot(r))
	}
	if err := m.p.err; err != nil {
		return nil, damaged("checkpoint root", err)
	}
	return r, nil
}

func checkRoot(r *Root) error {
	switch n := len(r.Shards); {
	case r.Seq == 0:
		return errors.New("a checkpoint of slot 0")
	case r.Datastore == uuid.Nil:
		return errors.New("it names no datastore")
	case n > MaxShards:
		return overLimit("shards", int64(n), MaxShards)
	}
	var rows [TableLog + 1]uint64
	names := make(map[string]struct{}, len(r.Shards))
	for i := range r.Shards {
		s := &r.Shards[i]
		err := checkShardRef(s, r.Seq)
		if err == nil && i > 0 {
			err = checkShardOrder(&r.Shards[i-1], s)
		}
		if _, ok := names[s.Name]; ok && err == nil {
			err = errors.New("it is there twice")
		}
		if err != nil {
			return fmt.Errorf("shard %d, %s: %w", i, s.Name, err)
		}
		names[s.Name] = struct{}{}
		rows[s.Table] += s.Rows
	}
	if rows[TableVersions] != r.Versions || rows[TableObjects] != r.Objects || rows[TableLog] != r.Slots {
		return fmt.Errorf("it counts %d versions, %d objects and %d slots, its shards have %d, %d and %d",
			r.Versions, r.Objects, r.Slots, rows[TableVersions], rows[TableObjects], rows[TableLog])
	}
	return checkUnknown(r.Unknown, rootFields)
}

func checkShardRef(s *ShardRef, seq uint64) error {
	if err := checkTable(s.Table); err != nil {
		return err
	}
	made, ok := CheckpointSeq(s.Name)
	switch {
	case !ok || strings.HasSuffix(s.Name, "-root"):
		return errors.New("that is not the key of a shard")
	case made > seq:
		return fmt.Errorf("a checkpoint of slot %d cannot share it", seq)
	case len(s.First) > maxKey:
		return overLimit("bytes of its first key", int64(len(s.First)), maxKey)
	case !utf8.ValidString(s.First):
		return errUTF8
	case s.Size < frameHeader || s.Size > frameShard.objectLimit():
		return fmt.Errorf("%d bytes are not possible", s.Size)
	case s.Rows == 0:
		return errEmpty
	case s.Rows > MaxShardItems:
		return overLimit("rows", int64(min(s.Rows, math.MaxInt64)), MaxShardItems)
	}
	return checkUnknown(s.Unknown, shardRefFields)
}

// maxKey is the length of the longest VersionKey.
const maxKey = MaxPath + 1 + 20

func checkShardOrder(before, s *ShardRef) error {
	if before.Table > s.Table || before.Table == s.Table && before.First >= s.First {
		return errors.New("it should come before the one before it")
	}
	return nil
}

func checkTable(t Table) error {
	if t < TableVersions || t > TableLog {
		return errUnknownValue{"table", uint64(t)}
	}
	return nil
}

func appendRoot(b []byte, r *Root) []byte {
	b = appendUUID(b, 1, &r.Datastore)
	b = appendUint(b, 2, r.Seq)
	b = appendHash(b, 3, &r.ChainHash)
	b = appendUint(b, 4, r.Fence)
	b = appendUUID(b, 5, &r.Session)
	b = appendUint(b, 6, r.Sweep)
	b = appendUint(b, 7, r.Horizon)
	b = appendTime(b, 8, r.Time)
	b = appendUint(b, 9, r.Versions)
	b = appendUint(b, 10, r.Objects)
	b = appendUint(b, 11, r.Slots)
	for i := range r.Shards {
		b = appendShardRef(b, 12, &r.Shards[i])
	}
	return append(b, r.Unknown...)
}

func decodeRoot(m *message, r *Root) {
	n := m.counts()
	if n[12] > MaxShards {
		m.check(overLimit("shards", int64(n[12]), MaxShards))
		return
	}
	if n[12] > 0 {
		r.Shards = make([]ShardRef, 0, n[12])
	}
	for m.next() {
		switch m.num {
		case 1:
			r.Datastore = m.uuid()
		case 2:
			r.Seq = m.uint()
		case 3:
			r.ChainHash = m.hash()
		case 4:
			r.Fence = m.uint()
		case 5:
			r.Session = m.uuid()
		case 6:
			r.Sweep = m.uint()
		case 7:
			r.Horizon = m.uint()
		case 8:
			r.Time = m.time()
		case 9:
			r.Versions = m.uint()
		case 10:
			r.Objects = m.uint()
		case 11:
			r.Slots = m.uint()
		case 12:
			r.Shards = append(r.Shards, ShardRef{})
			decodeShardRef(m.sub("shard"), &r.Shards[len(r.Shards)-1])
		default:
			r.Unknown = m.unknown(r.Unknown)
		}
	}
}

func appendShardRef(b []byte, num fieldNumber, s *ShardRef) []byte {
	b, at := beginMessage(b, num)
	b = appendUint(b, 1, uint64(s.Table))
	b = appendText(b, 2, s.First)
	b = appendText(b, 3, s.Name)
	b = appendSize(b, 4, s.Size)
	b = appendHash(b, 5, &s.Checksum)
	b = appendUint(b, 6, s.Rows)
	b = append(b, s.Unknown...)
	return endMessage(b, at)
}

func decodeShardRef(m message, s *ShardRef) {
	for m.next() {
		switch m.num {
		case 1:
			s.Table = Table(m.enum("table"))
		case 2:
			s.First = m.text()
		case 3:
			s.Name = m.text()
		case 4:
			s.Size = m.size()
		case 5:
			s.Checksum = m.hash()
		case 6:
			s.Rows = m.uint()
		default:
			s.Unknown = m.unknown(s.Unknown)
		}
	}
}
