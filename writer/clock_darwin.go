package writer

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock counts also while the machine sleeps, which on this system is what
// CLOCK_MONOTONIC does (CLOCK_UPTIME_RAW does not).
func bootClock() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return sinceStart()
	}
	return time.Duration(ts.Nano())
}
