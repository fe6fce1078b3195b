package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/testserver"
)

// uploads says how many unfinished uploads there are, and ends them.
func (w *wired) uploads(t *testing.T) int {
	t.Helper()
	n, err := w.direct.CleanUploads(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBodiesOfAllSizesInPartsArriveWhole(t *testing.T) {
	w := newWired(t, small)
	const part = 5 << 20
	for _, tc := range []struct{ size, parts int }{
		{1 << 20, 0}, {1<<20 + 1, 1}, {part - 1, 1}, {part, 1}, {part + 1, 2}, {2 * part, 2}, {3*part + 7, 4},
	} {
		w.proxy.Forget()
		data := noise(tc.size)
		key := fmt.Sprintf("data/%d", tc.size)
		info, err := w.b.Create(t.Context(), key, backend.Bytes(data))
		if err != nil {
			t.Fatalf("%d bytes: %v", tc.size, err)
		}
		got := holds(t, w.direct, key, data)
		if got.Version != info.Version || got.Size != info.Size {
			t.Errorf("%d bytes: create said %q and %d bytes, get %q and %d", tc.size, info.Version, info.Size, got.Version, got.Size)
		}
		parts := 0
		for _, op := range w.requests() {
			if op == "UploadPart" {
				parts++
			}
		}
		if parts != tc.parts {
			t.Errorf("%d bytes went in %d parts, want %d", tc.size, parts, tc.parts)
		}
	}
}

func TestTheConditionOfALargeBodyHolds(t *testing.T) {
	w := newWired(t, small)
	ctx := t.Context()
	one, two := noise(6<<20), noise(7<<20)
	info, err := w.b.Create(ctx, "_control/x", backend.Bytes(one))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.b.Create(ctx, "_control/x", backend.Bytes(two))
	wantError(t, err, backend.ErrExists)
	_, err = w.b.Replace(ctx, "_control/x", backend.Bytes(two), `"other"`)
	wantError(t, err, backend.ErrChanged)
	_, err = w.b.Replace(ctx, "_control/missing", backend.Bytes(two), info.Version)
	wantError(t, err, backend.ErrChanged)
	holds(t, w.direct, "_control/x", one)
	if n := w.uploads(t); n != 0 {
		t.Errorf("%d uploads are left of refused ones", n)
	}
	if info, err = w.b.Replace(ctx, "_control/x", backend.Bytes(two), info.Version); err != nil {
		t.Fatal(err)
	}
	if got := holds(t, w.direct, "_control/x", two); got.Version != info.Version {
		t.Errorf("version %q, want %q", got.Version, info.Version)
	}
}

func TestWrongContentsInPartsMakeNothingAndLeaveNothing(t *testing.T) {
	w := newWired(t, small)
	data := noise(12 << 20)
	burnt := errors.New("the disk burns")
	wrong := backend.Bytes(data)
	wrong.SHA256[0] ^= 1
	flipped := backend.Bytes(data)
	bad := bytes.Clone(data)
	bad[11<<20] ^= 1
	flipped.Open = backend.Bytes(bad).Open
	short, long := backend.Bytes(data), backend.Bytes(data)
	short.Size++
	long.Size--
	failing := &counted{data: data, failAt: 7 << 20, failErr: burnt}
	for _, tc := range []struct {
		name string
		body backend.Body
		want error
	}{
		{"another sha256", wrong, backend.ErrBadContent},
		{"a flipped bit", flipped, backend.ErrBadContent},
		{"shorter than announced", short, backend.ErrBadContent},
		{"longer than announced", long, backend.ErrBadContent},
		{"a reader that fails", failing.body(true), burnt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := w.b.Create(t.Context(), "data/x", tc.body)
			wantError(t, err, tc.want)
			absent(t, w.direct, "data/x")
			if n := w.uploads(t); n != 0 {
				t.Errorf("%d uploads are left", n)
			}
			if slices.Contains(w.requests(), "CompleteMultipartUpload") {
				t.Error("a completion was sent")
			}
			w.proxy.Forget()
		})
	}
	if failing.opens.Load() != failing.closes.Load() {
		t.Errorf("the content was opened %d and closed %d times", failing.opens.Load(), failing.closes.Load())
	}
}

func TestTheStoreChecksTheCRCOfTheWhole(t *testing.T) {
	w := newWired(t, small)
	w.proxy.Inject(testserver.Fault{Match: isComplete, EditRequest: func(r *http.Request) {
		r.Header.Set("X-Amz-Checksum-Crc32", "AAAAAA==")
	}})
	_, err := w.b.Create(t.Context(), "data/x", backend.Bytes(noise(6<<20)))
	wantError(t, err, backend.ErrBadContent)
	absent(t, w.direct, "data/x")
	if n := w.uploads(t); n != 0 {
		t.Errorf("%d uploads are left", n)
	}
}

func TestTheStoreChecksTheCRCOfEachPart(t *testing.T) {
	w := newWired(t, small)
	w.proxy.Inject(testserver.Fault{Match: isPart, Skip: 1, EditRequest: func(r *http.Request) {
		r.Header.Set("X-Amz-Checksum-Crc32", "AAAAAA==")
	}})
	_, err := w.b.Create(t.Context(), "data/x", backend.Bytes(noise(16<<20)))
	wantError(t, err, backend.ErrBadContent, "sending part")
	absent(t, w.direct, "data/x")
}

func TestPassingFaultsOfPartsAreRepeated(t *testing.T) {
	for _, f := range []testserver.Fault{
		{Status: 500, Code: "InternalError"}, {Status: 503, Code: "SlowDown"}, {Cut: true}, {LoseAnswer: true},
	} {
		w := newWired(t, small)
		f.Match, f.Times = isPart, 2
		fault := w.proxy.Inject(f)
		c := &counted{data: noise(12 << 20)}
		if _, err := w.b.Create(t.Context(), "data/x", c.body(true)); err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		if fault.Hits() != 2 || c.bytes.Load() != 12<<20 {
			t.Errorf("%d faults; %d bytes were read of the content, want 2 and %d", fault.Hits(), c.bytes.Load(), 12<<20)
		}
		holds(t, w.direct, "data/x", c.data)
	}
}

// A fault before the completion is known to have made nothing.
func TestAPartThatFailsForGoodIsNotUnknown(t *testing.T) {
	w := newWired(t, small)
	w.proxy.Inject(testserver.Fault{Match: isPart, Status: 500, Code: "InternalError"})
	_, err := w.b.Create(t.Context(), "data/x", backend.Bytes(noise(12<<20)))
	wantError(t, err, nil, "sending part", "500 InternalError")
	if n := w.uploads(t); n != 0 {
		t.Errorf("%d uploads are left", n)
	}
	w.proxy.Inject(testserver.Fault{Match: testserver.HasQuery("uploads"), LoseAnswer: true, Times: 1})
	if _, err = w.b.Create(t.Context(), "data/y", backend.Bytes(noise(2<<20))); err == nil {
		t.Fatal("parts fail and the upload succeeds")
	}
	if n := w.uploads(t); n != 1 {
		t.Errorf("%d uploads are left, want the one whose start was answered to nobody", n)
	}
}

func TestAnUndecidedCompletionIsUnknownAndNothingIsRemoved(t *testing.T) {
	data := noise(6 << 20)
	for _, tc := range []struct {
		name  string
		fault testserver.Fault
		done  bool
	}{
		{"lost answer", testserver.Fault{LoseAnswer: true}, true},
		{"cut", testserver.Fault{Cut: true}, false},
		{"500", testserver.Fault{Status: 500, Code: "InternalError"}, false},
		{"200 with an error in it", testserver.Fault{Status: 200, Code: "InternalError"}, false},
		{"200 with half a document", testserver.Fault{Truncate: true, TruncateAt: 70}, true},
		{"200 with nothing", testserver.Fault{Status: 200}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWired(t, small)
			tc.fault.Match = isComplete
			fault := w.proxy.Inject(tc.fault)
			_, err := w.b.Create(t.Context(), "data/x", backend.Bytes(data))
			wantError(t, err, backend.ErrUnknown)
			w.wantRequests(t, "CreateMultipartUpload", "UploadPart", "UploadPart", "CompleteMultipartUpload")
			if tc.done {
				holds(t, w.direct, "data/x", data)
				return
			}
			absent(t, w.direct, "data/x")
			// Sent again, as the engine does, it is decided.
			fault.Remove()
			if _, err := w.b.Create(t.Context(), "data/x", backend.Bytes(data)); err != nil {
				t.Fatal(err)
			}
			if n := w.uploads(t); n != 1 {
				t.Errorf("%d uploads are left, want the undecided one", n)
			}
		})
	}
}

func TestACompletionThatIsAnsweredWith200AndARefusalIsRefused(t *testing.T) {
	w := newWired(t, small)
	data := backend.Bytes(noise(6 << 20))
	fault := w.proxy.Inject(testserver.Fault{Match: isComplete, Status: 200, Code: "PreconditionFailed"})
	_, err := w.b.Create(t.Context(), "data/x", data)
	wantError(t, err, backend.ErrExists)
	fault.Remove()
	w.proxy.Forget()
	// Not carried out, by the store's own word: asked again.
	w.proxy.Inject(testserver.Fault{Match: isComplete, Status: 200, Code: "SlowDown", Times: 1})
	if _, err := w.b.Create(t.Context(), "data/x", data); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "CreateMultipartUpload", "UploadPart", "UploadPart", "CompleteMultipartUpload", "CompleteMultipartUpload")
	if n := w.uploads(t); n != 0 {
		t.Errorf("%d uploads are left", n)
	}
}

// S3 forgets an upload whose completion met another request.
func TestACompletionThatMeetsAnotherRequestIsSentAgainFromTheStart(t *testing.T) {
	w := newWired(t, small)
	w.proxy.Inject(testserver.Fault{Match: isComplete, Status: 409, Code: "ConditionalRequestConflict", Times: 1})
	c := &counted{data: noise(2 << 20)}
	if _, err := w.b.Create(t.Context(), "data/x", c.body(true)); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload",
		"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
	holds(t, w.direct, "data/x", c.data)
	if c.opens.Load() != 2 || c.closes.Load() != 2 {
		t.Errorf("the content was opened %d and closed %d times, want 2", c.opens.Load(), c.closes.Load())
	}

	w.proxy.Inject(testserver.Fault{Match: isComplete, Status: 409, Code: "ConditionalRequestConflict"})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := w.b.Create(ctx, "data/y", c.body(true))
	if err == nil || errors.Is(err, backend.ErrUnknown) || !errors.Is(err, backend.ErrConflict) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a conflict that does not end: %v, want %v", err, backend.ErrConflict)
	}
	absent(t, w.direct, "data/y")
}

func TestACancelledUploadInPartsIsNotUnknownAndIsRemovedByClose(t *testing.T) {
	w := newWired(t, small)
	gate := testserver.NewGate()
	w.proxy.Inject(testserver.Fault{Match: isPart, Hold: gate})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.b.Create(ctx, "data/x", backend.Bytes(noise(12<<20)))
		done <- err
	}()
	gate.Await(t)
	cancel()
	err := <-done
	gate.Open()
	wantError(t, err, context.Canceled)
	if err := w.b.Close(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(w.requests(), "AbortMultipartUpload") {
		t.Errorf("requests %q: the upload was not removed when Close had returned", w.requests())
	}
	absent(t, w.direct, "data/x")
}

func TestNoMorePartsAreInMemoryThanAllowed(t *testing.T) {
	w := newWired(t, small, func(o *s3.Options) { o.Parallel = 2 })
	gate := testserver.NewGate()
	w.proxy.Inject(testserver.Fault{Match: isPart, Hold: gate})
	a, b := &counted{data: noise(40 << 20)}, &counted{data: noise(40 << 20)}
	done := make(chan error, 2)
	for i, c := range []*counted{a, b} {
		go func() {
			_, err := w.b.Create(t.Context(), fmt.Sprintf("data/%d", i), c.body(true))
			done <- err
		}()
	}
	gate.Await(t)
	gate.Await(t) // two parts are on their way at once
	if n, most := a.bytes.Load()+b.bytes.Load(), int64(2*5<<20+2); n > most {
		t.Errorf("%d bytes were read while two parts were on their way, want %d at most", n, most)
	}
	gate.Open()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	holds(t, w.direct, "data/0", a.data)
	holds(t, w.direct, "data/1", b.data)
}

func TestThereAreNeverMoreThanTenThousandParts(t *testing.T) {
	d, err := s3.New(t.Context(), s3.Options{Bucket: "b", Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, size := range []int64{64<<20 + 1, 156 << 30, 157 << 30, 1 << 40, 5 << 40, 50_000 << 30} {
		part := d.PartSizeFor(size)
		if parts := (size + part - 1) / part; parts > 10_000 || part < 16<<20 || part > 16<<20 && parts < 9_000 {
			t.Errorf("%d bytes: %d parts of %d bytes", size, parts, part)
		}
	}
}

func TestCleanUploadsEndsOldUploadsBelowThePrefixOnly(t *testing.T) {
	w := newWired(t, small)
	other := w.srv.Open(t, strings.Replace(w.srv.ProxyURL(t, w.proxy, w.url), "/store", "/store2", 1), small)
	w.proxy.Inject(testserver.Fault{Match: isComplete, Cut: true})
	for i, b := range []*backend.Bucket{w.b, w.b, other} {
		_, err := b.Create(t.Context(), fmt.Sprintf("data/%d", i), backend.Bytes(noise(2<<20)))
		wantError(t, err, backend.ErrUnknown)
	}
	for _, tc := range []struct {
		b    *backend.Bucket
		age  time.Duration
		want int
	}{
		{w.b, time.Hour, 0}, {w.b, 0, 2}, {w.b, 0, 0}, {other, time.Hour, 0}, {other, 0, 1},
	} {
		if n, err := tc.b.CleanUploads(t.Context(), tc.age); err != nil || n != tc.want {
			t.Errorf("CleanUploads(%v) = %d, %v, want %d", tc.age, n, err, tc.want)
		}
	}
}

func TestCleanUploadsGoesByTheStoresClock(t *testing.T) {
	page := func(initiated string) string {
		return `<ListMultipartUploadsResult><IsTruncated>false</IsTruncated><Upload><Key>store/data/x</Key><UploadId>u</UploadId><Initiated>` +
			initiated + `</Initiated></Upload></ListMultipartUploadsResult>`
	}
	// The store's clock says 2026-11-30 12:00 in all its answers.
	for initiated, want := range map[string]int{"2026-11-30T10:59:59Z": 1, "2026-11-30T11:00:01Z": 0} {
		b, _ := scripted(t, func(_ int, req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodDelete {
				return reply(204, "")
			}
			return reply(200, page(initiated))
		})
		if n, err := b.CleanUploads(t.Context(), time.Hour); err != nil || n != want {
			t.Errorf("begun at %s, cleaned after 1 h at 12:00: %d, %v, want %d", initiated, n, err, want)
		}
	}
	b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) {
		resp, err := reply(200, page("2026-11-30T10:00:00Z"))
		resp.Header.Del("Date")
		return resp, err
	})
	_, err := b.CleanUploads(t.Context(), time.Hour)
	wantError(t, err, backend.ErrUnsupported, "Date")
}

// A real upload becomes old when the store's clock says so, whatever the time is
// here. (With more than some minutes between the two, requests are refused.)
func TestCleanUploadsRemovesWhatIsOldByTheStoresClock(t *testing.T) {
	w := newWired(t, small)
	cut := w.proxy.Inject(testserver.Fault{Match: isComplete, Cut: true})
	_, err := w.b.Create(t.Context(), "data/x", backend.Bytes(noise(2<<20)))
	wantError(t, err, backend.ErrUnknown)
	cut.Remove()
	for _, tc := range []struct {
		later time.Duration
		want  int
	}{{0, 0}, {110 * time.Second, 0}, {3 * time.Minute, 1}, {3 * time.Minute, 0}} {
		clock := w.proxy.Inject(testserver.Fault{EditAnswer: func(resp *http.Response) {
			resp.Header.Set("Date", time.Now().Add(tc.later).UTC().Format(http.TimeFormat))
		}})
		if n, err := w.b.CleanUploads(t.Context(), 2*time.Minute); err != nil || n != tc.want {
			t.Errorf("%v after it began, clean-up of what is older than 2 min: %d, %v, want %d", tc.later, n, err, tc.want)
		}
		clock.Remove()
	}
	if n := w.uploads(t); n != 0 {
		t.Errorf("%d uploads are left, want none", n)
	}
}
