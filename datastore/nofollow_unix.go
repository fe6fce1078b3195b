//go:build unix

package datastore

import (
	"os"
	"syscall"
)

// openNoFollow opens a file for reading and refuses a symbolic link; it does
// not block on a named pipe that took the file's place.
func openNoFollow(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}
