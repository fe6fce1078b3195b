// Program swampd keeps files in a versioned datastore in a directory, an S3
// bucket or a GCS bucket: the command line of package datastore.
//
// It holds no logic of the engine: it parses flags, walks files, restores files
// and speaks to people (tables, progress) or programs (--json, see json.go).
//
// Whatever ends a command (an error, Ctrl-C, a closed pipe) leaves nothing
// half-made: a change is one commit, which is made or not made, a file that is
// written appears whole under its name or not at all, and the writer's hold is
// given back. The exit code says what to do next, see exit codes in errors.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	_ "github.com/swampd/swampd/backend/fs"
	_ "github.com/swampd/swampd/backend/gcs"
	_ "github.com/swampd/swampd/backend/s3"
)

func main() {
	ctx, stop := watchSignals(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program: it returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut *os.File) int {
	a := newApp(in, out, errOut)
	root := a.rootCommand()
	root.SetArgs(negativeSlots(root, args))
	root.SetIn(in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	// Before the flags are parsed, so that an error in them has the right form too.
	a.json = slices.Contains(untilDashes(args), "--json")
	err := root.ExecuteContext(ctx)
	if flushed := a.out.Flush(); err == nil {
		err = flushed
	}
	if err == nil {
		return 0
	}
	return a.report(ctx, err)
}

// signalError is the cause of the context that a signal ended.
type signalError struct{ sig os.Signal }

func (e *signalError) Error() string {
	switch e.sig {
	case syscall.SIGTERM:
		return "terminated"
	case syscall.SIGHUP:
		return "the terminal was closed"
	}
	return "interrupted"
}

func (e *signalError) exitCode() int {
	switch e.sig {
	case syscall.SIGTERM:
		return exitTerminated
	case syscall.SIGHUP:
		return exitHangup
	}
	return exitInterrupted
}

// watchSignals ends the context at the first SIGINT, SIGTERM or SIGHUP and the
// program at the second. What the program was told to ignore from its start, as
// nohup and a shell's & do, it goes on to ignore. SIGPIPE becomes an error of
// the write, so that what was begun is cleaned up.
func watchSignals(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 2)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(ch, sig)
		}
	}
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGPIPE)
	done := make(chan struct{})
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		select {
		case sig := <-ch:
			cancel(&signalError{sig})
		case <-done:
			return
		}
		select {
		case sig := <-ch:
			fmt.Fprintln(os.Stderr, "swampd: stopped at once")
			os.Exit((&signalError{sig}).exitCode())
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		<-joined
		cancel(nil)
	}
}

// interrupted returns the signal that ended ctx, if one did.
func interrupted(ctx context.Context) *signalError {
	var s *signalError
	if ctx.Err() != nil && errors.As(context.Cause(ctx), &s) {
		return s
	}
	return nil
}

func untilDashes(args []string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i]
	}
	return args
}
