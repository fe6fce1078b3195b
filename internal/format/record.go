package format

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

const (
	recordFields = 11
	entryFields  = 7
)

// EncodeRecord makes the object of a record. Its inline contents begin at
// len(object)-len(r.Contents); ContentsAt is not looked at.
func EncodeRecord(r *Record) ([]byte, error) {
	if err := checkRecord(r); err != nil {
		return nil, refused("record", err)
	}
	p := borrow()
	body, blocks := appendRecord(*p, r)
	defer func() { giveBack(p, body) }()
	if blocks > MaxChangesHere {
		return nil, refused("record", overLimit("bytes of changes", int64(blocks), MaxChangesHere))
	}
	out, err := sealFrame(frameRecord, body, r.Contents, 0)
	if err != nil {
		return nil, refused("record", err)
	}
	return out, nil
}

// DecodeRecord reads the object of a record. Contents lies in the memory of
// object; strings share one copy of the body, so who keeps a few of them for
// long should clone them.
func DecodeRecord(object []byte) (*Record, error) {
	f, err := openFrame(object, frameRecord)
	if err != nil {
		return nil, damaged("record", err)
	}
	r := &Record{ContentsAt: f.tailAt}
	if len(f.tail) > 0 {
		r.Contents = f.tail
	}
	m := parse(f.body, "body")
	decodeRecord(&m, r)
	if m.p.err == nil {
		m.check(checkRecordShape(r))
	}
	if err := m.p.err; err != nil {
		return nil, damaged("record", err)
	}
	return r, nil
}

// checkRecord checks all of r.
func checkRecord(r *Record) error {
	if n := int64(len(r.Contents)); n > MaxInline {
		return overLimit("bytes of inline contents", n, MaxInline)
	}
	if err := checkRecordShape(r); err != nil {
		return err
	}
	inline := int64(len(r.Contents))
	for i := range r.Entries {
		e := &r.Entries[i]
		err := checkBlock(&e.Block, inline)
		if err == nil {
			err = checkListRefs(e.Lists)
		}
		if err != nil {
			return fmt.Errorf("entry %d (%v): %w", i, e.ID, err)
		}
	}
	if err := checkBlock(&r.Block, inline); err != nil {
		return err
	}
	return checkListRefs(r.Lists)
}

func checkListRefs(lists []ListRef) error {
	for i := range lists {
		if err := checkListRef(&lists[i]); err != nil {
			return fmt.Errorf("list %d: %w", i, err)
		}
	}
	return nil
}

// checkRecordShape checks what lies outside of blocks and references to lists,
// which a decoder checks while it reads them.
func checkRecordShape(r *Record) error {
	if err := checkKind(r.Kind); err != nil {
		return err
	}
	if r.Slot == 0 {
		return errors.New("slot 0: slots begin at 1")
	}
	if err := checkWriter(r.Writer); err != nil {
		return err
	}
	if n := len(r.Entries); n > MaxEntries {
		return overLimit("entries", int64(n), MaxEntries)
	}
	if r.Sweep != 0 && r.Kind != KindSweep {
		return errors.New("only a sweep record has a sweep mark")
	}
	if r.Kind == KindFence && (len(r.Entries)+r.Block.items()+len(r.Block.Objects)+len(r.Lists)+len(r.Contents) > 0) {
		return errors.New("a barrier holds nothing")
	}
	if len(r.Block.Changes) > 0 {
		return errors.New("changes that belong to no entry")
	}
	lists := len(r.Lists)
	for i := range r.Entries {
		e := &r.Entries[i]
		if err := checkEntryShape(e); err != nil {
			return fmt.Errorf("entry %d (%v): %w", i, e.ID, err)
		}
		lists += len(e.Lists)
	}
	if lists > MaxLists {
		return overLimit("change lists", int64(lists), MaxLists)
	}
	if err := checkUnrepeated(r, lists); err != nil {
		return err
	}
	return checkUnknown(r.Unknown, recordFields)
}

func checkEntryShape(e *Entry) error {
	if e.ID == uuid.Nil {
		return errors.New("it has no id")
	}
	if err := checkMessage(e.Message); err != nil {
		return err
	}
	if len(e.Block.Moves)+len(e.Block.Drops)+len(e.Block.Dead) > 0 {
		return errors.New("moves, drops and dead names belong to the record, not to an entry")
	}
	return checkUnknown(e.Unknown, entryFields)
}

// checkUnrepeated: no entry id and no list twice.
func checkUnrepeated(r *Record, lists int) error {
	ids := make(map[uuid.UUID]struct{}, len(r.Entries))
	names := make(map[string]struct{}, lists)
	list := func(refs []ListRef) error {
		for i := range refs {
			name := refs[i].Object.Name
			if _, ok := names[name]; ok {
				return fmt.Errorf("list %s is there twice", name)
			}
			names[name] = struct{}{}
		}
		return nil
	}
	for i := range r.Entries {
		id := r.Entries[i].ID
		if _, ok := ids[id]; ok {
			return fmt.Errorf("entry id %v is there twice", id)
		}
		ids[id] = struct{}{}
		if err := list(r.Entries[i].Lists); err != nil {
			return err
		}
	}
	return list(r.Lists)
}

// appendRecord also returns the bytes of all blocks.
func appendRecord(b []byte, r *Record) (body []byte, blocks int) {
	b = appendUint(b, 1, r.Slot)
	b = appendUint(b, 2, uint64(r.Kind))
	b = appendUint(b, 3, r.Fence)
	b = appendUUID(b, 4, &r.Session)
	b = appendBytes(b, 5, r.Writer)
	b = appendTime(b, 6, r.Time)
	b = appendHash(b, 7, &r.Prev)
	for i := range r.Entries {
		var at, n int
		b, at = beginMessage(b, 8)
		b, n = appendEntry(b, &r.Entries[i])
		b = endMessage(b, at)
		blocks += n
	}
	b, at := beginMessage(b, 9)
	b = appendBlock(b, &r.Block)
	blocks += len(b) - at
	b = endOptional(b, at)
	for i := range r.Lists {
		b = appendListRef(b, 10, &r.Lists[i])
	}
	b = appendUint(b, 11, r.Sweep)
	return append(b, r.Unknown...), blocks
}

func decodeRecord(m *message, r *Record) {
	n := m.counts()
	if n[8] > MaxEntries {
		m.check(overLimit("entries", int64(n[8]), MaxEntries))
		return
	}
	if n[8] > 0 {
		r.Entries = make([]Entry, 0, n[8])
	}
	room := recordRoom{inline: int64(len(r.Contents)), blocks: MaxChangesHere, lists: MaxLists}
	for m.next() {
		switch m.num {
		case 1:
			r.Slot = m.uint()
		case 2:
			r.Kind = Kind(m.enum("kind of record"))
		case 3:
			r.Fence = m.uint()
		case 4:
			r.Session = m.uuid()
		case 5:
			r.Writer = m.bytes()
		case 6:
			r.Time = m.time()
		case 7:
			r.Prev = m.hash()
		case 8:
			r.Entries = append(r.Entries, Entry{})
			room.decodeEntry(m.sub("entry"), &r.Entries[len(r.Entries)-1])
		case 9:
			room.decodeBlock(m.subOnce("block"), &r.Block)
		case 10:
			r.Lists = room.decodeList(m.sub("list"), r.Lists)
		case 11:
			r.Sweep = m.uint()
		default:
			r.Unknown = m.unknown(r.Unknown)
		}
	}
}

// recordRoom is what a record being decoded may still hold.
type recordRoom struct {
	inline int64
	blocks int // bytes
	lists  int
}

func (room *recordRoom) decodeBlock(m message, b *Block) {
	if room.blocks -= m.end - m.pos; room.blocks < 0 {
		m.check(overLimit("bytes of changes", int64(MaxChangesHere-room.blocks), MaxChangesHere))
		return
	}
	decodeBlock(m, b, room.inline, MaxChangesHere)
}

func (room *recordRoom) decodeList(m message, lists []ListRef) []ListRef {
	if room.lists--; room.lists < 0 {
		m.check(overLimit("change lists", MaxLists+1, MaxLists))
		return lists
	}
	lists = append(lists, ListRef{})
	decodeListRef(m, &lists[len(lists)-1])
	return lists
}

// EncodedSize is the length of e in a record's body, its block included. It
// checks nothing.
func (e *Entry) EncodedSize() int {
	p := borrow()
	out, _ := appendEntry(*p, e)
	giveBack(p, out)
	return len(out)
}

// appendEntry also returns the bytes of the entry's block.
func appendEntry(b []byte, e *Entry) (grown []byte, block int) {
	b = appendUUID(b, 1, &e.ID)
	b = appendHash(b, 2, &e.Digest)
	b = appendText(b, 3, e.Message)
	b = appendTime(b, 4, e.Time)
	b = appendUint(b, 5, e.Base)
	b, at := beginMessage(b, 6)
	b = appendBlock(b, &e.Block)
	block = len(b) - at
	b = endOptional(b, at)
	for i := range e.Lists {
		b = appendListRef(b, 7, &e.Lists[i])
	}
	return append(b, e.Unknown...), block
}

func (room *recordRoom) decodeEntry(m message, e *Entry) {
	for m.next() {
		switch m.num {
		case 1:
			e.ID = m.uuid()
		case 2:
			e.Digest = m.hash()
		case 3:
			e.Message = m.text()
		case 4:
			e.Time = m.time()
		case 5:
			e.Base = m.uint()
		case 6:
			room.decodeBlock(m.subOnce("block"), &e.Block)
		case 7:
			e.Lists = room.decodeList(m.sub("list"), e.Lists)
		default:
			e.Unknown = m.unknown(e.Unknown)
		}
	}
}
