package testserver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
)

// S3URLVariable names a store to test against, like
// s3://bucket/prefix?region=eu-central-1, in place of a server of the tests'
// own. Credentials come from the standard chain then.
const S3URLVariable = "SWAMPD_TEST_S3_URL"

const s3Region = "us-east-1"

// S3Server is an S3 store for tests.
type S3Server struct {
	// Immutable.
	external       *url.URL // what S3URLVariable names, nil for an own server
	endpoint       string
	access, secret string
	dir            string // where the own server keeps buckets
	lock           *os.File
	proc           *s3Process
}

// sharedS3 is the server of this process and the tests that hold it.
var sharedS3 sharedServer

type sharedServer struct {
	mu   sync.Mutex
	srv  *S3Server
	refs int // tests that hold it
	held bool
}

// S3 returns the S3 store that tests of this process share, and starts it if it
// does not run. A test that has it keeps it running until the test ends.
func S3(t testing.TB) *S3Server {
	t.Helper()
	srv, err := sharedS3.acquire()
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(sharedS3.release)
	return srv
}

func (s *sharedServer) acquire() (*S3Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srv == nil {
		srv, err := startS3()
		if err != nil {
			return nil, err
		}
		s.srv = srv
	}
	s.refs++
	return s.srv, nil
}

func (s *sharedServer) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs--
	s.stopUnused()
}

func (s *sharedServer) keep(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
	s.stopUnused()
}

func (s *sharedServer) stopUnused() {
	if s.srv != nil && s.refs == 0 && !s.held {
		s.srv.stop()
		s.srv = nil
	}
}

func startS3() (*S3Server, error) {
	if v := os.Getenv(S3URLVariable); v != "" {
		u, err := backend.ParseURL(v)
		if err != nil || u.Scheme != "s3" {
			return nil, fmt.Errorf("%s is not an s3:// URL: %q", S3URLVariable, backend.Redact(v))
		}
		return &S3Server{external: u}, nil
	}
	bin, err := s3Binary()
	if err != nil {
		return nil, err
	}
	removeAbandoned(os.TempDir())
	dir, err := os.MkdirTemp("", s3DirPrefix)
	if err != nil {
		return nil, err
	}
	s := &S3Server{dir: dir, access: "test" + randomHex(8), secret: randomHex(20)}
	if s.lock, err = lockFile(filepath.Join(dir, "lock"), true); err == nil {
		err = s.launch(bin)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("starting the S3 server: %w", err)
	}
	return s, nil
}

// s3DirPrefix begins the names of the servers' directories. Each holds a file
// that is locked for as long as its owner lives.
const s3DirPrefix = "swampd-test-s3-"

// removeAbandoned removes the directories of test processes that were killed.
func removeAbandoned(in string) {
	dirs, _ := filepath.Glob(filepath.Join(in, s3DirPrefix+"*"))
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // perhaps just made, and not locked yet
		}
		if lock, err := lockFile(filepath.Join(dir, "lock"), false); err == nil && lock != nil {
			os.RemoveAll(dir)
			lock.Close()
		}
	}
}

// launch starts the server on a port that was free a moment ago, and once more
// on another if somebody took it meanwhile.
func (s *S3Server) launch(bin string) error {
	data, old := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "versions")
	err := errors.Join(os.Mkdir(data, 0o700), os.Mkdir(old, 0o700))
	if err != nil {
		return err
	}
	for range 5 {
		var port string
		if port, err = freePort(); err != nil {
			return err
		}
		args := []string{"--port", port, "--access", s.access, "--secret", s.secret, "--region", s3Region, "--quiet", "--keep-alive", "posix", "--versioning-dir", old}
		if !hasXattr(data) {
			args = append(args, "--sidecar", filepath.Join(s.dir, "meta"))
			if err := os.MkdirAll(filepath.Join(s.dir, "meta"), 0o700); err != nil {
				return err
			}
		}
		s.endpoint = "http://" + port
		if s.proc, err = startProcess(bin, append(args, data), filepath.Join(s.dir, "log")); err != nil {
			return err
		}
		if err = s.awaitReady(); err == nil {
			return nil
		}
		s.proc.stop()
	}
	return err
}

func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// awaitReady waits until the server answers a request that is signed with its
// own fresh key: then it is this server and no stranger on the same port.
func (s *S3Server) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := s.do(ctx, http.MethodGet, "/", "")
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-s.proc.done:
			return fmt.Errorf("the server ended by itself: %w\n%s", s.proc.err, s.proc.output())
		case <-ctx.Done():
			return fmt.Errorf("the server at %s is not ready after 30 s (last answer: %d, %v)\n%s", s.endpoint, status, err, s.proc.output())
		case <-tick.C:
		}
	}
}

// do sends one signed request and returns the status.
func (s *S3Server) do(ctx context.Context, method, path, body string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.endpoint+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Amz-Content-Sha256", fmt.Sprintf("%x", sha256.Sum256([]byte(body))))
	if err := s.sign(req); err != nil {
		return 0, err
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// sign signs a request (again) with the server's key.
func (s *S3Server) sign(r *http.Request) error {
	for k := range r.Header {
		if strings.EqualFold(k, "Authorization") {
			delete(r.Header, k)
		}
	}
	creds := aws.Credentials{AccessKeyID: s.access, SecretAccessKey: s.secret}
	return v4.NewSigner().SignHTTP(r.Context(), creds, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", s3Region, time.Now(),
		func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

func (s *S3Server) stop() {
	if s.proc != nil {
		s.proc.stop()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

// External says whether this is a store that the environment names: its
// connections cannot be tampered with, its clock and region are its own.
func (s *S3Server) External() bool { return s.external != nil }

// NewBucket makes a store that is empty and used by nobody else, and returns its
// URL. On an own server it is a fresh bucket, on an external store a fresh
// prefix. It is removed when the test ends. The URL holds no credentials: see
// Options, Env and Setenv.
func (s *S3Server) NewBucket(t testing.TB) string {
	t.Helper()
	if s.external != nil {
		return s.newPrefix(t)
	}
	return s.URL(s.makeBucket(t), "store")
}

// NewVersionedBucket is NewBucket for a bucket that keeps old versions, and marks
// for what was deleted. It is for own servers only.
func (s *S3Server) NewVersionedBucket(t testing.TB) string {
	t.Helper()
	if s.external != nil {
		t.Skipf("%s is set: this test needs a server of its own", S3URLVariable)
	}
	bucket := s.makeBucket(t)
	const on = `<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>`
	s.mustDo(t, "/"+bucket+"?versioning=", on)
	return s.URL(bucket, "store")
}

func (s *S3Server) makeBucket(t testing.TB) string {
	t.Helper()
	bucket := "t-" + randomHex(10)
	s.mustDo(t, "/"+bucket, "")
	t.Cleanup(func() {
		for _, dir := range []string{"data", "versions"} {
			os.RemoveAll(filepath.Join(s.dir, dir, bucket))
		}
	})
	return bucket
}

// mustDo sends one PUT.
func (s *S3Server) mustDo(t testing.TB, path, body string) {
	t.Helper()
	status, err := s.do(t.Context(), http.MethodPut, path, body)
	if err != nil || status != http.StatusOK {
		t.Fatalf("testserver: PUT %s: status %d, %v\n%s", path, status, err, s.proc.output())
	}
}

// URL returns the address of a prefix in any bucket of an own server.
func (s *S3Server) URL(bucket, prefix string) string {
	q := url.Values{"endpoint": {s.endpoint}, "region": {s3Region}, "path_style": {"true"}}
	return (&url.URL{Scheme: "s3", Host: bucket, Path: "/" + prefix, RawQuery: q.Encode()}).String()
}

func (s *S3Server) newPrefix(t testing.TB) string {
	u := *s.external
	u.Path = strings.TrimSuffix(u.Path, "/") + "/test-" + time.Now().UTC().Format("20060102-150405") + "-" + randomHex(6)
	storeURL := u.String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := s.empty(ctx, storeURL); err != nil {
			t.Errorf("testserver: removing what the test left in %s: %v", storeURL, err)
		}
	})
	return storeURL
}

func (s *S3Server) empty(ctx context.Context, storeURL string) error {
	opts, err := s.options(storeURL)
	if err != nil {
		return err
	}
	drv, err := s3.New(ctx, opts)
	if err != nil {
		return err
	}
	defer drv.Close()
	var keys []string
	for e, err := range drv.List(ctx, "", "") {
		if err != nil {
			return err
		}
		keys = append(keys, e.Key)
	}
	_, err = drv.CleanUploads(ctx, 0)
	if len(keys) > 0 {
		err = errors.Join(err, drv.Delete(ctx, keys))
	}
	return err
}

// Options returns what s3.New needs for a URL of this server, credentials
// included.
func (s *S3Server) Options(t testing.TB, storeURL string) s3.Options {
	t.Helper()
	opts, err := s.options(storeURL)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return opts
}

func (s *S3Server) options(storeURL string) (s3.Options, error) {
	u, err := backend.ParseURL(storeURL)
	if err != nil {
		return s3.Options{}, err
	}
	opts, err := s3.ParseURL(u)
	if err == nil && s.external == nil {
		opts.Credentials = credentials.NewStaticCredentialsProvider(s.access, s.secret, "")
	}
	return opts, err
}

// Open opens a URL of this server, changed by edit, until the test ends.
func (s *S3Server) Open(t testing.TB, storeURL string, edit ...func(*s3.Options)) *backend.Bucket {
	t.Helper()
	opts := s.Options(t, storeURL)
	for _, f := range edit {
		f(&opts)
	}
	drv, err := s3.New(t.Context(), opts)
	if err != nil {
		t.Fatalf("testserver: opening %s: %v", storeURL, err)
	}
	t.Cleanup(func() { drv.Close() })
	return backend.NewBucket(drv, backend.Redact(storeURL))
}

// Env returns the variables that give a child process access to the URLs of
// this server, for the end of exec.Cmd.Env. They also keep it from reading the
// user's AWS configuration and from asking the network for credentials.
func (s *S3Server) Env() []string {
	if s.external != nil {
		return nil
	}
	return []string{
		"AWS_ACCESS_KEY_ID=" + s.access,
		"AWS_SECRET_ACCESS_KEY=" + s.secret,
		"AWS_SESSION_TOKEN=",
		"AWS_PROFILE=",
		"AWS_REGION=" + s3Region,
		"AWS_CONFIG_FILE=" + os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull,
		"AWS_EC2_METADATA_DISABLED=true",
	}
}

// Setenv puts Env into this process until the test ends, for tests that open
// stores by their URL alone. Such a test cannot be parallel.
func (s *S3Server) Setenv(t testing.TB) {
	t.Helper()
	for _, kv := range s.Env() {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
}

// Proxy starts a proxy before the server. Requests that it changes are signed
// again, so that the server takes them.
func (s *S3Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	if s.external != nil {
		t.Skipf("faults on the wire need a server of the tests' own; %s is set", S3URLVariable)
	}
	p := NewProxy(t, s.endpoint)
	p.resign = s.sign
	return p
}

// ProxyURL is storeURL by way of p.
func (s *S3Server) ProxyURL(t testing.TB, p *Proxy, storeURL string) string {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	q := u.Query()
	q.Set("endpoint", p.URL())
	u.RawQuery = q.Encode()
	return u.String()
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
