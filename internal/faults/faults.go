// Package faults is a backend.Driver that stands before another one, counts and
// records what is asked of it, and makes chosen calls go wrong: failed, done but
// the answer lost, done late, held, hanging, with truncated or damaged bodies.
//
//	store := memory.New(nil)
//	f := faults.Wrap(store.Open())
//	lost := f.Add(faults.Rule{Ops: faults.Create, Prefix: "commits/", Nth: 2, Do: faults.Lose()})
//	… work on f.Bucket() …
//	if lost.Fired() != 1 { … }
//
// Rules are counted in the order in which calls are made; nothing depends on
// time or chance. A process that dies after its nth call is one rule:
// Rule{Nth: n+1, Times: Always, Do: Fail(backend.ErrUnknown)}. Sweep runs a
// scenario with the fault at the first call, the second, and so on.
//
// One call of a Driver is counted as one request; a listing that a real store
// answers in pages, and a delete that it takes in batches, count once.
package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/swampd/swampd/backend"
)

// Driver wraps another Driver. Its methods are safe for concurrent use.
type Driver struct {
	drv backend.Driver

	mu     sync.Mutex
	faults []*Fault
	calls  []*Call
}

var _ backend.Driver = (*Driver)(nil)

// Wrap puts a Driver with no rules yet before drv.
func Wrap(drv backend.Driver) *Driver { return &Driver{drv: drv} }

// Bucket returns the portable part around the driver.
func (d *Driver) Bucket() *backend.Bucket { return backend.NewBucket(d, "faults://") }

// Add puts a rule to work, for calls that begin from now on. Of several rules
// that are due for one call, the one that was added first strikes; the others
// count it all the same.
func (d *Driver) Add(r Rule) *Fault {
	if r.Do.kind == 0 {
		panic("faults: the rule has no action")
	}
	if r.Ops != Any && r.Ops&r.Do.ops == 0 {
		panic(fmt.Sprintf("faults: %q means nothing for %v", r.Do, r.Ops))
	}
	f := &Fault{rule: r, reached: make(chan struct{}), free: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, f)
	return f
}

// Clear removes all rules and releases what they hold. Late calls are carried
// out; their outcome is not told.
func (d *Driver) Clear() {
	d.mu.Lock()
	all := d.faults
	d.faults = nil
	d.mu.Unlock()
	for _, f := range all {
		f.Remove()
		_ = f.Release() // the refusals of late calls are theirs
	}
}

// begin records a call and finds the fault that strikes it.
func (d *Driver) begin(c *Call) *Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, c)
	var hit *Fault
	for _, f := range d.faults {
		if f.strike(c.Op, c.Keys, hit != nil) {
			hit = f
			c.Fault = f.rule.Do.name
		}
	}
	return hit
}

// end notes the outcome that the caller is told.
func (d *Driver) end(c *Call, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.Err, c.done = err, true
	return err
}

// simple runs a call that has no body to deliver.
func (d *Driver) simple(ctx context.Context, c *Call, do func(context.Context) error) error {
	f := d.begin(c)
	if f == nil {
		return d.end(c, do(ctx))
	}
	later, err := f.wait(ctx, c.Op)
	if err != nil {
		return d.end(c, err)
	}
	return d.end(c, f.answer(ctx, c.Op, do(later)))
}

// Get is backend.Driver.Get with faults.
func (d *Driver) Get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	c := &Call{Op: Get, Keys: []string{key}, Get: opts}
	f := d.begin(c)
	body := &body{ctx: ctx, d: d, c: c}
	if f != nil {
		later, err := f.wait(ctx, Get)
		if err != nil {
			return nil, d.end(c, err)
		}
		body.f, ctx = f, later
	}
	obj, err := d.drv.Get(ctx, key, opts)
	if f != nil {
		real := err
		if err = f.answer(body.ctx, Get, real); err != nil && real == nil {
			_ = obj.Body.Close() // the answer does not reach the caller
		}
	}
	if err != nil {
		return nil, d.end(c, err)
	}
	body.rc, body.length = obj.Body, obj.Length
	answer := *obj
	answer.Body = body
	return &answer, d.end(c, nil)
}

// Create is backend.Driver.Create with faults.
func (d *Driver) Create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	c := &Call{Op: Create, Keys: []string{key}, Bytes: body.Size}
	return d.put(ctx, c, body, func(ctx context.Context, body backend.Body) (backend.Info, error) {
		return d.drv.Create(ctx, key, body)
	})
}

// Replace is backend.Driver.Replace with faults.
func (d *Driver) Replace(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
	c := &Call{Op: Replace, Keys: []string{key}, Bytes: body.Size}
	return d.put(ctx, c, body, func(ctx context.Context, body backend.Body) (backend.Info, error) {
		return d.drv.Replace(ctx, key, body, old)
	})
}

func (d *Driver) put(ctx context.Context, c *Call, body backend.Body, do func(context.Context, backend.Body) (backend.Info, error)) (backend.Info, error) {
	f := d.begin(c)
	if f == nil {
		info, err := do(ctx, body)
		return info, d.end(c, err)
	}
	if f.rule.Do.kind == late {
		sent, err := keep(body)
		if err != nil {
			return backend.Info{}, d.end(c, err)
		}
		return backend.Info{}, d.end(c, f.postpone(func() error {
			_, err := do(context.WithoutCancel(ctx), sent)
			return err
		}))
	}
	later, err := f.wait(ctx, c.Op)
	if err != nil {
		return backend.Info{}, d.end(c, err)
	}
	info, err := do(later, body)
	if err = f.answer(ctx, c.Op, err); err != nil {
		info = backend.Info{}
	}
	return info, d.end(c, err)
}

// keep reads a body now, for a call that is carried out later.
func keep(body backend.Body) (backend.Body, error) {
	r, err := body.Open()
	if err != nil {
		return body, fmt.Errorf("opening the content: %w", err)
	}
	data, err := io.ReadAll(r)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return body, fmt.Errorf("reading the content: %w", err)
	}
	body.Open = func() (io.ReadSeekCloser, error) { return kept{bytes.NewReader(data)}, nil }
	return body, nil
}

type kept struct{ *bytes.Reader }

func (kept) Close() error { return nil }

// Delete is backend.Driver.Delete with faults.
func (d *Driver) Delete(ctx context.Context, keys []string) error {
	c := &Call{Op: Delete, Keys: slices.Clone(keys)}
	f := d.begin(c)
	if f == nil {
		return d.end(c, d.drv.Delete(ctx, keys))
	}
	switch a := f.rule.Do; a.kind {
	case late:
		return d.end(c, f.postpone(func() error { return d.drv.Delete(context.WithoutCancel(ctx), c.Keys) }))
	case partial:
		n := min(int(a.n), len(keys))
		if n > 0 {
			if err := d.drv.Delete(ctx, keys[:n]); err != nil {
				return d.end(c, err)
			}
		}
		f.reach()
		return d.end(c, &backend.RemainError{Keys: keys[n:], Of: len(keys), Err: a.err})
	}
	later, err := f.wait(ctx, Delete)
	if err != nil {
		return d.end(c, err)
	}
	return d.end(c, f.answer(ctx, Delete, d.drv.Delete(later, keys)))
}

// List is backend.Driver.List with faults. It is a call when it is ranged over.
func (d *Driver) List(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
	return func(yield func(backend.Entry, error) bool) {
		c := &Call{Op: List, Keys: []string{prefix}, After: after}
		f := d.begin(c)
		limit := int64(-1)
		if f != nil {
			later, err := f.wait(ctx, List)
			if err != nil {
				yield(backend.Entry{}, d.end(c, err))
				return
			}
			ctx = later
			if f.rule.Do.kind == partial {
				limit = f.rule.Do.n
			}
		}
		end := func(err error) {
			if f != nil {
				err = f.answer(ctx, List, err)
			}
			if d.end(c, err) != nil {
				yield(backend.Entry{}, err)
			}
		}
		n := int64(0)
		for e, err := range d.drv.List(ctx, prefix, after) {
			if n == limit {
				break
			}
			if err != nil {
				end(err)
				return
			}
			n++
			d.note(func() { c.Entries++ })
			if !yield(e, nil) {
				d.note(func() { c.done = true })
				return
			}
		}
		if limit >= 0 {
			f.reach()
			yield(backend.Entry{}, d.end(c, f.rule.Do.err))
			return
		}
		end(nil)
	}
}

func (d *Driver) note(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// CleanUploads is backend.Driver.CleanUploads with faults.
func (d *Driver) CleanUploads(ctx context.Context, age time.Duration) (n int, err error) {
	err = d.simple(ctx, &Call{Op: Clean, Keys: []string{""}}, func(ctx context.Context) error {
		n, err = d.drv.CleanUploads(ctx, age)
		return err
	})
	if err != nil {
		n = 0
	}
	return n, err
}

// Close closes the driver behind. No rule strikes it, and it is not recorded.
func (d *Driver) Close() error { return d.drv.Close() }

// body is the body of a Get: it counts what is delivered, and spoils it.
type body struct {
	ctx    context.Context
	d      *Driver
	c      *Call
	f      *Fault // nil: nothing strikes
	rc     io.ReadCloser
	length int64
	at     int64
}

func (b *body) Read(p []byte) (int, error) {
	if b.f != nil {
		switch a := b.f.rule.Do; a.kind {
		case cutBody:
			if b.at >= min(a.n, b.length) {
				b.f.reach()
				return 0, a.err
			}
			p = p[:min(int64(len(p)), a.n-b.at)]
		case blockBody:
			if b.at >= min(a.n, b.length) {
				if err := b.f.hold(b.ctx); err != nil {
					return 0, err
				}
			} else {
				p = p[:min(int64(len(p)), a.n-b.at)]
			}
		}
	}
	n, err := b.rc.Read(p)
	if b.f != nil && b.f.rule.Do.kind == flipBody && b.length > 0 {
		if at := b.f.rule.Do.n%b.length - b.at; at >= 0 && at < int64(n) {
			p[at] ^= 1
			b.f.reach()
		}
	}
	b.at += int64(n)
	b.d.note(func() { b.c.Bytes += int64(n) })
	return n, err
}

func (b *body) Close() error { return b.rc.Close() }
