//go:build unix

package fs

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/backendtest"
)

// renamingFS has no hard links, as FAT and some network file systems.
type renamingFS struct{ FS }

func (renamingFS) Link(oldname, newname string) error {
	return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: syscall.EPERM}
}

// repeatingFS loses answers and asks again, as NFS: a link that was made says that
// the name is taken.
type repeatingFS struct{ FS }

func (r repeatingFS) Link(oldname, newname string) error {
	err := r.FS.Link(oldname, newname)
	if err == nil && rand.N(2) == 0 {
		err = &os.LinkError{Op: "link", Old: oldname, New: newname, Err: syscall.EEXIST}
	}
	return err
}

func TestConformanceOfOtherFileSystems(t *testing.T) {
	for name, fsys := range map[string]FS{"renames": renamingFS{lazyFS{OS()}}, "lost answers": repeatingFS{lazyFS{OS()}}} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, backendtest.Harness{New: func(t testing.TB) func() *backend.Bucket {
				dir := memDir(t)
				return func() *backend.Bucket {
					d, err := New(dir, &Options{FS: fsys})
					if err != nil {
						t.Fatal(err)
					}
					return backend.NewBucket(d, dir)
				}
			}})
		})
	}
}
