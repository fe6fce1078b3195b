package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// check demands the invariants of the blocks and the order of the keys.
func (s *keySet) check(t *testing.T) []string {
	t.Helper()
	var all []string
	for i, b := range s.blocks {
		if len(b) == 0 || len(b) > maxBlock {
			t.Fatalf("block %d has %d keys, want 1 to %d", i, len(b), maxBlock)
		}
		all = append(all, b...)
	}
	for i := 1; i < len(all); i++ {
		if all[i-1] >= all[i] {
			t.Fatalf("%q comes before %q", all[i-1], all[i])
		}
	}
	return all
}

func (s *keySet) from(from, after string) []string {
	var got []string
	s.ascend(from, after, func(k string) bool {
		got = append(got, k)
		return true
	})
	return got
}

func TestKeySetAgreesWithASortedSlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s keySet
	var model []string
	for i := range 20_000 {
		// Few keys enough that adding twice and removing what is there happen.
		k := fmt.Sprintf("k%04d", rng.IntN(5000))
		at, there := slices.BinarySearch(model, k)
		if rng.IntN(100) < 60-20*(i/10_000) {
			s.add(k)
			if !there {
				model = slices.Insert(model, at, k)
			}
		} else {
			s.remove(k)
			if there {
				model = slices.Delete(model, at, at+1)
			}
		}
		if i%997 != 0 {
			continue
		}
		if got := s.check(t); !slices.Equal(got, model) {
			t.Fatalf("after %d steps: %d keys, want %d", i, len(got), len(model))
		}
		for range 20 {
			from, after := fmt.Sprintf("k%04d", rng.IntN(5000)), fmt.Sprintf("k%04d", rng.IntN(5000))
			var want []string
			for _, k := range model {
				if k >= from && k > after {
					want = append(want, k)
				}
			}
			if got := s.from(from, after); !slices.Equal(got, want) {
				t.Fatalf("from %s after %s: %d keys, want %d", from, after, len(got), len(want))
			}
		}
	}
}

func TestKeySetEdges(t *testing.T) {
	var s keySet
	if got := s.from("", ""); got != nil {
		t.Errorf("empty: %q", got)
	}
	s.remove("x")
	s.add("m")
	s.add("m")
	s.add("a")
	s.add("z")
	for _, c := range []struct {
		from, after string
		want        []string
	}{
		{"", "", []string{"a", "m", "z"}},
		{"a", "", []string{"a", "m", "z"}},
		{"", "a", []string{"m", "z"}},
		{"a", "a", []string{"m", "z"}},
		{"b", "a", []string{"m", "z"}},
		{"m", "a", []string{"m", "z"}},
		{"a", "m", []string{"z"}},
		{"", "zz", nil},
		{"zz", "", nil},
	} {
		if got := s.from(c.from, c.after); !slices.Equal(got, c.want) {
			t.Errorf("from %q after %q: %q, want %q", c.from, c.after, got, c.want)
		}
	}
	n := 0
	s.ascend("", "", func(string) bool { n++; return false })
	if n != 1 {
		t.Errorf("visited %d keys after the first no", n)
	}
	c := s.clone()
	c.remove("m")
	s.remove("a")
	if got := append(s.from("", ""), c.from("", "")...); !slices.Equal(got, []string{"m", "z", "a", "z"}) {
		t.Errorf("a clone shares its keys: %q", got)
	}
	for _, k := range []string{"m", "z"} {
		s.remove(k)
	}
	if got := s.check(t); got != nil {
		t.Errorf("after removing all: %q", got)
	}
}

// Slots are added in order: blocks stay full. Whatever the order, there are few.
func TestKeySetOfManyKeys(t *testing.T) {
	const n = 200_000
	var up, mixed keySet
	for i := range n {
		up.add(fmt.Sprintf("%020d", i))
	}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		mixed.add(fmt.Sprintf("%020d", i))
	}
	if got := len(up.blocks); got > n/maxBlock+2 {
		t.Errorf("%d keys in order make %d blocks, want %d", n, got, n/maxBlock+1)
	}
	if got := len(mixed.blocks); got > 3*n/maxBlock {
		t.Errorf("%d mixed keys make %d blocks", n, got)
	}
	if !slices.Equal(up.check(t), mixed.check(t)) {
		t.Error("the two sets differ")
	}
}
