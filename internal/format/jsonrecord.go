package format

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
)

// Control records are JSON objects with one field a line, so that people can
// read them. Names are compared exactly, and minimum_reader is looked at before
// any other field.

// EncodeMarker makes the bytes of _control/format.
func EncodeMarker(m *Marker) ([]byte, error) {
	if err := checkMarker(m); err != nil {
		return nil, refused("format marker", err)
	}
	var w jsonWriter
	w.add("format", m.Format)
	w.add("minimum_reader", m.MinReader)
	w.add("datastore", m.Datastore)
	w.add("created", m.Created)
	w.add("program", m.Program)
	return w.done("format marker")
}

// DecodeMarker reads _control/format. The record is never replaced, so fields
// that this program does not know are dropped.
func DecodeMarker(b []byte) (*Marker, error) {
	r, err := openJSON(b)
	if err != nil {
		return nil, damaged("format marker", err)
	}
	var m Marker
	r.take("format", &m.Format)
	r.take("minimum_reader", &m.MinReader)
	r.take("datastore", &m.Datastore)
	r.take("created", &m.Created)
	r.take("program", &m.Program)
	if r.err == nil {
		r.err = checkMarker(&m)
	}
	if r.err != nil {
		return nil, damaged("format marker", r.err)
	}
	return &m, nil
}

func checkMarker(m *Marker) error {
	if m.Datastore == uuid.Nil {
		return errors.New("it names no datastore")
	}
	return checkFormat(m.Format, m.MinReader)
}

func checkFormat(format, reader int) error {
	if reader < 1 || format < reader {
		return fmt.Errorf("format %d with minimum_reader %d is not possible", format, reader)
	}
	return nil
}

// checkpointFields are the names that Extra may not hold.
var checkpointFields = []string{"format", "minimum_reader", "seq", "root", "root_size", "root_sha256",
	"floor", "previous", "sweep", "horizon", "beat"}

// EncodeCheckpoint makes the bytes of _control/checkpoint.
func EncodeCheckpoint(c *Checkpoint) ([]byte, error) {
	if err := checkCheckpoint(c); err != nil {
		return nil, refused("checkpoint record", err)
	}
	var w jsonWriter
	w.add("format", c.Format)
	w.add("minimum_reader", c.MinReader)
	w.add("seq", c.Seq)
	if c.Root != "" {
		w.add("root", c.Root)
		w.add("root_size", c.RootSize)
		w.add("root_sha256", c.RootHash)
	}
	w.add("floor", c.Floor)
	w.add("previous", c.Previous)
	w.add("sweep", c.Sweep)
	w.add("horizon", c.Horizon)
	w.add("beat", c.Beat)
	for _, name := range slices.Sorted(maps.Keys(c.Extra)) {
		w.add(name, c.Extra[name])
	}
	return w.done("checkpoint record")
}

// DecodeCheckpoint reads _control/checkpoint.
func DecodeCheckpoint(b []byte) (*Checkpoint, error) {
	r, err := openJSON(b)
	if err != nil {
		return nil, damaged("checkpoint record", err)
	}
	var c Checkpoint
	r.take("format", &c.Format)
	r.take("minimum_reader", &c.MinReader)
	r.take("seq", &c.Seq)
	if c.Seq > 0 {
		r.take("root", &c.Root)
		r.take("root_size", &c.RootSize)
		r.take("root_sha256", &c.RootHash)
	}
	r.take("floor", &c.Floor)
	r.take("previous", &c.Previous)
	r.take("sweep", &c.Sweep)
	r.take("horizon", &c.Horizon)
	r.take("beat", &c.Beat)
	r.rest(&c.Extra)
	if r.err == nil {
		r.err = checkCheckpoint(&c)
	}
	if r.err != nil {
		return nil, damaged("checkpoint record", r.err)
	}
	return &c, nil
}

func checkCheckpoint(c *Checkpoint) error {
	if c.Beat == uuid.Nil {
		return errors.New("it has no beat")
	}
	if c.Floor > c.Previous || c.Previous > c.Seq {
		return fmt.Errorf("floor %d, previous checkpoint %d, checkpoint %d: none may be above the next", c.Floor, c.Previous, c.Seq)
	}
	if c.Seq == 0 {
		if c.Root != "" || c.RootSize != 0 || c.RootHash != "" {
			return errors.New("a root without a checkpoint")
		}
	} else if err := checkRootName(c); err != nil {
		return err
	}
	for name, value := range c.Extra {
		if slices.Contains(checkpointFields, name) || !json.Valid(value) {
			return fmt.Errorf("field %q of Extra is a known one or not JSON", name)
		}
	}
	return checkFormat(c.Format, c.MinReader)
}

func checkRootName(c *Checkpoint) error {
	if seq, ok := CheckpointSeq(c.Root); !ok || seq != c.Seq {
		return fmt.Errorf("%q is not the key of a root of checkpoint %d", c.Root, c.Seq)
	}
	if sum, err := hex.DecodeString(c.RootHash); err != nil || len(sum) != len(Hash{}) || hex.EncodeToString(sum) != c.RootHash {
		return fmt.Errorf("%q is not a sha256 in lower-case hex", c.RootHash)
	}
	if c.RootSize < frameHeader || c.RootSize > frameRoot.objectLimit() {
		return fmt.Errorf("a root of %d bytes is not possible", c.RootSize)
	}
	return nil
}

// jsonReader gives up the fields of one object by name.
type jsonReader struct {
	fields map[string]json.RawMessage
	err    error
}

func openJSON(b []byte) (*jsonReader, error) {
	if len(b) > MaxControl {
		return nil, fmt.Errorf("it has %d bytes, possible are %d", len(b), MaxControl)
	}
	r := &jsonReader{}
	if err := json.Unmarshal(b, &r.fields); err != nil {
		return nil, fmt.Errorf("it is not a JSON object: %v", err)
	}
	var reader uint64
	if err := json.Unmarshal(r.fields["minimum_reader"], &reader); err != nil || reader == 0 {
		return nil, errors.New("it has no minimum_reader")
	}
	if reader > Version {
		return nil, fmt.Errorf("it needs format %d, this program knows %d: %w", reader, Version, ErrUpgrade)
	}
	return r, nil
}

func (r *jsonReader) take(name string, into any) {
	raw, ok := r.fields[name]
	delete(r.fields, name)
	switch {
	case r.err != nil:
	case !ok || string(raw) == "null":
		r.err = fmt.Errorf("it has no field %q", name)
	default:
		if err := json.Unmarshal(raw, into); err != nil {
			r.err = fmt.Errorf("field %q: %v", name, err)
		}
	}
}

// rest gives what was not taken, without white space.
func (r *jsonReader) rest(into *map[string]json.RawMessage) {
	for name, raw := range r.fields {
		var flat bytes.Buffer
		if err := json.Compact(&flat, raw); err != nil {
			r.err = fmt.Errorf("field %q: %v", name, err)
			return
		}
		if *into == nil {
			*into = make(map[string]json.RawMessage, len(r.fields))
		}
		(*into)[name] = flat.Bytes()
	}
}

// jsonWriter writes one object with one field a line.
type jsonWriter struct {
	buf bytes.Buffer
	err error
}

func (w *jsonWriter) add(name string, value any) {
	raw, err := plainJSON(value)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("field %q: %w", name, err)
	}
	key, err := plainJSON(name)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("field %q: %w", name, err)
	}
	if w.buf.Len() == 0 {
		w.buf.WriteString("{\n  ")
	} else {
		w.buf.WriteString(",\n  ")
	}
	w.buf.Write(key)
	w.buf.WriteString(": ")
	w.buf.Write(raw)
}

// plainJSON encodes without white space and without escapes for HTML.
func plainJSON(value any) ([]byte, error) {
	var buf bytes.Buffer
	if raw, ok := value.(json.RawMessage); ok {
		err := json.Compact(&buf, raw)
		return buf.Bytes(), err
	}
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(value)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}

func (w *jsonWriter) done(what string) ([]byte, error) {
	w.buf.WriteString("\n}\n")
	if n := w.buf.Len(); n > MaxControl && w.err == nil {
		w.err = overLimit("bytes", int64(n), MaxControl)
	}
	if w.err != nil {
		return nil, refused(what, w.err)
	}
	return w.buf.Bytes(), nil
}
