package writer

import (
	"os"
	"strconv"
	"testing"
	"time"
)

func TestStartTimeIsField22(t *testing.T) {
	rest := " S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 987654 1000 200\n"
	for name, c := range map[string]struct{ stat, want string }{
		"plain":                  {"12 (swampd)" + rest, "987654"},
		"a name with everything": {"12 (a) S 1 (b)\n )" + rest, "987654"},
		"cut off":                {"12 (swampd) S 1 1", ""},
		"no name":                {"12 swampd", ""},
		"nothing":                {"", ""},
	} {
		if got := startTime([]byte(c.stat)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// The start time is that of the process, by the system's own account.
func TestStartTimeAgreesWithTheSystem(t *testing.T) {
	const ticks = 100 // a second: what Linux shows to programs, everywhere
	start, err := strconv.ParseFloat(Self().StartTime, 64)
	if err != nil {
		t.Fatal(err)
	}
	age := bootClock() - time.Duration(start/ticks*float64(time.Second))
	if age < 0 || age > time.Since(started)+time.Minute {
		t.Errorf("this process (pid %d) is %v old, by the start time %v", os.Getpid(), age, start)
	}
}
