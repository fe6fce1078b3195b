package format

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The window bounds what an encoder holds for each goroutine; nothing that is
// compressed here gains from a larger one.
const zstdWindow = 1 << 20

// One encoder and one decoder for the process: EncodeAll and DecodeAll run in
// the goroutine that calls them and keep one state for each of GOMAXPROCS.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		// Much that comes here does not compress, contents as well as lists full of
		// hashes: the fastest level gives up on that in a third of the time, and makes
		// the rest a few hundredths larger. A single segment says its size also where
		// it is below 256 bytes, which the format asks for. Checksums are taken outside.
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(zstdWindow),
			zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false))
		if err != nil {
			panic(fmt.Sprintf("the options of the zstd encoder are wrong: %v", err))
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderMaxMemory(MaxFooterBody), zstd.WithDecoderMaxWindow(MaxFooterBody))
		if err != nil {
			panic(fmt.Sprintf("the options of the zstd decoder are wrong: %v", err))
		}
		return d
	})
)

// Compress appends src to dst, as one zstd frame where that saves a tenth, and
// as it is otherwise. Equal bytes give equal bytes.
func Compress(dst, src []byte) ([]byte, Codec) {
	before := len(dst)
	dst = encoder().EncodeAll(src, dst)
	if got := len(dst) - before; got > 0 && got <= len(src)-(len(src)+9)/10 {
		return dst, CodecZstd
	}
	return append(dst[:before], src...), CodecRaw
}

// Decompress appends the size bytes that stored holds to dst. Stored bytes that
// give another number of bytes are ErrCorrupt, and take no more memory than
// size. The caller checks size against its own limit before.
func Decompress(dst, stored []byte, codec Codec, size int) ([]byte, error) {
	switch codec {
	case CodecRaw:
		if len(stored) != size {
			return dst, fmt.Errorf("%w: %d bytes are stored, should be %d", ErrCorrupt, len(stored), size)
		}
		return append(dst, stored...), nil
	case CodecZstd:
		return decompress(dst, stored, size)
	}
	return dst, fmt.Errorf("codec %d: %w", codec, ErrUpgrade)
}

// slack is room that lets the decoder copy in whole words.
const slack = 16

func decompress(dst, stored []byte, size int) ([]byte, error) {
	var head zstd.Header
	if err := head.Decode(stored); err != nil {
		return dst, fmt.Errorf("%w: no zstd frame: %v", ErrCorrupt, err)
	}
	if !head.HasFCS || head.FrameContentSize != uint64(size) {
		return dst, fmt.Errorf("%w: the zstd frame says it holds %d bytes, should be %d", ErrCorrupt, head.FrameContentSize, size)
	}
	before := len(dst)
	if cap(dst)-before < size+slack {
		grown := make([]byte, before, before+size+slack)
		copy(grown, dst)
		dst = grown
	}
	out, err := decoder().DecodeAll(stored, dst[:before:before+size+slack])
	if err != nil {
		return dst, fmt.Errorf("%w: zstd: %v", ErrCorrupt, err)
	}
	if len(out)-before != size {
		return dst, fmt.Errorf("%w: %d bytes came out of the zstd frame, should be %d", ErrCorrupt, len(out)-before, size)
	}
	return out, nil
}
