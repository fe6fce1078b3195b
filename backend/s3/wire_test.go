package s3_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/s3"
)

// small makes everything over 1 MiB a multipart upload of 5 MiB parts.
func small(o *s3.Options) { o.MultipartOver, o.PartSize = 1<<20, 5<<20 }

func TestNoCallSendsMoreRequestsThanItNeeds(t *testing.T) {
	w := newWired(t, small)
	ctx := t.Context()
	data := []byte("0123456789")
	v, err := w.b.Create(ctx, "_control/a", backend.Bytes(data))
	if err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "PutObject")
	if v, err = w.b.Replace(ctx, "_control/a", backend.Bytes(data[1:]), v.Version); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "PutObject")
	for _, opts := range []backend.GetOptions{{}, {Offset: 3, Length: 2}, {Offset: -4}, {Offset: 8}, {IfVersion: v.Version}} {
		obj, err := w.b.Get(ctx, "_control/a", opts)
		if err != nil {
			t.Fatal(err)
		}
		obj.Body.Close()
		w.wantRequests(t, "GetObject")
	}
	if _, err := w.b.Get(ctx, "_control/a", backend.GetOptions{Offset: 9}); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "GetObject", "HeadObject")
	w.b.Get(ctx, "data/missing", backend.GetOptions{})
	w.wantRequests(t, "GetObject")
	w.b.Create(ctx, "_control/a", backend.Bytes(data))
	w.wantRequests(t, "PutObject")
	w.b.Replace(ctx, "_control/a", backend.Bytes(data), `"other"`)
	w.wantRequests(t, "PutObject")
	for range w.b.List(ctx, "", "") {
	}
	w.wantRequests(t, "ListObjectsV2")
	var keys []string
	for i := range 2001 {
		keys = append(keys, fmt.Sprintf("data/%d", i))
	}
	if err := w.b.Delete(ctx, keys); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "DeleteObjects", "DeleteObjects", "DeleteObjects")
	if _, err := w.b.Create(ctx, "data/large", backend.Bytes(noise(11<<20))); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "CreateMultipartUpload", "UploadPart", "UploadPart", "UploadPart", "CompleteMultipartUpload")
	if _, err := w.b.CleanUploads(ctx, 0); err != nil {
		t.Fatal(err)
	}
	w.wantRequests(t, "ListMultipartUploads")
}

// What any store understands: one plain body whose length, sha256 and condition
// are in the head.
func TestAnUploadIsAPlainBodyWithItsHashInTheHead(t *testing.T) {
	w := newWired(t)
	for _, n := range []int{0, 1, 4096, 3 << 20} {
		data := noise(n)
		w.proxy.Forget()
		if _, err := w.b.Create(t.Context(), fmt.Sprintf("data/%d", n), backend.Bytes(data)); err != nil {
			t.Fatal(err)
		}
		r := w.proxy.Requests()[0]
		sum := sha256.Sum256(data)
		for k, want := range map[string]string{
			"X-Amz-Checksum-Sha256": base64.StdEncoding.EncodeToString(sum[:]),
			"X-Amz-Content-Sha256":  hex.EncodeToString(sum[:]),
			"If-None-Match":         "*",
			"Content-Length":        fmt.Sprint(n),
			"Amz-Sdk-Request":       "attempt=1; max=1",
		} {
			if got := r.Header.Get(k); got != want {
				t.Errorf("%d bytes: %s: %q, want %q", n, k, got, want)
			}
		}
		for _, k := range []string{"Content-Encoding", "Transfer-Encoding", "Trailer", "X-Amz-Trailer", "X-Amz-Decoded-Content-Length", "X-Amz-Sdk-Checksum-Algorithm"} {
			if got := r.Header.Get(k); got != "" {
				t.Errorf("%d bytes: %s: %q, want nothing", n, k, got)
			}
		}
		if r.BodyBytes != int64(n) {
			t.Errorf("the body has %d bytes on the wire, want %d", r.BodyBytes, n)
		}
	}
}

func TestAContentIsReadOnceForEachAttempt(t *testing.T) {
	w := newWired(t, small)
	for _, tc := range []struct {
		name   string
		size   int
		sum    bool
		passes int64
	}{
		{"one request", 900_000, true, 1},
		{"in parts", 12 << 20, true, 1},
		{"in parts without a sha256", 12 << 20, false, 1},
		{"one request without a sha256", 900_000, false, 2}, // once to hash it
		{"nothing", 0, true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &counted{data: noise(tc.size)}
			key := "data/" + strings.ReplaceAll(tc.name, " ", "-")
			if _, err := w.b.Create(t.Context(), key, c.body(tc.sum)); err != nil {
				t.Fatal(err)
			}
			if got, want := c.bytes.Load(), tc.passes*int64(tc.size); got != want {
				t.Errorf("%d bytes were read, want %d", got, want)
			}
			if c.opens.Load() != tc.passes || c.closes.Load() != tc.passes {
				t.Errorf("opened %d times and closed %d times, want %d", c.opens.Load(), c.closes.Load(), tc.passes)
			}
			holds(t, w.direct, key, c.data)
		})
	}
}

// The transport asks for the body again when a connection was dead before
// anything was written to it.
func TestABodyIsOpenedAgainForADeadConnection(t *testing.T) {
	c := &counted{data: noise(100_000)}
	var got []byte
	b, _ := scripted(t, func(_ int, req *http.Request) (*http.Response, error) {
		if req.GetBody == nil {
			t.Fatal("the request has no GetBody")
		}
		again, err := req.GetBody()
		if err != nil {
			t.Fatal(err)
		}
		got, _ = io.ReadAll(again)
		again.Close()
		return reply(200, "", "ETag", `"x"`)
	})
	if _, err := b.Create(t.Context(), "data/x", c.body(true)); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(c.data) {
		t.Errorf("the second reading gave %d bytes, want the %d of the content", len(got), len(c.data))
	}
	if c.opens.Load() != 2 || c.closes.Load() != 2 {
		t.Errorf("opened %d times and closed %d times, want 2", c.opens.Load(), c.closes.Load())
	}
}

func TestPartsAreSignedWithoutBeingHashedAgain(t *testing.T) {
	w := newWired(t, small)
	if _, err := w.b.Create(t.Context(), "data/large", backend.Bytes(noise(6<<20))); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, r := range w.proxy.Requests() {
		switch operation(r) {
		case "UploadPart":
			seen++
			if got := r.Header.Get("X-Amz-Content-Sha256"); got != "UNSIGNED-PAYLOAD" {
				t.Errorf("a part's payload hash is %q", got)
			}
			if r.Header.Get("X-Amz-Checksum-Crc32") == "" || !strings.Contains(r.Header.Get("Authorization"), "x-amz-checksum-crc32") {
				t.Errorf("a part's CRC is not in its signature: %q", r.Header.Get("Authorization"))
			}
		case "CreateMultipartUpload":
			if r.Header.Get("X-Amz-Checksum-Algorithm") != "CRC32" || r.Header.Get("X-Amz-Checksum-Type") != "FULL_OBJECT" {
				t.Errorf("the start announces %q %q", r.Header.Get("X-Amz-Checksum-Algorithm"), r.Header.Get("X-Amz-Checksum-Type"))
			}
		case "CompleteMultipartUpload":
			if r.Header.Get("If-None-Match") != "*" || r.Header.Get("X-Amz-Checksum-Crc32") == "" || r.Header.Get("X-Amz-Mp-Object-Size") != fmt.Sprint(6<<20) {
				t.Errorf("the completion has the head %v", r.Header)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d parts, want 2", seen)
	}
}
