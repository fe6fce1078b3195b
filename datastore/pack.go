package datastore

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/format"
)

// packMemory is how much of a pack is kept in memory before it goes to a file:
// what may travel inline never touches the disk.
const packMemory = format.MaxInline

// packWriter fills one pack. All methods are called under staging.mu.
type packWriter struct {
	index int      // in staging.objects
	size  int64    // of the contents
	buf   []byte   // the end of them that is not in the file yet
	file  *os.File // nil while the pack is in memory only
	hash  hash.Hash
	foot  format.Footer
	feet  int // what the changes take in the footer
}

func newPackWriter(index int) *packWriter {
	return &packWriter{index: index, hash: sha256.New(), foot: format.Footer{Kind: format.ObjectPack}}
}

// full says whether n more bytes should go to another pack.
func (w *packWriter) full(n int) bool {
	return w.size > 0 && w.size+int64(n) > format.PackTarget ||
		len(w.foot.Changes) >= format.MaxFooterChanges || w.feet >= format.FooterTarget
}

func (w *packWriter) add(st *staging, ch *format.Change, stored []byte, codec format.Codec) (format.Place, error) {
	if len(w.buf)+len(stored) > packMemory {
		if err := w.flush(st); err != nil {
			return format.Place{}, err
		}
	}
	place := format.Place{Object: w.index, Offset: w.size, Length: int64(len(stored)), Codec: codec}
	w.buf = append(w.buf, stored...)
	w.hash.Write(stored)
	w.size += int64(len(stored))
	c := *ch
	c.Place = place
	c.Place.Object = 0
	w.foot.Changes = append(w.foot.Changes, c)
	w.feet += c.EncodedSize()
	return place, nil
}

// flush moves the buffer to the pack's file. After a failure, as of a full
// disk, it can be called again: what was half written is written over.
func (w *packWriter) flush(st *staging) error {
	if w.file == nil {
		dir, err := st.stagingDirLocked()
		if err != nil {
			return err
		}
		w.file, err = os.OpenFile(filepath.Join(dir, fmt.Sprintf("pack-%06d", w.index)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
	}
	if _, err := w.file.WriteAt(w.buf, w.size-int64(len(w.buf))); err != nil {
		return err
	}
	w.buf = w.buf[:0]
	return nil
}

// inMemory returns the pack's bytes if they never went to a file.
func (w *packWriter) inMemory() ([]byte, bool) { return w.buf, w.file == nil }

// seal names the pack, writes its footer, and completes o. The file stays
// until the commit has landed.
func (w *packWriter) seal(st *staging, o *object) error {
	w.foot.Head, w.foot.Entry, w.foot.Session = st.s.Head(), st.entry, st.session
	w.foot.Time = st.s.opts.now().UnixNano()
	foot, err := format.EncodeFooter(&w.foot)
	if err != nil {
		return err
	}
	if err := w.flush(st); err != nil {
		return err
	}
	if _, err := w.file.WriteAt(foot, w.size); err != nil {
		return err
	}
	w.hash.Write(foot)
	o.meta = format.Object{
		Name: format.DataKey(w.foot.Head, newID()), Kind: format.ObjectPack, Size: w.size + int64(len(foot)),
		FooterSize: int64(len(foot)), Checksum: sha256.Sum256(foot), New: true,
	}
	o.body = backend.Body{Size: o.meta.Size, HasSHA256: true}
	w.hash.Sum(o.body.SHA256[:0])
	name := w.file.Name()
	o.body.Open = func() (io.ReadSeekCloser, error) { return os.Open(name) }
	o.close = func() error { return removeIfThere(name) }
	w.foot.Changes, w.buf = nil, nil
	return w.file.Close()
}

// close drops a pack that was not sealed.
func (w *packWriter) close() error {
	if w.file == nil {
		return nil
	}
	name := w.file.Name()
	err := w.file.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, removeIfThere(name))
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func sha256Of(b []byte) format.Hash { return sha256.Sum256(b) }
