package backend

import (
	"fmt"
	"strings"
)

// MaxKey is the longest key in bytes. Stores take 1,024 with the prefix of the
// datastore before it.
const MaxKey = 512

// MaxSegment is the longest part between slashes in bytes: 255 is what file
// systems take, less the room for the version suffix of backend/fs.
const MaxSegment = 200

// CheckKey is the one place that says what a key may look like: one or more
// segments joined by "/", each of the characters a-z 0-9 . _ -, neither
// beginning with "." nor ending with it, of 1 to MaxSegment bytes, MaxKey bytes
// in all. No key may be a path-wise parent of another ("a" beside "a/b"): some
// stores keep keys as files and directories; the engine's names never do that.
// Lower case only, so that a case-insensitive file system can hold them. The
// segments of a key below "_control/" hold no dot at all (see Replaceable).
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%w: %q has %d bytes, 1 to %d are possible", ErrBadKey, key, len(key), MaxKey)
	}
	for seg := range strings.SplitSeq(key, "/") {
		if seg == "" || len(seg) > MaxSegment {
			return fmt.Errorf("%w: %q has a segment of %d bytes, 1 to %d are possible", ErrBadKey, key, len(seg), MaxSegment)
		}
		if seg[0] == '.' || seg[len(seg)-1] == '.' {
			return fmt.Errorf("%w: a segment of %q begins or ends with a dot", ErrBadKey, key)
		}
		if Replaceable(key) && strings.Contains(seg, ".") {
			return fmt.Errorf("%w: a segment of %q holds a dot, which keys below %s may not", ErrBadKey, key, ControlPrefix)
		}
		for i := range len(seg) {
			if !keyByte(seg[i]) {
				return fmt.Errorf("%w: %q holds the byte %q; a-z 0-9 . _ - and / are possible", ErrBadKey, key, seg[i])
			}
		}
	}
	return nil
}

// ControlPrefix is where the records lie that may be replaced.
const ControlPrefix = "_control/"

// Replaceable says whether Replace may be used on key. All other objects are
// made once and never change, so that a driver can keep them as plain files
// (backend/fs keeps the versions of a replaceable one as files whose names go on
// with a dot behind the key).
func Replaceable(key string) bool { return strings.HasPrefix(key, ControlPrefix) }

// CheckPrefix checks what List may be asked for: the beginning of a key, or
// nothing.
func CheckPrefix(prefix string) error {
	for i := range len(prefix) {
		if c := prefix[i]; c != '/' && !keyByte(c) {
			return fmt.Errorf("%w: the prefix %q holds the byte %q", ErrBadKey, prefix, c)
		}
	}
	return nil
}

func keyByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
