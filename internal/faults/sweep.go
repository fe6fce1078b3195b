package faults

import (
	"fmt"
	"testing"
)

// sweepEnd is more calls than any scenario makes.
const sweepEnd = 10_000

// Sweep runs scenario with n = 1, 2, 3 …, each as a subtest, until it passes
// without its fault having struck. The scenario sets a fault at call n, works,
// checks that what must hold holds, and returns whether the fault struck:
//
//	faults.Sweep(t, func(t *testing.T, n int) bool {
//		f := faults.Wrap(memory.New(nil).Open())
//		fault := f.Add(faults.Rule{Ops: faults.Writes, Nth: n, Do: faults.Lose()})
//		…
//		return fault.Fired() > 0
//	})
//
// It stops at the first n that fails. A scenario that is never struck tests
// nothing, and fails.
func Sweep(t *testing.T, scenario func(t *testing.T, n int) (struck bool)) {
	t.Helper()
	if err := sweep(t.Run, scenario); err != nil {
		t.Fatal(err)
	}
}

func sweep(run func(string, func(*testing.T)) bool, scenario func(*testing.T, int) bool) error {
	for n := 1; n < sweepEnd; n++ {
		struck := false
		if !run(fmt.Sprintf("call %d", n), func(t *testing.T) { struck = scenario(t, n) }) {
			return fmt.Errorf("with the fault at call %d the scenario fails", n)
		}
		if !struck {
			if n == 1 {
				return fmt.Errorf("the fault never struck: the scenario makes no such call")
			}
			return nil
		}
	}
	return fmt.Errorf("the fault still strikes at call %d: the scenario does not end", sweepEnd)
}
