package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/writer"
)

func TestNamesOfArguments(t *testing.T) {
	wd := t.TempDir()
	t.Chdir(filepath.Dir(wd))
	here := filepath.Base(filepath.Dir(wd))
	for _, c := range []struct{ arg, want string }{
		{".", ""}, {"./", ""}, {"a", "a"}, {"a/b.txt", "a/b.txt"}, {"./a//b/", "a/b"}, {"a/../b", "b"}, {"..", filepath.Base(filepath.Dir(filepath.Dir(wd)))},
		{"../x", "x"}, {"../../x/y", "y"}, {"/srv/www", "www"}, {"/srv/www/", "www"}, {"../" + here, here}, {"/", "!"},
	} {
		got, err := nameOf(c.arg)
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("%q is called %q, want %q", c.arg, got, c.want)
		}
	}
}

func TestSourcesOfArguments(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"a/x", "a/y", "b/x", "other/a/x", "f", "a-b"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", "link"); err != nil {
		t.Fatal(err)
	}
	abs := func(name string) string {
		s, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, c := range []struct {
		args, as string
		want     string // name=file, by name; "!" is refused
	}{
		{".", "", "=."},
		{". a f", "", "=."},
		{"a f a-b . .", "", "=."},
		{"a b", "", "a=a b=b"},
		{"a a/x a", "", "a=a"},
		{"a/x a", "", "a=a"},
		{"a-b a/x a", "", "a-b=a-b a=a"},
		{"a", "new", "new=a"},
		{"f", "new/name", "new/name=f"},
		{"f", "new/", "new/f=f"},
		{"a f", "new", "new/a=a new/f=f"},
		{".", "new", "new=."},
		{". f", "new", "new=."},
		{abs("a"), "", "a=" + abs("a")},
		{"a " + abs("a"), "", "a=" + "a"}, // the same directory
		{"a " + abs("other/a"), "", "!"},  // two that are called a
		{"f " + abs("other/a/x"), "", "f=f x=" + abs("other/a/x")},
		{". " + abs("other/a/x"), "", "=. x=" + abs("other/a/x")}, // . holds no x
		{". " + abs("other/a"), "", "!"},                          // but another a
		{"link", "", "link=link"},
		{"link/", "", "link=link/"},
		{"f", "../x", "!"}, {"f", "/x", "!"}, {"f", "a//b", "!"}, {"f", ".swamp/x", "!"}, {"f a", "../x/", "!"}, {"nothing", "", "!"},
		{"-", "x", "x=-"}, {"-", "", "!"}, {"-", "x/", "!"}, {"- f", "x", "!"},
	} {
		srcs, err := sources(strings.Fields(c.args), c.as)
		var all []string
		for _, s := range srcs {
			all = append(all, s.name+"="+s.file)
		}
		got := strings.Join(all, " ")
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("put %s --as %q: got %q (%v), want %q", c.args, c.as, got, err, c.want)
		}
	}
	srcs, err := sources([]string{"link/"}, "")
	if err != nil || !srcs[0].info.IsDir() {
		t.Errorf("link/ is the directory behind the link: %v", err)
	}
}

func TestExcludePatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, rel string
		dir, want    bool
	}{
		{"*.o", "a/b/x.o", false, true}, {"*.o", "x.o.txt", false, false}, {"build", "a/build", true, true}, {"build/", "a/build", false, false},
		{"build/", "a/build", true, true}, {"/build", "build", false, true}, {"/build", "a/build", true, false}, {"a/*.c", "a/x.c", false, true},
		{"a/*.c", "b/a/x.c", false, false}, {"a/*", "a/b/c", false, false}, {"/a/b/", "a/b", true, true}, {"?[ab]", "xb", false, true},
	} {
		ps, err := patterns([]string{c.pattern})
		if err != nil {
			t.Fatal(err)
		}
		if got := ps[0].matches(c.rel, c.dir); got != c.want {
			t.Errorf("%q against %q: %v", c.pattern, c.rel, got)
		}
	}
	for _, bad := range []string{"", "/", "[", "a/[x"} {
		if _, err := patterns([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestNegativeStatesAreNoFlags(t *testing.T) {
	for in, want := range map[string]string{
		"diff -1":          "diff newest-1",
		"diff -12 -1 -n":   "diff newest-12 newest-1 -n",
		"-s x diff -1":     "-s x diff newest-1",
		"diff -- -1":       "diff -- -1",
		"cat --at -1 diff": "cat --at -1 diff",
		"log -1":           "log -1",
		// Here diff is a file.
		"cat diff --offset -3": "cat diff --offset -3",
		"put -s x diff -m -1":  "put -s x diff -m -1",
		"-s diff cat x -1":     "-s diff cat x -1",
		"-s diff diff -1":      "-s diff diff newest-1",
		"-s x --json diff -1":  "-s x --json diff newest-1",
	} {
		root := newApp(nil, os.Stdout, os.Stderr).rootCommand()
		if got := strings.Join(negativeSlots(root, strings.Fields(in)), " "); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}

func TestTargetsThatLieInOthersAreDropped(t *testing.T) {
	f := func(p string) target { return target{path: p} }
	d := func(p string) target { return target{path: p, dir: true} }
	for _, c := range []struct{ in, want []target }{
		{[]target{f("a"), f("a"), d("b"), d("b")}, []target{f("a"), d("b")}},
		{[]target{f("a/b"), d("a"), d("a/c/d"), f("ab")}, []target{d("a"), f("ab")}},
		{[]target{f("a"), d("a")}, []target{f("a"), d("a")}},
		{[]target{d("x"), d(""), f("y")}, []target{d("")}},
	} {
		if got := withoutCovered(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.in, got, c.want)
		}
	}
}

func TestSizesAndTimesAreWrittenAsPeopleWriteThem(t *testing.T) {
	for got, want := range map[string]string{
		took(300 * time.Microsecond): "0.3 ms", took(12 * time.Millisecond): "12 ms", took(1500 * time.Millisecond): "1.5 s", took(42 * time.Second): "42 s",
		took(125 * time.Second): "2 min 05 s", took(3*time.Hour + 61*time.Second): "3 h 01 min",
		size(0): "0 B", size(5000): "4.9 KiB", size(3 << 30): "3.0 GiB",
		count(1, "file"): "1 file", count(1234, "file"): "1,234 files", count(0, "file"): "0 files",
		quoteArg("a/b.txt"): "a/b.txt", quoteArg("it's"): `'it'\''s'`, quoteArg(""): "''", quoteArg("a b"): "'a b'",
		firstLine("\n one\ntwo"): "one", when(time.Time{}): "-",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWhatGoesToATerminalHoldsNoControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"plain name": "plain name", "größe.txt": "größe.txt", "日本": "日本", "a\nb": `"a\nb"`, "\x1b[31mred": `"\x1b[31mred"`, "bad\xff": `"bad\xff"`,
		"\u202egnp.exe": `"\u202egnp.exe"`, "tab\t": `"tab\t"`, "\u009b31m": `"\u009b31m"`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func TestSecretsAreScrubbed(t *testing.T) {
	a := &app{}
	for in, want := range map[string]string{
		"open s3://me:hush@host/x: no":                            "open s3://me:redacted@host/x: no",
		`parse "s3://b/%zz?a=1&secret_key=hush&b=2": bad`:         `parse "s3://b/%zz?a=1&secret_key=redacted&b=2": bad`,
		"s3://b/p?session_token=hush":                             "s3://b/p?session_token=redacted",
		"s3://b/p?endpoint=http://127.0.0.1:9000&path_style=true": "s3://b/p?endpoint=http://127.0.0.1:9000&path_style=true",
		"file:///home/me:x/a@b":                                   "file:///home/me:x/a@b",
	} {
		if got := a.scrub(in); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A kind is what programs decide by: each sentinel has one, and its exit code
// is the documented one.
func TestErrorsHaveTheDocumentedExitCodes(t *testing.T) {
	a := &app{parsed: true}
	for err, want := range map[error]int{
		datastore.ErrBusy: 75, datastore.ErrUnconfirmed: 75, datastore.ErrFenced: 1, datastore.ErrConflict: 1, datastore.ErrChanged: 1,
		datastore.ErrNotFound: 1, datastore.ErrExists: 1, datastore.ErrGone: 1, datastore.ErrCorrupt: 1, datastore.ErrUpgrade: 1,
		datastore.ErrUnsupportedStore: 1, datastore.ErrBadPath: 2, datastore.ErrIDReused: 2,
	} {
		e := a.explain(t.Context(), &datastore.Error{Op: "commit", Key: "x", Err: err})
		if e.ExitCode != want || e.Kind == "failed" {
			t.Errorf("%v: exit code %d, kind %q", err, e.ExitCode, e.Kind)
		}
	}
	expired := &datastore.Error{Op: "commit", Key: "x", Err: fmt.Errorf("%w: the lease was lost (%w)", datastore.ErrFenced, writer.ErrExpired)}
	if e := a.explain(t.Context(), expired); e.Kind != "fenced" || e.ExitCode != 1 || !strings.Contains(e.Hint, "may have taken over") || !strings.Contains(e.Hint, "do not retry it blindly") {
		t.Errorf("whether another took over is not known: %+v", e)
	}
	both := &datastore.Error{Op: "commit", Key: "the-id", Err: joined{datastore.ErrUnconfirmed, datastore.ErrBusy}}
	if e := a.explain(t.Context(), both); e.Kind != "unconfirmed" || e.Commit != "the-id" || !strings.Contains(e.Hint, "the-id") {
		t.Errorf("what is open comes first: %+v", e)
	}
}

type joined []error

func (j joined) Error() string   { return "several" }
func (j joined) Unwrap() []error { return j }

// An upload that fails makes the next put fail too, whatever file that is of.
func TestAnErrorOfTheStoreIsNotBlamedOnAFile(t *testing.T) {
	about := &fs.PathError{Op: "open", Path: "dir/file", Err: fs.ErrPermission}
	upload := &backend.Error{Op: "create", Key: "data/x", Err: datastore.ErrChanged}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{about, true}, {&datastore.Error{Op: "put", Key: "file", Err: about}, true}, {&datastore.Error{Op: "put", Err: datastore.ErrChanged}, true},
		{&fs.PathError{Op: "open", Path: "/store/data/x", Err: fs.ErrPermission}, false},
		{&datastore.Error{Op: "put", Key: "file", Err: upload}, false}, {context.Canceled, false}, {datastore.ErrFenced, false},
	} {
		if got := isFileError(c.err, "dir/file"); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestFilesThatAreDirectoriesTooAreFound(t *testing.T) {
	for in, want := range map[string]string{
		"a a-b a/b": "a", "a ab abc b/c": "", "a/b a/b!c a/b/c/d": "a/b", "a! a/b": "", "a a-/x a- b": "", "a a.b a.b/c": "a.b",
	} {
		var names clashes
		got := ""
		for name := range strings.FieldsSeq(in) {
			if file := names.add(name); file != "" {
				got = file
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}
