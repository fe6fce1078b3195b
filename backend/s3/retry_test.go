package s3_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
)

// These run on a clock of their own: how long a call waits, and how often it
// asks, is exact.

func TestABusyStoreIsAskedUntilTheDeadlineAndNotMore(t *testing.T) {
	for _, tc := range []struct {
		status   int
		code     string
		want     error
		max, min int // requests in 30 s
	}{
		{503, "SlowDown", backend.ErrBusy, 20, 6},
		{429, "", backend.ErrBusy, 20, 6},
		{409, "ConditionalRequestConflict", backend.ErrConflict, 80, 20},
	} {
		t.Run(fmt.Sprint(tc.status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) { return errorReply(tc.status, tc.code, "") })
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				begin := time.Now()
				_, err := b.Create(ctx, "data/x", backend.Bytes([]byte("x")))
				wantError(t, err, tc.want, "attempt")
				took := time.Since(begin)
				// The last attempt is made while there is time for its answer.
				if took >= 30*time.Second || took < 15*time.Second || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("gave up after %v with 30 s to go: %v", took, err)
				}
				if n := sc.count(); n < tc.min || n > tc.max {
					t.Errorf("%d requests in 30 s, want %d to %d", n, tc.min, tc.max)
				}
			})
		})
	}
}

func TestWithoutADeadlineTheWaitingIsBoundedByMaxWait(t *testing.T) {
	for _, limit := range []time.Duration{0, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) { return errorReply(503, "SlowDown", "") },
				func(o *s3.Options) { o.MaxWait = limit })
			begin := time.Now()
			_, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
			wantError(t, err, backend.ErrBusy)
			want := limit
			if want == 0 {
				want = time.Minute
			}
			if took := time.Since(begin); took > want || took < want/2 {
				t.Errorf("gave up after %v, want about %v", took, want)
			}
		})
	}
}

func TestADeadlineCountsInPlaceOfMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) { return errorReply(503, "SlowDown", "") })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := b.Create(ctx, "data/x", backend.Bytes([]byte("x")))
		wantError(t, err, backend.ErrBusy)
		if took := time.Since(begin); took < 9*time.Minute || took >= 10*time.Minute {
			t.Errorf("gave up after %v with 10 min to go", took)
		}
	})
}

func TestWaitsGrowAndDifferFromCallToCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func() (all []time.Duration) {
			last := time.Now()
			b, _ := scripted(t, func(n int, _ *http.Request) (*http.Response, error) {
				all = append(all, time.Since(last))
				last = time.Now()
				if n == 8 {
					return reply(200, "", "ETag", `"x"`)
				}
				return errorReply(503, "SlowDown", "")
			})
			if _, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); err != nil {
				t.Fatal(err)
			}
			return all[1:]
		}
		a, b := waits(), waits()
		if fmt.Sprint(a) == fmt.Sprint(b) {
			t.Errorf("two calls waited for exactly the same times: %v", a)
		}
		if len(a) != 8 || a[0] > 100*time.Millisecond || a[7] < 5*time.Second || a[7] > 10*time.Second {
			t.Errorf("waits %v, want 8 of them from 50 to 100 ms up to 5 to 10 s", a)
		}
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var took time.Duration
		b, _ := scripted(t, func(n int, _ *http.Request) (*http.Response, error) {
			if n == 0 {
				return reply(429, "", "Retry-After", "7")
			}
			took = time.Since(begin)
			return reply(200, "", "ETag", `"x"`)
		})
		if _, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); err != nil {
			t.Fatal(err)
		}
		if took != 7*time.Second {
			t.Errorf("asked again after %v, the store wanted 7 s", took)
		}
	})
}

func TestACancelledWaitEndsAtOnceWithWhatTheStoreSaid(t *testing.T) {
	for status, want := range map[int]error{503: backend.ErrBusy, 409: backend.ErrConflict} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			code := map[int]string{503: "SlowDown", 409: "OperationAborted"}[status]
			b, sc := scripted(t, func(n int, _ *http.Request) (*http.Response, error) {
				if n == 5 {
					time.AfterFunc(time.Millisecond, cancel)
				}
				return errorReply(status, code, "")
			})
			var last time.Time
			context.AfterFunc(ctx, func() { last = time.Now() })
			_, err := b.Create(ctx, "data/x", backend.Bytes([]byte("x")))
			synctest.Wait()
			wantError(t, err, want)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v does not wrap the context's error", err)
			}
			if !time.Now().Equal(last) || sc.count() != 6 {
				t.Errorf("returned %v after the cancellation, with %d requests, want 0 and 6", time.Since(last), sc.count())
			}
		})
	}
}

func TestAConflictAndThenALostAnswerIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sc := scripted(t, func(n int, _ *http.Request) (*http.Response, error) {
			if n == 0 {
				return errorReply(409, "ConditionalRequestConflict", "")
			}
			return nil, errors.New("connection reset by peer")
		})
		_, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
		wantError(t, err, backend.ErrUnknown, "connection reset")
		if sc.count() != 2 {
			t.Errorf("%d requests, want 2", sc.count())
		}
	})
}

// An HTTP client that says nothing of its connections is not believed to have
// sent nothing.
func TestAnErrorOfAForeignHTTPClientIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) { return nil, errors.New("something broke") })
		_, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
		wantError(t, err, backend.ErrUnknown)
		if sc.count() != 1 {
			t.Errorf("%d requests, want 1", sc.count())
		}
	})
}

func TestAReadGivesUpAfterSomeAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) { return nil, errors.New("something broke") })
		begin := time.Now()
		_, err := b.Get(t.Context(), "data/x", backend.GetOptions{})
		wantError(t, err, nil, "something broke", "attempt 5")
		if took := time.Since(begin); sc.count() != 5 || took > 5*time.Second {
			t.Errorf("%d requests in %v, want 5 in some seconds", sc.count(), took)
		}
	})
}
