package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"unicode/utf8"
)

// What the decoders demand of a value, the encoders demand too, through the
// same functions: nothing is written that could not be read.

// scope is what the places of some changes may refer to.
type scope struct {
	objects []Object // the table of the block, or
	names   int      // the number of names, where no more is known of them
	inline  int64    // where inline places end at the latest; negative: there are none
}

var (
	errUTF8      = errors.New("text is not valid UTF-8")
	errNegative  = errors.New("a size, offset or length is negative")
	errDelete    = errors.New("a delete has nothing but a path")
	errPlace     = errors.New("its place is outside of what it refers to")
	errPlaceSize = errors.New("the length of its place and its size do not fit together")
)

const knownMode = uint32(fs.ModePerm | fs.ModeSymlink)

func checkChange(c *Change, in *scope) error {
	if err := CheckPath(c.Path); err != nil {
		return err
	}
	switch c.Op {
	case OpDelete:
		p := &c.Place
		if c.Size != 0 || c.SHA256 != (Hash{}) || c.Mode != 0 || c.MTime != 0 || !c.Meta.IsZero() ||
			p.Object > 0 || p.Object < Inline || p.Offset != 0 || p.Length != 0 || p.Codec != 0 || len(p.Unknown) > 0 {
			return errDelete
		}
		return checkUnknown(c.Unknown, changeFields)
	case OpPut:
	default:
		return errUnknownValue{"operation", uint64(c.Op)}
	}
	if unknown := c.Mode &^ knownMode; unknown != 0 {
		return errUnknownValue{"mode", uint64(unknown)}
	}
	if err := CheckMeta(&c.Meta); err != nil {
		return err
	}
	if c.Size < 0 {
		return errNegative
	}
	if err := checkPlace(&c.Place, c.Size, in); err != nil {
		return err
	}
	return checkUnknown(c.Unknown, changeFields)
}

// sizeUnknown: a move does not say how large the content is.
const sizeUnknown = -1

// checkPlace checks the place of a content of size bytes, or sizeUnknown.
func checkPlace(p *Place, size int64, in *scope) error {
	if p.Offset < 0 || p.Length < 0 || p.Offset+p.Length < 0 {
		return errNegative
	}
	if p.Codec > CodecBlocks {
		return errUnknownValue{"codec", uint64(p.Codec)}
	}
	if size != sizeUnknown {
		if err := checkLength(p, size); err != nil {
			return err
		}
	}
	if err := checkUnknown(p.Unknown, placeFields); err != nil {
		return err
	}
	switch end := p.Offset + p.Length; {
	case p.Object == Inline:
		if end > in.inline || p.Codec == CodecBlocks {
			return errPlace
		}
	case p.Object < 0:
		return errPlace
	case in.objects == nil:
		if p.Object >= in.names {
			return errPlace
		}
	default:
		if p.Object >= len(in.objects) {
			return errPlace
		}
		return checkPlaceIn(p, &in.objects[p.Object])
	}
	return nil
}

// checkLength: what is stored in one piece fits the memory of a reader, nothing
// grows by being stored, and only the empty content has no bytes.
func checkLength(p *Place, size int64) error {
	limit := int64(MaxSmall)
	if p.Codec == CodecBlocks {
		limit = MaxBlocks * BlockSize
	}
	if size > limit {
		return overLimit(fmt.Sprintf("bytes of a content with codec %d", p.Codec), size, limit)
	}
	ok := p.Length > 0
	switch {
	case size == 0:
		ok = p.Object == Inline && p.Length == 0 && p.Codec == CodecRaw
	case p.Codec == CodecRaw:
		ok = p.Length == size
	case p.Codec == CodecBlocks:
		ok = ok && p.Length <= size
	}
	if !ok {
		return errPlaceSize
	}
	return nil
}

func checkPlaceIn(p *Place, o *Object) error {
	data := o.Size - o.FooterSize
	switch {
	case o.Kind == ObjectPack && p.Codec != CodecBlocks && p.Offset+p.Length <= data:
		return nil
	case o.Kind == ObjectLarge && p.Codec == CodecBlocks && p.Offset == 0 && p.Length == data:
		return nil
	}
	return errPlace
}

// CheckMeta says whether metadata can be stored: valid UTF-8, tags sorted and
// none twice, sizes within MaxMeta.
func CheckMeta(m *Meta) error {
	if m.IsZero() {
		return nil
	}
	if m.Lifetime < 0 {
		return errNegative
	}
	if !utf8.ValidString(m.ContentType) {
		return fmt.Errorf("content type: %w", errUTF8)
	}
	size := len(m.ContentType) + len(m.Unknown) + 32
	for i, t := range m.Tags {
		switch {
		case t.Key == "":
			return errors.New("a tag has no key")
		case i > 0 && t.Key <= m.Tags[i-1].Key:
			return fmt.Errorf("tag %q: tags are sorted by key, no key twice", t.Key)
		case !utf8.ValidString(t.Key) || !utf8.ValidString(t.Value):
			return fmt.Errorf("tag %q: %w", t.Key, errUTF8)
		}
		size += len(t.Key) + len(t.Value) + 12
	}
	for _, k := range m.Keep {
		if !utf8.ValidString(k) || k == "" {
			return fmt.Errorf("keep rule %q: it is empty or not valid UTF-8", k)
		}
		size += len(k) + 4
	}
	if size > MaxMeta { // an upper bound; what is near the limit is measured
		if size = len(appendMeta(nil, m)); size > MaxMeta {
			return overLimit("bytes of metadata", int64(size), MaxMeta)
		}
	}
	return checkUnknown(m.Unknown, metaFields)
}

func checkObject(o *Object) error {
	if err := checkDataName(o.Name); err != nil {
		return err
	}
	switch o.Kind {
	case ObjectList:
		if o.Size < frameHeader || o.Size > frameList.objectLimit() || o.FooterSize != 0 {
			return fmt.Errorf("%s: a list of %d bytes with a footer of %d is not possible", o.Name, o.Size, o.FooterSize)
		}
	case ObjectPack, ObjectLarge:
		if o.FooterSize < frameHeader+trailerSize || o.FooterSize > min(o.Size, MaxFooter) {
			return fmt.Errorf("%s: a footer of %d bytes in %d is not possible", o.Name, o.FooterSize, o.Size)
		}
	default:
		return errUnknownValue{"kind of object", uint64(o.Kind)}
	}
	return checkUnknown(o.Unknown, objectFields)
}

func checkDataName(name string) error {
	if _, ok := DataHead(name); !ok {
		return fmt.Errorf("%q is not the name of a data object", name)
	}
	return nil
}

func checkListRef(l *ListRef) error {
	if l.Object.Kind != ObjectList {
		return fmt.Errorf("%s: a change list must be an object of kind %d", l.Object.Name, ObjectList)
	}
	if l.Items == 0 {
		return errEmpty
	}
	if l.Items > MaxListItems {
		return overLimit("items of a change list", int64(min(l.Items, math.MaxInt64)), MaxListItems)
	}
	if err := checkObject(&l.Object); err != nil {
		return err
	}
	return checkUnknown(l.Unknown, listRefFields)
}

func checkVersionRef(v *VersionRef, known int) error {
	if err := CheckPath(v.Path); err != nil {
		return err
	}
	if v.Slot == 0 {
		return errors.New("a version without a slot")
	}
	return checkUnknown(v.Unknown, fieldNumber(known))
}

func checkMove(m *Move, in *scope) error {
	if m.Place.Object == Inline {
		return errors.New("a move ends in an object")
	}
	if err := checkPlace(&m.Place, sizeUnknown, in); err != nil {
		return err
	}
	return checkVersionRef(&m.VersionRef, moveFields)
}

func checkMessage(s string) error {
	if len(s) > MaxMessage {
		return overLimit("bytes of the message", int64(len(s)), MaxMessage)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("message: %w", errUTF8)
	}
	return nil
}

func checkWriter(w json.RawMessage) error {
	if len(w) > MaxWriter {
		return overLimit("bytes of the writer's identity", int64(len(w)), MaxWriter)
	}
	if len(w) > 0 && !json.Valid(w) {
		return errors.New("the writer's identity is not JSON")
	}
	return nil
}

func checkKind(k Kind) error {
	if k < KindCommit || k > KindSweep {
		return errUnknownValue{"kind of record", uint64(k)}
	}
	return nil
}

// twice returns a value that at gives for two indices below n. Values that rise,
// as those of a careful writer do, are compared with their neighbours only.
func twice(n int, at func(int) string) (string, bool) {
	rising := 1
	for rising < n && at(rising-1) < at(rising) {
		rising++
	}
	if rising >= n {
		return "", false
	}
	seen := make(map[string]struct{}, n)
	for i := range n {
		s := at(i)
		if _, ok := seen[s]; ok {
			return s, true
		}
		seen[s] = struct{}{}
	}
	return "", false
}
