package fs

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/afero"
)

// FS is the file system beneath a Driver: afero's calls and those that it lacks.
// Names are full paths of the operating system. All calls are safe for
// concurrent use; errors are those of package os, so that errors.Is finds
// io/fs.ErrExist, io/fs.ErrNotExist and the system's error numbers in them.
type FS interface {
	afero.Fs

	// Lstat is Stat that does not follow a symbolic link.
	Lstat(name string) (os.FileInfo, error)
	// Link gives the file oldname a second name, which must not exist: link(2).
	Link(oldname, newname string) error
	// RenameExclusive renames oldname to newname, which must not exist, as one
	// atomic step. It fails with errors.ErrUnsupported where there is no such call.
	RenameExclusive(oldname, newname string) error
	// Unlink removes a name that is no directory. (Remove of afero removes an
	// empty directory too.)
	Unlink(name string) error
	// SyncDir makes the entries of an open directory durable.
	SyncDir(dir afero.File) error
	// Touch sets the file's modification time to the present by the clock of
	// whoever keeps the file: on a network file system, the server.
	Touch(f afero.File) error
	// StartWriting asks the system to begin writing these bytes of the file to
	// the disk, without waiting. It is a hint and cannot fail.
	StartWriting(f afero.File, offset, length int64)
}

// OS returns the operating system's FS.
func OS() FS { return osFS{afero.OsFs{}} }

// osFS has its own methods in this file and in system_*.go.
type osFS struct{ afero.OsFs }

func (osFS) Name() string { return "the operating system's files" }

func (osFS) Lstat(name string) (os.FileInfo, error) { return os.Lstat(name) }

func (osFS) Link(oldname, newname string) error { return os.Link(oldname, newname) }

// touchByWriting is Touch where no call sets a time without naming it.
func touchByWriting(f afero.File) error {
	_, err := f.WriteAt([]byte{0}, 0)
	return err
}

// setMode sets the permissions of an open file; afero knows this by name only.
func setMode(fsys FS, f afero.File, mode os.FileMode) error {
	if m, ok := f.(interface{ Chmod(mode os.FileMode) error }); ok {
		return m.Chmod(mode)
	}
	return fsys.Chmod(f.Name(), mode)
}

// setModified sets the modification time of a file.
func setModified(fsys FS, f afero.File, t time.Time) error {
	return fsys.Chtimes(f.Name(), t, t)
}

// bare takes the system call and the full path off an error of package os: the
// messages of this package say what was done, and to what below the root.
func bare(err error) error {
	var pe *os.PathError
	var le *os.LinkError
	var se *os.SyscallError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	case errors.As(err, &se):
		return se.Err
	}
	return err
}
