// Package filelock takes locks on open files without waiting, and says where
// such locks cannot be relied on: on network filesystems.
//
// A lock belongs to the open file. It ends when that is closed, or with the
// process, however it ends. Two open files of one process exclude each other as
// those of two processes do. Contents stay readable and writable for everybody;
// only who asks for a lock meets it. Where the system knows no such locks, all
// functions fail with errors.ErrUnsupported.
package filelock

import "os"

// TryLock takes the exclusive lock of f. False says that another open file has a
// lock of it. It does not block. On network filesystems it may succeed while
// another machine has the lock, see NetworkFilesystem.
func TryLock(f *os.File) (bool, error) { return try(f, true) }

// TryRLock is TryLock for the shared lock, which excludes the exclusive one only.
func TryRLock(f *os.File) (bool, error) { return try(f, false) }

// NetworkFilesystem names the kind of filesystem that f, a file or directory, is
// on, if it may be on another machine: there, locks of other machines may not
// show, and SQLite's files break. FUSE counts, since what is behind it is not
// known. An empty name says that it is local. It asks the filesystem, so it blocks
// for as long as that one does.
func NetworkFilesystem(f *os.File) (string, error) { return networkFilesystem(f) }

// NetworkFilesystemAt is NetworkFilesystem for what is at path, where symbolic
// links are followed. Errors are those of os.Stat.
func NetworkFilesystemAt(path string) (string, error) { return networkFilesystemAt(path) }
