package writer

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock counts also while the machine sleeps, and no one can set it.
func bootClock() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return sinceStart()
	}
	return time.Duration(ts.Nano())
}
