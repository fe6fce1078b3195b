package fs

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/spf13/afero"
)

// clockRetry is how long a clock that could not be had is not asked for again.
const clockRetry = time.Second

// clock is the time of whoever keeps the files, read off a private file that is
// touched. The file has no name any more where the system allows that.
type clock struct {
	mu     sync.RWMutex
	f      afero.File
	named  string // where the file could not be unlinked while open
	retry  time.Time
	closed bool
}

// now returns the store's time, or zero where it cannot be had: on a read-only
// mount, or before the root is made.
func (d *Driver) now() time.Time {
	for range 2 {
		f, t := d.clock.read(d.fs)
		if !t.IsZero() {
			return t
		}
		if f != nil {
			d.clock.lose(f)
		}
		if !d.openClock() {
			break
		}
	}
	return time.Time{}
}

// read returns the open file, if any, and the time, if it could be read.
func (c *clock) read(fsys FS) (afero.File, time.Time) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.f == nil {
		return nil, time.Time{}
	}
	if err := fsys.Touch(c.f); err != nil {
		return c.f, time.Time{}
	}
	info, err := c.f.Stat()
	if err != nil {
		return c.f, time.Time{}
	}
	return c.f, info.ModTime()
}

// lose gives up a file that does not work any more.
func (c *clock) lose(f afero.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == f {
		_ = f.Close()
		c.f = nil
	}
}

// openClock makes the file, and says whether there is one now.
func (d *Driver) openClock() bool {
	c := &d.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.f != nil:
		return true
	case c.closed, time.Now().Before(c.retry):
		return false
	}
	rel := tempDir + "/clock" + random(8)
	f, err := d.fs.OpenFile(d.path(rel), os.O_RDWR|os.O_CREATE|os.O_EXCL|openFlags, fileMode)
	if isGone(err) {
		// Only in a root that is there: a read makes no store.
		if err = d.makeDir(d.path(tempDir)); err == nil {
			f, err = d.fs.OpenFile(d.path(rel), os.O_RDWR|os.O_CREATE|os.O_EXCL|openFlags, fileMode)
		}
	}
	c.named = ""
	if isFull(err) {
		// A directory that is there can be touched as well. Its times mean nothing
		// else; the file is better only where systems do not touch directories.
		if f, err = d.fs.Open(d.path(tempDir)); isGone(err) {
			f, err = d.fs.Open(d.root)
		}
	} else if err == nil {
		if err := d.fs.Unlink(d.path(rel)); err != nil {
			c.named = d.path(rel)
		}
	}
	if err != nil {
		if !isGone(err) { // a missing root may be there at the next call
			c.retry = time.Now().Add(clockRetry)
		}
		return false
	}
	c.f = f
	return true
}

func (c *clock) close(fsys FS) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.f == nil {
		return
	}
	_ = c.f.Close()
	if c.named != "" {
		_ = fsys.Unlink(c.named)
	}
	c.f = nil
}

var errNoClock = errors.New("the directory's clock cannot be read; it must be writable for that")
