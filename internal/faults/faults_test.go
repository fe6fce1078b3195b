package faults_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/backendtest"
	"github.com/swampd/swampd/internal/faults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without rules the wrapper is the store that it wraps.
func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(testing.TB) func() *backend.Bucket {
			store := memory.New(nil)
			return func() *backend.Bucket { return faults.Wrap(store.Open()).Bucket() }
		},
		Dates: true,
	})
}

// bench is a store seen through faults, and behind their back.
type bench struct {
	*testing.T
	f     *faults.Driver
	b     *backend.Bucket // through faults
	clear *backend.Bucket
}

func newBench(t *testing.T) *bench {
	store := memory.New(nil)
	f := faults.Wrap(store.Open())
	t.Cleanup(f.Clear)
	return &bench{T: t, f: f, b: f.Bucket(), clear: store.Bucket()}
}

func (b *bench) create(ctx context.Context, key, text string) error {
	_, err := b.b.Create(ctx, key, backend.Bytes([]byte(text)))
	return err
}

func (b *bench) read(key string) (string, error) {
	obj, err := b.b.Get(b.Context(), key, backend.GetOptions{})
	if err != nil {
		return "", err
	}
	defer obj.Body.Close()
	data, err := io.ReadAll(obj.Body)
	return string(data), err
}

func (b *bench) keys() []string {
	b.Helper()
	var keys []string
	for e, err := range b.clear.List(b.Context(), "", "") {
		if err != nil {
			b.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

func (b *bench) want(err, want error, keys ...string) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("error %v, want %v", err, want)
	}
	if got := b.keys(); !slices.Equal(got, keys) {
		b.Errorf("the store holds %q, want %q", got, keys)
	}
}

func TestFailDoesNothing(t *testing.T) {
	for _, want := range []error{backend.ErrUnknown, backend.ErrBusy, backend.ErrDenied, backend.ErrConflict, io.ErrClosedPipe} {
		b := newBench(t)
		f := b.f.Add(faults.Rule{Do: faults.Fail(want), Times: faults.Always})
		b.want(b.create(t.Context(), "data/x", "x"), want)
		_, err := b.read("data/x")
		b.want(err, want)
		b.want(b.b.Delete(t.Context(), []string{"data/x"}), want)
		_, err = b.b.CleanUploads(t.Context(), 0)
		b.want(err, want)
		n := 0
		for _, err := range b.b.List(t.Context(), "", "") {
			b.want(err, want)
			n++
		}
		if n != 1 || f.Fired() != 5 {
			t.Errorf("the list yields %d times, want 1; the fault struck %d times, want 5", n, f.Fired())
		}
	}
}

func TestLoseDoesItAndLosesTheAnswer(t *testing.T) {
	b := newBench(t)
	b.f.Add(faults.Rule{Ops: faults.Create, Do: faults.Lose()})
	b.want(b.create(t.Context(), "_control/x", "x"), backend.ErrUnknown, "_control/x")
	b.want(b.create(t.Context(), "_control/x", "x"), backend.ErrExists, "_control/x")

	// The answer is lost when it is a refusal, too.
	b.f.Add(faults.Rule{Ops: faults.Create, Do: faults.Lose()})
	err := b.create(t.Context(), "_control/x", "y")
	b.want(err, backend.ErrUnknown, "_control/x")
	if errors.Is(err, backend.ErrExists) {
		t.Errorf("%v tells what was lost", err)
	}

	obj, err := b.b.Get(t.Context(), "_control/x", backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	obj.Body.Close()
	b.f.Add(faults.Rule{Ops: faults.Replace, Do: faults.Done(backend.ErrBusy)})
	info, err := b.b.Replace(t.Context(), "_control/x", backend.Bytes([]byte("new")), obj.Version)
	b.want(err, backend.ErrBusy, "_control/x")
	if info != (backend.Info{}) {
		t.Errorf("the lost answer told %+v", info)
	}
	if got, err := b.read("_control/x"); got != "new" {
		t.Errorf("holds %q, %v, want new", got, err)
	}
	b.f.Add(faults.Rule{Ops: faults.Delete, Do: faults.Lose()})
	b.want(b.b.Delete(t.Context(), []string{"_control/x"}), backend.ErrUnknown)
	b.f.Add(faults.Rule{Ops: faults.Get, Do: faults.Lose()})
	if _, err := b.read("_control/x"); !errors.Is(err, backend.ErrUnknown) || errors.Is(err, backend.ErrNotFound) {
		t.Errorf("get: %v, want %v alone", err, backend.ErrUnknown)
	}
}

func TestLateIsCarriedOutWhenReleased(t *testing.T) {
	b := newBench(t)
	f := b.f.Add(faults.Rule{Ops: faults.Writes, Times: 3, Do: faults.Late()})
	ctx, cancel := context.WithCancel(t.Context())
	content := []byte("one")
	body := backend.Bytes(content)
	_, err := b.b.Create(ctx, "data/x", body)
	b.want(err, backend.ErrUnknown)
	clear(content) // the request was sent: what becomes of the source does not matter
	cancel()
	b.want(b.create(t.Context(), "data/x", "two"), backend.ErrUnknown)
	b.want(b.create(t.Context(), "data/y", "y"), backend.ErrUnknown)
	if err := f.Release(); !errors.Is(err, backend.ErrExists) {
		t.Errorf("release: %v, want %v of the second create", err, backend.ErrExists)
	}
	if got, err := b.read("data/x"); got != "one" {
		t.Errorf("holds %q, %v, want one", got, err)
	}
	b.want(nil, nil, "data/x", "data/y")

	late := b.f.Add(faults.Rule{Ops: faults.Delete, Do: faults.Late()})
	b.want(b.b.Delete(t.Context(), []string{"data/x"}), backend.ErrUnknown, "data/x", "data/y")
	b.want(late.Release(), nil, "data/y")
	if err := late.Release(); err != nil {
		t.Errorf("a second release: %v", err)
	}
}

func TestNthOpsPrefixAndTimes(t *testing.T) {
	b := newBench(t)
	second := b.f.Add(faults.Rule{Ops: faults.Create, Prefix: "commits/", Nth: 2, Times: 2, Do: faults.Fail(backend.ErrBusy)})
	var struck []string
	for _, k := range []string{"data/1", "commits/1", "data/2", "commits/2", "commits/3", "commits/4", "data/3"} {
		if err := b.create(t.Context(), k, k); errors.Is(err, backend.ErrBusy) {
			struck = append(struck, k)
		}
		if _, err := b.read("commits/1"); errors.Is(err, backend.ErrBusy) {
			t.Error("a get is struck by a rule for creates")
		}
	}
	if want := []string{"commits/2", "commits/3"}; !slices.Equal(struck, want) || second.Fired() != 2 {
		t.Errorf("struck %q, %d calls; want %q", struck, second.Fired(), want)
	}

	// A delete matches by any of its keys.
	del := b.f.Add(faults.Rule{Ops: faults.Delete, Prefix: "commits/", Do: faults.Fail(backend.ErrBusy)})
	if err := b.b.Delete(t.Context(), []string{"data/1", "data/2"}); err != nil {
		t.Error(err)
	}
	if err := b.b.Delete(t.Context(), []string{"data/3", "commits/1"}); !errors.Is(err, backend.ErrBusy) || del.Fired() != 1 {
		t.Errorf("delete: %v", err)
	}
}

func TestFirstRuleStrikesAndAllCount(t *testing.T) {
	b := newBench(t)
	first := b.f.Add(faults.Rule{Ops: faults.Create, Do: faults.Fail(backend.ErrBusy)})
	second := b.f.Add(faults.Rule{Ops: faults.Create, Nth: 2, Do: faults.Fail(backend.ErrDenied)})
	removed := b.f.Add(faults.Rule{Ops: faults.Create, Times: faults.Always, Do: faults.Fail(backend.ErrFull)})
	removed.Remove()
	b.want(b.create(t.Context(), "data/x", ""), backend.ErrBusy)
	b.want(b.create(t.Context(), "data/x", ""), backend.ErrDenied)
	b.want(b.create(t.Context(), "data/x", ""), nil, "data/x")
	if first.Fired() != 1 || second.Fired() != 1 || removed.Fired() != 0 {
		t.Errorf("struck %d, %d, %d times, want 1, 1, 0", first.Fired(), second.Fired(), removed.Fired())
	}
}

func TestBlockHoldsUntilReleased(t *testing.T) {
	for _, c := range []struct {
		name   string
		do     faults.Action
		inTime []string // what the store holds while the call is held
	}{
		{"before", faults.Block(), nil},
		{"answer", faults.BlockAnswer(), []string{"data/x"}},
		{"hang", faults.Hang(), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			f := b.f.Add(faults.Rule{Ops: faults.Create, Do: c.do})
			answer := make(chan error, 1)
			go func() { answer <- b.create(t.Context(), "data/x", "x") }()
			<-f.Reached()
			b.want(nil, nil, c.inTime...)
			select {
			case err := <-answer:
				t.Fatalf("it is not held: %v", err)
			default:
			}
			if err := f.Release(); err != nil {
				t.Error(err)
			}
			b.want(<-answer, nil, "data/x")
		})
	}
}

func TestBlockAndTheContext(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    faults.Action
		keeps []string
	}{
		{"before", faults.Block(), nil},
		{"answer", faults.BlockAnswer(), []string{"data/x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			f := b.f.Add(faults.Rule{Do: c.do, Times: 2})
			ctx, cancel := context.WithCancel(t.Context())
			answer := make(chan error, 2)
			go func() { answer <- b.create(ctx, "data/x", "x") }()
			<-f.Reached()
			cancel()
			err := <-answer
			b.want(err, context.Canceled, c.keeps...)
			b.want(err, backend.ErrUnknown, c.keeps...)
			_, err = b.b.Get(ctx, "data/x", backend.GetOptions{})
			if !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnknown) {
				t.Errorf("get: %v, want %v alone", err, context.Canceled)
			}
		})
	}
	t.Run("deaf", func(t *testing.T) {
		b := newBench(t)
		f := b.f.Add(faults.Rule{Ops: faults.Create, Do: faults.Hang()})
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() { answer <- b.create(ctx, "data/x", "x") }()
		<-f.Reached()
		cancel()
		b.want(nil, nil)
		if err := f.Release(); err != nil {
			t.Error(err)
		}
		b.want(<-answer, nil, "data/x")
	})
}

func TestDelayOnTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.f.Add(faults.Rule{Do: faults.Delay(time.Minute), Times: 2})
		start := time.Now()
		b.want(b.create(t.Context(), "data/x", "x"), nil, "data/x")
		if d := time.Since(start); d != time.Minute {
			t.Errorf("it took %v, want 1m", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b.want(b.create(ctx, "data/y", "y"), context.DeadlineExceeded, "data/x")
	})
}

func TestBodies(t *testing.T) {
	const text = "0123456789"
	for _, c := range []struct {
		name string
		do   faults.Action
		opts backend.GetOptions
		want string
		err  error
	}{
		{"truncated", faults.Truncate(4), backend.GetOptions{}, "0123", io.ErrUnexpectedEOF},
		{"truncated at once", faults.Truncate(0), backend.GetOptions{}, "", io.ErrUnexpectedEOF},
		{"truncated at the end", faults.Truncate(100), backend.GetOptions{}, text, io.ErrUnexpectedEOF},
		{"truncated in a range", faults.Truncate(2), backend.GetOptions{Offset: 5, Length: 4}, "56", io.ErrUnexpectedEOF},
		{"cut", faults.CutBody(9, backend.ErrUnknown), backend.GetOptions{}, "012345678", backend.ErrUnknown},
		{"flipped", faults.Flip(2), backend.GetOptions{}, "0133456789", nil},
		{"flipped last", faults.Flip(9), backend.GetOptions{}, "0123456788", nil},
		{"flipped modulo", faults.Flip(10), backend.GetOptions{}, "1123456789", nil},
		{"flipped in a range", faults.Flip(1), backend.GetOptions{Offset: 5, Length: 2}, "57", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, whole := range []bool{true, false} {
				b := newBench(t)
				if err := b.create(t.Context(), "data/x", text); err != nil {
					t.Fatal(err)
				}
				f := b.f.Add(faults.Rule{Do: c.do})
				obj, err := b.b.Get(t.Context(), "data/x", c.opts)
				if err != nil {
					t.Fatal(err)
				}
				var r io.Reader = obj.Body
				if !whole {
					r = struct{ io.Reader }{oneByte{obj.Body}}
				}
				got, err := io.ReadAll(r)
				if string(got) != c.want || !errors.Is(err, c.err) {
					t.Errorf("body %q, %v; want %q, %v", got, err, c.want, c.err)
				}
				if err := obj.Body.Close(); err != nil {
					t.Error(err)
				}
				select {
				case <-f.Reached():
				default:
					t.Error("it is not said to be reached")
				}
				// The next is whole: the store itself is not touched.
				if got, err := b.read("data/x"); got != text || err != nil {
					t.Errorf("then %q, %v", got, err)
				}
			}
		})
	}
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

func TestBlockBody(t *testing.T) {
	b := newBench(t)
	if err := b.create(t.Context(), "data/x", "0123456789"); err != nil {
		t.Fatal(err)
	}
	f := b.f.Add(faults.Rule{Do: faults.BlockBody(3), Times: 2})
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		got string
		err error
	}
	results := make(chan result, 1)
	start := func(ctx context.Context) {
		obj, err := b.b.Get(ctx, "data/x", backend.GetOptions{})
		if err != nil {
			results <- result{"", err}
			return
		}
		got, err := io.ReadAll(obj.Body)
		obj.Body.Close()
		results <- result{string(got), err}
	}
	go start(ctx)
	<-f.Reached()
	cancel()
	if r := <-results; r.got != "012" || !errors.Is(r.err, context.Canceled) {
		t.Errorf("%q, %v; want 012, %v", r.got, r.err, context.Canceled)
	}
	go start(t.Context())
	if err := f.Release(); err != nil {
		t.Error(err)
	}
	if r := <-results; r.got != "0123456789" || r.err != nil {
		t.Errorf("%q, %v; want all", r.got, r.err)
	}
}

func TestPartial(t *testing.T) {
	b := newBench(t)
	for _, k := range []string{"data/1", "data/2", "data/3"} {
		if err := b.create(t.Context(), k, k); err != nil {
			t.Fatal(err)
		}
	}
	f := b.f.Add(faults.Rule{Times: faults.Always, Do: faults.Partial(2, backend.ErrBusy)})
	var got []string
	var last error
	for e, err := range b.b.List(t.Context(), "", "") {
		if err != nil {
			last = err
			break
		}
		got = append(got, e.Key)
	}
	if want := []string{"data/1", "data/2"}; !slices.Equal(got, want) || !errors.Is(last, backend.ErrBusy) {
		t.Errorf("list: %q, %v; want %q, %v", got, last, want, backend.ErrBusy)
	}
	err := b.b.Delete(t.Context(), []string{"data/1", "data/2", "data/3"})
	b.want(err, backend.ErrBusy, "data/3")
	if !strings.Contains(err.Error(), "data/3") {
		t.Errorf("%v does not name what remains", err)
	}
	if f.Fired() != 2 {
		t.Errorf("struck %d times, want 2", f.Fired())
	}
}

func TestClearLetsGo(t *testing.T) {
	b := newBench(t)
	held := b.f.Add(faults.Rule{Ops: faults.Create, Prefix: "data/held", Do: faults.Hang()})
	b.f.Add(faults.Rule{Ops: faults.Create, Prefix: "data/late", Do: faults.Late()})
	b.f.Add(faults.Rule{Ops: faults.Create, Prefix: "data/z", Times: faults.Always, Do: faults.Fail(backend.ErrBusy)})
	answer := make(chan error, 1)
	go func() { answer <- b.create(t.Context(), "data/held", "") }()
	<-held.Reached()
	b.want(b.create(t.Context(), "data/late", ""), backend.ErrUnknown)
	b.f.Clear()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	b.want(b.create(t.Context(), "data/z", ""), nil, "data/held", "data/late", "data/z")
}

func TestTraceAndCounts(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(b.create(ctx, "_control/x", "12345"))
	check(b.create(ctx, "commits/1", "abc"))
	_ = b.create(ctx, "commits/1", "abcd") // refused: the trace says so
	_, _ = b.read("commits/2")             // not there: the trace says so
	obj, err := b.b.Get(ctx, "_control/x", backend.GetOptions{Offset: -4, Length: 3})
	check(err)
	_, err = io.Copy(io.Discard, obj.Body)
	check(err)
	check(obj.Body.Close())
	_, err = b.b.Replace(ctx, "_control/x", backend.Bytes(bytes.Repeat([]byte("z"), 40)), obj.Version)
	check(err)
	_, _ = b.b.Get(ctx, "_control/x", backend.GetOptions{IfVersion: obj.Version}) // changed: the trace says so
	for _, err := range b.b.List(ctx, "commits/", "commits/0") {
		check(err)
	}
	b.f.Add(faults.Rule{Ops: faults.Delete, Do: faults.Lose()})
	_ = b.b.Delete(ctx, []string{"commits/1", "commits/9"}) // its answer is lost: the trace says so
	_, err = b.b.CleanUploads(ctx, time.Hour)
	check(err)

	want := `create CONTROL: 5 bytes
create commits/1: 3 bytes
create commits/1: exists already
get commits/2: not found
get CONTROL from -4 length 3: 3 bytes
replace CONTROL: 40 bytes
get CONTROL pinned: holds another version
list commits/ after commits/0: 1 entries
delete commits/1 commits/9: no answer: it may or may not have been done (failed but done)
clean: ok
`
	if got := b.f.Trace(func(k string) string { return strings.ReplaceAll(k, "_control/x", "CONTROL") }); got != want {
		t.Errorf("trace:\n%s\nwant:\n%s", got, want)
	}
	n := b.f.Counts()
	if want := (faults.Counts{Get: 3, Create: 3, Replace: 1, Delete: 1, List: 1, Clean: 1, BytesRead: 3, BytesSent: 52}); n != want {
		t.Errorf("counts %+v, want %+v", n, want)
	}
	if n.Requests() != 10 || n.String() != "3 get, 3 create, 1 replace, 1 delete, 1 list, 1 clean" {
		t.Errorf("%d requests: %v", n.Requests(), n)
	}
	if n := b.f.CountsOf("commits/"); n != (faults.Counts{Get: 1, Create: 2, Delete: 1, List: 1, BytesSent: 7}) {
		t.Errorf("counts of commits/: %+v", n)
	}
	b.f.Reset()
	if n := b.f.Counts(); n.Requests() != 0 || n.String() != "nothing" || b.f.Trace(nil) != "" {
		t.Errorf("after Reset: %v", n)
	}
}

func TestTraceShowsWhatIsHeld(t *testing.T) {
	b := newBench(t)
	f := b.f.Add(faults.Rule{Do: faults.Block()})
	answer := make(chan error, 1)
	go func() { answer <- b.create(t.Context(), "data/x", "") }()
	<-f.Reached()
	if got, want := b.f.Trace(nil), "create data/x: no answer yet (blocked)\n"; got != want {
		t.Errorf("trace %q, want %q", got, want)
	}
	if err := f.Release(); err != nil {
		t.Error(err)
	}
	<-answer
}

func TestRulesThatMeanNothingPanic(t *testing.T) {
	for _, r := range []faults.Rule{{}, {Ops: faults.Create, Do: faults.Truncate(1)}, {Ops: faults.Get, Do: faults.Late()}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v: no panic", r)
				}
			}()
			faults.Wrap(memory.New(nil).Open()).Add(r)
		}()
	}
}

// The scenario of this sweep survives each usual fault by reading back.
func TestSweep(t *testing.T) {
	for name, do := range faults.Usual() {
		t.Run(name, func(t *testing.T) {
			last := 0
			faults.Sweep(t, func(t *testing.T, n int) bool {
				last = n
				b := newBench(t)
				f := b.f.Add(faults.Rule{Ops: faults.Create | faults.Get, Nth: n, Do: do})
				for _, k := range []string{"commits/1", "commits/2"} {
					for range 3 {
						if err := b.create(t.Context(), k, k); err == nil {
							break
						}
						if got, err := b.read(k); err == nil && got == k {
							break
						}
					}
				}
				b.want(nil, nil, "commits/1", "commits/2")
				return f.Fired() > 0
			})
			if last != 3 {
				t.Errorf("the sweep ended at n = %d, want 3: two creates are struck, then none", last)
			}
		})
	}
}
