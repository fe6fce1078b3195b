package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/swampd/swampd/backend"
)

// Op is a kind of call, or several of them: Create|Replace.
type Op uint8

// The kinds of calls.
const (
	Get Op = 1 << iota
	Create
	Replace
	Delete
	List
	Clean

	Any    Op = 0 // in a Rule: every kind
	Reads     = Get | List
	Writes    = Create | Replace | Delete
)

const everyOp = Reads | Writes | Clean

func (o Op) String() string {
	names := []string{"get", "create", "replace", "delete", "list", "clean"}
	var s []string
	for i, n := range names {
		if o&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, "|")
}

// Action is what a fault does to the calls that it strikes.
type Action struct {
	kind  kind
	name  string
	ops   Op // the calls it has a meaning for
	err   error
	n     int64
	deaf  bool
	delay time.Duration
}

type kind int

const (
	fail kind = iota + 1
	lose
	late
	block
	blockAnswer
	delay
	partial
	cutBody
	blockBody
	flipBody
)

func (a Action) String() string { return a.name }

// Fail does nothing and returns err.
func Fail(err error) Action {
	return Action{kind: fail, name: "failed", ops: everyOp, err: err}
}

// Lose carries the call out and loses the answer, whatever it was: the caller
// gets backend.ErrUnknown.
func Lose() Action { return Done(fmt.Errorf("%w (the fault lost it)", backend.ErrUnknown)) }

// Done carries the call out and returns err in place of the answer.
func Done(err error) Action {
	return Action{kind: lose, name: "failed but done", ops: everyOp, err: err}
}

// Late returns backend.ErrUnknown at once and carries the call out when the
// fault is released. The content is read when the call is made.
func Late() Action {
	return Action{kind: late, name: "late", ops: Writes, err: fmt.Errorf("%w (the fault makes it late)", backend.ErrUnknown)}
}

// Block holds the call before it is carried out, until the fault is released.
// If the context ends first, the call is not carried out, and fails: a write
// with backend.ErrUnknown, since a caller cannot know, and all with the
// context's error in the chain.
func Block() Action { return Action{kind: block, name: "blocked", ops: everyOp} }

// BlockAnswer carries the call out and holds the answer until the fault is
// released. A context that ends first loses it, as with Block.
func BlockAnswer() Action {
	return Action{kind: blockAnswer, name: "answer blocked", ops: everyOp}
}

// Hang is Block that does not listen to the context, as a call that is stuck in
// the kernel: it goes on only when released, and is carried out then.
func Hang() Action { return Block().Deaf() }

// Delay holds the call for a time before it is carried out, or until the
// context ends. It is for tests under testing/synctest.
func Delay(d time.Duration) Action {
	return Action{kind: delay, name: "delayed", ops: everyOp, delay: d}
}

// Partial deletes the first n keys, or lists the first n entries, and then
// fails with err.
func Partial(n int, err error) Action {
	return Action{kind: partial, name: "partly done", ops: Delete | List, n: int64(n), err: err}
}

// Truncate ends the body of a Get after n bytes with io.ErrUnexpectedEOF.
func Truncate(n int64) Action { return CutBody(n, io.ErrUnexpectedEOF) }

// CutBody ends the body of a Get after n bytes with err. A body that is not
// longer than n ends with err too.
func CutBody(n int64, err error) Action {
	return Action{kind: cutBody, name: "body cut", ops: Get, n: n, err: err}
}

// BlockBody holds the body of a Get after n bytes until the fault is released
// or the context of the Get ends.
func BlockBody(n int64) Action {
	return Action{kind: blockBody, name: "body blocked", ops: Get, n: n}
}

// Flip changes the lowest bit of byte n (counted modulo the length) of what the
// body of a Get delivers.
func Flip(n int64) Action {
	return Action{kind: flipBody, name: "bit flipped", ops: Get, n: n}
}

// Deaf returns the action without its ear for the context: what it holds goes
// on only when released, and is carried out then.
func (a Action) Deaf() Action {
	a.deaf = true
	if a.kind == block {
		a.name = "hanging"
	}
	return a
}

// Usual are the faults that every caller has to live with on any request, each
// with a name for a subtest.
func Usual() map[string]Action {
	return map[string]Action{
		"no answer, not done": Fail(fmt.Errorf("%w (the fault dropped the request)", backend.ErrUnknown)),
		"no answer, but done": Lose(),
		"busy":                Fail(backend.ErrBusy),
		"conflict":            Fail(backend.ErrConflict),
		"denied":              Fail(backend.ErrDenied),
	}
}

// Rule says which calls a fault strikes and what it does to them.
type Rule struct {
	// Ops is the kinds of calls; zero (Any) is all for which Do has a meaning.
	Ops Op
	// Prefix is how the key begins; for Delete, that of any of its keys; for List,
	// the prefix that is asked for. CleanUploads has the key "".
	Prefix string
	// Nth is the first matching call that is struck, counted from 1 since the rule
	// was added; 0 means 1.
	Nth int
	// Times is how many matching calls in a row are struck; 0 means 1, Always
	// all from Nth on.
	Times int
	// Do is what happens to them.
	Do Action
}

// Always is for Rule.Times.
const Always = -1

func (r *Rule) matches(op Op, keys []string) bool {
	if op&r.Do.ops == 0 || r.Ops != Any && op&r.Ops == 0 {
		return false
	}
	for _, k := range keys {
		if strings.HasPrefix(k, r.Prefix) {
			return true
		}
	}
	return r.Prefix == ""
}

// due says whether the count-th matching call is struck.
func (r *Rule) due(count int) bool {
	first, times := max(r.Nth, 1), max(r.Times, 1)
	if count < first {
		return false
	}
	return r.Times == Always || count < first+times
}

// Fault is a rule at work.
type Fault struct {
	rule    Rule
	reached chan struct{}
	free    chan struct{} // closed by Release
	once    sync.Once     // closes reached

	mu       sync.Mutex
	count    int // matching calls so far
	fired    int
	removed  bool
	released bool
	late     []func() error
}

// Fired returns how many calls the fault has struck.
func (f *Fault) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// Reached is closed as soon as the fault has had its effect on a first call:
// the call is held, or failed, or done and its answer lost.
func (f *Fault) Reached() <-chan struct{} { return f.reached }

// Remove ends the rule: no further call is struck. What is held stays held.
func (f *Fault) Remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = true
}

// Release lets go what the fault holds, and holds nothing any more; late calls
// are carried out before it returns, in their order. It returns what their
// answers would have been, joined: nil if all of them succeeded.
func (f *Fault) Release() error {
	f.mu.Lock()
	if !f.released {
		f.released = true
		close(f.free)
	}
	calls := f.late
	f.late = nil
	f.mu.Unlock()
	var errs []error
	for _, call := range calls {
		errs = append(errs, call())
	}
	return errors.Join(errs...)
}

// strike counts a matching call and says whether it is to be struck; taken says
// that an earlier rule strikes it already.
func (f *Fault) strike(op Op, keys []string, taken bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed || !f.rule.matches(op, keys) {
		return false
	}
	f.count++
	if taken || !f.rule.due(f.count) {
		return false
	}
	f.fired++
	return true
}

func (f *Fault) reach() { f.once.Do(func() { close(f.reached) }) }

// hold waits until the fault is released, or the context ends.
func (f *Fault) hold(ctx context.Context) error {
	f.reach()
	select {
	case <-f.free:
		return nil
	default:
	}
	if f.rule.Do.deaf {
		<-f.free
		return nil
	}
	select {
	case <-f.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait is the part of a fault that comes before the call is carried out. It
// returns the context to carry it out with.
func (f *Fault) wait(ctx context.Context, op Op) (context.Context, error) {
	a := f.rule.Do
	var err error
	switch a.kind {
	case fail:
		f.reach()
		return ctx, a.err
	case block:
		err = f.hold(ctx)
	case delay:
		f.reach()
		t := time.NewTimer(a.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return ctx, unanswered(op, err)
	}
	if a.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	return ctx, nil
}

// unanswered is the error of a call whose context ended before its answer came.
func unanswered(op Op, err error) error {
	if op&Writes != 0 {
		return fmt.Errorf("%w: %w", backend.ErrUnknown, err)
	}
	return err
}

// answer is the part of a fault that comes after the call was carried out: err
// is the real answer, the result what the caller is told.
func (f *Fault) answer(ctx context.Context, op Op, err error) error {
	switch a := f.rule.Do; a.kind {
	case lose:
		f.reach()
		return a.err
	case blockAnswer:
		if herr := f.hold(ctx); herr != nil {
			return unanswered(op, herr)
		}
	}
	return err
}

// postpone keeps a call for Release.
func (f *Fault) postpone(call func() error) error {
	f.mu.Lock()
	released := f.released
	if !released {
		f.late = append(f.late, call)
	}
	f.mu.Unlock()
	f.reach()
	if released {
		return call()
	}
	return f.rule.Do.err
}
