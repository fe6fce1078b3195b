package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	slashpath "path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files and the seeds of the fuzz tests anew")

// fuzzMemory is what reading one object may ask for, beside a multiple of its
// own length: bodies of MaxBody that compress to nothing, and what is made of
// them.
const fuzzMemory = 512 << 20

// fuzzDecoder holds c to its promises for any input: no panic, no more memory
// than the limits allow, errors that say what to do; and what was read can be
// written and read again.
func fuzzDecoder(f *testing.F, name string) {
	c := codecs[name]
	f.Fuzz(func(t *testing.T, b []byte) {
		tryDecode(t, c, b)
		if c.kind != 0 {
			tryDecode(t, c, repair(c.kind, b))
		}
	})
}

func tryDecode(t *testing.T, c codec, b []byte) {
	var x any
	var err error
	if took := allocated(func() { x, err = c.decode(b) }); took > fuzzMemory+64*uint64(len(b)) {
		t.Fatalf("%d bytes of input took %d bytes of memory", len(b), took)
	}
	if err != nil {
		if x != nil || !isRefusal(err) {
			t.Fatalf("got %v and the error %v", x, err)
		}
		return
	}
	again, err := c.encode(x)
	if errors.Is(err, ErrLimit) {
		return // it was packed better than this program packs
	}
	if err != nil {
		t.Fatalf("what was read cannot be written: %v", err)
	}
	y, err := c.decode(again)
	if err != nil {
		t.Fatalf("what was written cannot be read: %v", err)
	}
	for _, v := range []any{x, y} {
		if r, ok := v.(*Record); ok {
			r.ContentsAt = 0
		}
	}
	if !reflect.DeepEqual(x, y) {
		t.Fatalf("it came back as another:\nfirst  %+v\nsecond %+v", x, y)
	}
}

// repair makes lengths and sha256 of a damaged object right, so that what lies
// behind those checks is reached.
func repair(kind frameKind, b []byte) []byte {
	b, _ = trailerOf(kind, bytes.Clone(b))
	if len(b) < frameHeader {
		b = append(b, make([]byte, frameHeader-len(b))...)
	}
	copy(b, frameMagic)
	b[8], b[9] = byte(kind), b[9]&1
	binary.LittleEndian.PutUint16(b[12:], MinReader)
	stored := min(int(binary.LittleEndian.Uint32(b[16:])), len(b)-frameHeader)
	if kind.tailLimit() == 0 {
		stored = len(b) - frameHeader
	}
	binary.LittleEndian.PutUint32(b[16:], uint32(stored))
	if b[9] == byte(CodecRaw) {
		binary.LittleEndian.PutUint32(b[20:], uint32(stored))
	}
	binary.LittleEndian.PutUint64(b[24:], uint64(len(b)-frameHeader-stored))
	return resum(kind, b)
}

func trailerOf(kind frameKind, b []byte) (object, end []byte) {
	if kind == frameFooter && len(b) >= trailerSize {
		return trailer(kind, b)
	}
	return b, nil
}

func FuzzDecodeRecord(f *testing.F)     { fuzzDecoder(f, "record") }
func FuzzDecodeBlock(f *testing.F)      { fuzzDecoder(f, "list") }
func FuzzDecodeFooter(f *testing.F)     { fuzzDecoder(f, "footer") }
func FuzzDecodeRoot(f *testing.F)       { fuzzDecoder(f, "root") }
func FuzzDecodeShard(f *testing.F)      { fuzzDecoder(f, "shard") }
func FuzzDecodeMarker(f *testing.F)     { fuzzDecoder(f, "marker") }
func FuzzDecodeCheckpoint(f *testing.F) { fuzzDecoder(f, "checkpoint") }

func FuzzParseTrailer(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ParseTrailer(b)
		switch {
		case err != nil && (n != 0 || !errors.Is(err, ErrCorrupt)):
			t.Fatalf("got %d, %v", n, err)
		case err == nil && (n < frameHeader+trailerSize || n > MaxFooter || len(b) != trailerSize):
			t.Fatalf("%d bytes say %d", len(b), n)
		case err == nil && !bytes.Equal(b, append(binary.LittleEndian.AppendUint64(nil, uint64(n)), trailerMagic...)):
			t.Fatalf("%x is not the trailer of %d", b, n)
		}
	})
}

// FuzzCheckPath compares with the rules written the slow way.
func FuzzCheckPath(f *testing.F) {
	for _, seed := range []string{"a/b", "/", "a//b", "./..", "x/.SWAMP", ".\u017fwamp", "a\x00", "\xff", strings.Repeat("x", MaxPath+1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		good := path != "" && len(path) <= MaxPath && strings.ToValidUTF8(path, "") == path && !strings.Contains(path, "\x00")
		for _, seg := range strings.Split(path, "/") {
			good = good && seg != "" && seg != "." && seg != ".." && !strings.EqualFold(seg, ".swamp")
		}
		err := CheckPath(path)
		if good != (err == nil) || err != nil && !errors.Is(err, ErrBadPath) {
			t.Fatalf("%q: got %v", path, err)
		}
		if err == nil && slashpath.Clean(path) != path {
			t.Fatalf("%q is not clean", path)
		}
	})
}

// fuzzTargets are the fuzz tests with the seeds that come from samples.
func fuzzTargets(t testing.TB) map[string][][]byte {
	targets := make(map[string][][]byte)
	for target, name := range map[string]string{"FuzzDecodeRecord": "record", "FuzzDecodeBlock": "list", "FuzzDecodeFooter": "footer",
		"FuzzDecodeRoot": "root", "FuzzDecodeShard": "shard", "FuzzDecodeMarker": "marker", "FuzzDecodeCheckpoint": "checkpoint"} {
		c := codecs[name]
		for _, x := range c.samples() {
			object, err := c.encode(x)
			if err != nil {
				t.Fatal(err)
			}
			targets[target] = append(targets[target], object)
			if c.kind != 0 {
				targets[target] = append(targets[target], recode(t, c.kind, object))
			}
		}
	}
	for _, footer := range targets["FuzzDecodeFooter"] {
		targets["FuzzParseTrailer"] = append(targets["FuzzParseTrailer"], footer[len(footer)-trailerSize:])
	}
	return targets
}

// The seeds that are kept are whole objects, so that fuzzing begins behind the
// first checks.
func TestSeedsOfTheFuzzTestsAreWhole(t *testing.T) {
	for target, seeds := range fuzzTargets(t) {
		dir := filepath.Join("testdata", "fuzz", target)
		if *update {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for i, seed := range seeds {
				text := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", seed)
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("sample-%d", i)), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		files, err := filepath.Glob(filepath.Join(dir, "sample-*"))
		if err != nil || len(files) != len(seeds) {
			t.Errorf("%s has %d seeds, should have %d (%v); write them anew with -update", target, len(files), len(seeds), err)
		}
		for _, file := range files {
			if err := decodeSeed(t, target, file); err != nil {
				t.Errorf("%s: %v; write it anew with -update", file, err)
			}
		}
	}
}

func decodeSeed(t *testing.T, target, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var quoted string
	if _, err := fmt.Sscanf(strings.TrimSuffix(strings.TrimPrefix(string(text), "go test fuzz v1\n[]byte("), ")\n"), "%q", &quoted); err != nil {
		return err
	}
	b := []byte(quoted)
	name, ok := strings.CutPrefix(target, "FuzzDecode")
	if !ok {
		_, err = ParseTrailer(b)
		return err
	}
	if name = strings.ToLower(name); name == "block" {
		name = "list"
	}
	_, err = codecs[name].decode(b)
	return err
}
