//go:build linux || darwin || windows

package writer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/swampd/swampd/internal/filelock"
)

const maxGuard = 1 << 10 // bytes of a guard file, which holds its id and no more

// ownGuards are the guard files that this process has locked exclusively.
var ownGuards sync.Map // *os.File → true

// keepGuard notes that f is a guard whose exclusive lock (lockGuard) is this
// process's: then nobody else holds it. Call drop before f is closed.
func keepGuard(f *os.File) (drop func()) {
	ownGuards.Store(f, true)
	return func() { ownGuards.Delete(f) }
}

// lookGuard: is the recorded guard here, and not locked by another? It is locked
// for a moment, shared, so whoever takes a guard and is refused tries again.
func lookGuard(g *Guard) guardSight {
	sight, err := seeGuard(g)
	if errors.Is(err, fs.ErrNotExist) {
		return guardSight{words: "it is not here"}
	}
	if err != nil {
		return guardSight{words: fmt.Sprintf("it cannot be looked at: %s", word(err.Error()))}
	}
	return sight
}

func seeGuard(g *Guard) (guardSight, error) {
	no := func(format string, args ...any) (guardSight, error) {
		return guardSight{words: fmt.Sprintf(format, args...)}, nil
	}
	if !filepath.IsAbs(g.Path) || g.Inode == 0 || g.ID == "" {
		return no("the record does not name it wholly")
	}
	f, err := openGuard(g.Path)
	if err != nil {
		return guardSight{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return guardSight{}, err
	}
	if !info.Mode().IsRegular() {
		return no("it is no regular file")
	}
	inode, err := guardInode(f)
	if err != nil {
		return guardSight{}, err
	}
	if inode != g.Inode {
		return no("it is another file (inode %d instead of %d)", inode, g.Inode)
	}
	remote, err := networkFilesystem(f)
	if err != nil {
		return guardSight{}, err
	}
	if remote != "" {
		return no("it is on a network filesystem (%s), where locks of other machines may not show", remote)
	}
	locked, err := lockGuard(f, false)
	if err != nil {
		return guardSight{}, err
	}
	how := "unlocked"
	if !locked {
		if !ownGuard(info) {
			return no("a process holds it locked")
		}
		how = "locked by this process, so not by it"
	}
	id, err := io.ReadAll(io.LimitReader(f, maxGuard+1))
	if err != nil {
		return guardSight{}, err
	}
	if len(id) > maxGuard || string(bytes.TrimSpace(id)) != g.ID {
		return no("it is another file (it has another id)")
	}
	return guardSight{free: true, words: how}, nil
}

// lockGuard takes the lock of a guard without waiting, or says that another
// open file has it. Closing the file gives it back.
func lockGuard(f *os.File, exclusive bool) (bool, error) {
	if exclusive {
		return filelock.TryLock(f)
	}
	return filelock.TryRLock(f)
}

func ownGuard(info os.FileInfo) (own bool) {
	ownGuards.Range(func(f, _ any) bool {
		mine, err := f.(*os.File).Stat()
		own = err == nil && os.SameFile(mine, info)
		return !own
	})
	return own
}
