//go:build unix

package testserver

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes the exclusive lock of path, waiting for it if wait is set. The
// lock ends when the file is closed. A nil file means that another holds it.
func lockFile(path string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, f.Close()
		default:
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
	}
}
