package testserver

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/swampd/swampd/internal/filelock"
)

// maxBuild bounds the wait for another process that builds the S3 server.
const maxBuild = 20 * time.Minute

// lockFile takes the exclusive lock of path, waiting for it if wait is set, for
// maxBuild at most. The lock ends when the file is closed. A nil file means that
// another holds it.
func lockFile(path string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(maxBuild)
	defer end.Stop()
	for {
		switch ok, err := filelock.TryLock(f); {
		case ok:
			return f, nil
		case err != nil:
			return nil, errors.Join(err, f.Close())
		case !wait:
			return nil, f.Close()
		}
		select {
		case <-tick.C:
		case <-end.C:
			return nil, errors.Join(fmt.Errorf("waited %s for the lock of %s: end the process that has it", maxBuild, path), f.Close())
		}
	}
}
