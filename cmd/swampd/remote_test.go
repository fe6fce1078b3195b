package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/swampd/swampd/internal/testserver"
)

// use makes all commands use a store, and the test end with a check of every
// byte in it, if there is a datastore by then.
func (c *cli) use(store string, env ...string) *cli {
	c.env = append(append(c.env, "SWAMPD_STORE="+store), env...)
	c.t.Cleanup(func() {
		if c.damaged {
			return
		}
		if r := c.run("verify", "--read-data", "--json"); r.code != 0 && !strings.Contains(r.err, `"kind":"no-datastore"`) {
			c.t.Errorf("at the end: %s%s", r.out, r.err)
		}
	})
	return c
}

// stores runs a test against a bucket of each kind.
func stores(t *testing.T, test func(t *testing.T, c *cli)) {
	t.Run("s3", func(t *testing.T) {
		srv := testserver.S3(t)
		test(t, newCLI(t).use(srv.NewBucket(t), srv.Env()...))
	})
	t.Run("gcs", func(t *testing.T) {
		test(t, newCLI(t).use(testserver.GCS(t).NewBucket(t)))
	})
}

func TestFilesGoToABucketAndComeBack(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, c *cli) {
		c.file("a.txt", "hello")
		c.file("dir/empty", "")
		c.file("dir/large", strings.Repeat("0123456789abcdef", 200_000))
		c.run("ls").wantCode(1).wantErr("there is no datastore at ", "swampd init -s")
		c.ok("doctor")
		c.ok("init")
		c.run("init").wantCode(1).wantErr("there is a datastore already at ")
		c.ok("put", ".")
		c.ok("put", ".").wantErr()
		out := c.mkdir("out")
		c.ok("get", ".", "-o", out)
		for _, name := range []string{"a.txt", "dir/empty", "dir/large"} {
			want, err := os.ReadFile(c.dir + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(out + "/" + name); err != nil || string(got) != string(want) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
		c.ok("rm", "a.txt")
		c.ok("cat", "--at", "-1", "a.txt").wantOut("hello")
		c.ok("verify", "--read-data")
		c.ok("doctor")
	})
}

func TestABucketThatCannotBeUsedIsNamed(t *testing.T) {
	t.Parallel()
	s3 := testserver.S3(t)
	gcs := testserver.GCS(t)
	if s3.External() || gcs.External() {
		t.Skip("this test needs servers of its own")
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := closed.Addr().String()
	closed.Close()
	wrongKey := append(s3.Env(), "AWS_SECRET_ACCESS_KEY=wrong")
	noKey := append(s3.Env(), "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=")
	bucket := s3.NewBucket(t)
	for _, test := range []struct {
		name, store string
		env         []string
		kind        string
		words       []string
	}{
		{"a missing S3 bucket", s3.URL("no-such-bucket", "x"), s3.Env(), "no-bucket", []string{"no such bucket", "no-such-bucket"}},
		{"a missing GCS bucket", gcs.URL("no-such-bucket", "x"), nil, "no-bucket", []string{"no such bucket", "no-such-bucket"}},
		{"a wrong key", bucket, wrongKey, "denied", []string{"access denied (", "credentials"}},
		{"a wrong region", strings.Replace(bucket, "region=us-east-1", "region=eu-north-1", 1), s3.Env(), "wrong-region", []string{"us-east-1", "eu-north-1", "AWS_REGION"}},
		{"no key", bucket, noKey, "denied", []string{"credentials"}},
		{"nobody there", "s3://bucket/x?endpoint=http://" + nowhere + "&region=us-east-1", s3.Env(), "unreachable", []string{nowhere, "network"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCLI(t).use(test.store, test.env...)
			c.damaged = true
			c.file("x", "x")
			for _, args := range [][]string{{"init"}, {"ls"}, {"put", "x"}} {
				c.run(args...).wantCode(1).wantErr(test.words...).wantPlain().wantOut("")
				r := c.run(append(args, "--json")...).wantCode(1)
				var e errorJSON
				if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.Kind != test.kind || e.Hint == "" {
					t.Errorf("%s: kind %q, want %q (%v): %s", r.command, e.Kind, test.kind, err, r.err)
				}
			}
			// Nobody knows whether the commit landed: this is no "it did not".
			c.run("log", "--id", "018f0000-0000-7000-8000-000000000000").wantCode(75).wantErr(test.words...)
			r := c.run("doctor").wantCode(1)
			if !strings.Contains(r.out, "FAILED  store") {
				t.Errorf("doctor says\n%s", r.out)
			}
		})
	}
}

func TestAStoreThatIgnoresConditionsIsRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.S3(t)
	p := srv.Proxy(t)
	p.Inject(testserver.Fault{DropConditions: true})
	c := newCLI(t).use(srv.ProxyURL(t, p, srv.NewBucket(t)), srv.Env()...)
	c.run("init").wantCode(1).wantErr("honour").wantPlain()
	r := c.run("init", "--json").wantCode(1)
	if !strings.Contains(r.err, `"kind":"unsupported-store"`) {
		t.Errorf("%s", r.err)
	}
	r = c.run("doctor").wantCode(1)
	if !strings.Contains(r.out, "FAILED  abilities") || !strings.Contains(r.out, "create-if-absent") {
		t.Errorf("doctor says\n%s", r.out)
	}
	c.run("ls").wantCode(1).wantErr("there is no datastore")
}

// When the answer about the commit does not come, nobody knows whether it
// landed. A signal ends the waiting, and the command says how to ask.
func TestASignalWhileACommitIsInDoubt(t *testing.T) {
	t.Parallel()
	srv := testserver.S3(t)
	store := srv.NewBucket(t)
	p := srv.Proxy(t)
	c := newCLI(t).use(srv.ProxyURL(t, p, store), srv.Env()...)
	c.ok("init")
	c.file("x", "x")
	gate := testserver.NewGate()
	p.Inject(testserver.Fault{Match: testserver.All(testserver.Method(http.MethodPut), testserver.KeySuffix("/commits/00000000000000000002")), HoldAnswer: gate})
	defer gate.Open()
	cmd := c.command("put", "x")
	var errOut strings.Builder
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	gate.Await(t)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d: %s", code, &errOut)
	}
	_, id, found := strings.Cut(errOut.String(), "swampd log --id ")
	if !found {
		t.Fatalf("it does not say how to ask:\n%s", &errOut)
	}
	if r := newCLI(t).use(store, srv.Env()...).ok("log", "--id", strings.TrimSpace(id)); !strings.Contains(r.out, "put x") {
		t.Errorf("it landed, but log says %q", r.out)
	}
}

// The commit lands, but no answer comes in all the time there is.
func TestACommitThatStaysInDoubt(t *testing.T) {
	t.Parallel()
	srv := testserver.S3(t)
	store := srv.NewBucket(t)
	p := srv.Proxy(t)
	c := newCLI(t).use(srv.ProxyURL(t, p, store), srv.Env()...)
	c.ok("init")
	c.file("x", "x")
	gate := testserver.NewGate()
	p.Inject(testserver.Fault{Match: testserver.All(testserver.Method(http.MethodPut), testserver.KeySuffix("/commits/00000000000000000002")), HoldAnswer: gate})
	defer gate.Open()
	cmd := c.command("put", "x", "--json")
	cmd.Env = append(cmd.Env, hurryEnv+"=1")
	var errOut strings.Builder
	cmd.Stderr = &errOut
	hurry, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	gate.Await(t)
	if err := hurry.Close(); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 75 {
		t.Errorf("exit code %d, want 75", code)
	}
	var e errorJSON
	if err := json.Unmarshal([]byte(errOut.String()), &e); err != nil || e.Kind != "unconfirmed" || e.ExitCode != 75 || e.Hint != "ask what became of it with: swampd log --id "+e.Commit {
		t.Fatalf("%v: %s", err, &errOut)
	}
	if r := newCLI(t).use(store, srv.Env()...).ok("log", "--id", e.Commit); !strings.Contains(r.out, "put x") {
		t.Errorf("it landed, but log says %q", r.out)
	}
}

func TestASignalWhileTheStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	srv := testserver.S3(t)
	p := srv.Proxy(t)
	c := newCLI(t).use(srv.ProxyURL(t, p, srv.NewBucket(t)), srv.Env()...)
	c.ok("init")
	gate := testserver.NewGate()
	held := p.Inject(testserver.Fault{Match: testserver.Method(http.MethodGet), Hold: gate})
	cmd := c.command("ls")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	gate.Await(t)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 143 {
		t.Errorf("exit code %d", code)
	}
	held.Remove()
	gate.Open()
	c.ok("ls")
}
