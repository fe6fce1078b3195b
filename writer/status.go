package writer

import (
	"context"
	"fmt"
	"time"

	"github.com/swampd/swampd/backend"
)

// Status is what Inspect finds.
type Status struct {
	// Lease is the record, nil if nobody has ever written. Released says in it that
	// it was given back.
	Lease *Lease
	// Verdict is what the judge says of the holder; it is empty where nobody holds
	// the lease.
	Verdict Verdict
	// Age is the time since the last renewal, on the store's clock; negative if it
	// is not known.
	Age time.Duration
	// Takeover is when a new writer may take over if the lease stays as it is: 0 at
	// once, negative if no time decides it. Reason says why.
	Takeover time.Duration
	Reason   string
	// Promise is the fast adoption that the holder offers to its successor, if any.
	Promise *Adoption
}

// Held says whether somebody holds the lease, as far as its record says.
func (s *Status) Held() bool { return s.Lease != nil && !s.Lease.Released }

// Inspect reads the lease and says what a new writer without an id would do about
// it now. It reads one object, changes nothing, and disturbs nobody.
func Inspect(ctx context.Context, bucket *backend.Bucket, opts *Options) (*Status, error) {
	o, err := opts.withDefaults(bucket)
	if err != nil {
		return nil, err
	}
	o.Guard, o.FastAdoption = "", false
	s := newSession(ctx, bucket, o)
	defer s.abandon(ErrReleased)
	seen, err := s.cell.look(ctx)
	if err != nil {
		return nil, err
	}
	l, err := decodeSeen(bucket, seen)
	if err != nil {
		return nil, err
	}
	out := newQueue(s).assess(l, seen)
	st := &Status{Lease: l, Verdict: out.verdict, Age: out.age, Takeover: out.left, Reason: out.why}
	if out.action != holdOff {
		st.Takeover = 0
	}
	if st.Held() {
		st.Promise = l.Adoption
	}
	return st, nil
}

// Plan says in words what a new writer would do, and when.
func (s *Status) Plan() string {
	switch {
	case s.Takeover == 0:
		return "take it at once: " + s.Reason
	case s.Takeover < 0:
		return "wait for it to be given back: " + s.Reason
	}
	plan := fmt.Sprintf("take it in %v, if it is not renewed until then: %s", s.Takeover.Round(time.Second/10), s.Reason)
	if s.Promise != nil {
		plan += fmt.Sprintf("; or after %v of silence, as writer %s of epoch %s with its guard",
			time.Duration(s.Promise.SilenceMillis)*time.Millisecond, word(s.Lease.Writer), word(s.Lease.Epoch))
	}
	return plan
}
