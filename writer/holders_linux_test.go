package writer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swampd/swampd/internal/testserver"
)

// What becomes of a holder's lease, for each thing that can happen to its process,
// over each backend.

// short is a TTL that can be waited for, and skew is what a taker adds: more than
// the second that S3 and GCS round their dates to.
var short = actorOptions{TTL: 2 * time.Second}

const shortSkew = 1500 * time.Millisecond

// rounding is by how much a store's clock may show an age too high.
func rounding(s *testserver.Store) time.Duration {
	if s.Name == "fs" {
		return 20 * time.Millisecond // the kernel's tick
	}
	return time.Second
}

// wantByAge wants that rep took over from a holder, at last renewed by the clock of
// this machine, after its TTL + skew and not before.
func wantByAge(t *testing.T, s *testserver.Store, rep *report) {
	t.Helper()
	if !rep.Waited {
		t.Fatalf("it did not wait: %+v", rep)
	}
	silent, want := rep.Ended.Sub(rep.Holder.Renewed), rep.Holder.TTL()+shortSkew
	if silent < want-rounding(s) {
		t.Errorf("taken after a silence of %v, want %v", silent, want)
	}
	t.Logf("taken after a silence of %v (TTL + skew: %v)", silent, want)
}

// The holder's pid is nobody's here, on a machine of the same name: that says
// nothing. While it renews it is left alone; when it has died, age decides.
func TestAHolderInAnotherPidNamespaceIsTakenByAgeOnly(t *testing.T) {
	root(t)
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		holder, taker := startActor(t, s, beside), startActor(t, s, elsewhere)
		holder.mustAcquire(short, 1)
		if probe := taker.call(request{Do: "probe", PID: holder.PID()}); probe.Err != unix.ESRCH.Error() {
			t.Fatalf("kill says %q of the holder in the taker's namespace", probe.Err)
		}
		if holder.self.Hostname != taker.self.Hostname {
			t.Fatalf("hosts %q and %q", holder.self.Hostname, taker.self.Hostname)
		}
		taker.wantBusy(taker.acquire(actorOptions{MaxWait: -1, Skew: shortSkew}), Unknown)
		rep := taker.acquire(actorOptions{MaxWait: time.Minute, Skew: shortSkew, Beats: 2})
		if !rep.is("canceled") || rep.Beats < 2 {
			t.Fatalf("while the holder renewed: %+v", rep)
		}
		holder.must(request{Do: "confirm"})

		holder.Kill()
		taker.wantBusy(taker.acquire(actorOptions{MaxWait: -1, Skew: shortSkew}), Unknown)
		wantByAge(t, s, taker.mustAcquire(actorOptions{MaxWait: time.Minute, Skew: shortSkew}, 2))
	})
}

// A holder that was killed is replaced at once, whether its parent took note or not.
func TestAKilledHolderIsReplacedAtOnceOnEachBackend(t *testing.T) {
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		taker := startActor(t, s, beside)
		for i, zombie := range []bool{false, true} {
			fence := uint64(2*i + 1)
			holder := startActor(t, s, beside)
			holder.mustAcquire(actorOptions{}, fence)
			taker.wantBusy(taker.acquire(actorOptions{MaxWait: -1}), Alive)
			if zombie {
				holder.KillAsZombie()
			} else {
				holder.Kill()
			}
			if rep := taker.mustAcquire(actorOptions{MaxWait: -1}, fence+1); rep.Waited {
				t.Errorf("it waited: %+v", rep)
			}
			taker.must(request{Do: "close"})
		}
	})
}

// The pid of the dead holder belongs to another process now, which lives.
func TestAHolderWhosePidWasReusedIsReplacedAtOnce(t *testing.T) {
	root(t)
	if _, err := os.Stat("/proc/sys/kernel/ns_last_pid"); err != nil {
		t.Skip("this kernel does not let a test choose pids:", err)
	}
	t.Parallel()
	s := testserver.NewStore(t, "fs")
	first := startActor(t, s, elsewhere) // of a namespace, in which pids can be chosen
	holder := startIn(t, s, first)
	holder.mustAcquire(actorOptions{}, 1)
	taker := startIn(t, s, first)
	taker.wantBusy(taker.acquire(actorOptions{MaxWait: -1}), Alive)
	holder.Kill()
	var heir *actor
	for range 50 { // threads take pids too
		first.must(request{Do: "next pid", PID: holder.self.PID})
		if heir = startIn(t, s, first); heir.self.PID == holder.self.PID {
			break
		}
		heir.Kill()
	}
	if heir.self.PID != holder.self.PID || heir.self.StartTime == holder.self.StartTime {
		t.Fatalf("the holder was %+v, and another became %+v", holder.self, heir.self)
	}
	if rep := taker.must(request{Do: "inspect"}); rep.Standing != Gone.String() || !strings.Contains(rep.Evidence, "its pid now belongs to another") {
		t.Errorf("the holder is %s: %s", rep.Standing, rep.Evidence)
	}
	taker.mustAcquire(actorOptions{MaxWait: -1}, 2)
	if got := heir.State(); got == "Z" {
		t.Errorf("the process that has the pid now is in state %s", got)
	}
}

// The holder may be seen but not signalled (EPERM): it exists.
func TestAHolderOfAnotherUserIsAlive(t *testing.T) {
	root(t)
	testserver.OnEachStore(t, func(t *testing.T, s *testserver.Store) {
		holder := startActor(t, s, beside)
		holder.mustAcquire(actorOptions{}, 1)
		openToAll(t, s)
		taker := startActor(t, s, nobody)
		if probe := taker.call(request{Do: "probe", PID: holder.PID()}); probe.Err != unix.EPERM.Error() {
			t.Fatalf("kill says %q of the holder", probe.Err)
		}
		taker.wantBusy(taker.acquire(actorOptions{MaxWait: -1}), Alive)
		holder.must(request{Do: "confirm"})
		openToAll(t, s)
		holder.Kill()
		taker.mustAcquire(actorOptions{MaxWait: -1}, 2)
	})
}

// openToAll lets every user read and write a directory store.
func openToAll(t *testing.T, s *testserver.Store) {
	t.Helper()
	if s.Dir == "" {
		return
	}
	must(t, os.Chmod(filepath.Dir(filepath.Dir(s.Dir)), 0o755))
	must(t, os.Chmod(filepath.Dir(s.Dir), 0o755))
	must(t, filepath.WalkDir(s.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o777)
		}
		return os.Chmod(path, 0o666)
	}))
}
