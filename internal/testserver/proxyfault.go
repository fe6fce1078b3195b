package testserver

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what a Proxy does to the requests that Match. Fields that do not
// exclude each other may be set together.
type Fault struct {
	Match Match // nil: every request
	Skip  int   // let so many matching requests pass first
	Times int   // do it so many times; 0: until it is removed

	// Cut resets the connection before the request is carried out.
	Cut bool
	// Status answers in the server's place, after the body was read. Code makes
	// an S3 error document of it (with Message), Body anything else.
	Status  int
	Code    string
	Message string
	Body    string
	Header  http.Header

	// DropConditions hides from the server that the request is conditional.
	DropConditions bool
	// EditRequest changes the request before it is handed on.
	EditRequest func(*http.Request)
	// Hold keeps a request, received to its last byte, until the gate opens; it
	// is carried out then, even if the client has gone. Bodies are held in memory.
	Hold *Gate
	// HoldAnswer is the same for the answer: the request was carried out already.
	HoldAnswer *Gate
	// EditAnswer changes the answer's head before it is passed on.
	EditAnswer func(*http.Response)
	// LoseAnswer resets the connection after the request was carried out.
	LoseAnswer bool
	// Truncate passes on TruncateAt bytes of the answer's body, then closes.
	Truncate   bool
	TruncateAt int64
}

// Match picks requests.
type Match func(*http.Request) bool

// Method matches a method.
func Method(m string) Match { return func(r *http.Request) bool { return r.Method == m } }

// KeySuffix matches requests whose path ends with s.
func KeySuffix(s string) Match {
	return func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, s) }
}

// HasQuery matches requests that have each of the query parameters.
func HasQuery(names ...string) Match {
	return func(r *http.Request) bool {
		q := r.URL.Query()
		for _, n := range names {
			if !q.Has(n) {
				return false
			}
		}
		return true
	}
}

// HasHeader matches requests that have a header.
func HasHeader(name string) Match {
	return func(r *http.Request) bool { return r.Header.Get(name) != "" }
}

// All matches what all of them match.
func All(ms ...Match) Match {
	return func(r *http.Request) bool {
		for _, m := range ms {
			if !m(r) {
				return false
			}
		}
		return true
	}
}

// Not matches what m does not.
func Not(m Match) Match { return func(r *http.Request) bool { return !m(r) } }

// Gate holds requests or answers until it is opened.
type Gate struct {
	arrived chan struct{}
	open    chan struct{}
	once    sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{arrived: make(chan struct{}, 1024), open: make(chan struct{})}
}

// Open lets all pass, now and later.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }

// Await waits until one more request has arrived at the gate.
func (g *Gate) Await(t testing.TB) {
	t.Helper()
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-g.arrived:
	case <-timer.C:
		t.Fatal("no request came to the gate within 30 s")
	}
}

func (g *Gate) wait(closed <-chan struct{}) bool {
	select {
	case g.arrived <- struct{}{}:
	default:
	}
	select {
	case <-g.open:
		return true
	case <-closed:
		return false
	}
}
