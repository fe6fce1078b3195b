package layering

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTestsNamedInTheDesignExist: design/invariants.md names a test for what
// must hold, and a name that is no test would promise something.
func TestTestsNamedInTheDesignExist(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash("../../design/invariants.md"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{}
	out, err := exec.Command("go", "list", "-f", "{{.Name}} {{.Dir}}", "../../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		dirs[name] = dir
	}
	named := regexp.MustCompile("`([a-z0-9]+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 30 {
		t.Fatalf("only %d tests are named", len(named))
	}
	sources := map[string]string{}
	for _, n := range named {
		pkg, test := n[1], n[2]
		if _, ok := sources[pkg]; !ok {
			files, err := filepath.Glob(filepath.Join(dirs[pkg], "*_test.go"))
			if err != nil || dirs[pkg] == "" {
				t.Errorf("there is no package %s (%v)", pkg, err)
				continue
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[pkg] += string(b)
			}
		}
		if !strings.Contains(sources[pkg], "\nfunc "+test+"(") {
			t.Errorf("design/invariants.md names %s.%s, which does not exist", pkg, test)
		}
	}
}
