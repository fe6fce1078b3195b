package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/afero"

	"github.com/swampd/swampd/backend"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
	// maxDirs is how many directories a driver keeps open.
	maxDirs = 64
	// maxMoves is how often a call begins again because somebody took a directory
	// away under it.
	maxMoves = 100
)

// errMoved says that a directory was taken away in the middle.
var errMoved = errors.New("the directory was removed or put in another's place meanwhile")

// heldDir is an open directory whose own entry, and those of all directories
// above it, this process has synced. As long as it is open its inode number
// cannot be given to another directory, so that comparing it with what lies at
// the path tells whether it is still the same.
type heldDir struct {
	rel  string
	f    afero.File
	info os.FileInfo

	// guarded by dirCache.mu
	refs    int
	used    uint64
	dropped bool
}

// dirCache keeps heldDirs. The zero value is empty.
type dirCache struct {
	mu     sync.Mutex
	m      map[string]*heldDir
	tick   uint64
	closed bool
}

func (c *dirCache) acquire(rel string) *heldDir {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.m[rel]
	if h != nil {
		c.tick++
		h.refs++
		h.used = c.tick
	}
	return h
}

// add takes h, which the caller goes on using, in place of what was there.
func (c *dirCache) add(h *heldDir) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.refs = 1
	if c.closed {
		h.dropped = true
		return
	}
	if c.m == nil {
		c.m = map[string]*heldDir{}
	}
	if old := c.m[h.rel]; old != nil {
		c.dropLocked(old)
	}
	c.tick++
	h.used = c.tick
	c.m[h.rel] = h
	if len(c.m) <= maxDirs {
		return
	}
	oldest := h
	for _, o := range c.m {
		if o.used < oldest.used {
			oldest = o
		}
	}
	c.dropLocked(oldest)
}

func (c *dirCache) release(h *heldDir) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.refs--
	if h.dropped && h.refs == 0 {
		_ = h.f.Close() // only ever read
	}
}

// drop forgets h, which its users may still be using.
func (c *dirCache) drop(h *heldDir) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !h.dropped {
		c.dropLocked(h)
	}
}

func (c *dirCache) dropLocked(h *heldDir) {
	delete(c.m, h.rel)
	h.dropped = true
	if h.refs == 0 {
		_ = h.f.Close()
	}
}

func (c *dirCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, h := range c.m {
		c.dropLocked(h)
	}
}

// hold returns the directory rel, made if need be, open and with a durable path
// from the root. The caller releases it.
func (d *Driver) hold(ctx context.Context, rel string) (*heldDir, error) {
	if h := d.dirs.acquire(rel); h != nil {
		return h, nil
	}
	for range maxMoves {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := d.openDir(ctx, rel)
		if !errors.Is(err, errMoved) {
			return h, err
		}
	}
	return nil, fmt.Errorf("%w: make the directory %s: %w, %d times", backend.ErrConflict, rel, errMoved, maxMoves)
}

// openDir makes rel if need be, and makes it durable whoever made it: its maker
// may have been stopped before it did.
func (d *Driver) openDir(ctx context.Context, rel string) (*heldDir, error) {
	if rel == "" {
		if err := d.makeRoot(); err != nil {
			return nil, err
		}
		return d.keepDir(rel)
	}
	up, _ := splitKey(rel)
	parent, err := d.hold(ctx, up)
	if err != nil {
		return nil, err
	}
	defer d.dirs.release(parent)
	if err := d.makeDir(d.path(rel)); err != nil {
		if isGone(err) {
			d.dirs.drop(parent)
			return nil, errMoved
		}
		return nil, failed("make the directory", rel, err)
	}
	h, err := d.keepDir(rel)
	if err != nil {
		return nil, err
	}
	if err = d.fs.SyncDir(parent.f); err != nil {
		err = failed("sync the directory", up, err)
	} else if !d.inPlace(parent) {
		d.dirs.drop(parent)
		err = errMoved
	}
	if err != nil {
		d.dirs.drop(h)
		d.dirs.release(h)
		return nil, err
	}
	return h, nil
}

// keepDir opens a directory that is there.
func (d *Driver) keepDir(rel string) (*heldDir, error) {
	f, err := d.fs.Open(d.path(rel))
	if isGone(err) {
		return nil, errMoved
	}
	if err != nil {
		return nil, failed("open the directory", rel, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = failed("look at the directory", rel, err)
	case !info.IsDir() && rel == "":
		err = fmt.Errorf("%w: its path is a file and no directory", backend.ErrNoBucket)
	case !info.IsDir():
		err = fmt.Errorf("%w: %s is an object, no key can lie below it", backend.ErrBadKey, rel)
	case rel == "":
		// Before anything is made: afterwards it would be too late to refuse.
		if err = d.fs.SyncDir(f); isUnable(err) {
			err = fmt.Errorf("%w: this file system cannot sync directories, so nothing could be promised: %w", backend.ErrUnsupported, bare(err))
		} else if err != nil {
			err = failed("sync", "", err)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	h := &heldDir{rel: rel, f: f, info: info}
	d.dirs.add(h)
	return h, nil
}

// inPlace says whether the directory still lies at its path.
func (d *Driver) inPlace(h *heldDir) bool {
	info, err := d.fs.Stat(d.path(h.rel))
	return err == nil && os.SameFile(info, h.info)
}

// makeDir makes one directory, or finds it there.
func (d *Driver) makeDir(path string) error {
	err := d.fs.Mkdir(path, dirMode)
	if errors.Is(err, iofs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The umask may have taken away what the owner needs.
	info, err := d.fs.Stat(path)
	if err == nil && info.Mode().Perm() != dirMode {
		err = d.fs.Chmod(path, info.Mode()&(os.ModeSetgid|os.ModeSticky)|dirMode)
	}
	return err
}

// makeRoot makes the root and what is missing above it, and syncs all directories
// above: another process may have made them a moment ago and not synced them yet.
// What was there before may lie where we may not look; that is no error.
func (d *Driver) makeRoot() error {
	var missing []string // the root first
	for p := d.root; ; p = filepath.Dir(p) {
		info, err := d.fs.Stat(p)
		if err == nil {
			if !info.IsDir() {
				return fmt.Errorf("%w: %q is a file and no directory", backend.ErrNoBucket, filepath.Base(p))
			}
			break
		}
		if !errors.Is(err, iofs.ErrNotExist) {
			return rootFailed("look at", err)
		}
		missing = append(missing, p)
		if p == filepath.Dir(p) {
			break
		}
	}
	made := map[string]bool{}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := d.makeDir(missing[i]); err != nil {
			return rootFailed("make", err)
		}
		info, err := d.fs.Stat(missing[i])
		if err != nil || !info.IsDir() {
			return fmt.Errorf("%w: %q is a link that leads nowhere, or another program took it away just now", backend.ErrNoBucket, filepath.Base(missing[i]))
		}
		made[filepath.Dir(missing[i])] = true
	}
	for p := filepath.Dir(d.root); ; p = filepath.Dir(p) {
		if err := d.syncAbove(p); err != nil && made[p] {
			return rootFailed("sync the directory above", err)
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// rootFailed is failed for the root and what is above it. A path through a file
// is no directory that can be made.
func rootFailed(what string, err error) error {
	if isGone(err) && !errors.Is(err, iofs.ErrNotExist) {
		return fmt.Errorf("%w: something above it is a file and no directory: %w", backend.ErrNoBucket, bare(err))
	}
	return failed(what, "", err)
}

func (d *Driver) syncAbove(path string) error {
	f, err := d.fs.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.fs.SyncDir(f)
}
