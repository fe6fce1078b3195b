package liar

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

// Liars about times, errors, contexts and the life of a handle.
var otherLiars = []Liar{
	{
		Name:   "Modified is when it was read",
		Breaks: []string{"Info/size, version and times are the same in every answer"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = edit(d, func(_ string, o *backend.Object) { o.Modified = o.Now })
		}),
	},
	{
		Name:   "Modified is the beginning of time",
		Breaks: []string{"Info/Modified is when it was made, by the clock that Now shows"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = edit(d, func(_ string, o *backend.Object) { o.Modified = time.Unix(0, 0) })
		}),
	},
	{
		Name:   "there is no Now",
		Breaks: []string{"Info/Modified is when it was made, by the clock that Now shows"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = edit(d, func(_ string, o *backend.Object) { o.Now = time.Time{} })
		}),
	},
	{
		Name:   "two clocks answer in turn",
		Breaks: []string{"Info/Now goes forward"},
		fresh: func() spoil {
			var n atomic.Int32
			return func(_ *memory.Store, d *driver) {
				d.get = edit(d, func(_ string, o *backend.Object) {
					if n.Add(1)%2 == 0 {
						o.Now = o.Now.Add(-time.Hour)
					}
				})
			}
		},
	},
	{
		Name:   "Modified goes back with each version",
		Breaks: []string{"Info/a replaced record has a later Modified"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = edit(d, func(_ string, o *backend.Object) {
				n, _ := strconv.Atoi(string(o.Version))
				o.Modified = o.Modified.Add(time.Duration(-n) * time.Second)
			})
		}),
	},
	{
		Name:   "refusals have no Date",
		Breaks: []string{"Info/Date is there if the store promises it, else nowhere"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if errors.Is(err, backend.ErrNotFound) {
					err = backend.ErrNotFound
				}
				return o, err
			}
		}),
	},
	{
		Name:   "errors are about something else",
		Breaks: []string{"Errors/every error is one Error with operation, store and key"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				o, err := d.Driver.Get(ctx, key, opts)
				if err != nil {
					err = &backend.Error{Op: "read", Err: err}
				}
				return o, err
			}
		}),
	},
	{
		Name: "the context is ignored",
		Breaks: []string{
			"Errors/a context that is cancelled before has no effect", "Errors/a deadline that is over has no effect",
		},
		fresh: plain(func(_ *memory.Store, d *driver) { d.ignoreContext() }),
	},
	{
		Name:   "each handle has a store of its own",
		Breaks: []string{"Life/another handle sees what was there before", "Create/makes exactly these bytes"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.Driver = memory.New(nil).Open()
		}),
	},
	{
		Name:   "Close does nothing",
		Breaks: []string{"Life/calls after Close are ErrClosed and have no effect"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.close = func() error { return nil }
		}),
	},
	{
		Name:   "Close empties the store",
		Breaks: []string{"Life/Close leaves the store and other handles alone"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.close = func() error {
				for e := range d.Driver.List(context.Background(), "", "") {
					s.Tamper(e.Key, func([]byte) []byte { return nil })
				}
				return d.Driver.Close()
			}
		}),
	},
	{
		Name:   "a clean-up takes fresh objects",
		Breaks: []string{"Life/CleanUploads removes nothing fresh"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.clean = func(ctx context.Context, _ time.Duration) (int, error) {
				n := 0
				for e := range d.Driver.List(ctx, "data/", "") {
					s.Tamper(e.Key, func([]byte) []byte { return nil })
					n++
				}
				return n, nil
			}
		}),
	},
	{
		Name:   "a goroutine stays behind",
		Breaks: []string{"Life/no goroutine is left after Close"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			// It waits for ever; the process of the test ends it.
			go func() { <-make(chan struct{}) }()
		}),
	},
}

func (d *driver) ignoreContext() {
	d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
		return d.Driver.Get(context.WithoutCancel(ctx), key, opts)
	}
	d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
		return d.Driver.Create(context.WithoutCancel(ctx), key, body)
	}
	d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
		return d.Driver.Replace(context.WithoutCancel(ctx), key, body, old)
	}
	d.remove = func(ctx context.Context, keys []string) error {
		return d.Driver.Delete(context.WithoutCancel(ctx), keys)
	}
	d.list = func(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
		return d.Driver.List(context.WithoutCancel(ctx), prefix, after)
	}
}
