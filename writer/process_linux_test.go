package writer

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A holder that was killed is replaced at once: nothing is waited for, and the
// clock of the taker stands still.
func TestAKilledHolderIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	for _, reaped := range []bool{false, true} {
		dir := t.TempDir()
		cmd, out := start(t, "hold "+dir)
		says(t, out, "holding 1")
		must(t, cmd.Process.Kill())
		if reaped {
			cmd.Wait()
		} else { // a zombie is as dead
			(&proc{t: t, cmd: cmd}).became(unix.WEXITED)
		}
		bucket := directory(t, filepath.Join(dir, "store"))
		h, err := Acquire(t.Context(), bucket, &bucketLog{bucket: bucket},
			&Options{MaxWait: -1, Boot: func() time.Duration { return time.Hour }})
		if err != nil {
			t.Fatal(err)
		}
		if h.Fence() != 2 {
			t.Errorf("fence %d, want 2", h.Fence())
		}
		must(t, h.Close(context.Background()))
	}
}
