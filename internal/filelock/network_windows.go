package filelock

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

// networkFilesystem looks at the whole name: that of a file on a mapped drive or
// behind a link begins as one on a share does.
func networkFilesystem(f *os.File) (string, error) {
	path := make([]uint16, 32<<10)
	n, err := windows.GetFinalPathNameByHandle(windows.Handle(f.Fd()), &path[0], uint32(len(path)), 0)
	if err != nil {
		return "", &os.PathError{Op: "GetFinalPathNameByHandle", Path: f.Name(), Err: err}
	}
	if int(n) > len(path) || strings.HasPrefix(windows.UTF16ToString(path), `\\?\UNC\`) {
		return "a share", nil
	}
	return "", nil
}

func networkFilesystemAt(path string) (kind string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return networkFilesystem(f)
}
