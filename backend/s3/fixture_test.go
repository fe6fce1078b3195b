package s3_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/testserver"
)

// wired is a store behind the proxy.
type wired struct {
	srv    *testserver.S3Server
	proxy  *testserver.Proxy
	url    string          // of the store itself
	b      *backend.Bucket // by way of the proxy
	direct *backend.Bucket
}

func newWired(t *testing.T, edit ...func(*s3.Options)) *wired {
	t.Helper()
	srv := testserver.S3(t)
	w := &wired{srv: srv, proxy: srv.Proxy(t), url: srv.NewBucket(t)}
	w.b = srv.Open(t, srv.ProxyURL(t, w.proxy, w.url), edit...)
	w.direct = srv.Open(t, w.url)
	return w
}

// requests are the operations that the proxy saw, like "PUT" or "POST ?uploads".
func (w *wired) requests() []string {
	var all []string
	for _, r := range w.proxy.Requests() {
		all = append(all, operation(r))
	}
	return all
}

func operation(r testserver.Request) string {
	q := r.Query
	switch {
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return "UploadPart"
	case r.Method == http.MethodPut:
		return "PutObject"
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "CreateMultipartUpload"
	case r.Method == http.MethodPost && q.Has("uploadId"):
		return "CompleteMultipartUpload"
	case r.Method == http.MethodPost && q.Has("delete"):
		return "DeleteObjects"
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "AbortMultipartUpload"
	case r.Method == http.MethodGet && q.Has("list-type"):
		return "ListObjectsV2"
	case r.Method == http.MethodGet && q.Has("uploads"):
		return "ListMultipartUploads"
	case r.Method == http.MethodGet:
		return "GetObject"
	case r.Method == http.MethodHead:
		return "HeadObject"
	}
	return r.Method + " " + r.Path
}

// wantRequests demands exactly these operations since the last look.
func (w *wired) wantRequests(t *testing.T, want ...string) {
	t.Helper()
	if got := w.requests(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("requests:\n got %q\nwant %q", got, want)
	}
	w.proxy.Forget()
}

// Matches for the operations that decide something.
var (
	isPut      = testserver.All(testserver.Method(http.MethodPut), testserver.Not(testserver.HasQuery("partNumber")))
	isPart     = testserver.All(testserver.Method(http.MethodPut), testserver.HasQuery("partNumber"))
	isComplete = testserver.All(testserver.Method(http.MethodPost), testserver.HasQuery("uploadId"))
	isGet      = testserver.Method(http.MethodGet)
)

// holds demands that key holds data.
func holds(t *testing.T, b *backend.Bucket, key string, data []byte) backend.Info {
	t.Helper()
	obj, err := b.Get(t.Context(), key, backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Body.Close()
	got, err := io.ReadAll(obj.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatalf("%s holds %d bytes %.40q, want %d bytes %.40q", key, len(got), got, len(data), data)
	}
	return obj.Info
}

// absent demands that key holds nothing.
func absent(t *testing.T, b *backend.Bucket, key string) {
	t.Helper()
	if _, err := b.Get(t.Context(), key, backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
		t.Fatalf("get of %s: %v, want %v", key, err, backend.ErrNotFound)
	}
}

// wantError demands an error that wraps want and says each of the texts, and
// that is not an unknown outcome unless that is wanted.
func wantError(t *testing.T, err, want error, texts ...string) {
	t.Helper()
	if err == nil || want != nil && !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
	if want != backend.ErrUnknown && errors.Is(err, backend.ErrUnknown) {
		t.Errorf("%v: is an unknown outcome, want only %v", err, want)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error %q does not say %q", err, s)
		}
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// counted is a Body that counts how often it is opened and what is read of it.
type counted struct {
	data                 []byte
	opens, closes, bytes atomic.Int64
	at                   func(n int64) // called before each read
	failAt               int64         // with failErr
	failErr              error
}

func (c *counted) body(sum bool) backend.Body {
	b := backend.Body{Size: int64(len(c.data)), Open: c.open}
	if sum {
		b.SHA256, b.HasSHA256 = sha256.Sum256(c.data), true
	}
	return b
}

func (c *counted) open() (io.ReadSeekCloser, error) {
	c.opens.Add(1)
	return &countedReader{c: c, Reader: bytes.NewReader(c.data)}, nil
}

type countedReader struct {
	c *counted
	*bytes.Reader
}

func (r *countedReader) Read(p []byte) (int, error) {
	pos, _ := r.Seek(0, io.SeekCurrent)
	if r.c.at != nil {
		r.c.at(pos)
	}
	if r.c.failErr != nil {
		if pos >= r.c.failAt {
			return 0, r.c.failErr
		}
		p = p[:min(int64(len(p)), r.c.failAt-pos)]
	}
	n, err := r.Reader.Read(p)
	r.c.bytes.Add(int64(n))
	return n, err
}

func (r *countedReader) Close() error {
	r.c.closes.Add(1)
	return nil
}

// script is an HTTP client that answers without a network: the n-th request
// (from 0) gets what it returns.
type script struct {
	mu    sync.Mutex
	n     int
	reply func(n int, req *http.Request) (*http.Response, error)
	// bodies are those of the requests so far.
	bodies []string
}

func (s *script) Do(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	n := s.n
	s.n++
	s.bodies = append(s.bodies, string(body))
	s.mu.Unlock()
	return s.reply(n, req)
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// scripted opens a bucket that is answered by reply.
func scripted(t *testing.T, reply func(n int, req *http.Request) (*http.Response, error), edit ...func(*s3.Options)) (*backend.Bucket, *script) {
	t.Helper()
	sc := &script{reply: reply}
	opts := s3.Options{
		Bucket: "bucket", Prefix: "store", Region: "eu-central-1",
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
		HTTPClient:  sc,
	}
	for _, f := range edit {
		f(&opts)
	}
	d, err := s3.New(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return backend.NewBucket(d, "s3://bucket/store"), sc
}

// storeDate is the clock of a scripted store.
const storeDate = "Mon, 30 Nov 2026 12:00:00 GMT"

// reply makes an answer; header is pairs of names and values.
func reply(status int, body string, header ...string) (*http.Response, error) {
	resp := &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Date": {storeDate}},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
	for i := 0; i+1 < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp, nil
}

// errorReply is an S3 error document.
func errorReply(status int, code, message string, header ...string) (*http.Response, error) {
	return reply(status, "<Error><Code>"+code+"</Code><Message>"+message+"</Message></Error>", header...)
}
