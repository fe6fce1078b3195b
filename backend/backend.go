// Package backend is the driver interface between the datastore engine and the
// place where a datastore lies: a directory, an S3 bucket, a GCS bucket.
//
// The engine rests on four abilities of a store and asks for nothing else:
// create-if-absent, replace-if-version, read-your-writes, and listing in byte
// order. Probe proves them. Conditional delete is never needed.
//
// A driver does each call once. It may repeat a request only where the repeat
// cannot change the outcome that the caller is told: reads, listings, deletes,
// and answers that say the request was not carried out at all (409, 429, 503
// "slow down"), inside the caller's deadline. It never turns a lost answer into
// a success or a failure: that is ErrUnknown, and the engine finds out.
//
// Every call is bounded by its context; a driver adds no deadline of its own.
package backend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"iter"
	"time"
)

// Version names one content of one key. Versions are compared for equality and
// never parsed; the empty Version means "none".
type Version string

// Driver is what a store must do. All methods are safe for concurrent use by
// many goroutines, and several Drivers, in any processes, may work on the same
// store. Keys are checked by Bucket before a Driver sees them (see CheckKey).
//
// Errors wrap exactly one of the sentinels of this package where one fits, with
// the store's own error behind it.
type Driver interface {
	// Get reads an object, or the part of it that opts names. The caller closes
	// the Body of the answer. Size, Version, Modified and Date belong to the one
	// object that Body delivers, whatever happens to the key meanwhile. Errors:
	// ErrNotFound; ErrChanged when opts.IfVersion is set and the key holds
	// another version (or nothing); a body that ends early fails with
	// io.ErrUnexpectedEOF, never with a plain io.EOF.
	Get(ctx context.Context, key string, opts GetOptions) (*Object, error)

	// Create makes the object if the key holds nothing, as one atomic step that
	// is durable before it returns. Errors: ErrExists when the key holds
	// something (perhaps this very body, from an earlier attempt whose answer
	// was lost); ErrUnknown when the request may have been carried out or may
	// still be; ErrBadContent when the body's bytes are not those that Body
	// promised, and then nothing was made.
	Create(ctx context.Context, key string, body Body) (Info, error)

	// Replace puts body in the place of exactly version old, likewise atomic and
	// durable. It is asked only for keys that Replaceable allows. A version never
	// comes back, not even after Delete and Create with the same bytes, except
	// on stores whose versions are derived from the content (S3 ETags): records
	// that are replaced carry a beat or a uuid, so that no two are equal.
	// Errors: ErrChanged when the key holds another version or nothing; ErrUnknown and ErrBadContent as for Create.
	Replace(ctx context.Context, key string, body Body, old Version) (Info, error)

	// Delete removes keys, in batches where the store has them. A key that holds
	// nothing is no error. A RemainError in the error names the keys that may
	// remain; the others are gone.
	Delete(ctx context.Context, keys []string) error

	// List yields the objects whose key begins with prefix and is greater than
	// after (both may be empty), in byte order of the whole key. Objects that
	// were there before the call and stay are all yielded, once each. It ends
	// with at most one error.
	List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error]

	// CleanUploads removes what abandoned uploads older than age left behind
	// (multipart uploads that were never completed, temporary files) and returns
	// how many. Age is taken on the store's clock.
	CleanUploads(ctx context.Context, age time.Duration) (int, error)

	// Close ends the driver's connections; calls after it fail.
	Close() error
}

// PartsCreator is a Driver that sends large bodies by other requests than small
// ones. A store may keep the conditions of the one and not of the other, so Probe
// tries both; nothing else uses it.
type PartsCreator interface {
	// CreateInParts is Create by the requests that a large body takes, for a body
	// of any size but 0.
	CreateInParts(ctx context.Context, key string, body Body) (Info, error)
}

// GetOptions narrows a Get. The zero value reads the whole newest object.
type GetOptions struct {
	// Offset is where to begin, in bytes. A negative Offset counts from the end:
	// -16 reads the last 16 bytes (or all, if there are fewer). A begin at or
	// beyond the end delivers an empty Body.
	Offset int64
	// Length is how many bytes to read at most; 0 means up to the end.
	Length int64
	// IfVersion, when set, pins the version.
	IfVersion Version
}

// Object is the answer to a Get.
type Object struct {
	Body io.ReadCloser
	// Offset is where Body begins in the object; Length is how many bytes it
	// delivers. They follow from GetOptions and Size.
	Offset, Length int64
	Info
}

// Info says what the store said about one object in one answer.
type Info struct {
	// Size is the size of the whole object in bytes.
	Size int64
	// Version is what Replace and GetOptions.IfVersion take.
	Version Version
	// Modified is when the object was made, by the store's clock.
	Modified time.Time
	// Now is the store's clock about when it answered, for the age of a record:
	// Now.Sub(Modified). Zero only where the store cannot tell, as on a
	// directory that is mounted read-only.
	Now time.Time
	// Date is the store's clock in the answer itself (HTTP Date). Only this one
	// may stand in for reading the log floor (rule R1); it is zero on fs.
	Date time.Time
}

// Entry is one object of a listing.
type Entry struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Body is what an upload sends: bytes that can be read again from the start
// for another attempt.
type Body struct {
	// Size is the exact number of bytes.
	Size int64
	// SHA256 is the sha256 of all bytes. If HasSHA256, a driver must make sure,
	// itself or through the store, that the object consists of exactly these
	// bytes, or make nothing and return ErrBadContent.
	SHA256    [sha256.Size]byte
	HasSHA256 bool
	// Open starts reading from the beginning. It is called once for each
	// attempt, possibly several times at once. A driver closes what it opened
	// before it returns. An error of the reader (that is not io.EOF) fails the
	// upload, nothing is made, and the error is found in the chain of the
	// driver's error.
	Open func() (io.ReadSeekCloser, error)
}

// Bytes makes a Body of b, which must not change afterwards.
func Bytes(b []byte) Body {
	return Body{
		Size:      int64(len(b)),
		SHA256:    sha256.Sum256(b),
		HasSHA256: true,
		Open:      func() (io.ReadSeekCloser, error) { return nopCloser{bytes.NewReader(b)}, nil },
	}
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }
