// Package fs keeps a datastore in a plain directory, for any number of
// processes, containers and hosts that share it. Importing it makes file:// URLs
// known to package backend.
//
// # What lies in the directory
//
// An object is the file that its key names, below the root. A record, which is an
// object below _control/ and the only kind that Replace knows, is several files:
//
//	_control/writer/lease.id                                     16 digits: the record's life
//	_control/writer/lease.00000000000000000041.9f86d081884c7d65  version 41 of that life
//	_control/writer/lease.00000000000000000042.9f86d081884c7d65  version 42, the current one
//
// Keys below _control/ hold no dot, so these names belong to no other key.
// Unfinished uploads lie in .tmp, whose name no key can have, and those of
// records beside the record. Files are made with mode 0600, directories with
// 0700, whatever the umask; a directory that is there already keeps its mode.
//
// # Guarantees
//
// An object is written to a temporary file, checked against the sha256 that was
// promised, synced, and then given its name by link(2), which fails if the name
// is taken; then the directory is synced, and every directory above it that may
// be new. Only then Create returns. So an object is there whole or not at all,
// one creator wins, and what was acknowledged survives a power failure. Nothing
// is ever written at a name that can be read. A file system without link(2) is
// used by renameat2(RENAME_NOREPLACE) or its like, and refused without either
// (backend.ErrUnsupported).
//
// Records change without any lock; see record.go for the protocol and why it
// holds. A process that is stopped or killed anywhere blocks nobody. There are
// no lock files inside a datastore.
//
// What only reads needs no right to write: a datastore on a read-only mount can
// be read, except that the store's clock (backend.Info.Now) is then unknown.
//
// # Failure
//
// An error means that nothing was made, except backend.ErrUnknown: the file
// system failed while giving the name or syncing it. A process that is killed
// leaves at most temporary files and record files of no life, which nobody reads
// and CleanUploads removes.
//
// # File systems
//
// Any local file system with hard links does. NFS does if it is mounted "sync"
// (exported "sync" too) and, where several hosts work on it, with "noac" and
// "lookupcache=none", because otherwise a host may read, for up to a minute, what
// was current then. Writes are decided by the server and safe in any case. The
// whole datastore must lie on one file system, since links do not cross mounts.
// On Windows directories cannot be synced; see SyncDir in system_windows.go.
package fs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	iofs "io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/swampd/swampd/backend"
)

// Options of a Driver. The zero value and nil mean the defaults.
type Options struct {
	// FS is what lies beneath; nil means the operating system.
	FS FS
}

// Driver is a datastore in a directory. It implements backend.Driver.
type Driver struct {
	fs   FS
	root string // absolute and clean

	dirs  dirCache
	clock clock
	hints hints

	noLink atomic.Bool // link(2) was found not to work here, rename does
	closed atomic.Bool
}

var _ backend.Driver = (*Driver)(nil)

func init() {
	backend.Register("file", func(_ context.Context, u *url.URL) (backend.Driver, error) {
		return New(directoryOf(u), nil)
	})
}

// directoryOf returns the directory that a file URL names.
func directoryOf(u *url.URL) string {
	p := u.Path
	if runtime.GOOS == "windows" && len(p) > 2 && p[0] == '/' && p[2] == ':' {
		p = p[1:] // file:///C:/data
	}
	return filepath.FromSlash(p)
}

// New returns the datastore in the directory dir, which need not exist: the first
// Create makes it. New touches nothing.
func New(dir string, opts *Options) (*Driver, error) {
	if dir == "" {
		return nil, errors.New("the directory of the store has no name")
	}
	if strings.IndexByte(dir, 0) >= 0 {
		return nil, fmt.Errorf("the directory %q holds a zero byte, which no file name can", dir)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("the directory %q: %w", dir, err)
	}
	d := &Driver{fs: OS(), root: abs}
	if opts != nil && opts.FS != nil {
		d.fs = opts.FS
	}
	return d, nil
}

// Close gives up the directories and the clock that the driver holds open. Calls
// after it fail; bodies that are being read can be read to their end.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return backend.ErrClosed
	}
	d.dirs.close()
	d.clock.close(d.fs)
	return nil
}

// begin is how every call starts.
func (d *Driver) begin(ctx context.Context) error {
	if d.closed.Load() {
		return backend.ErrClosed
	}
	return ctx.Err()
}

// path is the full path of what rel names below the root, in slashes; the empty
// rel is the root itself.
func (d *Driver) path(rel string) string {
	if rel == "" {
		return d.root
	}
	if os.PathSeparator != '/' {
		rel = filepath.FromSlash(rel)
	}
	if d.root[len(d.root)-1] == os.PathSeparator {
		return d.root + rel
	}
	return d.root + string(os.PathSeparator) + rel
}

// splitKey splits off the last segment.
func splitKey(key string) (dir, name string) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", key
	}
	return key[:i], key[i+1:]
}

func joinKey(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// failed words an error of the file system: what was done, to what below the
// root, and which sentinel of package backend that is.
func failed(what, rel string, err error) error {
	if rel == "" {
		rel = "the directory itself"
	}
	err = bare(err)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case isFull(err):
		return fmt.Errorf("%w: %s %s: %w; make room or raise the quota", backend.ErrFull, what, rel, err)
	case isDenied(err):
		return fmt.Errorf("%w: %s %s: %w; see to the owner and mode of the directory, and how it is mounted", backend.ErrDenied, what, rel, err)
	}
	return fmt.Errorf("%s %s: %w", what, rel, err)
}

// unknown is backend.ErrUnknown because of err, and no other sentinel: what err
// says of its own step (no room, denied) is not what became of the call.
type unknown struct{ err error }

func (u *unknown) Error() string { return backend.ErrUnknown.Error() + ": " + u.err.Error() }

func (u *unknown) Is(target error) bool {
	switch target {
	case backend.ErrUnknown:
		return true
	case backend.ErrFull, backend.ErrDenied, backend.ErrConflict, backend.ErrNoBucket, backend.ErrBadKey, backend.ErrUnsupported:
		return false
	}
	return errors.Is(u.err, target)
}

func (u *unknown) As(target any) bool { return errors.As(u.err, target) }

// rootProblem says whether the root is something else than a directory, for calls
// that found no file.
func (d *Driver) rootProblem() error {
	info, err := d.fs.Stat(d.root)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%w: its path is a file and no directory", backend.ErrNoBucket)
	case errors.Is(err, iofs.ErrNotExist):
		return nil
	}
	return rootFailed("look at", err)
}

// random returns n random bytes in hexadecimal digits. It reads the system's
// source each time, because the state of a generator is copied with a machine.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
