package format

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrBadPath: a path that no datastore takes; nothing was changed.
var ErrBadPath = errors.New("bad path")

// PathError says which path was refused, why, and what to do.
type PathError struct {
	Path   string
	Reason string
}

func (e *PathError) Error() string {
	path := e.Path
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return fmt.Sprintf("%v %q: %s", ErrBadPath, path, e.Reason)
}

func (e *PathError) Unwrap() error { return ErrBadPath }

// reserved is the name of the directory in which a checkout keeps its own files.
const reserved = ".swamp"

// CheckPath is the one place that says what a path in a datastore may look like:
// one or more segments joined by "/", valid UTF-8, at most MaxPath bytes in all,
// no NUL, no segment empty, "." or "..", and none ".swamp" in any letter case,
// since on a disk that ignores case it is the directory of the checkout itself.
//
// Everything else is possible, backslashes, line breaks and trailing dots too,
// and segments of any length: stores never see paths. What a file system does
// not take is refused by the checkout that has to make the file.
func CheckPath(path string) error {
	bad := func(reason string) error { return &PathError{path, reason} }
	switch {
	case path == "":
		return bad("it is empty: give a name relative to the root of the datastore")
	case len(path) > MaxPath:
		return bad(fmt.Sprintf("it has %d bytes, at most %d are possible: use shorter names", len(path), MaxPath))
	case path[0] == '/':
		return bad("it is absolute: give it relative to the root of the datastore, without the leading \"/\"")
	case !utf8.ValidString(path):
		return bad("it is not valid UTF-8: rename the file")
	case strings.IndexByte(path, 0) >= 0:
		return bad("it holds a NUL byte: remove it")
	}
	for rest, more := path, true; more; {
		var seg string
		seg, rest, more = strings.Cut(rest, "/")
		switch {
		case seg == "":
			return bad("it has an empty segment: write one \"/\" between names and none at the end")
		case seg == "." || seg == "..":
			return bad(fmt.Sprintf("it has the segment %q: write the path without it", seg))
		case seg[0] == '.' && strings.EqualFold(seg, reserved):
			return bad(fmt.Sprintf("the name %q belongs to the checkout: leave it out or rename it", seg))
		}
	}
	return nil
}
