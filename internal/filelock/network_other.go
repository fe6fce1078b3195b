//go:build !(darwin || linux || windows)

package filelock

import (
	"errors"
	"os"
)

func networkFilesystem(f *os.File) (string, error) { return networkFilesystemAt(f.Name()) }

func networkFilesystemAt(path string) (string, error) {
	return "", &os.PathError{Op: "statfs", Path: path, Err: errors.ErrUnsupported}
}
