package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// codec is one kind of object for the tests that hold for all of them.
type codec struct {
	kind    frameKind // 0: JSON
	decode  func([]byte) (any, error)
	encode  func(any) ([]byte, error)
	samples func() []any
}

func newCodec[T any](kind frameKind, encode func(*T) ([]byte, error), decode func([]byte) (*T, error), samples ...func() *T) codec {
	return codec{
		kind: kind,
		decode: func(b []byte) (any, error) {
			x, err := decode(b)
			if err != nil {
				return nil, err
			}
			return x, nil
		},
		encode: func(x any) ([]byte, error) { return encode(x.(*T)) },
		samples: func() (all []any) {
			for _, sample := range samples {
				all = append(all, sample())
			}
			return all
		},
	}
}

var codecs = map[string]codec{
	"record": newCodec(frameRecord, EncodeRecord, DecodeRecord, sampleMinimal, sampleInline, sampleFull),
	"list":   newCodec(frameList, EncodeBlock, DecodeBlock, func() *Block { b := sampleList(); b.Changes = b.Changes[190:]; return b }),
	"footer": newCodec(frameFooter, EncodeFooter, DecodeFooter,
		func() *Footer { f := samplePackFooter(); f.Changes = f.Changes[:3]; return f },
		func() *Footer { return sampleLargeFooter(5) }),
	"root": newCodec(frameRoot, EncodeRoot, DecodeRoot, sampleRoot),
	"shard": newCodec(frameShard, EncodeShard, DecodeShard,
		func() *Shard { return sampleShard(TableVersions, 5) },
		func() *Shard { return sampleShard(TableObjects, 5) },
		func() *Shard { return sampleShard(TableLog, 5) }),
	"marker":     newCodec(0, EncodeMarker, DecodeMarker, sampleMarker),
	"checkpoint": newCodec(0, EncodeCheckpoint, DecodeCheckpoint, sampleCheckpoint),
}

// forSamples runs f for each sample of each kind of binary object, with its body
// as it is encoded, and as the other of raw and zstd.
func forSamples(t *testing.T, f func(t *testing.T, c codec, object []byte)) {
	for name, c := range codecs {
		if c.kind == 0 {
			continue
		}
		for i, x := range c.samples() {
			object, err := c.encode(x)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("%s %d", name, i), func(t *testing.T) { f(t, c, object) })
			t.Run(fmt.Sprintf("%s %d recoded", name, i), func(t *testing.T) { f(t, c, recode(t, c.kind, object)) })
		}
	}
}

// trailer splits the trailer from a footer.
func trailer(kind frameKind, object []byte) (frame, trailer []byte) {
	if kind != frameFooter {
		return object, nil
	}
	n := len(object) - trailerSize
	return object[:n:n], object[n:]
}

// seal makes an object without looking at any limit. Bodies are raw unless
// packed is given.
func seal(kind frameKind, body, tail []byte, packed ...byte) []byte {
	out := make([]byte, frameHeader)
	copy(out, frameMagic)
	out[8] = byte(kind)
	binary.LittleEndian.PutUint16(out[10:], Version)
	binary.LittleEndian.PutUint16(out[12:], MinReader)
	binary.LittleEndian.PutUint32(out[20:], uint32(len(body)))
	if packed != nil {
		out[9], body = byte(CodecZstd), packed
	}
	binary.LittleEndian.PutUint32(out[16:], uint32(len(body)))
	binary.LittleEndian.PutUint64(out[24:], uint64(len(tail)))
	return resum(kind, append(append(out, body...), tail...))
}

// resum sets the right sha256, and for a footer appends the right trailer.
func resum(kind frameKind, object []byte) []byte {
	sum := frameSum(object)
	copy(object[frameHash:], sum[:])
	if kind == frameFooter {
		object = binary.LittleEndian.AppendUint64(object, uint64(len(object)+trailerSize))
		object = append(object, trailerMagic...)
	}
	return object
}

func recode(t testing.TB, kind frameKind, object []byte) []byte {
	t.Helper()
	object, _ = trailer(kind, object)
	f, err := openFrame(object, kind)
	if err != nil {
		t.Fatal(err)
	}
	if Codec(object[9]) == CodecZstd {
		return seal(kind, f.body, f.tail)
	}
	return seal(kind, f.body, f.tail, encoder().EncodeAll(f.body, []byte{})...)
}

func isRefusal(err error) bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUpgrade) }

func TestRecodedSamplesDecodeEqual(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		if _, err := c.decode(object); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTruncatedAtAnyByteIsRefused(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		for n := range object {
			if x, err := c.decode(object[:n:n]); !isRefusal(err) || x != nil {
				t.Fatalf("the first %d of %d bytes: got %v, %v", n, len(object), x, err)
			}
		}
		if _, err := c.decode(append(bytes.Clone(object), 0)); !isRefusal(err) {
			t.Errorf("one byte too many: got %v", err)
		}
	})
}

func TestAnyFlippedBitIsRefused(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		for i := range len(object) * 8 {
			object[i/8] ^= 1 << (i % 8)
			if x, err := c.decode(object); !isRefusal(err) || x != nil {
				t.Fatalf("bit %d: got %v, %v", i, x, err)
			}
			object[i/8] ^= 1 << (i % 8)
		}
		if _, err := c.decode(object); err != nil {
			t.Fatalf("all bits flipped back: %v", err)
		}
	})
}

func TestTruncatedJSONIsRefused(t *testing.T) {
	for _, name := range []string{"marker", "checkpoint"} {
		c := codecs[name]
		b, err := c.encode(c.samples()[0])
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(b) - 1 { // without the last line break it is whole
			if _, err := c.decode(b[:n]); !errors.Is(err, ErrCorrupt) {
				t.Errorf("the first %d bytes of a %s: got %v", n, name, err)
			}
		}
	}
}

// What a newer program wrote is "upgrade", whatever else is wrong with it.
func TestNewerIsUpgradeBeforeAnythingElse(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		object = bytes.Clone(object)
		binary.LittleEndian.PutUint16(object[10:], Version+1)
		newer := bytes.Clone(object)
		binary.LittleEndian.PutUint16(newer[12:], Version+1)
		rest := newer[16:]
		for range 50 {
			for i := range rest {
				rest[i] = byte(rand.Uint32())
			}
			newer[8], newer[9] = byte(rand.Uint32()), byte(rand.Uint32())
			n := 16 + rand.IntN(len(rest))
			if c.kind == frameFooter {
				n += trailerSize
			}
			if _, err := c.decode(newer[:min(n, len(newer))]); !errors.Is(err, ErrUpgrade) || errors.Is(err, ErrCorrupt) {
				t.Fatalf("needs a newer reader: got %v", err)
			}
		}
		// A newer program that this one can still read is no reason to refuse.
		frame, _ := trailer(c.kind, object)
		if _, err := c.decode(resum(c.kind, frame)); err != nil {
			t.Errorf("newer, for readers of this format: %v", err)
		}
	})
	for _, json := range []string{`{"minimum_reader":4}`, `{"minimum_reader":18446744073709551615,"seq":"x","format":{},"floor":-1}`} {
		if _, err := DecodeMarker([]byte(json)); !errors.Is(err, ErrUpgrade) {
			t.Errorf("marker %s: got %v", json, err)
		}
		if _, err := DecodeCheckpoint([]byte(json)); !errors.Is(err, ErrUpgrade) {
			t.Errorf("checkpoint %s: got %v", json, err)
		}
	}
}

func TestAnObjectOfAnotherKindIsRefused(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		for name, other := range codecs {
			if other.kind == c.kind {
				continue
			}
			_, err := other.decode(object)
			if !errors.Is(err, ErrCorrupt) || other.kind != 0 && !strings.HasSuffix(err.Error(), "it is a "+c.kind.String()) {
				t.Errorf("read as %s: got %v", name, err)
			}
		}
	})
}

// allocated runs f and returns how much memory was asked for meanwhile.
func allocated(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	f()
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}

func TestLengthsThatLieAreRefusedWithoutTakingTheMemory(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		for _, lie := range []struct {
			name string
			set  func(header []byte)
		}{
			{"stored length", func(h []byte) { binary.LittleEndian.PutUint32(h[16:], 1<<32-1) }},
			{"stored length by one", func(h []byte) { h[16]++ }},
			{"decoded length", func(h []byte) { binary.LittleEndian.PutUint32(h[20:], 1<<32-1) }},
			{"decoded length within the limit", func(h []byte) { binary.LittleEndian.PutUint32(h[20:], MaxRecordBody) }},
			{"decoded length by one", func(h []byte) { h[20]++ }},
			{"tail", func(h []byte) { binary.LittleEndian.PutUint64(h[24:], 1<<63) }},
			{"tail that overflows", func(h []byte) { binary.LittleEndian.PutUint64(h[24:], 1<<64-1) }},
			{"tail by one", func(h []byte) { h[24]++ }},
			{"tail and body that cancel out", func(h []byte) { h[16]++; binary.LittleEndian.PutUint64(h[24:], 1<<64-1) }},
		} {
			frame, _ := trailer(c.kind, bytes.Clone(object))
			lie.set(frame)
			frame = resum(c.kind, frame)
			var err error
			took := allocated(func() { _, err = c.decode(frame) })
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: got %v", lie.name, err)
			}
			if took > 64<<10 {
				t.Errorf("%s: took %d bytes of memory", lie.name, took)
			}
		}
	})
}

// A body that expands beyond what its frame says is damage, found before the
// memory is taken.
func TestBodiesThatExpandTooFarAreRefusedWithoutTakingTheMemory(t *testing.T) {
	encoder().EncodeAll(nil, nil) // what is made once should not count
	decoder()
	zeros := make([]byte, 64<<20)
	honest := encoder().EncodeAll(zeros, nil)
	var streamed bytes.Buffer
	w, err := zstd.NewWriter(&streamed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, bytes.NewReader(zeros)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	// A frame that says 100 bytes, and 64 blocks of 128 KiB of one byte each.
	lying := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 100}
	for i := range 64 {
		last := byte(0)
		if i == 63 {
			last = 1
		}
		lying = append(lying, 1<<1|last, 0, 0x10, 'x')
	}
	small := encoder().EncodeAll(make([]byte, 100), nil)
	for _, bomb := range []struct {
		name    string
		packed  []byte
		decoded int
	}{
		{"its frame says more", honest, 100},
		{"its frame does not say how much", streamed.Bytes(), 100},
		{"its frame lies", lying, 100},
		{"a second frame follows", append(bytes.Clone(small), small...), 100},
		{"a second frame follows, together right", append(bytes.Clone(small), small...), 200},
		{"a small second frame follows", append(bytes.Clone(small), encoder().EncodeAll([]byte("0123456789"), nil)...), 100},
		{"a frame to be skipped", append([]byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 0}, small...), 100},
		{"not zstd", []byte("not zstd at all, certainly not"), 100},
		{"nothing", nil, 100},
	} {
		object := seal(frameList, make([]byte, bomb.decoded), nil, append([]byte{}, bomb.packed...)...)
		object[9] = byte(CodecZstd)
		if bomb.packed == nil {
			binary.LittleEndian.PutUint32(object[16:], 0)
			object = object[:frameHeader]
		}
		object = resum(frameList, object)
		var err error
		took := allocated(func() { _, err = DecodeBlock(object) })
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v", bomb.name, err)
		}
		if took > 1<<20 {
			t.Errorf("%s: took %d bytes of memory", bomb.name, took)
		}
		if _, err := Decompress(nil, bomb.packed, CodecZstd, bomb.decoded); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s, as a content: got %v", bomb.name, err)
		}
	}
	over := seal(frameList, zeros[:MaxBody+1], nil, encoder().EncodeAll(zeros[:MaxBody+1], nil)...)
	took := allocated(func() { _, err = DecodeBlock(over) })
	if !errors.Is(err, ErrCorrupt) || took > 1<<20 {
		t.Errorf("a body over the limit: got %v, %d bytes of memory", err, took)
	}
}

func TestCompressGivesBackWhatItTook(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for name, src := range map[string]struct {
		content []byte
		codec   Codec
	}{
		"nothing":     {nil, CodecRaw},
		"one byte":    {[]byte("x"), CodecRaw},
		"noise":       {noise, CodecRaw},
		"mostly text": {append(bytes.Repeat([]byte("text "), 20_000), noise...), CodecZstd},
		// Noise with a twentieth of zeros saves something, but not a tenth.
		"hardly any text": {append(make([]byte, 5_000), noise...), CodecRaw},
		"small text":      {bytes.Repeat([]byte("x"), 200), CodecZstd},
		"zeros":           {make([]byte, 3<<20), CodecZstd},
	} {
		stored, codec := Compress([]byte("before"), src.content)
		if codec != src.codec {
			t.Errorf("%s: codec %d, want %d", name, codec, src.codec)
		}
		got, err := Decompress([]byte("ahead"), stored[6:], codec, len(src.content))
		if err != nil || !bytes.Equal(got[5:], src.content) || string(got[:5]) != "ahead" || string(stored[:6]) != "before" {
			t.Errorf("%s: %v, or other bytes came back", name, err)
		}
		if _, err := Decompress(nil, stored[6:], codec, len(src.content)+1); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s with another size: got %v", name, err)
		}
	}
	if _, err := Decompress(nil, nil, CodecBlocks, 0); !errors.Is(err, ErrUpgrade) {
		t.Errorf("a codec that is not known: got %v", err)
	}
}

// The same bytes come out whatever was encoded before.
func TestEncodingIsDeterministic(t *testing.T) {
	list := sampleList()
	want := mustEncode(t, EncodeBlock, list)
	rng := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		junk := bytes.Repeat(fmt.Appendf(nil, "%x", rng.Uint64()), rng.IntN(50_000))
		Compress(nil, junk)
		if got := mustEncode(t, EncodeBlock, list); !bytes.Equal(got, want) {
			t.Fatal("the same block gave other bytes")
		}
	}
}

func TestGarbageInControlRecordsIsCorrupt(t *testing.T) {
	marker := string(mustEncode(t, EncodeMarker, sampleMarker()))
	checkpoint := string(mustEncode(t, EncodeCheckpoint, sampleCheckpoint()))
	both := []string{"", "null", "[]", "{}", "{", `{"minimum_reader":0}`, `{"minimum_reader":"3"}`, `{"minimum_reader":3}`,
		`{"minimum_reader":null}`, `{"Minimum_Reader":4}`, "\x89SWAMPD\n", strings.Repeat("[", 100_000)}
	swap := func(s, old, new string) string {
		if !strings.Contains(s, old) {
			t.Fatalf("no %q in %s", old, s)
		}
		return strings.Replace(s, old, new, 1)
	}
	for _, s := range append(both,
		marker+"x", marker+marker, marker+strings.Repeat(" ", MaxControl),
		swap(marker, `"format": 3`, `"format": 2`), swap(marker, `"format": 3`, `"Format": 3`),
		swap(marker, `"format": 3`, `"format": null`), swap(marker, `"format": 3`, `"format": 1e99`),
		swap(marker, testUUID(1).String(), "00000000-0000-0000-0000-000000000000"), swap(marker, testUUID(1).String(), "x"),
	) {
		if m, err := DecodeMarker([]byte(s)); !errors.Is(err, ErrCorrupt) || m != nil {
			t.Errorf("marker %.80q: got %v, %v", s, m, err)
		}
	}
	for _, s := range append(both,
		checkpoint+strings.Repeat(" ", MaxControl), checkpoint+",",
		swap(checkpoint, `"seq": 100`, `"seq": -1`), swap(checkpoint, `"seq": 100`, `"seq": 1.5`),
		swap(checkpoint, `"seq": 100`, `"seq": 18446744073709551616`),
		swap(checkpoint, `"seq": 100`, `"seq": 99`), swap(checkpoint, `"seq": 100`, `"seq": 0`),
		swap(checkpoint, `"floor": 40`, `"floor": 51`), swap(checkpoint, `"previous": 50`, `"previous": 101`),
		swap(checkpoint, `"root_size": 5000`, `"root_size": 63`), swap(checkpoint, `"root_size": 5000`, `"root_size": -5000`),
		swap(checkpoint, `"root_sha256": "`, `"root_sha256": "0`), swap(checkpoint, `-root"`, `-rook"`),
		swap(checkpoint, testUUID(2).String(), "00000000-0000-0000-0000-000000000000"),
		swap(checkpoint, fmt.Sprintf("%x", testHash("root")), fmt.Sprintf("%X", testHash("root"))),
	) {
		if c, err := DecodeCheckpoint([]byte(s)); !errors.Is(err, ErrCorrupt) || c != nil {
			t.Errorf("checkpoint %.80q: got %v, %v", s, c, err)
		}
	}
	if _, err := DecodeMarker([]byte(marker + strings.Repeat(" ", MaxControl-len(marker)))); err != nil {
		t.Errorf("a marker of exactly the limit: %v", err)
	}
}

func TestTrailerIsChecked(t *testing.T) {
	last := func(n uint64, magic string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), magic...)
	}
	for _, n := range []uint64{80, 4096, MaxFooter} {
		if got, err := ParseTrailer(last(n, trailerMagic)); err != nil || got != int64(n) {
			t.Errorf("%d: got %d, %v", n, got, err)
		}
	}
	for _, b := range [][]byte{nil, last(4096, "SWAMPENX"), last(79, trailerMagic), last(MaxFooter+1, trailerMagic),
		last(1<<63, trailerMagic), last(4096, trailerMagic+"x"), last(4096, "")} {
		if got, err := ParseTrailer(b); !errors.Is(err, ErrCorrupt) || got != 0 {
			t.Errorf("%q: got %d, %v", b, got, err)
		}
	}
}

// A decoded value must not change when the caller uses the input's memory for
// something else; only the contents of a record lie in it.
func TestDecodedValuesDoNotLieInTheInput(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		want, err := c.decode(bytes.Clone(object))
		if err != nil {
			t.Fatal(err)
		}
		input := bytes.Clone(object)
		got, err := c.decode(input)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := got.(*Record); ok {
			if len(r.Contents) > 0 && &r.Contents[0] != &input[r.ContentsAt] {
				t.Error("the contents were copied")
			}
			r.Contents = bytes.Clone(r.Contents)
		}
		clear(input)
		if !reflect.DeepEqual(got, want) {
			t.Error("it changed with the input")
		}
	})
}

func TestAnotherMagicIsRefused(t *testing.T) {
	forSamples(t, func(t *testing.T, c codec, object []byte) {
		frame, _ := trailer(c.kind, bytes.Clone(object))
		frame[0] = 'x'
		if _, err := c.decode(resum(c.kind, frame)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("got %v", err)
		}
	})
	if _, err := sealFrame(frameList, nil, []byte("x"), 0); !errors.Is(err, ErrLimit) {
		t.Errorf("a tail where there is none: got %v", err)
	}
}

func TestChecksumCoversAllButItself(t *testing.T) {
	object := mustEncode(t, EncodeRecord, sampleInline())
	h := sha256.New()
	h.Write(object[:32])
	h.Write(object[64:])
	if !bytes.Equal(h.Sum(nil), object[32:64]) {
		t.Error("the header does not hold the sha256 of everything but bytes 32 to 63")
	}
}
