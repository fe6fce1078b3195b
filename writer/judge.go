package writer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"strconv"
)

// Standing is what is known of a process.
type Standing int

const (
	// Unknown: nothing may be concluded. Age, fence and guard decide.
	Unknown Standing = iota
	// Alive: the process exists. No TTL changes that.
	Alive
	// Gone: the process does not exist any more, and never will again.
	Gone
)

func (s Standing) String() string {
	switch s {
	case Alive:
		return "alive"
	case Gone:
		return "gone"
	}
	return "unknown"
}

// MarshalText gives "alive", "gone" or "unknown".
func (s Standing) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Verdict is what the judge found. The zero value is Unknown.
type Verdict struct {
	Standing Standing `json:"standing"`
	// Evidence says in words for people what was compared and seen. It is fit
	// for a terminal, whatever the record holds.
	Evidence string `json:"evidence"`
}

func (v Verdict) String() string { return v.Standing.String() + ": " + v.Evidence }

// Judge says of a recorded process whether it is alive, gone or unknown. It is
// the only place of this module that looks at other processes (a test holds
// that), and the rules are in design/judge.md.
//
// me is this process as it is now, from Self. guard is what the record names as
// its guard, or nil; gone then also needs the guard to be here and unlocked.
// Nothing is done to the process: no signal but 0 is sent, and a stopped one
// stays stopped. Judge reads /proc and a file that is on a local disk; it does
// not wait.
func Judge(recorded *Identity, guard *Guard, me *Identity) Verdict {
	return here.judge(recorded, guard, me)
}

// system is what the judge sees of this machine.
type system struct {
	// namespaces: processes are known by pid only within one pid namespace.
	namespaces bool
	process    func(pid int, me *Identity) sighting
	guard      func(*Guard) guardSight
}

// sighting is what a look at a pid showed.
type sighting struct {
	presence presence
	start    string // of the process that has the pid
	dead     bool   // it has ended, but its parent has not taken note
	words    string
}

type presence int

const (
	unreadable presence = iota
	absent
	present
)

// guardSight is what a look at a guard showed. Free: it is the recorded one,
// and whoever recorded it does not hold it.
type guardSight struct {
	free  bool
	words string
}

// judge is the table of design/judge.md.
func (sys system) judge(recorded *Identity, guard *Guard, me *Identity) Verdict {
	if recorded == nil || me == nil {
		return Verdict{Unknown, "the record names no process"}
	}
	verdict := func(s Standing, format string, args ...any) Verdict {
		who := fmt.Sprintf("process %d on host %s: ", recorded.PID, word(recorded.Hostname))
		return Verdict{s, who + fmt.Sprintf(format, args...)}
	}
	if why := sys.apart(recorded, me); why != "" {
		return verdict(Unknown, "%s, so it was not looked at", why)
	}
	seen := sys.process(recorded.PID, me)
	same := "same boot"
	if sys.namespaces {
		same += ", pid namespace and time namespace"
	}
	switch {
	case seen.presence == present && seen.start == recorded.StartTime && !seen.dead:
		return verdict(Alive, "%s; it has the recorded start time %s; %s", same, recorded.StartTime, seen.words)
	case seen.presence == absent:
		same += "; " + seen.words
	case seen.presence == present && !sameKind(seen.start, recorded.StartTime):
		return verdict(Unknown, "%s, but it began at %s by the record, at %s by the system, which cannot be compared", same, word(recorded.StartTime), word(seen.start))
	case seen.presence == present && seen.start != recorded.StartTime:
		same += fmt.Sprintf("; it began at %s, and its pid now belongs to another, which began at %s", recorded.StartTime, seen.start)
	case seen.presence == present && seen.dead:
		same += "; " + seen.words
	default:
		return verdict(Unknown, "%s, but it cannot be seen: %s", same, seen.words)
	}
	if guard == nil {
		return verdict(Gone, "%s", same)
	}
	// A clone of this machine has the same identity, but not what is locked.
	g := sys.guard(guard)
	if !g.free {
		return verdict(Unknown, "%s; but its guard %s does not show that it is gone: %s", same, word(guard.Path), g.words)
	}
	return verdict(Gone, "%s; its guard %s is here and %s", same, word(guard.Path), g.words)
}

// apart says what keeps the recorded process from being looked at from here, or
// nothing. A part that is missing on either side may be different.
func (sys system) apart(recorded, me *Identity) string {
	for _, part := range []struct {
		name         string
		theirs, mine string
		exists       bool
	}{
		{"hostname", recorded.Hostname, me.Hostname, true},
		{"boot id", recorded.BootID, me.BootID, true},
		{"pid namespace", recorded.PIDNamespace, me.PIDNamespace, sys.namespaces},
		{"time namespace", recorded.TimeNamespace, me.TimeNamespace, sys.namespaces},
	} {
		switch {
		case part.theirs != "" && part.mine != "" && part.theirs != part.mine:
			return fmt.Sprintf("its %s is %s, and here it is %s", part.name, word(part.theirs), word(part.mine))
		case part.theirs == part.mine && (part.mine != "" || !part.exists):
		case part.theirs == "":
			return fmt.Sprintf("its record has no %s", part.name)
		default:
			return fmt.Sprintf("this process does not know its own %s", part.name)
		}
	}
	switch {
	case recorded.PID < 1 || recorded.PID > math.MaxInt32:
		return fmt.Sprintf("its record has the pid %d, which no process has", recorded.PID)
	case recorded.StartTime == "":
		return "its record has no start time"
	case me.PID < 1 || me.StartTime == "":
		return "this process does not know its own pid and start time"
	case !sameKind(recorded.StartTime, me.StartTime):
		return fmt.Sprintf("its record has the start time %s, which cannot be compared", word(recorded.StartTime))
	case !maps.EqualFunc(recorded.Extra, me.Extra, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }):
		return "its record tells it apart by more than this program knows"
	}
	return ""
}

var startTimes = regexp.MustCompile(`^(?:0|[1-9][0-9]{0,19})(\.[0-9]{6})?$`)

// sameKind: two start times are written in the same way, so that one process
// has one start time.
func sameKind(a, b string) bool {
	x, y := startTimes.FindStringSubmatch(a), startTimes.FindStringSubmatch(b)
	return x != nil && y != nil && (x[1] == "") == (y[1] == "")
}

var plainWord = regexp.MustCompile(`^[\w.:/\[\]{}@+-]{1,200}$`)

// word shows what stands in a record to people.
func word(s string) string {
	if s == "" {
		return "(none)"
	}
	if plainWord.MatchString(s) {
		return s
	}
	if len(s) > 200 {
		s = s[:200]
	}
	return strconv.QuoteToASCII(s)
}
