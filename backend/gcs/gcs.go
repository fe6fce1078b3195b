// Package gcs keeps a store in a Google Cloud Storage bucket:
// gs://bucket/prefix. Programs that import it can open such URLs.
//
// Versions are generations, and the conditions of Create and Replace are
// generation preconditions, which the service decides atomically. Every upload
// carries its crc32c, which the service checks before it makes the object; the
// sha256 of a body is checked over the very bytes that are sent, and the last of
// them is held back until it is right. So an object either holds what its Body
// promised or does not come into being.
//
// Credentials are Google's application default credentials. Where
// STORAGE_EMULATOR_HOST is set, or the endpoint is a plain http address, requests
// go there without any: a token is never sent in clear text. The account needs
// what roles/storage.objectUser grants, including storage.objects.list: without
// it the service answers 403 for a name that holds nothing.
//
// # Failures
//
// Every request of Create and Replace that decides something is sent once. No
// answer, 408 and 5xx become backend.ErrUnknown. What says that it was not
// carried out (429, 409, a 503 that asks for a lower rate) is sent again with
// jittered back-off inside the caller's deadline, or for Options.BusyTimeout
// without one. The parts of a large upload that come before the deciding last one
// are repeated as well. Reads, listings and deletes are also repeated, a few
// times, after lost connections and 5xx; a body that breaks off is resumed at the
// same generation up to three times before it ends with io.ErrUnexpectedEOF.
//
// Google takes about one write a second to one name. Replace keeps to that by
// itself, within one Driver.
//
// Modified has the resolution of a second, since that is what a read tells.
package gcs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/storage"

	"github.com/swampd/swampd/backend"
)

func init() { backend.Register("gs", openURL) }

// Options says which bucket to use and how. Only Bucket is required.
type Options struct {
	// Bucket is the name of the bucket, which must exist.
	Bucket string
	// Prefix is put before every key, with a slash between; slashes around it are
	// ignored. Empty means the whole bucket.
	Prefix string
	// Endpoint is the address of the service, "http://host:port" or
	// "https://host". Empty means STORAGE_EMULATOR_HOST if that is set, else
	// Google. Plain http, or the variable, means: without credentials.
	Endpoint string
	// ReplaceInterval is the shortest time between two writes to one name by
	// Replace. 0 means a second, or none where requests go without credentials:
	// emulators have no such limit. Negative means none.
	ReplaceInterval time.Duration
	// BusyTimeout bounds how long a call is repeated that the store answers with
	// "too many requests", if the caller's context has no deadline. 0 means 60 s.
	BusyTimeout time.Duration
	// ChunkSize is the size of the parts of a resumable upload, a multiple of
	// 256 KiB, and the largest body that is sent in a single request. Each
	// resumable upload holds one part in memory. 0 means 16 MiB.
	ChunkSize int
	// Transport sends the requests, after credentials were added; nil means a
	// transport of the Driver's own.
	Transport http.RoundTripper
}

const (
	defaultReplaceInterval = time.Second
	defaultBusyTimeout     = time.Minute
	defaultChunkSize       = 16 << 20
	chunkUnit              = 256 << 10
	maxName                = 1024 // bytes of an object name
)

// Driver is a backend.Driver over one bucket. It is safe for concurrent use.
type Driver struct {
	// Set by New, constant afterwards.
	client *storage.Client
	bucket *storage.BucketHandle
	name   string // of the bucket
	prefix string // empty, or ends with a slash
	busy   time.Duration
	chunk  int
	pace   *pacer

	closed atomic.Bool
	// seen is set once an answer showed that the bucket exists: then a bare 404
	// is about an object.
	seen atomic.Bool
}

var _ backend.Driver = (*Driver)(nil)

// New makes a Driver. It reads local credentials and sends no request to the
// store; whether the bucket exists shows at the first call.
func New(ctx context.Context, opts Options) (*Driver, error) {
	if err := checkBucket(opts.Bucket); err != nil {
		return nil, err
	}
	prefix := strings.Trim(opts.Prefix, "/")
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	if prefix != "" {
		prefix += "/"
	}
	if opts.ChunkSize == 0 {
		opts.ChunkSize = defaultChunkSize
	}
	if opts.ChunkSize < 0 || opts.ChunkSize%chunkUnit != 0 {
		return nil, fmt.Errorf("the chunk size %d is no multiple of %d bytes", opts.ChunkSize, chunkUnit)
	}
	ep, err := findEndpoint(opts.Endpoint)
	if err != nil {
		return nil, err
	}
	if opts.BusyTimeout <= 0 {
		opts.BusyTimeout = defaultBusyTimeout
	}
	if opts.ReplaceInterval == 0 && (ep == nil || !ep.emulator) {
		opts.ReplaceInterval = defaultReplaceInterval
	}
	client, err := newClient(ctx, ep, opts.Transport)
	if err != nil {
		return nil, err
	}
	return &Driver{
		client: client,
		bucket: client.Bucket(opts.Bucket).Retryer(storage.WithPolicy(storage.RetryNever)),
		name:   opts.Bucket,
		prefix: prefix,
		busy:   opts.BusyTimeout,
		chunk:  opts.ChunkSize,
		pace:   newPacer(opts.ReplaceInterval),
	}, nil
}

func openURL(ctx context.Context, u *url.URL) (backend.Driver, error) {
	opts, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	d, err := New(ctx, opts)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// queryKeys are the query parameters of a gs:// URL.
var queryKeys = []string{"endpoint"}

func parseURL(u *url.URL) (Options, error) {
	if u.User != nil {
		return Options{}, errors.New("a gs:// URL takes no user name; credentials come from Google's application default credentials")
	}
	if u.Port() != "" {
		return Options{}, fmt.Errorf("a gs:// URL takes no port; to use another server, write gs://%s/prefix?endpoint=http://host:port", u.Hostname())
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Options{}, fmt.Errorf("the query of the URL is malformed: %w", err)
	}
	for k, v := range q {
		if k != "endpoint" {
			return Options{}, fmt.Errorf("the URL has the unknown query key %q; known: %s", k, strings.Join(queryKeys, ", "))
		}
		if len(v) > 1 {
			return Options{}, fmt.Errorf("the URL has the query key %q %d times", k, len(v))
		}
	}
	return Options{Bucket: u.Host, Prefix: u.Path, Endpoint: q.Get("endpoint")}, nil
}

func checkBucket(name string) error {
	if len(name) < 3 || len(name) > 222 {
		return fmt.Errorf("the bucket name %q has %d bytes; names have 3 to 222", name, len(name))
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return fmt.Errorf("the bucket name %q holds the byte %q; names consist of a-z 0-9 - _ and dots", name, c)
		}
	}
	return nil
}

func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if len(prefix)+1+backend.MaxKey > maxName {
		return fmt.Errorf("the prefix %q has %d bytes, %d are possible", prefix, len(prefix), maxName-backend.MaxKey-1)
	}
	if strings.ToValidUTF8(prefix, "") != prefix || strings.ContainsAny(prefix, "\r\n\x00") {
		return fmt.Errorf("the prefix %q is no valid text", prefix)
	}
	for seg := range strings.SplitSeq(prefix, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return fmt.Errorf("the prefix %q has the segment %q", prefix, seg)
		}
	}
	return nil
}

// Close ends the connections. Calls after it fail with backend.ErrClosed; those
// that are under way go on.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	return d.client.Close()
}

// CleanUploads has nothing to do and returns 0: a resumable upload that was not
// completed holds no object, cannot be listed, and is forgotten by the service
// after a week.
func (d *Driver) CleanUploads(ctx context.Context, age time.Duration) (int, error) {
	if d.closed.Load() {
		return 0, backend.ErrClosed
	}
	return 0, ctx.Err()
}

// object is the handle of a key.
func (d *Driver) object(key string) *storage.ObjectHandle {
	return d.bucket.Object(d.prefix + key)
}
