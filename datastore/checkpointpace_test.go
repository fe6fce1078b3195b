package datastore

import (
	"context"
	"strings"
	"testing"

	"github.com/swampd/swampd/internal/faults"
	"github.com/swampd/swampd/internal/format"
)

// One checkpoint for each CheckpointSlots of log, not one for each commit after
// the first of them.
func TestCheckpointsKeepTheirDistance(t *testing.T) {
	e := newEnv(t, nil)
	p := e.open(&Options{CheckpointSlots: 10})
	made := p.faults.Add(faults.Rule{Ops: faults.Replace, Prefix: format.CheckpointKey, Times: faults.Always, Do: faults.Delay(0)})
	for i := range 40 {
		p.put(map[string][]byte{"x": text(i)})
		p.work.Wait()
	}
	if n := made.Fired(); n < 3 || n > 5 {
		t.Errorf("%d checkpoints for 41 slots, want one for 10 slots", n)
	}
}

// While the floor is 0, the log says all that a checkpoint does.
func TestAMissingCheckpointIsNotNeededWhileTheLogIsWhole(t *testing.T) {
	for _, which := range []string{"root", "shard"} {
		t.Run(which, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t, nil)
			p := e.open(nil)
			want := map[string][]byte{"a": noise(1, 2000)}
			p.put(want)
			if err := p.Checkpoint(ctx); err != nil {
				t.Fatal(err)
			}
			for _, key := range e.keys("checkpoints/") {
				if strings.HasSuffix(key, "-root") == (which == "root") {
					if err := e.store.Bucket().Delete(ctx, []string{key}); err != nil {
						t.Fatal(err)
					}
				}
			}
			q := e.open(nil)
			q.want(want)
			r, err := q.Verify(ctx, nil)
			if err != nil || r.OK() {
				t.Errorf("verify: %+v, %v; want a finding", r, err)
			}
			// The next checkpoint shares nothing with it where it cannot be read.
			p.put(map[string][]byte{"b": noise(2, 2000)})
			err = p.Checkpoint(ctx)
			if which == "root" && err != nil {
				t.Errorf("no checkpoint can be made any more: %v", err)
			}
			e.damaged = which == "shard"
		})
	}
}

// What a commit takes in the log includes its change lists.
func TestTheLogCountsChangeLists(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	p := e.open(nil)
	p.put(longPaths(600))
	if _, err := p.Update(ctx); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*proc{p, e.open(nil)} {
		for entry, err := range q.Log(ctx, nil) {
			if err != nil || entry.Bytes < 400*2000 {
				t.Errorf("%d bytes for 400 paths of 4,000 bytes, %v", entry.Bytes, err)
			}
		}
	}
}
