package gcs

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/swampd/swampd/backend"
)

// operation is the part of a call that decides what its failures mean.
type operation int

const (
	opRead operation = iota // get, head, list, delete: may be repeated after any transient fault
	opPinned
	opCreate
	opReplace
)

func (o operation) writes() bool { return o == opCreate || o == opReplace }

// class says whether and how an attempt may be repeated.
type class int

const (
	final     class = iota // the error is the answer
	busy                   // not carried out: too many requests
	conflict               // not carried out: other requests to the name
	damaged                // not carried out: the bytes did not arrive as they were sent
	transient              // of a call that may be repeated
)

// reply is the answer of the store to a request that it refused.
type reply struct {
	status  int
	reason  string // rateLimitExceeded, NoSuchBucket, …; empty if the answer has none
	message string
	upload  bool  // it is about a resumable upload, not about a name
	err     error // the client library's
}

func (r *reply) Error() string {
	s := "the store answered " + strconv.Itoa(r.status)
	if t := http.StatusText(r.status); t != "" {
		s += " " + t
	}
	if r.message != "" {
		s += ": " + r.message
	}
	if r.reason != "" {
		s += " (" + r.reason + ")"
	}
	return s
}

func (r *reply) Unwrap() error { return r.err }

// readReply takes reason and message from an error of the JSON or of the XML
// interface, or from what else came.
func readReply(status int, body []byte, err error) *reply {
	r := &reply{status: status, err: err}
	body = bytes.TrimSpace(body)
	var j struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	var x struct {
		Code, Message, Details string
	}
	switch {
	case bytes.HasPrefix(body, []byte("{")) && json.Unmarshal(body, &j) == nil:
		r.message = j.Error.Message
		if len(j.Error.Errors) > 0 {
			r.reason = j.Error.Errors[0].Reason
		}
	case bytes.HasPrefix(body, []byte("<")) && xml.Unmarshal(body, &x) == nil:
		r.reason, r.message = x.Code, x.Message
		if x.Details != "" {
			r.message = strings.TrimSpace(r.message + " " + x.Details)
		}
	default:
		r.message = strings.ToValidUTF8(string(body), "?")
	}
	if len(r.message) > maxMessage {
		r.message = strings.ToValidUTF8(r.message[:maxMessage], "") + "…"
	}
	return r
}

// maxMessage bounds what an error shows of a store's text, which may be a page.
const maxMessage = 1 << 10

// slowDown says that the store asks for fewer requests.
func (r *reply) slowDown() bool {
	switch {
	case r.status == http.StatusTooManyRequests:
		return true
	case r.status != http.StatusServiceUnavailable && r.status != http.StatusForbidden:
		return false
	}
	for _, s := range []string{"rateLimitExceeded", "userRateLimitExceeded", "SlowDown"} {
		if strings.EqualFold(r.reason, s) {
			return true
		}
	}
	return false
}

// noBucket and noObject are what a 404 says; it may say neither.
func (r *reply) noBucket() bool {
	return r.status == http.StatusNotFound &&
		(r.reason == "NoSuchBucket" || strings.Contains(r.message, "bucket does not exist"))
}

func (r *reply) noObject() bool {
	return r.status == http.StatusNotFound &&
		(r.reason == "NoSuchKey" || strings.Contains(r.message, "No such object"))
}

// badChecksum says that the store counted another checksum than was announced.
func (r *reply) badChecksum() bool {
	m := strings.ToLower(r.message + " " + r.reason)
	return r.status == http.StatusBadRequest &&
		(strings.Contains(m, "crc32c") || strings.Contains(m, "digest") || strings.Contains(m, "hash"))
}

// judge says what became of an attempt that failed with err. A bare 404 is left
// as a *reply: the caller knows, or asks, what is missing.
//
//lint:ignore ST1008 the class says how to take the error, so it comes behind it
func judge(ctx context.Context, op operation, s snapshot, err error) (error, class) {
	if s.part && (s.status == http.StatusNotFound || s.status == http.StatusGone) {
		r := readReply(s.status, s.body, err)
		r.upload = true
		if s.deciding {
			return fmt.Errorf("%w: the store has forgotten the upload: %w", backend.ErrUnknown, r), final
		}
		return fmt.Errorf("the store has forgotten the upload, nothing was made: %w", r), transient
	}
	if s.status >= 300 {
		return judgeReply(op, readReply(s.status, s.body, err), s.deciding)
	}
	var overHTTP *url.Error
	switch {
	case op.writes() && s.deciding:
		return fmt.Errorf("%w: %w", backend.ErrUnknown, err), final
	case ctx.Err() != nil:
		return ctxError(ctx), final
	case s.requests == 0 && !errors.As(err, &overHTTP):
		return err, final
	case s.requests == 0 && offline(err):
		return fmt.Errorf("no token for the store was to be had, nothing was sent; is the network there? %w", err), final
	case s.requests == 0:
		return fmt.Errorf("%w: no token for the store was to be had, check the credentials: %w", backend.ErrDenied, err), final
	case !s.sent:
		return fmt.Errorf("the store is not reachable, nothing was sent: %w", err), final
	case op.writes():
		return fmt.Errorf("the upload broke off before its last part, nothing was made: %w", err), final
	}
	return fmt.Errorf("the answer was lost: %w", err), transient
}

// withoutQuery takes what follows the ? out of the addresses in an error's text:
// the name of a resumable upload there is all that one needs to go on with it,
// for a week, and the rest is in the key and the operation.
func withoutQuery(err error) error {
	var at *url.Error
	if !errors.As(err, &at) {
		return err
	}
	place, _, found := strings.Cut(at.URL, "?")
	if !found {
		return err
	}
	return &reworded{strings.ReplaceAll(err.Error(), at.URL, place), err}
}

// reworded is an error with another text.
type reworded struct {
	text string
	err  error
}

func (r *reworded) Error() string { return r.text }
func (r *reworded) Unwrap() error { return r.err }

// offline says that a host was not found or not reached.
func offline(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) || errors.As(err, &dns)
}

// ctxError is why ctx ended: always one of the errors of package context, with
// the cause behind it.
func ctxError(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != nil && cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

//lint:ignore ST1008 the class says how to take the error, so it comes behind it
func judgeReply(op operation, r *reply, deciding bool) (error, class) {
	wrap := func(sentinel error) error { return fmt.Errorf("%w: %w", sentinel, r) }
	switch {
	case r.slowDown():
		return wrap(backend.ErrBusy), busy
	case r.badChecksum() && op.writes():
		return fmt.Errorf("%w: the bytes were damaged on their way to the store, nothing was made: %w", backend.ErrBadContent, r), damaged
	}
	switch r.status {
	case http.StatusUnauthorized:
		return wrap(backend.ErrDenied), final
	case http.StatusForbidden:
		if r.reason == "quotaExceeded" {
			return wrap(backend.ErrFull), final
		}
		return wrap(backend.ErrDenied), final
	case http.StatusNotFound:
		if r.noBucket() {
			return wrap(backend.ErrNoBucket), final
		}
		return r, final
	case http.StatusConflict:
		return wrap(backend.ErrConflict), conflict
	case http.StatusPreconditionFailed:
		switch {
		case r.reason == "orgPolicyConstraintFailed":
			return wrap(backend.ErrDenied), final
		case op == opCreate:
			return wrap(backend.ErrExists), final
		case op == opReplace || op == opPinned:
			return wrap(backend.ErrChanged), final
		}
	case http.StatusNotImplemented:
		return wrap(backend.ErrUnsupported), final
	case http.StatusInsufficientStorage:
		return wrap(backend.ErrFull), final
	case http.StatusRequestTimeout:
		return undecided(op, r, deciding)
	}
	if r.status >= 500 || r.status < 400 {
		return undecided(op, r, deciding)
	}
	return r, final
}

// undecided is for answers that do not say whether the request was carried out.
//
//lint:ignore ST1008 the class says how to take the error, so it comes behind it
func undecided(op operation, r *reply, deciding bool) (error, class) {
	switch {
	case op.writes() && deciding:
		return fmt.Errorf("%w: %w", backend.ErrUnknown, r), final
	case op.writes():
		return fmt.Errorf("the upload was not completed, nothing was made: %w", r), final
	case r.status < 400: // a redirect: it will not answer otherwise the next time
		return r, final
	}
	return r, transient
}

// isMissing says that err is a 404 that does not blame the bucket, and whether
// it says that the object is missing.
func isMissing(err error) (missing, certain bool) {
	var r *reply
	if !errors.As(err, &r) || r.status != http.StatusNotFound || r.upload || errors.Is(err, backend.ErrNoBucket) {
		return false, false
	}
	return true, r.noObject()
}

// retryAfter is how long the store asks to be left alone; 0 if it does not say.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}
