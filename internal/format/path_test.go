package format

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestPathsThatAreTaken(t *testing.T) {
	for _, path := range []string{
		"a", "a/b", "a/b/c.txt", "ä/ö.txt", "a b", " ", "-", "~", "a\\b", "a\nb", "a\x01b", "\x7f", "C:", "...", "a..b", "..a", "a.",
		"swamp", ".swampy", ".swamp2", "a.swamp", ". ", ".git/config", "con", "a:b*?<>|\"",
		strings.Repeat("x", MaxPath), strings.Repeat("x/", MaxPath/2-1) + "xx", strings.Repeat("ü", MaxPath/2), "\U0010ffff",
	} {
		if err := CheckPath(path); err != nil {
			t.Errorf("%.50q: got %v", path, err)
		}
	}
}

func TestPathsThatAreRefusedSayWhatToDo(t *testing.T) {
	for _, c := range []struct{ path, reason string }{
		{"", "it is empty: give a name"},
		{"/", "it is absolute: give it relative"},
		{"/a", "it is absolute: give it relative"},
		{"//a", "it is absolute"},
		{"a/", "empty segment: write one"},
		{"a//b", "empty segment"},
		{".", `segment ".": write the path without it`},
		{"..", `segment ".."`},
		{"a/./b", `segment "."`},
		{"a/../b", `segment ".."`},
		{"a/..", `segment ".."`},
		{"../a", `segment ".."`},
		{".swamp", `".swamp" belongs to the checkout: leave it out`},
		{"a/.swamp/b", `".swamp" belongs`},
		{"a/.SwAmP", `".SwAmP" belongs`},
		{".ſwamp/x", `".ſwamp" belongs`}, // a long s: equal where letter case is ignored
		{"a\x00b", "NUL byte: remove it"},
		{"\x00", "NUL byte"},
		{"a\xffb", "not valid UTF-8: rename"},
		{"a/\xed\xa0\x80", "not valid UTF-8"}, // half of a surrogate pair
		{strings.Repeat("x", MaxPath+1), "it has 4097 bytes, at most 4096 are possible: use shorter names"},
		{strings.Repeat("ü", MaxPath/2) + "x", "it has 4097 bytes"},
	} {
		err := CheckPath(c.path)
		var pathErr *PathError
		if !errors.Is(err, ErrBadPath) || !errors.As(err, &pathErr) || pathErr.Path != c.path || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%.50q: got %v, want %s", c.path, err, c.reason)
		}
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%.50q: the error has %d bytes", c.path, len(err.Error()))
		}
	}
}

func TestKeysAreReadAsTheyAreWritten(t *testing.T) {
	id := uuid.MustParse("0198c0de-0000-7000-8000-0123456789ab")
	for _, n := range []uint64{1, 42, 1<<64 - 1} {
		if got, ok := ParseSlotKey(SlotKey(n)); !ok || got != n {
			t.Errorf("slot %d: got %d, %v", n, got, ok)
		}
		if got, ok := DataHead(DataKey(n, id)); !ok || got != n {
			t.Errorf("head %d: got %d, %v", n, got, ok)
		}
		for _, key := range []string{RootKey(n, id), ShardKey(n, id, 0), ShardKey(n, id, 999_999), ShardKey(n, id, 1_000_000)} {
			if got, ok := CheckpointSeq(key); !ok || got != n {
				t.Errorf("%s: got %d, %v", key, got, ok)
			}
		}
	}
	if got := DataKey(7, id); got != "data/00000000000000000007-0198c0de-0000-7000-8000-0123456789ab" {
		t.Errorf("got %s", got)
	}
}

func TestOtherKeysAreNotRead(t *testing.T) {
	const id = "0198c0de-0000-7000-8000-0123456789ab"
	for _, key := range []string{"", "commits/", "commits/1", "commits/00000000000000000000", "commits/0000000000000000004x",
		"commits/000000000000000000042", "commits/99999999999999999999", "data/00000000000000000042", "commits/+0000000000000000042"} {
		if n, ok := ParseSlotKey(key); ok {
			t.Errorf("%q is slot %d", key, n)
		}
	}
	for _, key := range []string{"", "data/", "data/00000000000000000007", "data/00000000000000000007-", "data/7-" + id,
		"data/00000000000000000007-" + strings.ToUpper(id), "data/00000000000000000007_" + id, "data/99999999999999999999-" + id,
		"data/00000000000000000007-" + id + "x", "data/00000000000000000007-" + id[:35] + "g", "x/00000000000000000007-" + id,
		"data/00000000000000000007-0198c0de-0000-7000-80000123456789ab0", "data/+0000000000000000007-" + id,
		"data/00000000000000000007-{198c0de-0000-7000-8000-0123456789a}"} {
		if n, ok := DataHead(key); ok {
			t.Errorf("%q has the head %d", key, n)
		}
	}
	for _, key := range []string{"", "checkpoints/00000000000000000007-" + id, "checkpoints/00000000000000000007-" + id + "-",
		"checkpoints/00000000000000000007-" + id + "-1", "checkpoints/00000000000000000007-" + id + "-0000001",
		"checkpoints/00000000000000000007-" + id + "-roots", "checkpoints/00000000000000000007-" + id + "_root",
		"checkpoints/00000000000000000007-" + strings.ToUpper(id) + "-root", "checkpoints/00000000000000000007-" + id + "-+00001"} {
		if n, ok := CheckpointSeq(key); ok {
			t.Errorf("%q has the seq %d", key, n)
		}
	}
}

// The byte order of keys is the order of what they name.
func TestVersionKeysSortByPathAndSlot(t *testing.T) {
	keys := []string{VersionKey("a", 2), VersionKey("a", 10), VersionKey("a", 1<<63), VersionKey("a\x01", 1), VersionKey("a-b", 1),
		VersionKey("a/b", 1), VersionKey("ab", 1)}
	for i := 1; i < len(keys); i++ {
		if keys[i-1] >= keys[i] {
			t.Errorf("%q does not come before %q", keys[i-1], keys[i])
		}
	}
}
