package datastore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/swampd/swampd/internal/format"
)

// fromReader reads a content from a stream: into memory if it is small, else
// through blocks into a staged file.
func (st *staging) fromReader(ctx context.Context, r io.Reader, small *[]byte) (*content, error) {
	buf, err := readSmall(ctx, r, (*small)[:0])
	*small = buf[:0]
	if err != nil {
		return nil, err
	}
	if len(buf) <= format.SmallContent {
		return smallContent(buf), nil
	}
	dir, err := st.stagingDir()
	if err != nil {
		return nil, fmt.Errorf("the local staging area: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "large-"+newID().String()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the local staging area: %w", err)
	}
	name := f.Name()
	c, err := st.readLarge(ctx, io.MultiReader(&prefix{b: buf}, r), f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, removeIfThere(name))
	}
	c.large.body.Open = func() (io.ReadSeekCloser, error) { return os.Open(name) }
	c.large.close = func() error { return removeIfThere(name) }
	return c, nil
}

// prefix reads what was read already, once.
type prefix struct{ b []byte }

func (p *prefix) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b)
	p.b = p.b[n:]
	return n, nil
}

// readSmall reads up to one byte more than a small content may have.
func readSmall(ctx context.Context, r io.Reader, buf []byte) ([]byte, error) {
	for len(buf) <= format.SmallContent {
		if ctx.Err() != nil {
			return buf, context.Cause(ctx)
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*cap(buf)+4096, format.SmallContent+4096))
			copy(grown, buf)
			buf = grown
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), format.SmallContent+1)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

func smallContent(b []byte) *content {
	return &content{size: int64(len(b)), sum: sha256.Sum256(b), small: b}
}

// fromFile reads a content from a regular file whose Lstat was fi. A large one
// stays where it is and is read again when it is sent, unless it compresses
// well: then the compressed blocks are staged.
func (st *staging) fromFile(ctx context.Context, name string, fi fs.FileInfo, small *[]byte) (*content, error) {
	f, err := openNoFollow(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(fi, before) || !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s was replaced by another file while it was opened", ErrChanged, name)
	}
	var c *content
	if before.Size() <= format.SmallContent {
		buf, err := readExactly(f, before.Size(), (*small)[:0])
		*small = buf[:0]
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c = smallContent(buf)
	} else if c, err = st.largeFromFile(ctx, f, name); err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err == nil && (after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) || c.size != before.Size()) {
		err = fmt.Errorf("%w: %s changed while it was read (%d bytes, then %d); put it again when nothing writes to it", ErrChanged, name, before.Size(), max(after.Size(), c.size))
	}
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// readExactly reads a file that has the given size; of one that says 0, as those
// of /proc do, a byte, if there is one. Whether a file has grown meanwhile is for
// the caller to see.
func readExactly(f *os.File, size int64, buf []byte) ([]byte, error) {
	size = max(size, 1)
	if int64(cap(buf)) < size {
		buf = make([]byte, 0, size)
	}
	n, err := io.ReadFull(f, buf[:size])
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return buf[:n], err
}

func (st *staging) largeFromFile(ctx context.Context, f *os.File, name string) (*content, error) {
	// The first block decides whether the whole is worth compressing.
	first := blockBuffers.Get().(*[]byte)
	defer blockBuffers.Put(first)
	n, err := io.ReadFull(f, *first)
	if err != nil && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if compresses((*first)[:n]) {
		return st.fromReaderLarge(ctx, f)
	}
	c, err := st.readLarge(ctx, f, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.large.source = name
	c.large.body.Open = func() (io.ReadSeekCloser, error) { return openNoFollow(name) }
	return c, nil
}

// fromReaderLarge stages a large content without looking whether it is one.
func (st *staging) fromReaderLarge(ctx context.Context, r io.Reader) (*content, error) {
	small := []byte(nil)
	return st.fromReader(ctx, r, &small)
}

// compresses says whether zstd saves a tenth.
func compresses(b []byte) bool {
	_, codec := format.Compress(nil, b)
	return codec != format.CodecRaw
}

var blockBuffers = sync.Pool{New: func() any { b := make([]byte, format.BlockSize); return &b }}

// block is one block on its way through readLarge.
type block struct {
	buf *[]byte
	n   int
}

// readLarge reads a large content in blocks, takes the sha256 of the whole and
// of each block (on two goroutines), and writes the stored blocks to out, if
// there is one. Without out the stored bytes are the content itself.
func (st *staging) readLarge(ctx context.Context, r io.Reader, out *os.File) (*content, error) {
	c := &content{large: &object{}, foot: &format.Footer{Kind: format.ObjectLarge}}
	whole := sha256.New()
	hashed := make(chan block, 4)  // to the goroutine that hashes the whole
	free := make(chan struct{}, 6) // bounds the blocks in flight
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := range hashed {
			whole.Write((*b.buf)[:b.n])
			blockBuffers.Put(b.buf)
			<-free
		}
	}()
	stored := sha256.New() // of what is written to out
	codec := format.CodecRaw
	err := func() error {
		for {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			free <- struct{}{}
			buf := blockBuffers.Get().(*[]byte)
			n, rerr := io.ReadFull(r, *buf)
			if n > 0 {
				ref, err := storeBlock((*buf)[:n], out, stored, len(c.foot.Blocks) == 0, &codec)
				if err != nil {
					return err
				}
				c.foot.Blocks = append(c.foot.Blocks, ref)
				c.size += int64(n)
				st.s.opts.Progress(Progress{Phase: "read", Done: st.s.bytesRead.Add(int64(n))})
				c.place.Length += ref.Length
				hashed <- block{buf, n}
			}
			if rerr == io.EOF || rerr == io.ErrUnexpectedEOF {
				return nil
			}
			if rerr != nil {
				return rerr
			}
		}
	}()
	close(hashed)
	<-done
	if err != nil {
		return nil, err
	}
	whole.Sum(c.sum[:0])
	c.place.Codec = format.CodecBlocks
	if out == nil {
		stored = whole // the stored bytes begin with the content
	}
	c.large.finish = func(foot []byte) (format.Hash, error) {
		var sum format.Hash
		stored.Write(foot)
		stored.Sum(sum[:0])
		if out == nil {
			return sum, nil
		}
		return sum, appendTo(out.Name(), foot)
	}
	c.large.inPlace = out == nil
	return c, nil
}

// storeBlock hashes a block, compresses it if the first one was worth it, and
// writes it.
func storeBlock(raw []byte, out *os.File, sum hash.Hash, first bool, codec *format.Codec) (format.BlockRef, error) {
	ref := format.BlockRef{Length: int64(len(raw)), SHA256: sha256.Sum256(raw)}
	if out == nil {
		return ref, nil
	}
	stored := raw
	if first || *codec == format.CodecZstd {
		buf := blockBuffers.Get().(*[]byte)
		defer blockBuffers.Put(buf)
		var c format.Codec
		stored, c = format.Compress((*buf)[:0], raw)
		ref.Codec = c
		if first {
			*codec = c
		}
	}
	ref.Length = int64(len(stored))
	sum.Write(stored)
	if _, err := out.Write(stored); err != nil {
		return ref, fmt.Errorf("the local staging area: %w", err)
	}
	return ref, nil
}

func appendTo(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// finishLarge names the object of a large content and puts the footer behind it.
func (st *staging) finishLarge(c *content) error {
	c.foot.Head, c.foot.Entry, c.foot.Session = st.s.Head(), st.entry, st.session
	c.foot.Time = st.s.opts.now().UnixNano()
	foot, err := format.EncodeFooter(c.foot)
	if err != nil {
		return err
	}
	sum, err := c.large.finish(foot)
	if err != nil {
		return fmt.Errorf("the local staging area: %w", err)
	}
	o := c.large
	o.meta = format.Object{
		Name: format.DataKey(c.foot.Head, newID()), Kind: format.ObjectLarge, Size: c.place.Length + int64(len(foot)),
		FooterSize: int64(len(foot)), Checksum: sha256.Sum256(foot), New: true,
	}
	o.body.Size, o.body.SHA256, o.body.HasSHA256 = o.meta.Size, sum, true
	if o.inPlace {
		open, size := o.body.Open, c.place.Length
		o.body.Open = func() (io.ReadSeekCloser, error) {
			f, err := open()
			if err != nil {
				return nil, fmt.Errorf("%w: the staged file cannot be opened any more: %w", ErrChanged, err)
			}
			return &joined{head: f, size: size, tail: foot}, nil
		}
	}
	return nil
}

// joined reads the first size bytes of head and then tail.
type joined struct {
	head io.ReadSeekCloser
	size int64
	tail []byte
	at   int64
}

func (j *joined) Read(b []byte) (int, error) {
	if j.at >= j.size {
		i := j.at - j.size
		if i >= int64(len(j.tail)) {
			return 0, io.EOF
		}
		n := copy(b, j.tail[i:])
		j.at += int64(n)
		return n, nil
	}
	if rest := j.size - j.at; int64(len(b)) > rest {
		b = b[:rest]
	}
	n, err := j.head.Read(b)
	j.at += int64(n)
	if err == io.EOF {
		if n > 0 {
			return n, nil
		}
		return 0, fmt.Errorf("%w: the file is shorter than when it was staged (%d of %d bytes)", ErrChanged, j.at, j.size)
	}
	return n, err
}

func (j *joined) Seek(offset int64, whence int) (int64, error) {
	end := j.size + int64(len(j.tail))
	switch whence {
	case io.SeekCurrent:
		offset += j.at
	case io.SeekEnd:
		offset += end
	}
	if offset < 0 || offset > end {
		return 0, errors.New("seek outside of the object")
	}
	if _, err := j.head.Seek(min(offset, j.size), io.SeekStart); err != nil {
		return 0, err
	}
	j.at = offset
	return offset, nil
}

func (j *joined) Close() error { return j.head.Close() }
