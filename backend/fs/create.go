package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"

	"github.com/swampd/swampd/backend"
)

// errTempGone says that somebody removed a temporary file before it got its name:
// a clean-up, or whoever moved or deleted the record that it was meant for.
var errTempGone = errors.New("the temporary file was removed before it was finished")

// maxAttempts is how often an upload begins again because of errTempGone.
const maxAttempts = 4

// Create is backend.Driver.Create.
func (d *Driver) Create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	if err := d.begin(ctx); err != nil {
		return backend.Info{}, err
	}
	if err := backend.CheckKey(key); err != nil {
		return backend.Info{}, err
	}
	create := d.createObject
	if backend.Replaceable(key) {
		create = d.createRecord
	}
	for range maxAttempts {
		info, err := create(ctx, key, body)
		if err == nil {
			info.Now = d.now()
		}
		if !errors.Is(err, errTempGone) {
			return info, err
		}
	}
	return backend.Info{}, fmt.Errorf("%w: %w, %d times", backend.ErrConflict, errTempGone, maxAttempts)
}

// createObject makes an object that never changes: one file.
func (d *Driver) createObject(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	dir, _ := splitKey(key)
	switch info, err := d.fs.Lstat(d.path(key)); {
	case err == nil && info.IsDir():
		return backend.Info{}, fmt.Errorf("%w: keys lie below %s, so it cannot be an object", backend.ErrBadKey, key)
	case err == nil:
		return backend.Info{}, d.exists(ctx, dir)
	}
	t, err := d.newUpload(ctx)
	if err != nil {
		return backend.Info{}, err
	}
	defer d.discard(t)
	if err := d.fill(ctx, t, body); err != nil {
		return backend.Info{}, err
	}
	begun, err := d.publish(ctx, t, dir, key)
	switch {
	case errors.Is(err, iofs.ErrExist):
		return backend.Info{}, d.exists(ctx, dir)
	case err != nil && begun:
		return backend.Info{}, &unknown{err}
	case err != nil:
		return backend.Info{}, err
	}
	return infoOf(t.info), nil
}

// exists is ErrExists for something in dir. The caller may take what is there for
// its own, from a process that died between link and sync; so it is synced first.
func (d *Driver) exists(ctx context.Context, dir string) error {
	if err := d.settle(ctx, dir); err != nil {
		return &unknown{fmt.Errorf("something is there and cannot be made durable: %w", err)}
	}
	return backend.ErrExists
}

// settle makes all that is in dir now durable.
func (d *Driver) settle(ctx context.Context, dir string) error {
	h, err := d.hold(ctx, dir)
	if err != nil {
		return err
	}
	return d.settleHeld(h)
}

// settleHeld is settle for a directory that is held, and releases it. The context
// has no say any more: what it is about is done already.
func (d *Driver) settleHeld(h *heldDir) error {
	rel := h.rel
	for range maxMoves {
		if d.inPlace(h) {
			err := d.fs.SyncDir(h.f)
			d.dirs.release(h)
			if err != nil {
				return failed("sync the directory", rel, err)
			}
			return nil
		}
		d.dirs.drop(h)
		d.dirs.release(h)
		var err error
		if h, err = d.hold(context.Background(), rel); err != nil {
			return err
		}
	}
	d.dirs.release(h)
	return fmt.Errorf("%w: sync the directory %s: %w, %d times", backend.ErrConflict, rel, errMoved, maxMoves)
}

// publish gives the filled file t its name, key, durably. begun says that an
// error does not mean that the name was not given. Other errors: io/fs.ErrExist if
// the name is taken, errTempGone.
func (d *Driver) publish(ctx context.Context, t *temp, dir, key string) (begun bool, err error) {
	last := errMoved
	for range maxMoves {
		h, err := d.hold(ctx, dir)
		if err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			d.dirs.release(h)
			return false, err
		}
		err = d.giveName(t.path, d.path(key))
		if errors.Is(err, iofs.ErrExist) && d.isOurs(t, key) {
			err = nil // NFS repeats a request whose answer was lost
		}
		if err == nil {
			return true, d.settleHeld(h)
		}
		if !isGone(err) {
			d.dirs.release(h)
			return !wasRefused(err), publishFailed(key, err)
		}
		last = bare(err)
		if _, err := d.fs.Lstat(t.path); isGone(err) {
			d.dirs.release(h)
			return false, errTempGone
		}
		d.dirs.drop(h)
		d.dirs.release(h)
	}
	return false, fmt.Errorf("%w: give %s its name: %w, %d times", backend.ErrConflict, key, last, maxMoves)
}

// publishFailed words an error of giveName.
func publishFailed(key string, err error) error {
	switch {
	case errors.Is(err, iofs.ErrExist), errors.Is(err, backend.ErrUnsupported):
		return err
	case isOtherDevice(err):
		return fmt.Errorf("%w: %s lies on another file system than the directory %s (%w); a datastore must lie on one", backend.ErrUnsupported, key, tempDir, bare(err))
	}
	return failed("give the name", key, err)
}

// giveName makes newname a name of the file oldname, unless newname is taken.
func (d *Driver) giveName(oldname, newname string) error {
	var lerr error
	if !d.noLink.Load() {
		if lerr = d.fs.Link(oldname, newname); lerr == nil || !cannotLink(lerr) {
			return lerr
		}
	}
	err := d.fs.RenameExclusive(oldname, newname)
	switch {
	case err == nil || errors.Is(err, iofs.ErrExist):
		d.noLink.Store(true)
		return err
	case isUnable(err):
		if lerr == nil {
			lerr = errors.New("does not work here")
		}
		return fmt.Errorf("%w: this file system can neither link a file (%w) nor rename it without replacing another (%w), so two writers could not be told apart; use another one",
			backend.ErrUnsupported, bare(lerr), bare(err))
	}
	return err
}

// isOurs says whether key is the file t.
func (d *Driver) isOurs(t *temp, key string) bool {
	info, err := d.fs.Lstat(d.path(key))
	return err == nil && os.SameFile(info, t.info)
}

// infoOf describes an object that is one file. Its version is the file's number
// and modification time, of which fill makes the small digits random; the number
// alone may be used again for the next file.
func infoOf(info os.FileInfo) backend.Info {
	return backend.Info{
		Size:     info.Size(),
		Version:  backend.Version(fmt.Sprintf("%x-%x", inode(info), info.ModTime().UnixNano())),
		Modified: info.ModTime(),
	}
}
