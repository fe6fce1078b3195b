package writer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/swampd/swampd/internal/filelock"
)

var here = system{process: lookProcess, guard: lookGuard}

const zombie = 5 // SZOMB: all its threads have ended

// lookProcess asks the table of processes. It counts only where this process
// stands in it as it is: a sandbox may hide others.
func lookProcess(pid int, me *Identity) sighting {
	blind := func(format string, args ...any) sighting {
		return sighting{words: fmt.Sprintf(format, args...)}
	}
	if start, err := ownStart(); err != nil || me.PID != os.Getpid() || start != me.StartTime {
		return blind("the system does not show this process as it is (%v)", err)
	}
	all, err := unix.SysctlKinfoProcSlice("kern.proc.pid", pid)
	switch {
	case err != nil:
		return blind("the system does not show it: %v", err)
	case len(all) == 0:
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			return blind("the system does not show it, and kill(%d, 0) says %v", pid, err)
		}
		return sighting{presence: absent, words: fmt.Sprintf("kern.proc.pid.%d is empty and kill(%[1]d, 0) says ESRCH", pid)}
	case len(all) != 1 || int(all[0].Proc.P_pid) != pid:
		return blind("the system shows other processes for its pid")
	}
	s := sighting{presence: present, start: processStart(&all[0]), words: "it runs"}
	if all[0].Proc.P_stat == zombie {
		s.dead, s.words = true, "it has ended and is a zombie"
	}
	return s
}

func ownStart() (string, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.pid", os.Getpid())
	if err != nil {
		return "", err
	}
	if len(all) != 1 || int(all[0].Proc.P_pid) != os.Getpid() {
		return "", errors.New("the system does not show this process")
	}
	return processStart(&all[0]), nil
}

// processStart is in seconds with microseconds, as the kernel noted it once.
func processStart(p *unix.KinfoProc) string {
	return fmt.Sprintf("%d.%06d", p.Proc.P_starttime.Sec, p.Proc.P_starttime.Usec)
}

func networkFilesystem(f *os.File) (string, error) { return filelock.NetworkFilesystem(f) }
