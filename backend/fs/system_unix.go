//go:build unix

package fs

import (
	"errors"
	iofs "io/fs"
	"os"
	"syscall"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
)

// openFlags keep an open from following a link in place of an object, and from
// waiting for the other end of a pipe.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

func (osFS) Unlink(name string) error {
	for {
		err := unix.Unlink(name)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &os.PathError{Op: "unlink", Path: name, Err: err}
		}
	}
}

// SyncDir is fsync(2), and on darwin F_FULLFSYNC, which Sync means there.
func (osFS) SyncDir(dir afero.File) error { return dir.Sync() }

// inode is the number by which the file system knows a file.
func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}

// isGone says that there is no such file now. A path that leads through a file
// names nothing, and ESTALE is how NFS says that somebody removed it.
func isGone(err error) bool {
	return errors.Is(err, iofs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE)
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

func isDenied(err error) bool {
	return errors.Is(err, iofs.ErrPermission) || errors.Is(err, unix.EROFS)
}

// isDirectory says that unlink met a directory.
func isDirectory(err error) bool {
	return errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM)
}

// isUnable says that the file system has no such call. EPERM is how Linux says
// that a file system has no hard links; EINVAL, that it knows no such flag of
// rename or no sync of directories.
func isUnable(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// cannotLink is isUnable for link(2).
func cannotLink(err error) bool {
	return isUnable(err) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK)
}

func isOtherDevice(err error) bool { return errors.Is(err, unix.EXDEV) }

// wasRefused says that the file system decided not to give the name. After any
// other error of link or rename it may have been given all the same.
func wasRefused(err error) bool {
	return isGone(err) || isFull(err) || isDenied(err) || cannotLink(err) || isOtherDevice(err) ||
		errors.Is(err, iofs.ErrExist) || errors.Is(err, unix.ENAMETOOLONG) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOMEM)
}
