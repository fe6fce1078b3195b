package fs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
)

// The files of a directory store, as design/format.md names them: every name that
// ever appears is one of the page, and every name of the page appears.
func TestFilesOfTheDesignAreReal(t *testing.T) {
	page, err := os.ReadFile("../../design/format.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Files of a directory store\n")
	section, _, ok2 := strings.Cut(section, "\n## ")
	if !ok || !ok2 {
		t.Fatal("format.md has no section on the files of a directory store")
	}
	met := map[string]int{} // how often a name of the page was met
	var patterns []string
	part := strings.NewReplacer("<object>", `data/x/y`, "<record>", `_control/x`, "<n>", `\d{20}`, "<zero>", `0{20}`,
		"<life>", `[0-9a-f]{16}`, "<r4>", `[0-9a-f]{8}`, "<r8>", `[0-9a-f]{16}`, ".", `\.`)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		patterns = append(patterns, m[1])
		met[m[1]] = 0
	}
	var mu sync.Mutex
	meet := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		var is []string
		for _, p := range patterns {
			if strings.Contains(p, "<n>") && strings.Contains(name, "."+strings.Repeat("0", 20)+".") {
				continue // versions begin at 1
			}
			if regexp.MustCompile("^" + part.Replace(p) + "$").MatchString(name) {
				is = append(is, p)
				met[p]++
			}
		}
		if len(is) != 1 {
			t.Errorf("the file %s is %q of format.md", name, is)
		}
	}

	root := filepath.Join(memDir(t), "store")
	h := &hookFS{FS: OS(), root: root}
	h.after = func(c call, err error) error {
		switch {
		case err != nil:
		case c.op == "create":
			meet(c.name)
		case c.op == "link" || c.op == "rename":
			meet(c.to)
		}
		return err
	}
	d := open(t, root, h)
	create(t, d, "data/x/y", "object")
	v := create(t, d, "_control/x", "first").Version
	for range keepVersions + 3 {
		v = replace(t, d, "_control/x", "next", v).Version
	}
	if err := d.Delete(t.Context(), []string{"_control/x"}); err != nil {
		t.Fatal(err)
	}
	create(t, d, "_control/x", "again")
	if _, err := d.CleanUploads(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	for p, n := range met {
		if n == 0 {
			t.Errorf("format.md names the file %s, and there was none", p)
		}
	}

	// What stays: contents, and an id that names the life of the version beside it.
	left := files(t, root)
	if len(left) != 3 {
		t.Fatalf("these files are left: %q; want a record's two and an object", left)
	}
	i := slices.Index(left, "_control/x.id")
	f, ok := parseRecordFile(strings.TrimPrefix(left[0], "_control/"))
	if i != 1 || !ok || f.n != 1 {
		t.Fatalf("these files are left: %q", left)
	}
	for name, want := range map[string]string{left[0]: "again", left[1]: f.life + "\n", left[2]: "object"} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q (%v), want %q", name, got, err, want)
		}
	}
	if !backend.Replaceable("_control/x") || backend.Replaceable("data/x/y") {
		t.Error("what is called a record and an object here is none")
	}
}
