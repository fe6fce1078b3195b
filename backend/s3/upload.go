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
//
// The last byte that was read of the content is kept back until more follows, or
// until it is certain that the content ends where it was said to and that the
// caller still wants it. So a store never has all bytes of a content that turned
// out to be wrong, and where it does not have all, nothing is made: it was told
// the length and the hash.
type upload struct {
	ctx  context.Context
	body backend.Body

	mu   sync.Mutex
	open []*reading // the first, and one for each dead connection
	sent bool       // a reading was given away to its last byte
	err  error      // the first error of the content
}

// reading is one pass over the content.
type reading struct {
	up     *upload
	rc     io.ReadSeekCloser
	at     int64 // how much was given away
	last   byte  // the byte after that, if kept
	kept   bool
	moved  bool // rc is elsewhere: seek first
	closed bool
}

func newUpload(ctx context.Context, body backend.Body) *upload {
	return &upload{ctx: ctx, body: body}
}

// reader opens the content.
func (u *upload) reader() (*reading, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rc, err := u.body.Open()
	if err != nil {
		return nil, u.fail(fmt.Errorf("opening it: %w", err))
	}
	r := &reading{up: u, rc: rc}
	u.open = append(u.open, r)
	if u.body.Size == 0 {
		// Nobody will read it, so nobody else would see that it is longer.
		if err := r.checkEnd(); err != nil {
			return nil, err
		}
		u.sent = true
	}
	return r, nil
}

// reopen is reader for an HTTP request.
func (u *upload) reopen() (io.ReadCloser, error) { return u.reader() }

// fail keeps the first error and returns it.
func (u *upload) fail(err error) error {
	if u.err == nil {
		u.err = &bodyError{err}
	}
	return u.err
}

// close ends all readings. It says whether all bytes were given away, and
// returns the content's own error, which is why nothing was made.
func (u *upload) close() (sent bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range u.open {
		r.close()
	}
	return u.sent, u.err
}

// Read gives away what can be.
func (r *reading) Read(p []byte) (int, error) {
	r.up.mu.Lock()
	defer r.up.mu.Unlock()
	switch {
	case r.closed:
		return 0, errUploadClosed
	case r.up.err != nil:
		return 0, r.up.err
	case r.at == r.up.body.Size:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	if err := r.position(); err != nil {
		return 0, err
	}
	buf := p
	if len(p) == 1 {
		buf = make([]byte, 2) // room for the byte that is kept
	}
	n, err := r.fill(buf)
	if err != nil {
		return 0, err
	}
	// All of buf[:n] is of the content; the last byte is kept unless it is the end.
	r.kept = r.at+int64(n) < r.up.body.Size || n > len(p)
	if r.kept {
		n--
		r.last = buf[n]
	}
	copy(p, buf[:n])
	r.at += int64(n)
	r.up.sent = r.up.sent || r.at == r.up.body.Size
	return n, nil
}

// position brings rc to the byte after what was given away, or after the byte
// that is kept.
func (r *reading) position() error {
	if !r.moved {
		return nil
	}
	if _, err := r.rc.Seek(r.at, io.SeekStart); err != nil {
		return r.up.fail(fmt.Errorf("going back to its byte %d: %w", r.at, err))
	}
	r.moved, r.kept = false, false
	return nil
}

// fill reads at least two bytes into buf, the kept one included, or up to the
// end, which it has checked then.
func (r *reading) fill(buf []byte) (n int, err error) {
	if r.kept {
		buf[0], n = r.last, 1
	}
	left := r.up.body.Size - r.at // the kept byte counts
	if int64(len(buf)) > left {
		buf = buf[:left]
	}
	for idle := 0; n < 2 && int64(n) < left; idle++ {
		m, err := r.rc.Read(buf[n:])
		n += m
		switch {
		case err == io.EOF && int64(n) < left:
			return 0, r.up.fail(fmt.Errorf("%w: it ends after %d of %d bytes", backend.ErrBadContent, r.at+int64(n), r.up.body.Size))
		case err != nil && err != io.EOF:
			return 0, r.up.fail(err)
		case m == 0 && idle == 100:
			return 0, r.up.fail(io.ErrNoProgress)
		}
	}
	if int64(n) == left {
		return n, r.checkEnd()
	}
	return n, nil
}

// checkEnd demands that nothing follows and that it is still wanted.
func (r *reading) checkEnd() error {
	var one [1]byte
	for range 100 {
		n, err := r.rc.Read(one[:])
		switch {
		case n > 0:
			return r.up.fail(fmt.Errorf("%w: it is longer than %d bytes", backend.ErrBadContent, r.up.body.Size))
		case err == io.EOF:
			if err := contextError(r.up.ctx); err != nil {
				return r.up.fail(err)
			}
			return nil
		case err != nil:
			return r.up.fail(err)
		}
	}
	return r.up.fail(io.ErrNoProgress)
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
	up := newUpload(ctx, body)
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
