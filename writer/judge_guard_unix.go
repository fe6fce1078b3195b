//go:build linux || darwin

package writer

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openGuard follows no symbolic link and waits for no pipe.
func openGuard(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

func guardInode(f *os.File) (uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return stat.Ino, nil
}
