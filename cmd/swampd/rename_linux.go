package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// renameNew renames unless the new name is taken: then fs.ErrExist.
func (d *openDir) renameNew(from, to string) error {
	fd := int(d.file.Fd())
	err := unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return d.renameChecked(from, to) // not on this file system
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
