//go:build darwin || linux

package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func networkFilesystem(f *os.File) (string, error) {
	return statfs("fstatfs", f.Name(), func(stat *unix.Statfs_t) error { return unix.Fstatfs(int(f.Fd()), stat) })
}

func networkFilesystemAt(path string) (string, error) {
	return statfs("statfs", path, func(stat *unix.Statfs_t) error { return unix.Statfs(path, stat) })
}

func statfs(op, path string, call func(*unix.Statfs_t) error) (string, error) {
	var stat unix.Statfs_t
	for {
		err := call(&stat)
		if err == nil {
			return networkKind(&stat), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return "", &os.PathError{Op: op, Path: path, Err: err}
		}
	}
}
