package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
)

// patience bounds every wait of the tests of this package.
const patience = time.Minute

func await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("%s: not within %v", what, patience)
	}
}

// A slow call is paused before one of its calls of the file system, for each of
// them; meanwhile a fast process acts on the same record; then the slow call goes
// on. What both are told, and what the record holds, must be what some order of
// calls explains.

const pauseKey = "_control/dir/rec"

// pauseCase is one state in which a slow call meets a fast one.
type pauseCase struct {
	testing.TB
	fast    *Driver
	initial backend.Version // of "initial"; empty if the record is not there
	// saw is what the fast process read just before it acted.
	saw string
	// told is what it was told by its first writing call.
	told error
}

func (c *pauseCase) look() (string, backend.Version) {
	obj, err := c.fast.Get(context.Background(), pauseKey, backend.GetOptions{})
	if errors.Is(err, backend.ErrNotFound) {
		return "", ""
	}
	if err != nil {
		c.Errorf("get: %v", err)
		return "", ""
	}
	defer obj.Body.Close()
	b, err := io.ReadAll(obj.Body)
	if err != nil {
		c.Errorf("read: %v", err)
	}
	return string(b), obj.Version
}

func (c *pauseCase) replace(data string, v backend.Version) (backend.Version, error) {
	info, err := c.fast.Replace(context.Background(), pauseKey, backend.Bytes([]byte(data)), v)
	return info.Version, err
}

// actions are what the fast process does. Each returns what the record holds then.
var pauseActions = []struct {
	name string
	act  func(c *pauseCase) string
}{
	{"nothing", func(c *pauseCase) string { return c.saw }},
	{"replace", func(c *pauseCase) string {
		if _, c.told = c.replace("fast", c.initial); c.told == nil {
			return "fast"
		}
		return c.saw
	}},
	{"many replaces", func(c *pauseCase) string { return c.many(c.saw) }},
	{"delete", func(c *pauseCase) string { c.delete(); return "" }},
	{"create", func(c *pauseCase) string {
		if _, c.told = c.fast.Create(context.Background(), pauseKey, backend.Bytes([]byte("created"))); c.told == nil {
			return "created"
		}
		return c.saw
	}},
	{"delete and create", func(c *pauseCase) string { c.delete(); return c.create() }},
	{"delete, create and many replaces", func(c *pauseCase) string { c.delete(); return c.many(c.create()) }},
	{"clean", func(c *pauseCase) string {
		if _, err := c.fast.CleanUploads(context.Background(), 0); err != nil {
			c.Errorf("clean: %v", err)
		}
		return c.saw
	}},
}

func (c *pauseCase) many(now string) string {
	_, v := c.look()
	for i := range keepVersions + 6 {
		if v == "" {
			return now
		}
		now = fmt.Sprintf("fast %d", i)
		next, err := c.replace(now, v)
		if err != nil {
			c.Errorf("replace %d of many: %v", i, err)
		}
		v = next
	}
	return now
}

func (c *pauseCase) delete() {
	if err := c.fast.Delete(context.Background(), []string{pauseKey}); err != nil {
		c.Errorf("delete: %v", err)
	}
}

func (c *pauseCase) create() string {
	if _, err := c.fast.Create(context.Background(), pauseKey, backend.Bytes([]byte("created"))); err != nil {
		c.Errorf("create after delete: %v", err)
	}
	return "created"
}

// slowCalls are the calls that are paused. check judges what the slow call was
// told (err, got), what the fast one left (left), and what is there at the end.
var slowCalls = []struct {
	name   string
	absent bool // the record is not there at first
	call   func(d *Driver, v backend.Version) (got string, err error)
	check  func(c *pauseCase, action, left, got string, err error, end string)
}{
	{"replace", false, func(d *Driver, v backend.Version) (string, error) {
		_, err := d.Replace(context.Background(), pauseKey, backend.Bytes([]byte("slow")), v)
		return "", err
	}, func(c *pauseCase, action, left, got string, err error, end string) {
		quiet := action == "nothing" || action == "clean" || action == "create" || action == "replace" && c.told != nil
		switch {
		case quiet && (err != nil || end != "slow"):
			c.Errorf("it was told %v, and the record holds %q", err, end)
		case !quiet && end != left:
			c.Errorf("the record holds %q, want %q", end, left)
		case !quiet && c.saw == "slow" && err != nil:
			c.Errorf("it was told %v, and its bytes were there", err)
		case !quiet && c.saw != "slow" && (action == "replace" || strings.HasPrefix(action, "many")) && !errors.Is(err, backend.ErrChanged):
			c.Errorf("another replaced the version, and it was told %v", err)
		case err != nil && !errors.Is(err, backend.ErrChanged):
			c.Errorf("it was told %v", err)
		}
	}},
	{"create", true, func(d *Driver, _ backend.Version) (string, error) {
		_, err := d.Create(context.Background(), pauseKey, backend.Bytes([]byte("slow")))
		return "", err
	}, func(c *pauseCase, action, left, got string, err error, end string) {
		switch {
		case err != nil && !errors.Is(err, backend.ErrExists):
			c.Errorf("it was told %v", err)
		case c.saw == "slow" && (err != nil || end != left):
			c.Errorf("its bytes were there; it was told %v, and the record holds %q", err, end)
		case c.saw != "slow" && left == "" && (err != nil || end != "slow"):
			c.Errorf("nothing was there; it was told %v, and the record holds %q", err, end)
		case c.saw != "slow" && left != "" && (err == nil || end != left):
			c.Errorf("%q was there; it was told %v, and the record holds %q", left, err, end)
		}
	}},
	{"delete", false, func(d *Driver, _ backend.Version) (string, error) {
		return "", d.Delete(context.Background(), []string{pauseKey})
	}, func(c *pauseCase, action, left, got string, err error, end string) {
		switch {
		case err != nil:
			c.Errorf("it was told %v", err)
		case c.saw == "" && end != left:
			c.Errorf("it had deleted already, then %q was made, and the record holds %q", left, end)
		case c.saw != "" && end != "":
			c.Errorf("it deleted last, and the record holds %q", end)
		}
	}},
	{"get", false, func(d *Driver, _ backend.Version) (string, error) {
		obj, err := d.Get(context.Background(), pauseKey, backend.GetOptions{})
		if err != nil {
			return "", err
		}
		defer obj.Body.Close()
		b, err := io.ReadAll(obj.Body)
		return string(b), err
	}, checkReader},
	{"list", false, func(d *Driver, _ backend.Version) (string, error) {
		n := 0
		for e, err := range d.List(context.Background(), "", "") {
			if err != nil {
				return "", err
			}
			if e.Key == pauseKey {
				n++
			}
		}
		if n == 0 {
			return "", backend.ErrNotFound
		}
		if n > 1 {
			return "", fmt.Errorf("listed %d times", n)
		}
		return "initial", nil
	}, checkReader},
	{"clean", false, func(d *Driver, _ backend.Version) (string, error) {
		_, err := d.CleanUploads(context.Background(), 0)
		return "", err
	}, func(c *pauseCase, action, left, got string, err error, end string) {
		if err != nil || end != left {
			c.Errorf("it was told %v, and the record holds %q, want %q", err, end, left)
		}
	}},
}

func checkReader(c *pauseCase, action, left, got string, err error, end string) {
	deletes := strings.HasPrefix(action, "delete")
	switch {
	case errors.Is(err, backend.ErrNotFound) && deletes:
	case err != nil:
		c.Errorf("it was told %v", err)
	case got != "initial" && got != left && !strings.HasPrefix(got, "fast"):
		c.Errorf("it read %q, which was never current meanwhile", got)
	}
	if end != left {
		c.Errorf("the record holds %q, want %q", end, left)
	}
}

func TestPausedAnywhere(t *testing.T) {
	dir := memDir(t)
	for _, old := range []int{0, 2 * keepVersions} {
		d := open(t, filepath.Join(dir, fmt.Sprint(old)), lazyFS{OS()})
		create(t, d, "_control/dir/other", "other")
		v := create(t, d, pauseKey, "oldest").Version
		for i := range old {
			v = replace(t, d, pauseKey, fmt.Sprintf("old %d", i), v).Version
		}
		replace(t, d, pauseKey, "initial", v)
	}
	for _, slow := range slowCalls {
		for _, action := range pauseActions {
			for _, old := range []int{0, 2 * keepVersions} {
				t.Run(fmt.Sprintf("%s meets %s after %d replaces", slow.name, action.name, old), func(t *testing.T) {
					for at := 1; ; at++ {
						c := &pauseCase{TB: t}
						root := filepath.Join(dir, fmt.Sprintf("at %d", at))
						if !slow.absent {
							clone(t, filepath.Join(dir, fmt.Sprint(old)), root)
						}
						if paused := c.run(root, at, slow.call, action.act, func(left, got string, err error, end string) {
							slow.check(c, action.name, left, got, err, end)
						}); !paused || t.Failed() {
							os.RemoveAll(root)
							break
						}
						os.RemoveAll(root)
					}
				})
				if slow.absent {
					break
				}
			}
		}
	}
}

// run pauses the slow call before its at'th call, and says whether it made so many.
func (c *pauseCase) run(root string, at int, slow func(*Driver, backend.Version) (string, error), act func(*pauseCase) string, check func(left, got string, err error, end string)) (paused bool) {
	c.fast = open(c, root, lazyFS{OS()})
	defer c.fast.Close()
	_, c.initial = c.look()
	h := &hookFS{FS: lazyFS{OS()}, root: root}
	d := open(c, root, h)
	defer d.Close()
	reached, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	n, last := 0, call{}
	h.before = func(k call) error {
		if n++; n == at {
			last = k
			close(reached)
			<-goOn
		}
		return nil
	}
	var got string
	var err error
	go func() {
		defer close(done)
		got, err = slow(d, c.initial)
	}()
	select {
	case <-reached:
		paused = true
	case <-done:
	}
	c.saw, _ = c.look()
	left := act(c)
	close(goOn)
	await(c, "the slow call after it was paused", done)
	end, _ := c.look()
	check(left, got, err, end)
	if _, err := c.fast.CleanUploads(context.Background(), 0); err != nil {
		c.Errorf("clean: %v", err)
	}
	if again, _ := c.look(); again != end {
		c.Errorf("the record held %q, and %q after a clean-up", end, again)
	}
	c.tidy(root, end != "")
	if c.Failed() {
		c.Logf("paused before call %d: %v; the fast process saw %q, was told %v and left %q; the slow one was told %v; files: %q", at, last, c.saw, c.told, left, err, files(c, root))
	}
	return paused
}

// tidy demands that only the files of one life are there, and not too many.
func (c *pauseCase) tidy(root string, there bool) {
	noTemps(c, root)
	lives, versions := map[string]bool{}, 0
	for _, f := range files(c, root) {
		_, name := splitKey(f)
		if r, ok := parseRecordFile(name); ok && r.base == "rec" && !r.id {
			lives[r.life] = true
			versions++
		}
	}
	if want := map[bool]int{true: 1}[there]; len(lives) != want || versions > keepVersions {
		c.Errorf("%d versions of %d lives are left, want %d lives", versions, len(lives), want)
	}
}
