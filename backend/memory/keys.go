package memory

import (
	"slices"
	"sort"
)

// maxBlock is how many keys a block holds before it is split: small enough that
// moving half of them costs little, large enough that a million keys make a few
// thousand blocks.
const maxBlock = 512

// keySet is a sorted set of strings: sorted blocks in sorted order, none empty.
// Adding and removing cost a binary search and moving at most one block.
type keySet struct {
	blocks [][]string
}

// find returns the block that holds key or would take it, and the place in it.
func (s *keySet) find(key string) (block, at int, found bool) {
	block = sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i][0] > key }) - 1
	if block < 0 {
		return 0, 0, false
	}
	at, found = slices.BinarySearch(s.blocks[block], key)
	return block, at, found
}

func (s *keySet) add(key string) {
	if len(s.blocks) == 0 {
		s.blocks = [][]string{{key}}
		return
	}
	b, at, found := s.find(key)
	if found {
		return
	}
	keys := slices.Insert(s.blocks[b], at, key)
	s.blocks[b] = keys
	if len(keys) <= maxBlock {
		return
	}
	// Keys that only grow, as slots do, leave full blocks behind.
	cut := len(keys) / 2
	if at == len(keys)-1 && b == len(s.blocks)-1 {
		cut = maxBlock
	}
	right := append(make([]string, 0, maxBlock+1), keys[cut:]...)
	clear(keys[cut:])
	s.blocks[b] = keys[:cut]
	s.blocks = slices.Insert(s.blocks, b+1, right)
}

func (s *keySet) remove(key string) {
	b, at, found := s.find(key)
	if !found {
		return
	}
	s.blocks[b] = slices.Delete(s.blocks[b], at, at+1)
	if len(s.blocks[b]) == 0 {
		s.blocks = slices.Delete(s.blocks, b, b+1)
	}
}

// ascend visits, in order, the keys that are at least from and greater than
// after, until visit says no.
func (s *keySet) ascend(from, after string, visit func(string) bool) {
	b, at, found := s.find(max(from, after))
	if found && after >= from {
		at++
	}
	for ; b < len(s.blocks); b, at = b+1, 0 {
		for _, k := range s.blocks[b][at:] {
			if !visit(k) {
				return
			}
		}
	}
}

func (s *keySet) clone() keySet {
	c := keySet{blocks: make([][]string, len(s.blocks))}
	for i, b := range s.blocks {
		c.blocks[i] = slices.Clone(b)
	}
	return c
}
