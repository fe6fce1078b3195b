package writer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/windows"
)

var here = system{process: lookProcess, guard: lookGuard}

// lookProcess opens the process, which neither disturbs nor delays it.
func lookProcess(pid int, me *Identity) sighting {
	blind := func(format string, args ...any) sighting {
		return sighting{words: fmt.Sprintf(format, args...)}
	}
	if start, err := ownStart(); err != nil || me.PID != os.Getpid() || start != me.StartTime {
		return blind("the system does not show this process as it is (%v)", err)
	}
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.SYNCHRONIZE, false, uint32(pid))
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		// That is what it says of a pid that no process has. Others must agree.
		pids, err := allProcesses()
		if err != nil || !slices.Contains(pids, uint32(os.Getpid())) {
			return blind("it cannot be opened, and the list of processes is not to be had (%v)", err)
		}
		if slices.Contains(pids, uint32(pid)) {
			return blind("it cannot be opened, but is in the list of processes")
		}
		return sighting{presence: absent, words: fmt.Sprintf("OpenProcess knows no process %d, and it is not in the list of processes", pid)}
	}
	if err != nil {
		return blind("it cannot be opened: %v", err)
	}
	defer windows.CloseHandle(h)
	if got, err := windows.GetProcessId(h); err != nil || got != uint32(pid) {
		return blind("the system shows process %d for its pid (%v)", got, err)
	}
	start, err := processStart(h)
	if err != nil {
		return blind("its start time cannot be read: %v", err)
	}
	s := sighting{presence: present, start: start, words: "it runs"}
	switch event, err := windows.WaitForSingleObject(h, 0); {
	case err != nil:
		return blind("whether it has ended cannot be read: %v", err)
	case event == windows.WAIT_OBJECT_0:
		s.dead, s.words = true, "it has ended, and somebody still has a handle of it"
	case event != uint32(windows.WAIT_TIMEOUT):
		return blind("whether it has ended cannot be read (%d)", event)
	}
	return s
}

func allProcesses() ([]uint32, error) {
	const limit = 1 << 20
	for size := 1 << 10; size <= limit; size *= 2 {
		pids := make([]uint32, size)
		var n uint32
		if err := windows.EnumProcesses(pids, &n); err != nil {
			return nil, err
		}
		if got := int(n / 4); got < size { // a full list may be cut off
			return pids[:got], nil
		}
	}
	return nil, errors.New("there are too many processes")
}

func ownStart() (string, error) { return processStart(windows.CurrentProcess()) }

// processStart is when the process was created, in units of 100 ns.
func processStart(h windows.Handle) (string, error) {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return "", err
	}
	return strconv.FormatUint(uint64(created.HighDateTime)<<32|uint64(created.LowDateTime), 10), nil
}
