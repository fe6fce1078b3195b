package format

import (
	"errors"
	"fmt"
)

// BlockWriter puts the changes of one entry, or the moves, drops and dead names
// of one record, into blocks, without holding more than one of them. It keeps
// the table of objects itself: callers name the object of each place.
//
// While everything fits, Take gives the one Block for the record; a caller
// decides with Size. Once Full, or whenever the caller likes, Flush gives the
// object of a change list, and the next block begins.
//
// A failed Add changed nothing. The zero value is ready. It is not safe for
// concurrent use.
type BlockWriter struct {
	table   map[string]int
	objects []Object
	items   int
	parts   [5][]byte // the encoded fields 1 to 5 of the block
	// The last path and dead name, of earlier blocks too: both must rise, so
	// that none comes twice in any number of lists.
	path, dead string
}

// AddChange adds a change. Changes come in the byte order of their paths. The
// place lies in o, or inline where o is nil; Place.Object is not looked at.
func (w *BlockWriter) AddChange(c *Change, o *Object) error {
	if err := w.addChange(c, o); err != nil {
		return refused(fmt.Sprintf("change of %q", c.Path), err)
	}
	return nil
}

func (w *BlockWriter) addChange(c *Change, o *Object) error {
	if c.Path <= w.path && w.path != "" {
		return fmt.Errorf("it comes after %q: changes are added in the order of their paths, no path twice", w.path)
	}
	if err := w.room(); err != nil {
		return err
	}
	x := *c
	at, err := w.place(&x.Place, o)
	if err != nil {
		return err
	}
	if x.Op == OpDelete && o == nil {
		x.Place.Object = 0
	}
	if err := checkChange(&x, &scope{objects: w.objects, inline: MaxInline}); err != nil {
		w.forget(at)
		return err
	}
	w.keep(at)
	w.parts[1] = appendChange(w.parts[1], 2, &x, true)
	w.path = c.Path
	w.items++
	return nil
}

// AddMove adds a move to a place in o.
func (w *BlockWriter) AddMove(m *Move, o *Object) error {
	if err := w.addMove(m, o); err != nil {
		return refused(fmt.Sprintf("move of %q", m.Path), err)
	}
	return nil
}

func (w *BlockWriter) addMove(m *Move, o *Object) error {
	if err := w.room(); err != nil {
		return err
	}
	x := *m
	at, err := w.place(&x.Place, o)
	if err != nil {
		return err
	}
	if err := checkMove(&x, &scope{objects: w.objects}); err != nil {
		w.forget(at)
		return err
	}
	w.keep(at)
	w.parts[2] = appendMove(w.parts[2], 3, &x)
	w.items++
	return nil
}

// AddDrop adds a dropped version.
func (w *BlockWriter) AddDrop(v *VersionRef) error {
	err := w.room()
	if err == nil {
		err = checkVersionRef(v, versionRefFields)
	}
	if err != nil {
		return refused(fmt.Sprintf("drop of %q", v.Path), err)
	}
	w.parts[3] = appendVersionRef(w.parts[3], 4, v)
	w.items++
	return nil
}

// AddDead adds a dead name. Names come in byte order.
func (w *BlockWriter) AddDead(name string) error {
	err := w.room()
	if err == nil {
		err = checkDataName(name)
	}
	if err == nil && name <= w.dead {
		err = fmt.Errorf("it comes after %s: dead names are added in their order, none twice", w.dead)
	}
	if err != nil {
		return refused("dead name "+name, err)
	}
	w.parts[4] = appendText(w.parts[4], 5, name)
	w.dead = name
	w.items++
	return nil
}

func (w *BlockWriter) room() error {
	if w.items >= MaxListItems {
		return fmt.Errorf("the block is full, it must be flushed first: %w", ErrLimit)
	}
	return nil
}

// place sets p.Object and makes sure that o is in the table. A new object stays
// in it only after keep.
func (w *BlockWriter) place(p *Place, o *Object) (at int, err error) {
	if o == nil {
		p.Object = Inline
		return Inline, nil
	}
	at, ok := w.table[o.Name]
	if !ok {
		if err := checkObject(o); err != nil {
			return 0, err
		}
		at = len(w.objects)
		w.objects = append(w.objects, *o)
	} else if !sameObject(&w.objects[at], o) {
		return 0, fmt.Errorf("object %s was described differently before", o.Name)
	}
	p.Object = at
	return at, nil
}

func sameObject(a, b *Object) bool {
	return a.Kind == b.Kind && a.Size == b.Size && a.FooterSize == b.FooterSize && a.Checksum == b.Checksum &&
		a.New == b.New && string(a.Unknown) == string(b.Unknown)
}

// keep enters the object at the end of the table if it is new.
func (w *BlockWriter) keep(at int) {
	if at == Inline || at < len(w.table) {
		return
	}
	if w.table == nil {
		w.table = make(map[string]int)
	}
	w.table[w.objects[at].Name] = at
	w.parts[0] = appendObject(w.parts[0], 1, &w.objects[at])
}

// forget takes back what place added.
func (w *BlockWriter) forget(at int) {
	if at >= len(w.table) {
		w.objects = w.objects[:at]
	}
}

// Items is the number of changes, moves, drops and dead names in the block.
func (w *BlockWriter) Items() int { return w.items }

// Size is the length of the block in a record, as it counts for MaxChangesHere.
func (w *BlockWriter) Size() int {
	n := 0
	for _, part := range w.parts {
		n += len(part)
	}
	return n
}

// Full says that the block should be flushed before more is added.
func (w *BlockWriter) Full() bool { return w.items >= MaxListItems || w.Size() >= ListTarget }

// Flush returns the object of a change list with everything since the last
// Flush, and how many items it holds. An empty block is an error.
func (w *BlockWriter) Flush() (object []byte, items uint64, err error) {
	if w.items == 0 {
		return nil, 0, refused("change list", errEmpty)
	}
	p := borrow()
	body := w.body(*p)
	object, err = sealFrame(frameList, body, nil, 0)
	giveBack(p, body)
	if err != nil {
		return nil, 0, refused("change list", err)
	}
	items = uint64(w.items)
	w.next()
	return object, items, nil
}

// Take returns the block with everything since the last Flush, for a record.
func (w *BlockWriter) Take() (Block, error) {
	m := parse(w.body(nil), "block")
	var b Block
	decodeBlock(m, &b, MaxInline, MaxListItems)
	if m.p.err != nil {
		return Block{}, errors.Join(errors.New("a block that was just written cannot be read"), m.p.err)
	}
	w.next()
	return b, nil
}

func (w *BlockWriter) body(b []byte) []byte {
	for _, part := range w.parts {
		b = append(b, part...)
	}
	return b
}

// next begins a block; the memory is used again.
func (w *BlockWriter) next() {
	clear(w.table)
	clear(w.objects)
	w.objects, w.items = w.objects[:0], 0
	for i := range w.parts {
		w.parts[i] = w.parts[i][:0]
	}
}
