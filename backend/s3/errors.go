package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/swampd/swampd/backend"
)

// verdict says what a failed request means for the next attempt.
type verdict int

const (
	final     verdict = iota // an answer that another attempt will not change
	throttled                // not carried out: the store wants fewer requests
	contested                // not carried out: another request on the key was going on
	skewed                   // not carried out: the signature's time is off; the SDK knows the store's clock now
	unreached                // not carried out: not sent, or not to its end
	passing                  // no answer, or one that says nothing: perhaps carried out
)

// failure is one attempt that failed.
type failure struct {
	verdict
	// code and status of the answer, as far as there is one.
	code   string
	status int
	head   bool // of a HEAD, whose answers have no body
	// elsewhere: the bucket is served, but in another region or at another address.
	elsewhere bool
	// says is the failure for people, without the SDK's wrapping.
	says string
	// sentinel of package backend that the answer means whatever was asked, or
	// nil. What 404 and 412 mean depends on that; see the operations.
	sentinel error
	cause    error // what the SDK returned
}

func (f *failure) Error() string { return f.says }

func (f *failure) Unwrap() error { return f.cause }

// WrongRegion says that the bucket is to be looked for in another region or at
// another address. It is for programs that tell that apart; the text names the
// region, where the store did.
func (f *failure) WrongRegion() bool { return f.elsewhere }

// as gives a failure the meaning that it has for the caller.
func (f *failure) as(sentinel error) error {
	if sentinel == nil {
		return f
	}
	return fmt.Errorf("%w: %w", sentinel, f)
}

// bodyError is an error of the caller's Body: nothing was made.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// examine says what became of a request that the SDK reports as failed.
func (d *Driver) examine(ctx context.Context, ex *exchange, err error) *failure {
	f := &failure{status: ex.status, head: ex.head, cause: err, verdict: final}
	var (
		api   smithy.APIError
		creds *credentialsError
		body  *bodyError
		found *decidedError
	)
	switch {
	case errors.As(err, &found):
		f.says, f.sentinel = found.says, found.sentinel
	case errors.As(err, &body):
		f.says = "reading the content: " + body.Error()
	case ex.status == 0 && ctx.Err() != nil:
		f.cause = contextError(ctx)
		f.says = "waiting for the store's answer: " + f.cause.Error()
		switch {
		case ex.unsent():
			f.verdict, f.says = unreached, "nothing was sent: "+f.cause.Error()
		case ex.partial:
			f.verdict, f.says = unreached, "ended before all of the content was sent: "+f.cause.Error()
		default:
			f.verdict = passing
		}
	case errors.As(err, &creds):
		f.sentinel = backend.ErrDenied
		f.says = "no credentials for the store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or sign in with the AWS tools: " + creds.Error()
	case !ex.called.Load():
		f.says = "the request could not be made: " + plain(err)
	case ex.status == 0:
		f.noAnswer(d, ex, err)
	case errors.As(err, &api):
		f.code = api.ErrorCode()
		f.answer(d, ex, api.ErrorMessage())
	default:
		// The head of the answer came; its body is missing or no S3 error.
		f.code = ""
		f.answer(d, ex, plain(err))
	}
	return f
}

// noAnswer is a request whose answer did not come.
func (f *failure) noAnswer(d *Driver, ex *exchange, err error) {
	if ex.unsent() || neverSent(err) {
		f.verdict = unreached
		f.says = fmt.Sprintf("the store is not reachable, nothing was sent: %s; check the endpoint, the network and the proxy settings", plain(err))
		return
	}
	if ex.partial {
		f.verdict = unreached
		f.says = "the connection was lost before all of the content was sent: " + plain(err)
		return
	}
	f.verdict = passing
	f.says = "the connection was lost before an answer came: " + plain(err)
}

// neverSent knows the errors of making a connection, for HTTP clients that do
// not report on theirs.
func neverSent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var dns *net.DNSError
	return errors.As(err, &dns)
}

// permanent says that there is no point in trying again although nothing was
// sent.
func (f *failure) permanent() bool {
	var (
		dns    *net.DNSError
		cert   *tls.CertificateVerificationError
		record tls.RecordHeaderError
	)
	return errors.As(f.cause, &dns) && dns.IsNotFound || errors.As(f.cause, &cert) || errors.As(f.cause, &record)
}

// The codes of answers that say more than their status does.
var (
	throttleCodes = set("SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "Throttling",
		"ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "BandwidthLimitExceeded")
	deniedCodes = set("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
		"TokenRefreshRequired", "AccountProblem", "AllAccessDisabled", "NotSignedUp", "InvalidSecurity", "RequestTimeTooSkewed", "XAdminUserNotFound")
	fullCodes = set("QuotaExceeded", "InsufficientStorage", "StorageFull", "XMinioStorageFull",
		"XMinioAdminBucketQuotaExceeded", "ServiceQuotaExceeded")
	badContentCodes = set("BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "ContentSHA256Mismatch", "ChecksumMismatch")
	regionCodes     = set("PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed",
		"IllegalLocationConstraintException", "IncorrectEndpoint")
	passingCodes = set("InternalError", "RequestTimeout", "ServiceUnavailable", "OperationTimedOut")
)

func set(codes ...string) map[string]bool {
	m := make(map[string]bool, len(codes))
	for _, c := range codes {
		m[c] = true
	}
	return m
}

// answer reads status and code. The code counts more where there is one: the
// status of an answer to a long completion was sent before its end was known.
func (f *failure) answer(d *Driver, ex *exchange, message string) {
	code, status := f.code, f.status
	hint := ""
	switch {
	case throttleCodes[code] || status == http.StatusTooManyRequests:
		f.verdict = throttled
	case fullCodes[code] || status == http.StatusInsufficientStorage:
		f.sentinel, hint = backend.ErrFull, "free some space or raise the quota"
	case badContentCodes[code]:
		f.sentinel = backend.ErrBadContent
	case code == "NoSuchBucket":
		f.sentinel, hint = backend.ErrNoBucket, fmt.Sprintf("make the bucket %s or correct its name; swampd makes no buckets", d.bucket)
	case regionCodes[code] || status >= 300 && status < 400:
		hint = f.regionHint(d, ex, message)
	case code == "RequestTimeTooSkewed":
		f.verdict, f.sentinel, hint = skewed, backend.ErrDenied, deniedHint(d, code)
	case deniedCodes[code] || status == http.StatusUnauthorized || status == http.StatusForbidden && code != "InvalidObjectState":
		f.sentinel, hint = backend.ErrDenied, deniedHint(d, code)
		if ex.region != "" && ex.region != d.region() {
			hint = f.regionHint(d, ex, message)
		}
	case status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed || code == "NotImplemented":
		f.sentinel = backend.ErrUnsupported
	case status == http.StatusConflict || code == "ConditionalRequestConflict" || code == "OperationAborted":
		f.verdict = contested
	case status == http.StatusPreconditionFailed || status == http.StatusNotFound ||
		status == http.StatusRequestedRangeNotSatisfiable || code == "PreconditionFailed":
		// The operation knows what that means.
	case status >= 500 || status == http.StatusRequestTimeout || passingCodes[code] || status < 300:
		f.verdict = passing
	case ex.region != "" && ex.region != d.region():
		hint = f.regionHint(d, ex, message)
	}
	f.says = answerText(ex, code, status, message, hint)
}

func answerText(ex *exchange, code string, status int, message, hint string) string {
	var b strings.Builder
	b.WriteString("the store answered")
	if status != 0 {
		fmt.Fprintf(&b, " %d", status)
	}
	if code != "" {
		b.WriteString(" " + code)
	}
	if message = strings.TrimSpace(message); message != "" && message != code {
		if len(message) > 300 {
			message = message[:300] + "…"
		}
		fmt.Fprintf(&b, " (%s)", message)
	}
	if hint != "" {
		b.WriteString(": " + hint)
	}
	if id := ex.header.Get("X-Amz-Request-Id"); id != "" {
		fmt.Fprintf(&b, " [request %s]", id)
	}
	return b.String()
}

// expecting is how S3 names the right region where no header does.
var expecting = regexp.MustCompile(`expecting '([a-zA-Z0-9-]+)'`)

func (f *failure) regionHint(d *Driver, ex *exchange, message string) string {
	f.elsewhere = true
	region := ex.region
	if m := expecting.FindStringSubmatch(message); region == "" && m != nil {
		region = m[1]
	}
	if region == "" || region == d.region() {
		return fmt.Sprintf("the bucket %s is not served at this address for the region %q; set region= and endpoint= in the store's URL to its own", d.bucket, d.region())
	}
	return fmt.Sprintf("the bucket %s is in the region %q, not in %q; set region=%s in the store's URL, or AWS_REGION", d.bucket, region, d.region(), region)
}

func deniedHint(d *Driver, code string) string {
	switch code {
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return "the store does not know this access key; check AWS_ACCESS_KEY_ID or the profile"
	case "SignatureDoesNotMatch":
		return "the secret key does not belong to the access key, or something on the way changed the request; check AWS_SECRET_ACCESS_KEY or the profile"
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		return "the session is over; sign in again"
	case "RequestTimeTooSkewed":
		return "the clock of this machine is wrong; set it"
	}
	return fmt.Sprintf("check that these credentials may use the bucket %s (s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject, "+
		"s3:AbortMultipartUpload, s3:ListBucketMultipartUploads); without s3:ListBucket a missing object is answered like this too", d.bucket)
}

// plain is an SDK error without the layers that only repeat the operation.
func plain(err error) string {
	var send *smithyhttp.RequestSendError
	if errors.As(err, &send) {
		return send.Err.Error()
	}
	var op *smithy.OperationError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

// isMissing says that the answer means that a key holds nothing. A 404 that does
// not say so may come from a server that is no S3 store; only the answer to a
// HEAD has no room for more.
func (f *failure) isMissing() bool {
	return f.code == "NoSuchKey" || f.head && f.status == http.StatusNotFound && f.code == "NotFound"
}

// isChanged says that a condition did not hold.
func (f *failure) isChanged() bool {
	return f.code == "PreconditionFailed" || f.status == http.StatusPreconditionFailed
}
