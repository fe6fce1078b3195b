package faults

import (
	"strings"
	"testing"
)

func TestSweepEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		calls  int // how many calls the scenario makes
		failAt int
		ran    int
		want   string // in the error
	}{
		{"passes", 4, 0, 5, ""},
		{"fails in the middle", 4, 3, 3, "call 3"},
		{"is never struck", 0, 0, 1, "never struck"},
		{"does not end", 1 << 30, 0, sweepEnd - 1, "does not end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ran, n := 0, 0
			err := sweep(func(_ string, f func(*testing.T)) bool {
				ran++
				f(t)
				return n != c.failAt || c.failAt == 0
			}, func(_ *testing.T, i int) bool {
				n = i
				return i <= c.calls
			})
			if ran != c.ran || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("ran %d times, %v; want %d times, %q", ran, err, c.ran, c.want)
			}
		})
	}
}
