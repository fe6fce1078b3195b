package gcs

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

var gets = testserver.Method(http.MethodGet)

func TestReadsAreRepeated(t *testing.T) {
	data := noise(1000)
	faults := map[string]testserver.Fault{
		"500":      jsonError(500, "internalError", "x"),
		"503":      jsonError(503, "backendError", "x"),
		"408":      jsonError(408, "x", "x"),
		"lost":     {LoseAnswer: true},
		"cut":      {Cut: true},
		"429":      jsonError(429, "rateLimitExceeded", "x"),
		"conflict": jsonError(409, "conflict", "x"),
	}
	calls := map[string]struct {
		method string
		call   func(s *store) error
	}{
		"get": {http.MethodGet, func(s *store) error {
			obj, err := s.Get(t.Context(), "data/x", backend.GetOptions{})
			if err != nil {
				return err
			}
			defer obj.Body.Close()
			if got, err := io.ReadAll(obj.Body); err != nil || !bytes.Equal(got, data) {
				return fmt.Errorf("%d bytes, %w", len(got), err)
			}
			return nil
		}},
		"list": {http.MethodGet, func(s *store) error {
			n := 0
			for _, err := range s.List(t.Context(), "", "") {
				if err != nil {
					return err
				}
				n++
			}
			if n != 1 {
				return fmt.Errorf("listed %d objects", n)
			}
			return nil
		}},
		"delete": {http.MethodDelete, func(s *store) error { return s.Delete(t.Context(), []string{"data/x"}) }},
	}
	for fname, f := range faults {
		for cname, c := range calls {
			t.Run(cname+"/"+fname, func(t *testing.T) {
				t.Parallel()
				s := newStore(t)
				s.mustCreate(t, "data/x", data)
				f.Match, f.Times = testserver.Method(c.method), 1
				s.proxy.Inject(f)
				if err := c.call(s); err != nil {
					t.Errorf("error %v, want success", err)
				}
				if n := requests(s.proxy, every); n != 2 {
					t.Errorf("%d requests, want 2", n)
				}
			})
		}
	}
}

func TestReadsAreNotRepeatedForEver(t *testing.T) {
	s := newStore(t)
	s.mustCreate(t, "data/x", noise(10))
	s.proxy.Inject(testserver.Fault{LoseAnswer: true})
	_, err := s.Get(t.Context(), "data/x", backend.GetOptions{})
	isPlain(t, "get", err, "lost")
	if n := requests(s.proxy, every); n != 1+maxTransients {
		t.Errorf("%d requests, want %d", n, 1+maxTransients)
	}
}

func TestBodiesThatBreakOff(t *testing.T) {
	data := noise(100_000)
	read := func(s *store, opts backend.GetOptions) ([]byte, error) {
		obj, err := s.Get(t.Context(), "data/x", opts)
		if err != nil {
			return nil, err
		}
		defer obj.Body.Close()
		return io.ReadAll(obj.Body)
	}
	t.Run("are resumed", func(t *testing.T) {
		s := newStore(t)
		s.mustCreate(t, "data/x", data)
		s.proxy.Inject(testserver.Fault{Match: gets, Times: maxResumes, Truncate: true, TruncateAt: 20_000})
		if got, err := read(s, backend.GetOptions{}); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, error %v; want all and none", len(got), err)
		}
		s.proxy.Inject(testserver.Fault{Match: gets, Times: 1, Truncate: true, TruncateAt: 20_000})
		if got, err := read(s, backend.GetOptions{Offset: 10, Length: 50_000}); err != nil || !bytes.Equal(got, data[10:50_010]) {
			t.Errorf("part: %d bytes, error %v; want 50000 and none", len(got), err)
		}
	})
	t.Run("are not resumed for ever", func(t *testing.T) {
		s := newStore(t)
		s.mustCreate(t, "data/x", data)
		for _, at := range []int64{0, 100} {
			s.proxy.Forget()
			f := s.proxy.Inject(testserver.Fault{Match: gets, Truncate: true, TruncateAt: at})
			got, err := read(s, backend.GetOptions{})
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
			}
			if want := data[:at*(1+maxResumes)]; !bytes.Equal(got, want) {
				t.Errorf("%d bytes, want the first %d", len(got), len(want))
			}
			if n := requests(s.proxy, every); n != 1+maxResumes {
				t.Errorf("%d requests, want %d", n, 1+maxResumes)
			}
			f.Remove()
		}
	})
	t.Run("stay with one generation", func(t *testing.T) {
		s := newStore(t)
		info := s.mustCreate(t, "_control/x", data)
		s.proxy.Inject(testserver.Fault{Match: gets, Times: 1, Truncate: true, TruncateAt: 1000})
		obj, err := s.Get(t.Context(), "_control/x", backend.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer obj.Body.Close()
		if _, err := s.direct.Replace(t.Context(), "_control/x", backend.Bytes(noise(100_001)), info.Version); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(obj.Body)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Equal(got, data[:len(got)]) {
			t.Errorf("%d bytes, error %v; want a beginning of the old ones and %v", len(got), err, io.ErrUnexpectedEOF)
		}
	})
}

// A reader that knows the size must not get all bytes if one of them is wrong.
func TestBytesDamagedOnTheWayBack(t *testing.T) {
	data := noise(50_000)
	s := newStore(t)
	s.mustCreate(t, "data/x", data)
	s.proxy.Inject(testserver.Fault{Match: gets, EditAnswer: func(r *http.Response) {
		b, _ := io.ReadAll(r.Body)
		b[100] ^= 1
		r.Body = io.NopCloser(bytes.NewReader(b))
	}})
	obj, err := s.Get(t.Context(), "data/x", backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Body.Close()
	n, err := io.ReadFull(obj.Body, make([]byte, len(data)))
	if !errors.Is(err, backend.ErrBadContent) || n == len(data) {
		t.Errorf("%d of %d bytes, error %v; want fewer and %v", n, len(data), err, backend.ErrBadContent)
	}
	if _, err := obj.Body.Read(make([]byte, 1)); !errors.Is(err, backend.ErrBadContent) {
		t.Errorf("the next read: error %v, want %v", err, backend.ErrBadContent)
	}
}

func TestBytesComeAsTheyAreStored(t *testing.T) {
	s := newStore(t)
	data := bytes.Repeat([]byte("compressible "), 10_000)
	s.mustCreate(t, "data/x", data)
	s.proxy.Inject(testserver.Fault{Match: gets, EditAnswer: func(r *http.Response) {
		if got := r.Request.Header.Get("Accept-Encoding"); got != "gzip" {
			t.Errorf("Accept-Encoding: %q, want gzip, which keeps the service from unpacking", got)
		}
		if got := r.Header.Get("Content-Encoding"); got != "" {
			t.Errorf("Content-Encoding: %q, want none", got)
		}
		if got := r.Header.Get("Cache-Control"); got != cacheControl {
			t.Errorf("Cache-Control: %q, want %q", got, cacheControl)
		}
	}})
	obj, err := s.Get(t.Context(), "data/x", backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Body.Close()
	if got, err := io.ReadAll(obj.Body); err != nil || !bytes.Equal(got, data) || obj.Size != int64(len(data)) {
		t.Errorf("%d bytes of %d, error %v", len(got), obj.Size, err)
	}

	// Also where somebody has labelled the object as packed.
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(data)
	z.Close()
	w := s.direct.object("data/z").NewWriter(t.Context())
	w.ContentEncoding = "gzip"
	w.Write(packed.Bytes())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	obj, err = s.direct.Get(t.Context(), "data/z", backend.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Body.Close()
	if got, err := io.ReadAll(obj.Body); err != nil || !bytes.Equal(got, packed.Bytes()) || obj.Size != int64(packed.Len()) {
		t.Errorf("%d bytes of %d, error %v; want the %d packed ones", len(got), obj.Size, err, packed.Len())
	}
}

// steps delivers its steps one by one, then err.
type steps struct {
	of  []string
	err error
}

func (s *steps) Read(p []byte) (int, error) {
	if len(s.of) == 0 {
		return 0, s.err
	}
	n := copy(p, s.of[0])
	if s.of[0] = s.of[0][n:]; s.of[0] == "" {
		s.of = s.of[1:]
	}
	return n, nil
}

func (s *steps) Close() error { return nil }

// The end, and with it the checksum, may come only after the last bytes.
func TestTheEndIsReadBeforeTheLastBytesAreGivenOut(t *testing.T) {
	bad := errors.New("bad checksum")
	for _, c := range []struct {
		name  string
		of    []string
		err   error
		whole bool
		want  string
		is    error // nil: none
	}{
		{"good", []string{"abc", "def"}, io.EOF, true, "abcdef", nil},
		{"bad", []string{"abc", "def"}, bad, true, "abc", backend.ErrBadContent},
		{"longer", []string{"abc", "def", "g"}, io.EOF, true, "abc", backend.ErrBadContent},
		{"short", []string{"abc", "d"}, io.EOF, true, "abcd", io.ErrUnexpectedEOF},
		{"broken", []string{"abc", "d"}, bad, true, "abcd", io.ErrUnexpectedEOF},
		{"part", []string{"abc", "def", "ghi"}, io.EOF, false, "abcdef", nil},
	} {
		b := &body{r: &steps{slices.Clone(c.of), c.err}, length: 6, remain: 6, whole: c.whole}
		got, err := io.ReadAll(b)
		if string(got) != c.want || !errors.Is(err, c.is) {
			t.Errorf("%s: %q, error %v; want %q, %v", c.name, got, err, c.want, c.is)
		}
		buf := make([]byte, 6)
		b = &body{r: &steps{slices.Clone(c.of), c.err}, length: 6, remain: 6, whole: c.whole}
		if n, err := io.ReadFull(b, buf); (err == nil) != (c.is == nil) {
			t.Errorf("%s: ReadFull got %d bytes, error %v; want error: %v", c.name, n, err, c.is)
		}
	}
}

func TestPinnedReadsAskForTheLiveGeneration(t *testing.T) {
	srv := testserver.GCS(t)
	d := openDriver(t, srv.NewVersionedBucket(t)) // old generations can be read there
	first, err := d.Create(t.Context(), "_control/x", backend.Bytes([]byte("1")))
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Replace(t.Context(), "_control/x", backend.Bytes([]byte("22")), first.Version)
	if err != nil {
		t.Fatal(err)
	}
	get := func(v backend.Version, off int64) (*backend.Object, error) {
		obj, err := d.Get(t.Context(), "_control/x", backend.GetOptions{IfVersion: v, Offset: off})
		if err == nil {
			t.Cleanup(func() { obj.Body.Close() })
		}
		return obj, err
	}
	if obj, err := get(second.Version, 0); err != nil || obj.Version != second.Version || obj.Size != 2 {
		t.Errorf("the live version: %+v, %v", obj, err)
	}
	for _, off := range []int64{0, 1, 5, -1} {
		_, err = get(first.Version, off)
		isErr(t, fmt.Sprintf("the old version from %d", off), err, backend.ErrChanged)
	}
	if err := d.Delete(t.Context(), []string{"_control/x"}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []backend.Version{first.Version, second.Version, "strange"} {
		_, err = get(v, 0)
		isErr(t, "a deleted version", err, backend.ErrChanged)
		if backend.Date(err).IsZero() {
			t.Error("no date")
		}
	}
}

func TestReadsTakeOneRequest(t *testing.T) {
	s := newStore(t)
	s.mustCreate(t, "data/x", noise(100))
	for _, c := range []struct {
		opts     backend.GetOptions
		requests int
	}{
		{backend.GetOptions{}, 1},
		{backend.GetOptions{Offset: 5, Length: 7}, 1},
		{backend.GetOptions{Offset: 99}, 1},
		{backend.GetOptions{Offset: -7}, 1},
		{backend.GetOptions{Offset: -700, Length: 3}, 1},
		{backend.GetOptions{Offset: 100}, 2},
	} {
		s.proxy.Forget()
		obj, err := s.Get(t.Context(), "data/x", c.opts)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(obj.Body)
		if err := obj.Body.Close(); err != nil {
			t.Error(err)
		}
		if want := noise(100)[obj.Offset:][:obj.Length]; err != nil || !bytes.Equal(got, want) {
			t.Errorf("%+v: %d bytes, %v", c.opts, len(got), err)
		}
		if n := requests(s.proxy, every); n != c.requests {
			t.Errorf("%+v: %d requests, want %d", c.opts, n, c.requests)
		}
	}
}

func TestARangeBeyondTheEndOfAGrowingObject(t *testing.T) {
	s := newStore(t)
	v := s.mustCreate(t, "_control/x", noise(10)).Version
	var once sync.Once
	s.proxy.Inject(testserver.Fault{Match: testserver.Method(http.MethodHead), EditRequest: func(*http.Request) {
		once.Do(func() {
			if _, err := s.direct.Replace(t.Context(), "_control/x", backend.Bytes(noise(30)), v); err != nil {
				t.Error(err)
			}
		})
	}})
	obj, err := s.Get(t.Context(), "_control/x", backend.GetOptions{Offset: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Body.Close()
	if got, err := io.ReadAll(obj.Body); err != nil || !bytes.Equal(got, noise(30)[20:]) {
		t.Errorf("%d bytes, %v; want the last 10 of the new object", len(got), err)
	}
}

// Each answer has a date of its own, made from the key that it is about.
func TestDatesBelongToTheirAnswers(t *testing.T) {
	s := newStore(t)
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	dateOf := func(i int) time.Time { return base.Add(time.Duration(i) * time.Second) }
	s.proxy.Inject(testserver.Fault{EditAnswer: func(r *http.Response) {
		path := r.Request.URL.Path
		if name := r.Request.URL.Query().Get("name"); name != "" {
			path = name
		}
		var i int
		if _, err := fmt.Sscanf(path[strings.LastIndex(path, "/")+1:], "%d", &i); err != nil {
			t.Errorf("path %s: %v", path, err)
		}
		r.Header.Set("Date", dateOf(i).Format(http.TimeFormat))
	}})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			key := fmt.Sprintf("data/%d", i)
			_, err := s.Get(t.Context(), key, backend.GetOptions{})
			if !errors.Is(err, backend.ErrNotFound) || !backend.Date(err).Equal(dateOf(i)) {
				t.Errorf("get of nothing: %v, date %v, want %v", err, backend.Date(err), dateOf(i))
			}
			info, err := s.Create(t.Context(), key, backend.Bytes(noise(i)))
			if err != nil || !info.Date.Equal(dateOf(i)) || !info.Now.Equal(dateOf(i)) {
				t.Errorf("create: %v, %+v, want the date %v", err, info, dateOf(i))
			}
			_, err = s.Create(t.Context(), key, backend.Bytes(noise(i)))
			if !errors.Is(err, backend.ErrExists) || !backend.Date(err).Equal(dateOf(i)) {
				t.Errorf("create again: %v, date %v, want %v", err, backend.Date(err), dateOf(i))
			}
			obj, err := s.Get(t.Context(), key, backend.GetOptions{})
			if err != nil || !obj.Date.Equal(dateOf(i)) {
				t.Errorf("get: %v, want the date %v", err, dateOf(i))
				return
			}
			obj.Body.Close()
			if obj.Modified != info.Modified || obj.Version != info.Version {
				t.Errorf("get says %v %v, create said %v %v", obj.Modified, obj.Version, info.Modified, info.Version)
			}
		})
	}
	wg.Wait()
}

func TestNoDateWithoutAnAnswer(t *testing.T) {
	s := newStore(t)
	s.proxy.Inject(testserver.Fault{Match: uploads, Skip: 1, LoseAnswer: true})
	s.proxy.Inject(testserver.Fault{Match: uploads, Times: 1, Status: 429})
	_, err := s.Create(t.Context(), "data/x", backend.Bytes(nil))
	isErr(t, "create", err, backend.ErrUnknown)
	if d := backend.Date(err); !d.IsZero() {
		t.Errorf("the date %v of an earlier answer came with a lost one", d)
	}
	if n := requests(s.proxy, every); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}

	s = newStore(t, smallParts)
	s.proxy.Inject(testserver.Fault{Match: lastParts, LoseAnswer: true})
	_, err = s.Create(t.Context(), "data/x", backend.Bytes(noise(2*chunkUnit)))
	isErr(t, "large create", err, backend.ErrUnknown)
	if d := backend.Date(err); !d.IsZero() {
		t.Errorf("the date %v of an earlier part came with a lost answer", d)
	}
}

// The first answer of the store says which is missing. Where it does not, and no
// answer has shown the bucket yet, the store is asked.
func TestMissingBucketAndMissingObject(t *testing.T) {
	vague := testserver.Fault{EditAnswer: func(r *http.Response) {
		if r.StatusCode == http.StatusNotFound {
			r.Body = io.NopCloser(strings.NewReader("Not Found"))
			r.Header.Set("Content-Length", "9")
		}
	}}
	for _, clear := range []bool{true, false} {
		t.Run(fmt.Sprintf("clear=%v", clear), func(t *testing.T) {
			s := newStore(t)
			if !clear {
				s.proxy.Inject(vague)
			}
			_, err := s.Get(t.Context(), "data/x", backend.GetOptions{})
			isErr(t, "get of nothing", err, backend.ErrNotFound)
			if backend.Date(err).IsZero() {
				t.Error("no date")
			}
			want := 1
			if !clear {
				want = 2
			}
			if n := requests(s.proxy, every); n != want {
				t.Errorf("%d requests, want %d", n, want)
			}
			s.proxy.Forget()
			if err := s.Delete(t.Context(), []string{"data/x"}); err != nil {
				t.Errorf("delete of nothing: %v", err)
			}
			if n := requests(s.proxy, every); n != 1 {
				t.Errorf("%d requests for a deletion, want 1", n)
			}

			none := s.srv.ProxyURL(t, s.proxy, s.srv.URL("no-such-bucket", "p"))
			for op, call := range map[string]func(*Driver) error{
				"get": func(d *Driver) error {
					_, err := d.Get(t.Context(), "data/x", backend.GetOptions{})
					return err
				},
				"pinned get": func(d *Driver) error {
					_, err := d.Get(t.Context(), "data/x", backend.GetOptions{IfVersion: "7"})
					return err
				},
				"create": func(d *Driver) error {
					_, err := d.Create(t.Context(), "data/x", backend.Bytes(nil))
					return err
				},
				"large create": func(d *Driver) error {
					_, err := d.Create(t.Context(), "data/x", backend.Bytes(noise(chunkUnit+1)))
					return err
				},
				"replace": func(d *Driver) error {
					_, err := d.Replace(t.Context(), "_control/x", backend.Bytes(nil), "7")
					return err
				},
				"delete": func(d *Driver) error { return d.Delete(t.Context(), []string{"data/x"}) },
				"list": func(d *Driver) error {
					for _, err := range d.List(t.Context(), "", "") {
						return err
					}
					return nil
				},
			} {
				isErr(t, op, call(openDriver(t, none, smallParts)), backend.ErrNoBucket)
			}
		})
	}
}

func TestListLeavesOutWhatIsNoKey(t *testing.T) {
	s := newStore(t)
	s.mustCreate(t, "data/x", nil)
	for _, name := range []string{"", "Upper", "data/", "a b", "x/../y"} {
		w := s.direct.bucket.Object(s.direct.prefix + name).NewWriter(t.Context())
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for e, err := range s.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	if fmt.Sprint(keys) != "[data/x]" {
		t.Errorf("listed %q, want data/x alone", keys)
	}
}

func TestDeleteNamesWhatRemains(t *testing.T) {
	s := newStore(t)
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprintf("data/%02d", i))
		s.mustCreate(t, keys[i], nil)
	}
	s.proxy.Inject(testserver.Fault{Match: func(r *http.Request) bool {
		return r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "data/1")
	}, Status: 400})
	err := s.Delete(t.Context(), keys)
	if err == nil {
		t.Fatal("no error")
	}
	var rest *backend.RemainError
	if !errors.As(err, &rest) || fmt.Sprint(rest.Keys) != fmt.Sprint(keys[10:20]) {
		t.Errorf("%v: remaining %v, want %v", err, rest, keys[10:20])
	}
	for i, k := range keys {
		var want []byte
		if i >= 10 && i < 20 {
			want = []byte{}
		}
		s.holds(t, k, want)
		if strings.Contains(err.Error(), k) != (want != nil) {
			t.Errorf("the error %v: names %s wrongly", err, k)
		}
	}

	for i := range 500 {
		keys = append(keys, fmt.Sprintf("data/more-%d", i))
	}
	s.proxy.Inject(testserver.Fault{Match: testserver.Method(http.MethodDelete), Status: 403})
	s.proxy.Forget()
	err = s.Delete(t.Context(), keys)
	isErr(t, "delete", err, backend.ErrDenied)
	if errors.Is(err, context.Canceled) {
		t.Errorf("error %v blames a cancellation", err)
	}
	if n := requests(s.proxy, every); n > len(keys)/2 {
		t.Errorf("%d requests after the first denial, want few", n)
	}
	const maxNamed = 20 // of a backend.RemainError
	if text := err.Error(); strings.Count(text, "data/") > maxNamed+1 || !strings.Contains(text, fmt.Sprintf("and %d more", len(keys)-maxNamed)) {
		t.Errorf("the error does not stop at %d names: %v", maxNamed, text)
	}
	if !errors.As(err, &rest) || len(rest.Keys) != len(keys) {
		t.Errorf("remaining %v, want all", rest)
	}
}
