package s3_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/testserver"
)

// everyCall runs each method once and returns the errors.
func everyCall(t *testing.T, b *backend.Bucket) map[string]error {
	t.Helper()
	ctx := t.Context()
	errs := map[string]error{}
	_, errs["get"] = b.Get(ctx, "data/x", backend.GetOptions{})
	_, errs["get range"] = b.Get(ctx, "data/x", backend.GetOptions{Offset: 5, IfVersion: "v"})
	_, errs["create"] = b.Create(ctx, "data/x", backend.Bytes([]byte("x")))
	_, errs["create large"] = b.Create(ctx, "data/large", backend.Bytes(make([]byte, 2<<20)))
	_, errs["replace"] = b.Replace(ctx, "_control/x", backend.Bytes([]byte("x")), `"v"`)
	errs["delete"] = b.Delete(ctx, []string{"data/x"})
	errs["list"] = nil
	for _, err := range b.List(ctx, "", "") {
		errs["list"] = err
	}
	_, errs["clean"] = b.CleanUploads(ctx, 0)
	return errs
}

func TestAMissingBucketIsErrNoBucketEverywhere(t *testing.T) {
	srv := testserver.S3(t)
	if srv.External() {
		t.Skip("an external store may hide that a bucket is missing")
	}
	b := srv.Open(t, srv.URL("no-such-bucket", "store"), small)
	for call, err := range everyCall(t, b) {
		t.Run(call, func(t *testing.T) { wantError(t, err, backend.ErrNoBucket, "make the bucket no-such-bucket") })
	}
}

func TestAWrongRegionIsNamedWithTheRightOne(t *testing.T) {
	w := newWired(t)
	b := w.srv.Open(t, w.url, small, func(o *s3.Options) { o.Region = "eu-north-1" })
	for call, err := range everyCall(t, b) {
		t.Run(call, func(t *testing.T) { wantError(t, err, nil, "us-east-1", "eu-north-1", "region=us-east-1") })
	}
	for _, f := range []testserver.Fault{
		{Status: 301, Code: "PermanentRedirect", Header: http.Header{"X-Amz-Bucket-Region": {"sa-east-1"}}},
		{Status: 307, Code: "TemporaryRedirect", Header: http.Header{"X-Amz-Bucket-Region": {"sa-east-1"}, "Location": {"http://127.0.0.1:1/"}}},
		{Status: 400, Code: "AuthorizationHeaderMalformed", Message: "the region 'us-east-1' is wrong; expecting 'sa-east-1'"},
		{Status: 400, Header: http.Header{"X-Amz-Bucket-Region": {"sa-east-1"}}}, // a HEAD
	} {
		fault := w.proxy.Inject(f)
		_, err := w.b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
		wantError(t, err, nil, "region=sa-east-1")
		fault.Remove()
	}
	if n := len(w.requests()); n != 4 {
		t.Errorf("%d requests, want 4: no redirect is followed and none repeated", n)
	}
}

func TestDeniedAccessSaysWhatToCheck(t *testing.T) {
	w := newWired(t)
	key := w.srv.Options(t, w.url).Credentials
	good, err := key.Retrieve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ id, secret, text string }{
		{good.AccessKeyID, "wrong", "AWS_SECRET_ACCESS_KEY"},
		{"stranger", "wrong", "AWS_ACCESS_KEY_ID"},
	} {
		b := w.srv.Open(t, w.url, small, func(o *s3.Options) {
			o.Credentials = credentials.NewStaticCredentialsProvider(tc.id, tc.secret, "")
		})
		for call, err := range everyCall(t, b) {
			t.Run(tc.text+" "+call, func(t *testing.T) { wantError(t, err, backend.ErrDenied, tc.text) })
		}
	}
	w.proxy.Inject(testserver.Fault{Status: 403, Code: "AccessDenied"})
	_, err = w.b.Get(t.Context(), "data/x", backend.GetOptions{})
	wantError(t, err, backend.ErrDenied, "s3:ListBucket", "s3:PutObject")
}

func TestWithoutCredentialsTheErrorSaysHowToSetThem(t *testing.T) {
	w := newWired(t)
	for _, k := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(k, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	b, err := backend.Open(t.Context(), w.srv.ProxyURL(t, w.proxy, w.url))
	if err != nil {
		t.Fatalf("opening needs no credentials: %v", err)
	}
	defer b.Close()
	_, err = b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
	wantError(t, err, backend.ErrDenied, "AWS_ACCESS_KEY_ID", "AWS_PROFILE")
	_, err = b.Get(t.Context(), "data/x", backend.GetOptions{})
	wantError(t, err, backend.ErrDenied, "AWS_ACCESS_KEY_ID")
	w.wantRequests(t)
}

func TestTheStandardConfigurationIsUsed(t *testing.T) {
	w := newWired(t)
	t.Run("variables", func(t *testing.T) {
		w.srv.Setenv(t)
		b, err := backend.Open(t.Context(), w.url)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("profile", func(t *testing.T) {
		creds, err := w.srv.Options(t, w.url).Credentials.Retrieve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.srv.Setenv(t)
		for _, k := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} {
			t.Setenv(k, "")
		}
		file := filepath.Join(t.TempDir(), "config")
		text := fmt.Sprintf("[profile tests]\nregion = us-east-1\nendpoint_url = %s\naws_access_key_id = %s\naws_secret_access_key = %s\n",
			w.proxy.URL(), creds.AccessKeyID, creds.SecretAccessKey)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_CONFIG_FILE", file)
		bucketAndPrefix, _, _ := strings.Cut(w.url, "?")
		b, err := backend.Open(t.Context(), bucketAndPrefix+"?profile=tests")
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		holds(t, b, "data/x", []byte("x"))
		if len(w.requests()) != 1 {
			t.Errorf("requests by way of the profile's endpoint: %q", w.requests())
		}
	})
}

func TestAnswersHaveTheErrorThatSaysWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		status int
		code   string
		want   error
	}{
		{501, "NotImplemented", backend.ErrUnsupported},
		{405, "MethodNotAllowed", backend.ErrUnsupported},
		{507, "", backend.ErrFull},
		{507, "XMinioStorageFull", backend.ErrFull},
		{403, "QuotaExceeded", backend.ErrFull},
		{400, "BadDigest", backend.ErrBadContent},
		{400, "XAmzContentChecksumMismatch", backend.ErrBadContent},
		{400, "XAmzContentSHA256Mismatch", backend.ErrBadContent},
		{400, "ExpiredToken", backend.ErrDenied},
		{401, "", backend.ErrDenied},
		{403, "", backend.ErrDenied},
		{404, "NoSuchBucket", backend.ErrNoBucket},
		{412, "", backend.ErrExists},
		{400, "EntityTooLarge", nil},
	} {
		t.Run(fmt.Sprint(tc.status, tc.code), func(t *testing.T) {
			b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) {
				if tc.code == "" {
					return reply(tc.status, "")
				}
				return errorReply(tc.status, tc.code, "as scripted")
			})
			_, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
			wantError(t, err, tc.want, fmt.Sprint(tc.status))
			if sc.count() != 1 {
				t.Errorf("%d requests, want 1: this answer is final", sc.count())
			}
			if backend.Date(err).IsZero() {
				t.Error("the error has no Date")
			}
		})
	}
}

func TestASuccessWithoutAVersionIsUnknown(t *testing.T) {
	b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) { return reply(200, "") })
	_, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
	wantError(t, err, backend.ErrUnknown, "ETag")
}

func TestRangesThatTheStoreIgnoresAreNotTakenForTheRange(t *testing.T) {
	for name, header := range map[string][]string{
		"the whole object":  {"ETag", `"x"`, "Content-Length", "10"},
		"another range":     {"ETag", `"x"`, "Content-Length", "10", "Content-Range", "bytes 0-9/20"},
		"too little":        {"ETag", `"x"`, "Content-Length", "2", "Content-Range", "bytes 4-5/20"},
		"an unknown length": {"ETag", `"x"`, "Content-Length", "4", "Content-Range", "bytes 4-7/*"},
		"no version":        {"Content-Length", "4", "Content-Range", "bytes 4-7/20"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) {
				status := 200
				if len(header) > 4 {
					status = 206
				}
				return reply(status, "0123456789", header...)
			})
			_, err := b.Get(t.Context(), "data/x", backend.GetOptions{Offset: 4, Length: 4})
			wantError(t, err, backend.ErrUnsupported)
		})
	}
}

func TestABodyThatIsShorterThanItsLengthIsAnUnexpectedEnd(t *testing.T) {
	b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) {
		return reply(200, "0123", "ETag", `"x"`, "Content-Length", "10")
	})
	obj, err := b.Get(t.Context(), "data/x", backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(obj.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "0123" {
		t.Errorf("read %q, %v, want %v", got, err, io.ErrUnexpectedEOF)
	}
}

func TestTheSDKRetriesNothing(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "5")
	t.Setenv("AWS_RETRY_MODE", "adaptive")
	b, sc := scripted(t, func(int, *http.Request) (*http.Response, error) { return errorReply(500, "InternalError", "") })
	_, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
	wantError(t, err, backend.ErrUnknown)
	if sc.count() != 1 {
		t.Errorf("%d requests, want 1", sc.count())
	}
}

func TestDeletesNameTheKeysThatRemain(t *testing.T) {
	result := func(errs ...string) (*http.Response, error) {
		return reply(200, `<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`+strings.Join(errs, "")+`</DeleteResult>`)
	}
	failed := func(key, code string) string {
		return "<Error><Key>store/" + key + "</Key><Code>" + code + "</Code><Message>scripted</Message></Error>"
	}
	b, sc := scripted(t, func(n int, req *http.Request) (*http.Response, error) {
		switch n {
		case 0:
			return result(failed("data/a", "AccessDenied"), failed("data/b", "InternalError"), failed("data/c", "NoSuchKey"))
		default: // only b is asked for again
			return result()
		}
	})
	err := b.Delete(t.Context(), []string{"data/a", "data/b", "data/c", "data/d"})
	wantError(t, err, backend.ErrDenied, "data/a): access denied: the store answered AccessDenied", "1 of 4")
	for _, k := range []string{"data/b", "data/c", "data/d"} {
		if strings.Contains(err.Error(), k) {
			t.Errorf("%v: names %s, which is gone", err, k)
		}
	}
	if sc.count() != 2 {
		t.Fatalf("%d requests, want 2", sc.count())
	}
	for _, k := range []string{"data/a", "data/b", "data/c", "data/d"} {
		if got, want := strings.Contains(sc.bodies[1], "store/"+k+"<"), k == "data/b"; got != want {
			t.Errorf("the second request asks for %s: %t, want %t", k, got, want)
		}
	}

	// A batch that fails as a whole leaves itself and those after it.
	keys := make([]string, 1001)
	for i := range keys {
		keys[i] = fmt.Sprintf("data/%04d", i)
	}
	b, _ = scripted(t, func(n int, req *http.Request) (*http.Response, error) {
		if n == 0 {
			return result()
		}
		return errorReply(403, "AccessDenied", "scripted")
	})
	err = b.Delete(t.Context(), keys)
	wantError(t, err, backend.ErrDenied, "1 of 1001", "data/1000")
	if strings.Contains(err.Error(), "data/0999") {
		t.Errorf("%v: names a key of the first batch", err)
	}
}
