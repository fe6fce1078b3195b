//go:build unix

package datastore

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile makes the file and takes an exclusive flock on it without waiting.
// The kernel drops it with the process.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
