package writer

import (
	"time"

	"golang.org/x/sys/windows"
)

// bootClock counts also while the machine sleeps (GetTickCount64).
func bootClock() time.Duration { return windows.DurationSinceBoot() }
