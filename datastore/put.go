package datastore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/swampd/swampd/internal/format"
)

// Put stages a content from a stream. Size and sha256 are taken on the way;
// what is committed later is checked against them. It blocks while it reads and
// while the local disk takes what is staged; up to 1 MiB is held in memory.
func (b *Batch) Put(ctx context.Context, path string, r io.Reader, o *PutOptions) (Put, error) {
	p, err := b.put(ctx, path, o, func(small *[]byte) (*content, error) {
		return b.st.fromReader(ctx, whileHeld{r, b}, small)
	})
	return p, fail("put", path, err)
}

// whileHeld reads for as long as the hold stands (I7): what comes after a loss
// could not be committed. A Read that blocks is not ended.
type whileHeld struct {
	io.Reader
	b *Batch
}

func (r whileHeld) Read(p []byte) (int, error) {
	if err := r.b.lost(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// PutFile stages a file in place: it is read twice, once now and once when it
// is sent, and must not change in between (ErrChanged, nothing lands). Files up
// to 1 MiB are read once. Mode and mtime are the file's where o leaves them
// zero; a symbolic link is stored as a link. Anything but a regular file or a
// link is refused.
func (b *Batch) PutFile(ctx context.Context, path, file string, o *PutOptions) (Put, error) {
	p, err := b.putFile(ctx, path, file, o)
	return p, fail("put", path, err)
}

func (b *Batch) putFile(ctx context.Context, path, file string, o *PutOptions) (Put, error) {
	var opts PutOptions
	if o != nil {
		opts = *o
	}
	fi, err := os.Lstat(file)
	if err != nil {
		return Put{}, err
	}
	if opts.MTime.IsZero() {
		opts.MTime = fi.ModTime()
	}
	if opts.Mode == 0 {
		opts.Mode = fi.Mode().Perm()
		if opts.Mode == 0 {
			opts.Mode = fs.ModeIrregular // a real mode of 0000, not "none given"
		}
	}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return Put{}, err
		}
		opts.Mode = fs.ModeSymlink | 0o777
		return b.put(ctx, path, &opts, func(*[]byte) (*content, error) { return smallContent([]byte(target)), nil })
	case !fi.Mode().IsRegular():
		// A fault of this file, as those of the system are: a caller may go on.
		return Put{}, &fs.PathError{Op: "put", Path: file, Err: fmt.Errorf("it is %s, which cannot be stored; only regular files and symbolic links can", describeType(fi.Mode()))}
	}
	return b.put(ctx, path, &opts, func(small *[]byte) (*content, error) {
		return b.st.fromFile(ctx, file, fi, small)
	})
}

func describeType(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// smallBuffers are reused between puts of small contents.
var smallBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10); return &b }}

func (b *Batch) put(ctx context.Context, path string, o *PutOptions, read func(*[]byte) (*content, error)) (Put, error) {
	if err := CheckPath(path); err != nil {
		return Put{}, err
	}
	if err := b.usable(ctx); err != nil {
		return Put{}, err
	}
	if o == nil {
		o = &PutOptions{}
	}
	ch, err := changeOf(path, o)
	if err != nil {
		return Put{}, err
	}
	buf := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(buf)
	c, err := read(buf)
	if err != nil {
		return Put{}, err
	}
	if c.large == nil {
		b.s.bytesRead.Add(c.size)
	}
	ch.Size, ch.SHA256 = c.size, c.sum
	put := Put{Path: path, Size: c.size, SHA256: c.sum}
	if o.SkipUnchanged && !b.fresh {
		same, err := b.unchanged(ctx, &ch)
		if err != nil {
			return put, errors.Join(err, c.discard())
		}
		if same {
			put.Unchanged = true
			return put, c.discard()
		}
	}
	put.Deduplicated, err = b.stage(ctx, c, ch)
	return put, err
}

// stage makes a content part of the batch.
func (b *Batch) stage(ctx context.Context, c *content, ch format.Change) (shared bool, err error) {
	if err := b.lease(ctx); err != nil {
		return false, errors.Join(err, c.discard())
	}
	b.gate.RLock()
	defer b.gate.RUnlock()
	if b.isEnded() {
		return false, errors.Join(errEnded, c.discard())
	}
	sc := &staged{change: ch, dup: -1}
	if !b.fresh && c.size > 0 {
		if shared, err = b.share(ctx, sc); err != nil {
			return false, errors.Join(err, c.discard())
		}
	}
	if err := b.st.stage(ctx, c, sc); err != nil {
		return shared, err
	}
	return shared, b.set(ctx, sc)
}

// unchanged says whether the newest version of the path equals the change.
func (b *Batch) unchanged(ctx context.Context, ch *format.Change) (bool, error) {
	b.mu.Lock()
	has, err := b.changes.has(ctx, ch.Path)
	b.mu.Unlock()
	if err != nil || has {
		return false, err
	}
	v, found, err := b.s.lookup(ctx, ch.Path, Newest)
	if err != nil || !found || v.Deleted {
		return false, err
	}
	return v.Size == ch.Size && v.SHA256 == ch.SHA256 && modeBits(v.Mode) == ch.Mode &&
		unixNano(v.MTime) == ch.MTime && metaEqual(metaOf(&v.Meta), ch.Meta), nil
}

// share looks for the content among the live data objects (never inline: R6).
// The content is staged all the same, in case that object dies before the
// commit (R5).
func (b *Batch) share(ctx context.Context, sc *staged) (bool, error) {
	view, err := b.s.borrow(ctx)
	if err != nil {
		return false, err
	}
	for _, l := range view.pending {
		if v := l.contents()[sc.change.SHA256]; v != nil && v.Size == sc.change.Size {
			b.s.giveBack(view, false)
			b.st.share(sc, v.place.Located)
			return true, nil
		}
	}
	loc, found, err := view.snap.FindContent(ctx, sc.change.SHA256, sc.change.Size)
	b.s.giveBack(view, err != nil)
	if err != nil || !found {
		return false, err
	}
	b.st.share(sc, loc)
	return true, nil
}

// changeOf makes the change of a put, without content.
func changeOf(path string, o *PutOptions) (format.Change, error) {
	mode := modeBits(o.Mode)
	switch {
	case o.Mode == 0:
		mode = 0o644
	case o.Mode == fs.ModeIrregular:
		mode = 0
	case o.Mode&^(fs.ModePerm|fs.ModeSymlink) != 0:
		return format.Change{}, fmt.Errorf("the mode %v cannot be stored: permission bits and symbolic links only", o.Mode)
	}
	if o.Meta.Lifetime < 0 {
		return format.Change{}, fmt.Errorf("the lifetime %v is negative", o.Meta.Lifetime)
	}
	ch := format.Change{Op: format.OpPut, Path: path, Mode: mode, MTime: unixNano(o.MTime), Meta: metaOf(&o.Meta)}
	if err := format.CheckMeta(&ch.Meta); err != nil {
		return format.Change{}, err
	}
	return ch, nil
}

func modeBits(m fs.FileMode) uint32 { return uint32(m & (fs.ModePerm | fs.ModeSymlink)) }

// The times that a record can hold: from 1677 to 2262.
var earliest, latest = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// unixNano is t as records hold it, where 0 means none: a time that is out of
// reach becomes the nearest one, and the very beginning of 1970, which tools
// that make builds reproducible give to all files, one nanosecond later.
func unixNano(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.Before(earliest):
		return math.MinInt64
	case t.After(latest):
		return math.MaxInt64
	}
	if ns := t.UnixNano(); ns != 0 {
		return ns
	}
	return 1
}

func metaOf(m *Meta) format.Meta {
	f := format.Meta{ContentType: m.ContentType, Lifetime: int64(m.Lifetime), Keep: m.Keep}
	for _, k := range slices.Sorted(maps.Keys(m.Tags)) {
		f.Tags = append(f.Tags, format.Tag{Key: k, Value: m.Tags[k]})
	}
	return f
}

func metaEqual(a, b format.Meta) bool {
	return a.ContentType == b.ContentType && a.Lifetime == b.Lifetime && slices.Equal(a.Tags, b.Tags) && slices.Equal(a.Keep, b.Keep)
}
