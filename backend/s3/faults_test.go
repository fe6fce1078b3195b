package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/testserver"
)

func TestALostAnswerOfAWriteIsUnknownAndTheWriteIsDone(t *testing.T) {
	w := newWired(t)
	lost := w.proxy.Inject(testserver.Fault{Match: isPut, LoseAnswer: true})
	_, err := w.b.Create(t.Context(), "_control/x", backend.Bytes([]byte("one")))
	wantError(t, err, backend.ErrUnknown)
	w.wantRequests(t, "PutObject")
	v := holds(t, w.direct, "_control/x", []byte("one")).Version

	_, err = w.b.Replace(t.Context(), "_control/x", backend.Bytes([]byte("two")), v)
	wantError(t, err, backend.ErrUnknown)
	w.wantRequests(t, "PutObject")
	holds(t, w.direct, "_control/x", []byte("two"))

	lost.Remove()
	_, err = w.b.Create(t.Context(), "_control/x", backend.Bytes([]byte("one")))
	wantError(t, err, backend.ErrExists)
}

func TestAWriteThatTheStoreNeverGotIsUnknownAndNotRepeated(t *testing.T) {
	w := newWired(t)
	w.proxy.Inject(testserver.Fault{Match: isPut, Cut: true})
	_, err := w.b.Create(t.Context(), "data/x", backend.Bytes([]byte("one")))
	wantError(t, err, backend.ErrUnknown)
	w.wantRequests(t, "PutObject")
	absent(t, w.direct, "data/x")
}

// A store that does not have all bytes makes nothing: that is known, and the
// request may be sent again.
func TestAWriteThatIsCutBeforeItsLastByteIsSentAgain(t *testing.T) {
	w := newWired(t)
	w.proxy.Inject(testserver.Fault{Match: isPut, Cut: true, Times: 1})
	data := noise(32 << 20)
	if _, err := w.b.Create(t.Context(), "data/x", backend.Bytes(data)); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "PutObject", "HeadObject", "PutObject")
	holds(t, w.direct, "data/x", data)
}

// A store answers a write whose condition fails before it has the body, and
// closes: the sender sees a reset connection instead of the answer. It looks
// itself then, and says what the answer said.
func TestAWriteThatIsCutBecauseItsConditionFailsSaysSo(t *testing.T) {
	w := newWired(t)
	v := holds(t, w.direct, put(t, w.direct, "_control/x", "old"), []byte("old")).Version
	cut := w.proxy.Inject(testserver.Fault{Match: isPut, Cut: true})
	data := backend.Bytes(noise(32 << 20))
	_, err := w.b.Create(t.Context(), "_control/x", data)
	wantError(t, err, backend.ErrExists, "a look at the object")
	w.wantRequests(t, "PutObject", "HeadObject")

	_, err = w.b.Replace(t.Context(), "_control/x", data, "\"another\"")
	wantError(t, err, backend.ErrChanged, "a look at the object")
	w.wantRequests(t, "PutObject", "HeadObject")

	_, err = w.b.Replace(t.Context(), "_control/none", data, v)
	wantError(t, err, backend.ErrChanged, "a look at the object")
	w.wantRequests(t, "PutObject", "HeadObject")

	// Where the condition holds, the write is sent again, and succeeds at last.
	cut.Remove()
	w.proxy.Inject(testserver.Fault{Match: isPut, Cut: true, Times: 1})
	if _, err := w.b.Replace(t.Context(), "_control/x", data, v); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "PutObject", "HeadObject", "PutObject")
}

// put makes an object and returns its key.
func put(t *testing.T, b *backend.Bucket, key, text string) string {
	t.Helper()
	if _, err := b.Create(t.Context(), key, backend.Bytes([]byte(text))); err != nil {
		t.Fatal(err)
	}
	return key
}

func TestAContextThatEndsWhileAWriteIsInFlightIsUnknown(t *testing.T) {
	w := newWired(t)
	gate := testserver.NewGate()
	w.proxy.Inject(testserver.Fault{Match: isPut, Hold: gate, Times: 1})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the lease is lost")
	done := make(chan error, 1)
	go func() {
		_, err := w.b.Create(ctx, "data/x", backend.Bytes([]byte("one")))
		done <- err
	}()
	gate.Await(t)
	cancel(cause)
	err := <-done
	wantError(t, err, backend.ErrUnknown, cause.Error())
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
		t.Errorf("%v: does not wrap the context's error and its cause", err)
	}
	absent(t, w.direct, "data/x")
	// It may be done later, and is.
	gate.Open()
	deadline := time.Now().Add(20 * time.Second)
	for {
		obj, err := w.direct.Get(t.Context(), "data/x", backend.GetOptions{})
		if err == nil {
			obj.Body.Close()
			return
		}
		if !errors.Is(err, backend.ErrNotFound) || time.Now().After(deadline) {
			t.Fatalf("the held write did not arrive: %v", err)
		}
	}
}

// The last byte is kept back from a caller that has gone: that is no unknown
// outcome, and nothing arrives later.
func TestAContextThatEndsWhileTheContentIsReadMakesNothing(t *testing.T) {
	w := newWired(t)
	for _, n := range []int{1, 1000, 3 << 20} {
		ctx, cancel := context.WithCancel(t.Context())
		c := &counted{data: noise(n)}
		c.at = func(pos int64) {
			if pos >= int64(n)/2 {
				cancel()
			}
		}
		key := fmt.Sprintf("data/%d", n)
		_, err := w.b.Create(ctx, key, c.body(true))
		cancel()
		wantError(t, err, context.Canceled)
		absent(t, w.direct, key)
		if c.opens.Load() != c.closes.Load() {
			t.Errorf("the content was opened %d and closed %d times", c.opens.Load(), c.closes.Load())
		}
		if _, err := w.b.Create(t.Context(), key, backend.Bytes(c.data)); err != nil {
			t.Errorf("the same content afterwards: %v", err)
		}
	}
}

func TestAContextThatIsOverSendsNothing(t *testing.T) {
	w := newWired(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := map[string]func() error{
		"create":  func() error { _, err := w.b.Create(ctx, "data/x", backend.Bytes([]byte("x"))); return err },
		"replace": func() error { _, err := w.b.Replace(ctx, "_control/x", backend.Bytes([]byte("x")), "v"); return err },
		"get":     func() error { _, err := w.b.Get(ctx, "data/x", backend.GetOptions{}); return err },
		"delete":  func() error { return w.b.Delete(ctx, []string{"data/x"}) },
		"clean":   func() error { _, err := w.b.CleanUploads(ctx, 0); return err },
		"list": func() (err error) {
			for _, err = range w.b.List(ctx, "", "") {
			}
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) { wantError(t, call(), context.Canceled) })
	}
	w.wantRequests(t)
}

func TestAnswersThatSayNotCarriedOutAreRepeated(t *testing.T) {
	for _, tc := range []struct {
		status int
		code   string
	}{
		{409, "ConditionalRequestConflict"},
		{409, "OperationAborted"},
		{409, ""},
		{429, "TooManyRequests"},
		{429, ""},
		{503, "SlowDown"},
		{403, "RequestTimeTooSkewed"},
	} {
		t.Run(fmt.Sprint(tc.status, tc.code), func(t *testing.T) {
			w := newWired(t)
			times := 2
			if tc.code == "RequestTimeTooSkewed" {
				times = 1
			}
			f := w.proxy.Inject(testserver.Fault{Match: isPut, Status: tc.status, Code: tc.code, Times: times})
			c := &counted{data: noise(1000)}
			info, err := w.b.Create(t.Context(), "_control/x", c.body(true))
			if err != nil {
				t.Fatal(err)
			}
			if f.Hits() != times || len(w.requests()) != times+1 {
				t.Errorf("%d faults, requests %q", f.Hits(), w.requests())
			}
			if c.opens.Load() != int64(times+1) || c.closes.Load() != int64(times+1) {
				t.Errorf("the content was opened %d and closed %d times for %d attempts", c.opens.Load(), c.closes.Load(), times+1)
			}
			if got := holds(t, w.direct, "_control/x", c.data); got.Version != info.Version {
				t.Errorf("version %q, want %q", got.Version, info.Version)
			}
		})
	}
}

// 500 and 503 do not say whether a write was carried out. One request, no guess.
func TestAServerErrorOnAWriteIsUnknownAndNotRepeated(t *testing.T) {
	for _, f := range []testserver.Fault{
		{Status: 500, Code: "InternalError"},
		{Status: 503, Code: "ServiceUnavailable"},
		{Status: 503},
		{Status: 502, Body: "<html>bad gateway</html>"},
		{Status: 504},
		{Status: 400, Code: "RequestTimeout"},
	} {
		t.Run(fmt.Sprint(f.Status, f.Code), func(t *testing.T) {
			w := newWired(t)
			f.Match = isPut
			w.proxy.Inject(f)
			_, err := w.b.Create(t.Context(), "_control/x", backend.Bytes([]byte("x")))
			wantError(t, err, backend.ErrUnknown, fmt.Sprint(f.Status))
			_, err = w.b.Replace(t.Context(), "_control/x", backend.Bytes([]byte("x")), "v")
			wantError(t, err, backend.ErrUnknown)
			w.wantRequests(t, "PutObject", "PutObject")
		})
	}
}

func TestPassingFaultsOfReadsListsAndDeletesAreRepeated(t *testing.T) {
	w := newWired(t)
	data := noise(2000)
	for i := range 3 {
		if _, err := w.direct.Create(t.Context(), fmt.Sprintf("data/%d", i), backend.Bytes(data)); err != nil {
			t.Fatal(err)
		}
	}
	faults := []testserver.Fault{
		{Status: 500, Code: "InternalError"},
		{Status: 503, Code: "SlowDown"},
		{Status: 503},
		{Status: 409, Code: "OperationAborted"},
		{Cut: true},
		{LoseAnswer: true},
		{Truncate: true, TruncateAt: 60}, // in the middle of an XML document
	}
	for _, f := range faults {
		f.Times = 1
		t.Run(fmt.Sprintf("%d%s cut=%t lost=%t truncated=%t", f.Status, f.Code, f.Cut, f.LoseAnswer, f.Truncate), func(t *testing.T) {
			if !f.Truncate {
				fault := w.proxy.Inject(f)
				holds(t, w.b, "data/0", data)
				if fault.Hits() != 1 {
					t.Error("the read met no fault")
				}
			}
			fault := w.proxy.Inject(f)
			n := 0
			for _, err := range w.b.List(t.Context(), "data/", "") {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n != 3 || fault.Hits() != 1 {
				t.Errorf("listed %d keys, want 3; %d faults", n, fault.Hits())
			}
			fault = w.proxy.Inject(f)
			if err := w.b.Delete(t.Context(), []string{"data/missing"}); err != nil || fault.Hits() != 1 && !f.Truncate {
				t.Errorf("delete: %v; %d faults", err, fault.Hits())
			}
		})
	}
}

func TestAReadThatFailsForGoodIsNotUnknown(t *testing.T) {
	w := newWired(t)
	w.proxy.Inject(testserver.Fault{Match: isGet, Status: 500, Code: "InternalError"})
	_, err := w.b.Get(t.Context(), "data/x", backend.GetOptions{})
	wantError(t, err, nil, "500 InternalError", "attempt 5")
	w.wantRequests(t, "GetObject", "GetObject", "GetObject", "GetObject", "GetObject")
}

func TestABodyThatIsCutOffIsAnUnexpectedEnd(t *testing.T) {
	w := newWired(t)
	if _, err := w.direct.Create(t.Context(), "data/x", backend.Bytes(noise(100_000))); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 1, 50_000, 99_999} {
		fault := w.proxy.Inject(testserver.Fault{Match: isGet, Truncate: true, TruncateAt: at})
		obj, err := w.b.Get(t.Context(), "data/x", backend.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(obj.Body)
		obj.Body.Close()
		if !errors.Is(err, io.ErrUnexpectedEOF) || int64(len(got)) > at {
			t.Errorf("cut at %d: read %d bytes, %v; want %v", at, len(got), err, io.ErrUnexpectedEOF)
		}
		fault.Remove()
	}
}

func TestTheStoresClockComesWithEveryAnswer(t *testing.T) {
	w := newWired(t)
	before := time.Now().Add(-2 * time.Second)
	dated := func(what string, d time.Time) {
		t.Helper()
		if d.Before(before) || d.After(time.Now().Add(2*time.Second)) {
			t.Errorf("%s: Date %v, want about %v", what, d, time.Now())
		}
	}
	info, err := w.b.Create(t.Context(), "_control/x", backend.Bytes([]byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	dated("create", info.Date)
	_, err = w.b.Get(t.Context(), "data/missing", backend.GetOptions{})
	wantError(t, err, backend.ErrNotFound)
	dated("404", backend.Date(err))
	_, err = w.b.Get(t.Context(), "_control/x", backend.GetOptions{IfVersion: `"other"`})
	wantError(t, err, backend.ErrChanged)
	dated("412 of a read", backend.Date(err))
	_, err = w.b.Create(t.Context(), "_control/x", backend.Bytes([]byte("y")))
	wantError(t, err, backend.ErrExists)
	dated("412 of a create", backend.Date(err))
	_, err = w.b.Replace(t.Context(), "_control/y", backend.Bytes([]byte("y")), info.Version)
	wantError(t, err, backend.ErrChanged)
	dated("404 of a replace", backend.Date(err))

	w.proxy.Inject(testserver.Fault{EditAnswer: func(r *http.Response) { r.Header["Date"] = nil }})
	_, err = w.b.Get(t.Context(), "data/missing", backend.GetOptions{})
	wantError(t, err, backend.ErrNotFound)
	if d := backend.Date(err); !d.IsZero() {
		t.Errorf("an answer without Date gives the date %v", d)
	}
}

// Another web server's 404 is no proof that a key holds nothing.
func TestA404ThatIsNoS3ErrorIsNotErrNotFound(t *testing.T) {
	w := newWired(t)
	w.proxy.Inject(testserver.Fault{Status: 404, Body: "<html><body>Not here.</body></html>"})
	_, err := w.b.Get(t.Context(), "data/x", backend.GetOptions{})
	wantError(t, err, nil, "404")
	if errors.Is(err, backend.ErrNotFound) {
		t.Errorf("%v is ErrNotFound", err)
	}
}

func TestAStoreThatCannotBeReachedIsNamedAndNothingIsUnknown(t *testing.T) {
	w := newWired(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	for _, endpoint := range []string{"http://" + addr, "https://" + addr} {
		b := w.srv.Open(t, w.url, func(o *s3.Options) { o.Endpoint = endpoint })
		_, err = b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
		wantError(t, err, nil, "not reachable", "nothing was sent", addr)
		_, err = b.Get(t.Context(), "data/x", backend.GetOptions{})
		wantError(t, err, nil, "not reachable")
		_, err = b.Create(t.Context(), "data/x", backend.Bytes(noise(70<<20)))
		wantError(t, err, nil, "not reachable")
	}
	// TLS to a server that speaks none: no request was sent either.
	b := w.srv.Open(t, w.url, func(o *s3.Options) { o.Endpoint = "https" + w.proxy.URL()[len("http"):] })
	_, err = b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
	wantError(t, err, nil, "not reachable")
	w.wantRequests(t)
}

func TestASha256OfOtherBytesIsRefusedByTheStore(t *testing.T) {
	w := newWired(t)
	body := backend.Bytes([]byte("these bytes"))
	body.SHA256 = backend.Bytes([]byte("other bytes")).SHA256
	_, err := w.b.Create(t.Context(), "data/x", body)
	wantError(t, err, backend.ErrBadContent)
	w.wantRequests(t, "PutObject")
	absent(t, w.direct, "data/x")

	// And bytes that were damaged on the way, where the signature leaves them out.
	w.proxy.Inject(testserver.Fault{Match: isPut, EditRequest: func(r *http.Request) {
		r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		r.Header.Set("X-Amz-Checksum-Sha256", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	}})
	_, err = w.b.Create(t.Context(), "data/x", backend.Bytes([]byte("these bytes")))
	wantError(t, err, backend.ErrBadContent)
	absent(t, w.direct, "data/x")
}

// What Probe is for: the driver cannot see that a condition was ignored.
func TestAStoreThatIgnoresConditionsAnswersSuccess(t *testing.T) {
	w := newWired(t, small)
	for _, data := range [][]byte{[]byte("one"), noise(6 << 20)} {
		key := fmt.Sprintf("data/%d", len(data))
		if _, err := w.b.Create(t.Context(), key, backend.Bytes(data)); err != nil {
			t.Fatal(err)
		}
		_, err := w.b.Create(t.Context(), key, backend.Bytes([]byte("two")))
		wantError(t, err, backend.ErrExists)
		fault := w.proxy.Inject(testserver.Fault{DropConditions: true})
		other := append([]byte("other"), data...)
		if _, err := w.b.Create(t.Context(), key, backend.Bytes(other)); err != nil {
			t.Fatalf("with its condition dropped: %v", err)
		}
		fault.Remove()
		holds(t, w.direct, key, other)
	}
}
