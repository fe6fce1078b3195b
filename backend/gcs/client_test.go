package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/auth"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

func TestURLs(t *testing.T) {
	t.Setenv(emulatorVar, "127.0.0.1:1") // no test looks for credentials
	for _, c := range []struct{ url, prefix, err string }{
		{"gs://bucket", "", ""},
		{"gs://bucket/", "", ""},
		{"gs://bucket_1.x-y/a/b", "a/b/", ""},
		{"gs://bucket//a/b//", "a/b/", ""},
		{"gs://bucket/a%20b", "a b/", ""},
		{"gs://bucket/a?endpoint=http://127.0.0.1:7", "a/", ""},
		{"gs://bucket/a?endpoint=http://127.0.0.1:7/storage/v1/", "a/", ""},
		{"gs://bucket/a?region=x", "", `unknown query key "region"; known: endpoint`},
		{"gs://bucket/a?endpoint=http://a&endpoint=http://b", "", "2 times"},
		{"gs://bucket/a?endpoint=ftp://x", "", "write http://host:port"},
		{"gs://bucket/a?endpoint=127.0.0.1:7", "", "no URL"},
		{"gs://bucket/a?endpoint=http://", "", "write http://host:port"},
		{"gs://bucket/a?endpoint=http://127.0.0.1:7/x", "", "root of a host"},
		{"gs://bucket/a?endpoint=http://u@127.0.0.1:7", "", "more than a scheme"},
		{"gs://bucket/a?%zz", "", "malformed"},
		{"gs://user@bucket/a", "", "no user name"},
		{"gs://bucket:80/a", "", "no port"},
		{"gs://Bucket/a", "", `'B'`},
		{"gs://b/a", "", "3 to 222"},
		{"gs://bucket/a/../b", "", `segment ".."`},
		{"gs://bucket/a//b", "", `segment ""`},
		{"gs://bucket/a%0ab", "", "no valid text"},
		{"gs://bucket/a%ffb", "", "no valid text"},
		{"gs://bucket/" + strings.Repeat("x", 512), "", "511 are possible"},
	} {
		b, err := backend.Open(t.Context(), c.url)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want one that says %q", c.url, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.url, err)
		default:
			if got := b.Driver().(*Driver).prefix; got != c.prefix {
				t.Errorf("%s: prefix %q, want %q", c.url, got, c.prefix)
			}
		}
		if b != nil {
			b.Close()
		}
	}
	if _, err := New(t.Context(), Options{Bucket: "bucket", ChunkSize: 1000}); err == nil {
		t.Error("a chunk size of 1000 bytes was taken")
	}
}

func TestEndpointsKeepTheirPasswords(t *testing.T) {
	t.Setenv(emulatorVar, "")
	for _, addr := range []string{
		"http://u:hunter2@h", "http://u:hunter2%@h", "http://u:hunter2/x@h", "http://u:1/hunter2@h", "http://u:/hunter2@h",
		"u:hunter2@h:9000", "ftp://u:hunter2@h", "http://u:hunter2@h:port", "http://h/?token=hunter2", "//u:hunter2@h",
	} {
		for _, given := range []string{addr, ""} {
			if given == "" {
				t.Setenv(emulatorVar, addr)
			}
			if ep, err := findEndpoint(given); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q: %v, %v, want an error that keeps the password", addr, ep, err)
			}
		}
		t.Setenv(emulatorVar, "")
	}
}

func TestEmulatorHost(t *testing.T) {
	srv := testserver.GCS(t)
	if srv.External() {
		t.Skipf("%s is set: this test needs a server of its own", testserver.GCSURLVariable)
	}
	detectCredentialsWith(t, nil, errors.New("credentials were looked for"))
	u, err := url.Parse(srv.NewBucket(t))
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = ""
	for _, host := range []string{srv.EmulatorHost(), "http://" + srv.EmulatorHost()} {
		t.Setenv(emulatorVar, host)
		d := openDriver(t, u.String())
		if _, err := d.Create(t.Context(), "data/"+strings.ToLower(randomName(host)), backend.Bytes([]byte("x"))); err != nil {
			t.Errorf("%s=%s: %v", emulatorVar, host, err)
		}
		if d.pace.interval != 0 {
			t.Errorf("an emulator is paced: %v", d.pace.interval)
		}
	}
	// An endpoint that is given counts more than the variable.
	t.Setenv(emulatorVar, "127.0.0.1:1")
	d := openDriver(t, srv.URL(u.Host, "store"))
	n := 0
	for _, err := range d.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d objects, want the 2 that were made", n)
	}
}

func randomName(s string) string { return fmt.Sprintf("%x", s) }

func TestTheStoreIsNotReachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	d := openDriver(t, "gs://bucket/p?endpoint="+url.QueryEscape("http://"+addr))
	for op, call := range calls(t, d) {
		err := call(t.Context())
		if op == "delete" {
			var rest *backend.RemainError
			if !errors.As(err, &rest) || len(rest.Keys) != 1 {
				t.Errorf("delete: %v", err)
			}
		}
		isPlain(t, op, err, "not reachable, nothing was sent")
		if !backend.Date(err).IsZero() {
			t.Errorf("%s: a date without an answer", op)
		}
	}
}

// calls makes one of each.
func calls(t *testing.T, d *Driver) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"get": func(ctx context.Context) error {
			_, err := d.Get(ctx, "data/x", backend.GetOptions{})
			return err
		},
		"create": func(ctx context.Context) error {
			_, err := d.Create(ctx, "data/x", backend.Bytes([]byte("x")))
			return err
		},
		"large create": func(ctx context.Context) error {
			_, err := d.Create(ctx, "data/y", backend.Bytes(noise(d.chunk+1)))
			return err
		},
		"replace": func(ctx context.Context) error {
			_, err := d.Replace(ctx, "_control/x", backend.Bytes([]byte("x")), "1")
			return err
		},
		"delete": func(ctx context.Context) error { return d.Delete(ctx, []string{"data/x"}) },
		"list": func(ctx context.Context) error {
			for _, err := range d.List(ctx, "", "") {
				return err
			}
			return nil
		},
	}
}

func detectCredentialsWith(t *testing.T, creds *auth.Credentials, err error) {
	t.Helper()
	old := detectCredentials
	t.Cleanup(func() { detectCredentials = old })
	detectCredentials = func() (*auth.Credentials, error) { return creds, err }
}

func TestNoCredentials(t *testing.T) {
	t.Setenv(emulatorVar, "")
	check := func(what, detail string) {
		t.Helper()
		_, err := backend.Open(t.Context(), "gs://bucket/p")
		if !errors.Is(err, backend.ErrDenied) {
			t.Errorf("%s: error %v, want %v", what, err, backend.ErrDenied)
			return
		}
		for _, s := range []string{"gs://bucket/p", "no Google credentials", "GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth application-default login", detail} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: the error does not say %q: %v", what, s, err)
			}
		}
	}
	// Google's own search, as far as it stays on this machine.
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json"))
	check("a key file that is missing", "none.json")
	file := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	check("a key file that is no JSON", "")

	detectCredentialsWith(t, nil, errors.New("nothing here"))
	check("nothing", "nothing here")
}

type tokens func() (*auth.Token, error)

func (f tokens) Token(context.Context) (*auth.Token, error) { return f() }

func credentialsOf(f tokens) *auth.Credentials {
	return auth.NewCredentials(&auth.CredentialsOptions{
		TokenProvider:          f,
		UniverseDomainProvider: auth.CredentialsPropertyFunc(func(context.Context) (string, error) { return "googleapis.com", nil }),
	})
}

// stub is an https server that answers like the service.
func stub(t *testing.T, seen *[]*http.Request) *httptest.Server {
	var mu sync.Mutex
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		*seen = append(*seen, r.Clone(context.Background()))
		mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": "No such object: x"}})
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestCredentialsAreSentByHTTPSOnly(t *testing.T) {
	t.Setenv(emulatorVar, "")
	detectCredentialsWith(t, credentialsOf(func() (*auth.Token, error) { return &auth.Token{Value: "hush"}, nil }), nil)
	var seen []*http.Request
	srv := stub(t, &seen)
	for _, env := range []string{"", "127.0.0.1:1"} {
		t.Setenv(emulatorVar, env)
		d := openDriver(t, "gs://bucket/p?endpoint="+url.QueryEscape(srv.URL), func(o *Options) { o.Transport = srv.Client().Transport })
		if d.pace.interval == 0 {
			t.Error("the service is not paced")
		}
		for op, call := range calls(t, d) {
			before := len(seen)
			call(t.Context())
			if len(seen) == before {
				t.Errorf("%s: no request came", op)
			}
		}
	}
	for _, r := range seen {
		if got := r.Header.Get("Authorization"); got != "Bearer hush" {
			t.Errorf("%s %s: Authorization %q, want the token", r.Method, r.URL, got)
		}
	}

	s := newStore(t)
	for _, call := range calls(t, s.Driver) {
		call(t.Context())
	}
	for _, r := range s.proxy.Requests() {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("%s %s: sent Authorization %q in clear text", r.Method, r.Path, got)
		}
	}
	if len(s.proxy.Requests()) == 0 {
		t.Error("no request came")
	}
}

func TestNoTokenIsDeniedAndNothingIsSent(t *testing.T) {
	t.Setenv(emulatorVar, "")
	detectCredentialsWith(t, credentialsOf(func() (*auth.Token, error) { return nil, errors.New("expired") }), nil)
	var seen []*http.Request
	srv := stub(t, &seen)
	d := openDriver(t, "gs://bucket/p?endpoint="+url.QueryEscape(srv.URL), func(o *Options) {
		o.Transport = srv.Client().Transport
		o.ReplaceInterval = -1
	})
	for op, call := range calls(t, d) {
		err := call(t.Context())
		isErr(t, op, err, backend.ErrDenied)
		if !strings.Contains(err.Error(), "expired") {
			t.Errorf("%s: the error does not say why: %v", op, err)
		}
	}
	if len(seen) > 0 {
		t.Errorf("%d requests were sent without a token", len(seen))
	}
}

func TestNoTokenBecauseOffline(t *testing.T) {
	t.Setenv(emulatorVar, "")
	offline := &net.OpError{Op: "dial", Err: errors.New("network is down")}
	detectCredentialsWith(t, credentialsOf(func() (*auth.Token, error) { return nil, fmt.Errorf("cannot fetch token: %w", offline) }), nil)
	d := openDriver(t, "gs://bucket/p", func(o *Options) { o.Transport = http.NewFileTransport(http.Dir(t.TempDir())) })
	isPlain(t, "create", calls(t, d)["create"](t.Context()), "is the network there?")
}

// A redirect is not followed: the token would go along.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var strayed atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { strayed.Add(1) }))
	defer elsewhere.Close()
	s := newStore(t)
	s.proxy.Inject(testserver.Fault{Status: http.StatusFound, Header: http.Header{"Location": {elsewhere.URL}}})
	for op, call := range calls(t, s.Driver) {
		if err := call(t.Context()); err == nil {
			t.Errorf("%s: a redirect was taken for success", op)
		}
	}
	if strayed.Load() > 0 {
		t.Errorf("%d requests went to where the redirect pointed", strayed.Load())
	}
}

// Many workers keep their connections instead of making one for each request.
func TestConnectionsAreUsedAgain(t *testing.T) {
	var opened atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		h := w.Header()
		h.Set("X-Goog-Generation", "7")
		h.Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		h.Set("Content-Length", "10")
		w.Write(make([]byte, 10))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	d := openDriver(t, "gs://bucket/p?endpoint="+url.QueryEscape(srv.URL))
	const workers, each = 64, 20
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range each {
				obj, err := d.Get(t.Context(), "data/x", backend.GetOptions{Length: int64(10 * (i % 2))})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, obj.Body); err != nil {
					t.Error(err)
				}
				obj.Body.Close()
			}
		})
	}
	wg.Wait()
	if n := opened.Load(); n > 2*workers {
		t.Errorf("%d connections for %d workers", n, workers)
	}
}

func TestAnswersWithoutAGeneration(t *testing.T) {
	s := newStore(t)
	s.mustCreate(t, "data/x", noise(10))
	s.proxy.Inject(testserver.Fault{EditAnswer: func(r *http.Response) {
		r.Header.Del("X-Goog-Generation")
		if r.Request.Method == http.MethodPost {
			r.Body = io.NopCloser(strings.NewReader(`{"name":"x"}`))
			r.Header.Del("Content-Length")
		}
	}})
	_, err := s.Get(t.Context(), "data/x", backend.GetOptions{})
	isErr(t, "get", err, backend.ErrUnsupported)
	_, err = s.Create(t.Context(), "data/y", backend.Bytes(nil))
	isErr(t, "create", err, backend.ErrUnknown)
}
