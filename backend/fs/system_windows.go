package fs

import (
	"errors"
	iofs "io/fs"
	"os"

	"github.com/spf13/afero"
	"golang.org/x/sys/windows"
)

const openFlags = 0

func (osFS) Unlink(name string) error {
	p, err := windows.UTF16PtrFromString(name)
	if err == nil {
		err = windows.DeleteFile(p)
	}
	if err != nil {
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	return nil
}

// SyncDir does nothing: Windows cannot flush a directory. NTFS writes the
// changes of names to its log in order, but says nothing about when, so on
// Windows the last objects before a power failure may be gone.
func (osFS) SyncDir(afero.File) error { return nil }

// inode is unknown: os.FileInfo of Windows does not give the file's number.
func inode(os.FileInfo) uint64 { return 0 }

func isGone(err error) bool { return errors.Is(err, iofs.ErrNotExist) }

func isFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) || errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

func isDenied(err error) bool {
	return errors.Is(err, iofs.ErrPermission) || errors.Is(err, windows.ERROR_WRITE_PROTECT)
}

func isDirectory(err error) bool { return errors.Is(err, windows.ERROR_ACCESS_DENIED) }

func isUnable(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, windows.ERROR_INVALID_FUNCTION) || errors.Is(err, windows.ERROR_NOT_SUPPORTED)
}

func cannotLink(err error) bool { return isUnable(err) }

func isOtherDevice(err error) bool { return errors.Is(err, windows.ERROR_NOT_SAME_DEVICE) }

// wasRefused says that the file system decided not to give the name.
func wasRefused(err error) bool {
	return isGone(err) || isFull(err) || isDenied(err) || cannotLink(err) || isOtherDevice(err) || errors.Is(err, iofs.ErrExist)
}
