package writer

import (
	"os"

	"golang.org/x/sys/windows"

	"github.com/swampd/swampd/internal/filelock"
)

func openGuard(path string) (*os.File, error) { return os.Open(path) }

func guardInode(f *os.File) (uint64, error) {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info); err != nil {
		return 0, err
	}
	return uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow), nil
}

// networkFilesystem names the kind of a filesystem that is on another machine.
func networkFilesystem(f *os.File) (string, error) { return filelock.NetworkFilesystem(f) }
