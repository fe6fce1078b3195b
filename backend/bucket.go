package backend

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"sort"
	"strings"
	"sync"
	"time"
)

// Bucket is one opened store: a Driver with the portable part around it. It
// checks keys and arguments once, wraps errors once, and counts nothing away:
// every call is exactly one call of the Driver.
type Bucket struct {
	drv Driver
	url string
}

// NewBucket puts the portable part around drv. storeURL is what error messages
// show and must hold no secret.
func NewBucket(drv Driver, storeURL string) *Bucket { return &Bucket{drv: drv, url: storeURL} }

// URL returns the store's URL without secrets.
func (b *Bucket) URL() string { return b.url }

// Driver returns the driver beneath, for tests that put another around it.
func (b *Bucket) Driver() Driver { return b.drv }

func (b *Bucket) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return &Error{Op: op, Store: b.url, Key: key, Err: err, Date: Date(err)}
}

// Get is Driver.Get.
func (b *Bucket) Get(ctx context.Context, key string, opts GetOptions) (*Object, error) {
	if err := CheckKey(key); err != nil {
		return nil, b.wrap("get", key, err)
	}
	if opts.Length < 0 {
		return nil, b.wrap("get", key, fmt.Errorf("negative length %d", opts.Length))
	}
	obj, err := b.drv.Get(ctx, key, opts)
	return obj, b.wrap("get", key, err)
}

// Create is Driver.Create.
func (b *Bucket) Create(ctx context.Context, key string, body Body) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, b.wrap("create", key, err)
	}
	info, err := b.drv.Create(ctx, key, body)
	return info, b.wrap("create", key, err)
}

// createInParts is PartsCreator.CreateInParts of a Driver that has it.
func (b *Bucket) createInParts(ctx context.Context, key string, body Body) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, b.wrap("create", key, err)
	}
	info, err := b.drv.(PartsCreator).CreateInParts(ctx, key, body)
	return info, b.wrap("create", key, err)
}

// Replace is Driver.Replace. An empty old version is an error: use Create.
func (b *Bucket) Replace(ctx context.Context, key string, body Body, old Version) (Info, error) {
	if err := CheckKey(key); err != nil {
		return Info{}, b.wrap("replace", key, err)
	}
	if !Replaceable(key) {
		return Info{}, b.wrap("replace", key, fmt.Errorf("%w: only keys below %s may be replaced", ErrBadKey, ControlPrefix))
	}
	if old == "" {
		return Info{}, b.wrap("replace", key, errors.New("no version was given to replace"))
	}
	info, err := b.drv.Replace(ctx, key, body, old)
	return info, b.wrap("replace", key, err)
}

// Delete is Driver.Delete.
func (b *Bucket) Delete(ctx context.Context, keys []string) error {
	for _, k := range keys {
		if err := CheckKey(k); err != nil {
			return b.wrap("delete", k, err)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return b.wrap("delete", "", b.drv.Delete(ctx, keys))
}

// List is Driver.List.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := CheckPrefix(prefix); err != nil {
			yield(Entry{}, b.wrap("list", prefix, err))
			return
		}
		for e, err := range b.drv.List(ctx, prefix, after) {
			if !yield(e, b.wrap("list", prefix, err)) || err != nil {
				return
			}
		}
	}
}

// CleanUploads is Driver.CleanUploads.
func (b *Bucket) CleanUploads(ctx context.Context, age time.Duration) (int, error) {
	n, err := b.drv.CleanUploads(ctx, age)
	return n, b.wrap("clean", "", err)
}

// Close is Driver.Close.
func (b *Bucket) Close() error { return b.wrap("close", "", b.drv.Close()) }

// Opener opens the store that a URL of its scheme names. It makes nothing: a
// bucket that is missing is ErrNoBucket at the first call (for fs, the
// directory is made by the first Create).
type Opener func(ctx context.Context, u *url.URL) (Driver, error)

var registry struct {
	sync.Mutex
	m map[string]Opener
}

// Register makes a URL scheme known. Drivers call it from init; a second
// registration of a scheme panics.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if registry.m == nil {
		registry.m = map[string]Opener{}
	}
	if registry.m[scheme] != nil {
		panic("backend: scheme " + scheme + " registered twice")
	}
	registry.m[scheme] = open
}

// known names the import that brings a scheme, for the error that misses it.
var known = map[string]string{
	"file": "github.com/swampd/swampd/backend/fs",
	"s3":   "github.com/swampd/swampd/backend/s3",
	"gs":   "github.com/swampd/swampd/backend/gcs",
}

// Open opens the store that storeURL names: file:///dir (or a plain path),
// s3://bucket/prefix, gs://bucket/prefix. It may read local configuration
// (credentials) and sends no request.
func Open(ctx context.Context, storeURL string) (*Bucket, error) {
	u, err := ParseURL(storeURL)
	if err != nil {
		return nil, &Error{Op: "open", Store: Redact(storeURL), Err: err}
	}
	registry.Lock()
	open := registry.m[u.Scheme]
	var have []string
	for s := range registry.m {
		have = append(have, s+"://")
	}
	registry.Unlock()
	if open == nil {
		sort.Strings(have)
		err := fmt.Errorf("%w: no driver for %q URLs; this program knows: %s", ErrUnsupported, u.Scheme, strings.Join(have, " "))
		if pkg := known[u.Scheme]; pkg != "" {
			err = fmt.Errorf("%w: no driver for %q URLs in this program; it must import _ %q", ErrUnsupported, u.Scheme, pkg)
		}
		return nil, &Error{Op: "open", Store: Redact(storeURL), Err: err}
	}
	drv, err := open(ctx, u)
	if err != nil {
		return nil, &Error{Op: "open", Store: Redact(storeURL), Err: err}
	}
	return NewBucket(drv, Redact(storeURL)), nil
}

// ParseURL reads a store's address. What has no scheme ("/srv/data", "./x",
// "C:\data") is a directory and becomes a file URL with an absolute path.
func ParseURL(s string) (*url.URL, error) { return parseURL(s) }

// Redact returns the URL without passwords, secret query values and fragment.
// Directories stay as they are; of what looks like a URL and is none, and of one
// whose password seems to have ended early, only the scheme stays.
func Redact(s string) string {
	scheme, rest, found := strings.Cut(s, "://")
	if lower := strings.ToLower(scheme); !found || !isScheme(lower) || lower == "file" {
		return s
	}
	u, err := url.Parse(s)
	if err != nil || splitPassword(rest) {
		return scheme + "://(unreadable)"
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	q := u.Query()
	for k, values := range q {
		for i, v := range values { // an endpoint is a URL, too
			values[i] = RedactEndpoint(v)
		}
		if isSecret(k) {
			q.Set(k, "redacted")
		}
	}
	u.RawQuery = q.Encode()
	if u.Fragment != "" {
		u.Fragment, u.RawFragment = "", ""
		return u.String() + "#…"
	}
	return u.String()
}

// splitPassword says that what follows the scheme of a URL looks like a name and
// password with an unescaped "/", "?", "#" or "@", so that a part of the password
// was taken for something else: secret keys of S3 hold slashes.
func splitPassword(rest string) bool {
	end := strings.IndexAny(rest, "/?#")
	return end >= 0 && (end == 0 || strings.ContainsAny(rest[:end], ":@")) && strings.Contains(rest[end:], "@")
}

// RedactEndpoint is Redact for what is no directory: the address of a service,
// which may lack its scheme.
func RedactEndpoint(v string) string {
	if at := strings.LastIndexByte(v, '@'); at >= 0 && !strings.Contains(v, "://") {
		return "redacted" + v[at:]
	}
	return Redact(v)
}

// isSecret says whether a query key seems to name something that nobody may see.
func isSecret(key string) bool {
	key = strings.ToLower(key)
	for _, s := range []string{"secret", "token", "pass", "pwd", "signature", "credential"} {
		if strings.Contains(key, s) {
			return true
		}
	}
	return false
}
