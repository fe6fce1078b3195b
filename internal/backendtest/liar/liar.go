// Package liar holds stores that break one rule of the driver contract each.
// They are the tests of the tests: the conformance suite and the capability
// probe must catch them. Behind each is the in-memory store, so whatever else
// they do is right.
package liar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

// Liar is one kind of broken store.
type Liar struct {
	// Name says what it does wrong.
	Name string
	// Breaks are the subtests of the conformance suite, as Group/name, that must
	// fail on it. Others may.
	Breaks []string

	// opts are those of the store behind; fresh returns, for one store, what is
	// done to each handle on it.
	opts  *memory.Options
	fresh func() spoil
}

// spoil changes one handle on the store s.
type spoil func(s *memory.Store, d *driver)

// New makes a store and returns how to open handles on it.
func (l Liar) New() (open func() *backend.Bucket) {
	s, spoil := memory.New(l.opts), l.fresh()
	return func() *backend.Bucket {
		d := &driver{Driver: s.Open()}
		spoil(s, d)
		return backend.NewBucket(d, "liar://")
	}
}

// All returns all liars.
func All() []Liar {
	var all []Liar
	for _, l := range [][]Liar{readLiars, createLiars, writeLiars, replaceLiars, listLiars, otherLiars} {
		all = append(all, l...)
	}
	return all
}

// Honest breaks nothing: what is caught on it is caught wrongly.
var Honest = Liar{Name: "honest", fresh: plain(func(*memory.Store, *driver) {})}

// Named returns the liar of that name; there must be one.
func Named(name string) Liar {
	if name == Honest.Name {
		return Honest
	}
	for _, l := range All() {
		if l.Name == name {
			return l
		}
	}
	panic("no liar named " + name)
}

// plain is for lies that keep no state.
func plain(s spoil) func() spoil { return func() spoil { return s } }

type (
	getFunc     func(context.Context, string, backend.GetOptions) (*backend.Object, error)
	createFunc  func(context.Context, string, backend.Body) (backend.Info, error)
	replaceFunc func(context.Context, string, backend.Body, backend.Version) (backend.Info, error)
)

// driver passes on what is not overridden.
type driver struct {
	backend.Driver
	get     getFunc
	create  createFunc
	replace replaceFunc
	remove  func(context.Context, []string) error
	list    func(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error]
	clean   func(context.Context, time.Duration) (int, error)
	close   func() error
}

func (d *driver) Get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	if d.get != nil {
		return d.get(ctx, key, opts)
	}
	return d.Driver.Get(ctx, key, opts)
}

func (d *driver) Create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	if d.create != nil {
		return d.create(ctx, key, body)
	}
	return d.Driver.Create(ctx, key, body)
}

func (d *driver) Replace(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
	if d.replace != nil {
		return d.replace(ctx, key, body, old)
	}
	return d.Driver.Replace(ctx, key, body, old)
}

func (d *driver) Delete(ctx context.Context, keys []string) error {
	if d.remove != nil {
		return d.remove(ctx, keys)
	}
	return d.Driver.Delete(ctx, keys)
}

func (d *driver) List(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
	if d.list != nil {
		return d.list(ctx, prefix, after)
	}
	return d.Driver.List(ctx, prefix, after)
}

func (d *driver) CleanUploads(ctx context.Context, age time.Duration) (int, error) {
	if d.clean != nil {
		return d.clean(ctx, age)
	}
	return d.Driver.CleanUploads(ctx, age)
}

func (d *driver) Close() error {
	if d.close != nil {
		return d.close()
	}
	return d.Driver.Close()
}

// content reads a body without looking at what it promised.
func content(body backend.Body) ([]byte, error) {
	r, err := body.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// checked reads a body and checks it, so that only the lie is wrong.
func checked(body backend.Body) ([]byte, error) {
	data, err := content(body)
	if err != nil {
		return nil, err
	}
	if honest := backend.Bytes(data); honest.Size != body.Size || body.HasSHA256 && honest.SHA256 != body.SHA256 {
		return nil, backend.ErrBadContent
	}
	return data, nil
}

// overwrite puts data at key whatever it holds.
func (d *driver) overwrite(ctx context.Context, s *memory.Store, key string, data []byte) (backend.Info, error) {
	s.Tamper(key, func([]byte) []byte { return append([]byte{}, data...) })
	return d.info(ctx, key)
}

func (d *driver) info(ctx context.Context, key string) (backend.Info, error) {
	obj, err := d.Driver.Get(ctx, key, backend.GetOptions{})
	if err != nil {
		return backend.Info{}, err
	}
	return obj.Info, obj.Body.Close()
}

// holds says what a key holds, or that it holds nothing.
func (d *driver) holds(ctx context.Context, key string) (data []byte, v backend.Version, there bool) {
	obj, err := d.Driver.Get(ctx, key, backend.GetOptions{})
	if err != nil {
		return nil, "", false
	}
	defer obj.Body.Close()
	data, err = io.ReadAll(obj.Body)
	return data, obj.Version, err == nil
}

// dawdle lets others overtake.
func dawdle() {
	for range 200 {
		runtime.Gosched()
	}
}

// gap is the place between a check and what rests on it.
type gap struct{ calls, came atomic.Int32 }

// enter is called when a call begins, what it returns when it ends.
func (g *gap) enter() (leave func()) {
	g.calls.Add(1)
	return func() { g.calls.Add(-1) }
}

// linger waits in the gap until another call comes there, or none can.
func (g *gap) linger() {
	me := g.came.Add(1)
	for i := 0; i < 20_000 || g.calls.Load() > 1; i++ {
		if g.came.Load() != me {
			return
		}
		runtime.Gosched()
	}
}

// edit returns a get that changes the answers of the store.
func edit(d *driver, change func(key string, o *backend.Object)) getFunc {
	return func(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
		o, err := d.Driver.Get(ctx, key, opts)
		if err == nil {
			change(key, o)
		}
		return o, err
	}
}

// text is a body without a store.
func text(data []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(data)) }

var errBroken = errors.New("the store is broken")
