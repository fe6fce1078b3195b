package gcs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

// write is Create of a new name or Replace of one that is there.
type write struct {
	name string
	key  string
	do   func(ctx context.Context, s *store, b backend.Body, old backend.Version) (backend.Info, error)
	seed bool
}

var writes = []write{
	{"create", "data/x", func(ctx context.Context, s *store, b backend.Body, _ backend.Version) (backend.Info, error) {
		return s.Create(ctx, "data/x", b)
	}, false},
	{"replace", "_control/x", func(ctx context.Context, s *store, b backend.Body, old backend.Version) (backend.Info, error) {
		return s.Replace(ctx, "_control/x", b, old)
	}, true},
}

func TestWriteOutcomes(t *testing.T) {
	rateLimit := "rateLimitExceeded"
	cases := []struct {
		name     string
		fault    testserver.Fault
		want     error // nil: success
		carried  bool  // the store has the new bytes afterwards
		requests int
	}{
		{"lost answer", testserver.Fault{LoseAnswer: true}, backend.ErrUnknown, true, 1},
		{"cut before", testserver.Fault{Cut: true}, backend.ErrUnknown, false, 1},
		{"half an answer", testserver.Fault{Truncate: true, TruncateAt: 20}, backend.ErrUnknown, true, 1},
		{"500", jsonError(500, "internalError", "x"), backend.ErrUnknown, false, 1},
		{"502 html", testserver.Fault{Status: 502, Body: "<html><body>bad gateway</body></html>"}, backend.ErrUnknown, false, 1},
		{"503 backend error", jsonError(503, "backendError", "x"), backend.ErrUnknown, false, 1},
		{"408", jsonError(408, "uploadBrokenConnection", "x"), backend.ErrUnknown, false, 1},
		{"redirect", testserver.Fault{Status: 307, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}, backend.ErrUnknown, false, 1},
		{"401", jsonError(401, "authError", "x"), backend.ErrDenied, false, 1},
		{"403", jsonError(403, "forbidden", "x"), backend.ErrDenied, false, 1},
		{"412 by a policy", jsonError(412, "orgPolicyConstraintFailed", "x"), backend.ErrDenied, false, 1},
		{"501", jsonError(501, "notImplemented", "x"), backend.ErrUnsupported, false, 1},
		{"507", jsonError(507, "x", "x"), backend.ErrFull, false, 1},
		{"404 of the bucket", jsonError(404, "notFound", "The specified bucket does not exist."), backend.ErrNoBucket, false, 1},
		{"409 once", once(jsonError(409, "conflict", "x")), nil, true, 2},
		{"429 once", once(jsonError(429, rateLimit, "x")), nil, true, 2},
		{"403 for the rate, once", once(jsonError(403, "userRateLimitExceeded", "x")), nil, true, 2},
		{"503 slow down, once", once(testserver.Fault{Status: 503, Code: "SlowDown"}), nil, true, 2},
	}
	for _, w := range writes {
		for _, c := range cases {
			t.Run(w.name+"/"+c.name, func(t *testing.T) {
				s := newStore(t)
				var before []byte
				var old backend.Version
				if w.seed {
					before = []byte("before")
					old = s.mustCreate(t, w.key, before).Version
				}
				c.fault.Match = uploads
				s.proxy.Inject(c.fault)
				data := []byte("after")
				info, err := w.do(t.Context(), s, backend.Bytes(data), old)
				if c.want == nil {
					if err != nil {
						t.Fatalf("error %v, want success", err)
					}
					if info.Size != int64(len(data)) || info.Version == "" || info.Version == old {
						t.Errorf("info %+v", info)
					}
				} else {
					isErr(t, w.name, err, c.want)
				}
				if n := requests(s.proxy, every); n != c.requests {
					t.Errorf("%d requests, want %d", n, c.requests)
				}
				want := before
				if c.carried {
					want = data
				}
				s.holds(t, w.key, want)
			})
		}
	}
}

func once(f testserver.Fault) testserver.Fault {
	f.Times = 1
	return f
}

func TestReplaceOfAMissingNameIsChanged(t *testing.T) {
	s := newStore(t)
	info := s.mustCreate(t, "_control/x", []byte("1"))
	if err := s.direct.Delete(t.Context(), []string{"_control/x"}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Replace(t.Context(), "_control/x", backend.Bytes([]byte("2")), info.Version)
	isErr(t, "replace", err, backend.ErrChanged)
	// A store may answer 404 instead of 412.
	s.proxy.Inject(testserver.Fault{Match: uploads, Status: 404, Body: "Not Found"})
	_, err = s.Replace(t.Context(), "_control/x", backend.Bytes([]byte("2")), info.Version)
	isErr(t, "replace answered with 404", err, backend.ErrChanged)
	if _, err := s.Replace(t.Context(), "_control/x", backend.Bytes([]byte("2")), "no version of ours"); !errors.Is(err, backend.ErrChanged) {
		t.Errorf("replace of a strange version: error %v, want %v", err, backend.ErrChanged)
	}
}

func TestUploadsCarryTheirChecksumAndNoEncoding(t *testing.T) {
	s := newStore(t, smallParts)
	heads := func(r *http.Request) { // the metadata of a single-request upload
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if !bytes.Contains(b, []byte(`"crc32c":"`)) {
			t.Errorf("no crc32c in %.300q", b)
		}
		for _, wrong := range []string{"contentEncoding", "md5Hash"} {
			if bytes.Contains(b, []byte(wrong)) {
				t.Errorf("%s in %.300q", wrong, b)
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
	}
	single := s.proxy.Inject(testserver.Fault{Match: testserver.All(starts, singles), EditRequest: heads})
	hashed := s.proxy.Inject(testserver.Fault{Match: testserver.All(lastParts, testserver.HasHeader("X-Goog-Hash")), EditRequest: func(*http.Request) {}})
	for _, size := range []int{0, 1, chunkUnit, chunkUnit + 1, 3 * chunkUnit} {
		if _, err := s.Create(t.Context(), fmt.Sprintf("data/%d", size), backend.Bytes(noise(size))); err != nil {
			t.Fatal(err)
		}
		s.holds(t, fmt.Sprintf("data/%d", size), noise(size))
	}
	if single.Hits() != 3 || hashed.Hits() != 2 {
		t.Errorf("%d uploads in a single request with a checksum, want 3; %d in parts with one, want 2", single.Hits(), hashed.Hits())
	}
}

func singles(r *http.Request) bool { return r.URL.Query().Get("uploadType") == "multipart" }

// flip changes one byte of the content of an upload on its way.
func flip(content []byte) func(*http.Request) {
	return func(r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if i := bytes.Index(b, content); i >= 0 {
			b[i] ^= 1
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
	}
}

func TestBytesDamagedOnTheWay(t *testing.T) {
	small, large := noise(1000), noise(3*chunkUnit)
	for _, c := range []struct {
		name string
		data []byte
		fix  testserver.Match
	}{
		{"single request", small, uploads},
		{"parts", large, otherParts},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, smallParts)
			mark := c.data[:100]
			f := s.proxy.Inject(testserver.Fault{Match: c.fix, Times: 1, EditRequest: flip(mark)})
			if _, err := s.Create(t.Context(), "data/once", backend.Bytes(c.data)); err != nil || f.Hits() != 1 {
				t.Errorf("damaged once: error %v after %d damages, want success after 1", err, f.Hits())
			}
			s.holds(t, "data/once", c.data)
			f = s.proxy.Inject(testserver.Fault{Match: c.fix, EditRequest: flip(mark)})
			_, err := s.Create(t.Context(), "data/always", backend.Bytes(c.data))
			isErr(t, "damaged always", err, backend.ErrBadContent)
			if f.Hits() < 1+maxDamaged {
				t.Errorf("%d attempts, want %d", f.Hits(), 1+maxDamaged)
			}
			s.holds(t, "data/always", nil)
		})
	}
}

func TestAStoreThatTakesDamagedParts(t *testing.T) {
	data := noise(3 * chunkUnit)
	drop := func(r *http.Request) { r.Header.Del("X-Goog-Hash") }
	s := newStore(t, smallParts)
	s.proxy.Inject(testserver.Fault{Match: lastParts, EditRequest: drop})
	s.proxy.Inject(testserver.Fault{Match: otherParts, EditRequest: flip(data[:100])})

	_, err := s.Create(t.Context(), "data/x", backend.Bytes(data))
	isErr(t, "create", err, backend.ErrBadContent)
	if n := requests(s.proxy, testserver.Method(http.MethodDelete)); n != 1 {
		t.Errorf("%d deletions, want 1", n)
	}
	s.holds(t, "data/x", nil)

	s.proxy.Inject(testserver.Fault{Match: testserver.Method(http.MethodDelete), Status: 403})
	_, err = s.Create(t.Context(), "data/y", backend.Bytes(data))
	if !errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrBadContent) || errors.Is(err, backend.ErrUnknown) {
		t.Errorf("create that cannot be undone: error %v, want %v", err, backend.ErrUnsupported)
	}

	old := s.mustCreate(t, "_control/x", []byte("old")).Version
	_, err = s.Replace(t.Context(), "_control/x", backend.Bytes(data), old)
	isErr(t, "replace", err, backend.ErrUnsupported)
	if !strings.Contains(err.Error(), "damaged") {
		t.Errorf("the error does not say what happened: %v", err)
	}
}

// What is read at the second pass counts, whatever was read at the first.
func TestAFileThatChangesWhileItIsSent(t *testing.T) {
	for _, size := range []int{1, 100_000, chunkUnit + 1, 5*chunkUnit + 7} {
		good := noise(size)
		bad := bytes.Clone(good)
		bad[size-1] ^= 1
		sha := sha256.Sum256(good)
		for name, f := range map[string]*feed{
			"changed before the last byte was sent": {passes: [][]byte{good, bad}},
			"changed before":                        {passes: [][]byte{bad}},
			"shorter at the second pass":            {passes: [][]byte{good, good[:size-1]}},
			"shorter":                               {passes: [][]byte{good[:size-1]}},
			"longer at the second pass":             {passes: [][]byte{good, append(bytes.Clone(good), 0)}},
			"longer":                                {passes: [][]byte{append(bytes.Clone(good), 0)}},
		} {
			if size > chunkUnit {
				// Parts are sent in a single pass: there is no second one.
				f.passes = f.passes[len(f.passes)-1:]
			}
			t.Run(fmt.Sprintf("%d bytes/%s", size, name), func(t *testing.T) {
				s := newStore(t, smallParts)
				_, err := s.Create(t.Context(), "data/x", f.body(int64(size), sha[:]))
				isErr(t, "create", err, backend.ErrBadContent)
				s.holds(t, "data/x", nil)
				if n := requests(s.proxy, lastParts); n != 0 {
					t.Errorf("%d upload(s) were completed", n)
				}
			})
		}
	}
	// Without a sha256 the checksum of the first pass stands in for it.
	s := newStore(t)
	good := noise(200_000)
	bad := bytes.Clone(good)
	bad[7] ^= 1
	f := &feed{passes: [][]byte{good, bad}}
	_, err := s.Create(t.Context(), "data/x", f.body(int64(len(good)), nil))
	isErr(t, "create without a sha256", err, backend.ErrBadContent)
	s.holds(t, "data/x", nil)
}

func TestAReaderThatFailsIsFoundInTheError(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, size := range []int{10, 250_000, 3 * chunkUnit} {
		for name, passes := range map[string][][]byte{
			"at once":            {noise(size / 2)},
			"at the second pass": {noise(size), noise(size / 2)},
		} {
			if size > chunkUnit && len(passes) > 1 {
				continue // parts are sent in a single pass
			}
			t.Run(fmt.Sprintf("%d bytes %s", size, name), func(t *testing.T) {
				s := newStore(t, smallParts)
				f := &failing{&feed{passes: passes, fail: broken}}
				_, err := s.Create(t.Context(), "data/x", f.body(int64(size)))
				if !errors.Is(err, broken) || errors.Is(err, backend.ErrUnknown) || errors.Is(err, backend.ErrBadContent) {
					t.Errorf("error %v, want %v", err, broken)
				}
				s.holds(t, "data/x", nil)
			})
		}
	}
	s := newStore(t)
	_, err := s.Create(t.Context(), "data/x", backend.Body{Size: 1, Open: func() (io.ReadSeekCloser, error) { return nil, broken }})
	if !errors.Is(err, broken) || requests(s.proxy, every) != 0 {
		t.Errorf("a body that cannot be opened: error %v after %d requests, want %v after none", err, requests(s.proxy, every), broken)
	}
}

// failing fails only in passes that are cut short.
type failing struct{ f *feed }

func (f *failing) body(size int64) backend.Body {
	b := f.f.body(size, nil)
	open := b.Open
	b.Open = func() (io.ReadSeekCloser, error) {
		r, err := open()
		return &failingReader{r.(*feedReader), size}, err
	}
	return b
}

type failingReader struct {
	*feedReader
	size int64
}

func (r *failingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err == io.EOF && r.r.Size() < r.size {
		err = r.f.fail
	}
	return n, err
}

func TestResumableUploads(t *testing.T) {
	data := noise(4*chunkUnit + 99)
	cases := []struct {
		name    string
		fault   testserver.Fault
		want    error
		plain   string // text of an error without a sentinel
		carried bool
	}{
		{"start refused twice", times(2, with(starts, jsonError(503, "backendError", "x"))), nil, "", true},
		{"start lost", times(1, testserver.Fault{Match: starts, LoseAnswer: true}), nil, "", true},
		{"a part refused", times(2, skip(1, with(otherParts, jsonError(503, "backendError", "x")))), nil, "", true},
		{"a part throttled", times(2, with(otherParts, jsonError(429, "rateLimitExceeded", "x"))), nil, "", true},
		{"a part lost before it came", times(1, skip(1, testserver.Fault{Match: otherParts, Cut: true})), nil, "", true},
		{"a part's answer lost", times(1, skip(1, testserver.Fault{Match: otherParts, LoseAnswer: true})), nil, "", true},
		{"session forgotten once", times(1, skip(2, with(otherParts, jsonError(410, "gone", "x")))), nil, "", true},
		{"session forgotten always", with(otherParts, jsonError(404, "notFound", "x")), nil, "forgotten", false},
		{"last part throttled", times(1, with(lastParts, jsonError(429, "rateLimitExceeded", "x"))), nil, "", true},
		{"last part's answer lost", testserver.Fault{Match: lastParts, LoseAnswer: true}, backend.ErrUnknown, "", true},
		{"last part lost", testserver.Fault{Match: lastParts, Cut: true}, backend.ErrUnknown, "", false},
		{"parts lost always", testserver.Fault{Match: otherParts, Cut: true}, nil, "broke off", false},
		{"last part 503", with(lastParts, jsonError(503, "backendError", "x")), backend.ErrUnknown, "", false},
		{"last part 404", with(lastParts, jsonError(404, "notFound", "x")), backend.ErrUnknown, "", false},
		{"last part denied", with(lastParts, jsonError(403, "forbidden", "x")), backend.ErrDenied, "", false},
		{"start denied", with(starts, jsonError(403, "forbidden", "x")), backend.ErrDenied, "", false},
		{"start without a bucket", with(starts, testserver.Fault{Status: 404}), backend.ErrNoBucket, "", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, smallParts)
			s.proxy.Inject(c.fault)
			info, err := s.Create(t.Context(), "data/x", backend.Bytes(data))
			switch {
			case c.want != nil:
				isErr(t, "create", err, c.want)
			case c.plain != "":
				isPlain(t, "create", err, c.plain)
			case err != nil:
				t.Fatalf("error %v, want success", err)
			case info.Size != int64(len(data)) || info.Date.IsZero():
				t.Errorf("info %+v", info)
			}
			if err != nil && strings.Contains(err.Error(), "upload_id") {
				t.Errorf("%v\ngives away the upload, which others can go on with", err)
			}
			if strings.HasPrefix(c.name, "a part") && requests(s.proxy, starts) != 1 {
				t.Errorf("the upload was begun %d times, want once", requests(s.proxy, starts))
			}
			if n := requests(s.proxy, lastParts); n > 1 && c.want != nil {
				t.Errorf("the part that decides was sent %d times", n)
			}
			if c.carried {
				s.holds(t, "data/x", data)
			} else {
				s.holds(t, "data/x", nil)
			}
		})
	}
}

func with(m testserver.Match, f testserver.Fault) testserver.Fault {
	f.Match = m
	return f
}

func times(n int, f testserver.Fault) testserver.Fault {
	f.Times = n
	return f
}

func skip(n int, f testserver.Fault) testserver.Fault {
	f.Skip = n
	return f
}

func TestResumableUploadsKeepTheConditions(t *testing.T) {
	s := newStore(t, smallParts)
	data := noise(2*chunkUnit + 1)
	old := s.mustCreate(t, "_control/x", []byte("old")).Version
	_, err := s.Create(t.Context(), "_control/x", backend.Bytes(data))
	isErr(t, "create", err, backend.ErrExists)
	if backend.Date(err).IsZero() {
		t.Error("no date")
	}
	info, err := s.Replace(t.Context(), "_control/x", backend.Bytes(data), old)
	if err != nil || info.Version == old {
		t.Fatalf("replace: %+v, %v", info, err)
	}
	_, err = s.Replace(t.Context(), "_control/x", backend.Bytes(noise(2*chunkUnit+2)), old)
	isErr(t, "replace of an old version", err, backend.ErrChanged)
	s.holds(t, "_control/x", data)
}

// A call that ends while its parts are under way has made nothing; one that ends
// while the request that decides is under way does not know.
func TestACancelledUpload(t *testing.T) {
	for _, c := range []struct {
		name string
		size int
		at   testserver.Match
		want error
	}{
		{"single request", 1000, uploads, backend.ErrUnknown},
		{"a part", 3 * chunkUnit, otherParts, nil},
		{"the last part", 3 * chunkUnit, lastParts, backend.ErrUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, smallParts)
			g := testserver.NewGate()
			s.proxy.Inject(testserver.Fault{Match: c.at, Hold: g})
			cause := errors.New("the lease is lost")
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := s.Create(ctx, "data/x", backend.Bytes(noise(c.size)))
				done <- err
			}()
			g.Await(t)
			cancel(cause)
			err := <-done
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want %v", err, context.Canceled)
			}
			if got := errors.Is(err, backend.ErrUnknown); got != (c.want != nil) {
				t.Errorf("error %v: is ErrUnknown %v, want %v", err, got, c.want != nil)
			}
			if c.want == nil && !errors.Is(err, cause) {
				t.Errorf("error %v, want the cause %v behind it", err, cause)
			}
			g.Open()
		})
	}
}

// Without its last bytes no upload can be completed, so they are what a verifier
// keeps to itself until everything was right.
func TestTheLastBytesAreHeldBack(t *testing.T) {
	good := noise(1000)
	for name, c := range map[string]struct {
		data []byte
		sha  bool
		crc  bool
	}{
		"wrong sha256":   {append(bytes.Clone(good[:999]), good[999]^1), true, false},
		"wrong checksum": {append(bytes.Clone(good[:999]), good[999]^1), false, true},
		"too long":       {append(bytes.Clone(good), 0), true, true},
		"too short":      {good[:999], true, true},
	} {
		for _, step := range []int{1, 7, 100, 1000, 5000} {
			crc := crc32.Checksum(good, castagnoli)
			v := &verifier{
				src:  bytes.NewReader(c.data),
				body: backend.Body{Size: 1000, HasSHA256: c.sha, SHA256: sha256.Sum256(good)},
				sha:  sha256.New(),
			}
			if c.crc {
				v.announced = &crc
			}
			var out bytes.Buffer
			_, err := io.CopyBuffer(struct{ io.Writer }{&out}, struct{ io.Reader }{v}, make([]byte, step))
			if !errors.Is(err, backend.ErrBadContent) || out.Len() >= 1000 {
				t.Errorf("%s in steps of %d: %d bytes were given out, error %v", name, step, out.Len(), err)
			}
		}
	}
}

// A success that comes before the bytes were sent is none, and does not keep the
// call waiting for them to be taken.
func TestAnUploadThatIsAnsweredTooEarly(t *testing.T) {
	early := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://"+r.Host+r.URL.Path+"?upload_id=1&uploadType=resumable")
		w.Header().Set("Connection", "close")
		io.WriteString(w, `{"generation":"7","size":"1","crc32c":"AAAAAA=="}`)
	}))
	defer early.Close()
	for _, size := range []int{8 << 20, 17 << 20} {
		d := openDriver(t, "gs://bucket/p?endpoint="+url.QueryEscape(early.URL))
		_, err := d.Create(t.Context(), "data/x", backend.Bytes(noise(size)))
		if err == nil || errors.Is(err, backend.ErrBadContent) {
			t.Errorf("%d bytes: error %v", size, err)
		}
	}
	s := newStore(t, smallParts)
	s.proxy.Inject(testserver.Fault{Match: otherParts, Status: 200, Body: `{"generation":"7","size":"1","crc32c":"AAAAAA=="}`})
	_, err := s.Create(t.Context(), "data/x", backend.Bytes(noise(5*chunkUnit)))
	isPlain(t, "a part", err, "before all of it was sent")
	if n := requests(s.proxy, otherParts); n != 1 {
		t.Errorf("%d parts were sent, want 1: a store that does so once does it again", n)
	}
	s.holds(t, "data/x", nil)
}

func TestPrefixesOfManyKinds(t *testing.T) {
	srv := testserver.GCS(t)
	if srv.External() {
		t.Skipf("%s is set: this test needs a server of its own", testserver.GCSURLVariable)
	}
	u, err := url.Parse(srv.NewBucket(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"", "plain", "a/b/c", "with space", "plus+and&more=x", "ümläut/日本", "per%cent", "que?ry#frag", "..x/y.."} {
		d := openDriver(t, srv.URL(u.Host, prefix))
		if d.prefix != strings.TrimPrefix(prefix+"/", "/") {
			t.Errorf("prefix %q became %q", prefix, d.prefix)
		}
		for _, k := range []string{"data/x", "data/y"} {
			if _, err := d.Create(t.Context(), k, backend.Bytes([]byte(k))); err != nil {
				t.Errorf("%q: create: %v", prefix, err)
			}
		}
		obj, err := d.Get(t.Context(), "data/x", backend.GetOptions{})
		if err != nil {
			t.Errorf("%q: get: %v", prefix, err)
			continue
		}
		got, _ := io.ReadAll(obj.Body)
		obj.Body.Close()
		if string(got) != "data/x" {
			t.Errorf("%q: got %q", prefix, got)
		}
		if err := d.Delete(t.Context(), []string{"data/x"}); err != nil {
			t.Errorf("%q: delete: %v", prefix, err)
		}
		var keys []string
		for e, err := range d.List(t.Context(), "data/", "") {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, e.Key)
		}
		if fmt.Sprint(keys) != "[data/y]" {
			t.Errorf("%q: lists %q, want data/y", prefix, keys)
		}
	}
}
