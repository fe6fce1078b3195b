package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/afero"

	"github.com/swampd/swampd/backend"
)

// Get is backend.Driver.Get.
func (d *Driver) Get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	if err := backend.CheckKey(key); err != nil {
		return nil, err
	}
	f, info, err := d.open(ctx, key)
	if errors.Is(err, backend.ErrNotFound) && opts.IfVersion != "" {
		return nil, fmt.Errorf("%w: nothing is there, version %q was asked for", backend.ErrChanged, opts.IfVersion)
	}
	if err != nil {
		return nil, err
	}
	if opts.IfVersion != "" && opts.IfVersion != info.Version {
		_ = f.Close()
		return nil, fmt.Errorf("%w: version %q, and %q was asked for", backend.ErrChanged, info.Version, opts.IfVersion)
	}
	info.Now = d.now()
	from, n := span(info.Size, opts.Offset, opts.Length)
	return &backend.Object{
		Body:   &reader{ctx: ctx, f: f, key: key, at: from, end: from + n},
		Offset: from,
		Length: n,
		Info:   info,
	}, nil
}

// span is the part of an object of size bytes that a Get asks for.
func span(size, offset, length int64) (from, n int64) {
	if offset < 0 {
		offset = max(0, size+offset)
	}
	from = min(offset, size)
	n = size - from
	if length > 0 {
		n = min(n, length)
	}
	return from, n
}

// open opens what key holds now.
func (d *Driver) open(ctx context.Context, key string) (afero.File, backend.Info, error) {
	if backend.Replaceable(key) {
		s, err := d.current(ctx, recordOf(key), true)
		if err != nil {
			return nil, backend.Info{}, err
		}
		return s.f, s.describe(), nil
	}
	f, info, err := d.openFile(key)
	if isGone(err) {
		if err := d.rootProblem(); err != nil {
			return nil, backend.Info{}, err
		}
		return nil, backend.Info{}, backend.ErrNotFound
	}
	if err != nil {
		return nil, backend.Info{}, err
	}
	return f, infoOf(info), nil
}

// openFile opens an ordinary file. A directory holds no object and is io/fs.ErrNotExist.
func (d *Driver) openFile(rel string) (afero.File, os.FileInfo, error) {
	f, err := d.fs.OpenFile(d.path(rel), os.O_RDONLY|openFlags, 0)
	if err != nil {
		if isGone(err) {
			return nil, nil, err
		}
		return nil, nil, failed("open", rel, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil && !isGone(err):
		err = failed("look at", rel, err)
	case err == nil && info.IsDir():
		err = os.ErrNotExist
	case err == nil && !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no ordinary file but %v, which no store makes; remove it", rel, info.Mode().Type())
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// reader is the body of an object: a part of one open file.
type reader struct {
	ctx     context.Context
	f       afero.File
	key     string
	at, end int64
}

func (r *reader) Read(p []byte) (int, error) {
	if r.at >= r.end {
		return 0, io.EOF
	}
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if int64(len(p)) > r.end-r.at {
		p = p[:r.end-r.at]
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.f.ReadAt(p, r.at)
	r.at += int64(n)
	switch {
	case n == len(p):
		return n, nil
	case err == io.EOF && n > 0:
		return n, nil // the next call finds out
	case err == io.EOF:
		return 0, fmt.Errorf("%s: %w: the file ends at byte %d, it had more when it was opened", r.key, io.ErrUnexpectedEOF, r.at)
	}
	return n, failed("read", r.key, err)
}

// WriteTo lets io.Copy use large buffers.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	buf := getBuffer(r.end - r.at)
	defer putBuffer(buf)
	var n int64
	for {
		m, err := r.Read(*buf)
		if m > 0 {
			k, werr := w.Write((*buf)[:m])
			n += int64(k)
			if werr != nil {
				return n, werr
			}
			if k < m {
				return n, io.ErrShortWrite
			}
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (r *reader) Close() error {
	if err := r.f.Close(); err != nil {
		return failed("close", r.key, err)
	}
	return nil
}
