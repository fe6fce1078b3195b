package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"time"
)

const (
	s3Module  = "github.com/versity/versitygw"
	s3Command = s3Module + "/cmd/versitygw"
)

// s3Binary returns the S3 server that internal/devtools pins, and builds it if
// this user has not built that version with this Go yet. Test processes that
// come at the same time wait for the one that builds.
func s3Binary() (string, error) {
	module, err := devtoolsDir()
	if err != nil {
		return "", err
	}
	version, err := pinnedVersion(filepath.Join(module, "go.mod"), s3Module)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	name := fmt.Sprintf("versitygw-%s-%s-%s-%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	dir := filepath.Join(cache, "swampd-test", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the cache directory for the S3 server: %w", err)
	}
	bin := filepath.Join(dir, "versitygw")
	if runtime.GOOS == "windows" {
		bin += ".exe"
	}
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	lock, err := lockFile(filepath.Join(dir, "lock"), false)
	if err == nil && lock == nil {
		say("another process builds the S3 server (versitygw %s); waiting for it", version)
		lock, err = lockFile(filepath.Join(dir, "lock"), true)
	}
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return bin, buildS3(module, version, bin)
}

// say tells people what takes so long. "go test ./..." shows what a test writes to
// standard error only if it fails, so that a terminal is told directly.
func say(format string, args ...any) {
	text := fmt.Sprintf("testserver: "+format+"\n", args...)
	fmt.Fprint(os.Stderr, text)
	if tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		fmt.Fprint(tty, text)
		tty.Close()
	}
}

func buildS3(module, version, bin string) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("building the S3 server needs the go command: %w", err)
	}
	say("building the S3 server for tests (versitygw %s) into %s, once; "+
		"this takes 2 to 4 minutes where nothing of it was compiled before", version, filepath.Dir(bin))
	begin := time.Now()
	part := bin + ".part"
	cmd := exec.Command(goTool, "build", "-buildvcs=false", "-o", part, s3Command)
	cmd.Dir = module
	// The server is for this machine, whatever the tests are compiled for.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS=", "GOARCH=", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", s3Command, module, err, bytes.TrimSpace(out))
	}
	if err := os.Rename(part, bin); err != nil {
		return fmt.Errorf("the built S3 server: %w", err)
	}
	say("the S3 server was built in %s", time.Since(begin).Round(time.Second))
	return nil
}

func pinnedVersion(gomod, module string) (string, error) {
	text, err := os.ReadFile(gomod)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v\S+)`).FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s does not require %s", gomod, module)
	}
	return string(m[1]), nil
}

// devtoolsDir finds internal/devtools from this source file, or, in a binary
// that was built with -trimpath, from the directory that the test runs in.
func devtoolsDir() (string, error) {
	var from []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		from = append(from, filepath.Dir(file))
	}
	if wd, err := os.Getwd(); err == nil {
		from = append(from, wd)
	}
	for _, dir := range from {
		for {
			cand := filepath.Join(dir, "internal", "devtools")
			if _, err := os.Stat(filepath.Join(cand, "go.mod")); err == nil {
				return cand, nil
			}
			up := filepath.Dir(dir)
			if up == dir {
				break
			}
			dir = up
		}
	}
	return "", errors.New("internal/devtools was found neither from the source nor from the working directory; " +
		"run the tests inside the module's tree")
}
