package gcs

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
)

// scripted answers requests in the process, so that time can be that of a
// synctest bubble.
type scripted struct {
	answer func(n int, r *http.Request) *http.Response

	mu sync.Mutex
	at []time.Time // of the requests
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	s.mu.Lock()
	n := len(s.at)
	s.at = append(s.at, time.Now())
	s.mu.Unlock()
	return s.answer(n, r), nil
}

func (s *scripted) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func response(status int, body string) *http.Response {
	return &http.Response{
		StatusCode:    status,
		Status:        http.StatusText(status),
		Header:        http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}},
		Body:          io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)),
	}
}

func refusal(status int, reason string) *http.Response {
	return response(status, `{"error":{"errors":[{"reason":"`+reason+`"}]}}`)
}

// made is the answer to an upload of data.
func made(generation int, data []byte) *http.Response {
	crc := crc32.Checksum(data, castagnoli)
	return response(200, fmt.Sprintf(`{"generation":"%d","size":"%d","crc32c":"%s","updated":"2030-01-01T00:00:00Z"}`,
		generation, len(data), encode(crc)))
}

func newScripted(t *testing.T, answer func(n int, r *http.Request) *http.Response, edit ...func(*Options)) (*Driver, *scripted) {
	t.Helper()
	s := &scripted{answer: answer}
	opts := Options{Bucket: "bucket", Endpoint: "http://127.0.0.1:1", Transport: s}
	for _, e := range edit {
		e(&opts)
	}
	d, err := New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return d, s
}

var hello = []byte("hello")

func create(ctx context.Context, d *Driver) error {
	_, err := d.Create(ctx, "data/x", backend.Bytes(hello))
	return err
}

func TestBusyIsRepeatedUntilTheDeadline(t *testing.T) {
	throttled := func(int, *http.Request) *http.Response { return refusal(429, "rateLimitExceeded") }
	for _, c := range []struct {
		name    string
		timeout time.Duration // of the caller; 0: none
		busy    time.Duration // Options.BusyTimeout
		limit   time.Duration
	}{
		{"deadline", 10 * time.Second, 0, 10 * time.Second},
		{"longer deadline than the default", 5 * time.Minute, 0, 5 * time.Minute},
		{"no deadline", 0, 0, time.Minute},
		{"no deadline, own bound", 0, 3 * time.Second, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s := newScripted(t, throttled, func(o *Options) { o.BusyTimeout = c.busy })
				ctx := t.Context()
				if c.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.timeout)
					defer cancel()
				}
				start := time.Now()
				err := create(ctx, d)
				isErr(t, "create", err, backend.ErrBusy)
				took, n := time.Since(start), len(s.times())
				if took > c.limit || took < c.limit/2-longestPause {
					t.Errorf("gave up after %v, want at most %v, and most of it used", took, c.limit)
				}
				if most := 4 + int(c.limit/(longestPause/2)) + 3; n < 3 || n > most {
					t.Errorf("%d requests in %v, want 3 to %d", n, took, most)
				}
				if backend.Date(err).IsZero() {
					t.Error("no date")
				}
			})
		})
	}
}

func TestBusyTellsOfTheEndOfTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newScripted(t, func(int, *http.Request) *http.Response { return refusal(429, "rateLimitExceeded") })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		err := create(ctx, d)
		isErr(t, "create", err, backend.ErrBusy)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v in it", err, context.Canceled)
		}
	})
}

func TestTheStoreSaysHowLongToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := newScripted(t, func(n int, _ *http.Request) *http.Response {
			if n > 0 {
				return made(7, hello)
			}
			r := refusal(429, "rateLimitExceeded")
			r.Header.Set("Retry-After", "20")
			return r
		})
		if err := create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if at := s.times(); len(at) != 2 || at[1].Sub(at[0]) < 20*time.Second {
			t.Errorf("requests at %v, want the second 20 s after the first", at)
		}
	})
}

func TestConflictsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := newScripted(t, func(int, *http.Request) *http.Response { return refusal(409, "conflict") })
		isErr(t, "create", create(t.Context(), d), backend.ErrConflict)
		if n := len(s.times()); n != 1+maxConflicts {
			t.Errorf("%d requests, want %d", n, 1+maxConflicts)
		}
	})
}

func TestPausesAreJitteredAndGrow(t *testing.T) {
	same := true
	for n := range 20 {
		most := min(longestPause, firstBusyPause<<min(n, 10))
		first, again := pauseFor(busy, n)
		if !again || first < most/2 || first > most {
			t.Errorf("pause %d is %v, want %v to %v", n, first, most/2, most)
		}
		second, _ := pauseFor(busy, n)
		same = same && first == second
	}
	if same {
		t.Error("20 pauses came out the same twice: no jitter")
	}
}

// The one write a second to one name, within one driver.
func TestReplacesOfOneNameAreASecondApart(t *testing.T) {
	second := func(o *Options) { o.ReplaceInterval = time.Second }
	answer := func(n int, _ *http.Request) *http.Response { return made(n+1, hello) }
	replace := func(ctx context.Context, d *Driver, key string) error {
		_, err := d.Replace(ctx, key, backend.Bytes(hello), "1")
		return err
	}
	t.Run("many callers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScripted(t, answer, second)
			start := time.Now()
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if err := replace(t.Context(), d, "_control/x"); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for i, at := range s.times() {
				if got, want := at.Sub(start), time.Duration(i)*time.Second; got != want {
					t.Errorf("request %d after %v, want %v", i, got, want)
				}
			}
		})
	})
	t.Run("other names do not wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _ := newScripted(t, answer, second)
			start := time.Now()
			for i := range 2 * maxPaced {
				if err := replace(t.Context(), d, fmt.Sprintf("_control/%d", i)); err != nil {
					t.Fatal(err)
				}
				if i == maxPaced-1 {
					time.Sleep(2 * time.Second)
				}
			}
			if took := time.Since(start); took != 2*time.Second {
				t.Errorf("took %v", took-2*time.Second)
			}
			if n := len(d.pace.next); n > maxPaced+1 {
				t.Errorf("%d names are remembered, want at most %d", n, maxPaced+1)
			}
		})
	})
	t.Run("a slow answer counts from its end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScripted(t, func(n int, _ *http.Request) *http.Response {
				time.Sleep(3 * time.Second)
				return made(n+1, hello)
			}, second)
			for range 2 {
				if err := replace(t.Context(), d, "_control/x"); err != nil {
					t.Fatal(err)
				}
			}
			if at := s.times(); at[1].Sub(at[0]) != 4*time.Second {
				t.Errorf("the second request came %v after the first, want 4s", at[1].Sub(at[0]))
			}
		})
	})
	t.Run("after a create", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScripted(t, answer, second)
			if _, err := d.Create(t.Context(), "_control/x", backend.Bytes(hello)); err != nil {
				t.Fatal(err)
			}
			if err := replace(t.Context(), d, "_control/x"); err != nil {
				t.Fatal(err)
			}
			if at := s.times(); at[1].Sub(at[0]) != time.Second {
				t.Errorf("the replace came %v after the create, want 1s", at[1].Sub(at[0]))
			}
		})
	})
	t.Run("a deadline before that is busy at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScripted(t, answer, second)
			if err := replace(t.Context(), d, "_control/x"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
			defer cancel()
			start := time.Now()
			isErr(t, "replace", replace(ctx, d, "_control/x"), backend.ErrBusy)
			if took := time.Since(start); took != 0 {
				t.Errorf("it took %v to say so", took)
			}
			if n := len(s.times()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	})
	t.Run("who gives up leaves his turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScripted(t, answer, second)
			if err := replace(t.Context(), d, "_control/x"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			err := replace(ctx, d, "_control/x")
			isErr(t, "replace", err, backend.ErrBusy)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want %v in it", err, context.Canceled)
			}
			if err := replace(t.Context(), d, "_control/x"); err != nil {
				t.Fatal(err)
			}
			if at := s.times(); len(at) != 2 || at[1].Sub(at[0]) != time.Second {
				t.Errorf("requests at %v, want two a second apart", at)
			}
		})
	})
	t.Run("not where it is switched off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _ := newScripted(t, answer)
			start := time.Now()
			for range 5 {
				if err := replace(t.Context(), d, "_control/x"); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("5 replaces of an emulator took %v, want no waiting", took)
			}
		})
	})
}

// The server refuses a second write within a second: without pacing the driver
// gets through by its back-off, with pacing it is never refused.
func TestWriteLimitOfTheStore(t *testing.T) {
	for _, paced := range []bool{false, true} {
		t.Run(fmt.Sprintf("paced=%v", paced), func(t *testing.T) {
			t.Parallel()
			s := newStore(t, func(o *Options) {
				if paced {
					o.ReplaceInterval = time.Second
				}
			})
			s.srv.LimitWrites(true)
			info, err := s.Create(t.Context(), "_control/x", backend.Bytes([]byte("0")))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				if info, err = s.Replace(t.Context(), "_control/x", backend.Bytes([]byte{byte(i)}), info.Version); err != nil {
					t.Fatal(err)
				}
			}
			if n := requests(s.proxy, uploads); paced && n != 3 || !paced && n <= 3 {
				t.Errorf("%d requests for 3 writes", n)
			}
			for i := range 5 { // other names are not limited
				if _, err := s.Create(t.Context(), fmt.Sprintf("data/%d", i), backend.Bytes(nil)); err != nil {
					t.Fatal(err)
				}
			}
			s.holds(t, "_control/x", []byte{1})
		})
	}
}

func encode(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}
