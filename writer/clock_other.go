//go:build !linux && !darwin && !windows

package writer

import "time"

// bootClock may stand still while the machine sleeps. That makes a taker wait
// longer, and lets a holder that slept notice its loss later: at its next
// renewal, or by the barrier that it meets.
func bootClock() time.Duration { return sinceStart() }
