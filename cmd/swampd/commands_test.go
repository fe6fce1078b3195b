package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// session uses every command once and more, with the extra flags.
func session(t *testing.T, extra ...string) string {
	c := newCLI(t)
	c.env = append(c.env, "SWAMPD_STORE="+c.store())
	c.sound(c.store())
	old := time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)
	for name, content := range map[string]string{
		"readme.txt": "hello\n", "docs/plan.md": "# plan\n", "docs/old/notes.md": "", "docs-2/x.bin": strings.Repeat("x", 5000),
		"build/out.o": "object",
	} {
		if err := os.Chtimes(c.file(name, content), old, old); err != nil {
			t.Fatal(err)
		}
	}
	tr := &transcript{c: c}
	do := func(args ...string) { tr.do(append(args, extra...)...) }
	do("init")
	do("init")
	do("lock", "status")
	do("ls")
	do("log")
	do("put", ".", "--exclude", "build/", "-m", "the first\nwith a second line")
	do("put", ".", "--exclude", "build/")
	tr.doIn(strings.NewReader("from a pipe\n"), append([]string{"put", "-", "--as", "docs/piped.txt", "--tag", "a=b", "--content-type", "text/plain", "--lifetime", "720h", "--keep", "last:3", "--keep", "daily:7"}, extra...)...)
	do("ls")
	do("ls", "-l", "docs")
	do("ls", "-l", "readme.txt")
	do("ls", "-r")
	do("ls", "nothing")
	do("cat", "readme.txt", "docs/piped.txt")
	do("cat", "--offset", "-5", "--length", "4", "docs/piped.txt")
	do("cat", "docs")
	do("cat", "nothing")
	c.file("readme.txt", "hello again\n")
	if err := os.Chtimes(filepath.Join(c.dir, "readme.txt"), old, old); err != nil {
		t.Fatal(err)
	}
	do("put", "readme.txt")
	do("rm", "docs")
	do("rm", "readme.txt", "nothing")
	do("rm", "-r", "docs/old", "docs-2/x.bin")
	do("log", "-n", "2")
	do("log", "--all")
	do("log", "readme.txt")
	do("log", "docs-2/x.bin")
	do("log", "docs/piped.txt")
	do("log", "docs")
	do("log", "--id", "018f0000-0000-7000-8000-000000000000")
	do("diff", "-1")
	do("diff", "-2", "-1")
	do("diff", "0", "--under", "docs")
	do("diff", "99")
	do("cat", "--at", "-1", "docs-2/x.bin", "--length", "3")
	do("get", "readme.txt", "docs", "-o", "../out")
	do("get", ".", "-o", "../out")
	do("get", "--at", "-3", "readme.txt", "-o", "../out")
	do("get", "--at", "-3", "readme.txt", "-o", "../out", "--force")
	do("get", "nothing", "-o", "../out")
	for range 2 {
		do("rm", "docs/plan.md", "--id", "018f0000-0000-7000-8000-000000000001")
	}
	do("lock", "status")
	do("lock", "release")
	do("lock", "release", "--force")
	do("verify")
	do("verify", "--read-data")
	do("doctor")
	do("version")
	return c.stable(tr.b.String())
}

func TestEveryCommandSpeaksToPeople(t *testing.T) {
	t.Parallel()
	golden(t, "session.txt", session(t))
}

func TestEveryCommandSpeaksToPrograms(t *testing.T) {
	t.Parallel()
	got := session(t, "--json")
	golden(t, "session-json.txt", got)
	for line := range strings.SplitSeq(got, "\n") {
		line = strings.TrimPrefix(line, "! ")
		if line == "" || strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "exit code ") {
			continue
		}
		line = strings.NewReplacer(`:SECONDS`, `:0`, `:N,`, `:0,`).Replace(line)
		if !json.Valid([]byte(line)) || line[0] != '{' {
			t.Errorf("no JSON object: %s", line)
		}
	}
}

func TestCompletionScriptsAreWritten(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := c.ok("completion", shell); !strings.Contains(r.out, "swampd") {
			t.Errorf("%s: %q", shell, r.out)
		}
		var j completionJSON
		if err := json.Unmarshal([]byte(c.ok("completion", shell, "--json").out), &j); err != nil || j.Shell != shell || j.Script == "" {
			t.Errorf("%s: %v %q", shell, err, j.Shell)
		}
	}
	c.run("completion", "tcsh").wantCode(2)
	c.run("completion").wantCode(2)
}

func TestHelpDocumentsExitCodesAndJSON(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, args := range [][]string{{}, {"--help"}, {"help"}} {
		r := c.ok(args...)
		for _, want := range []string{"130", "75", "fenced", "do not retry blindly", "--max-wait", "swampd lock", "SWAMPD_STORE", "--json"} {
			if !strings.Contains(r.out, want) {
				t.Errorf("help %v: %q is missing", args, want)
			}
		}
	}
	c.ok("help", "put").wantOut(c.ok("put", "--help").out)
	for _, name := range []string{"init", "put", "get", "cat", "ls", "rm", "log", "diff", "verify", "doctor", "lock status", "lock release", "version", "completion"} {
		if r := c.ok(append(strings.Fields(name), "--help")...); !strings.Contains(r.out, "--json: ") {
			t.Errorf("%s --help does not say what --json gives", name)
		}
	}
}

// Each key that a command writes with --json stands in its help, in that of "ls"
// where it says so, or, for errors, in that of the program.
func TestEachJSONKeyIsDocumented(t *testing.T) {
	t.Parallel()
	transcript, err := os.ReadFile(filepath.Join("testdata", "session-json.txt"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCLI(t)
	helps := map[string]string{}
	help := func(args ...string) string {
		name := strings.Join(args, " ")
		if helps[name] == "" {
			helps[name] = c.ok(append(args, "--help")...).out
			if strings.Contains(helps[name], `as in "ls --json"`) {
				helps[name] += c.ok("ls", "--help").out
			}
		}
		return helps[name]
	}
	check := func(where, text string, v any) {
		for _, k := range keysOf(v) {
			if !strings.Contains(text, `"`+k+`"`) {
				t.Errorf("%s --json writes %q, of which its help says nothing", where, k)
			}
		}
	}
	command, checked := "", map[string]bool{}
	for line := range strings.SplitSeq(string(transcript), "\n") {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "$" {
			command = words[2]
			if command == "lock" {
				command += " " + words[3]
			}
		}
		data, isError := strings.CutPrefix(line, "! ")
		if !strings.HasPrefix(data, "{") {
			continue
		}
		var v any
		data = strings.NewReplacer(`:SECONDS`, `:0`, `:N,`, `:0,`).Replace(data)
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if isError {
			check("an error with", help(), v)
			continue
		}
		checked[command] = true
		check("swampd "+command, help(strings.Fields(command)...), v)
	}
	if len(checked) < 13 {
		t.Errorf("only %v were looked at", checked)
	}
}

// keysOf lists the keys of JSON objects at every level.
func keysOf(v any) (keys []string) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			keys = append(keys, keysOf(e)...)
		}
	case map[string]any:
		for k, e := range v {
			keys = append(keys, k)
			if k != "tags" { // whose keys are the user's
				keys = append(keys, keysOf(e)...)
			}
		}
	}
	return keys
}

func TestWrongUseExitsWith2AndChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("x", "x")
	for _, args := range [][]string{
		{"no-such-command"}, {"--no-such-flag"}, {"ls", "--no-such-flag"}, {"ls", "a", "b"}, {"put"}, {"get"}, {"cat"}, {"rm"}, {"diff"},
		{"diff", "1", "2", "3"}, {"put", "x", "--max-wait", "soon"}, {"put", "x", "--exclude", "["}, {"put", "x", "--exclude", ""},
		{"put", "x", "--tag", "novalue"}, {"put", "x", "--tag", "a=1", "--tag", "a=2"}, {"put", "x", "--lifetime", "-1h"},
		{"put", "x", "--id", "x"}, {"put", "x", "--id", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}, {"put", "-"}, {"put", "-", "x", "--as", "y"},
		{"put", ""}, {"put", "/"}, {"put", "x", "--as", "../y"}, {"cat", "--length", "0", "x"}, {"cat", "--length", "-1", "x"},
		{"log", "-n", "0"}, {"log", "--id", "x"}, {"log", "--id", "018f0000-0000-7000-8000-000000000000", "x"},
		{"ls", "--at", "yesterday"}, {"diff", "newest+1"}, {"get", "x", "-o", ""}, {"init", "a", "-s", "b"}, {"init", ""},
		{"version", "x"}, {"verify", "x"}, {"ls", "-s", ""}, {"rm", "-r", ".", "--store="}, {"ls", "--state-dir", ""},
		{"put", "x", "-m", "bad\xff"}, {"rm", "x", "-m", "bad\xff"}, {"put", "x", "-m", strings.Repeat("m", 1<<16+1)}, {"put", "x", "--tag", "k=\xff"},
		{"help", "no-such-command"}, {"help", "ls", "x"}, {"lock", "no-such-command"}, {"lock", "status", "x"}, {"lock", "release"},
		{"lock", "release", "--force", "x"}, {"lock", "status", "--force"}, {"lock", "release", "--max-wait", "0"},
		{"put", "x", "--content-type", "\xff"}, {"put", "x", "--keep", "\xff"}, {"put", "x", "--keep", ""},
	} {
		c.run(args...).wantCode(2).wantErr("swampd: ").wantPlain().wantOut("")
		r := c.run(append(args, "--json")...).wantCode(2)
		var e errorJSON
		if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.Kind != "usage" && e.Kind != "bad-path" || e.ExitCode != 2 || e.Error == "" {
			t.Errorf("%v --json: %v: %s", args, err, r.err)
		}
	}
	if n := c.commits(); n != 0 {
		t.Errorf("%d commits", n)
	}
}

func TestAnAddressThatIsNoneExitsWith2(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, store := range []string{
		"ftp://host/dir", "http://host/x", "s3:/bucket", "s3:bucket", "gs:/bucket/x", "file:dir", "file://relative", "s3://", "gs:///x",
		"s3://bucket/x#fragment", "s3://bucket/%zz",
		"s3://bucket/x?no_such_parameter=1", "s3://bucket/x?region=a&region=b", "s3://me@bucket/x",
	} {
		for _, args := range [][]string{{"init"}, {"ls"}, {"put", "."}, {"doctor"}} {
			c.run(append(args, "-s", store)...).wantCode(2).wantErr("swampd: ").wantPlain()
		}
		c.env = append(c.env, "SWAMPD_STORE="+store)
		c.run("ls").wantCode(2)
		c.run("init", store).wantCode(2)
	}
	c.env = append(c.env, "SWAMPD_STORE=")
	entries, err := os.ReadDir(c.dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("a wrong address left %v behind (%v)", entries, err)
	}
}

func TestThereIsNoSecretInAnError(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.file("x", "x")
	for _, args := range [][]string{{"ls"}, {"init"}, {"put", "x"}, {"doctor"}} {
		for _, store := range []string{"ftp://me:hush-hush@host/dir", "s3://me:hush-hush@/x", "ftp://host/?secret_key=hush-hush", "s3://b/p?access_token=hush-hush&x=%zz"} {
			for _, extra := range [][]string{nil, {"--json"}} {
				r := c.run(append(append(args, "-s", store), extra...)...)
				if strings.Contains(r.err+r.out, "hush-hush") {
					t.Errorf("%s\n%s%s", r.command, r.out, r.err)
				}
			}
		}
	}
}

func TestADatastoreThatIsNotThere(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.file("x", "x")
	for _, args := range [][]string{{"ls"}, {"put", "x"}, {"log"}, {"verify"}} {
		c.run(append(args, "-s", c.store())...).wantCode(1).wantErr("there is no datastore at "+c.store(), "swampd init -s ").wantPlain()
		r := c.run(append(args, "-s", c.store(), "--json")...).wantCode(1)
		if !strings.Contains(r.err, `"kind":"no-datastore"`) {
			t.Errorf("%s", r.err)
		}
	}
	if _, err := os.Stat(c.store()); err == nil {
		t.Error("looking for a datastore made its directory")
	}
}

// A state holds paths, and so it can hold a file and a directory of one name.
func TestAFileAndADirectoryOfOneName(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	for _, name := range []string{"d/a", "d/a-b", "d/a/b/c", "d/a/x"} {
		c.runIn(strings.NewReader(name), "put", "-", "--as", name).wantCode(0)
	}
	for _, what := range []string{".", "d", "d/a"} {
		c.run("get", what, "-o", "out").wantCode(1).wantErr("d/a is a file and d/a/ a directory", "swampd get d/a/", "swampd cat d/a").wantPlain()
	}
	c.ok("get", "d/a/", "-o", "out")
	if got, err := os.ReadFile(filepath.Join(c.dir, "out/d/a/b/c")); string(got) != "d/a/b/c" {
		t.Errorf("%q, %v", got, err)
	}
	c.ok("cat", "d/a").wantOut("d/a")
	c.ok("rm", "d/a")
	c.ok("get", ".", "-o", "out")
	c.ok("rm", "-r", ".")
	c.run("rm", "-r", ".").wantCode(1).wantErr("there is nothing")
}

// The same command under the same id is done once, however often it is given:
// this is what a script does that got no answer.
func TestACommandUnderAnIDIsDoneOnce(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.file("a/x", "x")
	c.file("a/y", "y")
	id := func() string { return uuid.Must(uuid.NewV7()).String() }
	for _, args := range [][]string{
		{"put", "a"}, {"rm", "a/x"}, {"rm", "-r", "a"}, {"put", "a", "--unchanged"}, {"rm", "a/x", "a/y", "-m", "both"},
	} {
		args = append(args, "--id", id())
		c.ok(args...)
		before := c.commits()
		if r := c.ok(args...); !strings.HasPrefix(r.out, "this commit had landed before, in state ") {
			t.Errorf("%s: %q", r.command, r.out)
		}
		if r := c.ok(append(args, "--json")...); !strings.Contains(r.out, `"again":true`) {
			t.Errorf("%s: %q", r.command, r.out)
		}
		if n := c.commits(); n != before {
			t.Errorf("%v: %d commits, want %d", args, n, before)
		}
	}
	other := id()
	c.ok("put", "a", "--id", other)
	c.run("rm", "a/z", "--id", other).wantCode(1)
	c.run("rm", "a/z", "--id", id()).wantCode(1)
	c.run("rm", "a/x", "--id", other).wantCode(2)
}

// Verify is where all other commands send people: it cannot do so itself.
func TestADamagedStoreIsDescribed(t *testing.T) {
	t.Parallel()
	c := newCLI(t).withStore()
	c.damaged = true
	c.file("x", strings.Repeat("x", 10))
	c.random("large", 1<<20)
	c.ok("put", ".")
	data, err := filepath.Glob(filepath.Join(c.store(), "data", "*"))
	if err != nil || len(data) != 1 {
		t.Fatal(data, err)
	}
	flip(t, data[0], 1000)
	c.ok("verify")
	if r := c.run("verify", "--read-data").wantCode(1).wantErr("damaged"); !strings.Contains(r.out, "DAMAGED") || !strings.Contains(r.out, "large") {
		t.Error(r.out)
	}
	c.run("cat", "large").wantCode(1).wantErr("damaged", "large", "swampd verify --read-data")
	c.ok("cat", "x").wantOut(strings.Repeat("x", 10))
	c.run("get", ".", "-o", "out").wantCode(1).wantErr("damaged", "large")
	if _, err := os.Lstat(filepath.Join(c.dir, "out/large")); err == nil {
		t.Error("the damaged file was written")
	}
	if err := os.Remove(data[0]); err != nil {
		t.Fatal(err)
	}
	if r := c.run("verify").wantCode(1); !strings.Contains(r.out, "missing") {
		t.Error(r.out)
	}
	flip(t, filepath.Join(c.store(), "commits", "00000000000000000002"), 200)
	other := filepath.Join(c.base, "nothing-known")
	c.run("ls", "--state-dir", other).wantCode(1).wantErr("commits/00000000000000000002", "swampd verify").wantPlain()
	r := c.run("verify", "--state-dir", other).wantCode(1).wantErr("commits/00000000000000000002", "copy of the store").wantPlain()
	if strings.Contains(r.err, "--read-data") {
		t.Error(r.err)
	}
}
