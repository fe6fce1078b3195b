package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/swampd/swampd/backend"
)

var (
	lifePattern = regexp.MustCompile(`[0-9a-f]{16}`)
	tempPattern = regexp.MustCompile(`(LIFE\.)[0-9a-f]{8}\b`)
	longNumber  = regexp.MustCompile(`\b0{1,19}(\d+)\b`)
)

// spoken makes a trace readable: random parts get names, numbers lose zeros.
func spoken(calls []call) []string {
	var got []string
	for _, c := range calls {
		s := c.String()
		s = longNumber.ReplaceAllString(s, "$1")
		s = lifePattern.ReplaceAllString(s, "LIFE")
		s = tempPattern.ReplaceAllString(s, "${1}TEMP")
		s = strings.ReplaceAll(s, tempDir+"/uLIFE", "UPLOAD")
		got = append(got, s)
	}
	return got
}

func demand(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n\t%s\nwant\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// The names of all that is made, in the order that makes it durable.
func TestOrderOfCalls(t *testing.T) {
	d, h := hooked(t)
	r := &trace{}
	h.after = func(c call, err error) error {
		if err == nil && !strings.Contains(c.name, "clock") && !strings.HasPrefix(c.name, "../..") {
			r.add(c)
		}
		return err
	}
	const changes = "mkdir create write chmod chtimes sync link rename syncdir unlink"

	create(t, d, "data/a/x", "x")
	demand(t, "the first create", spoken(r.take(changes)),
		"mkdir .",
		"syncdir ..",
		"syncdir .",
		"mkdir .tmp",
		"create UPLOAD",
		"write UPLOAD",
		"chtimes UPLOAD",
		"sync UPLOAD",
		"mkdir data",
		"syncdir .",
		"mkdir data/a",
		"syncdir data",
		"link UPLOAD -> data/a/x",
		"syncdir data/a",
		"unlink UPLOAD",
	)
	create(t, d, "data/a/y", "y")
	demand(t, "a create in the same directory", spoken(r.take(changes)),
		"create UPLOAD",
		"write UPLOAD",
		"chtimes UPLOAD",
		"sync UPLOAD",
		"link UPLOAD -> data/a/y",
		"syncdir data/a",
		"unlink UPLOAD",
	)
	info := create(t, d, "_control/r", "1")
	demand(t, "the create of a record", spoken(r.take(changes)),
		"mkdir _control",
		"syncdir .",
		"create _control/r.0.LIFE",
		"write _control/r.0.LIFE",
		"sync _control/r.0.LIFE",
		"create _control/r.1.LIFE.TEMP",
		"write _control/r.1.LIFE.TEMP",
		"sync _control/r.1.LIFE.TEMP",
		"link _control/r.1.LIFE.TEMP -> _control/r.1.LIFE",
		"syncdir _control",
		"link _control/r.0.LIFE -> _control/r.id",
		"syncdir _control",
		"unlink _control/r.1.LIFE.TEMP",
		"unlink _control/r.0.LIFE",
	)
	replace(t, d, "_control/r", "2", info.Version)
	demand(t, "a replace", spoken(r.take(changes)),
		"create _control/r.2.LIFE.TEMP",
		"write _control/r.2.LIFE.TEMP",
		"sync _control/r.2.LIFE.TEMP",
		"link _control/r.2.LIFE.TEMP -> _control/r.2.LIFE",
		"syncdir _control",
		"unlink _control/r.2.LIFE.TEMP",
	)
	if err := d.Delete(t.Context(), []string{"data/a/x", "_control/r", "data/a/y", "data/none"}); err != nil {
		t.Fatal(err)
	}
	got := spoken(r.take(changes))
	syncs := got[3:6] // of three directories, in any order
	slices.Sort(syncs)
	demand(t, "a delete", got,
		"unlink data/a/x",
		"unlink _control/r.id",
		"unlink data/a/y",
		"syncdir _control", "syncdir data", "syncdir data/a",
		"syncdir _control",
		"unlink _control/r.1.LIFE",
		"unlink _control/r.2.LIFE",
	)
}

// Directories that were taken away are made again, and made durable again, also
// when the file system gives the new one the number of the old.
func TestDirectoriesTakenAwayAreMadeDurableAgain(t *testing.T) {
	d, h := hooked(t)
	create(t, d, "data/a/x", "x")
	r := &trace{}
	h.after = func(c call, err error) error {
		if err == nil {
			r.add(c)
		}
		return err
	}
	for _, gone := range []string{"data/a", "data", "."} {
		if err := os.RemoveAll(filepath.Join(h.root, gone)); err != nil {
			t.Fatal(err)
		}
		// Another process makes it again and is stopped before it syncs.
		if err := os.MkdirAll(filepath.Join(h.root, "data/a"), 0o700); err != nil {
			t.Fatal(err)
		}
		r.take("")
		create(t, d, "data/a/x", gone)
		holds(t, d, "data/a/x", gone)
		want := map[string][]string{"data/a": {"data"}, "data": {".", "data"}, ".": {"..", ".", "data"}}[gone]
		got := spoken(r.take("syncdir"))
		for _, dir := range append(want, "data/a") {
			if !slices.Contains(got, "syncdir "+dir) {
				t.Errorf("after %s was made by another, %s was not synced: %q", gone, dir, got)
			}
		}
		if got[len(got)-1] != "syncdir data/a" {
			t.Errorf("the last sync is %q, want that of the object's directory", got[len(got)-1])
		}
	}
}

// A directory that goes away between its making and the link is made again.
func TestDirectoryRemovedUnderACreate(t *testing.T) {
	d, h := hooked(t)
	for _, at := range []string{"create", "link", "syncdir"} {
		once := true
		h.before = func(c call) error {
			if c.op == at && once && (at != "syncdir" || c.name == "data") {
				once = false
				return os.RemoveAll(filepath.Join(h.root, "data"))
			}
			return nil
		}
		create(t, d, "data/x", at)
		h.before = nil
		if once {
			t.Errorf("%s was never called", at)
		}
		if at != "syncdir" { // then the object itself was removed after it was made
			holds(t, d, "data/x", at)
		}
		noTemps(t, h.root)
		if err := os.RemoveAll(h.root); err != nil {
			t.Fatal(err)
		}
	}
}

// Faults of the file system, at each step of a create, and what the caller is told.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		op    string
		err   syscall.Errno
		want  error // beside err itself
		there bool  // the object is there afterwards
	}{
		{"create", syscall.ENOSPC, backend.ErrFull, false},
		{"create", syscall.EDQUOT, backend.ErrFull, false},
		{"create", syscall.EACCES, backend.ErrDenied, false},
		{"create", syscall.EROFS, backend.ErrDenied, false},
		{"create", syscall.EIO, nil, false},
		{"write", syscall.ENOSPC, backend.ErrFull, false},
		{"write", syscall.EIO, nil, false},
		{"sync", syscall.EDQUOT, backend.ErrFull, false},
		{"sync", syscall.EIO, nil, false},
		{"chtimes", syscall.EIO, nil, false},
		{"mkdir", syscall.ENOSPC, backend.ErrFull, false},
		{"mkdir", syscall.EROFS, backend.ErrDenied, false},
		{"syncdir data", syscall.EIO, backend.ErrUnknown, true},
		{"syncdir data", syscall.ENOSPC, backend.ErrUnknown, true},
		{"syncdir .", syscall.EIO, nil, false},
		{"syncdir .", syscall.EINVAL, backend.ErrUnsupported, false},
		{"link", syscall.ENOSPC, backend.ErrFull, false},
		{"link", syscall.EACCES, backend.ErrDenied, false},
		{"link", syscall.EROFS, backend.ErrDenied, false},
		{"link", syscall.EXDEV, backend.ErrUnsupported, false},
		{"link", syscall.EIO, backend.ErrUnknown, false},
		{"link", syscall.ETIMEDOUT, backend.ErrUnknown, false},
		{"link", syscall.ESTALE, backend.ErrConflict, false},
	} {
		t.Run(c.op+" "+c.err.Error(), func(t *testing.T) {
			d, h := hooked(t)
			op, name, _ := strings.Cut(c.op, " ")
			h.before = func(k call) error {
				if k.op == op && (name == "" || name == k.name) && !strings.Contains(k.name, "clock") {
					return c.err
				}
				return nil
			}
			_, err := d.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
			if !errors.Is(err, c.err) {
				t.Errorf("create: %v; want %v in its chain", err, c.err)
			}
			for _, s := range []error{backend.ErrFull, backend.ErrDenied, backend.ErrUnknown, backend.ErrUnsupported, backend.ErrExists, backend.ErrConflict, backend.ErrNotFound, backend.ErrNoBucket} {
				if errors.Is(err, s) != (s == c.want) {
					t.Errorf("create: %v; is it %q? want %t", err, s, s == c.want)
				}
			}
			if strings.Contains(err.Error(), h.root) {
				t.Errorf("%q repeats the path of the store, which the caller shows", err)
			}
			h.before = nil
			if c.there {
				holds(t, d, "data/x", "x")
				if _, err := d.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); !errors.Is(err, backend.ErrExists) {
					t.Errorf("create again: %v, want %v", err, backend.ErrExists)
				}
			} else {
				absent(t, d, "data/x")
				create(t, d, "data/x", "x")
			}
			noTemps(t, h.root)
		})
	}
}

// ErrExists means that what is there is durable: the caller may take it for its own.
func TestExistsThatCannotBeMadeDurableIsUnknown(t *testing.T) {
	for _, key := range []string{"data/x", "_control/x"} {
		d, h := hooked(t)
		create(t, d, key, "x")
		h.before = func(c call) error {
			if dir, _ := splitKey(key); c.op == "syncdir" && c.name == dir {
				return syscall.EIO
			}
			return nil
		}
		if _, err := d.Create(t.Context(), key, backend.Bytes([]byte("x"))); !errors.Is(err, backend.ErrUnknown) || !errors.Is(err, syscall.EIO) {
			t.Errorf("create over %s that cannot be synced: %v, want %v", key, err, backend.ErrUnknown)
		}
	}
}

// An NFS client that repeats a link whose answer was lost is told EEXIST.
func TestLinkThatSucceededAndSaysExists(t *testing.T) {
	d, h := hooked(t)
	h.after = func(c call, err error) error {
		if c.op == "link" && err == nil {
			return &os.LinkError{Op: "link", Old: c.name, New: c.to, Err: syscall.EEXIST}
		}
		return err
	}
	create(t, d, "data/x", "x")
	v := create(t, d, "_control/x", "1").Version
	replace(t, d, "_control/x", "2", v)
	holds(t, d, "data/x", "x")
	holds(t, d, "_control/x", "2")
}

// A link that failed and was carried out all the same is unknown, and found.
func TestLinkThatSucceededAndFails(t *testing.T) {
	d, h := hooked(t)
	v := create(t, d, "_control/x", "1").Version
	fail := func(c call, err error) error {
		if c.op == "link" && err == nil && (c.to != "_control/y.00000000000000000001" && !strings.Contains(c.to, "y.0")) {
			return syscall.EIO
		}
		return err
	}
	h.after = fail
	_, err1 := d.Create(t.Context(), "data/x", backend.Bytes([]byte("x")))
	_, err2 := d.Replace(t.Context(), "_control/x", backend.Bytes([]byte("2")), v)
	_, err3 := d.Create(t.Context(), "_control/y", backend.Bytes([]byte("y")))
	h.after = nil
	for i, err := range []error{err1, err2, err3} {
		if !errors.Is(err, backend.ErrUnknown) {
			t.Errorf("call %d: %v, want %v", i+1, err, backend.ErrUnknown)
		}
	}
	holds(t, d, "data/x", "x")
	holds(t, d, "_control/x", "2")
	holds(t, d, "_control/y", "y")
	if _, err := d.CleanUploads(t.Context(), 0); err != nil {
		t.Error(err)
	}
	holds(t, d, "_control/y", "y")
	noTemps(t, h.root)
}

// A file system without hard links is used by an exclusive rename, or refused
// before anything is made.
func TestFileSystemWithoutLinks(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOTSUP, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EMLINK} {
		d, h := hooked(t)
		h.before = func(c call) error {
			if c.op == "link" {
				return errno
			}
			return nil
		}
		create(t, d, "data/x", "x")
		holds(t, d, "data/x", "x")
		if _, err := d.Create(t.Context(), "data/x", backend.Bytes([]byte("other"))); !errors.Is(err, backend.ErrExists) {
			t.Errorf("%v: create over an object: %v, want %v", errno, err, backend.ErrExists)
		}
		v := create(t, d, "_control/x", "1").Version
		replace(t, d, "_control/x", "2", v)
		if _, err := d.Replace(t.Context(), "_control/x", backend.Bytes([]byte("3")), v); !errors.Is(err, backend.ErrChanged) {
			t.Errorf("%v: replace of a stale version: %v, want %v", errno, err, backend.ErrChanged)
		}
		holds(t, d, "_control/x", "2")
		noTemps(t, h.root)

		for _, rerr := range []syscall.Errno{syscall.EINVAL, syscall.ENOSYS, syscall.ENOTSUP} {
			d, h := hooked(t)
			h.before = func(c call) error {
				switch c.op {
				case "link":
					return errno
				case "rename":
					return rerr
				}
				return nil
			}
			for _, key := range []string{"data/x", "_control/x"} {
				if _, err := d.Create(t.Context(), key, backend.Bytes([]byte("x"))); !errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrUnknown) {
					t.Errorf("%v and %v: create: %v, want %v", errno, rerr, err, backend.ErrUnsupported)
				}
				absent(t, d, key)
			}
			noTemps(t, h.root)
		}
	}
}

// The error of a Delete of very many keys can still be read, and gives them all.
func TestDeleteNamesWhatRemains(t *testing.T) {
	d, h := hooked(t)
	const many, stay = 3000, 500
	var all []string
	for i := range many {
		all = append(all, fmt.Sprintf("data/%05d", i))
	}
	create(t, d, "data/00000", "x")
	h.before = func(c call) error {
		if c.op == "unlink" && strings.HasPrefix(c.name, "data/") && c.name < all[stay] {
			return syscall.EIO
		}
		return nil
	}
	err := d.Delete(t.Context(), all)
	var left *backend.RemainError
	if !errors.As(err, &left) || !slices.Equal(left.Keys, all[:stay]) {
		t.Errorf("%T gives no list of the %d keys that remain", err, stay)
	}
	for _, part := range []string{"500 of 3000 keys may remain", all[0], all[19] + " and 480 more", "input/output error"} {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("%.1000q does not say %q", fmt.Sprint(err), part)
		}
	}
	if n := len(fmt.Sprint(err)); n > 1000 {
		t.Errorf("the error is %d bytes long", n)
	}
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("the reason is not in the chain of %.200v", err)
	}
}
