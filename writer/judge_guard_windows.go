package writer

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

func openGuard(path string) (*os.File, error) { return os.Open(path) }

func guardInode(f *os.File) (uint64, error) {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info); err != nil {
		return 0, err
	}
	return uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow), nil
}

// lockGuard takes the lock of a guard without waiting, or says that another
// open file has it. Closing the file gives it back. The locked byte is far
// behind the contents, which stay readable.
func lockGuard(f *os.File, exclusive bool) (bool, error) {
	how := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if exclusive {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{Offset: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "LockFileEx", Path: f.Name(), Err: err}
	}
	return true, nil
}

// networkFilesystem names the kind of a filesystem that is on another machine.
func networkFilesystem(f *os.File) (string, error) {
	path := make([]uint16, 32<<10)
	n, err := windows.GetFinalPathNameByHandle(windows.Handle(f.Fd()), &path[0], uint32(len(path)), 0)
	if err != nil {
		return "", err
	}
	if int(n) > len(path) || strings.HasPrefix(windows.UTF16ToString(path), `\\?\UNC\`) {
		return "a share", nil
	}
	return "", nil
}
