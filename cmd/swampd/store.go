package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/datastore"
)

// closeTimeout bounds what is done after the command's own context has ended:
// giving back the writer's hold.
const closeTimeout = 10 * time.Second

// address is the store's address as given, and whether it is the default one.
func (a *app) address() (addr string, isDefault bool, err error) {
	addr, from := a.store, "-s"
	if addr == "" {
		addr, from = os.Getenv("SWAMPD_STORE"), "SWAMPD_STORE"
	}
	if addr == "" {
		dir, err := dataDir()
		if err != nil {
			return "", false, usagef("name a datastore with -s URL or SWAMPD_STORE", "no data directory for a default datastore: %v", err)
		}
		return filepath.Join(dir, "swampd", "default"), true, nil
	}
	return addr, false, checkAddress(addr, from)
}

// likeURL is a URL that misses a slash, which would silently become the name
// of a directory.
var likeURL = regexp.MustCompile(`^(s3|gs|gcs|file|https?):/*`)

// checkAddress refuses what cannot be an address.
func checkAddress(addr, from string) error {
	hint := "write /dir, s3://bucket/prefix or gs://bucket/prefix"
	if m := likeURL.FindString(addr); m != "" && !strings.HasSuffix(m, "://") && !strings.HasPrefix(addr, "file:///") {
		return usagef(hint, "%s: %q is no address of a store: \"://\" must follow the scheme", from, backend.Redact(addr))
	}
	if _, err := backend.ParseURL(addr); err != nil {
		return usagef(hint, "%s: %v", from, err)
	}
	return nil
}

// shownStore is the address for messages: one form for all spellings, without
// secrets.
func (a *app) shownStore() string {
	addr, _, err := a.address()
	if err != nil {
		return backend.Redact(addr)
	}
	return shown(addr)
}

func shown(addr string) string {
	if dir := directoryOf(addr); dir != "" {
		return dir
	}
	return backend.Redact(addr)
}

// directoryOf is the directory that an address names; "" if it names no
// directory.
func directoryOf(addr string) string {
	u, err := backend.ParseURL(addr)
	if err != nil || u.Scheme != "file" {
		return ""
	}
	return filepath.FromSlash(u.Path)
}

// shortStore is an address for sentences: without the parameters.
func shortStore(addr string) string {
	if !strings.Contains(addr, "://") {
		return addr
	}
	if dir, isFile := strings.CutPrefix(addr, "file://"); isFile {
		return filepath.FromSlash(dir)
	}
	addr, _, _ = strings.Cut(addr, "?")
	return addr
}

// dataDir is where programs keep data of this user.
func dataDir() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	switch runtime.GOOS {
	case "darwin", "ios":
		return os.UserConfigDir() // ~/Library/Application Support
	case "windows":
		return os.UserCacheDir() // %LocalAppData%
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "share"), nil
}

func (a *app) options(progress func(datastore.Progress)) *datastore.Options {
	wait := a.maxWait
	if wait == 0 {
		wait = -1 // the engine's word for "not at all"
	}
	return &datastore.Options{
		StateDir: a.stateDir, Command: a.command, MaxWait: wait,
		Waiting: a.waiting(), Progress: progress,
	}
}

// open opens the datastore for a command that reads.
func (a *app) open(ctx context.Context, progress func(datastore.Progress)) (*datastore.Store, error) {
	addr, isDefault, err := a.address()
	if err != nil {
		return nil, err
	}
	s, err := datastore.Open(ctx, addr, a.options(progress))
	return s, noDefault(addr, isDefault, err)
}

// noDefault explains that the default datastore is not there to whoever named none.
func noDefault(addr string, isDefault bool, err error) error {
	if !isDefault || !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	return &refusal{
		kind: "no-datastore", err: err,
		text: fmt.Sprintf("no datastore was named, and there is no default one at %s yet", shown(addr)),
		hint: "name one with -s URL or SWAMPD_STORE; the default one is made by the first: swampd put PATH",
	}
}

// openForPut is open, but makes the default datastore at its first use.
func (a *app) openForPut(ctx context.Context, progress func(datastore.Progress)) (*datastore.Store, error) {
	addr, isDefault, err := a.address()
	if err != nil {
		return nil, err
	}
	opts := a.options(progress)
	s, err := datastore.Open(ctx, addr, opts)
	if !isDefault || !errors.Is(err, datastore.ErrNotFound) {
		return s, err
	}
	s, err = datastore.Init(ctx, addr, opts)
	if errors.Is(err, datastore.ErrExists) { // another put was faster
		return datastore.Open(ctx, addr, opts)
	}
	if err == nil {
		a.note("made the default datastore at %s", shown(addr))
	}
	return s, err
}

// shut closes s after a command and keeps the first error. The command's
// context may have ended, so giving back the hold has its own.
func shut(s *datastore.Store, err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	released := s.Release(ctx)
	closed := s.Close()
	if *err == nil {
		*err = errors.Join(released, closed)
	}
}

// slot reads the value of --at and the arguments of diff: a number, or "newest",
// or "newest-N" (which -N was made into) for the state N commits ago. The
// answer 0 is the state before the first commit.
func slot(ctx context.Context, s *datastore.Store, text string) (uint64, error) {
	const hint = `write a number from "swampd log", or -N for the state N commits ago`
	if text == "" || text == newest {
		return s.Head(), nil
	}
	ago := strings.TrimPrefix(text, newest)
	if back, isAgo := strings.CutPrefix(ago, "-"); isAgo {
		n, err := parseSlot(back)
		if err != nil {
			return 0, usagef(hint, "%q is no state", text)
		}
		for e, err := range s.Log(ctx, nil) {
			if err != nil {
				return 0, err
			}
			if n == 0 {
				return e.Slot, nil
			}
			n--
		}
		if n == 0 {
			return 0, nil
		}
		return 0, &refusal{kind: "not-found", text: fmt.Sprintf("there are fewer commits than %q needs", text), hint: "see: swampd log"}
	}
	n, err := parseSlot(text)
	if err != nil {
		return 0, usagef(hint, "%q is no state", text)
	}
	if head := s.Head(); n > head {
		return 0, &refusal{kind: "not-found", text: fmt.Sprintf("there is no state %d yet, the newest is %d", n, head), hint: "see: swampd log"}
	}
	return n, nil
}

// state is slot for reading: the empty state holds nothing that could be read.
func state(ctx context.Context, s *datastore.Store, text string) (uint64, error) {
	n, err := slot(ctx, s, text)
	if err == nil && n == 0 && text != "" {
		return 0, &refusal{kind: "not-found", text: "the state before the first commit holds nothing", hint: "see: swampd log"}
	}
	return n, err
}

// ownDirs are directories that no put may read, since it writes them: the
// datastore's own, and its local files.
func (a *app) ownDirs() []string {
	var dirs []string
	if addr, _, err := a.address(); err == nil {
		if dir := directoryOf(addr); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	if a.stateDir != "" {
		return append(dirs, a.stateDir)
	}
	if root, err := datastore.StateRoot(); err == nil {
		dirs = append(dirs, root)
	}
	return dirs
}
