package datastore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/childproc"
	"github.com/swampd/swampd/internal/testserver"
)

// longestWait bounds how long a process may wait for its turn. Turns are not given
// in the order of coming, so it is about as long as all of them together.
const longestWait = time.Minute

// Many processes want to write something small at the same time: all get their turn,
// nothing of it is lost, and each change of writer has its fence.
func TestManyProcessesWriteSmallThings(t *testing.T) {
	for _, name := range testserver.Backends { // one at a time: this is what a machine can do
		t.Run(name, func(t *testing.T) { manyWrite(t, testserver.NewStore(t, name), false) })
		t.Run(name+", with one state directory", func(t *testing.T) {
			if name != "fs" && testserver.Rounds(1, 0) == 0 {
				t.Skipf("it differs from that on fs by the store alone; it is done with %s", testserver.FullVariable)
			}
			manyWrite(t, testserver.NewStore(t, name), true)
		})
	}
}

func manyWrite(t *testing.T, s *testserver.Store, shared bool) {
	if s.External {
		t.Skip("this is for a server of the tests' own, without a limit of writes to one name")
	}
	processes, rounds := testserver.Rounds(50, 12), testserver.Rounds(5, 2)
	init := startActor(t, s, "init")
	defer init.Kill()
	one := t.TempDir()
	all := make([]*actor, processes)
	for i := range all {
		dir := one
		if !shared {
			dir = t.TempDir()
		}
		all[i] = &actor{t, childproc.Start(t, "datastore", &childproc.Options{Env: s.Env})}
		all[i].Send(request{Do: "open", URL: s.URL, StateDir: dir, MaxWait: longestWait})
	}
	want := []string{}
	for i, a := range all {
		opened := &report{}
		if a.Receive(opened); opened.Err != "" {
			t.Fatalf("process %d: %s", i, opened.Err)
		}
	}
	begun := time.Now()
	for i, a := range all {
		name := fmt.Sprintf("p%02d", i)
		a.Send(request{Do: "contend", Data: name, Rounds: rounds})
		for round := range rounds {
			want = append(want, fmt.Sprintf("%s/%d", name, round))
		}
	}
	var waits []time.Duration
	for i, a := range all {
		rep := &report{}
		a.Receive(rep)
		if rep.Err != "" {
			t.Errorf("process %d: %s", i, rep.Err)
		}
		waits = append(waits, rep.Waits...)
	}
	took := time.Since(begun)
	for _, a := range all {
		a.Kill()
	}
	slices.Sort(waits)
	t.Logf("%d processes, %d commits in %v: %.1f a second; longest wait %v, median %v",
		processes, len(want), took.Round(time.Millisecond), float64(len(want))/took.Seconds(), waits[len(waits)-1], waits[len(waits)/2])
	wantAllLanded(t, s, want)
}

// wantAllLanded wants the paths in the state, one commit in the log for each under a
// fence of its own, 1, 2, 3 …, and nothing for verify to find.
func wantAllLanded(t *testing.T, s *testserver.Store, want []string) {
	t.Helper()
	a := startActor(t, s, "open")
	defer a.Kill()
	if got := a.must(request{Do: "list"}).Paths; !slices.Equal(got, want) {
		t.Errorf("the state has %d paths, want %d:\n%v", len(got), len(want), got)
	}
	log := a.must(request{Do: "log"}).Log
	for i := range want {
		n := uint64(i + 1)
		barrier, commit := fmt.Sprintf("%d fence fence %d of ", 2*n-1, n), fmt.Sprintf("%d commit fence %d of ", 2*n, n)
		if len(log) != 2*len(want) || !strings.HasPrefix(log[2*i], barrier) || !strings.HasPrefix(log[2*i+1], commit) {
			t.Fatalf("the log is not a barrier and a commit under each fence from 1 to %d:\n%s", len(want), strings.Join(log, "\n"))
		}
	}
	a.must(request{Do: "verify"})
}
