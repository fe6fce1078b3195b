package s3

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// newTransport takes the transport out of the SDK's client, with the
// certificates and proxies that the configuration gave it.
func newTransport(client aws.HTTPClient) *http.Transport {
	buildable, ok := client.(*awshttp.BuildableClient)
	if !ok {
		buildable = awshttp.NewBuildableClient()
	}
	tr := buildable.GetTransport()
	tr.MaxIdleConns = 0
	tr.MaxIdleConnsPerHost = 128
	tr.ResponseHeaderTimeout = 0
	if tr.TLSClientConfig == nil {
		tr.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return tr
}

// roundTrip sends one request and follows no redirect: the signature is for one
// host, and where to go instead is for the user to say.
type roundTrip struct{ tr http.RoundTripper }

func (r roundTrip) Do(req *http.Request) (*http.Response, error) { return r.tr.RoundTrip(req) }

// exchange is what went over the wire for one request.
type exchange struct {
	// called: the request was complete and given to the HTTP client.
	called atomic.Bool
	// traced: the HTTP client reports on its connections. connected: it had one
	// for the request, so that something may have been sent.
	traced, connected atomic.Bool

	// partial: the body was not given to the HTTP client to its last byte, and
	// will not be, so that the store cannot carry the request out.
	partial bool

	head bool // the request is a HEAD

	// From the head of the answer; status is 0 if there was none.
	status int
	header http.Header
	date   time.Time
	region string

	// reopen gives the body again, for a connection that turned out to be dead
	// before a byte of the request was written to it.
	reopen func() (io.ReadCloser, error)
}

// unsent says that surely nothing of the request has left this machine.
func (ex *exchange) unsent() bool {
	return !ex.called.Load() || ex.traced.Load() && !ex.connected.Load()
}

// cut says that something was sent, but not all of the body, and that no answer
// came.
func (ex *exchange) cut() bool { return ex.status == 0 && ex.partial && !ex.unsent() }

type exchangeKey struct{}

func withExchange(ctx context.Context, ex *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, ex)
}

// recorder notes in the context's exchange what the HTTP client does.
type recorder struct{ inner HTTPClient }

func (c recorder) Do(req *http.Request) (*http.Response, error) {
	ex, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if ex == nil {
		return c.inner.Do(req)
	}
	ex.called.Store(true)
	ex.head = req.Method == http.MethodHead
	// Both hooks run before the transport writes anything of the request.
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { ex.traced.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { ex.connected.Store(true) },
	})
	req = req.WithContext(ctx)
	if ex.reopen != nil && req.Body != nil {
		req.GetBody = ex.reopen
	}
	resp, err := c.inner.Do(req)
	if err != nil {
		return resp, err
	}
	ex.status, ex.header = resp.StatusCode, resp.Header
	ex.region = resp.Header.Get("X-Amz-Bucket-Region")
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		ex.date = date
	}
	return resp, nil
}

// credentialsSource marks the errors of looking for credentials.
type credentialsSource struct{ inner aws.CredentialsProvider }

func (c credentialsSource) Retrieve(ctx context.Context) (aws.Credentials, error) {
	creds, err := c.inner.Retrieve(ctx)
	if err != nil {
		err = &credentialsError{err}
	}
	return creds, err
}

type credentialsError struct{ err error }

func (e *credentialsError) Error() string { return e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }
