package s3

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/swampd/swampd/backend"
)

// errUploadClosed is what the HTTP client gets that reads after the call ended.
var errUploadClosed = errors.New("the upload is over")

// upload is one attempt to send a Body. The HTTP client reads it on a goroutine
// of its own, and may still do so when the answer is there: reading and closing
// exclude each other, and nothing is read after close.
type upload struct {
	body backend.Body

	mu   sync.Mutex
	open []*reading // the first, and one for each dead connection
	err  error      // the first error of the content
}

// reading is one pass over the content.
type reading struct {
	up     *upload
	rc     io.ReadSeekCloser
	at     int64 // of what the HTTP client has read
	moved  bool  // rc is not at at: seek first
	closed bool
}

func newUpload(body backend.Body) *upload { return &upload{body: body} }

// reader opens the content.
func (u *upload) reader() (*reading, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rc, err := u.body.Open()
	if err != nil {
		u.fail(fmt.Errorf("opening it: %w", err))
		return nil, u.err
	}
	r := &reading{up: u, rc: rc}
	u.open = append(u.open, r)
	if u.body.Size == 0 {
		// Nobody will read it, so nobody else would see that it is longer.
		if err := r.checkEnd(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// reopen is reader for an HTTP request.
func (u *upload) reopen() (io.ReadCloser, error) { return u.reader() }

// fail keeps the first error.
func (u *upload) fail(err error) {
	if u.err == nil {
		u.err = &bodyError{err}
	}
}

// failure is the content's own error, which is why nothing was made.
func (u *upload) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// close ends all readings.
func (u *upload) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range u.open {
		r.close()
	}
}

// Read reads on. The last bytes are given away only when it is certain that
// none come after them: a request whose body stays short makes nothing.
func (r *reading) Read(p []byte) (int, error) {
	r.up.mu.Lock()
	defer r.up.mu.Unlock()
	if r.closed {
		return 0, errUploadClosed
	}
	if r.up.err != nil {
		return 0, r.up.err
	}
	left := r.up.body.Size - r.at
	if left <= 0 {
		return 0, io.EOF
	}
	if r.moved {
		if _, err := r.rc.Seek(r.at, io.SeekStart); err != nil {
			r.up.fail(fmt.Errorf("going back to its byte %d: %w", r.at, err))
			return 0, r.up.err
		}
		r.moved = false
	}
	if int64(len(p)) > left {
		p = p[:left]
	}
	n, err := r.rc.Read(p)
	r.at += int64(n)
	if n > 0 && r.at == r.up.body.Size && (err == nil || err == io.EOF) {
		err = r.checkEnd()
	}
	switch {
	case err == io.EOF && r.at < r.up.body.Size:
		r.up.fail(fmt.Errorf("%w: it ends after %d of %d bytes", backend.ErrBadContent, r.at, r.up.body.Size))
	case err == io.EOF || err == nil:
		return n, err
	default:
		r.up.fail(err)
	}
	return 0, r.up.err
}

// checkEnd demands that nothing follows.
func (r *reading) checkEnd() error {
	var one [1]byte
	for range 100 {
		n, err := r.rc.Read(one[:])
		switch {
		case n > 0:
			r.up.fail(fmt.Errorf("%w: it is longer than %d bytes", backend.ErrBadContent, r.up.body.Size))
			return r.up.err
		case err == io.EOF:
			return nil
		case err != nil:
			r.up.fail(err)
			return r.up.err
		}
	}
	r.up.fail(io.ErrNoProgress)
	return r.up.err
}

// Seek moves within the announced size; the content itself is moved when it is
// read, so that asking for the position costs nothing.
func (r *reading) Seek(offset int64, whence int) (int64, error) {
	r.up.mu.Lock()
	defer r.up.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.up.body.Size
	}
	if offset < 0 || offset > r.up.body.Size {
		return 0, fmt.Errorf("seek to byte %d of %d", offset, r.up.body.Size)
	}
	r.moved = r.moved || offset != r.at
	r.at = offset
	return offset, nil
}

// Close ends this reading.
func (r *reading) Close() error {
	r.up.mu.Lock()
	defer r.up.mu.Unlock()
	r.close()
	return nil
}

func (r *reading) close() {
	if !r.closed {
		r.closed = true
		r.rc.Close()
	}
}

// hashBody reads the content once to learn its sha256.
func hashBody(ctx context.Context, body backend.Body) (sum [sha256.Size]byte, err error) {
	up := newUpload(body)
	defer up.close()
	r, err := up.reader()
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	buf := make([]byte, 128<<10)
	for {
		if err := contextError(ctx); err != nil {
			return sum, err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return sum, err
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}
