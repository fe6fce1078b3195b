package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"strings"
)

// twinBits is the size of the first sieve for twins: 8 MiB, which lets one name
// in sixty through wrongly where a state has a million of them.
const twinBits = 1 << 26

// foldsCase says whether the directory takes names for one that differ only by
// case, as most file systems of macOS and Windows do. Tests replace it.
var foldsCase = func(r *restorer) (folds bool, err error) {
	name := r.temp + "a"
	f, err := r.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	_, err = r.root.Lstat(strings.ToUpper(name))
	folds = err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return folds, errors.Join(err, f.Close(), r.root.Remove(name))
}

func foldCase(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// twins refuses a state with two names that are one where case does not count:
// the second file would take the place of the first. Names come in an order in
// which twins are not neighbours, so they are sieved by a hash first, and only
// what that lets through is remembered.
func (g *getting) twins(ctx context.Context, r *restorer) error {
	folds, err := foldsCase(r)
	if err != nil {
		return outputError(g.dir, err)
	}
	if !folds {
		return nil
	}
	seed := maphash.MakeSeed()
	number := func(name string) int { return int(maphash.String(seed, foldCase(name)) % twinBits) }
	var seen numbers
	several := map[int]bool{}
	for v, err := range g.versions(ctx) {
		if err != nil {
			return err
		}
		n := number(v.Path)
		if seen.has(n) {
			several[n] = true
		}
		seen.add(n)
	}
	first := map[string]string{}
	for v, err := range g.versions(ctx) {
		if err != nil {
			return err
		}
		if !several[number(v.Path)] {
			continue
		}
		key := foldCase(v.Path)
		if other, twin := first[key]; twin {
			return &refusal{
				kind: "two-of-one-name",
				text: fmt.Sprintf("%s and %s are one name on this disk, which does not tell cases apart", printable(other), printable(v.Path)),
				hint: "nothing was written; write to a disk that tells cases apart with -o DIR, or name the files that you want",
			}
		}
		first[key] = v.Path
	}
	return nil
}
