package backendtest

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/backendtest/liar"
)

// liarEnv names the liar that a child process runs the suite against.
const liarEnv = "SWAMPD_BACKENDTEST_LIAR"

// portable are the subtests of rules that Bucket keeps for every driver: no
// driver can break them. The tests of package backend hold them, too.
var portable = []string{
	"Get/a negative length is refused",
	"Replace/only keys below _control can be replaced",
	"Replace/no version is refused",
	"Delete/no keys is no error",
	"List/a prefix that begins no key is ErrBadKey",
	"Errors/bad keys are ErrBadKey and nothing is done",
}

// TestSuiteOnLiar is the suite against one liar, in a child process.
func TestSuiteOnLiar(t *testing.T) {
	name := os.Getenv(liarEnv)
	if name == "" {
		return // TestLiarsAreCaught starts it
	}
	Run(t, Harness{
		New:     func(testing.TB) func() *backend.Bucket { return liar.Named(name).New() },
		Dates:   true,
		Timeout: 10 * time.Second,
	})
}

func TestLiarsAreCaught(t *testing.T) {
	if os.Getenv(liarEnv) != "" {
		return // in the child
	}
	t.Run("honest", func(t *testing.T) {
		honest := liar.Honest
		for _, l := range liar.All() {
			honest.Breaks = append(honest.Breaks, l.Breaks...)
		}
		if failed, out, err := runOnLiar(t, honest); err != nil {
			t.Errorf("%q fail on a store that breaks nothing: %v\n%s", failed, err, out)
		}
	})
	for _, l := range liar.All() {
		t.Run(l.Name, func(t *testing.T) {
			failed, out, err := runOnLiar(t, l)
			if err == nil {
				t.Error("the suite passes")
			}
			for _, name := range l.Breaks {
				if !slices.Contains(failed, underscored(name)) {
					t.Errorf("%s passes", name)
				}
			}
			if t.Failed() {
				t.Logf("the child said:\n%s", out)
			}
		})
	}
}

// runOnLiar runs, in a child process, the subtests that the liar breaks, and
// returns those that failed and how the child ended. The suite needs a real *testing.T, and some liars
// end in a panic.
func runOnLiar(t *testing.T, l liar.Liar) (failed []string, out string, ended error) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var groups, names []string
	for _, b := range l.Breaks {
		g, n, _ := strings.Cut(b, "/")
		groups = append(groups, regexp.QuoteMeta(g))
		names = append(names, regexp.QuoteMeta(underscored(n)))
	}
	run := "^TestSuiteOnLiar$/^(" + strings.Join(groups, "|") + ")$/^(" + strings.Join(names, "|") + ")$"
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", run, "-test.short", "-test.v", "-test.timeout", "60s")
	cmd.Env = append(os.Environ(), liarEnv+"="+l.Name)
	text, ended := cmd.CombinedOutput()
	for _, line := range strings.Split(string(text), "\n") {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestSuiteOnLiar/")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, " (")
		failed = append(failed, name)
	}
	return failed, string(text), ended
}

// Every subtest can fail: some liar breaks it.
func TestEverySubtestHasALiar(t *testing.T) {
	broken := slices.Clone(portable)
	for _, l := range liar.All() {
		broken = append(broken, l.Breaks...)
	}
	var all []string
	for _, g := range groups() {
		for _, s := range g.tests {
			name := g.name + "/" + s.name
			if slices.Contains(all, name) {
				t.Errorf("two subtests are named %q", name)
			}
			all = append(all, name)
			if !slices.Contains(broken, name) {
				t.Errorf("no liar breaks %q", name)
			}
		}
	}
	for _, b := range broken {
		if !slices.Contains(all, b) {
			t.Errorf("%q is no subtest", b)
		}
	}
}

// The options of a harness allow what they say and nothing else.
func TestHarnessOptions(t *testing.T) {
	t.Run("versions of content", func(t *testing.T) {
		Run(t, Harness{
			New: func(testing.TB) func() *backend.Bucket {
				return memory.New(&memory.Options{ContentVersions: true}).Bucket
			},
			Dates:           true,
			ContentVersions: true,
		})
	})
	t.Run("slow races", func(t *testing.T) {
		Run(t, Harness{
			New:         func(testing.TB) func() *backend.Bucket { return memory.New(nil).Bucket },
			Dates:       true,
			SlowRaces:   true,
			LostAnswers: true,
		})
	})
}
