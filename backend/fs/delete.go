package fs

import (
	"context"
	"fmt"
	iofs "io/fs"
	"slices"
	"strings"
	"time"

	"github.com/swampd/swampd/backend"
)

// Delete is backend.Driver.Delete. Each directory is synced once, at the end, also
// if nothing was there: it may have been removed by a process that was stopped
// before it synced. Directories that become empty stay: another process may be
// making an object in them.
func (d *Driver) Delete(ctx context.Context, keys []string) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	for _, key := range keys {
		if err := backend.CheckKey(key); err != nil {
			return err
		}
	}
	var remain []string
	var first error
	remains := func(err error, keys ...string) {
		if first == nil {
			first = err
		}
		remain = append(remain, keys...)
	}
	gone := map[string][]string{}           // by directory
	records := map[string]map[string]bool{} // base names, by directory
	for i, key := range keys {
		if err := ctx.Err(); err != nil {
			remains(err, keys[i:]...)
			break
		}
		dir, name := splitKey(key)
		file := key
		if backend.Replaceable(key) {
			file = recordOf(key).id()
			if records[dir] == nil {
				records[dir] = map[string]bool{}
			}
			records[dir][name] = true
		}
		if err := d.unlink(file); err != nil {
			remains(err, key)
			continue
		}
		gone[dir] = append(gone[dir], key)
	}
	for dir, names := range gone {
		if err := d.syncDir(dir); err != nil {
			remains(err, names...)
		}
	}
	for dir, bases := range records {
		// The keys hold nothing any more. What cannot be removed now belongs to no
		// life, and CleanUploads tries again.
		_, _ = d.reap(ctx, dir, func(base string) bool { return bases[base] }, time.Time{})
	}
	if first == nil {
		return nil
	}
	slices.Sort(remain)
	return &backend.RemainError{Keys: remain, Of: len(keys), Err: first}
}

// unlink removes a file, if it is there. A directory is no object.
func (d *Driver) unlink(rel string) error {
	path := d.path(rel)
	err := d.fs.Unlink(path)
	switch {
	case err == nil:
		return nil
	case isGone(err):
		return d.rootProblem()
	case isDirectory(err):
		if info, serr := d.fs.Lstat(path); serr == nil && info.IsDir() {
			return nil
		}
	}
	return failed("remove", rel, err)
}

// syncDir syncs a directory, if it is there.
func (d *Driver) syncDir(rel string) error {
	f, err := d.fs.Open(d.path(rel))
	if isGone(err) {
		return nil
	}
	if err != nil {
		return failed("open the directory", rel, err)
	}
	defer f.Close()
	if err := d.fs.SyncDir(f); err != nil {
		return failed("sync the directory", rel, err)
	}
	return nil
}

// prune removes the versions of a living record up to the number upTo, above
// which keepVersions are there. First it stops the writers that may still mean to
// make one of them, and before version 2 it makes the removal of version 1 durable;
// see record.go.
func (d *Driver) prune(dir, base, life string, upTo uint64) error {
	doomed := func(f recordFile) bool { return f.base == base && f.life == life && f.n > 0 && f.n <= upTo }
	_, err := d.removeVersions(dir, doomed, func(f recordFile) error {
		if f.n == 2 && !f.temp {
			return d.syncDir(dir)
		}
		return nil
	})
	return err
}

// removeVersions lists dir anew and removes the files that doomed names: first
// the temporary ones, then the versions from the lowest up, each after before
// allowed it, if that is given.
func (d *Driver) removeVersions(dir string, doomed func(f recordFile) bool, before func(f recordFile) error) (int, error) {
	type file struct {
		name string
		recordFile
	}
	var files []file
	err := d.recordFiles(dir, func(name string, f recordFile) {
		if !f.id && doomed(f) {
			files = append(files, file{name, f})
		}
	})
	if err != nil {
		return 0, err
	}
	slices.SortFunc(files, func(a, b file) int {
		switch {
		case a.temp != b.temp && a.temp:
			return -1
		case a.temp != b.temp:
			return 1
		case a.n < b.n:
			return -1
		case a.n > b.n:
			return 1
		}
		return 0
	})
	n := 0
	for _, f := range files {
		if before != nil {
			if err := before(f.recordFile); err != nil {
				return n, err
			}
		}
		switch err := d.fs.Unlink(d.path(joinKey(dir, f.name))); {
		case err == nil:
			n++
		case !isGone(err):
			return n, failed("remove", joinKey(dir, f.name), err)
		}
	}
	return n, nil
}

// reap removes the files in dir of records that bases names and that belong to no
// life, and returns how many. A life is over if its record's id names another, or
// is not there, although the life cannot begin any more: its Create has removed
// the file that would have become the id. Where old is set, such files, and those
// of a Replace, that were last written before old are removed too, which stops
// the Create or Replace that made them.
func (d *Driver) reap(ctx context.Context, dir string, bases func(base string) bool, old time.Time) (int, error) {
	lives := map[recordFile]bool{}
	var stale []string
	err := d.recordFiles(dir, func(name string, f recordFile) {
		if !bases(f.base) || f.id {
			return
		}
		lives[recordFile{base: f.base, life: f.life}] = true
		if f.temp && !old.IsZero() {
			stale = append(stale, joinKey(dir, name))
		}
	})
	if err != nil {
		if isGone(err) {
			return 0, nil
		}
		return 0, failed("list", dir, err)
	}
	n, err := d.removeOld(ctx, stale, old)
	if err != nil {
		return n, err
	}
	dead := map[recordFile]bool{}
	for l := range lives {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		r := record{key: joinKey(dir, l.base), dir: dir, base: l.base}
		if _, err := d.fs.Lstat(d.path(r.idTemp(l.life))); !isGone(err) {
			continue
		}
		// After the look at the temporary file: its link comes before its removal.
		life, err := d.readLife(r)
		if isGone(err) || err == nil && life != l.life {
			dead[l] = true
		}
	}
	if len(dead) == 0 {
		return n, nil
	}
	// A power failure must not bring back an id whose versions are gone.
	if err := d.syncDir(dir); err != nil {
		return n, err
	}
	// Listed anew: a Replace that began before the life was over is stopped by the
	// removal of its temporary file, before the version that it would make again.
	m, err := d.removeVersions(dir, func(f recordFile) bool {
		return dead[recordFile{base: f.base, life: f.life}]
	}, nil)
	return n + m, err
}

// removeOld removes those of the files that were last written before old.
func (d *Driver) removeOld(ctx context.Context, files []string, old time.Time) (int, error) {
	n := 0
	for _, rel := range files {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		info, err := d.fs.Lstat(d.path(rel))
		if isGone(err) || err == nil && (!info.Mode().IsRegular() || info.ModTime().After(old)) {
			continue
		}
		if err == nil {
			err = d.fs.Unlink(d.path(rel))
		}
		switch {
		case err == nil:
			n++
		case !isGone(err):
			return n, failed("remove", rel, err)
		}
	}
	return n, nil
}

// CleanUploads is backend.Driver.CleanUploads. It also removes what is left of
// records that were deleted by a process that was stopped in the middle; such
// files are nobody's, whatever their age. An upload that is cleaned away while
// it is still going on begins again.
func (d *Driver) CleanUploads(ctx context.Context, age time.Duration) (int, error) {
	if err := d.begin(ctx); err != nil {
		return 0, err
	}
	if err := d.rootProblem(); err != nil {
		return 0, err
	}
	if _, err := d.fs.Stat(d.root); isGone(err) {
		return 0, nil
	}
	now := d.now()
	if now.IsZero() {
		return 0, fmt.Errorf("%w: %w", backend.ErrDenied, errNoClock)
	}
	old := now.Add(-age)
	var files []string
	err := d.eachEntry(tempDir, func(e iofs.DirEntry) {
		// NFS renames what is open and removed to names like .nfs0123.
		if !strings.HasPrefix(e.Name(), ".") {
			files = append(files, joinKey(tempDir, e.Name()))
		}
	})
	if err != nil && !isGone(err) {
		return 0, failed("list", tempDir, err)
	}
	n, err := d.removeOld(ctx, files, old)
	if err != nil {
		return n, err
	}
	m, err := d.reapBelow(ctx, strings.TrimSuffix(backend.ControlPrefix, "/"), old)
	return n + m, err
}

// reapBelow is reap for dir and all directories below.
func (d *Driver) reapBelow(ctx context.Context, dir string, old time.Time) (int, error) {
	n, err := d.reap(ctx, dir, func(string) bool { return true }, old)
	if err != nil {
		return n, err
	}
	var subs []string
	err = d.eachEntry(dir, func(e iofs.DirEntry) {
		if e.IsDir() && backend.CheckKey(joinKey(dir, e.Name())) == nil {
			subs = append(subs, joinKey(dir, e.Name()))
		}
	})
	if err != nil && !isGone(err) {
		return n, failed("list", dir, err)
	}
	for _, sub := range subs {
		m, err := d.reapBelow(ctx, sub, old)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
