package s3_test

import (
	"encoding/pem"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
)

// noConfiguration takes the user's own AWS configuration away.
func noConfiguration(t *testing.T) {
	t.Helper()
	for _, k := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"} {
		t.Setenv(k, "")
		os.Unsetenv(k)
	}
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestURLs(t *testing.T) {
	for _, tc := range []struct {
		url  string
		want s3.Options
		err  string
	}{
		{"s3://bucket", s3.Options{Bucket: "bucket"}, ""},
		{"s3://bucket/a/b/?region=eu-central-1", s3.Options{Bucket: "bucket", Prefix: "/a/b/", Region: "eu-central-1"}, ""},
		{"s3://Bucket_1/a%20b?endpoint=https://s3.example.org:9000&path_style=false&profile=work",
			s3.Options{Bucket: "Bucket_1", Prefix: "/a b", Endpoint: "https://s3.example.org:9000", PathStyle: s3.PathStyleOff, Profile: "work"}, ""},
		{"s3://bucket?path_style=1", s3.Options{Bucket: "bucket", PathStyle: s3.PathStyleOn}, ""},
		{"s3://bucket?path_style=", s3.Options{Bucket: "bucket"}, ""},
		{"s3://bucket?path_style=yes", s3.Options{}, "true or false"},
		{"s3://bucket?regoin=x", s3.Options{}, "known are endpoint, region, path_style and profile"},
		{"s3://bucket?region=a&region=b", s3.Options{}, "2 times"},
		{"s3://key:secret@bucket/a", s3.Options{}, "AWS_ACCESS_KEY_ID"},
		{"s3://localhost:9000/bucket", s3.Options{}, "?endpoint="},
		{"s3://bucket?region=%zz", s3.Options{}, "%zz"},
	} {
		u, err := backend.ParseURL(tc.url)
		if err != nil {
			t.Fatalf("%s: %v", tc.url, err)
		}
		got, err := s3.ParseURL(u)
		if tc.err == "" && (err != nil || got != tc.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", tc.url, got, err, tc.want)
		}
		if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: error %v, want one that says %q", tc.url, err, tc.err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") && strings.Contains(tc.url, "secret") {
			t.Errorf("the error %q shows the secret", err)
		}
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	noConfiguration(t)
	for _, tc := range []struct {
		name string
		edit func(*s3.Options)
		text string
	}{
		{"no bucket", func(o *s3.Options) { o.Bucket = "" }, "bucket"},
		{"a path as bucket", func(o *s3.Options) { o.Bucket = "a/b" }, "bucket"},
		{"a directory bucket", func(o *s3.Options) { o.Bucket = "x--euc1-az1--x-s3" }, "directory bucket"},
		{"no region", func(o *s3.Options) { o.Region = "" }, "AWS_REGION"},
		{"an endpoint without a scheme", func(o *s3.Options) { o.Endpoint = "localhost:9000" }, "https://"},
		{"an endpoint with another", func(o *s3.Options) { o.Endpoint = "ftp://localhost" }, "https://"},
		{"an unknown profile", func(o *s3.Options) { o.Profile = "nobody" }, "nobody"},
		{"dots in the prefix", func(o *s3.Options) { o.Prefix = "a/../b" }, "segment"},
		{"an empty segment", func(o *s3.Options) { o.Prefix = "a//b" }, "segment"},
		{"a control character", func(o *s3.Options) { o.Prefix = "a\nb" }, "control"},
		{"broken UTF-8", func(o *s3.Options) { o.Prefix = "a\xff" }, "UTF-8"},
		{"a long prefix", func(o *s3.Options) { o.Prefix = strings.Repeat("a", 512) }, "511"},
		{"small parts", func(o *s3.Options) { o.PartSize = 1 << 20 }, "PartSize"},
		{"negative times", func(o *s3.Options) { o.MaxWait = -1 }, "MaxWait"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := s3.Options{Bucket: "bucket", Region: "us-east-1"}
			tc.edit(&opts)
			d, err := s3.New(t.Context(), opts)
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %v, want one that says %q", err, tc.text)
			}
			if d != nil {
				t.Error("a driver comes with the error")
			}
		})
	}
}

// where says what request a store's URL leads to.
func where(t *testing.T, storeURL string) string {
	t.Helper()
	u, err := backend.ParseURL(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	opts, err := s3.ParseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	var url, auth string
	opts.Credentials = credentials.NewStaticCredentialsProvider("key", "secret", "")
	opts.HTTPClient = &script{reply: func(_ int, req *http.Request) (*http.Response, error) {
		url, auth = req.URL.Scheme+"://"+req.URL.Host+req.URL.EscapedPath(), req.Header.Get("Authorization")
		return errorReply(404, "NoSuchKey", "")
	}}
	d, err := s3.New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Get(t.Context(), "k", backend.GetOptions{}); !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	_, scope, _ := strings.Cut(auth, "Credential=key/")
	return url + " " + strings.Split(scope, "/")[1]
}

func TestWhereRequestsGo(t *testing.T) {
	noConfiguration(t)
	for storeURL, want := range map[string]string{
		"s3://bucket/p?region=eu-central-1":                                "https://bucket.s3.eu-central-1.amazonaws.com/p/k eu-central-1",
		"s3://bucket?region=eu-central-1&path_style=true":                  "https://s3.eu-central-1.amazonaws.com/bucket/k eu-central-1",
		"s3://buc.ket/p?region=eu-central-1":                               "https://s3.eu-central-1.amazonaws.com/buc.ket/p/k eu-central-1",
		"s3://bucket/p?endpoint=https://s3.example.org":                    "https://s3.example.org/bucket/p/k us-east-1",
		"s3://bucket/p?endpoint=https://s3.example.org&region=x1":          "https://s3.example.org/bucket/p/k x1",
		"s3://bucket/p?endpoint=https://s3.example.org&path_style=false":   "https://bucket.s3.example.org/p/k us-east-1",
		"s3://bucket/a%20b%2B?endpoint=http://127.0.0.1:1/base&region=any": "http://127.0.0.1:1/base/bucket/a%20b%2B/k any",
	} {
		if got := where(t, storeURL); got != want {
			t.Errorf("%s\n goes to %s\nwant    %s", storeURL, got, want)
		}
	}
	t.Setenv("AWS_REGION", "ap-south-1")
	if got, want := where(t, "s3://bucket"), "https://bucket.s3.ap-south-1.amazonaws.com/k ap-south-1"; got != want {
		t.Errorf("with AWS_REGION: %s, want %s", got, want)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	if got, want := where(t, "s3://bucket"), "http://127.0.0.1:1/bucket/k ap-south-1"; got != want {
		t.Errorf("with AWS_ENDPOINT_URL_S3: %s, want %s", got, want)
	}
}

func TestTheCertificatesOfAWSCABundleAreTrusted(t *testing.T) {
	noConfiguration(t)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		w.Write([]byte("<Error><Code>NoSuchKey</Code></Error>"))
	}))
	defer srv.Close()
	opts := s3.Options{Bucket: "bucket", Endpoint: srv.URL, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", "")}
	get := func() error {
		d, err := s3.New(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		_, err = d.Get(t.Context(), "data/x", backend.GetOptions{})
		return err
	}
	wantError(t, get(), nil, "not reachable", "certificate")
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", file)
	wantError(t, get(), backend.ErrNotFound)
}

func TestCallsAfterCloseFail(t *testing.T) {
	b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) { return reply(200, "", "ETag", `"x"`) })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for call, err := range everyCall(t, b) {
		if !errors.Is(err, backend.ErrClosed) {
			t.Errorf("%s after Close: %v, want %v", call, err, backend.ErrClosed)
		}
	}
	if sc.count() != 0 {
		t.Errorf("%d requests were sent after Close", sc.count())
	}
}

func TestEndpointsKeepTheirPasswords(t *testing.T) {
	for _, addr := range []string{"u:hunter2@h:9000", "http://u:hunter2@h", "http://u:hunter2/x@h", "http://h/?token=hunter2"} {
		_, err := s3.New(t.Context(), s3.Options{Bucket: "bucket", Region: "x", Endpoint: addr})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v, want an error that keeps the password", addr, err)
		}
	}
}

// A size that no part could have is refused before anything is sent or allocated.
func TestAContentOfAnAbsurdSizeIsRefused(t *testing.T) {
	b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) { return reply(200, "") })
	for _, size := range []int64{1 << 46, 1 << 62, math.MaxInt64} {
		body := backend.Body{Size: size, Open: func() (io.ReadSeekCloser, error) { return nil, errors.New("opened") }}
		_, err := b.Create(t.Context(), "data/x", body)
		wantError(t, err, backend.ErrUnsupported, "at most")
	}
	if sc.count() != 0 {
		t.Errorf("%d requests, want none", sc.count())
	}
}
