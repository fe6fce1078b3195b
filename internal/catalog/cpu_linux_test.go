package catalog

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU is the processor time that this thread has used: on a machine that
// others use too, it says more than the clock on the wall.
func threadCPU() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
