package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/internal/format"
	"github.com/swampd/swampd/writer"
)

// The exit codes, as the help of swampd documents them.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitTryAgain    = 75 // EX_TEMPFAIL
	exitHangup      = 129
	exitInterrupted = 130
	exitPipe        = 141 // as a shell reports SIGPIPE
	exitTerminated  = 143
)

// usageError is wrong use: exit code 2. hint says what to do instead.
type usageError struct{ text, hint string }

func (e *usageError) Error() string { return e.text }

func usagef(hint, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), hint}
}

// refusal is an error of the command itself: what, and what to do next.
type refusal struct {
	kind, text, hint string
	problems         []problem
	count            int // of all problems; problems holds the first ones
	err              error
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.err }

// rule says how an error is told to people and programs.
type rule struct {
	is   error
	kind string
	exit int
	hint string
}

// rules are tried in order: first what leaves a question open, then what the
// store says, then what the engine makes of it.
var rules = []rule{
	{datastore.ErrUnconfirmed, "unconfirmed", exitTryAgain, "ask what became of it with: swampd log --id ID"},
	{datastore.ErrFenced, "fenced", exitFailed, "nothing of this command was stored, and nothing will be; do not retry it blindly: another writer took over, so look at the new state first (swampd log, swampd diff -1)"},
	{datastore.ErrConflict, "conflict", exitFailed, "look at what changed (swampd diff -1), then run this again if it is still wanted"},
	{datastore.ErrBusy, "busy", exitTryAgain, "nothing was changed; try again when it is done, or wait longer with --max-wait"},
	{datastore.ErrUpgrade, "upgrade", exitFailed, "install a newer swampd"},
	{datastore.ErrCorrupt, "corrupt", exitFailed, "find out how much is damaged with: swampd verify --read-data"},
	{datastore.ErrUnsupportedStore, "unsupported-store", exitFailed, "use a store that honours conditional writes; details: swampd doctor"},
	{datastore.ErrBadPath, "bad-path", exitUsage, ""},
	{datastore.ErrIDReused, "id-reused", exitUsage, "use another --id for another change"},
	{datastore.ErrChanged, "changed", exitFailed, "nothing was stored; run this again when the file is at rest"},
	{datastore.ErrGone, "gone", exitFailed, "see what is left with: swampd log PATH"},
	{datastore.ErrExists, "exists", exitFailed, "use it as it is, or choose another address"},
	{datastore.ErrEmpty, "empty", exitFailed, ""},
	{backend.ErrDenied, "denied", exitFailed, "check the credentials and what they allow; details: swampd doctor"},
	{backend.ErrNoBucket, "no-bucket", exitFailed, "make the bucket or directory, or correct the address"},
	{backend.ErrFull, "full", exitFailed, "make room in the store, then run this again"},
	{syscall.ENOSPC, "full", exitFailed, "make room there, or keep the local files elsewhere with --state-dir, then run this again"},
	{backend.ErrBusy, "throttled", exitTryAgain, "the store asks for fewer requests; try again later"},
	{backend.ErrUnsupported, "unsupported-store", exitUsage, ""},
	{datastore.ErrNotFound, "not-found", exitFailed, ""},
	{backend.ErrUnknown, "unreachable", exitFailed, "check the network and the address; details: swampd doctor"},
	{context.DeadlineExceeded, "timeout", exitFailed, "check the network and the address; details: swampd doctor"},
	{fs.ErrPermission, "denied", exitFailed, "check who owns it and what its permissions allow"},
	{syscall.EROFS, "denied", exitFailed, "keep the local files where they can be written, with --state-dir"},
}

// explain turns any error into what people and programs are told.
func (a *app) explain(ctx context.Context, err error) errorJSON {
	e := errorJSON{Error: plain(err), Kind: "failed", ExitCode: exitFailed, Detail: err.Error()}
	var use *usageError
	var ref *refusal
	switch {
	case errors.As(err, &use):
		e.Kind, e.ExitCode, e.Error, e.Hint = "usage", exitUsage, use.text, use.hint
	case !a.parsed: // found by the flag parser
		e.Kind, e.ExitCode, e.Hint = "usage", exitUsage, "see: swampd --help"
	case errors.As(err, &ref):
		e.Kind, e.Error, e.Hint, e.Problems, e.Count = ref.kind, ref.text, ref.hint, ref.problems, ref.count
		e.ExitCode = exitFailed
	default:
		for _, r := range rules {
			if errors.Is(err, r.is) {
				e.Kind, e.ExitCode, e.Hint = r.kind, r.exit, r.hint
				break
			}
		}
		var at *backend.Error
		if e.Kind == "failed" && errors.As(err, &at) && at.Op == "open" {
			// A driver that opens sends no request: it did not like the address, or
			// the configuration that goes with it.
			e.Kind, e.ExitCode, e.Hint = "address", exitUsage, "correct the address of the store, or the configuration that it needs"
		}
		var place interface{ WrongRegion() bool }
		if errors.As(err, &place) && place.WrongRegion() && e.Kind != "unconfirmed" {
			e.Kind, e.ExitCode = "wrong-region", exitFailed
			e.Hint = "put the region of the bucket into the address of the store (?region=NAME), or into AWS_REGION"
		}
		if e.Kind == "failed" && offline(err) {
			e.Kind, e.Hint = "unreachable", "check the network and the address; details: swampd doctor"
		}
		if a.outFile != nil && isOutput(err, a.outFile.Name()) {
			e.Kind, e.Hint = "output", "what the command did to the datastore is done; only its output is not whole"
		}
		a.refine(err, &e)
	}
	if a.asking && e.ExitCode == exitFailed && e.Kind != "not-found" && e.Kind != "no-datastore" {
		e.ExitCode = exitTryAgain // no answer is not the answer that it did not land
	}
	if sig := interrupted(ctx); sig != nil {
		e.ExitCode = sig.exitCode()
		if e.Kind != "unconfirmed" {
			e.Kind, e.Error, e.Hint = "interrupted", sig.Error(), ""
		}
	}
	e.Error, e.Hint, e.Detail = a.scrub(e.Error), a.scrub(e.Hint), a.scrub(e.Detail)
	if e.Detail == e.Error {
		e.Detail = ""
	}
	return e
}

// secrets are the parts of an address that nobody but the store may see:
// passwords, and the values of parameters that are named like secrets.
var secrets = regexp.MustCompile(`(?i)(://[^/@?#]*?:)([^/@]+)(@)|([?&][^=&]*(?:secret|token|password)[^=&]*=)([^&\s"]+)()`)

// scrub removes them wherever they came from: an error may hold the address as
// it was given, parsed or not.
func (a *app) scrub(text string) string {
	return secrets.ReplaceAllString(text, "${1}${4}redacted${3}")
}

// offline says that the store was not reached at all.
func offline(err error) bool {
	var network *net.OpError
	var name *net.DNSError
	return errors.As(err, &network) || errors.As(err, &name)
}

// refine says more where the same sentinel means different things.
func (a *app) refine(err error, e *errorJSON) {
	var other *writer.BusyError
	if errors.As(err, &other) {
		e.Error = busy(other)
		if e.Kind == "busy" {
			e.Hint = a.busyHint(other)
		}
	}
	var release *releaseError
	if errors.As(err, &release) {
		defer release.refine(e)
	}
	var op *datastore.Error
	if !errors.As(err, &op) {
		return
	}
	switch e.Kind {
	case "denied":
		if errors.Is(err, backend.ErrDenied) && directoryOf(a.shownStore()) != "" {
			e.Hint = deniedDirectory // no credentials open a directory
		}
	case "not-found":
		if opens[op.Op] && shown(op.Key) == a.shownStore() {
			e.Kind = "no-datastore"
			e.Error = "there is no datastore at " + shortStore(a.shownStore())
			e.Hint = "make one with: swampd init -s " + quoteArg(a.shownStore())
		}
	case "fenced":
		if errors.Is(err, writer.ErrExpired) {
			e.Hint = strings.Replace(e.Hint, "another writer took over", "this process could not renew its lease in time, and another writer may have taken over", 1)
		}
	case "corrupt":
		a.refineLease(e)
	case "exists":
		if op.Op == "init" {
			e.Error = "there is a datastore already at " + shortStore(a.shownStore())
		}
	case "unconfirmed":
		if e.Commit = op.Key; e.Commit != "" {
			e.Hint = "ask what became of it with: swampd log --id " + e.Commit
		}
	}
}

// opens are the operations that look for a datastore at an address.
var opens = map[string]bool{"open": true, "lock status": true, "lock release": true}

// leaseCure is where the engine's word about a lease that cannot be read turns
// to what must be done.
const leaseCure = "; once no writer runs, "

// refineLease: a lease that cannot be read is no damage that verify could find,
// and in a directory it is several files.
func (a *app) refineLease(e *errorJSON) {
	text, cure, found := strings.Cut(e.Error, leaseCure)
	if !found {
		return
	}
	if dir := directoryOf(a.shownStore()); dir != "" {
		files := filepath.Join(dir, filepath.FromSlash(format.LeaseKey)) + ".*"
		cure = strings.Replace(cure, "the object "+format.LeaseKey, "the files "+files, 1)
	}
	e.Error, e.Hint = text, strings.TrimPrefix(leaseCure, "; ")+cure
}

const deniedDirectory = "check who owns it, what its permissions allow, and how it is mounted"

// plain is the text of an error without what only programmers understand: the
// names of operations that wrap one another, and the store's protocol.
func plain(err error) string {
	text := err.Error()
	var op *datastore.Error
	if errors.As(err, &op) {
		text = op.Err.Error()
		if op.Key != "" && !strings.Contains(text, op.Key) && !strings.Contains(op.Key, "://") {
			text = op.Key + ": " + text
		}
	}
	var at *backend.Error
	if errors.As(err, &at) {
		where := shortStore(at.Store)
		if at.Key != "" && !strings.HasPrefix(at.Key, backend.ControlPrefix) {
			where += ": " + at.Key
		}
		text = where + ": " + storeReason(at.Err)
	}
	for _, n := range noise {
		text, _, _ = strings.Cut(text, n)
	}
	// The engine speaks to programmers of its options.
	return strings.ReplaceAll(text, "Options.StateDir", "--state-dir")
}

// noise begins what an SDK says after everything has been said.
var noise = []string{": failed to refresh cached credentials"}

// storeReason is what a store answered, in its own words where they are plain.
func storeReason(err error) string {
	var said interface {
		ErrorCode() string
		ErrorMessage() string
	}
	for _, sentinel := range []error{backend.ErrDenied, backend.ErrNoBucket, backend.ErrFull, backend.ErrBusy} {
		if errors.Is(err, sentinel) && errors.As(err, &said) && said.ErrorCode() != "" {
			return strings.TrimSuffix(fmt.Sprintf("%v (%s: %s", sentinel, said.ErrorCode(), said.ErrorMessage()), ": ") + ")"
		}
	}
	return err.Error()
}

// report tells an error and returns the exit code.
func (a *app) report(ctx context.Context, err error) int {
	if errors.Is(err, syscall.EPIPE) && interrupted(ctx) == nil && isOutput(err, a.outFile.Name()) {
		return exitPipe // whoever read our output has enough
	}
	e := a.explain(ctx, err)
	if a.json {
		enc := json.NewEncoder(a.errOut)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(e) // nowhere is left to tell that standard error fails
		return e.ExitCode
	}
	fmt.Fprintln(a.errOut, "swampd: "+printable(e.Error))
	a.list(e.Problems, e.Count)
	if e.Hint != "" {
		fmt.Fprintln(a.errOut, "  "+printable(e.Hint))
	}
	return e.ExitCode
}

// list names problems on standard error.
func (a *app) list(problems []problem, count int) {
	for _, p := range problems {
		fmt.Fprintf(a.errOut, "  %s: %s\n", printable(p.Path), printable(p.Error))
	}
	if more := count - len(problems); more > 0 {
		fmt.Fprintf(a.errOut, "  … and %d more\n", more)
	}
}

// isOutput says whether err comes from writing to the named file.
func isOutput(err error, name string) bool {
	var p *fs.PathError
	return errors.As(err, &p) && p.Op == "write" && p.Path == name
}

// fileReason is why a file could not be stored, without its name.
func fileReason(err error) string {
	var special specialError
	switch {
	case errors.Is(err, datastore.ErrChanged):
		return "changed while it was read"
	case errors.Is(err, fs.ErrNotExist):
		return "vanished while it was read"
	case errors.As(err, &special):
		return special.Error()
	}
	return ioReason(err)
}

// ioReason is why the system refused something, without the names that the
// caller tells anyway.
func ioReason(err error) string {
	var p *fs.PathError
	var l *os.LinkError
	var s *os.SyscallError
	var bad *format.PathError
	switch {
	case errors.As(err, &bad):
		return bad.Reason
	case errors.As(err, &p):
		return p.Err.Error()
	case errors.As(err, &l):
		return l.Err.Error()
	case errors.As(err, &s):
		return s.Err.Error()
	}
	return plain(err)
}
