//go:build compare

package bench

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/swampd/swampd/internal/testserver"
)

const compareFiles = 10_000

// tool is one program under comparison. Each func runs it once, from a fresh
// process, against a store of its own for the round.
type tool struct {
	name       string
	setup      func(round int) error
	put, again func(round int) error
	get        func(round int, to string) error
}

// TestCompare is run by bench/compare: it takes minutes, and restic and rclone.
func TestCompare(t *testing.T) {
	const files = compareFiles
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	makeTree(t, tree, files)
	rounds, err := strconv.Atoi(os.Getenv("SWAMPD_COMPARE_ROUNDS"))
	if err != nil || rounds < 1 {
		t.Fatalf("SWAMPD_COMPARE_ROUNDS=%q", os.Getenv("SWAMPD_COMPARE_ROUNDS"))
	}
	srv := testserver.S3(t)
	times := map[string][]time.Duration{}
	tools := []tool{swampdTool(t, srv, dir, tree), resticTool(t, srv, dir, tree), rcloneTool(t, srv, dir, tree), cpTool(dir, tree)}
	for round := range rounds {
		tools := append(slices.Clone(tools[round%len(tools):]), tools[:round%len(tools)]...) // none is always the first
		for _, tl := range tools {
			if err := tl.setup(round); err != nil {
				t.Fatalf("%s: %v", tl.name, err)
			}
			to := filepath.Join(dir, "back")
			for _, step := range []struct {
				name string
				run  func() error
			}{
				{"put", func() error { return tl.put(round) }},
				{"nothing new", func() error { return tl.again(round) }},
				{"get", func() error { return tl.get(round, to) }},
			} {
				// What the step before left to be written is not this one's work.
				if err := run(dir, nil, "sync"); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := step.run(); err != nil {
					t.Fatalf("%s %s: %v", tl.name, step.name, err)
				}
				times[tl.name+" "+step.name] = append(times[tl.name+" "+step.name], time.Since(start))
			}
			if out, err := exec.Command("sh", "-c", fmt.Sprintf("find %q -type f | wc -l", to)).Output(); err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(files) {
				t.Fatalf("%s brought back %s files, %v", tl.name, out, err)
			}
			if err := os.RemoveAll(to); err != nil {
				t.Fatal(err)
			}
		}
	}
	printTable(tools, times, rounds, files)
}

func printTable(tools []tool, times map[string][]time.Duration, rounds, files int) {
	fmt.Printf("\n%d files of 4 KiB, medians of %d rounds, seconds (files/s)\n", files, rounds)
	fmt.Printf("%-8s %18s %18s %18s\n", "", "put", "nothing new", "get")
	med := map[string]float64{}
	for _, tl := range tools {
		fmt.Printf("%-8s", tl.name)
		for _, step := range []string{"put", "nothing new", "get"} {
			m := median(slices.Clone(times[tl.name+" "+step])).Seconds()
			med[tl.name+" "+step] = m
			fmt.Printf(" %8.3f (%7.0f)", m, float64(files)/m)
		}
		fmt.Println()
	}
	for _, step := range []string{"put", "nothing new", "get"} {
		best := min(med["restic "+step], med["rclone "+step])
		fmt.Printf("%s: %.1f times faster than the better of restic and rclone; %.2f times cp -r\n",
			step, best/med["swampd "+step], med["swampd "+step]/med["cp -r put"])
	}
}

func makeTree(t *testing.T, dir string, n int) {
	t.Helper()
	r := rand.NewChaCha8([32]byte{4})
	buf := make([]byte, 4096)
	for i := range n {
		r.Read(buf)
		d := filepath.Join(dir, fmt.Sprintf("dir-%02d", i/100))
		if i%100 == 0 {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("file-%05d", i)), buf, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs a program and gives its output with an error.
func run(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "AWS_CA_BUNDLE=") // rclone refuses a file that it does not need here
	}), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}

func swampdTool(t *testing.T, srv *testserver.S3Server, dir, tree string) tool {
	t.Helper()
	bin := filepath.Join(dir, "swampd")
	if err := run("..", nil, "go", "build", "-o", bin, "./cmd/swampd"); err != nil {
		t.Fatal(err)
	}
	stores := map[int][]string{}
	env := func(round int) []string { return stores[round] }
	return tool{
		name: "swampd",
		setup: func(round int) error {
			stores[round] = append(srv.Env(), "SWAMPD_STORE="+srv.NewBucket(t), "XDG_STATE_HOME="+filepath.Join(dir, fmt.Sprint("state", round)))
			return run(dir, env(round), bin, "init")
		},
		put:   func(round int) error { return run(tree, env(round), bin, "put", ".") },
		again: func(round int) error { return run(tree, env(round), bin, "put", ".") },
		get: func(round int, to string) error {
			// As from another machine: without the local catalog.
			e := append(env(round), "XDG_STATE_HOME="+filepath.Join(dir, fmt.Sprint("other", round)))
			return run(dir, e, bin, "get", ".", "-o", to)
		},
	}
}

func resticTool(t *testing.T, srv *testserver.S3Server, dir, tree string) tool {
	repos := map[int][]string{}
	return tool{
		name: "restic",
		setup: func(round int) error {
			u, err := url.Parse(srv.NewBucket(t))
			if err != nil {
				return err
			}
			repos[round] = append(srv.Env(), "RESTIC_PASSWORD=x", "RESTIC_REPOSITORY=s3:"+u.Query().Get("endpoint")+"/"+u.Host+u.Path,
				"RESTIC_CACHE_DIR="+filepath.Join(dir, fmt.Sprint("restic", round)))
			return run(dir, repos[round], "restic", "init", "-q")
		},
		put:   func(round int) error { return run(tree, repos[round], "restic", "backup", "-q", ".") },
		again: func(round int) error { return run(tree, repos[round], "restic", "backup", "-q", ".") },
		get: func(round int, to string) error {
			e := append(repos[round], "RESTIC_CACHE_DIR="+filepath.Join(dir, fmt.Sprint("restic-other", round)))
			return run(dir, e, "restic", "restore", "latest", "-q", "--target", to)
		},
	}
}

func rcloneTool(t *testing.T, srv *testserver.S3Server, dir, tree string) tool {
	remotes := map[int]string{}
	var env []string
	return tool{
		name: "rclone",
		setup: func(round int) error {
			u, err := url.Parse(srv.NewBucket(t))
			if err != nil {
				return err
			}
			remotes[round] = "srv:" + u.Host + u.Path
			env = append(srv.Env(), "RCLONE_CONFIG="+filepath.Join(dir, "rclone.conf"), "RCLONE_CONFIG_SRV_TYPE=s3", "RCLONE_CONFIG_SRV_PROVIDER=Other",
				"RCLONE_CONFIG_SRV_ENV_AUTH=true", "RCLONE_CONFIG_SRV_REGION="+u.Query().Get("region"), "RCLONE_CONFIG_SRV_ENDPOINT="+u.Query().Get("endpoint"))
			return nil
		},
		put: func(round int) error {
			return run(dir, env, "rclone", "copy", "-q", "--transfers", "32", "--checkers", "32", tree, remotes[round])
		},
		again: func(round int) error {
			return run(dir, env, "rclone", "copy", "-q", "--transfers", "32", "--checkers", "32", tree, remotes[round])
		},
		get: func(round int, to string) error {
			return run(dir, env, "rclone", "copy", "-q", "--transfers", "32", "--checkers", "32", remotes[round], to)
		},
	}
}

func cpTool(dir, tree string) tool {
	at := func(round int) string { return filepath.Join(dir, fmt.Sprint("copy", round)) }
	return tool{
		name:  "cp -r",
		setup: func(int) error { return nil },
		put:   func(round int) error { return run(dir, nil, "cp", "-r", tree, at(round)) },
		again: func(int) error { return nil },
		get:   func(round int, to string) error { return run(dir, nil, "cp", "-r", at(round), to) },
	}
}
