//go:build linux || darwin || windows

package writer

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// madeGuard makes a guard that nobody holds.
func madeGuard(t testing.TB) *Guard {
	t.Helper()
	g := &Guard{Path: filepath.Join(t.TempDir(), "guard"), ID: "0197c0de-0000-7000-8000-000000000001"}
	if err := os.WriteFile(g.Path, []byte(g.ID+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.Inode = inodeOf(t, g.Path)
	return g
}

func inodeOf(t testing.TB, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inode, err := guardInode(f)
	if err != nil {
		t.Fatal(err)
	}
	return inode
}

func TestAGuardShowsThatItsHolderIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(t *testing.T, g *Guard)
		free    bool
		because string
	}{
		"unlocked":  {func(*testing.T, *Guard) {}, true, "unlocked"},
		"missing":   {func(t *testing.T, g *Guard) { must(t, os.Remove(g.Path)) }, false, "it is not here"},
		"elsewhere": {func(_ *testing.T, g *Guard) { g.Path = filepath.Join(g.Path+"s", "guard") }, false, "it is not here"},
		"a copy in its place": {func(t *testing.T, g *Guard) {
			other := g.Path + ".copy"
			must(t, os.WriteFile(other, []byte(g.ID+"\n"), 0o600))
			must(t, os.Rename(other, g.Path))
		}, false, "another file (inode"},
		"a copy in its inode": {func(t *testing.T, g *Guard) { must(t, os.WriteFile(g.Path, []byte("another\n"), 0o600)) }, false, "another id"},
		"emptied":             {func(t *testing.T, g *Guard) { must(t, os.Truncate(g.Path, 0)) }, false, "another id"},
		"with more than its id": {func(t *testing.T, g *Guard) {
			must(t, os.WriteFile(g.Path, []byte(g.ID+strings.Repeat(" ", 1<<11)+"x"), 0o600))
		}, false, "another id"},
		"recorded without inode":  {func(_ *testing.T, g *Guard) { g.Inode = 0 }, false, "not name it wholly"},
		"recorded without id":     {func(_ *testing.T, g *Guard) { g.ID = "" }, false, "not name it wholly"},
		"recorded without a path": {func(_ *testing.T, g *Guard) { g.Path = "" }, false, "not name it wholly"},
		"with a relative path":    {func(t *testing.T, g *Guard) { t.Chdir(filepath.Dir(g.Path)); g.Path = "guard" }, false, "not name it wholly"},
		"a directory": {func(t *testing.T, g *Guard) {
			must(t, os.Remove(g.Path))
			must(t, os.Mkdir(g.Path, 0o700))
			g.Inode = inodeOf(t, g.Path)
		}, false, "no regular file"},
		"a link to it": {func(t *testing.T, g *Guard) {
			if runtime.GOOS == "windows" {
				t.Skip("links need a right there")
			}
			must(t, os.Symlink(g.Path, g.Path+".link"))
			g.Path += ".link"
		}, false, "cannot be looked at"},
	} {
		t.Run(name, func(t *testing.T) {
			g := madeGuard(t)
			c.change(t, g)
			if got := lookGuard(g); got.free != c.free || !strings.Contains(got.words, c.because) {
				t.Errorf("got %+v, want free %v and %q", got, c.free, c.because)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Another open file is to the system what another process is.
func TestALockedGuardShowsNothing(t *testing.T) {
	g := madeGuard(t)
	f, err := os.OpenFile(g.Path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if ok, err := lockGuard(f, true); !ok || err != nil {
		t.Fatalf("locking: %v, %v", ok, err)
	}
	if got := lookGuard(g); got.free || !strings.Contains(got.words, "holds it locked") {
		t.Errorf("locked: got %+v", got)
	}
	drop := keepGuard(f)
	if got := lookGuard(g); !got.free || !strings.Contains(got.words, "locked by this process") {
		t.Errorf("locked by a hold of this process: got %+v", got)
	}
	other := madeGuard(t)
	o, err := os.OpenFile(other.Path, os.O_RDWR, 0)
	must(t, err)
	defer o.Close()
	if ok, err := lockGuard(o, true); !ok || err != nil {
		t.Fatalf("locking: %v, %v", ok, err)
	}
	if got := lookGuard(other); got.free {
		t.Errorf("another guard than mine: got %+v", got)
	}
	drop()
	if got := lookGuard(g); got.free {
		t.Errorf("after the hold's end: got %+v", got)
	}
	must(t, f.Close())
	if got := lookGuard(g); !got.free {
		t.Errorf("closed: got %+v", got)
	}
	// Looking leaves nothing behind.
	f, err = os.OpenFile(g.Path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if ok, err := lockGuard(f, true); !ok || err != nil {
		t.Errorf("after a look: %v, %v", ok, err)
	}
}

func TestLookingAtAGuardIsNoHold(t *testing.T) {
	g := madeGuard(t)
	f, err := openGuard(g.Path)
	must(t, err)
	defer f.Close()
	if ok, err := lockGuard(f, false); !ok || err != nil {
		t.Fatalf("the lock of one who looks: %v, %v", ok, err)
	}
	if got := lookGuard(g); !got.free {
		t.Errorf("beside another who looks: got %+v", got)
	}
}
