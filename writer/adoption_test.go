package writer

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/faults"
)

// daemon is the options of a writer that a supervisor restarts.
func daemon(dir string) Options {
	return Options{Writer: "ci", Epoch: "2", Guard: filepath.Join(dir, "guard"), FastAdoption: true, Beat: 250 * time.Millisecond}
}

// orphan is what a daemon left behind that died in a namespace of its own: its
// lease with the promise, and its guard, which nobody has locked.
func (w *world) orphan(o Options) *Lease {
	w.t.Helper()
	me := w.stranger()
	g, err := me.takeGuard(w.t.Context(), o.Guard)
	if err != nil {
		w.t.Fatal(err)
	}
	me.leaveGuard(g)
	l := dead(5)
	l.Writer, l.Epoch = o.Writer, o.Epoch
	record := g.record
	l.Guard = &record
	l.Adoption = &Adoption{BeatMillis: 250, SelfFenceMillis: 750, SilenceMillis: 1000}
	w.put(l)
	return l
}

// logged collects what a session logs.
func logged(o *Options) *logBuffer {
	b := &logBuffer{}
	o.Logger = slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelInfo}))
	return b
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) Len() int { return len(l.String()) }

func TestARestartIsAdoptedAfterTheSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		log := logged(&o)
		w.orphan(o)
		h := w.mustAcquire(o)
		if took := time.Since(w.born); took < time.Second || took > 1010*time.Millisecond || h.Fence() != 6 {
			t.Errorf("adopted after %v with fence %d, want 1s and 6", took, h.Fence())
		}
		if l := w.lease(); l.Adoption == nil || l.Guard == nil || l.Guard.Path != o.Guard {
			t.Errorf("the new lease promises nothing: %+v", l)
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", log)
		}
		w.mustClose(h)
	})
}

// The holder renews once during the silence: it starts anew. So it does after a
// CAS that was lost.
func TestTheSilenceStartsAnewWithEachVersion(t *testing.T) {
	for name, lose := range map[string]bool{"seen by looking": false, "seen by a lost CAS": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				o := daemon(t.TempDir())
				w.orphan(o)
				renew := func() {
					l := w.lease()
					l.Beat++
					w.put(l)
				}
				f := w.faulty()
				var renewed atomic.Int64
				if lose {
					held := f.Add(on(writes, 1, faults.Block()))
					go func() {
						<-held.Reached()
						renew()
						renewed.Store(int64(time.Since(w.born)))
						held.Release()
					}()
				} else {
					time.AfterFunc(700*time.Millisecond, func() { renew(); renewed.Store(int64(time.Since(w.born))) })
				}
				h, err := w.acquireOn(f, o)
				if err != nil {
					t.Fatal(err)
				}
				at := time.Duration(renewed.Load())
				if silent := time.Since(w.born) - at; silent < time.Second || silent > 1200*time.Millisecond {
					t.Errorf("adopted %v after the renewal at %v, want 1s", silent, at)
				}
				w.mustClose(h)
			})
		})
	}
}

// Without one of the three proofs there is no adoption: the lease's time decides,
// and the reason is logged.
func TestWithoutEachProofThereIsNoAdoption(t *testing.T) {
	twin := func(w *world, o *Options, l *Lease) {
		g, err := w.stranger().takeGuard(w.t.Context(), o.Guard)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { g.drop(); g.file.Close() })
	}
	for name, c := range map[string]struct {
		change func(w *world, o *Options, l *Lease)
		why    string
	}{
		"another writer id":       {func(_ *world, o *Options, _ *Lease) { o.Writer = "other" }, "it is writer ci, this is other"},
		"another epoch":           {func(_ *world, o *Options, _ *Lease) { o.Epoch = "3" }, "it is of epoch 2, this is of 3"},
		"no promise":              {func(_ *world, _ *Options, l *Lease) { l.Adoption = nil }, "promises no fast adoption"},
		"no guard in the record":  {func(_ *world, _ *Options, l *Lease) { l.Guard = nil }, "promises no fast adoption"},
		"a promise without sense": {func(_ *world, _ *Options, l *Lease) { l.Adoption.SilenceMillis = 750 }, "makes no sense"},
		"a promise of nothing":    {func(_ *world, _ *Options, l *Lease) { l.Adoption = &Adoption{} }, "makes no sense"},
		"a live twin":             {twin, "another process has it locked"},
		"a guard of another path": {func(w *world, o *Options, _ *Lease) { o.Guard = filepath.Join(w.t.TempDir(), "guard") }, "a copy is not the guard"},
		"a copied guard": {func(w *world, o *Options, _ *Lease) {
			data, err := os.ReadFile(o.Guard)
			if err == nil {
				// While the first is there: otherwise its inode may come again.
				err = os.WriteFile(o.Guard+".copy", data, 0o600)
			}
			if err == nil {
				err = os.Rename(o.Guard+".copy", o.Guard)
			}
			if err != nil {
				w.t.Fatal(err)
			}
		}, "a copy is not the guard"},
		"a guard with another id": {func(w *world, o *Options, _ *Lease) {
			if err := os.WriteFile(o.Guard, []byte(uuid.NewString()), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}, "a copy is not the guard"},
		"a guard that is something else": {func(w *world, o *Options, _ *Lease) {
			if err := os.WriteFile(o.Guard, []byte("my notes"), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}, "something else than an id"},
		"a guard that is a link": {func(w *world, o *Options, _ *Lease) {
			err := os.Rename(o.Guard, o.Guard+".there")
			if err == nil {
				err = os.Symlink(o.Guard+".there", o.Guard)
			}
			if err != nil {
				w.t.Skip(err)
			}
		}, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				o := daemon(t.TempDir())
				log := logged(&o)
				l := w.orphan(o)
				c.change(w, &o, l)
				l.Beat++
				w.put(l)
				h := w.mustAcquire(o)
				if took := time.Since(w.born); took <= 40*time.Second || took > 42*time.Second {
					t.Errorf("taken after %v, want TTL and skew, 40s", took)
				}
				if !strings.Contains(log.String(), c.why) {
					t.Errorf("logged: %s\nwant: %s", log, c.why)
				}
				w.mustClose(h)
			})
		})
	}
}

// A twin that has the guard while it waits cannot adopt: the holder lives, and
// renews. A holder whose guard was locked by another promises nothing.
func TestAHolderPromisesOnlyWhatItCanKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		twin := w.stranger()
		g, err := twin.takeGuard(t.Context(), o.Guard)
		if err != nil {
			t.Fatal(err)
		}
		log := logged(&o)
		h := w.mustAcquire(o)
		if l := w.lease(); l.Guard != nil || l.Adoption != nil || !strings.Contains(log.String(), "another process has it locked") {
			t.Errorf("the lease names the guard %+v and promises %+v; logged: %s", l.Guard, l.Adoption, log)
		}
		twin.leaveGuard(g)
		second := daemon(filepath.Dir(o.Guard))
		second.MaxWait = 2 * time.Minute
		_, err = w.acquire(second)
		wantErr(t, err, ErrBusy)
		w.mustClose(h)
	})
}

// The guard is locked from before the record names it until the record was given
// back, and free then.
func TestTheGuardIsKeptAsLongAsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		h := w.mustAcquire(o)
		guard := w.lease().Guard
		free := func() bool {
			g, err := w.stranger().takeGuard(t.Context(), o.Guard)
			if err != nil {
				return false
			}
			g.drop()
			g.file.Close()
			return true
		}
		if free() {
			t.Error("the guard is not locked")
		}
		w.mustClose(h)
		if !free() {
			t.Error("the guard is still locked after Close")
		}
		// It is the same one for the next session.
		h = w.mustAcquire(o)
		if g := w.lease().Guard; g.ID != guard.ID || g.Inode != guard.Inode {
			t.Errorf("the guard was %+v and is %+v", guard, g)
		}
		w.mustClose(h)
	})
}

// What could not be given back keeps its guard, and the next session of the same
// process has it too.
func TestTheGuardOfAFailedReleaseIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		o.Process = w.stranger()
		f := w.faulty()
		h, err := w.acquireOn(f, o)
		if err != nil {
			t.Fatal(err)
		}
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrUnknown)))
		wantErr(t, h.Close(t.Context()), backend.ErrUnknown)
		next := w.mustAcquire(o)
		if w.lease().Guard == nil {
			t.Error("the next session has no guard")
		}
		f.Clear()
		pass(2 * time.Minute) // the old one has learnt that it was replaced
		if _, err := w.stranger().takeGuard(t.Context(), o.Guard); err == nil {
			t.Error("the end of the old session unlocked the guard of the next")
		}
		w.mustClose(next)
	})
}

// Promised beats are kept; ones that stay away alarm, and do not end the hold:
// nobody can adopt it while the guard is locked. The TTL does.
func TestBeatsAreKeptAndMissedOnesAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := daemon(t.TempDir())
		log := logged(&o)
		f := w.faulty()
		h, err := w.acquireOn(f, o)
		if err != nil {
			t.Fatal(err)
		}
		pass(10*time.Second + time.Millisecond)
		if l := w.lease(); l.Beat != 41 || log.Len() > 0 {
			t.Errorf("beat %d after 10 s, want 41; logged: %s", l.Beat, log)
		}
		stall := f.Add(on(writes, 1, faults.Block())) // as an fsync that takes its time
		<-stall.Reached()
		pass(600 * time.Millisecond)
		if log.Len() > 0 {
			t.Errorf("alarmed before three beats were missed: %s", log)
		}
		pass(time.Second)
		if n := strings.Count(log.String(), "renewed too late"); n != 1 || h.Err() != nil {
			t.Errorf("%d alarms, the hold says %v; want 1 and none", n, h.Err())
		}
		pass(5 * time.Second)
		stall.Release()
		pass(time.Second)
		f.Add(on(writes, faults.Always, faults.Fail(backend.ErrUnknown)))
		began := time.Now()
		<-h.Context().Done()
		wantErr(t, h.Err(), ErrExpired)
		if took := time.Since(began); took < 29*time.Second || took > 30*time.Second {
			t.Errorf("the hold ended after %v, want 30s", took)
		}
		if n := strings.Count(log.String(), "renewed too late"); n != 2 {
			t.Errorf("%d alarms, want 2: one for each time", n)
		}
		f.Clear()
		h.Close(t.Context())
	})
}

func TestTheBeatFollowsTheStore(t *testing.T) {
	for url, want := range map[string]time.Duration{"file:///srv/x": 250 * time.Millisecond, "s3://b/p": 2 * time.Second, "gs://b/p": 2 * time.Second} {
		o := daemon("/x")
		o.Beat = 0
		d, err := o.withDefaults(backend.NewBucket(nil, url))
		if err != nil || d.Beat != want {
			t.Errorf("%s: beat %v, %v; want %v", url, d.Beat, err, want)
		}
	}
	for name, bad := range map[string]func(o *Options){
		"no writer":       func(o *Options) { o.Writer = "" },
		"no epoch":        func(o *Options) { o.Epoch = "" },
		"no guard":        func(o *Options) { o.Guard = "" },
		"a relative path": func(o *Options) { o.Guard = "guard" },
		"too fast":        func(o *Options) { o.Beat = time.Millisecond },
		"too slow":        func(o *Options) { o.Beat = 10 * time.Second },
	} {
		o := daemon("/x")
		bad(&o)
		if _, err := o.withDefaults(backend.NewBucket(nil, "file:///x")); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
