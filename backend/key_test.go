package backend_test

import (
	"errors"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
)

func TestCheckKey(t *testing.T) {
	seg := strings.Repeat("s", backend.MaxSegment)
	full := seg + "/" + seg + "/" + strings.Repeat("t", backend.MaxKey-2*backend.MaxSegment-2)
	for _, c := range []struct {
		key string
		bad string // in the error; empty: the key is good
	}{
		{"a", ""},
		{"0", ""},
		{"commits/00000000000000000042", ""},
		{"data/00000000000000000042-0190a6e3-3f5e-7000-8000-000000000000", ""},
		{"_control/writer/lease", ""},
		{"_control", ""},
		{"-/_", ""},
		{"a.b/c..d/e.f.g", ""},
		{"a_control/x.y", ""},
		{"data/" + seg, ""},
		{full, ""},

		{"", "0 bytes"},
		{full + "t", "513 bytes"},
		{"data/" + seg + "s", "201 bytes"},
		{"/", "segment of 0 bytes"},
		{"/a", "segment of 0 bytes"},
		{"a/", "segment of 0 bytes"},
		{"a//b", "segment of 0 bytes"},
		{".", "begins or ends with a dot"},
		{"..", "begins or ends with a dot"},
		{"a/../b", "begins or ends with a dot"},
		{"a/.b", "begins or ends with a dot"},
		{"a./b", "begins or ends with a dot"},
		{"a/b.", "begins or ends with a dot"},
		{"_control/a.b", "holds a dot"},
		{"_control/a/b.c", "holds a dot"},
		{"A", `'A'`},
		{"commits/0000X", `'X'`},
		{"a b", `' '`},
		{"a\x00b", `'\x00'`},
		{"a\nb", `'\n'`},
		{"a\\b", `'\\'`},
		{"a:b", `':'`},
		{"a%2fb", `'%'`},
		{"a?b", `'?'`},
		{"a*", `'*'`},
		{"a~", `'~'`},
		{"caf\u00e9", `'Ã'`},
		{"a\xff", `'ÿ'`},
	} {
		err := backend.CheckKey(c.key)
		switch {
		case c.bad == "" && err != nil:
			t.Errorf("%q: %v", c.key, err)
		case c.bad != "" && (!errors.Is(err, backend.ErrBadKey) || !strings.Contains(err.Error(), c.bad)):
			t.Errorf("%q: %v, want %v with %q", c.key, err, backend.ErrBadKey, c.bad)
		}
	}
}

func TestReplaceable(t *testing.T) {
	for key, want := range map[string]bool{
		"_control/checkpoint": true, "_control/pins/x": true,
		"_control": false, "_controls/x": false, "a/_control/x": false, "commits/1": false, "": false,
	} {
		if got := backend.Replaceable(key); got != want {
			t.Errorf("%q: %t, want %t", key, got, want)
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	for _, p := range []string{"", "a", "a/", "commits/0000", "_control/", "/", "a.", "-"} {
		if err := backend.CheckPrefix(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []string{"A", "a ", "a\x00", "*", "ä", "a\\"} {
		if err := backend.CheckPrefix(p); !errors.Is(err, backend.ErrBadKey) {
			t.Errorf("%q: %v, want %v", p, err, backend.ErrBadKey)
		}
	}
}

// A key that is accepted is harmless as a path in a directory and in a URL, on
// every system, and every beginning of it is a prefix that can be listed.
func FuzzCheckKey(f *testing.F) {
	for _, k := range []string{"a", "commits/1", "_control/x", "a/../b", "a.b/c", ".", "a//b", "CON", "a/b.", "_control/a.b", "\x00", strings.Repeat("a/", 300)} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if backend.CheckKey(key) != nil {
			return
		}
		switch {
		case len(key) > 512 || key == "":
			t.Errorf("%d bytes", len(key))
		case path.Clean(key) != key || path.IsAbs(key) || !filepath.IsLocal(filepath.FromSlash(key)):
			t.Errorf("%q is no plain relative path", key)
		case strings.ToLower(key) != key || strings.ContainsAny(key, "\\:*?\"<>|%#&+ \x00"):
			t.Errorf("%q holds what some store does not", key)
		case strings.HasPrefix(key, "_control/") && strings.Contains(key, "."):
			t.Errorf("%q can be replaced and holds a dot", key)
		}
		for _, seg := range strings.Split(key, "/") {
			if len(seg) > 200 || strings.HasPrefix(seg, ".") || strings.HasSuffix(seg, ".") {
				t.Errorf("%q has the segment %q", key, seg)
			}
		}
		for i := range len(key) + 1 {
			if err := backend.CheckPrefix(key[:i]); err != nil {
				t.Errorf("%q is a key and %q no prefix: %v", key, key[:i], err)
			}
		}
	})
}
