// Package s3 keeps a datastore in a bucket of Amazon S3 or of a store that
// speaks its protocol. Importing it makes s3:// URLs known to package backend:
//
//	s3://bucket/prefix?region=eu-central-1
//	s3://bucket/prefix?endpoint=https://s3.example.org&region=us-east-1&path_style=true
//
// Credentials, region, profile and proxies come from where the AWS tools take
// them. What the store must do is conditional writes: If-None-Match and If-Match
// on PutObject and CompleteMultipartUpload.
//
// # Guarantees
//
// A small body is one conditional PutObject, a large one is a multipart upload
// whose completion carries the condition. The store gets a checksum with each
// and refuses what arrives damaged: sha256 for a PutObject; for a multipart
// upload the CRC-32 of each part and of the whole, while the driver compares the
// sha256 over the bytes that it sends. A body is hashed once, and not again to
// sign the request.
//
// The SDK's own retries are off. Reads, listings, deletes and the parts of an
// upload are repeated after passing faults. A write that decides something is
// repeated only if the store says that it was not carried out: 409 (two requests
// met), 429 and 503 SlowDown. Everything else that is no answer is
// backend.ErrUnknown. Repeats wait with jitter, longer each time, up to the
// deadline of the context or, if it has none, for Options.MaxWait.
//
// # Failure
//
// Versions are ETags. They are derived from the content on most stores, so equal
// bytes may have equal versions. After a failed multipart upload the parts are
// removed, except when it is unknown whether it was completed; CleanUploads
// removes what is left. Objects below the prefix whose keys no datastore makes
// are not listed.
package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"golang.org/x/sync/semaphore"

	"github.com/swampd/swampd/backend"
)

func init() {
	backend.Register("s3", func(ctx context.Context, u *url.URL) (backend.Driver, error) {
		opts, err := ParseURL(u)
		if err != nil {
			return nil, err
		}
		d, err := New(ctx, opts)
		if err != nil {
			return nil, err
		}
		return d, nil
	})
}

// Options says where a datastore lies in S3 and how to talk to it. Only Bucket
// is required; zero means the default.
type Options struct {
	Bucket string
	// Prefix is put before all keys, with a slash between. Several datastores
	// share a bucket under prefixes none of which is a parent of another.
	Prefix string

	// Endpoint is the address of a store that is not Amazon's, like
	// "https://s3.example.org". Default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
	// the profile, Amazon.
	Endpoint string
	// Region of the bucket. Default: AWS_REGION, the profile; with an endpoint
	// that is not Amazon's "us-east-1", which such stores take mostly.
	Region string
	// Profile of the AWS configuration files. Default: AWS_PROFILE.
	Profile string
	// PathStyle says whether the bucket is named in the path of requests or in
	// the host name. Default: in the path if there is an endpoint.
	PathStyle PathStyle
	// Credentials replace the standard chain.
	Credentials aws.CredentialsProvider
	// HTTPClient replaces the driver's own, which has no time-outs except for
	// dialling and takes AWS_CA_BUNDLE and the proxy variables into account. It
	// must not repeat requests by itself.
	HTTPClient HTTPClient

	// MaxWait is how long in all a call waits to be repeated if its context has no
	// deadline. Default: 60 s.
	MaxWait time.Duration
	// MultipartOver is the size in bytes above which a body is sent in parts.
	// Default: 64 MiB.
	MultipartOver int64
	// PartSize is the size of a part in bytes, at least 5 MiB. Parts are larger
	// where there would be more than 10,000. Default: 16 MiB.
	PartSize int64
	// Parallel is how many parts are sent at once, by all calls of a Driver
	// together. Each holds a part in memory. Default: 4.
	Parallel int
}

// HTTPClient sends requests, like *http.Client.
type HTTPClient interface {
	Do(*http.Request) (*http.Response, error)
}

// PathStyle says how requests name the bucket.
type PathStyle int

// The styles: https://endpoint/bucket/key or https://bucket.endpoint/key.
const (
	PathStyleAuto PathStyle = iota
	PathStyleOn
	PathStyleOff
)

const (
	defaultMaxWait       = time.Minute
	defaultMultipartOver = 64 << 20
	defaultPartSize      = 16 << 20
	minPartSize          = 5 << 20
	maxParts             = 10_000
	maxPartSize          = 5 << 30
	maxObject            = maxParts * maxPartSize // stores may allow less
	defaultParallel      = 4
	// maxStoreKey is the longest key that S3 takes.
	maxStoreKey = 1024
	// defaultRegion is what stores take that have no regions.
	defaultRegion = "us-east-1"
)

// Driver is a backend.Driver on one prefix of one bucket.
type Driver struct {
	// Immutable.
	bucket    string
	prefix    string // empty, or ends with a slash
	opts      Options
	client    *s3.Client
	transport *http.Transport // nil if the caller brought an HTTPClient

	// parts bounds the bytes of all parts in memory, buffers keeps those of
	// PartSize for the next upload.
	parts   *semaphore.Weighted
	buffers sync.Pool

	// mu orders the end: once closed is set, no more background work begins.
	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup
}

var _ backend.Driver = (*Driver)(nil)

// New opens a bucket. It reads local configuration, and sends no request: a
// bucket that is missing or closed to the caller shows at the first call.
func New(ctx context.Context, opts Options) (*Driver, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	d := &Driver{bucket: opts.Bucket, opts: opts}
	if opts.Prefix != "" {
		d.prefix = opts.Prefix + "/"
	}
	d.parts = semaphore.NewWeighted(int64(opts.Parallel) * opts.PartSize)
	d.buffers.New = func() any {
		b := make([]byte, opts.PartSize)
		return &b
	}
	if err := d.connect(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// fill checks the options and sets the defaults.
func (o *Options) fill() error {
	if o.Bucket == "" || strings.Contains(o.Bucket, "/") {
		return fmt.Errorf("%q is not the name of a bucket", o.Bucket)
	}
	if strings.HasSuffix(o.Bucket, "--x-s3") {
		return fmt.Errorf("%w: %s is a directory bucket, which lists its keys out of order; use a general purpose bucket",
			backend.ErrUnsupported, o.Bucket)
	}
	o.Prefix = strings.Trim(o.Prefix, "/")
	if err := checkPrefix(o.Prefix); err != nil {
		return err
	}
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
			return fmt.Errorf("the endpoint %q is not an address like https://s3.example.org", backend.RedactEndpoint(o.Endpoint))
		}
	}
	if o.MaxWait < 0 || o.MultipartOver < 0 || o.Parallel < 0 {
		return errors.New("MaxWait, MultipartOver and Parallel cannot be negative")
	}
	if o.PartSize != 0 && o.PartSize < minPartSize {
		return fmt.Errorf("PartSize is %d bytes, S3 takes %d at least", o.PartSize, minPartSize)
	}
	o.MaxWait = cmp.Or(o.MaxWait, defaultMaxWait)
	o.MultipartOver = cmp.Or(o.MultipartOver, defaultMultipartOver)
	o.PartSize = cmp.Or(o.PartSize, defaultPartSize)
	o.Parallel = cmp.Or(o.Parallel, defaultParallel)
	return nil
}

// connect makes the client from the options and the standard configuration.
func (d *Driver) connect(ctx context.Context) error {
	// The SDK adds the certificates of AWS_CA_BUNDLE to its own kind of client
	// only; with any other it fails.
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(awshttp.NewBuildableClient()),
		config.WithLogger(logging.Nop{}),
	}
	if d.opts.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(d.opts.Profile))
	}
	if d.opts.Region != "" {
		load = append(load, config.WithRegion(d.opts.Region))
	}
	if d.opts.Credentials != nil {
		load = append(load, config.WithCredentialsProvider(d.opts.Credentials))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return fmt.Errorf("reading the AWS configuration (environment, ~/.aws/config, ~/.aws/credentials): %w", err)
	}
	inner := d.opts.HTTPClient
	if inner == nil {
		d.transport = newTransport(cfg.HTTPClient)
		inner = roundTrip{d.transport}
	}
	cfg.Credentials = credentialsSource{cfg.Credentials}
	d.client = s3.NewFromConfig(cfg, func(o *s3.Options) { d.configure(o, inner) })
	if d.client.Options().Region == "" {
		return fmt.Errorf("the region of the bucket %s is not known: add ?region=… to the store's URL, set AWS_REGION, or set region in the AWS profile", d.bucket)
	}
	return nil
}

func (d *Driver) configure(o *s3.Options, inner HTTPClient) {
	if d.opts.Endpoint != "" {
		o.BaseEndpoint = &d.opts.Endpoint
	}
	if o.BaseEndpoint != nil && o.Region == "" {
		o.Region = defaultRegion
	}
	switch d.opts.PathStyle {
	case PathStyleOn:
		o.UsePathStyle = true
	case PathStyleOff:
		o.UsePathStyle = false
	default:
		o.UsePathStyle = o.BaseEndpoint != nil
	}
	o.HTTPClient = recorder{inner}
	o.Retryer = aws.NopRetryer{}
	o.RetryMaxAttempts = 0
	o.Logger = logging.Nop{}
	// The driver sends checksums of its own and its callers verify what they
	// read: the SDK need not hash anything besides.
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	o.DisableLogOutputChecksumValidationSkipped = true
}

// region is what requests are signed for.
func (d *Driver) region() string { return d.client.Options().Region }

// name is the key in the bucket.
func (d *Driver) name(key string) *string { return aws.String(d.prefix + key) }

// begin says whether a call may start.
func (d *Driver) begin(ctx context.Context) error {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return backend.ErrClosed
	}
	return contextError(ctx)
}

// contextError returns the context's error, with its cause if that says more.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// detach runs f in the background, bounded by itself; Close waits for it.
func (d *Driver) detach(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.background.Go(f)
	}
}

// Close waits for what is being cleaned up, some seconds at most, and ends the
// driver's idle connections.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.background.Wait()
	if d.transport != nil {
		d.transport.CloseIdleConnections()
	}
	return nil
}
