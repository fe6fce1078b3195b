package testserver

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"

	"github.com/swampd/swampd/backend"
)

// GCSURLVariable names a store to test against, like gs://bucket/prefix, in
// place of a server of the tests' own. Credentials are Google's application
// default credentials then.
const GCSURLVariable = "SWAMPD_TEST_GCS_URL"

// GCSServer is a Google Cloud Storage store for tests. An own server runs inside
// the test process, keeps everything in memory, takes any credentials, and
// serves other processes too.
type GCSServer struct {
	// Immutable.
	external *url.URL // what GCSURLVariable names, nil for an own server
	host     string   // "127.0.0.1:1234" of the own server
	fake     *fakestorage.Server
	shim     *gcsShim
}

// GCS starts a GCS server of the test's own, and stops it when the test ends.
// Tests open the URLs that it hands out with package backend/gcs, which they
// must import.
func GCS(t testing.TB) *GCSServer {
	t.Helper()
	if v := os.Getenv(GCSURLVariable); v != "" {
		u, err := backend.ParseURL(v)
		if err != nil || u.Scheme != "gs" {
			t.Fatalf("testserver: %s is not a gs:// URL: %q", GCSURLVariable, backend.Redact(v))
		}
		return &GCSServer{external: u}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: the GCS server's port: %v", err)
	}
	s := &GCSServer{host: ln.Addr().String()}
	s.fake, err = fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		Scheme:      "http",
		ExternalURL: "http://" + s.host,
		PublicHost:  s.host,
	})
	if err != nil {
		ln.Close()
		t.Fatalf("testserver: setting up the GCS server: %v", err)
	}
	s.shim = newGCSShim(s.host, s.fake)
	srv := &http.Server{Handler: s.shim, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-served
		s.shim.working.Wait()
		s.fake.Stop()
	})
	return s
}

// External says whether this is a store that the environment names: its
// connections cannot be tampered with, and it has Google's limits.
func (s *GCSServer) External() bool { return s.external != nil }

// NewBucket makes a store that is empty and used by nobody else, and returns its
// URL. On an own server it is a fresh bucket, on an external store a fresh prefix
// that is emptied when the test ends.
func (s *GCSServer) NewBucket(t testing.TB) string {
	t.Helper()
	if s.external != nil {
		return s.newPrefix(t)
	}
	bucket := "t-" + randomHex(10)
	s.fake.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	return s.URL(bucket, "store")
}

// NewVersionedBucket is NewBucket for a bucket that keeps old generations. It is
// for own servers only.
func (s *GCSServer) NewVersionedBucket(t testing.TB) string {
	t.Helper()
	s.mustBeOwn(t)
	bucket := "v-" + randomHex(10)
	s.shim.serialize(bucket)
	s.fake.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket, VersioningEnabled: true})
	return s.URL(bucket, "store")
}

// URL returns the address of a prefix in any bucket of an own server.
func (s *GCSServer) URL(bucket, prefix string) string {
	q := url.Values{"endpoint": {s.Endpoint()}}
	return (&url.URL{Scheme: "gs", Host: bucket, Path: "/" + prefix, RawQuery: q.Encode()}).String()
}

// Endpoint is the address of an own server, "http://127.0.0.1:1234".
func (s *GCSServer) Endpoint() string { return "http://" + s.host }

// EmulatorHost is what STORAGE_EMULATOR_HOST must be, in this or in another
// process, for gs:// URLs without an endpoint to mean an own server.
func (s *GCSServer) EmulatorHost() string { return s.host }

// LimitWrites makes an own server take one write a second to one name, as Google
// does, and refuse the others with 429. It is off at first.
func (s *GCSServer) LimitWrites(on bool) { s.shim.limited.Store(on) }

// Proxy starts a proxy before an own server.
func (s *GCSServer) Proxy(t testing.TB) *Proxy {
	t.Helper()
	s.mustBeOwn(t)
	return NewProxy(t, s.Endpoint())
}

// ProxyURL is storeURL by way of p.
func (s *GCSServer) ProxyURL(t testing.TB, p *Proxy, storeURL string) string {
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

func (s *GCSServer) mustBeOwn(t testing.TB) {
	t.Helper()
	if s.external != nil {
		t.Skipf("%s is set: this test needs a server of its own", GCSURLVariable)
	}
}

func (s *GCSServer) newPrefix(t testing.TB) string {
	u := *s.external
	u.Path = strings.TrimSuffix(u.Path, "/") + "/test-" + time.Now().UTC().Format("20060102-150405") + "-" + randomHex(6)
	storeURL := u.String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := gcsEmpty(ctx, storeURL); err != nil {
			t.Errorf("testserver: removing what the test left in %s: %v", storeURL, err)
		}
	})
	return storeURL
}

func gcsEmpty(ctx context.Context, storeURL string) error {
	b, err := backend.Open(ctx, storeURL)
	if err != nil {
		return err
	}
	defer b.Close()
	var keys []string
	for e, err := range b.List(ctx, "", "") {
		if err != nil {
			return err
		}
		keys = append(keys, e.Key)
	}
	if err := b.Delete(ctx, keys); err != nil {
		return fmt.Errorf("deleting %d objects: %w", len(keys), err)
	}
	return nil
}
