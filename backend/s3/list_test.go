package s3_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
	"github.com/swampd/swampd/internal/testserver"
)

func list(t *testing.T, b *backend.Bucket, prefix, after string) (keys []string, err error) {
	t.Helper()
	for e, err := range b.List(t.Context(), prefix, after) {
		if err != nil {
			return keys, err
		}
		keys = append(keys, e.Key)
	}
	return keys, nil
}

func TestPrefixesKeepDatastoresApart(t *testing.T) {
	srv := testserver.S3(t)
	base := srv.NewBucket(t)
	stores := map[string]*backend.Bucket{}
	for _, p := range []string{"a/b", "a/b2", "a/b-x", "a/c/b", "With Space+%C3%A9&more"} {
		stores[p] = srv.Open(t, strings.Replace(base, "/store", "/"+p, 1))
	}
	for p, b := range stores {
		if _, err := b.Create(t.Context(), "data/same", backend.Bytes([]byte(p))); err != nil {
			t.Fatal(err)
		}
	}
	for p, b := range stores {
		holds(t, b, "data/same", []byte(p))
		if keys, err := list(t, b, "", ""); err != nil || !slices.Equal(keys, []string{"data/same"}) {
			t.Errorf("the store under %s lists %q, %v", p, keys, err)
		}
	}
	if err := stores["a/b"].Delete(t.Context(), []string{"data/same"}); err != nil {
		t.Fatal(err)
	}
	absent(t, stores["a/b"], "data/same")
	for p, b := range stores {
		if p != "a/b" {
			holds(t, b, "data/same", []byte(p))
		}
	}
}

func TestWithoutAPrefixKeysLieInTheBucketItself(t *testing.T) {
	srv := testserver.S3(t)
	if srv.External() {
		t.Skip("the whole bucket of an external store is not the tests' to use")
	}
	base := srv.NewBucket(t)
	root := srv.Open(t, strings.Replace(base, "/store", "", 1))
	if _, err := root.Create(t.Context(), "store/data/x", backend.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	holds(t, srv.Open(t, base), "data/x", []byte("x"))
}

func TestObjectsOfOthersAreNotListed(t *testing.T) {
	srv := testserver.S3(t)
	storeURL := srv.NewBucket(t)
	opts := srv.Options(t, storeURL)
	d, err := s3.New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	keys := []string{"README.TXT", "data/a", "data/a b+c", "data/.hidden", "data/b", "Ünicode/x", "data/c<&>"}
	for _, k := range keys {
		// The driver itself takes any key; Bucket refuses these.
		if _, err := d.Create(t.Context(), k, backend.Bytes([]byte(k))); err != nil {
			t.Fatal(err)
		}
	}
	got, err := list(t, backend.NewBucket(d, storeURL), "", "")
	if want := []string{"data/a", "data/b"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %q, %v, want %q", got, err, want)
	}
	if err := d.Delete(t.Context(), keys); err != nil {
		t.Error(err)
	}
}

func page(truncated bool, token string, encoded bool, keys ...string) string {
	var b strings.Builder
	b.WriteString("<ListBucketResult>")
	if encoded {
		b.WriteString("<EncodingType>url</EncodingType>")
	}
	fmt.Fprintf(&b, "<IsTruncated>%t</IsTruncated>", truncated)
	if token != "" {
		b.WriteString("<NextContinuationToken>" + token + "</NextContinuationToken>")
	}
	for _, k := range keys {
		b.WriteString("<Contents><Key>" + k + "</Key><Size>1</Size><LastModified>2026-11-30T10:00:00Z</LastModified></Contents>")
	}
	return b.String() + "</ListBucketResult>"
}

func TestListingsThatCannotBeTrustedAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pages []string
		keys  []string
		want  error
	}{
		{"out of order", []string{page(false, "", false, "store/b", "store/a")}, []string{"b"}, backend.ErrUnsupported},
		{"out of order over pages", []string{page(true, "t", false, "store/b"), page(false, "", false, "store/a")}, []string{"b"}, backend.ErrUnsupported},
		{"the same key twice", []string{page(false, "", false, "store/b", "store/b")}, []string{"b"}, backend.ErrUnsupported},
		{"cut off without a token", []string{page(true, "", false, "store/b")}, []string{"b"}, backend.ErrUnsupported},
		{"the same token again", []string{page(true, "t", false), page(true, "t", false)}, nil, backend.ErrUnsupported},
		{"an empty page on the way", []string{page(true, "t", false), page(false, "", false, "store/b")}, []string{"b"}, nil},
		{"encoded keys", []string{page(false, "", true, "store%2Fa", "store%2Fa%00b", "store%2Fc+d", "store/e")}, []string{"a", "e"}, nil},
		{"no encoding, as some stores", []string{page(false, "", false, "store/a", "store/a%2Fb", "store/b")}, []string{"a", "b"}, nil},
		{"keys before the beginning", []string{page(false, "", false, "stora", "store/a", "storf")}, []string{"a"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, _ := scripted(t, func(n int, _ *http.Request) (*http.Response, error) { return reply(200, tc.pages[n]) })
			got, err := list(t, b, "", "")
			if tc.want != nil {
				wantError(t, err, tc.want)
			} else if err != nil {
				t.Error(err)
			}
			if !slices.Equal(got, tc.keys) {
				t.Errorf("listed %q, want %q", got, tc.keys)
			}
		})
	}
}

func TestAStoreThatIgnoresStartAfterIsNotBelieved(t *testing.T) {
	b, _ := scripted(t, func(int, *http.Request) (*http.Response, error) {
		return reply(200, page(false, "", false, "store/a", "store/b", "store/c"))
	})
	got, err := list(t, b, "", "b")
	if err != nil || !slices.Equal(got, []string{"c"}) {
		t.Errorf("listed %q, %v after b, want c", got, err)
	}
}
