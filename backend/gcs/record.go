package gcs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A record is what the wire saw of one attempt of a call. What the call became is
// judged from it, not from the client library's errors, which do not tell a
// request that was never sent from one whose answer was lost, or a missing bucket
// from a missing object.
type record struct {
	// limit is how many requests the attempt may make; 0 means any number.
	limit int
	// resumable says that only the final request of the attempt makes an object.
	resumable bool
	// complete, of an upload, says that all bytes were given out.
	complete func() bool

	mu       sync.Mutex
	requests int  // that left the credentials behind them
	sent     bool // a request may have reached the store
	deciding bool // one that can make, replace or delete an object may have
	part     bool // the newest request is a part of a resumable upload
	failures int  // of requests in a row, of a resumable upload
	// The newest request, all zero while it has no answer:
	status int
	header http.Header
	body   []byte // of a status of 400 and more, its beginning
	date   time.Time
}

// maxErrorBody bounds how much of an error's text is read.
const maxErrorBody = 64 << 10

var (
	errTooManyRequests = errors.New("the answer broke off again and again")
	errEarly           = errors.New("the store called the upload complete before all of it was sent")
)

// snapshot is a record at rest.
type snapshot struct {
	requests             int
	sent, deciding, part bool
	status               int
	header               http.Header
	body                 []byte
	date                 time.Time
}

func (r *record) snapshot() snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return snapshot{r.requests, r.sent, r.deciding, r.part, r.status, r.header, r.body, r.date}
}

// begin notes that a request is about to be sent.
func (r *record) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit > 0 && r.requests >= r.limit {
		return errTooManyRequests
	}
	r.requests++
	r.status, r.header, r.body, r.date = 0, nil, nil, time.Time{}
	return nil
}

// failed counts one more failure in a row; progress forgets them.
func (r *record) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
	return r.failures
}

func (r *record) progress() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = 0
}

// connected notes that req may reach the store from now on.
func (r *record) connected(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = true
	contentRange := req.Header.Get("Content-Range")
	r.part = contentRange != ""
	if !r.resumable || finalPart(contentRange) {
		r.deciding = true
	}
}

func (r *record) answered(res *http.Response, body []byte) {
	date, _ := http.ParseTime(res.Header.Get("Date")) // absent or odd: no date
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.header, r.body, r.date = res.StatusCode, res.Header, body, date
}

// early says that an upload was answered with success before it was sent.
func (r *record) early(req *http.Request, res *http.Response) bool {
	if r.complete == nil || res.StatusCode/100 != 2 || r.resumable && req.Header.Get("Content-Range") == "" {
		return false
	}
	// That is how a part is acknowledged that is not the last.
	return res.Header.Get("X-Http-Status-Code-Override") != "308" && !r.complete()
}

// finalPart reads the Content-Range of a part of a resumable upload: only the
// last part knows the size of the whole.
func finalPart(contentRange string) bool {
	_, total, ok := strings.Cut(contentRange, "/")
	return ok && total != "*"
}

type recordKey struct{}

// withRecord makes the requests under the returned context write to r.
func withRecord(ctx context.Context, r *record) context.Context {
	return context.WithValue(ctx, recordKey{}, r)
}

// recorder writes what happens on the wire to the record of the request's
// context.
type recorder struct {
	base http.RoundTripper
	// own says that base is newTransport's, which is known to report the
	// connection of every request before it writes to it.
	own bool
}

func (t *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	rec, _ := req.Context().Value(recordKey{}).(*record)
	if rec == nil {
		return t.base.RoundTrip(req)
	}
	if err := rec.begin(); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	// A request counts as sent from the moment it has a connection. A transport
	// that does not say when that is may have sent it at any time.
	var reports atomic.Bool
	reports.Store(t.own)
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { reports.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { rec.connected(req) },
	})
	res, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		if !reports.Load() {
			rec.connected(req)
		}
		return nil, err
	}
	rec.connected(req)
	if rec.early(req, res) {
		// The client would go on waiting for the rest to be taken.
		res.Body.Close()
		return nil, errEarly
	}
	var body []byte
	if res.StatusCode >= 400 && req.Method != http.MethodHead {
		// The beginning of an error's text serves as well as all of it, also where
		// the connection ends there.
		body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
		res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(body))
		res.ContentLength = int64(len(body))
	}
	rec.answered(res, body)
	return res, nil
}

// CloseIdleConnections is what http.Client looks for.
func (t *recorder) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
