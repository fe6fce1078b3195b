package writer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// machine is a system that shows what it is told to, and counts the looks.
type machine struct {
	seen         sighting
	guard        guardSight
	looks, tries int
}

func (m *machine) system(namespaces bool) system {
	return system{
		namespaces: namespaces,
		process:    func(int, *Identity) sighting { m.looks++; return m.seen },
		guard:      func(*Guard) guardSight { m.tries++; return m.guard },
	}
}

func someone() *Identity {
	return &Identity{
		Hostname: "web-1", PIDNamespace: "pid:[4026531836]", TimeNamespace: "time:[4026531834]",
		BootID: "b5ae3b8a-0f8a-4f4f-a4a6-1d5bb50b5b2b", PID: 4711, StartTime: "987654",
	}
}

// myself is another process of the same machine.
func myself() *Identity {
	id := someone()
	id.PID, id.StartTime = 4712, "999999"
	return id
}

var someGuard = &Guard{Path: "/srv/.swamp/guard", Inode: 77, ID: "g"}

// The table of design/judge.md: what is seen of a process of this machine.
func TestTheJudgesTable(t *testing.T) {
	free, held := guardSight{true, "unlocked"}, guardSight{false, "a process holds it locked"}
	for name, c := range map[string]struct {
		seen    sighting
		guard   *Guard
		sight   guardSight
		want    Standing
		because string
		tries   int // looks at the guard
	}{
		"absent":                         {seen: sighting{presence: absent, words: "kill says ESRCH"}, want: Gone, because: "kill says ESRCH"},
		"another start time":             {seen: sighting{presence: present, start: "987655"}, want: Gone, because: "belongs to another"},
		"another start time, dead":       {seen: sighting{presence: present, start: "987655", dead: true}, want: Gone, because: "belongs to another"},
		"dead":                           {seen: sighting{presence: present, start: "987654", dead: true, words: "a zombie"}, want: Gone, because: "a zombie"},
		"present":                        {seen: sighting{presence: present, start: "987654", words: "its state is T"}, want: Alive, because: "its state is T"},
		"cannot be read":                 {seen: sighting{words: "no permission"}, want: Unknown, because: "no permission"},
		"start time that is no number":   {seen: sighting{presence: present, start: "soon"}, want: Unknown, because: "cannot be compared"},
		"no start time":                  {seen: sighting{presence: present}, want: Unknown, because: "cannot be compared"},
		"start time of another kind":     {seen: sighting{presence: present, start: "987654.000000"}, want: Unknown, because: "cannot be compared"},
		"absent, guard unlocked":         {seen: sighting{presence: absent}, guard: someGuard, sight: free, want: Gone, because: "unlocked", tries: 1},
		"absent, guard held":             {seen: sighting{presence: absent}, guard: someGuard, sight: held, want: Unknown, because: "holds it locked", tries: 1},
		"dead, guard held":               {seen: sighting{presence: present, start: "987654", dead: true}, guard: someGuard, sight: held, want: Unknown, because: "holds it locked", tries: 1},
		"another start time, guard held": {seen: sighting{presence: present, start: "1"}, guard: someGuard, sight: held, want: Unknown, because: "holds it locked", tries: 1},
		"present, guard unlocked":        {seen: sighting{presence: present, start: "987654"}, guard: someGuard, sight: free, want: Alive},
		"cannot be read, guard unlocked": {seen: sighting{}, guard: someGuard, sight: free, want: Unknown},
		"another start time, 0":          {seen: sighting{presence: present, start: "0"}, want: Gone, because: "began at 0"},
	} {
		m := &machine{seen: c.seen, guard: c.sight}
		got := m.system(true).judge(someone(), c.guard, myself())
		if got.Standing != c.want || !strings.Contains(got.Evidence, c.because) || m.looks != 1 || m.tries != c.tries {
			t.Errorf("%s: got %v, want %v with %q (looked %d times, at the guard %d)", name, got, c.want, c.because, m.looks, m.tries)
		}
		if !strings.HasPrefix(got.Evidence, "process 4711 on host web-1: same boot, pid namespace and time namespace") {
			t.Errorf("%s: the evidence is %q", name, got.Evidence)
		}
	}
}

// parts changes one part of an identity each, also by leaving it out.
var parts = map[string]func(*Identity, string){
	"hostname":       func(id *Identity, s string) { id.Hostname = s },
	"pid namespace":  func(id *Identity, s string) { id.PIDNamespace = s },
	"time namespace": func(id *Identity, s string) { id.TimeNamespace = s },
	"boot id":        func(id *Identity, s string) { id.BootID = s },
}

// Who is not of this machine, boot and namespaces by every part is not looked at.
func TestAPartThatDiffersOrIsMissingIsUnknown(t *testing.T) {
	check := func(name string, theirs, mine *Identity, because string) {
		t.Helper()
		m := &machine{seen: sighting{presence: absent}, guard: guardSight{free: true}}
		got := m.system(true).judge(theirs, someGuard, mine)
		if got.Standing != Unknown || m.looks+m.tries != 0 || !strings.Contains(got.Evidence, because) {
			t.Errorf("%s: got %v, want unknown with %q (looked %d times)", name, got, because, m.looks+m.tries)
		}
	}
	for name, set := range parts {
		theirs, mine := someone(), myself()
		set(theirs, "other")
		check(name+" of another", theirs, mine, "its "+name+" is other, and here it is")
		set(theirs, "")
		check(name+" not recorded", theirs, mine, "its record has no "+name)
		set(mine, "")
		check(name+" not known on either side", theirs, mine, "its record has no "+name)
		check(name+" of mine not known", someone(), mine, "this process does not know its own "+name)
	}
	for _, pid := range []int64{0, -1, -4711, 1 << 31, 1 << 40} {
		theirs := someone()
		theirs.PID = int(pid)
		check("a pid that is none", theirs, myself(), "which no process has")
	}
	for _, start := range []string{"0987654", "-1", "987654.000000", "987654 ", "soon", "x\x1b[2J"} {
		theirs := someone()
		theirs.StartTime = start
		check("a start time of another kind", theirs, myself(), "cannot be compared")
	}
	theirs, mine := someone(), myself()
	theirs.StartTime = ""
	check("no start time", theirs, mine, "no start time")
	mine.StartTime = ""
	check("no start time of mine", someone(), mine, "its own pid and start time")
	mine = myself()
	mine.PID = 0
	check("no pid of mine", someone(), mine, "its own pid and start time")
	theirs = someone()
	theirs.Extra = map[string]json.RawMessage{"cell": json.RawMessage("1")}
	check("a part of a newer program", theirs, myself(), "more than this program knows")
	check("no record", nil, myself(), "names no process")
	check("nobody who asks", someone(), nil, "names no process")
	check("an empty record", &Identity{}, myself(), "no hostname")
}

// On systems without namespaces there is nothing to compare; a record that has
// one is of another system.
func TestWithoutNamespacesTheOtherPartsDecide(t *testing.T) {
	bare := func(id *Identity) *Identity { id.PIDNamespace, id.TimeNamespace = "", ""; return id }
	m := &machine{seen: sighting{presence: absent, words: "no such process"}}
	got := m.system(false).judge(bare(someone()), nil, bare(myself()))
	if want := "process 4711 on host web-1: same boot; no such process"; got != (Verdict{Gone, want}) {
		t.Errorf("got %v, want gone: %s", got, want)
	}
	if got := m.system(false).judge(someone(), nil, bare(myself())); got.Standing != Unknown || m.looks != 1 {
		t.Errorf("a record with namespaces: got %v after %d looks", got, m.looks)
	}
	if got := m.system(true).judge(bare(someone()), nil, bare(myself())); got.Standing != Unknown || m.looks != 1 {
		t.Errorf("a system with namespaces that are not known: got %v after %d looks", got, m.looks)
	}
}

// Whatever else the machine shows: with a part changed on either side, nobody is
// gone or alive, and nobody is looked at.
func TestNoChangedPartGivesAVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []*Identity{someone(), myself()}
		change := rapid.SampledFrom([]string{"hostname", "pid namespace", "time namespace", "boot id", "extra", "start kind"})
		for _, name := range rapid.SliceOfNDistinct(change, 1, 6, rapid.ID[string]).Draw(t, "parts") {
			id := ids[rapid.IntRange(0, 1).Draw(t, "side")]
			switch name {
			case "extra":
				id.Extra = map[string]json.RawMessage{rapid.StringMatching(`[a-z]+`).Draw(t, "name"): json.RawMessage("1")}
			case "start kind":
				id.StartTime = rapid.SampledFrom([]string{"", "0.000000", "01", "x", "-3", "1e3"}).Draw(t, "start")
			default:
				value := rapid.OneOf(rapid.Just(""), rapid.String().Filter(func(s string) bool { return s != "web-1" })).Draw(t, "value")
				parts[name](id, value)
			}
		}
		m := drawMachine(t)
		if got := m.system(true).judge(ids[0], drawGuard(t), ids[1]); got.Standing != Unknown || m.looks+m.tries > 0 {
			t.Fatalf("got %v after %d looks", got, m.looks+m.tries)
		}
	})
}

// Gone needs a reason, alive needs a process, and words never break a terminal.
func TestGoneNeedsEveryWitness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, guard := drawMachine(t), drawGuard(t)
		got := m.system(true).judge(someone(), guard, myself())
		here := m.seen.presence == present && m.seen.start == someone().StartTime && !m.seen.dead
		switch {
		case (got.Standing == Alive) != here:
			t.Fatalf("got %v for %+v", got, m.seen)
		case got.Standing == Gone && (here || m.seen.presence == unreadable || guard != nil && !m.guard.free):
			t.Fatalf("got %v for %+v with the guard %+v", got, m.seen, m.guard)
		case got.Standing == Unknown && guard == nil && m.seen.presence == absent:
			t.Fatalf("got %v for %+v", got, m.seen)
		}
	})
}

func drawMachine(t *rapid.T) *machine {
	return &machine{
		seen: sighting{
			presence: rapid.SampledFrom([]presence{unreadable, absent, present}).Draw(t, "presence"),
			start:    rapid.SampledFrom([]string{"", "0", "987654", "987655", "987654.000000", "x"}).Draw(t, "start"),
			dead:     rapid.Bool().Draw(t, "dead"),
		},
		guard: guardSight{free: rapid.Bool().Draw(t, "free")},
	}
}

func drawGuard(t *rapid.T) *Guard {
	return rapid.SampledFrom([]*Guard{nil, someGuard}).Draw(t, "guard")
}

func TestEvidenceIsFitForATerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		theirs := someone()
		for _, set := range parts {
			set(theirs, rapid.String().Draw(t, "part"))
		}
		theirs.StartTime = rapid.String().Draw(t, "start")
		m := &machine{seen: sighting{presence: absent}}
		evidence := m.system(true).judge(theirs, &Guard{Path: rapid.String().Draw(t, "path")}, myself()).Evidence
		for _, r := range evidence {
			if r < ' ' || r > '~' {
				t.Fatalf("the evidence has %q: %q", r, evidence)
			}
		}
	})
	long := someone()
	long.Hostname = strings.Repeat("x", 1<<20)
	if got := here.judge(long, nil, myself()); len(got.Evidence) > 2000 {
		t.Errorf("the evidence has %d bytes", len(got.Evidence))
	}
}

func TestStandingsHaveNames(t *testing.T) {
	got, err := json.Marshal([]Verdict{{}, {Alive, "a"}, {Gone, "g"}})
	want := `[{"standing":"unknown","evidence":""},{"standing":"alive","evidence":"a"},{"standing":"gone","evidence":"g"}]`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if got := fmt.Sprint(Verdict{Gone, "no such process"}); got != "gone: no such process" {
		t.Errorf("got %q", got)
	}
}
