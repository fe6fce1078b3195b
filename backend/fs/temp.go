package fs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/afero"

	"github.com/swampd/swampd/backend"
)

const (
	// tempDir holds unfinished uploads. No key begins with a dot.
	tempDir = ".tmp"
	// chunk is how much is copied, hashed and written at a time.
	chunk = 1 << 20
	// writeAhead is after how many bytes the disk is asked to begin.
	writeAhead = 8 << 20
)

// temp is a file that has no name in the store yet.
type temp struct {
	rel, path string
	f         afero.File  // nil when closed
	info      os.FileInfo // set by fill
}

// newUpload makes an empty file in tempDir.
func (d *Driver) newUpload(ctx context.Context) (*temp, error) {
	for range maxMoves {
		t, err := d.newTemp(tempDir + "/u" + random(8))
		if !isGone(err) {
			return t, err
		}
		h, err := d.hold(ctx, "")
		if err != nil {
			return nil, err
		}
		err = d.makeDir(d.path(tempDir))
		if isGone(err) {
			d.dirs.drop(h)
		} else if err != nil {
			err = failed("make the directory", tempDir, err)
		}
		d.dirs.release(h)
		if err != nil && !isGone(err) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: make the directory %s: %w, %d times", backend.ErrConflict, tempDir, errMoved, maxMoves)
}

// newTemp makes an empty file, in a directory that must be there.
func (d *Driver) newTemp(rel string) (*temp, error) {
	path := d.path(rel)
	f, err := d.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|openFlags, fileMode)
	if err != nil {
		if isGone(err) {
			return nil, err
		}
		return nil, failed("make the file", rel, err)
	}
	return &temp{rel: rel, path: path, f: f}, nil
}

// discard removes the temporary name, whatever became of the file. What it cannot
// remove, CleanUploads will.
func (d *Driver) discard(t *temp) {
	if t.f != nil {
		_ = t.f.Close()
		t.f = nil
	}
	_ = d.fs.Unlink(t.path)
}

// fill writes body into t, checks it, and makes it durable.
func (d *Driver) fill(ctx context.Context, t *temp, body backend.Body) error {
	err := d.copyBody(ctx, t, body)
	if err != nil {
		return err
	}
	err = d.finish(t)
	if cerr := t.f.Close(); err == nil && cerr != nil {
		err = cerr // NFS and quotas tell late
	}
	t.f = nil
	return writeFailed(t, err)
}

func writeFailed(t *temp, err error) error {
	switch {
	case err == nil:
		return nil
	case isGone(err):
		return errTempGone
	}
	return failed("write", t.rel, err)
}

func (d *Driver) finish(t *temp) error {
	info, err := t.f.Stat()
	if err != nil {
		return err
	}
	// The umask may have taken bits away.
	if info.Mode().Perm() != fileMode {
		if err := setMode(d.fs, t.f, fileMode); err != nil {
			return err
		}
	}
	// Clocks of file systems stand still for milliseconds, and numbers of files are
	// used again at once. Random small digits, by which the file becomes older by
	// less than a millisecond, tell two files with equal numbers apart. Versions of
	// records have names of their own, and times that do not go back.
	if strings.HasPrefix(t.rel, tempDir+"/") {
		noise := time.Duration(rand.Int64N(int64(time.Millisecond)))
		if err := setModified(d.fs, t.f, info.ModTime().Add(-noise)); err != nil {
			return err
		}
	}
	if err := t.f.Sync(); err != nil {
		return err
	}
	t.info, err = t.f.Stat()
	return err
}

// copyBody writes the content of body and checks its size and sha256.
func (d *Driver) copyBody(ctx context.Context, t *temp, body backend.Body) error {
	if body.Size < 0 || body.Size == math.MaxInt64 { // one byte more is asked for, to see the end
		return fmt.Errorf("%w: a size of %d was announced", backend.ErrBadContent, body.Size)
	}
	r, err := body.Open()
	if err != nil {
		return fmt.Errorf("open the content to write: %w", err)
	}
	defer r.Close()
	s := &summer{}
	if body.HasSHA256 {
		s.start(body.Size)
	}
	n, err := d.copyContent(ctx, t, r, body.Size, s)
	sum := s.finish()
	switch {
	case err != nil:
		return err
	case n < body.Size:
		return fmt.Errorf("%w: it ends after %d bytes, %d were announced", backend.ErrBadContent, n, body.Size)
	case n > body.Size:
		return fmt.Errorf("%w: it goes on after the %d bytes that were announced", backend.ErrBadContent, body.Size)
	case body.HasSHA256 && !bytes.Equal(sum, body.SHA256[:]):
		return fmt.Errorf("%w: its sha256 is %x, %x was announced", backend.ErrBadContent, sum, body.SHA256)
	}
	return nil
}

// copyContent copies up to size bytes of r into t, and hashes them. It returns how
// many there were, size+1 standing for any number above size.
func (d *Driver) copyContent(ctx context.Context, t *temp, r io.Reader, size int64, s *summer) (int64, error) {
	// Two buffers: while one is hashed, the other is filled.
	bufs := [2]*[]byte{getBuffer(size + 1), nil}
	if size >= chunk {
		bufs[1] = getBuffer(size + 1)
	} else {
		bufs[1] = bufs[0]
	}
	defer func() {
		s.wait(0)
		putBuffer(bufs[0])
		if bufs[1] != bufs[0] {
			putBuffer(bufs[1])
		}
	}()
	var n, begun int64
	for i := 0; ; i++ {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		s.wait(1)
		// One byte more than announced is asked for, to see the end.
		buf := *bufs[i%2]
		p := buf[:min(int64(len(buf)), size+1-n)]
		m, end, err := readAll(r, p)
		if err != nil {
			return n, fmt.Errorf("read the content to write: %w", err)
		}
		p = p[:m]
		if n+int64(m) > size {
			return size + 1, nil
		}
		s.write(p)
		if _, err := t.f.Write(p); err != nil {
			return n, writeFailed(t, err)
		}
		n += int64(m)
		if end {
			return n, nil
		}
		if n-begun >= writeAhead {
			d.fs.StartWriting(t.f, begun, n-begun)
			begun = n
		}
	}
}

// readAll fills p as far as r goes. (io.ReadFull says io.ErrUnexpectedEOF for
// that, which may as well be an error of r.)
func readAll(r io.Reader, p []byte) (n int, end bool, err error) {
	for idle := 0; n < len(p); {
		m, err := r.Read(p[n:])
		n += m
		switch {
		case err == io.EOF:
			return n, true, nil
		case err != nil:
			return n, false, err
		case m > 0:
			idle = 0
		default:
			if idle++; idle == 100 {
				return n, false, io.ErrNoProgress
			}
		}
	}
	return n, false, nil
}

// summer takes the sha256 of what is written: beside the writing if that is much,
// which makes it a third faster. Its zero value hashes nothing.
type summer struct {
	sum     hash.Hash
	todo    chan []byte
	done    chan struct{} // one for each of todo
	pending int
}

func (s *summer) start(size int64) {
	s.sum = sha256.New()
	if size < 2*chunk {
		return
	}
	s.todo, s.done = make(chan []byte, 2), make(chan struct{}, 2)
	go func() {
		for p := range s.todo {
			s.sum.Write(p)
			s.done <- struct{}{}
		}
		close(s.done)
	}()
}

// write hashes p, which must not change before wait or finish says so.
func (s *summer) write(p []byte) {
	switch {
	case s.sum == nil:
	case s.todo == nil:
		s.sum.Write(p)
	default:
		s.pending++
		s.todo <- p
	}
}

// wait waits until at most n writes are not yet done.
func (s *summer) wait(n int) {
	for ; s.pending > n; s.pending-- {
		<-s.done
	}
}

// finish ends the goroutine and returns the sum of all writes.
func (s *summer) finish() []byte {
	if s.sum == nil {
		return nil
	}
	if s.todo != nil {
		close(s.todo)
		for range s.done {
		}
	}
	return s.sum.Sum(nil)
}

var buffers = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// getBuffer returns a buffer for contents of size bytes, of chunk bytes at most.
func getBuffer(size int64) *[]byte {
	if size <= 64<<10 {
		b := make([]byte, max(size, 1))
		return &b
	}
	return buffers.Get().(*[]byte)
}

func putBuffer(b *[]byte) {
	if len(*b) == chunk {
		buffers.Put(b)
	}
}
