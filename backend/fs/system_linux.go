package fs

import (
	"os"
	"runtime"
	"unsafe"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
)

// RenameExclusive is renameat2(2) with RENAME_NOREPLACE.
func (osFS) RenameExclusive(oldname, newname string) error {
	for {
		err := unix.Renameat2(unix.AT_FDCWD, oldname, unix.AT_FDCWD, newname, unix.RENAME_NOREPLACE)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
		}
	}
}

// Touch is futimens(3) with UTIME_NOW: the system call with no path, which
// golang.org/x/sys/unix cannot express.
func (osFS) Touch(f afero.File) error {
	file, ok := f.(*os.File)
	if !ok {
		return touchByWriting(f)
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	times := [2]unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	var errno unix.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_UTIMENSAT, fd, 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	})
	runtime.KeepAlive(&times)
	if err != nil {
		return err
	}
	if errno != 0 {
		return &os.PathError{Op: "utimensat", Path: f.Name(), Err: errno}
	}
	return nil
}

// StartWriting is sync_file_range(2), so that the sync at the end finds little
// left to do.
func (osFS) StartWriting(f afero.File, offset, length int64) {
	file, ok := f.(*os.File)
	if !ok {
		return
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE)
	})
}
