package main

import (
	"context"
	"io"
)

// input is a reader that stops when its context ends, even while the reader
// beneath is stuck in a read that nothing can interrupt, as of a terminal or a
// pipe. The goroutine that is stuck then ends with the process.
type input struct {
	ctx    context.Context
	filled chan chunk
	empty  chan []byte
	rest   []byte
	buf    []byte // what rest is part of
	err    error
}

type chunk struct {
	b   []byte // whole buffer
	n   int
	err error
}

const (
	inputBuffers = 3
	inputBuffer  = 1 << 20
)

func newInput(ctx context.Context, r io.Reader) *input {
	in := &input{ctx: ctx, filled: make(chan chunk, inputBuffers), empty: make(chan []byte, inputBuffers)}
	for range inputBuffers {
		in.empty <- make([]byte, inputBuffer)
	}
	go func() {
		for {
			var b []byte
			select {
			case b = <-in.empty:
			case <-ctx.Done():
				return
			}
			n, err := r.Read(b)
			in.filled <- chunk{b, n, err} // there is room for every buffer
			if err != nil {
				return
			}
		}
	}()
	return in
}

func (in *input) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		if in.buf != nil {
			in.empty <- in.buf
			in.buf = nil
		}
		if in.err != nil {
			return 0, in.err
		}
		select {
		case c := <-in.filled:
			in.buf, in.rest, in.err = c.b, c.b[:c.n], c.err
		case <-in.ctx.Done():
			return 0, context.Cause(in.ctx)
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}
