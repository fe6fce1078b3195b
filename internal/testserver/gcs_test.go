package testserver_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/gcs"
	"github.com/swampd/swampd/internal/testserver"
)

// gcsBucket is a bucket of an own server, by Google's client.
func gcsBucket(t *testing.T, srv *testserver.GCSServer, endpoint, storeURL string) *storage.BucketHandle {
	t.Helper()
	if srv.External() {
		t.Skipf("%s is set: this test needs a server of its own", testserver.GCSURLVariable)
	}
	c, err := storage.NewClient(t.Context(), option.WithEndpoint(endpoint+"/storage/v1/"), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	name, _, _ := strings.Cut(strings.TrimPrefix(storeURL, "gs://"), "/")
	return c.Bucket(name).Retryer(storage.WithPolicy(storage.RetryNever))
}

func gcsPut(t *testing.T, o *storage.ObjectHandle, data string) int64 {
	t.Helper()
	w := o.NewWriter(t.Context())
	io.WriteString(w, data)
	if err := w.Close(); err != nil {
		t.Fatalf("put: %v", err)
	}
	return w.Attrs().Generation
}

func gcsStatus(err error) int {
	var e *googleapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestGCSConditionsOnReadsAndDeletions(t *testing.T) {
	for _, versioned := range []bool{false, true} {
		srv := testserver.GCS(t)
		storeURL := srv.NewBucket(t)
		if versioned {
			storeURL = srv.NewVersionedBucket(t)
		}
		o := gcsBucket(t, srv, srv.Endpoint(), storeURL).Object("a/b")
		old := gcsPut(t, o, "old")
		live := gcsPut(t, o, "live")
		for _, c := range []struct {
			gen  int64
			code int
		}{{old, http.StatusPreconditionFailed}, {live + 1, http.StatusPreconditionFailed}, {live, 0}} {
			pinned := o.If(storage.Conditions{GenerationMatch: c.gen})
			r, err := pinned.NewReader(t.Context())
			if got := gcsStatus(err); got != c.code || (err == nil) != (c.code == 0) {
				t.Errorf("versioned=%v: read at %d: %v, want status %d", versioned, c.gen, err, c.code)
			}
			if err == nil {
				r.Close()
			}
			err = pinned.Delete(t.Context())
			if got := gcsStatus(err); got != c.code || (err == nil) != (c.code == 0) {
				t.Errorf("versioned=%v: delete at %d: %v, want status %d", versioned, c.gen, err, c.code)
			}
		}
	}
}

func TestGCSSaysWhatIsMissing(t *testing.T) {
	srv := testserver.GCS(t)
	storeURL := srv.NewBucket(t)
	b := gcsBucket(t, srv, srv.Endpoint(), storeURL)
	none := gcsBucket(t, srv, srv.Endpoint(), "gs://no-such-bucket/")
	text := func(err error) string {
		if err == nil {
			return "no error"
		}
		return err.Error()
	}
	if got := text(b.Object("x").Delete(t.Context())); !strings.Contains(got, "No such object") {
		t.Errorf("delete: %s", got)
	}
	if got := text(none.Object("x").Delete(t.Context())); !strings.Contains(got, "bucket does not exist") {
		t.Errorf("delete without a bucket: %s", got)
	}
	_, err := none.Objects(t.Context(), nil).Next()
	if got := text(err); !strings.Contains(got, "bucket does not exist") {
		t.Errorf("list without a bucket: %s", got)
	}
	for path, want := range map[string]string{"/no-such-bucket/x": "NoSuchBucket", "/" + b.BucketName() + "/x": "NoSuchKey"} {
		res, err := http.Get(srv.Endpoint() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound || !bytes.Contains(body, []byte("<Code>"+want+"</Code>")) {
			t.Errorf("%s: %d %s, want 404 and %s", path, res.StatusCode, body, want)
		}
	}
}

func TestGCSLimitOfWrites(t *testing.T) {
	srv := testserver.GCS(t)
	b := gcsBucket(t, srv, srv.Endpoint(), srv.NewBucket(t))
	put := func(name string, size int) int {
		// Without this the client repeats the parts of a resumable upload.
		never := storage.WithErrorFunc(func(error) bool { return false })
		w := b.Object(name).Retryer(storage.WithPolicy(storage.RetryAlways), never).NewWriter(t.Context())
		w.ChunkSize = 256 << 10
		w.Write(make([]byte, size))
		return gcsStatus(w.Close())
	}
	for range 3 {
		if got := put("free", 1); got != 0 {
			t.Errorf("status %d without a limit", got)
		}
	}
	srv.LimitWrites(true)
	for _, c := range []struct {
		name string
		size int
		want int
	}{{"x", 1, 0}, {"x", 1, 429}, {"y", 1, 0}, {"x", 300 << 10, 429}, {"z", 300 << 10, 0}, {"z", 1, 429}} {
		if got := put(c.name, c.size); got != c.want {
			t.Errorf("%d bytes to %s: status %d, want %d", c.size, c.name, got, c.want)
		}
	}
}

// The server's times are right in any time zone (TestMain sets one far away).
func TestGCSLastModifiedIsInGMT(t *testing.T) {
	srv := testserver.GCS(t)
	o := gcsBucket(t, srv, srv.Endpoint(), srv.NewBucket(t)).Object("x")
	gcsPut(t, o, "x")
	r, err := o.NewReader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if age := time.Since(r.Attrs.LastModified); age < -time.Minute || age > time.Minute {
		t.Errorf("an object made just now was modified %v ago", age)
	}
}

// Another process, and a proxy, serve as well as the URL.
func TestGCSServesOtherProcesses(t *testing.T) {
	const variable = "SWAMPD_TEST_GCS_CHILD"
	if storeURL := os.Getenv(variable); storeURL != "" {
		b, err := backend.Open(t.Context(), storeURL)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := b.Create(t.Context(), "data/child", backend.Bytes([]byte("hello"))); err != nil {
			t.Fatal(err)
		}
		return
	}
	srv := testserver.GCS(t)
	if srv.External() {
		t.Skipf("%s is set: this test needs a server of its own", testserver.GCSURLVariable)
	}
	storeURL := srv.NewBucket(t)
	p := srv.Proxy(t)
	bare, _, _ := strings.Cut(storeURL, "?")
	for _, c := range []struct{ url, emulator string }{
		{bare, srv.EmulatorHost()},
		{srv.ProxyURL(t, p, storeURL), ""},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestGCSServesOtherProcesses$")
		cmd.Env = append(os.Environ(), variable+"="+c.url, "STORAGE_EMULATOR_HOST="+c.emulator)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c.url, err, out)
		}
		b, err := backend.Open(t.Context(), storeURL)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if err := b.Delete(t.Context(), []string{"data/child"}); err != nil {
			t.Error(err)
		}
		obj, err := b.Get(t.Context(), "data/child", backend.GetOptions{})
		if !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("after the deletion: %v, %v", obj, err)
		}
	}
	if len(p.Requests()) == 0 {
		t.Error("the child did not go through the proxy")
	}
}

// With the variable set, tests use prefixes of that store and empty them.
func TestGCSOfTheEnvironment(t *testing.T) {
	const variable = "SWAMPD_TEST_GCS_EXTERNAL"
	if os.Getenv(variable) != "" {
		srv := testserver.GCS(t)
		if !srv.External() {
			t.Fatal("the server is one of the test's own")
		}
		storeURL := srv.NewBucket(t)
		if other := srv.NewBucket(t); other == storeURL || !strings.Contains(storeURL, "/store/test-") {
			t.Fatalf("two stores %s and %s, want two below the prefix", storeURL, other)
		}
		b, err := backend.Open(t.Context(), storeURL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		if _, err := b.Create(t.Context(), "data/child", backend.Bytes([]byte("hello"))); err != nil {
			t.Fatal(err)
		}
		return
	}
	srv := testserver.GCS(t)
	if srv.External() {
		t.Skipf("%s is set: this test needs a server of its own", testserver.GCSURLVariable)
	}
	storeURL := srv.NewBucket(t)
	p := srv.Proxy(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestGCSOfTheEnvironment$")
	cmd.Env = append(os.Environ(), variable+"=1", testserver.GCSURLVariable+"="+srv.ProxyURL(t, p, storeURL))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made := 0
	for _, r := range p.Requests() {
		if r.Method == http.MethodPost && r.Status == http.StatusOK {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d objects were made, want 1", made)
	}
	_, err := gcsBucket(t, srv, srv.Endpoint(), storeURL).Objects(t.Context(), nil).Next()
	if !errors.Is(err, iterator.Done) {
		t.Errorf("something is left after the test: %v", err)
	}
}
