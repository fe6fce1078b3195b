package fs

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// Containers on one mount see no process of each other, and often know themselves
// by the same host name and the same pid. What tells processes apart in a store
// must be something else.
func TestRaceOfContainers(t *testing.T) {
	attr := container(t)
	for _, a := range racers(t, job{Do: "who"}, attr) {
		if host, err := os.Hostname(); err != nil || a.PID != 1 || a.Host != host {
			t.Fatalf("a child is process %d on %q, want 1 on %q (%v)", a.PID, a.Host, host, err)
		}
	}
	t.Run("create", func(t *testing.T) { raceToCreate(t, attr) })
	t.Run("count", func(t *testing.T) { raceToCount(t, attr) })
	t.Run("lives", func(t *testing.T) { raceOverLives(t, attr) })
}

// container is what makes a child the first process of a pid namespace of its
// own, where the system allows that: to root, or to everybody in a user namespace.
func container(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	var refused error
	for _, attr := range []*syscall.SysProcAttr{
		{Cloneflags: syscall.CLONE_NEWPID},
		{
			Cloneflags:  syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		},
	} {
		p, err := os.StartProcess(os.Args[0], os.Args[:1], &os.ProcAttr{
			Env: []string{childEnv + `={"Do":"who"}`, "GORACE=atexit_sleep_ms=0"}, Sys: attr,
		})
		if err == nil {
			if _, err = p.Wait(); err != nil {
				t.Fatal(err)
			}
			return attr
		}
		refused = errors.Join(refused, err)
	}
	t.Skipf("this system starts no process in a pid namespace of its own: %v", refused)
	return nil
}
