package fs

import (
	"os"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
)

// RenameExclusive is renamex_np(2) with RENAME_EXCL.
func (osFS) RenameExclusive(oldname, newname string) error {
	for {
		err := unix.RenamexNp(oldname, newname, unix.RENAME_EXCL)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
		}
	}
}

func (osFS) Touch(f afero.File) error { return touchByWriting(f) }

func (osFS) StartWriting(afero.File, int64, int64) {}
