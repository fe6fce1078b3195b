package writer

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// fillIdentity adds what /proc tells. The start time is taken only from a /proc
// that belongs to this process's pid namespace; elsewhere it is another's.
func fillIdentity(id *Identity) {
	id.PIDNamespace, _ = os.Readlink("/proc/self/ns/pid")
	id.TimeNamespace = timeNamespace("/proc/self")
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		id.BootID = strings.TrimSpace(string(boot))
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(id.PID) {
		return
	}
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		id.StartTime = startTime(stat)
	}
}

// timeNamespace is "none" on a kernel that has none: then all processes count
// time alike. (The link alone may be missing for another reason.)
func timeNamespace(self string) string {
	ns, err := os.Readlink(self + "/ns/time")
	if err == nil {
		return ns
	}
	_, link := os.Lstat(self + "/ns/time")
	_, offsets := os.Lstat(self + "/timens_offsets")
	if _, err := os.Lstat(self + "/ns/pid"); err == nil && errors.Is(link, fs.ErrNotExist) && errors.Is(offsets, fs.ErrNotExist) {
		return "none"
	}
	return ""
}

// startTime is field 22 of /proc/PID/stat. The second field, the program's
// name, may hold spaces and parentheses: counting begins after the last one.
func startTime(stat []byte) string {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return ""
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}
