//go:build unix

package writer

import (
	"bytes"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A holder that was stopped, replaced and continued changes nothing and knows
// that it is fenced.
func TestAStoppedHolderChangesNothingLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, out := start(t, "hold "+dir)
	says(t, out, "holding 1")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	bucket := directory(t, filepath.Join(dir, "store"))
	victim, err := ForceRelease(t.Context(), bucket, &bucketLog{bucket: bucket}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if victim == nil || victim.Identity.PID != cmd.Process.Pid {
		t.Errorf("fenced %+v, want process %d", victim, cmd.Process.Pid)
	}
	read := func() []byte {
		t.Helper()
		seen, err := (&cell{bucket: bucket, boot: bootClock, call: time.Minute}).look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return seen.data
	}
	before := read()
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	says(t, out, "lost")
	says(t, out, "fenced")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if after := read(); !bytes.Equal(before, after) {
		t.Errorf("it changed the lease from\n%s\nto\n%s", before, after)
	}
}
