package testserver

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// gcsShim stands before fake-gcs-server and makes good what that does otherwise
// than Google:
//
//   - ifGenerationMatch holds for reads and deletions too;
//   - a 404 says whether the bucket or the object is missing;
//   - a part of a resumable upload that comes a second time changes nothing, and
//     the checksum that comes with the last part is checked;
//   - Last-Modified is in GMT, whatever the local time zone;
//   - on request, a name takes one write a second;
//   - the server answers to any host name, so that proxies can stand before it.
type gcsShim struct {
	host    string
	fake    *fakestorage.Server
	handler http.Handler
	working sync.WaitGroup
	limited atomic.Bool

	mu       sync.Mutex
	written  map[string]time.Time   // when a name was written, while limited
	uploads  map[string]*gcsUpload  // by upload_id
	versions map[string]*sync.Mutex // buckets with versions
}

func newGCSShim(host string, fake *fakestorage.Server) *gcsShim {
	return &gcsShim{
		host:     host,
		fake:     fake,
		handler:  fake.HTTPHandler(),
		written:  map[string]time.Time{},
		uploads:  map[string]*gcsUpload{},
		versions: map[string]*sync.Mutex{},
	}
}

// serialize makes a bucket handle one request at a time: with versions, two
// reads of fake-gcs-server write to the same memory.
func (s *gcsShim) serialize(bucket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[bucket] = new(sync.Mutex)
}

// gcsTarget is what a request is about.
type gcsTarget struct {
	bucket, object string
	xml            bool // of the XML interface
	upload         bool // makes an object
	session        string
}

func gcsTargetOf(r *http.Request) gcsTarget {
	path := r.URL.EscapedPath()
	var t gcsTarget
	if rest, ok := strings.CutPrefix(path, "/upload/storage/v1/b/"); ok {
		t.upload = true
		t.bucket, _, _ = strings.Cut(rest, "/")
		t.object = r.URL.Query().Get("name")
		t.session = r.URL.Query().Get("upload_id")
	} else if rest, ok := strings.CutPrefix(path, "/storage/v1/b/"); ok {
		t.bucket, rest, _ = strings.Cut(rest, "/")
		t.object, _ = strings.CutPrefix(rest, "o/")
		if t.object == rest {
			t.object = ""
		}
	} else {
		t.xml = true
		t.bucket, t.object, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	}
	for _, p := range []*string{&t.bucket, &t.object} {
		if u, err := url.PathUnescape(*p); err == nil && !t.upload {
			*p = u
		}
	}
	return t
}

func (s *gcsShim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.working.Add(1)
	defer s.working.Done()
	t := gcsTargetOf(r)
	a := &gcsAnswer{ResponseWriter: w, target: t, from: "http://" + s.host, to: "http://" + r.Host}
	r.Host = s.host
	if _, err := s.fake.Backend().GetBucket(t.bucket); err != nil {
		io.Copy(io.Discard, r.Body)
		gcsRefuse(w, t.xml, http.StatusNotFound, "notFound", "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	s.mu.Lock()
	serial := s.versions[t.bucket]
	s.mu.Unlock()
	if serial != nil {
		serial.Lock()
		defer serial.Unlock()
	}
	if t.session != "" {
		s.servePart(a, r, t)
		return
	}
	starts := r.URL.Query().Get("uploadType") == "resumable"
	if t.upload && !starts {
		s.serveWrite(a, r, t)
		return
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodDelete {
		if a.pinned = gcsPin(r); a.pinned && serial != nil && !s.live(t, r) {
			a.WriteHeader(http.StatusNotFound)
			return
		}
	}
	s.handler.ServeHTTP(a, r)
	if u, err := url.Parse(a.Header().Get("Location")); starts && err == nil {
		s.mu.Lock()
		s.uploads[u.Query().Get("upload_id")] = &gcsUpload{}
		s.mu.Unlock()
	}
}

// gcsPin turns the condition on the generation of a read or a deletion into the
// generation to read or delete, which is atomic there.
func gcsPin(r *http.Request) bool {
	q := r.URL.Query()
	gen := q.Get("ifGenerationMatch")
	if gen == "" {
		gen = r.Header.Get("X-Goog-If-Generation-Match")
	}
	if gen == "" || gen == "0" || q.Get("generation") != "" {
		return false
	}
	q.Set("generation", gen)
	r.URL.RawQuery = q.Encode()
	return true
}

// live says whether the generation that was pinned is the current one, not one
// that a bucket with versions keeps.
func (s *gcsShim) live(t gcsTarget, r *http.Request) bool {
	obj, err := s.fake.Backend().GetObject(t.bucket, t.object)
	if err != nil {
		return false
	}
	defer obj.Close()
	return strconv.FormatInt(obj.Generation, 10) == r.URL.Query().Get("generation")
}

// serveWrite hands an upload on, unless its name was written less than a second
// ago.
func (s *gcsShim) serveWrite(a *gcsAnswer, r *http.Request, t gcsTarget) {
	if s.limited.Load() {
		name := t.bucket + "/" + t.object
		s.mu.Lock()
		last, now := s.written[name], time.Now()
		if now.Sub(last) < time.Second {
			s.mu.Unlock()
			io.Copy(io.Discard, r.Body)
			gcsRefuse(a.ResponseWriter, false, http.StatusTooManyRequests, "rateLimitExceeded", "",
				fmt.Sprintf("The object %s exceeded the rate limit for object mutation operations (create, update, and delete). Please reduce your request rate.", name))
			return
		}
		s.written[name] = now
		s.mu.Unlock()
		defer func() {
			if a.status < 300 {
				return
			}
			s.mu.Lock()
			s.written[name] = last
			s.mu.Unlock()
		}()
	}
	s.handler.ServeHTTP(a, r)
}

// gcsUpload is a resumable upload.
type gcsUpload struct {
	mu   sync.Mutex
	n    int64 // bytes that are there
	crc  uint32
	done *gcsCapture // the answer to its last part
}

// servePart takes one part of a resumable upload. What is there already is left
// out of it, and a last part that comes again gets the answer that it got.
func (s *gcsShim) servePart(a *gcsAnswer, r *http.Request, t gcsTarget) {
	s.mu.Lock()
	u := s.uploads[t.session]
	s.mu.Unlock()
	if u == nil || r.Method == http.MethodDelete {
		s.handler.ServeHTTP(a, r)
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone, nothing of the part counts
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.done != nil {
		u.done.replay(a.ResponseWriter)
		return
	}
	begin, last := u.n, true
	if part, total, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Content-Range"), "bytes "), "/"); ok {
		last = total != "*"
		if part != "*" {
			if _, err := fmt.Sscanf(part, "%d-", &begin); err != nil || begin > u.n {
				gcsRefuse(a.ResponseWriter, false, http.StatusBadRequest, "invalid", "", fmt.Sprintf("part %q, but %d bytes are there", part, u.n))
				return
			}
		}
	}
	fresh := data[min(u.n-begin, int64(len(data))):]
	crc := crc32.Update(u.crc, crc32.MakeTable(crc32.Castagnoli), fresh)
	if want, ok := strings.CutPrefix(r.Header.Get("X-Goog-Hash"), "crc32c="); last && ok && want != gcsCRC(crc) {
		gcsRefuse(a.ResponseWriter, false, http.StatusBadRequest, "invalid", "",
			fmt.Sprintf("Provided CRC32C %q doesn't match calculated CRC32C %q.", want, gcsCRC(crc)))
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(fresh)), int64(len(fresh))
	c := &gcsCapture{ResponseWriter: a}
	if last {
		s.serveWrite(&gcsAnswer{ResponseWriter: c, target: t, from: a.from, to: a.to}, r, t)
	} else {
		s.handler.ServeHTTP(c, r)
	}
	if c.status == http.StatusOK {
		u.n, u.crc = u.n+int64(len(fresh)), crc
		if last {
			c.header = c.Header().Clone()
			u.done = c
		}
	}
}

func gcsCRC(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// gcsCapture keeps a copy of an answer.
type gcsCapture struct {
	http.ResponseWriter
	status int
	header http.Header
	body   bytes.Buffer
}

func (c *gcsCapture) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *gcsCapture) Write(p []byte) (int, error) {
	c.body.Write(p)
	return c.ResponseWriter.Write(p)
}

func (c *gcsCapture) replay(w http.ResponseWriter) {
	for k, v := range c.header {
		w.Header()[k] = v
	}
	w.WriteHeader(c.status)
	w.Write(c.body.Bytes())
}

// gcsAnswer corrects an answer of fake-gcs-server on its way out.
type gcsAnswer struct {
	http.ResponseWriter
	target   gcsTarget
	pinned   bool   // a 404 means that the condition does not hold
	from, to string // of Location

	status  int
	discard bool
}

func (a *gcsAnswer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	h := a.Header()
	if l := h.Get("Location"); l != "" {
		h.Set("Location", strings.Replace(l, a.from, a.to, 1))
	}
	if lm := h.Get("Last-Modified"); lm != "" {
		// It is the local time, with "GMT" behind it.
		if t, err := time.ParseInLocation(http.TimeFormat, lm, time.Local); err == nil {
			h.Set("Last-Modified", t.UTC().Format(http.TimeFormat))
		}
	}
	if status != http.StatusNotFound || a.target.object == "" || a.target.session != "" {
		a.ResponseWriter.WriteHeader(status)
		return
	}
	a.discard = true
	if a.pinned {
		gcsRefuse(a.ResponseWriter, a.target.xml, http.StatusPreconditionFailed, "conditionNotMet", "PreconditionFailed",
			"At least one of the pre-conditions you specified did not hold.")
		return
	}
	gcsRefuse(a.ResponseWriter, a.target.xml, status, "notFound", "NoSuchKey",
		fmt.Sprintf("No such object: %s/%s", a.target.bucket, a.target.object))
}

func (a *gcsAnswer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.discard {
		return len(p), nil
	}
	return a.ResponseWriter.Write(p)
}

// gcsRefuse answers with an error in the form of the JSON or the XML interface.
func gcsRefuse(w http.ResponseWriter, xml bool, status int, reason, code, message string) {
	h := w.Header()
	h.Del("Content-Length")
	if xml {
		h.Set("Content-Type", "application/xml; charset=UTF-8")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<?xml version='1.0' encoding='UTF-8'?><Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
		return
	}
	h.Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	type one struct {
		Message string `json:"message"`
		Domain  string `json:"domain"`
		Reason  string `json:"reason"`
	}
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": status, "message": message, "errors": []one{{message, "global", reason}},
	}})
}
