package backend_test

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

func TestParseURL(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	here = filepath.ToSlash(here)
	for _, c := range []struct {
		in   string
		want url.URL
		bad  string // in the error
	}{
		{in: "data", want: url.URL{Scheme: "file", Path: here + "/data"}},
		{in: "./data", want: url.URL{Scheme: "file", Path: here + "/data"}},
		{in: "data?b#c %20", want: url.URL{Scheme: "file", Path: here + "/data?b#c %20"}},
		{in: ".", want: url.URL{Scheme: "file", Path: here}},
		{in: "a:b", want: url.URL{Scheme: "file", Path: here + "/a:b"}},
		{in: "file:///srv/data", want: url.URL{Scheme: "file", Path: "/srv/data"}},
		{in: "FILE:///srv/data", want: url.URL{Scheme: "file", Path: "/srv/data"}},
		{in: "file://localhost/srv", want: url.URL{Scheme: "file", Path: "/srv"}},
		{in: "file:///a%20b", want: url.URL{Scheme: "file", Path: "/a b"}},
		{in: "file:///a b", want: url.URL{Scheme: "file", Path: "/a b"}},
		{in: "file:///a?b#c", want: url.URL{Scheme: "file", Path: "/a?b#c"}},
		{in: "file:///100%", want: url.URL{Scheme: "file", Path: "/100%"}},
		{in: "file:///ä", want: url.URL{Scheme: "file", Path: "/ä"}},
		{in: "file:///C:/data", want: url.URL{Scheme: "file", Path: "/C:/data"}},
		{in: "s3://bucket", want: url.URL{Scheme: "s3", Host: "bucket"}},
		{in: "S3://bucket", want: url.URL{Scheme: "s3", Host: "bucket"}},
		{in: "s3://bucket/a/b", want: url.URL{Scheme: "s3", Host: "bucket", Path: "/a/b"}},
		{in: "s3://bucket/p?endpoint=http://127.0.0.1:9&region=x", want: url.URL{Scheme: "s3", Host: "bucket", Path: "/p", RawQuery: "endpoint=http://127.0.0.1:9&region=x"}},
		{in: "gs://bucket/p", want: url.URL{Scheme: "gs", Host: "bucket", Path: "/p"}},

		{in: "", bad: "empty"},
		{in: "file://host/dir", bad: "file:///dir"},
		{in: "file://", bad: "file:///dir"},
		{in: "file://data", bad: "file:///dir"},
		{in: "s3://", bad: "s3://bucket/prefix"},
		{in: "s3:///prefix", bad: "names no bucket"},
		{in: "gs://?x=y", bad: "gs://bucket/prefix"},
		{in: "s3://bucket/p#x", bad: "fragment"},
		{in: "s3://bucket/%zz", bad: "is no URL"},
	} {
		u, err := backend.ParseURL(c.in)
		switch {
		case c.bad != "":
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%q: %v, %v, want an error with %q", c.in, u, err, c.bad)
			}
		case err != nil:
			t.Errorf("%q: %v", c.in, err)
		case u.Scheme != c.want.Scheme || u.Host != c.want.Host || u.Path != c.want.Path || u.RawQuery != c.want.RawQuery:
			t.Errorf("%q: %#v, want %#v", c.in, u, &c.want)
		}
	}
}

// A drive letter is no scheme, whichever system reads it.
func TestParseURLOfADrive(t *testing.T) {
	for _, in := range []string{`C:\data`, "C:/data", `C:\\data`, "c://data"} {
		u, err := backend.ParseURL(in)
		if err != nil || u.Scheme != "file" {
			t.Errorf("%q: %v, %v, want a directory", in, u, err)
			continue
		}
		if runtime.GOOS == "windows" && u.Path != "C:/data" && u.Path != "c:/data" {
			t.Errorf("%q: %q, want C:/data", in, u.Path)
		}
	}
}

func TestOpenNamesWhatIsMissing(t *testing.T) {
	for in, want := range map[string]string{
		"s3://bucket/p":    `import _ "github.com/swampd/swampd/backend/s3"`,
		"gs://bucket":      `import _ "github.com/swampd/swampd/backend/gcs"`,
		"/srv/data":        `import _ "github.com/swampd/swampd/backend/fs"`,
		"ftp://host/x":     "this program knows: mem://",
		"s4://bucket":      `"s4"`,
		"mem://name?x=y":   "mem://name alone",
		"s3:///no-bucket":  "names no bucket",
		"s3://u:pw@b#frag": "s3://u@b#…",
	} {
		b, err := backend.Open(t.Context(), in)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: %v, %v, want an error with %q", in, b, err, want)
		}
		var berr *backend.Error
		if !errors.As(err, &berr) || berr.Op != "open" || berr.Store == "" {
			t.Errorf("%q: %v is no error of open", in, err)
		}
	}
	_, err := backend.Open(t.Context(), "s3://bucket")
	if !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("%v, want %v", err, backend.ErrUnsupported)
	}
}

func TestOpenGivesTheRedactedURL(t *testing.T) {
	t.Cleanup(func() { memory.Drop("open-test/sub") })
	b, err := backend.Open(t.Context(), "mem://open-test/sub")
	if err != nil {
		t.Fatal(err)
	}
	if b.URL() != "mem://open-test/sub" {
		t.Errorf("URL %q", b.URL())
	}
	if _, err := b.Create(t.Context(), "data/x", backend.Bytes(nil)); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestRegisterTwicePanics(t *testing.T) {
	open := func(context.Context, *url.URL) (backend.Driver, error) { return nil, errors.New("no") }
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	backend.Register("mem", open) // backend/memory has done it
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"/srv/data":                          "/srv/data",
		`C:\Data`:                            `C:\Data`,
		"file:///a?token=b#c d":              "file:///a?token=b#c d",
		"s3://bucket/p":                      "s3://bucket/p",
		"s3://AKIA:hunter2@bucket/p":         "s3://AKIA@bucket/p",
		"s3://b/p?region=x&endpoint=y":       "s3://b/p?endpoint=y&region=x",
		"s3://b?secret_key=hunter2":          "s3://b?secret_key=redacted",
		"s3://b?Session-Token=hunter2&a=":    "s3://b?Session-Token=redacted&a=",
		"gs://b?PASSWORD=hunter2":            "gs://b?PASSWORD=redacted",
		"s3://b?secret=hunter2&secret=h2":    "s3://b?secret=redacted",
		"s3://AKIA:hunter2/x@bucket":         "s3://(unreadable)",
		"s3://AKIA:hunter2@bucket/%zz":       "s3://(unreadable)",
		"s3://b?endpoint=http://u:hunter2@h": "s3://b?endpoint=" + url.QueryEscape("http://u@h"),
		// Secret keys that were not escaped: what url.Parse takes for a port ends them.
		"s3://AKIA:/hunter2@bucket/p":            "s3://(unreadable)",
		"s3://AKIA:12/hunter2@bucket/p":          "s3://(unreadable)",
		"s3://AKIA:12#hunter2@bucket":            "s3://(unreadable)",
		"s3://AKIA:12?hunter2@bucket":            "s3://(unreadable)",
		"s3://AKIA:x@hunter2/y@bucket/p":         "s3://(unreadable)",
		"s3://b?endpoint=http://u:%2Fhunter2@h":  "s3://b?endpoint=" + url.QueryEscape("http://(unreadable)"),
		"s3://b?endpoint=u:hunter2@h:9000":       "s3://b?endpoint=" + url.QueryEscape("redacted@h:9000"),
		"s3://b?X-Amz-Signature=hunter2":         "s3://b?X-Amz-Signature=redacted",
		"s3://b?passwd=hunter2":                  "s3://b?passwd=redacted",
		"s3://b?X-Amz-Credential=hunter2":        "s3://b?X-Amz-Credential=redacted",
		"s3://b/p#secret=hunter2":                "s3://b/p#…",
		"s3://bucket/me@home":                    "s3://bucket/me@home",
		"s3://b/me@home?endpoint=http://h:9000/": "s3://b/me@home?endpoint=" + url.QueryEscape("http://h:9000/"),
	} {
		if got := backend.Redact(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if _, err := backend.Open(t.Context(), in); in != "" && strings.Contains(in, "://") && !strings.HasPrefix(in, "file:") &&
			(err == nil || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("opening %q: %v, want an error that keeps the secret", in, err)
		}
	}
}

// No secret that a URL carries shows in what Redact returns, or in the error of
// opening it.
func FuzzSecretsStaySecret(f *testing.F) {
	f.Add("s3", "AKIA", "bucket/p", "region=x")
	f.Add("gs", "", "b/%zz", "a=%zz")
	f.Add("mem", "u", "", "endpoint=http://x")
	f.Add("S3", "u/", "b:x", ";")
	f.Fuzz(func(t *testing.T, scheme, user, place, query string) {
		const secret = "hunter2"
		if strings.ContainsAny(scheme, ":/") || strings.ContainsAny(user, ":/?#") || strings.Contains(place, "?") || strings.Contains(place, "#") || strings.Contains(query, "#") || len(scheme) < 2 {
			return // not a URL of this shape
		}
		for i := range len(scheme) {
			if c := scheme[i] | 0x20; c < 'a' || c > 'z' {
				return
			}
		}
		if strings.EqualFold(scheme, "file") {
			return // a directory, whatever it is called
		}
		in := scheme + "://" + user + ":" + secret + "@" + place + "?" + query + "&x_secret=" + secret
		if got := backend.Redact(in); strings.Contains(got, secret) {
			t.Errorf("%q: %q", in, got)
		}
		if _, err := backend.Open(t.Context(), in); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", in, err)
		}
	})
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"", ".", "/a", "file:///a%20b", "file://x", "s3://b/p?x=y#z", "C:\\x", "://", "a://", "S3://B", "gs://b\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := backend.ParseURL(s)
		if err != nil {
			if u != nil {
				t.Errorf("%q: %v beside the error %v", s, u, err)
			}
			return
		}
		switch {
		case u.Scheme == "file":
			if u.Host != "" || u.RawQuery != "" || u.Fragment != "" || !strings.HasPrefix(u.Path, "/") && runtime.GOOS != "windows" {
				t.Errorf("%q: %#v is no plain absolute directory", s, u)
			}
		case u.Scheme != strings.ToLower(u.Scheme) || len(u.Scheme) < 2 || u.Host == "" || u.Fragment != "":
			t.Errorf("%q: %#v", s, u)
		}
	})
}
