//go:build !linux && !darwin && !windows

package writer

import (
	"errors"
	"os"
)

const maxGuard = 1 << 10

// There are no guards here, since a judge that sees nothing could not look at them.
func lockGuard(*os.File, bool) (bool, error) { return false, errors.ErrUnsupported }
func keepGuard(*os.File) (drop func())       { return func() {} }
func guardInode(*os.File) (uint64, error)    { return 0, errors.ErrUnsupported }
func networkFilesystem(*os.File) (string, error) {
	return "", errors.ErrUnsupported
}
func lookGuard(*Guard) guardSight { return guardSight{words: "not on this system"} }
