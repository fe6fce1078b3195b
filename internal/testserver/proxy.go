package testserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy is a reverse proxy on loopback that hands requests to one HTTP server,
// writes down what it saw, and makes go wrong what Inject asks for. The Host
// header goes through as it came, so that signatures over it stay valid.
type Proxy struct {
	target *url.URL
	url    string
	// resign makes a changed request valid again, for servers that verify
	// signatures. Set before the first request.
	resign func(*http.Request) error

	tr     *http.Transport
	closed chan struct{}

	mu     sync.Mutex
	faults []*Injected
	seen   []*record
	busy   int           // requests in work
	idle   chan struct{} // closed when busy falls to 0 after closed
}

// Request is what the proxy saw of one request.
type Request struct {
	Method string
	Path   string // as it came, with its escapes
	Query  url.Values
	Host   string
	Header http.Header // as it came
	// BodyBytes is how many bytes of the body came.
	BodyBytes int64
	// Forwarded says that the request was handed to the server. Status is the
	// answer that was passed on to the client, 0 if there was none.
	Forwarded bool
	Status    int
}

type record struct {
	Request
	body *countingBody
}

type countingBody struct {
	io.ReadCloser
	n atomic.Int64
}

func (c *countingBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// NewProxy starts a proxy before the server at target ("http://127.0.0.1:1234")
// and stops it when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		t.Fatalf("testserver: a proxy needs an http:// address as its target, not %q", target)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: the proxy's port: %v", err)
	}
	p := &Proxy{
		target: u,
		url:    "http://" + ln.Addr().String(),
		// A connection of its own for each request: a server that closes an idle
		// one must not look like a lost answer.
		tr:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		closed: make(chan struct{}),
		idle:   make(chan struct{}),
	}
	srv := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		p.mu.Lock()
		close(p.closed)
		if p.busy == 0 {
			close(p.idle)
		}
		p.mu.Unlock()
		srv.Close()
		<-served
		<-p.idle
	})
	return p
}

// URL returns the proxy's address, like "http://127.0.0.1:1234".
func (p *Proxy) URL() string { return p.url }

// Requests returns what was seen so far, in the order of arrival.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Request, len(p.seen))
	for i, r := range p.seen {
		all[i] = r.Request
		all[i].BodyBytes = r.body.n.Load()
	}
	return all
}

// Forget empties the list of requests.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = nil
}

// Inject adds a fault. Of several that match a request, the first counts.
func (p *Proxy) Inject(f Fault) *Injected {
	i := &Injected{p: p, f: f}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, i)
	return i
}

// Injected is a fault at work.
type Injected struct {
	p    *Proxy
	f    Fault
	seen int // requests that matched
	hits int // of these, the ones that it was done to
}

// Hits returns how many requests the fault was done to.
func (i *Injected) Hits() int {
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	return i.hits
}

// Remove ends the fault.
func (i *Injected) Remove() {
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	for n, f := range i.p.faults {
		if f == i {
			i.p.faults = append(i.p.faults[:n:n], i.p.faults[n+1:]...)
			return
		}
	}
}

// enter writes the request down and finds the fault for it.
func (p *Proxy) enter(r *http.Request) (*record, Fault, bool) {
	rec := &record{
		Request: Request{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.Query(), Host: r.Host, Header: r.Header.Clone()},
		body:    &countingBody{ReadCloser: r.Body},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		return nil, Fault{}, false
	default:
	}
	p.busy++
	p.seen = append(p.seen, rec)
	for _, i := range p.faults {
		if i.f.Match != nil && !i.f.Match(r) {
			continue
		}
		i.seen++
		if i.seen <= i.f.Skip || i.f.Times > 0 && i.hits >= i.f.Times {
			continue
		}
		i.hits++
		return rec, i.f, true
	}
	return rec, Fault{}, true
}

func (p *Proxy) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	select {
	case <-p.closed:
		if p.busy == 0 {
			close(p.idle)
		}
	default:
	}
}

func (p *Proxy) note(rec *record, f func(r *Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&rec.Request)
}

// ServeHTTP handles one request. It is called by the proxy's own server.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec, fault, ok := p.enter(r)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer p.leave()
	if r.ContentLength != 0 {
		r.Body = rec.body
	}
	if fault.Cut {
		cut(w)
		return
	}
	ctx := r.Context()
	if fault.Hold != nil || fault.HoldAnswer != nil {
		// It is carried out even if the client goes away meanwhile.
		ctx = context.WithoutCancel(ctx)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			cut(w)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if fault.Hold != nil && !fault.Hold.wait(p.closed) {
		cut(w)
		return
	}
	if fault.Status != 0 {
		io.Copy(io.Discard, r.Body)
		p.note(rec, func(r *Request) { r.Status = fault.Status })
		fault.answer(w)
		return
	}
	resp, err := p.forward(ctx, r, fault)
	if err != nil {
		cut(w)
		return
	}
	defer resp.Body.Close()
	p.note(rec, func(r *Request) { r.Forwarded = true })
	if fault.EditAnswer != nil {
		fault.EditAnswer(resp)
	}
	if fault.LoseAnswer || fault.HoldAnswer != nil {
		// The server must be done with it before the client learns anything.
		body, _ := io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(bytes.NewReader(body))
	}
	if fault.HoldAnswer != nil && !fault.HoldAnswer.wait(p.closed) || fault.LoseAnswer {
		cut(w)
		return
	}
	p.note(rec, func(r *Request) { r.Status = resp.StatusCode })
	passOn(w, resp, fault)
}

// hopByHop are the headers that belong to one connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func (p *Proxy) forward(ctx context.Context, r *http.Request, fault Fault) (*http.Response, error) {
	out := r.Clone(ctx)
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host = p.target.Scheme, p.target.Host
	for _, h := range hopByHop {
		out.Header.Del(h)
	}
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	changed := false
	if fault.DropConditions {
		changed = dropConditions(out)
	}
	if fault.EditRequest != nil {
		fault.EditRequest(out)
		changed = true
	}
	if changed && p.resign != nil {
		if err := p.resign(out); err != nil {
			return nil, fmt.Errorf("signing a changed request: %w", err)
		}
	}
	return p.tr.RoundTrip(out)
}

// dropConditions takes away what makes a request conditional, as a store does
// that does not know conditions.
func dropConditions(r *http.Request) bool {
	changed := false
	for _, h := range []string{"If-None-Match", "If-Match", "X-Goog-If-Generation-Match", "X-Goog-If-Metageneration-Match"} {
		if r.Header.Get(h) != "" {
			r.Header.Del(h)
			changed = true
		}
	}
	q := r.URL.Query()
	for _, k := range []string{"ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch"} {
		if q.Has(k) {
			q.Del(k)
			r.URL.RawQuery = q.Encode()
			changed = true
		}
	}
	return changed
}

func passOn(w http.ResponseWriter, resp *http.Response, fault Fault) {
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	for _, h := range hopByHop {
		w.Header().Del(h)
	}
	w.WriteHeader(resp.StatusCode)
	if fault.Truncate {
		io.CopyN(w, resp.Body, fault.TruncateAt)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// cut resets the client's connection without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// answer stands in for the server.
func (f Fault) answer(w http.ResponseWriter) {
	for k, v := range f.Header {
		w.Header()[k] = v
	}
	body := f.Body
	if body == "" && f.Code != "" {
		w.Header().Set("Content-Type", "application/xml")
		body = `<?xml version="1.0" encoding="UTF-8"?>` + "\n<Error><Code>" + f.Code + "</Code><Message>" +
			strings.TrimSpace("injected by a test "+f.Message) + "</Message><RequestId>TEST</RequestId></Error>"
	}
	w.WriteHeader(f.Status)
	io.WriteString(w, body)
}
