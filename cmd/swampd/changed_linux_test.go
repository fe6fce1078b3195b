package main

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swampd/swampd/internal/testserver"
)

// awaitReads returns a function that waits until each of the files was read and
// closed at least once.
func awaitReads(t *testing.T, names []string) (wait func()) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { events.Close() })
	unread := map[int32]string{}
	for _, name := range names {
		wd, err := unix.InotifyAddWatch(fd, name, unix.IN_CLOSE_NOWRITE)
		if err != nil {
			t.Fatal(err)
		}
		unread[int32(wd)] = name
	}
	return func() {
		t.Helper()
		if err := events.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		for len(unread) > 0 {
			n, err := events.Read(buf)
			if err != nil {
				t.Fatalf("not read: %v, %v", unread, err)
			}
			// Events of watched files carry no name: all have the same size.
			for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; b = b[unix.SizeofInotifyEvent:] {
				delete(unread, int32(binary.NativeEndian.Uint32(b)))
			}
		}
	}
}

// Large files are read twice, and what lies between can be long. Here four are
// being sent and held up, and meanwhile all change: those that wait for their turn
// are not what was staged any more.
func TestAFileThatChangesBeforeItIsSentIsRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.S3(t)
	p := srv.Proxy(t)
	for _, skip := range []bool{false, true} {
		t.Run(fmt.Sprintf("skip %v", skip), func(t *testing.T) {
			c := newCLI(t).use(srv.ProxyURL(t, p, srv.NewBucket(t)), srv.Env()...)
			c.ok("init")
			var names []string
			for i := range 6 {
				content := make([]byte, 3<<20)
				rand.Read(content)
				names = append(names, c.file(fmt.Sprintf("f%d", i), string(content)))
			}
			gate := testserver.NewGate()
			held := p.Inject(testserver.Fault{
				Match: testserver.All(testserver.Method(http.MethodPut), func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/data/") }),
				Hold:  gate,
			})
			defer held.Remove()
			defer gate.Open()
			wereRead := awaitReads(t, names)
			args := []string{"put", ".", "--json"}
			if skip {
				args = append(args, "--skip-unreadable")
			}
			cmd := c.command(args...)
			var errOut strings.Builder
			cmd.Stderr = &errOut
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			for range 4 {
				gate.Await(t)
			}
			wereRead()
			for _, name := range names {
				f, err := os.OpenFile(name, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt([]byte("changed"), 1<<20); err != nil {
					t.Fatal(err)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
			}
			gate.Open()
			if code := endOf(t, cmd); code != 1 {
				t.Errorf("exit code %d", code)
			}
			var e errorJSON
			if err := json.Unmarshal([]byte(errOut.String()), &e); err != nil || e.Kind != "changed" {
				t.Errorf("kind %q, %v: %s", e.Kind, err, &errOut)
			}
			held.Remove()
			if n := c.commits(); n != 0 {
				t.Errorf("%d commits", n)
			}
			c.ok("put", ".")
			c.ok("verify", "--read-data")
		})
	}
}
