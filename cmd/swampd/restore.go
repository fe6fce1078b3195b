package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/swampd/swampd/datastore"
)

// maxOpenDirs bounds how many directories a restore keeps open between files.
const maxOpenDirs = 64

// maxLink is the longest target of a symbolic link that is made.
const maxLink = 64 << 10

// restorer writes files below one directory and nowhere else, whatever the
// state or other processes put in the way: it goes through os.Root, and never
// through a symbolic link. A file appears under its name when it is complete,
// or not at all. Safe for concurrent use.
type restorer struct {
	root  *os.Root
	force bool   // replace files that differ
	temp  string // how names of temporary files of this process begin
	made  atomic.Uint64
	umask fs.FileMode

	mu   sync.Mutex // guards dirs and the users and used of each
	dirs map[string]*openDir
	tick uint64
}

// openDir is a directory that files are made in.
type openDir struct {
	root  *os.Root
	file  *os.File // the same, for calls that os.Root lacks
	users int
	used  uint64
}

func newRestorer(dir string, force bool) (*restorer, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	r := &restorer{root: root, force: force, umask: umask(), dirs: map[string]*openDir{}}
	r.temp = ".swampd-" + uuid.New().String()[:13] + "-"
	return r, nil
}

func (r *restorer) close() error {
	errs := []error{r.root.Close()}
	for _, d := range r.dirs {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

func (d *openDir) close() error { return errors.Join(d.root.Close(), d.file.Close()) }

// enter opens the directory dir ("." is the target itself), and makes what is
// missing of it. leave gives it back.
func (r *restorer) enter(dir string) (*openDir, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.enterLocked(dir)
}

func (r *restorer) enterLocked(dir string) (*openDir, error) {
	r.tick++
	if d := r.dirs[dir]; d != nil {
		d.users, d.used = d.users+1, r.tick
		return d, nil
	}
	parent, name := r.root, "."
	if dir != "." {
		up, err := r.enterLocked(path.Dir(dir))
		if err != nil {
			return nil, err
		}
		defer r.leaveLocked(up)
		parent, name = up.root, path.Base(dir)
		if err := parent.Mkdir(name, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, at(dir, err)
		}
		info, err := parent.Lstat(name)
		if err != nil {
			return nil, at(dir, err)
		}
		if !info.IsDir() {
			return nil, &fs.PathError{Op: "get", Path: dir, Err: fmt.Errorf("%s %w", dir, errNoDirectory)}
		}
	}
	root, err := parent.OpenRoot(name)
	if err != nil {
		return nil, at(dir, err)
	}
	file, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(at(dir, err), root.Close())
	}
	r.shrinkLocked()
	d := &openDir{root: root, file: file, users: 1, used: r.tick}
	r.dirs[dir] = d
	return d, nil
}

var (
	errNoDirectory = errors.New("is there already and is not a directory")
	errDirectory   = errors.New("is a directory already")
	errDiffers     = errors.New("is there already and differs")
)

// at puts the whole path into an error that knows only the last element.
func at(name string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		err = p.Err
	case errors.As(err, &l):
		err = l.Err
	}
	return &fs.PathError{Op: "get", Path: name, Err: err}
}

func (r *restorer) leave(d *openDir) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLocked(d)
}

func (r *restorer) leaveLocked(d *openDir) { d.users-- }

// shrinkLocked closes the directory that was not used for longest, if there are
// too many.
func (r *restorer) shrinkLocked() {
	if len(r.dirs) < maxOpenDirs {
		return
	}
	oldest := ""
	for name, d := range r.dirs {
		if d.users == 0 && (oldest == "" || d.used < r.dirs[oldest].used) {
			oldest = name
		}
	}
	if oldest != "" {
		r.dirs[oldest].close()
		delete(r.dirs, oldest)
	}
}

// write makes the file of v from its content. errDiffers if there is another
// one and it may not be replaced; one with the same content stays.
func (r *restorer) write(v *datastore.Version, content io.Reader) (err error) {
	if !filepath.IsLocal(filepath.FromSlash(v.Path)) {
		return &fs.PathError{Op: "get", Path: v.Path, Err: errors.New("leads out of the directory, or cannot be a file name here")}
	}
	dir, err := r.enter(path.Dir(v.Path))
	if err != nil {
		return err
	}
	defer r.leave(dir)
	name := path.Base(v.Path)
	temp := fmt.Sprintf("%s%d.tmp", r.temp, r.made.Add(1))
	if v.Mode&fs.ModeSymlink != 0 {
		err = makeLink(dir, temp, content)
	} else {
		err = r.makeFile(dir, temp, v, content)
	}
	if err == nil {
		if !v.MTime.IsZero() {
			err = dir.setTime(temp, v.MTime)
		}
		if err == nil {
			err = r.settle(dir, temp, name, v)
		}
	}
	if err != nil {
		// Gone already where settle made it the file itself.
		if rmErr := dir.root.Remove(temp); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
		return at(v.Path, err)
	}
	return nil
}

// settle gives the temporary file its name.
func (r *restorer) settle(dir *openDir, temp, name string, v *datastore.Version) error {
	if r.force {
		if info, err := dir.root.Lstat(name); err == nil && info.IsDir() {
			return &fs.PathError{Op: "get", Path: name, Err: errDirectory}
		}
		return dir.root.Rename(temp, name)
	}
	err := dir.renameNew(temp, name)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	// It came up since the directory was looked at.
	same, err := sameContent(dir.root, name, v)
	if err != nil {
		return err
	}
	if !same {
		return &fs.PathError{Op: "get", Path: name, Err: errDiffers}
	}
	return dir.root.Remove(temp)
}

func (r *restorer) makeFile(dir *openDir, temp string, v *datastore.Version, content io.Reader) (err error) {
	perm := v.Mode.Perm()
	f, err := dir.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if err := copyContent(f, content); err != nil {
		return err
	}
	if perm&r.umask != 0 {
		return f.Chmod(perm)
	}
	return nil
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func copyContent(f *os.File, content io.Reader) error {
	if w, ok := content.(io.WriterTo); ok { // a small content, in memory
		_, err := w.WriteTo(f)
		return err
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	_, err := io.CopyBuffer(struct{ io.Writer }{f}, content, *buf)
	return err
}

func makeLink(dir *openDir, temp string, content io.Reader) error {
	target, err := io.ReadAll(io.LimitReader(content, maxLink+1))
	if err != nil {
		return err
	}
	if len(target) == 0 || len(target) > maxLink || bytes.IndexByte(target, 0) >= 0 {
		return errors.New("is a symbolic link whose target no file system takes")
	}
	return dir.root.Symlink(string(target), temp)
}

// sameContent says whether the file or link name has the content of v.
func sameContent(root *os.Root, name string, v *datastore.Version) (bool, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return false, err
	}
	if v.Mode&fs.ModeSymlink != 0 {
		if info.Mode()&fs.ModeSymlink == 0 {
			return false, nil
		}
		target, err := root.Readlink(name)
		return err == nil && sha256.Sum256([]byte(target)) == v.SHA256, err
	}
	if !info.Mode().IsRegular() || info.Size() != v.Size {
		return false, nil
	}
	f, err := root.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	h := sha256.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, *buf); err != nil {
		return false, err
	}
	return [32]byte(h.Sum(nil)) == v.SHA256, nil
}

// renameChecked is renameNew where the system cannot do it in one step. Between
// the two steps another process could make a file, which would be replaced.
func (d *openDir) renameChecked(from, to string) error {
	if _, err := d.root.Lstat(to); err == nil {
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.root.Rename(from, to)
}

// correct gives a file that has the content of v its permissions and time.
func (r *restorer) correct(v *datastore.Version, info fs.FileInfo) error {
	link := v.Mode&fs.ModeSymlink != 0
	if !link && info.Mode().Perm() != v.Mode.Perm() {
		if err := r.root.Chmod(v.Path, v.Mode.Perm()); err != nil {
			return err
		}
	}
	if v.MTime.IsZero() || info.ModTime().Equal(v.MTime) || link {
		return nil
	}
	return r.root.Chtimes(v.Path, v.MTime, v.MTime)
}
