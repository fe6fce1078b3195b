//go:build !linux && !darwin

package fs

import (
	"errors"
	"os"

	"github.com/spf13/afero"
)

// RenameExclusive has no system call here. (MoveFile on Windows would do, but
// link is there on every file system that can be trusted with a datastore.)
func (osFS) RenameExclusive(oldname, newname string) error {
	return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: errors.ErrUnsupported}
}

func (osFS) Touch(f afero.File) error { return touchByWriting(f) }

func (osFS) StartWriting(afero.File, int64, int64) {}
