package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/swampd/swampd/internal/format"
)

// prepare makes a batch ready to land: everything that it names is in the
// store, and its changes are encoded. It can be called again after revive, or
// after an error.
func (st *staging) prepare(ctx context.Context, cs *changeSet, p *prepared) error {
	contents, err := st.sealOrInline()
	if err != nil {
		return err
	}
	p.contents = contents
	// Names and checksums are known since the packs were sealed, so the changes
	// are encoded while the last of them are on their way.
	if err := st.encode(ctx, cs, p); err != nil {
		return err
	}
	return st.settle(ctx)
}

// sealOrInline completes the last pack, or, if all small contents together fit
// into the record, returns them as its inline contents (I3).
func (st *staging) sealOrInline() ([]byte, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		st.retry()
	}
	if st.pack == nil {
		return nil, nil
	}
	if buf, ok := st.pack.inMemory(); ok && st.packed == 1 && len(buf) <= format.MaxInline && !st.objects[st.pack.index].ready {
		return buf, nil
	}
	return nil, st.seal(st.pack)
}

// retry starts the uploads again that failed before. Under st.mu.
func (st *staging) retry() {
	st.err = nil
	for i, o := range st.objects {
		if o.needed && o.ready {
			st.need(i)
		}
	}
}

// encode puts the changes into the prepared entry: in the record if they are
// short, else in change lists, which are sent as data objects of their own.
func (st *staging) encode(ctx context.Context, cs *changeSet, p *prepared) error {
	e := &encoder{st: st, p: p, digest: format.NewDigester(p.message), used: map[string]bool{}}
	e.slots = make(chan struct{}, st.s.opts.Uploads)
	err := p.listFiles.remove()
	if err != nil {
		return err
	}
	p.objects, p.lists, p.listFiles, p.block = nil, nil, nil, format.Block{}
	inline := -1
	if p.contents != nil {
		inline = st.pack.index
	}
	err = func() error {
		for sc, err := range cs.all(ctx, st) {
			if err != nil {
				return err
			}
			if err := e.add(ctx, sc, inline); err != nil {
				return err
			}
		}
		return e.finish(ctx)
	}()
	e.jobs.Wait()
	if err := errors.Join(err, e.err); err != nil {
		return err
	}
	p.digest = e.digest.Sum()
	if len(p.lists) > format.MaxLists {
		return fmt.Errorf("the commit is too large: its changes fill %d lists, at most %d are possible; split it", len(p.lists), format.MaxLists)
	}
	return nil
}

// encoder turns changes into a block or into lists.
type encoder struct {
	st     *staging
	p      *prepared
	w      format.BlockWriter
	digest *format.Digester
	used   map[string]bool

	slots chan struct{}
	jobs  sync.WaitGroup
	mu    sync.Mutex
	err   error
}

func (e *encoder) add(ctx context.Context, sc *staged, inline int) error {
	c := sc.change // a copy: its place is rewritten
	if err := e.digest.Add(&c); err != nil {
		return err
	}
	var o *format.Object
	switch {
	case sc.dup >= 0:
		o, c.Place = &e.st.dups[sc.dup], sc.dupPlace
	case c.Place.Object != format.Inline && c.Place.Object != inline:
		o = &e.st.objects[c.Place.Object].meta
	}
	if o != nil && !e.used[o.Name] {
		e.used[o.Name] = true
		e.p.objects = append(e.p.objects, *o)
	}
	if err := e.w.AddChange(&c, o); err != nil {
		return err
	}
	if e.w.Full() {
		return e.flush(ctx)
	}
	return nil
}

// finish decides between record and lists.
func (e *encoder) finish(ctx context.Context) error {
	if len(e.p.lists) == 0 && e.w.Size() <= format.MaxChangesHere && e.w.Items() > 0 {
		block, err := e.w.Take()
		e.p.block = block
		return err
	}
	if e.w.Items() == 0 {
		return nil
	}
	return e.flush(ctx)
}

// flush makes one change list and sends it in the background.
func (e *encoder) flush(ctx context.Context) error {
	data, items, err := e.w.Flush()
	if err != nil {
		return err
	}
	s := e.st.s
	o := &object{meta: format.Object{
		Name: format.DataKey(s.Head(), newID()), Kind: format.ObjectList, Size: int64(len(data)),
		Checksum: sha256Of(data), New: true,
	}}
	o.body = bytesBody(data, o.meta.Checksum)
	e.p.lists = append(e.p.lists, format.ListRef{Object: o.meta, Items: items})
	e.p.objects = append(e.p.objects, o.meta)
	if err := e.keep(o.meta.Name, data); err != nil {
		return fmt.Errorf("the local staging area: %w", err)
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	e.jobs.Go(func() {
		defer func() { <-e.slots }()
		if err := s.upload(ctx, o); err != nil {
			e.mu.Lock()
			e.err = errors.Join(e.err, err)
			e.mu.Unlock()
		}
	})
	return nil
}

// keep writes a list to a local file, for the accounting after the landing.
func (e *encoder) keep(name string, data []byte) error {
	if e.p.listFiles == nil {
		dir, err := e.st.s.stagingDir("lists-" + newID().String())
		if err != nil {
			return err
		}
		e.p.listFiles = &listFiles{dir: dir, file: map[string]string{}}
	}
	file := filepath.Join(e.p.listFiles.dir, fmt.Sprintf("%06d", len(e.p.listFiles.file)))
	e.p.listFiles.file[name] = file
	return os.WriteFile(file, data, 0o600)
}

// listFiles are local copies of the change lists of one record.
type listFiles struct {
	dir  string
	file map[string]string // by object name
}

func (l *listFiles) read(ref format.ListRef) (*format.Block, error) {
	data, err := os.ReadFile(l.file[ref.Object.Name])
	if err != nil {
		return nil, err
	}
	if sha256Of(data) != ref.Object.Checksum {
		return nil, fmt.Errorf("%w: the local copy of %s", ErrCorrupt, ref.Object.Name)
	}
	return format.DecodeBlock(data)
}

func (l *listFiles) remove() error {
	if l == nil {
		return nil
	}
	return os.RemoveAll(l.dir)
}

// revive gives new names to this batch's objects that a sweep declared dead,
// and sends contents itself whose shared object died (R5). The staged bytes are
// all still there.
func (st *staging) revive(ctx context.Context, cs *changeSet, dead map[string]bool) error {
	if err := st.sealReserve(); err != nil {
		return err
	}
	st.mu.Lock()
	head := st.s.Head()
	for i, o := range st.objects {
		if o.ready && dead[o.meta.Name] {
			o.meta.Name, o.sent = format.DataKey(head, newID()), false
			if o.needed {
				st.need(i)
			}
		}
	}
	st.mu.Unlock()
	var changed []*staged
	for sc, err := range cs.all(ctx, st) {
		if err != nil {
			return err
		}
		if sc.dup >= 0 && dead[st.dups[sc.dup].Name] {
			own := *sc
			own.dup = -1
			changed = append(changed, &own)
		}
	}
	for _, sc := range changed {
		if err := cs.set(ctx, sc, st); err != nil {
			return err
		}
		st.mu.Lock()
		if o := st.objects[sc.change.Place.Object]; !o.needed {
			st.need(sc.change.Place.Object)
		}
		st.mu.Unlock()
	}
	return nil
}

// sealReserve completes the reserve pack, so that it can be sent.
func (st *staging) sealReserve() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.reserve == nil {
		return nil
	}
	w := st.reserve
	if !st.objects[w.index].ready {
		if err := w.seal(st, st.objects[w.index]); err != nil {
			return err
		}
		st.objects[w.index].ready = true
	}
	st.reserve = nil
	return nil
}
