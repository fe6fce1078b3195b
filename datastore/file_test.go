//go:build unix

package datastore

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTimesThatARecordCannotHoldAreTheNearestOnes(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	a := e.open(nil)
	day := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	for _, c := range []struct{ in, want time.Time }{
		{day(2024).Add(1), day(2024).Add(1)},
		{time.Unix(0, 0), time.Unix(0, 1)}, // 0 in a record means that none was given
		{time.Unix(0, -1), time.Unix(0, -1)},
		{day(1601), time.Unix(0, math.MinInt64)},
		{day(2400), time.Unix(0, math.MaxInt64)},
		{day(20_000), time.Unix(0, math.MaxInt64)},
		{time.Time{}, time.Time{}},
	} {
		b, err := a.Begin(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		opts := &PutOptions{MTime: c.in}
		if _, err := b.Put(ctx, "x", strings.NewReader("x"), opts); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Commit(ctx, ""); err != nil {
			t.Fatal(err)
		}
		v, err := a.Stat(ctx, "x", Newest)
		if err != nil {
			t.Fatal(err)
		}
		if !v.MTime.Equal(c.want) {
			t.Errorf("%v: got %v, want %v", c.in, v.MTime, c.want)
		}
		if b, err = a.Begin(ctx, nil); err != nil {
			t.Fatal(err)
		}
		opts.SkipUnchanged = true
		if put, err := b.Put(ctx, "x", strings.NewReader("x"), opts); err != nil || !put.Unchanged {
			t.Errorf("%v: put again: %+v, %v; want it unchanged", c.in, put, err)
		}
		if err := b.Discard(); err != nil {
			t.Fatal(err)
		}
	}
}

// A regular file may have become something else since its directory was read:
// whoever stores a tree goes on without it, as without one that vanished.
func TestAFileWithoutContentIsAFaultOfThatFile(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, nil)
	b, err := e.open(nil).Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, word := range map[string]string{pipe: "named pipe", t.TempDir(): "directory", os.DevNull: "device"} {
		_, err := b.PutFile(ctx, "x", name, nil)
		var p *fs.PathError
		if !errors.As(err, &p) || p.Path != name || !strings.Contains(p.Err.Error(), word) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := b.Discard(); err != nil {
		t.Fatal(err)
	}
}
