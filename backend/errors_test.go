package backend_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/faults"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  backend.Error
		want string
	}{
		{backend.Error{Op: "get", Store: "s3://b", Key: "data/x", Err: backend.ErrNotFound}, "get s3://b: data/x: not found"},
		{backend.Error{Op: "clean", Store: "s3://b", Err: backend.ErrBusy}, "clean s3://b: the store is busy"},
		{backend.Error{Op: "get", Key: "data/x", Err: backend.ErrNotFound}, "get data/x: not found"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestDateTravelsWithErrors(t *testing.T) {
	date := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	dated := backend.WithDate(fmt.Errorf("the store said: %w", backend.ErrNotFound), date)
	for name, err := range map[string]error{
		"itself":  dated,
		"wrapped": fmt.Errorf("x: %w", dated),
		"joined":  errors.Join(io.EOF, dated),
		"Error":   &backend.Error{Op: "get", Err: backend.ErrNotFound, Date: date},
		"inside":  fmt.Errorf("x: %w", &backend.Error{Op: "get", Err: dated}),
	} {
		if got := backend.Date(err); !got.Equal(date) {
			t.Errorf("%s: %v, want %v", name, got, date)
		}
		if !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s: %v lost its cause", name, err)
		}
	}
	if dated.Error() != "the store said: not found" {
		t.Errorf("text %q", dated)
	}
	for _, err := range []error{nil, io.EOF, backend.WithDate(backend.ErrBusy, time.Time{}), &backend.Error{Err: io.EOF}} {
		if got := backend.Date(err); !got.IsZero() {
			t.Errorf("%v: %v, want none", err, got)
		}
	}
	if err := backend.WithDate(nil, date); err != nil {
		t.Errorf("a date makes an error of nil: %v", err)
	}
}

// A driver's error is wrapped once, with operation, store, key and date, and
// stays what it is.
func TestBucketWrapsOnce(t *testing.T) {
	date := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cause := errors.New("HTTP 503")
	for _, c := range []struct {
		op, key string
		call    func(b *backend.Bucket) error
	}{
		{"get", "data/x", func(b *backend.Bucket) error {
			_, err := b.Get(t.Context(), "data/x", backend.GetOptions{})
			return err
		}},
		{"create", "data/x", func(b *backend.Bucket) error {
			_, err := b.Create(t.Context(), "data/x", backend.Bytes(nil))
			return err
		}},
		{"replace", "_control/x", func(b *backend.Bucket) error {
			_, err := b.Replace(t.Context(), "_control/x", backend.Bytes(nil), "1")
			return err
		}},
		{"delete", "", func(b *backend.Bucket) error { return b.Delete(t.Context(), []string{"data/x"}) }},
		{"list", "data/", func(b *backend.Bucket) (err error) {
			for _, err = range b.List(t.Context(), "data/", "") {
			}
			return err
		}},
		{"clean", "", func(b *backend.Bucket) error { _, err := b.CleanUploads(t.Context(), 0); return err }},
	} {
		f := faults.Wrap(memory.New(nil).Open())
		f.Add(faults.Rule{Do: faults.Fail(backend.WithDate(fmt.Errorf("%w: %w", backend.ErrBusy, cause), date))})
		err := c.call(backend.NewBucket(f, "s3://b"))
		var berr *backend.Error
		if !errors.As(err, &berr) {
			t.Fatalf("%s: %v", c.op, err)
		}
		if berr.Op != c.op || berr.Key != c.key || berr.Store != "s3://b" || !berr.Date.Equal(date) {
			t.Errorf("%s: %+v", c.op, berr)
		}
		if !errors.Is(err, backend.ErrBusy) || !errors.Is(err, cause) {
			t.Errorf("%s: %v lost its cause", c.op, err)
		}
		if n := strings.Count(err.Error(), "s3://b"); n != 1 {
			t.Errorf("%s: %q names the store %d times", c.op, err, n)
		}
		inner := &backend.Error{Op: "inner", Store: "inner", Key: "inner", Err: cause}
		f.Add(faults.Rule{Do: faults.Fail(inner)})
		if err := c.call(backend.NewBucket(f, "s3://b")); !errors.Is(err, cause) || err != error(inner) {
			t.Errorf("%s: an Error of the driver became %v", c.op, err)
		}
	}
}

// What Bucket refuses never reaches the driver.
func TestBucketChecksBeforeTheDriver(t *testing.T) {
	f := faults.Wrap(memory.New(nil).Open())
	b, ctx, x := f.Bucket(), t.Context(), backend.Bytes([]byte("x"))
	for _, c := range []struct {
		what string
		want error // nil: any
		call func() error
	}{
		{"get of a bad key", backend.ErrBadKey, func() error { _, err := b.Get(ctx, "A", backend.GetOptions{}); return err }},
		{"get of a negative length", nil, func() error { _, err := b.Get(ctx, "a", backend.GetOptions{Length: -1}); return err }},
		{"create of a bad key", backend.ErrBadKey, func() error { _, err := b.Create(ctx, "a/", x); return err }},
		{"create of a control key with a dot", backend.ErrBadKey, func() error { _, err := b.Create(ctx, "_control/a.1", x); return err }},
		{"replace of a bad key", backend.ErrBadKey, func() error { _, err := b.Replace(ctx, "_control/", x, "1"); return err }},
		{"replace of a key that is made once", backend.ErrBadKey, func() error { _, err := b.Replace(ctx, "data/x", x, "1"); return err }},
		{"replace of no version", nil, func() error { _, err := b.Replace(ctx, "_control/x", x, ""); return err }},
		{"delete of a bad key among good ones", backend.ErrBadKey, func() error { return b.Delete(ctx, []string{"a", "b", "../c"}) }},
		{"list of a bad prefix", backend.ErrBadKey, func() (err error) {
			n := 0
			for _, err = range b.List(ctx, "A", "") {
				n++
			}
			if n != 1 {
				t.Errorf("the list yields %d times, want 1", n)
			}
			return err
		}},
	} {
		if err := c.call(); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
	if err := b.Delete(ctx, nil); err != nil {
		t.Errorf("delete of nothing: %v", err)
	}
	if n := f.Counts().Requests(); n != 0 {
		t.Errorf("the driver was asked %d times:\n%s", n, f.Trace(nil))
	}
	// What is good is exactly one call.
	if _, err := b.Create(ctx, "_control/x", x); err != nil {
		t.Error(err)
	}
	if n := f.Counts(); n.Requests() != 1 || n.Create != 1 {
		t.Errorf("a create is %v", n)
	}
}

// talkative lists on after an error.
type talkative struct{ backend.Driver }

func (talkative) List(context.Context, string, string) iter.Seq2[backend.Entry, error] {
	return func(yield func(backend.Entry, error) bool) {
		_ = yield(backend.Entry{Key: "a"}, nil) && yield(backend.Entry{Key: "b"}, nil) &&
			yield(backend.Entry{}, backend.ErrBusy) && yield(backend.Entry{Key: "c"}, nil)
	}
}

// A listing ends at its first error, whatever the driver does after it.
func TestBucketListEndsAtTheFirstError(t *testing.T) {
	b := backend.NewBucket(talkative{}, "talkative://")
	var seen []string
	for e, err := range b.List(t.Context(), "", "") {
		if err != nil {
			seen = append(seen, "error")
			if !errors.Is(err, backend.ErrBusy) {
				t.Error(err)
			}
			continue
		}
		seen = append(seen, e.Key)
	}
	if got := strings.Join(seen, " "); got != "a b error" {
		t.Errorf("%s, want a b error", got)
	}
}

func TestBytesCanBeReadAgain(t *testing.T) {
	body := backend.Bytes([]byte("hello"))
	for range 2 {
		r, err := body.Open()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || string(got) != "hello" || body.Size != 5 || !body.HasSHA256 {
			t.Errorf("%q, %v, %+v", got, err, body)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestBucketKnowsItsDriverAndCloses(t *testing.T) {
	d := memory.New(nil).Open()
	b := backend.NewBucket(d, "mem://x")
	if b.Driver() != backend.Driver(d) || b.URL() != "mem://x" {
		t.Errorf("driver %v, URL %q", b.Driver(), b.URL())
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(context.Background(), "a", backend.GetOptions{}); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("%v, want %v", err, backend.ErrClosed)
	}
}
