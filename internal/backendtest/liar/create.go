package liar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"sync"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

// part is where these stores begin to upload in parts.
const part = 5 << 20

// Liars about the condition of a create.
var createLiars = []Liar{
	{
		Name: "create overwrites",
		Breaks: []string{
			"Create/an existing key is ErrExists and stays", "Create/an existing empty object is ErrExists",
			"CreateRace/one winner with small bodies", "CreateRace/the same bytes win once", "Model/random calls agree with a map",
		},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				data, err := checked(body)
				if err != nil {
					return backend.Info{}, err
				}
				return d.overwrite(ctx, s, key, data)
			}
		}),
	},
	{
		Name:   "create answers ErrExists and overwrites",
		Breaks: []string{"Create/an existing key is ErrExists and stays"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if data, cerr := checked(body); cerr == nil && errors.Is(err, backend.ErrExists) {
					s.Tamper(key, func([]byte) []byte { return append([]byte{}, data...) })
				}
				return info, err
			}
		}),
	},
	{
		Name:   "create says ErrExists where nothing is",
		Breaks: []string{"Create/makes exactly these bytes"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(context.Context, string, backend.Body) (backend.Info, error) {
				return backend.Info{}, backend.ErrExists
			}
		}),
	},
	{
		Name:   "create says ErrExists and makes it",
		Breaks: []string{"Create/makes exactly these bytes", "CreateRace/one winner with small bodies"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				if _, err := d.Driver.Create(ctx, key, body); err != nil {
					return backend.Info{}, err
				}
				return backend.Info{}, backend.ErrExists
			}
		}),
	},
	{
		Name:   "create says done and makes nothing",
		Breaks: []string{"Create/makes exactly these bytes"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(_ context.Context, _ string, body backend.Body) (backend.Info, error) {
				return backend.Info{Size: body.Size, Version: "made"}, nil
			}
		}),
	},
	{
		Name:   "an empty object is nothing",
		Breaks: []string{"Create/an existing empty object is ErrExists"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				if data, _, there := d.holds(ctx, key); there && len(data) == 0 {
					if err := d.Driver.Delete(ctx, []string{key}); err != nil {
						return backend.Info{}, err
					}
				}
				return d.Driver.Create(ctx, key, body)
			}
		}),
	},
	{
		Name:   "create overwrites what was replaced",
		Breaks: []string{"Create/an existing control record is ErrExists also after a replace"},
		fresh: func() spoil {
			var replaced sync.Map
			return func(s *memory.Store, d *driver) {
				d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
					replaced.Store(key, true)
					return d.Driver.Replace(ctx, key, body, old)
				}
				d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
					data, err := checked(body)
					if _, was := replaced.Load(key); was && err == nil {
						return d.overwrite(ctx, s, key, data)
					}
					return d.Driver.Create(ctx, key, body)
				}
			}
		},
	},
	{
		Name: "create looks and then writes",
		Breaks: []string{
			"CreateRace/one winner with small bodies", "CreateRace/one winner with bodies over 64 KiB",
			"CreateRace/one winner with bodies of several parts", "CreateRace/the same bytes win once",
		},
		fresh: func() spoil {
			var g gap
			return func(s *memory.Store, d *driver) { d.create = d.lookThenWrite(s, &g) }
		},
	},
	{
		Name:   "parts are completed without a condition",
		Breaks: []string{"CreateRace/one winner with bodies of several parts", "Create/big bodies arrive whole"},
		fresh: plain(func(s *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				if body.Size < part {
					return d.Driver.Create(ctx, key, body)
				}
				data, err := checked(body)
				if err != nil {
					return backend.Info{}, err
				}
				return d.overwrite(ctx, s, key, data)
			}
		}),
	},
	{
		Name:   "create of the same bytes succeeds again",
		Breaks: []string{"CreateRace/the same bytes win once", "Create/an existing key is ErrExists and stays"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
				info, err := d.Driver.Create(ctx, key, body)
				if errors.Is(err, backend.ErrExists) {
					held, _, _ := d.holds(ctx, key)
					if data, cerr := content(body); cerr == nil && bytes.Equal(held, data) {
						return d.info(ctx, key)
					}
				}
				return info, err
			}
		}),
	},
	{
		Name: "an object shows while it is written",
		Breaks: []string{
			"CreateRace/a half-sent object is absent for readers and lists", "CreateRace/readers see nothing or all of the winner",
		},
		fresh: plain(func(s *memory.Store, d *driver) { d.create = d.writeInPlace(s) }),
	},
	{
		Name:   "deleting the last object of a directory takes what is made in it",
		Breaks: []string{"CreateRace/creates beside deletes of neighbours succeed"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.remove = func(ctx context.Context, keys []string) error {
				for _, k := range keys {
					for e, err := range d.Driver.List(ctx, path.Dir(k)+"/", "") {
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
			d.get = func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
				dawdle()
				return d.Driver.Get(ctx, key, opts)
			}
		}),
	},
	{
		Name:   "a deleted key stays taken",
		Breaks: []string{"Delete/the key can be created again"},
		fresh: func() spoil {
			var gone sync.Map
			return func(_ *memory.Store, d *driver) {
				d.remove = func(ctx context.Context, keys []string) error {
					for _, k := range keys {
						gone.Store(k, true)
					}
					return d.Driver.Delete(ctx, keys)
				}
				d.create = func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
					if _, was := gone.Load(key); was {
						return backend.Info{}, backend.ErrExists
					}
					return d.Driver.Create(ctx, key, body)
				}
			}
		},
	},
}

// lookThenWrite is a create in two steps that others can get between.
func (d *driver) lookThenWrite(s *memory.Store, g *gap) createFunc {
	return func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
		defer g.enter()()
		data, err := checked(body)
		if err != nil {
			return backend.Info{}, err
		}
		if _, _, there := d.holds(ctx, key); there {
			return backend.Info{}, backend.ErrExists
		}
		g.linger()
		return d.overwrite(ctx, s, key, data)
	}
}

// writeInPlace is a create whose object is there from the first byte on. Only
// one writer gets at a key.
func (d *driver) writeInPlace(s *memory.Store) createFunc {
	return func(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
		empty := backend.Bytes(nil)
		if body.Size < 1000 {
			return d.Driver.Create(ctx, key, body)
		}
		if _, err := d.Driver.Create(ctx, key, empty); err != nil {
			return backend.Info{}, err
		}
		r, err := body.Open()
		if err != nil {
			return backend.Info{}, err
		}
		defer r.Close()
		half := make([]byte, body.Size/2)
		if _, err := io.ReadFull(r, half); err != nil {
			return backend.Info{}, err
		}
		s.Tamper(key, func([]byte) []byte { return half })
		rest, err := io.ReadAll(r)
		if err != nil {
			return backend.Info{}, err
		}
		dawdle()
		return d.overwrite(ctx, s, key, append(half, rest...))
	}
}
