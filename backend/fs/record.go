package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/afero"

	"github.com/swampd/swampd/backend"
)

// This file is how records change without locks. The files of a record are:
//
//	R.id            holds the life: a random number, drawn by Create
//	R.<n>.<life>    version n of that life; its bytes are the record's
//	R.<n>.<life>.<random>   becomes that version if nobody is faster
//	R.0.<life>      becomes R.id
//
// (n is written with 20 digits.) The record holds something as long as R.id is
// there, namely the highest version of the life that it names. All changes are
// one system call that decides:
//
//   - Create links R.id, after version 1 of its new life, which nobody reads
//     until then, is durable.
//   - Replace of n links R.<n+1>.<life>.
//   - Delete unlinks R.id. What it leaves belongs to no life and is removed
//     afterwards, by anyone.
//
// Versions are made in order 1, 2, 3, …, and all but the newest keepVersions are
// pruned, from the lowest up. So the versions that are there have no gaps, except
// at moments between the calls of one pruner, and then everything below the gap
// is on its way out. Four things can go wrong, and these are the rules:
//
// A number could be linked twice: a writer is paused before its link, others make
// 64 more versions, and its number is free again. So it makes its temporary file,
// whose name tells the number, before it checks that n is the highest version;
// and whoever prunes a number first removes the temporary files for it, in a
// listing that begins after 64 higher versions were there. The paused writer's
// link then fails, since link(2) needs its source. A writer that makes its file
// after that listing finds the higher versions in its check. Delete does the same
// before it removes the versions of a life. So a link that succeeds is a success,
// whatever is there when the writer looks again: higher versions then stand on its
// own, and to call that a failure would be wrong. (On NFS the check is fresh,
// because making the temporary file in the same directory tells the client that
// what it remembers of the directory is old.)
//
// An old version could be taken for the highest: a listing is no snapshot, and
// may miss every version if enough come and go while it runs. So a reader, having
// found version n in any way, looks for n+1, which must not be there, and then
// opens n, which must. If n+1 had been pruned at that moment, n would have been
// pruned before.
//
// A life could end and another begin: so numbers are never used again, because
// the life is part of every name. A paused writer, pruner or deleter of a former
// life meets no file of the present one. A reader that is paused after R.id reads
// what the record held when that life ended, or finds nothing and begins again:
// also then versions go from the lowest up. A writer that is paused after its
// check, and links in a life that is over, replaced the record before it was
// deleted; nobody can have seen otherwise.
//
// A power failure could bring back a version below a gap, since what is pruned is
// not synced one by one. So a reader that knows nothing of a life begins at
// version 1 only if that is there, else with a listing; and the removal of
// version 1 is durable before version 2 is removed.

// keepVersions is how many versions of a record stay.
const keepVersions = 64

// record names a record's files.
type record struct{ key, dir, base string }

func recordOf(key string) record {
	dir, base := splitKey(key)
	return record{key, dir, base}
}

const lifeLen = 16

func (r record) id() string { return r.key + ".id" }

func (r record) version(life string, n uint64) string {
	return fmt.Sprintf("%s.%020d.%s", r.key, n, life)
}

func (r record) temp(life string, n uint64) string { return r.version(life, n) + "." + random(4) }

// idTemp has no random part: whoever finds version 1 of a life can ask whether
// its Create is still going on.
func (r record) idTemp(life string) string { return r.version(life, 0) }

// recordFile is what the name of a record's file says.
type recordFile struct {
	base, life string
	n          uint64
	id, temp   bool
}

// parseRecordFile takes a name apart. Names without a dot are directories'.
func parseRecordFile(name string) (f recordFile, ok bool) {
	base, rest, _ := strings.Cut(name, ".")
	if base == "" || rest == "" {
		return f, false
	}
	f.base = base
	if rest == "id" {
		f.id = true
		return f, true
	}
	num, rest, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(num, 10, 64)
	if err != nil || len(num) != 20 {
		return f, false
	}
	life, suffix, temp := strings.Cut(rest, ".")
	if !isLife(life) || temp && (suffix == "" || n == 0) {
		return f, false
	}
	f.n, f.life, f.temp = n, life, temp || n == 0
	return f, true
}

func isLife(s string) bool {
	if len(s) != lifeLen {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

// state is what a record holds.
type state struct {
	life string
	n    uint64
	info os.FileInfo
	f    afero.File // open if that was asked for
}

func (s state) version() backend.Version {
	return backend.Version(strconv.FormatUint(s.n, 10) + "." + s.life)
}

func (s state) describe() backend.Info {
	return backend.Info{Size: s.info.Size(), Version: s.version(), Modified: s.info.ModTime()}
}

// parseVersion takes apart what state.version put together.
func parseVersion(v backend.Version) (life string, n uint64, ok bool) {
	num, life, _ := strings.Cut(string(v), ".")
	n, err := strconv.ParseUint(num, 10, 64)
	return life, n, err == nil && n > 0 && isLife(life)
}

// readLife returns the life that R.id names, or an error that isGone.
func (d *Driver) readLife(r record) (string, error) {
	f, _, err := d.openFile(r.id())
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [lifeLen + 2]byte
	n, err := f.ReadAt(b[:], 0)
	if isGone(err) {
		return "", err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", failed("read", r.id(), err)
	}
	if life := string(b[:lifeLen]); n == lifeLen+1 && b[lifeLen] == '\n' && isLife(life) {
		return life, nil
	}
	return "", fmt.Errorf("%s is damaged: it must hold %d digits and a line feed; restore it from the names of the version files beside it", r.id(), lifeLen)
}

const (
	// climbLimit is how many names are tried before the directory is listed.
	climbLimit = 8
	// maxEmpty is how often a record may seem to have an id and no version that can be
	// opened, until it is given up. It takes keepVersions new ones, or a delete and a
	// create, during the listing each time.
	maxEmpty = 64
)

// current returns what r holds: backend.ErrNotFound if nothing.
func (d *Driver) current(ctx context.Context, r record, open bool) (state, error) {
	last := uint64(0) // the highest version that was listed
	for empty := 0; ; {
		if err := ctx.Err(); err != nil {
			return state{}, err
		}
		life, err := d.readLife(r)
		if isGone(err) {
			if err := d.rootProblem(); err != nil {
				return state{}, err
			}
			return state{}, backend.ErrNotFound
		}
		if err != nil {
			return state{}, err
		}
		s, err := d.climbFromHint(r, life, open)
		if isGone(err) {
			var n uint64
			n, err = d.highest(r, life)
			if err == nil && n == 0 {
				err = os.ErrNotExist
			} else if err == nil {
				s, err = d.climb(r, life, n, keepVersions, open)
			}
			if isGone(err) && n <= last {
				empty++
			}
			last = max(last, n)
		}
		switch {
		case err == nil:
			d.hints.set(r.key, life, s.n)
			return s, nil
		case !isGone(err):
			return state{}, err
		case empty >= maxEmpty:
			return state{}, fmt.Errorf("%s names the life %s, whose newest version file is not there: somebody removed it by hand; delete the record, or restore the file", r.id(), life)
		}
	}
}

// climbFromHint is climb from where the record was when it was last seen, or from
// its first version.
func (d *Driver) climbFromHint(r record, life string, open bool) (state, error) {
	n := d.hints.get(r.key, life)
	if n == 0 {
		n = 1
		if _, err := d.fs.Lstat(d.path(r.version(life, n))); isGone(err) {
			return state{}, err
		} else if err != nil {
			return state{}, failed("look at", r.version(life, n), err)
		}
	}
	return d.climb(r, life, n, climbLimit, open)
}

// climb goes up from version n to one that has no successor and is there. The
// order of the two looks matters, see above. It fails with an error that isGone
// if that is not found within limit steps.
func (d *Driver) climb(r record, life string, n uint64, limit int, open bool) (s state, err error) {
	for ; ; n++ {
		_, err := d.fs.Lstat(d.path(r.version(life, n+1)))
		if isGone(err) {
			break
		}
		if err != nil {
			return s, failed("look at", r.version(life, n+1), err)
		}
		if limit--; limit < 0 {
			return s, os.ErrNotExist
		}
	}
	s = state{life: life, n: n}
	name := r.version(life, n)
	if open {
		s.f, s.info, err = d.openFile(name)
		return s, err
	}
	switch s.info, err = d.fs.Lstat(d.path(name)); {
	case err == nil && s.info.IsDir():
		err = os.ErrNotExist
	case err != nil && !isGone(err):
		err = failed("look at", name, err)
	}
	return s, err
}

// highest lists the directory for the highest version of a life; 0 if there is none.
func (d *Driver) highest(r record, life string) (uint64, error) {
	var top uint64
	err := d.recordFiles(r.dir, func(_ string, f recordFile) {
		if f.base == r.base && f.life == life && !f.temp {
			top = max(top, f.n)
		}
	})
	if err != nil && !isGone(err) {
		err = failed("list", r.dir, err)
	}
	return top, err
}

// recordFiles visits the files of all records that lie directly in dir.
func (d *Driver) recordFiles(dir string, visit func(name string, f recordFile)) error {
	return d.eachEntry(dir, func(e iofs.DirEntry) {
		if f, ok := parseRecordFile(e.Name()); ok {
			visit(e.Name(), f)
		}
	})
}

// createRecord begins a new life of a record.
func (d *Driver) createRecord(ctx context.Context, key string, body backend.Body) (info backend.Info, err error) {
	r := recordOf(key)
	if _, err := d.readLife(r); err == nil {
		return info, d.exists(ctx, r.dir)
	} else if !isGone(err) {
		return info, err
	}
	h, err := d.hold(ctx, r.dir) // makes the directory
	if err != nil {
		return info, err
	}
	d.dirs.release(h)
	life := random(lifeLen / 2)
	id, err := d.newTemp(r.idTemp(life))
	if err != nil {
		return info, goneTemp(err)
	}
	keep := false
	defer func() {
		if !keep {
			d.discard(id)
		}
	}()
	if err := d.fill(ctx, id, backend.Bytes([]byte(life+"\n"))); err != nil {
		return info, err
	}
	first, err := d.newTemp(r.temp(life, 1))
	if err != nil {
		return info, goneTemp(err)
	}
	defer d.discard(first)
	if err := d.fill(ctx, first, body); err != nil {
		return info, err
	}
	name := r.version(life, 1)
	if _, err := d.publish(ctx, first, r.dir, name); err != nil {
		// Nobody reads this version before there is an id.
		d.discard(id)
		_ = d.fs.Unlink(d.path(name))
		return info, err
	}
	begun, err := d.publish(ctx, id, r.dir, r.id())
	if begun && err != nil {
		// The record may live: its files stay for whoever looks.
		keep = true
		return info, &unknown{err}
	}
	if err != nil {
		d.discard(id)
		_ = d.fs.Unlink(d.path(name))
		if errors.Is(err, iofs.ErrExist) {
			return info, d.exists(ctx, r.dir)
		}
		return info, err
	}
	s := state{life: life, n: 1, info: first.info}
	d.hints.set(key, life, 1)
	return s.describe(), nil
}

// goneTemp is for a temporary file that could not even be made, because the
// directory was taken away.
func goneTemp(err error) error {
	if isGone(err) {
		return errTempGone
	}
	return err
}

// Replace is backend.Driver.Replace.
func (d *Driver) Replace(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
	if err := d.begin(ctx); err != nil {
		return backend.Info{}, err
	}
	if err := backend.CheckKey(key); err != nil {
		return backend.Info{}, err
	}
	if !backend.Replaceable(key) {
		return backend.Info{}, fmt.Errorf("%w: only keys below %s may be replaced", backend.ErrBadKey, backend.ControlPrefix)
	}
	life, n, ok := parseVersion(old)
	if !ok {
		return backend.Info{}, fmt.Errorf("%w: %q is no version of a record in a directory", backend.ErrChanged, old)
	}
	for range maxAttempts {
		s, err := d.replace(ctx, recordOf(key), life, n, body)
		if err == nil {
			info := s.describe()
			info.Now = d.now()
			return info, nil
		}
		if !errors.Is(err, errTempGone) {
			return backend.Info{}, err
		}
	}
	return backend.Info{}, fmt.Errorf("%w: %w, %d times", backend.ErrConflict, errTempGone, maxAttempts)
}

// replace makes version n+1 of a life, of which n must be the current one.
func (d *Driver) replace(ctx context.Context, r record, life string, n uint64, body backend.Body) (state, error) {
	t, err := d.newTemp(r.temp(life, n+1))
	if isGone(err) {
		if err := d.rootProblem(); err != nil {
			return state{}, err
		}
		return state{}, fmt.Errorf("%w: nothing is there", backend.ErrChanged)
	}
	if err != nil {
		return state{}, err
	}
	defer d.discard(t)
	// Only now: see the first rule above.
	s, err := d.current(ctx, r, false)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return state{}, fmt.Errorf("%w: nothing is there", backend.ErrChanged)
	case err != nil:
		return state{}, err
	case s.life != life || s.n != n:
		return state{}, fmt.Errorf("%w: version %q, and %d.%s was to be replaced", backend.ErrChanged, s.version(), n, life)
	}
	if err := d.fill(ctx, t, body); err != nil {
		return state{}, err
	}
	begun, err := d.publish(ctx, t, r.dir, r.version(life, n+1))
	switch {
	case errors.Is(err, iofs.ErrExist):
		return state{}, fmt.Errorf("%w: another was faster to replace version %d.%s", backend.ErrChanged, n, life)
	case err != nil && begun:
		return state{}, &unknown{err}
	case err != nil:
		return state{}, err
	}
	d.hints.set(r.key, life, n+1)
	if n+1 > keepVersions {
		// The next replace removes what this one cannot.
		_ = d.prune(r.dir, r.base, life, n+1-keepVersions)
	}
	return state{life: life, n: n + 1, info: t.info}, nil
}

// hints remembers versions that were current, to begin looking there. The zero
// value is empty. What it says may be old, not wrong.
type hints struct {
	mu sync.Mutex
	m  map[string]hint
}

type hint struct {
	life string
	n    uint64
}

// maxHints is how many records a driver remembers.
const maxHints = 4096

// get returns 0 if nothing is known.
func (h *hints) get(key, life string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v := h.m[key]; v.life == life && life != "" {
		return v.n
	}
	return 0
}

func (h *hints) set(key, life string, n uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil || len(h.m) >= maxHints {
		h.m = map[string]hint{}
	}
	if v := h.m[key]; v.life != life || v.n < n {
		h.m[key] = hint{life, n}
	}
}
