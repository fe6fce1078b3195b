package writer

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fillIdentity asks the kernel. There are no namespaces here.
func fillIdentity(id *Identity) {
	id.BootID, _ = unix.Sysctl("kern.bootsessionuuid")
	if all, err := unix.SysctlKinfoProcSlice("kern.proc.pid", id.PID); err == nil && len(all) == 1 {
		id.StartTime = processStart(&all[0])
	}
}

// processStart is in seconds with microseconds, as the kernel noted it once.
func processStart(p *unix.KinfoProc) string {
	return fmt.Sprintf("%d.%06d", p.Proc.P_starttime.Sec, p.Proc.P_starttime.Usec)
}
