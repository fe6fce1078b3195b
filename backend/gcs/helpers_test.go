package gcs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

// store is a driver on a fresh bucket, with a proxy between them.
type store struct {
	*Driver
	proxy  *testserver.Proxy
	direct *Driver // past the proxy
	srv    *testserver.GCSServer
	url    string
}

func newStore(t *testing.T, edit ...func(*Options)) *store {
	t.Helper()
	srv := testserver.GCS(t)
	storeURL := srv.NewBucket(t)
	if srv.External() {
		t.Skipf("%s is set: this test needs a server of its own", testserver.GCSURLVariable)
	}
	p := srv.Proxy(t)
	return &store{
		Driver: openDriver(t, srv.ProxyURL(t, p, storeURL), edit...),
		proxy:  p,
		direct: openDriver(t, storeURL),
		srv:    srv,
		url:    storeURL,
	}
}

func openDriver(t *testing.T, storeURL string, edit ...func(*Options)) *Driver {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	opts, err := parseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edit {
		e(&opts)
	}
	d, err := New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// smallParts makes bodies over 256 KiB go as resumable uploads.
func smallParts(o *Options) { o.ChunkSize = chunkUnit }

func (s *store) mustCreate(t *testing.T, key string, data []byte) backend.Info {
	t.Helper()
	info, err := s.direct.Create(t.Context(), key, backend.Bytes(data))
	if err != nil {
		t.Fatalf("create %s: %v", key, err)
	}
	return info
}

// holds checks what a key holds; nil means nothing.
func (s *store) holds(t *testing.T, key string, want []byte) {
	t.Helper()
	obj, err := s.direct.Get(t.Context(), key, backend.GetOptions{})
	if want == nil {
		if !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("get %s: error %v, want %v: nothing should be there", key, err, backend.ErrNotFound)
		}
		return
	}
	if err != nil {
		t.Errorf("get %s: %v", key, err)
		return
	}
	defer obj.Body.Close()
	got, err := io.ReadAll(obj.Body)
	if err != nil {
		t.Errorf("read %s: %v", key, err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes, not the %d that it should, or others", key, len(got), len(want))
	}
}

// isErr checks that err is want and none of the other sentinels.
func isErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
		return
	}
	for _, s := range sentinels {
		if s != want && errors.Is(err, s) {
			t.Errorf("%s: error %v is also %v, want %v alone", what, err, s, want)
		}
	}
}

// isPlain checks that err is none of the sentinels.
func isPlain(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error %v, want one that says %q", what, err, text)
		return
	}
	for _, s := range sentinels {
		if errors.Is(err, s) {
			t.Errorf("%s: error %v is %v, want none of the sentinels", what, err, s)
		}
	}
}

var sentinels = []error{
	backend.ErrNotFound, backend.ErrExists, backend.ErrChanged, backend.ErrConflict, backend.ErrBusy, backend.ErrUnknown,
	backend.ErrDenied, backend.ErrUnsupported, backend.ErrBadContent, backend.ErrFull, backend.ErrNoBucket, backend.ErrClosed,
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	r.Read(b)
	return b
}

// Matches of the proxy.
var (
	uploads    = testserver.All(testserver.Method(http.MethodPost), testserver.HasQuery("uploadType"))
	starts     = testserver.All(uploads, testserver.Not(testserver.HasQuery("upload_id")))
	parts      = testserver.All(uploads, testserver.HasQuery("upload_id"))
	lastParts  = testserver.All(parts, func(r *http.Request) bool { return finalPart(r.Header.Get("Content-Range")) })
	otherParts = testserver.All(parts, testserver.Not(lastParts))
)

func requests(p *testserver.Proxy, m testserver.Match) int {
	n := 0
	for _, r := range p.Requests() {
		u := &url.URL{Path: r.Path, RawQuery: r.Query.Encode()}
		if m(&http.Request{Method: r.Method, URL: u, Header: r.Header}) {
			n++
		}
	}
	return n
}

func every(*http.Request) bool { return true }

// jsonError is an error of the service.
func jsonError(status int, reason, message string) testserver.Fault {
	return testserver.Fault{
		Status: status,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   `{"error":{"code":0,"message":"` + message + `","errors":[{"domain":"global","reason":"` + reason + `","message":"` + message + `"}]}}`,
	}
}

// feed is a body whose bytes may differ from one pass to the next.
type feed struct {
	passes [][]byte // the last one again and again
	fail   error    // at the end of each pass
	n      int
}

func (f *feed) body(size int64, sha []byte) backend.Body {
	b := backend.Body{Size: size, Open: func() (io.ReadSeekCloser, error) {
		return &feedReader{f: f, r: bytes.NewReader(f.pass())}, nil
	}}
	if sha != nil {
		b.HasSHA256 = true
		copy(b.SHA256[:], sha)
	}
	return b
}

func (f *feed) pass() []byte {
	p := f.passes[min(f.n, len(f.passes)-1)]
	f.n++
	return p
}

type feedReader struct {
	f *feed
	r *bytes.Reader
}

func (r *feedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err == io.EOF && r.f.fail != nil {
		err = r.f.fail
	}
	return n, err
}

func (r *feedReader) Seek(off int64, whence int) (int64, error) {
	r.r = bytes.NewReader(r.f.pass())
	return r.r.Seek(off, whence)
}

func (r *feedReader) Close() error { return nil }
