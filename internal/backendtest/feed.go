package backendtest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/swampd/swampd/backend"
)

// feed is a body with instruments: it counts what a driver does with it, and
// can lie, fail, and wait.
type feed struct {
	data  []byte
	chunk int // the most bytes that one Read gives; 0 is no limit

	failAt  int   // give failErr when this many bytes were read
	failErr error // nil: never

	gateAt int    // call gate once, when this many bytes were read
	gate   func() // nil: never
	gated  atomic.Bool

	opens, closes, misuse atomic.Int32
}

// body promises the size and, if sum, the sha256 of the data.
func (f *feed) body(sum bool) backend.Body {
	b := backend.Body{Size: int64(len(f.data)), Open: f.open}
	if sum {
		b.SHA256, b.HasSHA256 = sha256.Sum256(f.data), true
	}
	return b
}

func (f *feed) open() (io.ReadSeekCloser, error) {
	f.opens.Add(1)
	return &feedReader{f: f}, nil
}

// check says what the driver did wrong with the readers that it opened.
func (f *feed) check() error {
	switch {
	case f.opens.Load() == 0:
		return errors.New("the content was never opened")
	case f.closes.Load() != f.opens.Load():
		return fmt.Errorf("the content was opened %d times and closed %d times", f.opens.Load(), f.closes.Load())
	case f.misuse.Load() != 0:
		return errors.New("a reader of the content was used after it was closed")
	}
	return nil
}

type feedReader struct {
	f      *feed
	at     int64
	closed atomic.Bool
}

func (r *feedReader) Read(p []byte) (int, error) {
	f := r.f
	if r.closed.Load() {
		f.misuse.Add(1)
		return 0, errors.New("read after close")
	}
	if f.gate != nil && r.at >= int64(f.gateAt) && f.gated.CompareAndSwap(false, true) {
		f.gate()
	}
	end := int64(len(f.data))
	if f.gate != nil && !f.gated.Load() {
		end = min(end, int64(f.gateAt))
	}
	if f.failErr != nil {
		if r.at >= int64(f.failAt) {
			return 0, f.failErr
		}
		end = min(end, int64(f.failAt))
	}
	if r.at >= int64(len(f.data)) {
		return 0, io.EOF
	}
	if f.chunk > 0 {
		p = p[:min(len(p), f.chunk)]
	}
	n := copy(p, f.data[r.at:end])
	r.at += int64(n)
	return n, nil
}

func (r *feedReader) Seek(offset int64, whence int) (int64, error) {
	if r.closed.Load() {
		r.f.misuse.Add(1)
		return 0, errors.New("seek after close")
	}
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += int64(len(r.f.data))
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek to %d", offset)
	}
	r.at = offset
	return offset, nil
}

func (r *feedReader) Close() error {
	if r.closed.Swap(true) {
		return errors.New("closed twice")
	}
	r.f.closes.Add(1)
	return nil
}
