package writer

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A guard on a network filesystem proves nothing (R18): there is no promise and no
// adoption, and the log says why.
func TestAGuardOnANetworkFilesystemPromisesAndAdoptsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		w.orphan(o)
		was := networkFilesystem
		defer func() { networkFilesystem = was }()
		networkFilesystem = func(f *os.File) (string, error) {
			if f.Name() != o.Guard {
				return "", nil
			}
			return "nfs", nil
		}
		log := logged(&o)
		h := w.mustAcquire(o)
		if took := time.Since(w.born); took <= 40*time.Second || took > 42*time.Second {
			t.Errorf("taken after %v, want TTL and skew, 40s", took)
		}
		for _, want := range []string{"no fast adoption", "no guard", "network filesystem (nfs)"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("logged: %s\nwant: %s", log, want)
			}
		}
		if l := w.lease(); l.Guard != nil || l.Adoption != nil {
			t.Errorf("it promises %+v with the guard %+v", l.Adoption, l.Guard)
		}
		w.mustClose(h)
	})
}
