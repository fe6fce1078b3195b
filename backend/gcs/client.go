package gcs

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
	"cloud.google.com/go/storage"
	"google.golang.org/api/option"

	"github.com/swampd/swampd/backend"
)

const (
	emulatorVar = "STORAGE_EMULATOR_HOST"
	apiPath     = "/storage/v1/"
)

// endpoint is where requests go; nil means Google.
type endpoint struct {
	url *url.URL
	// emulator says that this is not the service itself: it gets no credentials
	// and is trusted to have no limit on writes to one name.
	emulator bool
}

// findEndpoint takes the address that was given, else the emulator's.
func findEndpoint(given string) (*endpoint, error) {
	from := "the endpoint"
	addr := given
	if addr == "" {
		if addr = os.Getenv(emulatorVar); addr == "" {
			return nil, nil
		}
		from = emulatorVar
		if !strings.Contains(addr, "://") {
			addr = "http://" + addr
		}
	}
	u, err := url.Parse(addr)
	if err != nil {
		// The error itself would quote the address, password and all.
		return nil, fmt.Errorf("%s %q is no URL; write http://host:port or https://host", from, backend.RedactEndpoint(addr))
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%s is %q; write http://host:port or https://host", from, backend.RedactEndpoint(addr))
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s %q holds more than a scheme, a host and a port", from, backend.RedactEndpoint(addr))
	}
	// Reads use the XML interface at the root of the host, so that no other path
	// can work.
	if p := strings.Trim(u.Path, "/"); p != "" && p != strings.Trim(apiPath, "/") {
		return nil, fmt.Errorf("%s %q has a path; it must name the root of a host", from, backend.RedactEndpoint(addr))
	}
	return &endpoint{
		url:      &url.URL{Scheme: u.Scheme, Host: u.Host, Path: apiPath},
		emulator: u.Scheme == "http" || given == "",
	}, nil
}

// detectCredentials is Google's search for credentials; tests put another here.
var detectCredentials = func() (*auth.Credentials, error) {
	return credentials.DetectDefault(&credentials.DetectOptions{
		Scopes: []string{storage.ScopeFullControl, "https://www.googleapis.com/auth/cloud-platform"},
	})
}

// newClient makes the storage client. The recorder is the innermost part but the
// transport itself, so that it sees each request as it is sent, and no request
// for a token.
func newClient(ctx context.Context, ep *endpoint, base http.RoundTripper) (*storage.Client, error) {
	rec := &recorder{base: base}
	if base == nil {
		rec = &recorder{base: newTransport(), own: true}
	}
	hc := &http.Client{Transport: rec, CheckRedirect: noRedirect}
	opts := []option.ClientOption{
		option.WithHTTPClient(hc),
		// Only an answer of the XML interface tells when an object was made.
		storage.WithXMLReads(),
		storage.WithDisabledClientMetrics(),
	}
	if ep != nil {
		opts = append(opts, option.WithEndpoint(ep.url.String()))
	}
	if ep != nil && ep.emulator {
		opts = append(opts, option.WithoutAuthentication())
	} else {
		creds, err := detectCredentials()
		if err != nil {
			return nil, fmt.Errorf("%w: no Google credentials were found; set GOOGLE_APPLICATION_CREDENTIALS to a key file, "+
				"or run `gcloud auth application-default login`, or set %s for an emulator: %w", backend.ErrDenied, emulatorVar, err)
		}
		ac, err := httptransport.NewClient(&httptransport.Options{
			Credentials:      creds,
			BaseRoundTripper: hc.Transport,
			DisableTelemetry: true,
		})
		if err != nil {
			return nil, fmt.Errorf("%w: Google credentials cannot be used: %w", backend.ErrDenied, err)
		}
		hc.Transport = ac.Transport
		opts = append(opts, option.WithAuthCredentials(creds))
	}
	c, err := storage.NewClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("setting up the Google Cloud Storage client: %w", err)
	}
	return c, nil
}

// noRedirect stops at redirects: the service sends none, and following one would
// carry credentials to an address that nobody chose.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// newTransport is a transport for many workers on one host.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          1024,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		// A dead HTTP/2 connection is noticed after a minute instead of never.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 31 * time.Second, PingTimeout: 15 * time.Second},
	}
}
