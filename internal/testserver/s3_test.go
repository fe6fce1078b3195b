package testserver_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

func TestMain(m *testing.M) { // Before anything runs that looks at it.
	time.Local = time.FixedZone("far", 7*3600)
	testserver.Main(m)
}

func endpoint(t *testing.T, storeURL string) string {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("endpoint")
}

func TestBucketsAreEmptyAndApart(t *testing.T) {
	srv := testserver.S3(t)
	one, two := srv.NewBucket(t), srv.NewBucket(t)
	if one == two {
		t.Fatalf("the same bucket twice: %s", one)
	}
	a, b := srv.Open(t, one), srv.Open(t, two)
	if _, err := a.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	for e, err := range b.List(t.Context(), "", "") {
		t.Errorf("a fresh bucket lists %+v, %v", e, err)
	}
	if _, err := a.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); !errors.Is(err, backend.ErrExists) {
		t.Errorf("create of what exists: %v, want %v", err, backend.ErrExists)
	}
}

func TestTestsOfAProcessShareOneServer(t *testing.T) {
	a, b := testserver.S3(t), testserver.S3(t)
	if a != b {
		t.Error("two servers in one process")
	}
}

func TestSetenvOpensStoresByTheirURLAlone(t *testing.T) {
	srv := testserver.S3(t)
	storeURL := srv.NewBucket(t)
	srv.Setenv(t)
	b, err := backend.Open(t.Context(), storeURL)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
}

func TestAnExternalStoreIsUsedBelowFreshPrefixesThatAreEmptiedAgain(t *testing.T) {
	srv := testserver.S3(t)
	if srv.External() {
		t.Skip("the store is external already")
	}
	base := srv.NewBucket(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildUsesAnExternalStore$", "-test.v")
	cmd.Env = append(os.Environ(), srv.Env()...)
	cmd.Env = append(cmd.Env, testserver.S3URLVariable+"="+base, childVariable+"=external")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "used s3://") {
		t.Fatalf("%v\n%s", err, out)
	}
	for e := range srv.Open(t, base).List(t.Context(), "", "") {
		t.Errorf("%s is left", e.Key)
	}
}

const childVariable = "SWAMPD_TESTSERVER_CHILD"

func TestChildUsesAnExternalStore(t *testing.T) {
	if os.Getenv(childVariable) != "external" {
		t.Skip("run by TestAnExternalStoreIsUsedBelowFreshPrefixesThatAreEmptiedAgain")
	}
	srv := testserver.S3(t)
	one, two := srv.NewBucket(t), srv.NewBucket(t)
	if !srv.External() || one == two || !strings.HasPrefix(one, "s3://") || !strings.Contains(one, "/test-") {
		t.Fatalf("external %t, %s, %s", srv.External(), one, two)
	}
	if _, err := srv.Open(t, one).Create(t.Context(), "data/x", backend.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	t.Logf("used %s", one)
}

// A test process that is killed cannot stop its server.
func TestTheServerDiesWithAKilledTestProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux kills the children of a killed process")
	}
	if os.Getenv(testserver.S3URLVariable) != "" {
		t.Skip("there is no server of the tests' own")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildServesUntilKilled$", "-test.v")
	// What it leaves behind goes with this test's directory.
	cmd.Env = append(os.Environ(), childVariable+"=serve", "TMPDIR="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for sc := bufio.NewScanner(out); sc.Scan(); {
		if _, rest, ok := strings.Cut(sc.Text(), "serving at http://"); ok {
			addr = rest
			break
		}
	}
	if conn, err := net.Dial("tcp", addr); err != nil {
		t.Fatalf("the child's server at %q: %v", addr, err)
	} else {
		conn.Close()
	}
	cmd.Process.Kill()
	cmd.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		conn.Close()
		if time.Now().After(deadline) {
			t.Fatalf("the server at %s goes on 10 s after its test process was killed", addr)
		}
	}
}

func TestChildServesUntilKilled(t *testing.T) {
	if os.Getenv(childVariable) != "serve" {
		t.Skip("run by TestTheServerDiesWithAKilledTestProcess")
	}
	srv := testserver.S3(t)
	t.Logf("serving at %s", endpoint(t, srv.NewBucket(t)))
	io.Copy(io.Discard, os.Stdin)
}
