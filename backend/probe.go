package backend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// The names of the checks of Probe.
const (
	CheckCreate      = "create-if-absent"
	CheckCreateRace  = "create race"
	CheckParts       = "create-if-absent in parts" // of a PartsCreator only
	CheckReplace     = "replace-if-version"
	CheckReplaceRace = "replace race"
	CheckReadWrites  = "read-your-writes"
	CheckListOrder   = "list in byte order"
	CheckRanges      = "ranges"
	CheckContent     = "content check"
	CheckCleanUp     = "clean-up"
)

// ProbeReport says what Probe saw.
type ProbeReport struct {
	// Store is the store's URL, without secrets.
	Store string
	// Checks are the checks in the order in which they ran. Those that come after
	// one that could not be finished are missing, but for the clean-up, which is
	// missing where nothing can have been made.
	Checks []ProbeCheck
	// Skew is how far the store's clock is ahead of this machine's, within half of
	// RoundTrip and the store's resolution (a second on buckets). It is for people:
	// nothing compares the two clocks. RoundTrip is zero if no clock was seen.
	Skew      time.Duration
	RoundTrip time.Duration
	// Requests is how many calls of the driver were made, Took how long all took.
	Requests int
	Took     time.Duration
}

// ProbeCheck is the outcome of one check.
type ProbeCheck struct {
	// Name is one of the Check constants, Promise what must hold, as a sentence.
	Name, Promise string
	Took          time.Duration
	// Err is nil if the check passed. It wraps ErrUnsupported if the store broke
	// the promise; any other error kept the check from being finished.
	Err error
}

// Check returns the outcome of the check of that name, and whether it ran.
func (r *ProbeReport) Check(name string) (ProbeCheck, bool) {
	for _, c := range r.Checks {
		if c.Name == name {
			return c, true
		}
	}
	return ProbeCheck{}, false
}

// Failed returns the names of the checks that did not pass.
func (r *ProbeReport) Failed() []string {
	var names []string
	for _, c := range r.Checks {
		if c.Err != nil {
			names = append(names, c.Name)
		}
	}
	return names
}

// String is the report for people, a line for each check.
func (r *ProbeReport) String() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		verdict := "passed"
		switch {
		case errors.Is(c.Err, ErrUnsupported):
			verdict = "FAILED"
		case c.Err != nil:
			verdict = "not finished"
		}
		fmt.Fprintf(w, "%s\t%s\t%v\n", c.Name, verdict, c.Took.Round(time.Millisecond))
	}
	_ = w.Flush() // a strings.Builder takes everything
	switch {
	case r.RoundTrip == 0:
		s.WriteString("The store showed no clock.\n")
	case r.Skew < 0:
		fmt.Fprintf(&s, "The store's clock is %v behind this machine's.\n", (-r.Skew).Round(time.Millisecond))
	default:
		fmt.Fprintf(&s, "The store's clock is %v ahead of this machine's.\n", r.Skew.Round(time.Millisecond))
	}
	fmt.Fprintf(&s, "%d requests in %v\n", r.Requests, r.Took.Round(time.Millisecond))
	return s.String()
}

// probeCheck is one promise and how to put it to the test. run returns nil, a
// *violation, or whatever kept it from being finished.
type probeCheck struct {
	name    string
	promise string
	advice  string // what a person does about a store that breaks it
	run     func(p *prober) error
}

const adviceConditions = "The store, or a proxy before it, does not honour conditions on writes (If-None-Match and If-Match, ifGenerationMatch on GCS, link(2) in a directory), so two writers would destroy each other's commits: use a store that honours them, or reach it without the proxy"

const adviceParts = "The store, or a proxy before it, does not take multipart uploads with a checksum of the whole (CRC32) and a condition on the completion (If-None-Match): use one that does, since contents over 64 MiB are sent like this"

var probeChecks = []probeCheck{
	{CheckCreate, "a create of a key that holds something is refused and changes nothing, also with the same bytes", adviceConditions, (*prober).checkCreate},
	{CheckCreateRace, "of several creates of one key at once exactly one succeeds, and the key holds its bytes", adviceConditions, (*prober).checkCreateRace},
	{CheckParts, "a large content can be sent in parts, and is refused as a whole for a key that holds something", adviceParts, (*prober).checkParts},
	{CheckReplace, "a replace succeeds for exactly the version that the key holds, and is refused for a stale version, another object's version, and a missing key", adviceConditions, (*prober).checkReplace},
	{CheckReplaceRace, "of several replaces of one version at once exactly one succeeds, and the key holds its bytes", adviceConditions, (*prober).checkReplaceRace},
	{CheckReadWrites, "what was created, replaced or deleted shows in the next read and the next listing, and a deleted key can be created again", "Something between here and the store answers from a cache, or the store is only eventually consistent: use the store directly, and one that is strongly consistent. If only a key that was deleted cannot be created again, the bucket keeps versions and the store takes the mark of a deletion for an object: use a bucket without versioning", (*prober).checkReadWrites},
	{CheckListOrder, "a listing is in byte order of the whole key and begins after the key that is named", "The store lists in an order of its own (S3 directory buckets do): use one that lists in byte order", (*prober).checkListOrder},
	{CheckRanges, "a range of an object is exactly the bytes that were asked for", "Something between here and the store changes or ignores ranges: use the store directly", (*prober).checkRanges},
	{CheckContent, "content that does not have the sha256 that was announced is refused and not stored", "The store takes damaged content without a word: use one that verifies checksums of uploads", (*prober).checkContent},
}

// violation is a promise that the store broke.
type violation struct {
	saw string
	err error // what the store said, if it was an error
}

func broke(err error, format string, args ...any) error {
	return &violation{fmt.Sprintf(format, args...), err}
}

func (v *violation) Error() string { return v.saw }
func (v *violation) Unwrap() error { return v.err }

// cleanUpTime bounds the clean-up, which runs also when ctx has ended.
const cleanUpTime = 30 * time.Second

// Probe proves the abilities that the engine rests on (see the package comment)
// by trying them out under names of its own, below _control/probe/ and probe/,
// and removes what it made, also after a failure and when ctx ends. It makes 50
// calls of the driver where nothing has to be asked again, and 3 more for a
// PartsCreator, some of them at the same time.
// Races can only be lost by a store, never won for good: a store that passes may
// still be one that decides races by luck.
//
// The error is nil if all checks passed. It wraps ErrUnsupported, and says which
// promise was broken, what was seen, and what to do, if the store does not do
// what the engine needs. Other errors (ErrDenied, ErrNoBucket, ErrUnknown, the
// context's) kept the probe from finding out. The report is never nil.
func Probe(ctx context.Context, b *Bucket) (*ProbeReport, error) {
	p := &prober{ctx: ctx, b: b, id: strings.ToLower(rand.Text())}
	begin := time.Now()
	report := &ProbeReport{Store: b.URL()}
	run := func(c probeCheck) error {
		start := time.Now()
		err := c.verdict(c.run(p))
		report.Checks = append(report.Checks, ProbeCheck{Name: c.name, Promise: c.promise, Took: time.Since(start), Err: err})
		return err
	}
	_, inParts := b.drv.(PartsCreator)
	for _, c := range probeChecks {
		if c.name == CheckParts && !inParts {
			continue
		}
		if err := run(c); err != nil && !errors.Is(err, ErrUnsupported) {
			break
		}
	}
	if p.dirty.Load() {
		_ = run(probeCheck{CheckCleanUp, "what the probe made can be deleted", "Delete it by hand", (*prober).cleanUp}) // it is in the report
	}
	report.Skew, report.RoundTrip = p.skew, p.roundTrip
	report.Requests = int(p.requests.Load())
	report.Took = time.Since(begin)
	return report, report.err(b)
}

// verdict puts what a check saw into a sentence.
func (c *probeCheck) verdict(err error) error {
	var v *violation
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &v):
		return fmt.Errorf("the check %q could not be finished: %w", c.name, err)
	case v.err != nil:
		return fmt.Errorf("%w: %s: expected that %s; seen: %s: %v. %s", ErrUnsupported, c.name, c.promise, v.saw, v.err, c.advice)
	}
	return fmt.Errorf("%w: %s: expected that %s; seen: %s. %s", ErrUnsupported, c.name, c.promise, v.saw, c.advice)
}

// err is what Probe returns: a broken promise before anything else.
func (r *ProbeReport) err(b *Bucket) error {
	failed := r.Failed()
	if len(failed) == 0 {
		return nil
	}
	var first error
	name := ""
	for _, c := range r.Checks {
		if c.Err != nil && (first == nil || errors.Is(c.Err, ErrUnsupported) && !errors.Is(first, ErrUnsupported)) {
			first, name = c.Err, c.Name
		}
	}
	var others []string
	for _, f := range failed {
		if f != name {
			others = append(others, f)
		}
	}
	if others != nil {
		first = fmt.Errorf("%w (these did not pass either: %s)", first, strings.Join(others, ", "))
	}
	return &Error{Op: "probe", Store: b.URL(), Err: first, Date: Date(first)}
}

// prober is one run of Probe.
type prober struct {
	ctx      context.Context
	b        *Bucket
	id       string // unique, of characters that keys may hold
	requests atomic.Int64
	dirty    atomic.Bool // something may have been made

	mu        sync.Mutex
	keys      []string // keys that may hold something
	skew      time.Duration
	roundTrip time.Duration // of the request that gave skew; 0: none yet
}

// key names an object of the probe, record one that can be replaced. The unique
// part comes last: names of its own for directories would stay behind in a store
// that has directories.
func (p *prober) key(name string) string { return p.own("probe/" + name + "-" + p.id) }
func (p *prober) record(name string) string {
	return p.own(ControlPrefix + "probe/" + name + "-" + p.id)
}

func (p *prober) own(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, key)
	return key
}

// text makes contents that no other object has, since versions may be derived
// from them.
func (p *prober) text(name string) []byte { return []byte(name + " of the probe " + p.id) }

// clock takes the skew from the answer with the shortest round trip.
func (p *prober) clock(now, sent time.Time) {
	if now.IsZero() {
		return
	}
	trip := max(time.Since(sent), 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.roundTrip == 0 || trip < p.roundTrip {
		p.skew, p.roundTrip = now.Sub(sent.Add(trip/2)), trip
	}
}

// cleanUp deletes what the checks may have made, twice if the first answer is
// none. It does not end with ctx, so that a probe that is interrupted leaves
// nothing.
func (p *prober) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), cleanUpTime)
	defer cancel()
	var err error
	for range 2 {
		p.requests.Add(1)
		if err = p.b.Delete(ctx, p.keys); !undecided(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("objects below probe/ and %sprobe/ whose names end with %s may remain: %w", ControlPrefix, p.id, err)
	}
	return nil
}
