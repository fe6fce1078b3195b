package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/afero"

	"github.com/swampd/swampd/backend"
)

// node is a file or directory of a disk: what processes see, and what is left
// after a power failure.
type node struct {
	seen, synced map[string]*node // of a directory
	data         []byte           // of a file
	safe         bool             // its data are synced
}

func newDir() *node { return &node{seen: map[string]*node{}, synced: map[string]*node{}} }

// disk keeps account of what was synced below base. Nothing is really synced.
type disk struct {
	base string
	top  *node
}

func (k *disk) find(path string) *node {
	n := k.top
	rel, err := filepath.Rel(k.base, path)
	if err != nil || rel == "." || strings.HasPrefix(rel, "..") {
		return n
	}
	for _, s := range strings.Split(rel, string(os.PathSeparator)) {
		if n == nil {
			return nil
		}
		n = n.seen[s]
	}
	return n
}

func (k *disk) parent(path string) (map[string]*node, string) {
	return k.find(filepath.Dir(path)).seen, filepath.Base(path)
}

// fail writes what a power failure leaves into dir. Of what was not synced, each
// entry may have arrived or not, in any order, and each file may be torn.
func (k *disk) fail(rng *rand.Rand, dir string) error { return k.top.write(rng, dir) }

func (n *node) write(rng *rand.Rand, path string) error {
	if n.seen == nil {
		data := n.data
		if !n.safe {
			data = data[:rng.IntN(len(data)+1)]
		}
		return os.WriteFile(path, data, 0o600)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	names := maps.Clone(n.seen)
	maps.Copy(names, n.synced)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		e := n.seen[name]
		if rng.IntN(2) == 0 {
			e = n.synced[name]
		}
		if e == nil {
			continue
		}
		if err := e.write(rng, filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// process is the disk as one process uses it. It can be killed: from one of its
// calls on, none has an effect, so nothing is cleaned up either.
type process struct {
	FS
	k     *disk
	left  int // calls until it is killed; negative: never
	calls *int
	tick  func()
}

var errKilled = errors.New("the process was killed")

// step is one call that changes something.
func (p *process) step() error {
	if p.left == 0 {
		return errKilled
	}
	if p.left > 0 {
		p.left--
	}
	*p.calls++
	p.tick()
	return nil
}

func (p *process) Mkdir(name string, perm os.FileMode) error {
	if err := p.step(); err != nil {
		return err
	}
	err := p.FS.Mkdir(name, perm)
	if err == nil {
		m, b := p.k.parent(name)
		m[b] = newDir()
	}
	return err
}

func (p *process) Open(name string) (afero.File, error) { return p.OpenFile(name, os.O_RDONLY, 0) }

func (p *process) OpenFile(name string, flag int, perm os.FileMode) (afero.File, error) {
	if flag&os.O_CREATE != 0 {
		if err := p.step(); err != nil {
			return nil, err
		}
	}
	f, err := p.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	if flag&os.O_CREATE != 0 {
		m, b := p.k.parent(name)
		m[b] = &node{}
	}
	return &processFile{f, p, p.k.find(name)}, nil
}

func (p *process) Link(oldname, newname string) error {
	if err := p.step(); err != nil {
		return err
	}
	err := p.FS.Link(oldname, newname)
	if err == nil {
		m, b := p.k.parent(newname)
		m[b] = p.k.find(oldname)
	}
	return err
}

func (p *process) Unlink(name string) error {
	if err := p.step(); err != nil {
		return err
	}
	err := p.FS.Unlink(name)
	if err == nil {
		m, b := p.k.parent(name)
		delete(m, b)
	}
	return err
}

func (p *process) SyncDir(f afero.File) error {
	if err := p.step(); err != nil {
		return err
	}
	n := f.(*processFile).n
	n.synced = maps.Clone(n.seen)
	return nil
}

func (p *process) Touch(f afero.File) error              { return p.FS.Touch(f.(*processFile).File) }
func (p *process) StartWriting(afero.File, int64, int64) {}
func (p *process) Chtimes(name string, a, m time.Time) error {
	if p.left == 0 {
		return errKilled
	}
	return p.FS.Chtimes(name, a, m)
}

type processFile struct {
	afero.File
	p *process
	n *node
}

func (f *processFile) Write(b []byte) (int, error) {
	if err := f.p.step(); err != nil {
		return 0, err
	}
	f.n.data, f.n.safe = append(f.n.data, b...), false
	return f.File.Write(b)
}

func (f *processFile) Sync() error {
	if err := f.p.step(); err != nil {
		return err
	}
	f.n.safe = true
	return nil
}

func (f *processFile) ReadDir(n int) ([]iofs.DirEntry, error) {
	return f.File.(iofs.ReadDirFile).ReadDir(n)
}

// crashRun is random work of processes that are killed now and then, with a power
// failure at one of its calls.
type crashRun struct {
	*testing.T
	rng    *rand.Rand
	k      *disk
	root   string
	p      *process
	d      *Driver
	calls  int
	failAt int
	after  string // what the power failure left, once it was
	// may is what each key may hold now, and would after a power failure; "" is
	// nothing.
	may map[string]map[string]bool
	log []string
}

func (r *crashRun) start() {
	r.p = &process{FS: OS(), k: r.k, left: -1, calls: &r.calls, tick: r.tick}
	d, err := New(r.root, &Options{FS: r.p})
	if err != nil {
		r.Fatal(err)
	}
	r.d = d
}

func (r *crashRun) tick() {
	if r.calls != r.failAt {
		return
	}
	r.after = filepath.Join(r.TempDir(), "after")
	if err := r.k.fail(r.rng, r.after); err != nil {
		r.Fatal(err)
	}
}

func (r *crashRun) failed() bool { return r.after != "" }

// do runs a call that makes key hold data. It may be killed in the middle.
func (r *crashRun) do(what, key, data string, f func(ctx context.Context) error) {
	r.log = append(r.log, fmt.Sprintf("%4d %s %s %q", r.calls, what, key, data))
	before := r.may[key]
	r.may[key] = maps.Clone(before)
	r.may[key][data] = true
	killed := r.rng.IntN(4) == 0
	if killed {
		r.p.left = r.rng.IntN(20)
	}
	err := f(context.Background())
	if r.failed() {
		return
	}
	dead := r.p.left == 0
	r.p.left = -1
	r.log = append(r.log, fmt.Sprintf("     -> %v (killed: %t)", err, dead))
	switch {
	case dead:
		r.d.Close()
		r.start()
		if err == nil { // killed while it tidied up
			r.may[key] = map[string]bool{data: true}
		}
	case err == nil:
		r.may[key] = map[string]bool{data: true}
	case errors.Is(err, backend.ErrExists):
		got := r.read(r.d, key)
		if !before[got] || got == "" {
			r.Errorf("%s exists and holds %q, may hold %v", key, got, before)
		}
		r.may[key] = map[string]bool{got: true} // and that is promised
	default:
		r.Errorf("%s %s: %v", what, key, err)
	}
}

func (r *crashRun) read(d *Driver, key string) string {
	obj, err := d.Get(context.Background(), key, backend.GetOptions{})
	if errors.Is(err, backend.ErrNotFound) {
		return ""
	}
	if err != nil {
		r.Errorf("get %s: %v", key, err)
		return ""
	}
	defer obj.Body.Close()
	b, err := io.ReadAll(obj.Body)
	if err != nil {
		r.Errorf("read %s: %v", key, err)
	}
	return string(b)
}

var crashKeys = []string{"a", "d/x", "d/e/f/y", "_control/r", "_control/s/t"}

func (r *crashRun) step(i int) {
	key := crashKeys[r.rng.IntN(len(crashKeys))]
	data := fmt.Sprintf("%s number %d", key, i)
	body := backend.Bytes([]byte(data))
	switch n := r.rng.IntN(10); {
	case n < 4 && backend.Replaceable(key):
		obj, err := r.d.Get(context.Background(), key, backend.GetOptions{})
		if err != nil {
			return
		}
		obj.Body.Close()
		r.do("replace", key, data, func(ctx context.Context) error {
			_, err := r.d.Replace(ctx, key, body, obj.Version)
			return err
		})
	case n < 7:
		r.do("create", key, data, func(ctx context.Context) error {
			_, err := r.d.Create(ctx, key, body)
			return err
		})
	case n < 9:
		r.do("delete", key, "", func(ctx context.Context) error { return r.d.Delete(ctx, []string{key}) })
	default:
		if _, err := r.d.CleanUploads(context.Background(), 0); err != nil && !r.failed() {
			r.Errorf("clean: %v", err)
		}
	}
}

func TestPowerFailureKeepsWhatWasPromised(t *testing.T) {
	runs := 400
	if testing.Short() {
		runs = 100
	}
	for seed := range runs {
		crashOnce(t, uint64(seed))
		if t.Failed() {
			return
		}
	}
}

func crashOnce(t *testing.T, seed uint64) {
	base := t.TempDir()
	rng := rand.New(rand.NewPCG(seed, 1))
	r := &crashRun{T: t, rng: rng, k: &disk{base, newDir()}, root: filepath.Join(base, "up", "store"), failAt: 1 + rng.IntN(400)}
	r.may = map[string]map[string]bool{}
	for _, key := range crashKeys {
		r.may[key] = map[string]bool{"": true}
	}
	r.start()
	for i := 0; !r.failed() && !t.Failed(); i++ {
		r.step(i)
	}
	r.d.Close()
	if t.Failed() {
		t.Fatalf("seed %d:\n%s", seed, strings.Join(r.log[max(0, len(r.log)-30):], "\n"))
	}
	d := open(t, filepath.Join(r.after, "up", "store"), lazyFS{OS()})
	check := func(when string) {
		for key, may := range r.may {
			if got := r.read(d, key); !may[got] {
				t.Errorf("%s: %s holds %q, may hold %v", when, key, got, may)
			}
		}
	}
	check("after the power failure")
	now := map[string]string{}
	for _, key := range crashKeys {
		now[key] = r.read(d, key)
	}
	if _, err := d.CleanUploads(t.Context(), 0); err != nil {
		t.Error(err)
	}
	want := []string{}
	for _, key := range crashKeys {
		if got := r.read(d, key); got != now[key] {
			t.Errorf("%s held %q, and %q after a clean-up", key, now[key], got)
		}
		if now[key] != "" {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	if got := keys(t, d, "", ""); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	noTemps(t, d.root)
	for _, key := range crashKeys {
		if err := d.Delete(t.Context(), []string{key}); err != nil {
			t.Error(err)
		}
		create(t, d, key, "again")
		holds(t, d, key, "again")
	}
	if t.Failed() {
		t.Fatalf("seed %d, power failure at call %d:\n%s\nleft: %q", seed, r.failAt, strings.Join(r.log[max(0, len(r.log)-30):], "\n"), files(t, r.after))
	}
	d.Close()
	os.RemoveAll(base)
	os.RemoveAll(r.after)
}

// What a pruner removes in one go may come back in part after a power failure; a
// process that begins afterwards is not led astray by it.
func TestPowerFailureAfterPruningMany(t *testing.T) {
	for seed := range uint64(40) {
		base, after := t.TempDir(), t.TempDir()
		rng := rand.New(rand.NewPCG(seed, 2))
		k, calls := &disk{base, newDir()}, 0
		p := &process{FS: OS(), k: k, left: -1, calls: &calls, tick: func() {}}
		d := open(t, filepath.Join(base, "store"), p)
		v := create(t, d, "_control/r", "1").Version
		for n := 2; n <= keepVersions; n++ {
			v = replace(t, d, "_control/r", fmt.Sprint(n), v).Version
		}
		// Processes that replace it and are killed before they prune.
		for n := keepVersions + 1; n <= keepVersions+2; n++ {
			p := &pruneless{process{FS: OS(), k: k, left: -1, calls: &calls, tick: func() {}}}
			v = replace(t, open(t, d.root, p), "_control/r", fmt.Sprint(n), v).Version
		}
		replace(t, d, "_control/r", "last", v)
		if err := k.fail(rng, filepath.Join(after, "base")); err != nil {
			t.Fatal(err)
		}
		holds(t, open(t, filepath.Join(after, "base", "store"), lazyFS{OS()}), "_control/r", "last")
		if t.Failed() {
			t.Fatalf("seed %d: the versions %v are left", seed, versions(t, filepath.Join(after, "base", "store"), "_control/r"))
		}
	}
}

// pruneless is a process that removes nothing.
type pruneless struct{ process }

func (p *pruneless) Unlink(string) error { return errKilled }
