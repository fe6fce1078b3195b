package filelock

import (
	"strings"

	"golang.org/x/sys/unix"
)

// networkKind: FUSE filesystems may call themselves local.
func networkKind(stat *unix.Statfs_t) string {
	name := unix.ByteSliceToString(stat.Fstypename[:])
	if stat.Flags&unix.MNT_LOCAL == 0 || strings.Contains(name, "fuse") {
		return name
	}
	return ""
}
