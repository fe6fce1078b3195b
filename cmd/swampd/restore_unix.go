//go:build linux || darwin

package main

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// umask is what the process takes away from the permissions of new files.
func umask() fs.FileMode {
	m := unix.Umask(0)
	unix.Umask(m)
	return fs.FileMode(m).Perm()
}

// setTime sets the modification time of a file or link in d.
func (d *openDir) setTime(name string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return &fs.PathError{Op: "set time of", Path: name, Err: err}
	}
	err = unix.UtimesNanoAt(int(d.file.Fd()), name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &fs.PathError{Op: "set time of", Path: name, Err: err}
	}
	return nil
}
