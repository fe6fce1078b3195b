package testserver_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/swampd/swampd/internal/testserver"
)

// behind starts a server that answers with what it got, and a proxy before it.
func behind(t *testing.T) (p *testserver.Proxy, reached *atomic.Int64) {
	t.Helper()
	reached = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Reached", "yes")
		fmt.Fprintf(w, "%s %s host=%s if=%q,%q body=%s", r.Method, r.URL.RequestURI(), r.Host,
			r.Header.Get("If-None-Match")+r.Header.Get("If-Match"), r.Header.Get("X-Goog-If-Generation-Match"), body)
	}))
	t.Cleanup(srv.Close)
	return testserver.NewProxy(t, srv.URL), reached
}

func send(t *testing.T, p *testserver.Proxy, method, path, body string, header ...string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

func TestTheProxyPassesRequestsOnUnchanged(t *testing.T) {
	p, _ := behind(t)
	host := strings.TrimPrefix(p.URL(), "http://")
	resp, text, err := send(t, p, "PUT", "/a%2Fb/c%20d?x=1&y", "hello", "If-None-Match", "*")
	if want := `PUT /a%2Fb/c%20d?x=1&y host=` + host + ` if="*","" body=hello`; err != nil || text != want {
		t.Errorf("got %q, %v\nwant %q", text, err, want)
	}
	if resp.Header.Get("X-Reached") != "yes" || resp.Header.Get("Date") == "" {
		t.Errorf("the answer's head is %v", resp.Header)
	}
	r := p.Requests()[0]
	if r.Method != "PUT" || r.Path != "/a%2Fb/c%20d" || !r.Query.Has("y") || r.Host != host || r.BodyBytes != 5 ||
		!r.Forwarded || r.Status != 200 || r.Header.Get("If-None-Match") != "*" {
		t.Errorf("recorded %+v", r)
	}
	p.Forget()
	if n := len(p.Requests()); n != 0 {
		t.Errorf("%d requests after Forget", n)
	}
}

func TestFaultsOnTheWire(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fault   testserver.Fault
		reached int64  // requests that the server got
		fails   bool   // there is no answer
		status  int    // of the answer
		text    string // in it
	}{
		{"drop conditions", testserver.Fault{DropConditions: true}, 1, false, 200, `/k?keep=1 host=%s if="","" body=hello`},
		{"an answer in its place", testserver.Fault{Status: 503, Code: "SlowDown"}, 0, false, 503, "<Code>SlowDown</Code>"},
		{"an answer of another kind", testserver.Fault{Status: 429, Body: `{"error":1}`}, 0, false, 429, `{"error":1}`},
		{"cut", testserver.Fault{Cut: true}, 0, true, 0, ""},
		{"lose the answer", testserver.Fault{LoseAnswer: true}, 1, true, 0, ""},
		{"truncate", testserver.Fault{Truncate: true, TruncateAt: 3}, 1, true, 0, ""},
		{"change the answer", testserver.Fault{EditAnswer: func(r *http.Response) { r.StatusCode = 201 }}, 1, false, 201, "PUT"},
		{"change the request", testserver.Fault{EditRequest: func(r *http.Request) { r.Header.Set("If-Match", "new") }}, 1, false, 200, `if="*new"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, reached := behind(t)
			tc.fault.Match = testserver.All(testserver.Method("PUT"), testserver.KeySuffix("k"))
			tc.fault.Skip, tc.fault.Times = 1, 1
			f := p.Inject(tc.fault)
			put := func() (*http.Response, string, error) {
				return send(t, p, "PUT", "/k?keep=1&ifGenerationMatch=0", "hello", "If-None-Match", "*", "X-Goog-If-Generation-Match", "0")
			}
			plain := `PUT /k?keep=1&ifGenerationMatch=0 host=` + strings.TrimPrefix(p.URL(), "http://") + ` if="*","0" body=hello`
			if _, text, err := put(); err != nil || text != plain {
				t.Errorf("the request to skip: %q, %v, want %q", text, err, plain)
			}
			reached.Store(0)
			resp, text, err := put()
			switch {
			case tc.fails && err == nil:
				t.Errorf("an answer came: %q", text)
			case !tc.fails && (err != nil || resp.StatusCode != tc.status || !strings.Contains(text, strings.ReplaceAll(tc.text, "%s", strings.TrimPrefix(p.URL(), "http://")))):
				t.Errorf("got %q, %v, want status %d and %q", text, err, tc.status, tc.text)
			}
			if got := reached.Load(); got != tc.reached {
				t.Errorf("%d requests came to the server, want %d", got, tc.reached)
			}
			if _, text, err := put(); err != nil || text != plain {
				t.Errorf("the request after it: %q, %v, want %q", text, err, plain)
			}
			if f.Hits() != 1 {
				t.Errorf("%d hits, want 1", f.Hits())
			}
		})
	}
}

func TestATruncatedAnswerBreaksOffInTheBody(t *testing.T) {
	p, _ := behind(t)
	p.Inject(testserver.Fault{Truncate: true, TruncateAt: 3})
	resp, text, err := send(t, p, "GET", "/k", "")
	if resp == nil || resp.StatusCode != 200 || text != "GET" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, %q, %v, want 200, three bytes and %v", resp, text, err, io.ErrUnexpectedEOF)
	}
}

func TestAHeldRequestIsCarriedOutWhenTheGateOpens(t *testing.T) {
	p, reached := behind(t)
	before, after := testserver.NewGate(), testserver.NewGate()
	p.Inject(testserver.Fault{Match: testserver.KeySuffix("before"), Hold: before})
	p.Inject(testserver.Fault{Match: testserver.KeySuffix("after"), HoldAnswer: after})
	done := make(chan error, 2)
	for _, path := range []string{"/before", "/after"} {
		go func() {
			_, _, err := send(t, p, "PUT", path, "x")
			done <- err
		}()
	}
	before.Await(t)
	after.Await(t)
	if n := reached.Load(); n != 1 {
		t.Errorf("%d requests came to the server, want only the one whose answer is held", n)
	}
	before.Open()
	after.Open()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := reached.Load(); n != 2 {
		t.Errorf("%d requests came to the server, want 2", n)
	}
}
