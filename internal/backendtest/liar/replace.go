package liar

import (
	"context"
	"errors"
	"sync"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

// Liars about replacing and deleting.
var replaceLiars = []Liar{
	{
		Name:   "a cancelled replace is done and called cancelled",
		Breaks: []string{"Replace/a context cancelled while the content is read leaves the old or the new"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
				info, err := d.Driver.Replace(ctx, key, body, old)
				if errors.Is(err, context.Canceled) {
					data, _ := content(body)
					s.Tamper(key, func([]byte) []byte { return data })
				}
				return info, err
			}
		}),
	},
	{
		Name:   "replace tells the old version",
		Breaks: []string{"Replace/puts new bytes under a new version"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
				info, err := d.Driver.Replace(ctx, key, body, old)
				if err == nil {
					info.Version = old
				}
				return info, err
			}
		}),
	},
	{
		Name: "replace ignores the version",
		Breaks: []string{
			"Replace/a stale version is ErrChanged and changes nothing", "Replace/the version of another key is ErrChanged and changes nothing",
			"ReplaceRace/one winner for each version", "ReplaceRace/one winner with bodies over 64 KiB",
			"ReplaceRace/a counter loses no increment", "Model/random calls agree with a map",
		},
		fresh: func() spoil {
			var g gap
			return func(s *memory.Store, d *driver) {
				d.replace = func(ctx context.Context, key string, body backend.Body, _ backend.Version) (backend.Info, error) {
					defer g.enter()()
					data, err := checked(body)
					if err != nil {
						return backend.Info{}, err
					}
					if _, _, there := d.holds(ctx, key); !there {
						return backend.Info{}, backend.ErrChanged
					}
					g.linger()
					return d.overwrite(ctx, s, key, data)
				}
			}
		},
	},
	{
		Name:   "replace takes the version of any object",
		Breaks: []string{"Replace/the version of another key is ErrChanged and changes nothing"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
				_, mine, _ := d.holds(ctx, key)
				for e, err := range d.Driver.List(ctx, "", "") {
					if err != nil {
						return backend.Info{}, err
					}
					if _, v, _ := d.holds(ctx, e.Key); v == old && mine != "" {
						old = mine
						break
					}
				}
				return d.Driver.Replace(ctx, key, body, old)
			}
		}),
	},
	{
		Name:   "replace makes what is missing",
		Breaks: []string{"Replace/a missing key is ErrChanged and makes nothing"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
				if _, _, there := d.holds(ctx, key); !there {
					return d.Driver.Create(ctx, key, body)
				}
				return d.Driver.Replace(ctx, key, body, old)
			}
		}),
	},
	{
		Name: "replace looks and then writes",
		Breaks: []string{
			"ReplaceRace/one winner for each version", "ReplaceRace/one winner with bodies over 64 KiB", "ReplaceRace/a counter loses no increment",
		},
		fresh: func() spoil {
			var g gap
			return func(s *memory.Store, d *driver) {
				d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
					defer g.enter()()
					data, err := checked(body)
					if err != nil {
						return backend.Info{}, err
					}
					if _, v, _ := d.holds(ctx, key); v != old {
						return backend.Info{}, backend.ErrChanged
					}
					g.linger()
					return d.overwrite(ctx, s, key, data)
				}
			}
		},
	},
	{
		Name:   "replace says done and does nothing",
		Breaks: []string{"Replace/puts new bytes under a new version", "ReplaceRace/create and delete against replace"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
				return d.info(ctx, key)
			}
		}),
	},
	{
		Name:   "a replaced record shows while it is written",
		Breaks: []string{"ReplaceRace/readers see whole records and never an older one"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
				data, err := checked(body)
				if err != nil {
					return backend.Info{}, err
				}
				if _, v, _ := d.holds(ctx, key); v != old {
					return backend.Info{}, backend.ErrChanged
				}
				s.Tamper(key, func([]byte) []byte { return append([]byte{}, data[:len(data)/2]...) })
				dawdle()
				return d.overwrite(ctx, s, key, data)
			}
		}),
	},
	{
		Name:   "versions repeat with the content",
		Breaks: []string{"Replace/a version never comes back"},
		opts:   &memory.Options{ContentVersions: true},
		fresh:  plain(func(*memory.Store, *driver) {}),
	},
	{
		Name:   "a record can be replaced 64 times",
		Breaks: []string{"Replace/many times in a row"},
		fresh: func() spoil {
			var mu sync.Mutex
			times := map[string]int{}
			return func(_ *memory.Store, d *driver) {
				d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
					mu.Lock()
					times[key]++
					n := times[key]
					mu.Unlock()
					if n > 64 {
						return backend.Info{}, backend.ErrFull
					}
					return d.Driver.Replace(ctx, key, body, old)
				}
			}
		},
	},
	{
		Name:   "only the first 500 keys are deleted",
		Breaks: []string{"Delete/removes many keys, missing ones included"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.remove = func(ctx context.Context, keys []string) error {
				return d.Driver.Delete(ctx, keys[:min(500, len(keys))])
			}
		}),
	},
	{
		Name:   "deleting a missing key is an error",
		Breaks: []string{"Delete/a missing key is no error", "Delete/removes many keys, missing ones included"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.remove = func(ctx context.Context, keys []string) error {
				for _, k := range keys {
					if _, _, there := d.holds(ctx, k); !there {
						return backend.ErrNotFound
					}
				}
				return d.Driver.Delete(ctx, keys)
			}
		}),
	},
	{
		Name:   "delete takes what begins alike",
		Breaks: []string{"Delete/leaves neighbours alone"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.remove = func(ctx context.Context, keys []string) error {
				for _, k := range keys {
					for e, err := range d.Driver.List(ctx, k, "") {
						if err != nil {
							return err
						}
						if err := d.Driver.Delete(ctx, []string{e.Key}); err != nil {
							return err
						}
					}
				}
				return nil
			}
		}),
	},
	{
		Name:   "delete says done and does nothing",
		Breaks: []string{"Delete/both handles see it at once", "Delete/the key can be created again"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.remove = func(context.Context, []string) error { return nil }
		}),
	},
}
