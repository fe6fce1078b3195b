package datastore

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// A transfer that stands still ends by itself, and its error says what it
// waited for.
func TestALargeReadThatStandsStillEnds(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(nil)
	data := noise(1, 5<<20)
	p.put(map[string][]byte{"x": data})
	// Read once outside of the bubble: what is kept for ever is not made inside.
	p.want(map[string][]byte{"x": data})
	synctest.Test(t, func(t *testing.T) {
		p.faults.Add(faults.Rule{Ops: faults.Get, Prefix: format.DataPrefix, Nth: 2, Do: faults.BlockBody(3 << 20)})
		r, err := p.Open(t.Context(), "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer p.faults.Clear() // its channels are the bubble's
		n, err := io.Copy(io.Discard, r)
		var stalled *timeoutError
		if !errors.As(err, &stalled) || !strings.Contains(err.Error(), "next block") || n != 3<<20 {
			t.Errorf("after %d bytes: %v; want an error that names the wait", n, err)
		}
	})
}
