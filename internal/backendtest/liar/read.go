package liar

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

var readLiars = []Liar{
	{
		Name:   "a missing key is access denied",
		Breaks: []string{"Get/a missing key is ErrNotFound"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if errors.Is(err, backend.ErrNotFound) {
					err = backend.ErrDenied
				}
				return o, err
			}
		}),
	},
	{
		Name:   "a missing key is an empty object",
		Breaks: []string{"Get/a missing key is ErrNotFound", "Delete/both handles see it at once"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if errors.Is(err, backend.ErrNotFound) {
					return &backend.Object{Body: text(nil)}, nil
				}
				return o, err
			}
		}),
	},
	{
		Name:   "the last byte is not delivered",
		Breaks: []string{"Get/the zero options read the whole object"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if err == nil && opts.Length == 0 && o.Length > 1 {
					o.Length--
					o.Body = io.NopCloser(io.LimitReader(o.Body, o.Length))
				}
				return o, err
			}
		}),
	},
	{
		Name:   "ranges are off by one",
		Breaks: []string{"Get/ranges"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				if opts.Length > 0 {
					opts.Length++ // the last byte of a range is included
				}
				return d.Driver.Get(ctx, key, opts)
			}
		}),
	},
	{
		Name:   "ranges are ignored",
		Breaks: []string{"Get/ranges", "Get/many bodies at once do not mix"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				return d.Driver.Get(ctx, key, backend.GetOptions{IfVersion: opts.IfVersion})
			}
		}),
	},
	{
		Name:   "a range beyond the end is an error",
		Breaks: []string{"Get/ranges of an empty object are empty", "Get/ranges"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if err == nil && o.Length == 0 && opts.Offset != 0 {
					return nil, errBroken
				}
				return o, err
			}
		}),
	},
	{
		Name:   "IfVersion is ignored beyond the end",
		Breaks: []string{"Get/IfVersion holds for a range beyond the end"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				free := opts
				free.IfVersion = ""
				o, err := d.Driver.Get(ctx, key, free)
				if err == nil && o.Length == 0 {
					return o, nil
				}
				return d.Driver.Get(ctx, key, opts)
			}
		}),
	},
	{
		Name:   "a body that is cut short ends like any other",
		Breaks: []string{"Get/a body whose context ends is whole or fails"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = edit(d, func(_ string, o *backend.Object) { o.Body = quiet{o.Body} })
		}),
	},
	{
		Name:   "IfVersion is never met",
		Breaks: []string{"Get/IfVersion reads that version"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				if opts.IfVersion != "" {
					return nil, backend.ErrChanged
				}
				return d.Driver.Get(ctx, key, opts)
			}
		}),
	},
	{
		Name:   "IfVersion is ignored",
		Breaks: []string{"Get/IfVersion of another version is ErrChanged", "Get/IfVersion of a key that holds nothing is ErrChanged"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				opts.IfVersion = ""
				return d.Driver.Get(ctx, key, opts)
			}
		}),
	},
	{
		Name:   "a body follows its key",
		Breaks: []string{"Get/a body stays one object while the key is replaced and deleted"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if err == nil && opts.Offset == 0 {
					o.Body = &follower{ctx: ctx, d: d, key: key, o: o}
				}
				return o, err
			}
		}),
	},
	{
		Name:   "a body that is closed early is an error",
		Breaks: []string{"Get/a body that is closed early harms nothing"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = edit(d, func(_ string, o *backend.Object) { o.Body = &strict{o.Body, o.Length} })
		}),
	},
	{
		Name:   "bodies share their place",
		Breaks: []string{"Get/many bodies at once do not mix"},
		fresh: func() spoil {
			shared := &shared{}
			return func(_ *memory.Store, d *driver) {
				d.get = edit(d, func(_ string, o *backend.Object) {
					shared.mu.Lock()
					defer shared.mu.Unlock()
					shared.r = o.Body
					o.Body = shared
				})
			}
		},
	},
	{
		Name:   "what was missing is still missing at the next look",
		Breaks: []string{"Create/both handles see it at once"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			var mu sync.Mutex
			missing := map[string]bool{}
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				if missing[key] {
					delete(missing, key)
					return nil, backend.ErrNotFound
				}
				o, err := d.Driver.Get(ctx, key, opts)
				missing[key] = errors.Is(err, backend.ErrNotFound)
				return o, err
			}
		}),
	},
	{
		Name: "a handle shows what it saw before",
		Breaks: []string{
			"Replace/both handles see it at once", "Delete/both handles see it at once",
		},
		fresh: plain(func(_ *memory.Store, d *driver) {
			var mu sync.Mutex
			type seen struct {
				o    backend.Object
				data []byte
			}
			cache := map[string]seen{}
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				if opts != (backend.GetOptions{}) {
					return d.Driver.Get(ctx, key, opts)
				}
				mu.Lock()
				defer mu.Unlock()
				hit, ok := cache[key]
				if !ok {
					o, err := d.Driver.Get(ctx, key, opts)
					if err != nil {
						return nil, err
					}
					data, err := io.ReadAll(o.Body)
					if err != nil {
						return nil, err
					}
					hit = seen{*o, data}
					cache[key] = hit
				}
				o := hit.o
				o.Body = text(hit.data)
				return &o, nil
			}
		}),
	},
	{
		Name:   "reads lag behind now and then",
		Breaks: []string{"ReplaceRace/readers see whole records and never an older one"},
		fresh: func() spoil {
			var mu sync.Mutex
			older := map[string][]byte{}
			n := 0
			return func(_ *memory.Store, d *driver) {
				d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
					data, _, _ := d.holds(ctx, key)
					info, err := d.Driver.Replace(ctx, key, body, old)
					if err == nil {
						mu.Lock()
						older[key] = data
						mu.Unlock()
					}
					return info, err
				}
				d.get = edit(d, func(key string, o *backend.Object) {
					mu.Lock()
					defer mu.Unlock()
					if n++; n%3 == 0 && older[key] != nil {
						o.Body, o.Size, o.Length = text(older[key]), int64(len(older[key])), int64(len(older[key]))
					}
				})
			}
		},
	},
}

// follower reads its key anew for each Read.
type follower struct {
	ctx context.Context
	d   *driver
	key string
	o   *backend.Object
	at  int64
}

func (f *follower) Read(p []byte) (int, error) {
	if f.at >= f.o.Length {
		return 0, io.EOF
	}
	now, err := f.d.Driver.Get(f.ctx, f.key, backend.GetOptions{Offset: f.at, Length: min(int64(len(p)), f.o.Length-f.at)})
	if err != nil {
		return 0, err
	}
	defer now.Body.Close()
	n, err := now.Body.Read(p)
	f.at += int64(n)
	return n, err
}

func (f *follower) Close() error { return nil }

// strict does not like to be closed before its end.
type strict struct {
	io.ReadCloser
	left int64
}

func (s *strict) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.left -= int64(n)
	return n, err
}

func (s *strict) Close() error {
	if s.left > 0 {
		return errBroken
	}
	return nil
}

// shared is one body for everybody: the newest.
type shared struct {
	mu sync.Mutex
	r  io.Reader
}

func (s *shared) Read(p []byte) (int, error) {
	defer dawdle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(p)
}

func (s *shared) Close() error { return nil }

// quiet is a body that does not say why it ends.
type quiet struct{ io.ReadCloser }

func (q quiet) Read(p []byte) (int, error) {
	n, err := q.ReadCloser.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}
