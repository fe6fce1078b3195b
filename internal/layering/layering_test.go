// Package layering holds the test of who may import whom.
package layering

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/swampd/swampd/"

// forbidden lists, for each package of the engine, the packages of this module that
// it must not import, directly or through others, tests not counted.
var forbidden = map[string][]string{
	"backend":          {"writer", "datastore", "checkout", "retention", "cmd", "internal"},
	"backend/fs":       {"writer", "datastore", "checkout", "retention", "cmd"},
	"backend/s3":       {"writer", "datastore", "checkout", "retention", "cmd"},
	"backend/gcs":      {"writer", "datastore", "checkout", "retention", "cmd"},
	"backend/memory":   {"writer", "datastore", "checkout", "retention", "cmd"},
	"internal/format":  {"backend", "writer", "datastore", "checkout", "retention", "cmd"},
	"internal/catalog": {"backend", "writer", "datastore", "checkout", "retention", "cmd"},
	"writer":           {"datastore", "checkout", "retention", "cmd", "backend/fs", "backend/s3", "backend/gcs", "backend/memory"},
	"datastore":        {"checkout", "retention", "cmd", "backend/fs", "backend/s3", "backend/gcs", "backend/memory"},
}

func TestLowerLayersDoNotImportHigherOnes(t *testing.T) {
	for pkg, not := range forbidden {
		out, err := exec.Command("go", "list", "-deps", module+pkg).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pkg, err)
		}
		for dep := range strings.FieldsSeq(string(out)) {
			rel, ours := strings.CutPrefix(dep, module)
			if !ours || rel == pkg {
				continue
			}
			for _, f := range not {
				if rel == f || strings.HasPrefix(rel, f+"/") {
					t.Errorf("%s imports %s", pkg, rel)
				}
			}
		}
	}
}

// TestTestPackagesStayInTests: what exists for tests is in no program.
func TestTestPackagesStayInTests(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"cmd/swampd").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		for _, f := range []string{"internal/backendtest", "internal/childproc", "internal/faults", "internal/testserver", "backend/memory"} {
			if dep == module+f {
				t.Errorf("cmd/swampd imports %s", f)
			}
		}
	}
}
