package format

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// digestDomain keeps a digest from being the sha256 of anything else.
const digestDomain = "swampd entry 3\x00"

// Digester computes the Digest of an entry from its changes in the byte order of
// their paths, without holding them. It covers what the caller asked for: the
// message, and of each change operation, path, size, sha256, mode, mtime and
// metadata. It does not cover what the engine adds and may do differently the
// next time: places, codecs, base, times. So the same id with the same digest is
// the same commit, and with another digest a mistake of the caller.
type Digester struct {
	h    hash.Hash
	buf  []byte
	path string
}

// NewDigester begins the digest of an entry with this message.
func NewDigester(message string) *Digester {
	d := &Digester{h: sha256.New()}
	d.buf = append(d.buf, digestDomain...)
	d.buf = protowire.AppendString(d.buf, message)
	d.h.Write(d.buf)
	return d
}

// Add adds the next change. A path that does not come after the one before is
// an error, and the change is not added.
func (d *Digester) Add(c *Change) error {
	if c.Path <= d.path {
		return refused(fmt.Sprintf("change of %q", c.Path),
			fmt.Errorf("it comes after %q: changes are digested in the order of their paths, no path twice", d.path))
	}
	d.path = c.Path
	d.buf = appendChange(d.buf[:0], 1, c, false)
	d.h.Write(d.buf)
	return nil
}

// Sum returns the digest of what was added so far.
func (d *Digester) Sum() (sum Hash) {
	d.h.Sum(sum[:0])
	return sum
}

// Digest is the digest of an entry with the message of e and these changes, in
// the byte order of their paths.
func Digest(e *Entry, changes iter.Seq[*Change]) (Hash, error) {
	d := NewDigester(e.Message)
	for c := range changes {
		if err := d.Add(c); err != nil {
			return Hash{}, err
		}
	}
	return d.Sum(), nil
}
