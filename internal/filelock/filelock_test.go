//go:build darwin || linux || windows

package filelock

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const heldFile = "SWAMPD_TEST_FILELOCK_HOLD"

// TestMain is also the other process: it locks a file, says so, and waits until
// it is killed or its starter is gone.
func TestMain(m *testing.M) {
	if name := os.Getenv(heldFile); name != "" {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		if ok, err := TryLock(f); !ok {
			panic(err)
		}
		os.Stdout.WriteString("locked\n")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, name string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func made(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(name, []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Another open file is to the system what another process is.
func TestWhatLocksExclude(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second func(*os.File) (bool, error)
		want          bool
	}{
		{"exclusive, then exclusive", TryLock, TryLock, false},
		{"exclusive, then shared", TryLock, TryRLock, false},
		{"shared, then exclusive", TryRLock, TryLock, false},
		{"shared, then shared", TryRLock, TryRLock, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := made(t)
			a, b := open(t, name, os.O_RDWR), open(t, name, os.O_RDWR)
			if ok, err := c.first(a); !ok || err != nil {
				t.Fatalf("the first: got %v, %v", ok, err)
			}
			if ok, err := c.second(b); ok != c.want || err != nil {
				t.Errorf("beside it: got %v, %v, want %v", ok, err, c.want)
			}
			a.Close()
			if ok, err := c.second(b); !ok || err != nil {
				t.Errorf("after it: got %v, %v, want true", ok, err)
			}
		})
	}
}

func TestALockEndsWithItsFile(t *testing.T) {
	name := made(t)
	a, b := open(t, name, os.O_RDWR), open(t, name, os.O_RDWR)
	for _, f := range []*os.File{a, b} {
		if ok, err := TryLock(f); !ok || err != nil {
			t.Fatalf("got %v, %v", ok, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if ok, err := TryLock(f); ok || err == nil {
			t.Errorf("a closed file: got %v, %v, want an error", ok, err)
		}
	}
}

func TestALockedFileIsReadAndWrittenByOthers(t *testing.T) {
	name := made(t)
	if ok, err := TryLock(open(t, name, os.O_RDWR)); !ok || err != nil {
		t.Fatalf("got %v, %v", ok, err)
	}
	if err := os.WriteFile(name, []byte("new"), 0o600); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(name); string(got) != "new" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestASharedLockNeedsNoRightToWrite(t *testing.T) {
	if ok, err := TryRLock(open(t, made(t), os.O_RDONLY)); !ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
}

func TestALockEndsWithItsProcess(t *testing.T) {
	name := made(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), heldFile+"="+name)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	f := open(t, name, os.O_RDWR)
	if ok, err := TryLock(f); ok || err != nil {
		t.Errorf("while it lives: got %v, %v, want false", ok, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if ok, err := TryLock(f); !ok || err != nil {
		t.Errorf("after it: got %v, %v, want true", ok, err)
	}
}

func TestWhatIsMissingIsOnNoFilesystem(t *testing.T) {
	kind, err := NetworkFilesystemAt(filepath.Join(t.TempDir(), "none"))
	if kind != "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %q, %v, want fs.ErrNotExist", kind, err)
	}
}
