package format

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Keys of the control records.
const (
	FormatKey     = "_control/format"
	LeaseKey      = "_control/writer/lease"
	CheckpointKey = "_control/checkpoint"
	CommitPrefix  = "commits/"
	DataPrefix    = "data/"
	ShardPrefix   = "checkpoints/"
)

// SlotKey is the key of a record.
func SlotKey(slot uint64) string { return fmt.Sprintf("%s%020d", CommitPrefix, slot) }

// ParseSlotKey is the inverse of SlotKey.
func ParseSlotKey(key string) (uint64, bool) {
	digits, ok := strings.CutPrefix(key, CommitPrefix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && n > 0
}

// DataKey names a data object; head is the replica's head at this moment (R5).
func DataKey(head uint64, id uuid.UUID) string {
	return fmt.Sprintf("%s%020d-%s", DataPrefix, head, id)
}

// DataHead returns the head in the name of a data object.
func DataHead(name string) (uint64, bool) {
	rest, ok := strings.CutPrefix(name, DataPrefix)
	if !ok || len(rest) != numberedLen {
		return 0, false
	}
	return numbered(rest)
}

// numberedLen is the length of a 20-digit number, "-" and a uuid.
const numberedLen = 20 + 1 + 36

// numbered reads the number at the beginning of s; behind it come "-" and a uuid
// in lower case, as it is always written: one name has one spelling.
func numbered(s string) (uint64, bool) {
	if len(s) < numberedLen || s[20] != '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:20], 10, 64)
	if err != nil {
		return 0, false
	}
	for i, c := range []byte(s[21:numberedLen]) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash && c != '-' || !dash && !hex {
			return 0, false
		}
	}
	return n, true
}

// RootKey and ShardKey name the objects of a checkpoint.
func RootKey(seq uint64, id uuid.UUID) string {
	return fmt.Sprintf("%s%020d-%s-root", ShardPrefix, seq, id)
}

// ShardKey is the key of the n-th shard that a checkpoint wrote.
func ShardKey(seq uint64, id uuid.UUID, n int) string {
	return fmt.Sprintf("%s%020d-%s-%06d", ShardPrefix, seq, id, n)
}

// CheckpointSeq returns the seq in the key of a checkpoint's root or shard.
func CheckpointSeq(key string) (seq uint64, ok bool) {
	rest, ok := strings.CutPrefix(key, ShardPrefix)
	if !ok || len(rest) < numberedLen+2 || rest[numberedLen] != '-' {
		return 0, false
	}
	if last := rest[numberedLen+1:]; last != "root" {
		n, err := strconv.ParseUint(last, 10, 31)
		if err != nil || last != fmt.Sprintf("%06d", n) {
			return 0, false
		}
	}
	return numbered(rest)
}

// VersionKey is the sort key of a version in a checkpoint: the path, a NUL
// (which no path holds) and the slot, so that a path sorts before all that it
// is the beginning of.
func VersionKey(path string, slot uint64) string { return fmt.Sprintf("%s\x00%020d", path, slot) }
