package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
)

// versions returns the numbers of the version files of a record, in order.
func versions(t testing.TB, root, key string) []uint64 {
	t.Helper()
	dir, base := splitKey(key)
	var got []uint64
	for _, f := range files(t, filepath.Join(root, dir)) {
		if r, ok := parseRecordFile(f); ok && r.base == base && !r.id && !r.temp {
			got = append(got, r.n)
		}
	}
	return got
}

func TestNewestVersionsStay(t *testing.T) {
	root := filepath.Join(memDir(t), "store")
	d := open(t, root, lazyFS{OS()})
	v := create(t, d, "_control/r", "1").Version
	for n := uint64(2); n <= 2*keepVersions+3; n++ {
		v = replace(t, d, "_control/r", fmt.Sprint(n), v).Version
		var want []uint64
		for i := uint64(1); i <= n; i++ {
			if i+keepVersions > n {
				want = append(want, i)
			}
		}
		if got := versions(t, root, "_control/r"); !slices.Equal(got, want) {
			t.Fatalf("after version %d there are %v, want %v", n, got, want)
		}
	}
	if err := d.Delete(t.Context(), []string{"_control/r"}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, filepath.Join(root, "_control")); len(got) != 0 {
		t.Errorf("after the delete there are %q", got)
	}
}

func TestLoserOfACreateLeavesNothing(t *testing.T) {
	d, h := hooked(t)
	other := open(t, h.root, nil)
	for _, key := range []string{"data/x", "_control/r"} {
		once := true
		h.before = func(c call) error {
			if c.op == "link" && once && (c.to == key || strings.HasSuffix(c.to, ".id")) {
				once = false
				create(t, other, key, "winner")
			}
			return nil
		}
		if _, err := d.Create(t.Context(), key, backend.Bytes([]byte("loser"))); !errors.Is(err, backend.ErrExists) {
			t.Errorf("create of %s: %v, want %v", key, err, backend.ErrExists)
		}
		holds(t, other, key, "winner")
		noTemps(t, h.root)
	}
	if got := versions(t, h.root, "_control/r"); !slices.Equal(got, []uint64{1}) {
		t.Errorf("version files %v, want one", got)
	}
}

// A writer whose link was in time is told so, however many replaced it before it
// is told: the first of them read its bytes.
func TestReplacePausedAfterItsLink(t *testing.T) {
	d, h := hooked(t)
	other := open(t, h.root, lazyFS{OS()})
	v := create(t, d, "_control/r", "1").Version
	for _, many := range []int{1, keepVersions - 1, keepVersions, keepVersions + 1, 2 * keepVersions} {
		once := true
		h.after = func(c call, err error) error {
			if c.op == "link" && once {
				once = false
				next := holds(t, other, "_control/r", "slow")
				for i := range many {
					next = replace(t, other, "_control/r", fmt.Sprint("later ", i), next.Version)
				}
			}
			return err
		}
		replace(t, d, "_control/r", "slow", v)
		v = holds(t, d, "_control/r", fmt.Sprint("later ", many-1)).Version
	}
}

// A pruner that has much to do and is paused in the middle leads no reader astray,
// not even one that begins where the record was long ago.
func TestPrunerPausedInTheMiddle(t *testing.T) {
	d, h := hooked(t)
	other := open(t, h.root, nil)
	v := create(t, d, "_control/r", "1").Version
	h.before = func(c call) error { // nothing can be pruned
		if _, name := splitKey(c.name); c.op == "unlink" && strings.Count(name, ".") == 2 {
			return syscall.EIO
		}
		return nil
	}
	const all = keepVersions + 20
	for n := 2; n <= all; n++ {
		v = replace(t, d, "_control/r", fmt.Sprint(n), v).Version
	}
	if got := versions(t, h.root, "_control/r"); len(got) != all {
		t.Fatalf("%d versions, want %d", len(got), all)
	}
	pruned := 0
	h.before = func(c call) error {
		if _, name := splitKey(c.name); c.op == "unlink" && strings.Count(name, ".") == 2 {
			pruned++
			life, _, _ := parseVersion(v)
			for n := uint64(1); n <= all+1; n++ {
				other.hints.m = map[string]hint{"_control/r": {life, n}}
				holds(t, other, "_control/r", "last")
			}
		}
		return nil
	}
	replace(t, d, "_control/r", "last", v)
	if pruned != 21 {
		t.Errorf("%d versions were pruned, want 21", pruned)
	}
}

// A reader that is paused after it read the id, while the record is deleted and its
// versions are half removed, reads the last one or nothing.
func TestReaderPausedWhileItsRecordIsRemoved(t *testing.T) {
	const all = 5
	for removed := range all {
		for from := uint64(1); from <= all; from++ {
			reader, h := hooked(t)
			k := &killFS{FS: OS(), deadAfter: removed}
			other := open(t, h.root, k)
			v := create(t, other, "_control/r", "1").Version
			for n := 2; n <= all; n++ {
				v = replace(t, other, "_control/r", fmt.Sprint(n), v).Version
			}
			life, _, _ := parseVersion(v)
			reader.hints.set("_control/r", life, from)
			h.before = func(c call) error {
				if c.op == "lstat" && strings.HasSuffix(c.name, life) {
					h.before = nil
					k.dieAfter = life
					if err := other.Delete(t.Context(), []string{"_control/r"}); err != nil {
						t.Error(err)
					}
					if got := versions(t, h.root, "_control/r"); len(got) != all-removed-1 {
						t.Errorf("%d versions are left, want %d", len(got), all-removed-1)
					}
				}
				return nil
			}
			obj, err := reader.Get(t.Context(), "_control/r", backend.GetOptions{})
			if errors.Is(err, backend.ErrNotFound) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if obj.Version != v {
				t.Errorf("with %d versions removed, from version %d on: got version %s, want %s", removed+1, from, obj.Version, v)
			}
			obj.Body.Close()
		}
	}
}

// Whoever removes what belongs to no life spares a life that is about to begin,
// also if it begins in the middle of that.
func TestRemoverMeetsACreateInFlight(t *testing.T) {
	root := filepath.Join(t.TempDir(), "store")
	slow := &hookFS{FS: OS(), root: root}
	creator := open(t, root, slow)
	remove := &hookFS{FS: OS(), root: root}
	remover := open(t, root, remove)
	create(t, creator, "_control/other", "other")

	atLink, link, made := make(chan struct{}), make(chan struct{}), make(chan struct{})
	slow.before = func(c call) error {
		if c.op == "link" && strings.HasSuffix(c.to, ".id") {
			close(atLink)
			<-link
		}
		return nil
	}
	go func() {
		defer close(made)
		if _, err := creator.Create(context.Background(), "_control/r", backend.Bytes([]byte("r"))); err != nil {
			t.Errorf("create: %v", err)
		}
	}()
	await(t, "the link of the id", atLink)
	// The remover has listed the life and found no id; then it begins.
	looked := false
	remove.after = func(c call, err error) error {
		if c.op == "open" && c.name == "_control/r.id" && err != nil && !looked {
			looked = true
			close(link)
			await(t, "the create", made)
		}
		return err
	}
	if err := remover.Delete(t.Context(), []string{"_control/nothing"}); err != nil {
		t.Error(err)
	}
	if _, err := remover.reap(t.Context(), "_control", func(string) bool { return true }, time.Time{}); err != nil {
		t.Error(err)
	}
	if !looked {
		close(link)
		await(t, "the create", made)
	}
	holds(t, remover, "_control/r", "r")
}

// What a killed Delete leaves is nobody's: it is not seen, not in the way, and goes
// with the next clean-up.
func TestDeleteThatWasKilled(t *testing.T) {
	root := filepath.Join(t.TempDir(), "store")
	k := &killFS{FS: OS()}
	d := open(t, root, k)
	other := open(t, root, nil)
	v := create(t, d, "_control/r", "1").Version
	for range 3 {
		v = replace(t, d, "_control/r", "more", v).Version
	}
	k.dieAfter = ".id"
	if err := d.Delete(t.Context(), []string{"_control/r"}); err == nil {
		t.Fatal("the delete was not killed")
	}
	if got := versions(t, root, "_control/r"); len(got) != 4 {
		t.Fatalf("version files %v, want 4", got)
	}
	absent(t, other, "_control/r")
	if got := keys(t, other, "", ""); len(got) != 0 {
		t.Errorf("listed %q, want nothing", got)
	}
	if _, err := other.Replace(t.Context(), "_control/r", backend.Bytes(nil), v); !errors.Is(err, backend.ErrChanged) {
		t.Errorf("replace: %v, want %v", err, backend.ErrChanged)
	}
	if info := create(t, other, "_control/r", "new"); info.Version == v {
		t.Errorf("the version %q came back", v)
	}
	holds(t, other, "_control/r", "new")
	if n, err := other.CleanUploads(t.Context(), patience); n != 4 || err != nil {
		t.Errorf("clean-up: %d, %v, want 4 files of no life", n, err)
	}
	holds(t, other, "_control/r", "new")
	if got := versions(t, root, "_control/r"); !slices.Equal(got, []uint64{1}) {
		t.Errorf("version files %v, want one", got)
	}
}

// killFS kills the process after it unlinked a file whose name ends like that, and
// deadAfter others of the kind.
type killFS struct {
	FS
	dieAfter  string
	deadAfter int
	dead      bool
}

func (k *killFS) Unlink(name string) error {
	if k.dead {
		return errKilled
	}
	err := k.FS.Unlink(name)
	if k.dieAfter != "" && strings.HasSuffix(name, k.dieAfter) {
		if k.deadAfter--; k.deadAfter < 0 {
			k.dead = true
			return errKilled
		}
	}
	return err
}

func TestDamagedRecords(t *testing.T) {
	for what, damage := range map[string]func(dir, life string) error{
		"an empty id":    func(dir, _ string) error { return os.WriteFile(dir+"/r.id", nil, 0o600) },
		"a short id":     func(dir, life string) error { return os.WriteFile(dir+"/r.id", []byte(life[:5]), 0o600) },
		"a long id":      func(dir, life string) error { return os.WriteFile(dir+"/r.id", []byte(life+"\nx"), 0o600) },
		"an id of words": func(dir, _ string) error { return os.WriteFile(dir+"/r.id", []byte("there once was a\n"), 0o600) },
		"no versions": func(dir, life string) error {
			return os.Remove(fmt.Sprintf("%s/r.%020d.%s", dir, 1, life))
		},
		"a directory as a version": func(dir, life string) error {
			return os.Mkdir(fmt.Sprintf("%s/r.%020d.%s", dir, 2, life), 0o700)
		},
		"a directory as a version, and no other": func(dir, life string) error {
			name := fmt.Sprintf("%s/r.%020d.%s", dir, 1, life)
			return errors.Join(os.Remove(name), os.Mkdir(name, 0o700))
		},
	} {
		root := t.TempDir()
		d := open(t, root, nil)
		life, _, _ := parseVersion(create(t, d, "_control/r", "r").Version)
		if err := damage(filepath.Join(root, "_control"), life); err != nil {
			t.Fatal(err)
		}
		_, err := d.Get(t.Context(), "_control/r", backend.GetOptions{})
		if err == nil || errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "_control/r.id") {
			t.Errorf("%s: get: %v; want an error that names the id file", what, err)
		}
		var lerr error
		for _, lerr = range d.List(t.Context(), "", "") {
		}
		if lerr == nil {
			t.Errorf("%s: the list hides it", what)
		}
		if err := d.Delete(t.Context(), []string{"_control/r"}); err != nil {
			t.Errorf("%s: delete: %v", what, err)
		}
		create(t, d, "_control/r", "healed")
		holds(t, d, "_control/r", "healed")
	}
}

func TestVersionsOfOtherStoresAreOtherVersions(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	v := create(t, d, "_control/r", "r").Version
	for _, bad := range []backend.Version{"1", "x", ".", "0." + v[2:], "-1." + v[2:], v + "x", v[:len(v)-1], "2" + v[1:], "1.0123456789abcdeF", "1a-15e"} {
		if _, err := d.Replace(t.Context(), "_control/r", backend.Bytes(nil), bad); !errors.Is(err, backend.ErrChanged) {
			t.Errorf("replace of version %q: %v, want %v", bad, err, backend.ErrChanged)
		}
	}
	holds(t, d, "_control/r", "r")
	noTemps(t, d.root)
}

func TestParseRecordFile(t *testing.T) {
	const n, life = "00000000000000000042", "0123456789abcdef"
	for name, want := range map[string]recordFile{
		"r.id":                              {base: "r", id: true},
		"r." + n + "." + life:               {base: "r", n: 42, life: life},
		"a-b_c." + n + "." + life + ".0ab1": {base: "a-b_c", n: 42, life: life, temp: true},
		"r.00000000000000000000." + life:    {base: "r", life: life, temp: true},
	} {
		if got, ok := parseRecordFile(name); !ok || got != want {
			t.Errorf("%s: %+v, %t; want %+v", name, got, ok, want)
		}
	}
	for _, name := range []string{"", "r", ".", ".id", "r.", "r.idx", "r.id.x", "r.42." + life, "r." + n, "r." + n + ".", "r." + n + "." + life[1:], "r." + n + "." + life + ".", "r.00000000000000000000." + life + ".x", "r.99999999999999999999." + life, "r.+0000000000000000042." + life, "r." + n + ".0123456789ABCDEF"} {
		if got, ok := parseRecordFile(name); ok {
			t.Errorf("%s: %+v, want nothing", name, got)
		}
	}
	// The longest name that there can be is one that file systems take.
	r := recordOf(backend.ControlPrefix + strings.Repeat("s", backend.MaxSegment))
	if _, name := splitKey(r.temp(life, 1<<64-1)); len(name) > 255 {
		t.Errorf("the longest name has %d bytes", len(name))
	}
}

// However fast it goes, no version of a record is older than the one before it: its
// age is what others judge its writer by.
func TestTimesOfARecordDoNotGoBack(t *testing.T) {
	d := open(t, memDir(t), lazyFS{OS()})
	info := create(t, d, "_control/r", "0")
	for n := range 200 {
		next := replace(t, d, "_control/r", fmt.Sprint(n), info.Version)
		if next.Modified.Before(info.Modified) {
			t.Fatalf("version %q is of %v, %q before it of %v", next.Version, next.Modified, info.Version, info.Modified)
		}
		info = next
	}
}
