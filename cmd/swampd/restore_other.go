//go:build !linux && !darwin

package main

import (
	"io/fs"
	"time"
)

func umask() fs.FileMode { return 0 }

// setTime sets the modification time of a file. That of a link stays.
func (d *openDir) setTime(name string, t time.Time) error {
	if info, err := d.root.Lstat(name); err != nil || info.Mode()&fs.ModeSymlink != 0 {
		return err
	}
	return d.root.Chtimes(name, t, t)
}

// renameNew renames unless the new name is taken: then fs.ErrExist.
func (d *openDir) renameNew(from, to string) error { return d.renameChecked(from, to) }
