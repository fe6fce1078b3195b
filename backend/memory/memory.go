// Package memory keeps a store in the memory of the process. It is the
// reference of the contract in package backend: what it does, the other drivers
// must do, as far as the contract speaks. Tests of the engine run on it, with a
// clock of their own.
//
// A Store is the store itself, as a bucket is; each Driver that Open returns is
// one handle on it. mem://name URLs with the same name share one Store for the
// life of the process (see Named and Drop). Nothing survives the process, and
// nothing fails except by the rules of the contract: package faults adds the
// faults.
package memory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/swampd/swampd/backend"
)

func init() { backend.Register("mem", open) }

// Options changes how a Store behaves. Nil and the zero value mean: the
// machine's clock, answers with a Date.
type Options struct {
	// Now is the store's clock; nil means time.Now. It must be safe for
	// concurrent use and must not use the store.
	Now func() time.Time
	// NoDate leaves Info.Date and the Date of errors empty, as a directory does.
	NoDate bool
	// ContentVersions derives versions from the content, as the ETags of S3 are:
	// the same bytes have the same version again.
	ContentVersions bool
}

// Store is one store. Its methods are safe for concurrent use.
type Store struct {
	opts Options // Now is set
	url  string

	mu      sync.RWMutex
	objects map[string]*object
	keys    keySet // the keys of objects, sorted
	last    uint64 // the newest version that was given out, to any key
}

// object is one content of one key; it never changes.
type object struct {
	data     []byte
	version  backend.Version
	modified time.Time
}

// New makes an empty store that no URL names.
func New(opts *Options) *Store { return newStore("mem://", opts) }

func newStore(url string, opts *Options) *Store {
	s := &Store{url: url, objects: map[string]*object{}}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	return s
}

// Open returns one more handle on the store.
func (s *Store) Open() *Driver { return &Driver{s: s} }

// Bucket returns one more handle on the store, with the portable part around it.
func (s *Store) Bucket() *backend.Bucket { return backend.NewBucket(s.Open(), s.url) }

var named struct {
	sync.Mutex
	m map[string]*Store
}

// Named returns the store that mem://name names in this process, and makes it,
// empty and with opts, if there is none. The options of a store that is there
// already stay what they are.
func Named(name string, opts *Options) *Store {
	named.Lock()
	defer named.Unlock()
	s := named.m[name]
	if s == nil {
		if named.m == nil {
			named.m = map[string]*Store{}
		}
		s = newStore("mem://"+name, opts)
		named.m[name] = s
	}
	return s
}

// Drop forgets the store that mem://name names: the next Named or Open of that
// name begins with an empty one. Handles that are open keep the old one.
func Drop(name string) {
	named.Lock()
	defer named.Unlock()
	delete(named.m, name)
}

func open(_ context.Context, u *url.URL) (backend.Driver, error) {
	if u.User != nil || u.RawQuery != "" {
		return nil, errors.New("a mem:// address is mem://name alone, with no user and no query")
	}
	return Named(u.Host+strings.TrimSuffix(u.Path, "/"), nil).Open(), nil
}

// Len returns how many objects the store holds.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.objects)
}

// Clone returns a store with the same objects, versions and clock that from now
// on goes its own way: what a crash at this moment would have left.
func (s *Store) Clone() *Store {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := newStore(s.url, &s.opts)
	c.objects = make(map[string]*object, len(s.objects))
	for k, o := range s.objects {
		c.objects[k] = o
	}
	c.keys = s.keys.clone()
	c.last = s.last
	return c
}

// Tamper changes an object behind the contract's back, for tests of damaged
// stores: edit gets a copy of the content, nil for a key that holds nothing,
// and returns what the key is to hold; nil removes it. The object gets a new
// version; its time stays.
func (s *Store) Tamper(key string, edit func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Now()
	old := s.objects[key]
	var was []byte
	if old != nil {
		was = append([]byte{}, old.data...)
		now = old.modified
	}
	data := edit(was)
	if data == nil {
		s.removeLocked(key)
		return
	}
	s.putLocked(key, bytes.Clone(data), now)
}

func (s *Store) putLocked(key string, data []byte, now time.Time) *object {
	s.last++
	version := strconv.FormatUint(s.last, 10)
	if s.opts.ContentVersions {
		version = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	o := &object{data: data, version: backend.Version(version), modified: now}
	if s.objects[key] == nil {
		s.keys.add(key)
	}
	s.objects[key] = o
	return o
}

func (s *Store) removeLocked(key string) {
	if s.objects[key] != nil {
		delete(s.objects, key)
		s.keys.remove(key)
	}
}

func (s *Store) lookup(key string) *object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.objects[key]
}

func (s *Store) info(o *object, now time.Time) backend.Info {
	return backend.Info{
		Size:     int64(len(o.data)),
		Version:  o.version,
		Modified: o.modified,
		Now:      now,
		Date:     s.date(now),
	}
}

func (s *Store) date(now time.Time) time.Time {
	if s.opts.NoDate {
		return time.Time{}
	}
	return now
}

// Driver is one handle on a Store. It implements backend.Driver.
type Driver struct {
	s      *Store
	closed atomic.Bool
}

var _ backend.Driver = (*Driver)(nil)

func (d *Driver) enter(ctx context.Context) error {
	if d.closed.Load() {
		return backend.ErrClosed
	}
	return ctx.Err()
}

// Get is backend.Driver.Get.
func (d *Driver) Get(ctx context.Context, key string, opts backend.GetOptions) (*backend.Object, error) {
	if err := d.enter(ctx); err != nil {
		return nil, err
	}
	o, now := d.s.lookup(key), d.s.opts.Now()
	if opts.IfVersion != "" && (o == nil || o.version != opts.IfVersion) {
		return nil, backend.WithDate(backend.ErrChanged, d.s.date(now))
	}
	if o == nil {
		return nil, backend.WithDate(backend.ErrNotFound, d.s.date(now))
	}
	from, to := span(int64(len(o.data)), opts)
	return &backend.Object{
		Body:   &reader{ctx: ctx, rest: o.data[from:to]},
		Offset: from,
		Length: to - from,
		Info:   d.s.info(o, now),
	}, nil
}

// span resolves a range against the size of the object.
func span(size int64, opts backend.GetOptions) (from, to int64) {
	from = opts.Offset
	if from < 0 {
		from = max(0, size+from)
	}
	from = min(from, size)
	to = size
	if opts.Length > 0 && opts.Length < size-from {
		to = from + opts.Length
	}
	return from, to
}

// reader delivers a part of an object. As with a real store, a context that
// ends while the body is read ends the body.
type reader struct {
	ctx    context.Context
	rest   []byte
	closed bool
}

func (r *reader) Read(p []byte) (int, error) {
	if r.closed {
		return 0, errors.New("read of a closed body")
	}
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *reader) Close() error {
	r.closed, r.rest = true, nil
	return nil
}

// Create is backend.Driver.Create.
func (d *Driver) Create(ctx context.Context, key string, body backend.Body) (backend.Info, error) {
	return d.put(ctx, key, body, func(o *object) error {
		if o != nil {
			return backend.ErrExists
		}
		return nil
	})
}

// Replace is backend.Driver.Replace.
func (d *Driver) Replace(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
	return d.put(ctx, key, body, func(o *object) error {
		if o == nil || o.version != old {
			return backend.ErrChanged
		}
		return nil
	})
}

// put stores body at key if the condition allows it for what the key holds.
func (d *Driver) put(ctx context.Context, key string, body backend.Body, condition func(*object) error) (backend.Info, error) {
	if err := d.enter(ctx); err != nil {
		return backend.Info{}, err
	}
	data, err := content(ctx, body)
	if err != nil {
		return backend.Info{}, err
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if err := d.enter(ctx); err != nil {
		return backend.Info{}, err
	}
	now := d.s.opts.Now()
	if err := condition(d.s.objects[key]); err != nil {
		return backend.Info{}, backend.WithDate(err, d.s.date(now))
	}
	return d.s.info(d.s.putLocked(key, data, now), now), nil
}

// content reads a body into memory and checks that it is what was promised.
func content(ctx context.Context, body backend.Body) ([]byte, error) {
	r, err := body.Open()
	if err != nil {
		return nil, fmt.Errorf("opening the content: %w", err)
	}
	defer r.Close()
	var buf bytes.Buffer
	buf.Grow(int(min(max(body.Size, 0), 64<<20)) + bytes.MinRead)
	// One byte more than promised, to see a content that is too long.
	if _, err := buf.ReadFrom(io.LimitReader(stopper{ctx, r}, max(body.Size, 0)+1)); err != nil {
		return nil, fmt.Errorf("reading the content: %w", err)
	}
	if int64(buf.Len()) != body.Size {
		long := ""
		if int64(buf.Len()) > body.Size {
			long = " or more"
		}
		return nil, fmt.Errorf("%w: %d bytes%s instead of %d", backend.ErrBadContent, buf.Len(), long, body.Size)
	}
	if sum := sha256.Sum256(buf.Bytes()); body.HasSHA256 && sum != body.SHA256 {
		return nil, fmt.Errorf("%w: sha256 %x instead of %x", backend.ErrBadContent, sum, body.SHA256)
	}
	if buf.Available() > buf.Len()/8 {
		return bytes.Clone(buf.Bytes()), nil
	}
	return buf.Bytes(), nil
}

// stopper ends a read when the context ends.
type stopper struct {
	ctx context.Context
	r   io.Reader
}

func (s stopper) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

// Delete is backend.Driver.Delete. It removes all keys in one step.
func (d *Driver) Delete(ctx context.Context, keys []string) error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	if err := d.enter(ctx); err != nil {
		return err
	}
	for _, k := range keys {
		d.s.removeLocked(k)
	}
	return nil
}

// pageSize is how many objects of a listing are read under one lock, as a store
// answers in pages: what happens between two pages may or may not show.
const pageSize = 1000

// List is backend.Driver.List.
func (d *Driver) List(ctx context.Context, prefix, after string) iter.Seq2[backend.Entry, error] {
	return func(yield func(backend.Entry, error) bool) {
		after := after
		for {
			if err := d.enter(ctx); err != nil {
				yield(backend.Entry{}, err)
				return
			}
			page := d.s.page(prefix, after)
			for _, e := range page {
				if !yield(e, nil) {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
			after = page[len(page)-1].Key
		}
	}
}

func (s *Store) page(prefix, after string) []backend.Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var page []backend.Entry
	s.keys.ascend(prefix, after, func(key string) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		o := s.objects[key]
		page = append(page, backend.Entry{Key: key, Size: int64(len(o.data)), Modified: o.modified})
		return len(page) < pageSize
	})
	return page
}

// CleanUploads is backend.Driver.CleanUploads. There is never anything to
// clean: an upload that fails leaves nothing.
func (d *Driver) CleanUploads(ctx context.Context, _ time.Duration) (int, error) {
	return 0, d.enter(ctx)
}

// Close is backend.Driver.Close. The store and its other handles stay.
func (d *Driver) Close() error {
	d.closed.Store(true)
	return nil
}
