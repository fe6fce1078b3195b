package liar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

// Liars about the content of a create or replace.
var writeLiars = []Liar{
	{
		Name:   "the last byte is not stored",
		Breaks: []string{"Create/makes exactly these bytes", "Create/both handles see it at once"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				data, err := checked(body)
				if err != nil {
					return backend.Info{}, err
				}
				return d.Driver.Create(ctx, key, backend.Bytes(data[:max(0, len(data)-1)]))
			}
		}),
	},
	{
		Name: "the sha256 is not verified",
		Breaks: []string{
			"Create/a wrong sha256 is ErrBadContent and makes nothing", "Create/flipped bytes are ErrBadContent and make nothing",
			"Replace/a bad content is refused and changes nothing",
		},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.bodies(func(b backend.Body) backend.Body { b.HasSHA256 = false; return b })
		}),
	},
	{
		Name:   "bad content is refused and stored",
		Breaks: []string{"Create/a wrong sha256 is ErrBadContent and makes nothing", "List/refused contents are not listed"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if errors.Is(err, backend.ErrBadContent) {
					data, _ := content(body)
					s.Tamper(key, func([]byte) []byte { return data })
				}
				return info, err
			}
		}),
	},
	{
		Name: "the size is not checked",
		Breaks: []string{
			"Create/a content shorter than its size is ErrBadContent and makes nothing",
			"Create/a content longer than its size is ErrBadContent and makes nothing",
		},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.bodies(func(b backend.Body) backend.Body {
				if data, err := content(b); err == nil {
					b.Size = int64(len(data))
				}
				return b
			})
		}),
	},
	{
		Name:   "content is cut at its announced size",
		Breaks: []string{"Create/a content longer than its size is ErrBadContent and makes nothing"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.bodies(readers(func(b backend.Body, r io.ReadSeekCloser) io.ReadSeekCloser {
				return source{io.LimitReader(r, b.Size), r}
			}))
		}),
	},
	{
		Name: "the reader's error is only told in words",
		Breaks: []string{
			"Create/an error of the reader is found in the chain and makes nothing",
			"Create/an error of opening is found in the chain and makes nothing",
		},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if err != nil && !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrBadContent) {
					err = errors.New(err.Error())
				}
				return info, err
			}
		}),
	},
	{
		Name: "a reader that fails has ended",
		Breaks: []string{
			"Create/an error of the reader is found in the chain and makes nothing", "List/refused contents are not listed",
		},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				data, err := content(body)
				if err == nil {
					return d.Driver.Create(ctx, key, body)
				}
				return d.Driver.Create(ctx, key, backend.Bytes(data))
			}
		}),
	},
	{
		Name:   "readers are not closed",
		Breaks: []string{"Create/every reader is closed before it returns"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.bodies(readers(func(_ backend.Body, r io.ReadSeekCloser) io.ReadSeekCloser { return source{r, nopClose{r}} }))
		}),
	},
	{
		Name:   "the same bytes are not taken twice",
		Breaks: []string{"Create/a body can be sent again and several times at once"},
		fresh: func() spoil {
			var sums sync.Map
			return func(_ *memory.Store, d *driver) {
				d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
					if _, dup := sums.LoadOrStore(body.SHA256, true); dup {
						return backend.Info{}, backend.ErrExists
					}
					return d.Driver.Create(ctx, key, body)
				}
			}
		},
	},
	{
		Name:   "content is read with one call",
		Breaks: []string{"Create/readers may deliver a few bytes at a time"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.bodies(readers(func(b backend.Body, r io.ReadSeekCloser) io.ReadSeekCloser {
				buf := make([]byte, b.Size)
				n, err := r.Read(buf)
				if err != nil && n == 0 {
					return r
				}
				return source{bytes.NewReader(buf[:n]), r}
			}))
		}),
	},
	{
		Name:   "content without sha256 is refused",
		Breaks: []string{"Create/a content without sha256 is taken by its size"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				if !body.HasSHA256 {
					return backend.Info{}, backend.ErrBadContent
				}
				return d.Driver.Create(ctx, key, body)
			}
		}),
	},
	{
		Name:   "parts are put together in the wrong order",
		Breaks: []string{"Create/big bodies arrive whole"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				if body.Size <= part {
					return d.Driver.Create(ctx, key, body)
				}
				data, err := checked(body)
				if err != nil {
					return backend.Info{}, err
				}
				return d.Driver.Create(ctx, key, backend.Bytes(append(append([]byte{}, data[part:]...), data[:part]...)))
			}
		}),
	},
	{
		Name:   "content is read when it is asked for",
		Breaks: []string{"Create/the content is copied"},
		fresh: func() spoil {
			var bodies sync.Map
			return func(_ *memory.Store, d *driver) {
				d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
					info, err := d.Driver.Create(ctx, key, body)
					if err == nil {
						bodies.Store(key, body)
					}
					return info, err
				}
				d.get = edit(d, func(key string, o *backend.Object) {
					if b, ok := bodies.Load(key); ok {
						if data, err := content(b.(backend.Body)); err == nil {
							o.Body = text(data[o.Offset : o.Offset+o.Length])
						}
					}
				})
			}
		},
	},
	{
		Name:   "long keys are refused",
		Breaks: []string{"Create/keys as long as they may be"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				if len(key) > 255 {
					return backend.Info{}, backend.ErrBadKey
				}
				return d.Driver.Create(ctx, key, body)
			}
		}),
	},
	{
		Name:   "a cancelled create keeps what has come",
		Breaks: []string{"Create/a context cancelled while the content is read leaves nothing or all"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if errors.Is(err, context.Canceled) {
					data, _ := content(body)
					s.Tamper(key, func([]byte) []byte { return data[:len(data)/2] })
				}
				return info, err
			}
		}),
	},
	{
		Name:   "a cancelled create is made and called cancelled",
		Breaks: []string{"Create/a context cancelled while the content is read leaves nothing or all"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if errors.Is(err, context.Canceled) {
					data, _ := content(body)
					s.Tamper(key, func([]byte) []byte { return data })
				}
				return info, err
			}
		}),
	},
	{
		Name:   "a cancelled create leaves its reader open",
		Breaks: []string{"Create/a context cancelled while the content is read leaves nothing or all"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if errors.Is(err, context.Canceled) {
					_, _ = body.Open()
				}
				return info, err
			}
		}),
	},
	{
		Name:   "a refused content leaves a temporary object",
		Breaks: []string{"List/refused contents are not listed", "Life/CleanUploads removes nothing fresh"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if err != nil && !errors.Is(err, backend.ErrExists) {
					s.Tamper(key+"-tmp", func([]byte) []byte { return []byte("tmp") })
				}
				return info, err
			}
		}),
	},
}

// bodies changes every body that is sent.
func (d *driver) bodies(change func(backend.Body) backend.Body) {
	d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
		return d.Driver.Create(ctx, key, change(body))
	}
	d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
		return d.Driver.Replace(ctx, key, change(body), old)
	}
}

// readers changes the readers of a body.
func readers(change func(backend.Body, io.ReadSeekCloser) io.ReadSeekCloser) func(backend.Body) backend.Body {
	return func(b backend.Body) backend.Body {
		open := b.Open
		whole := b
		b.Open = func() (io.ReadSeekCloser, error) {
			r, err := open()
			if err != nil {
				return nil, err
			}
			return change(whole, r), nil
		}
		return b
	}
}

// source reads from one reader and does the rest with another.
type source struct {
	r io.Reader
	io.ReadSeekCloser
}

func (s source) Read(p []byte) (int, error) { return s.r.Read(p) }

type nopClose struct{ io.ReadSeekCloser }

func (nopClose) Close() error { return nil }
