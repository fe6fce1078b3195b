package datastore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/swampd/swampd/internal/filelock"
)

// StateRoot is the directory below which datastores keep their local files, each
// in a directory named by its id, if Options.StateDir does not say otherwise:
// swampd in $XDG_STATE_HOME or ~/.local/state, on macOS in ~/Library/Application
// Support, on Windows in %LocalAppData%. An error says that the user has no home.
func StateRoot() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "swampd"), nil
	}
	base, err := stateBase()
	if err != nil {
		return "", fmt.Errorf("no place for local state is known (%w): set Options.StateDir or XDG_STATE_HOME", err)
	}
	return filepath.Join(base, "swampd"), nil
}

// stateDir is the directory with the local files, or with one for each datastore.
func (o *Options) stateDir() (string, error) {
	if o.StateDir != "" {
		return o.StateDir, nil
	}
	return StateRoot()
}

// stateBase is the user's directory for state that programs keep.
func stateBase() (string, error) {
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
	return filepath.Join(home, ".local", "state"), nil
}

// networkFilesystem is a variable for tests.
var networkFilesystem = filelock.NetworkFilesystemAt

// CheckStateDir refuses a place for local files (Options.StateDir) that is on a
// network filesystem, as Open and Init do: NFS, SMB, 9p, FUSE and the like. The end
// of its path need not exist yet. It makes nothing, and says nothing of what else
// may be wrong with the place. It asks the filesystem, so it blocks for as long as
// that one does.
func CheckStateDir(dir string) error {
	kind, err := networkFilesystem(dir)
	for at := dir; errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at; {
		at = filepath.Dir(at)
		kind, err = networkFilesystem(at)
	}
	if err != nil {
		return nil // it cannot be made either, which tells more
	}
	return refuseNetwork(dir, kind)
}

func refuseNetwork(dir, kind string) error {
	if kind == "" {
		return nil
	}
	return fmt.Errorf("the local state directory %s is on a filesystem that other machines may share (%s): their file locks do not show here, and SQLite breaks; "+
		"set Options.StateDir or XDG_STATE_HOME to a directory on a disk of this machine", dir, kind)
}

// makeStateDir makes the directory for local files, if none of it would be on a
// network filesystem.
func makeStateDir(dir string) error {
	if err := CheckStateDir(dir); err != nil {
		return err
	}
	err := os.MkdirAll(dir, 0o700)
	var kind string
	if err == nil {
		// What is there now counts: an automounter comes with the first use.
		if kind, err = networkFilesystem(dir); errors.Is(err, errors.ErrUnsupported) {
			return nil // this system does not tell
		}
	}
	if err != nil {
		return fmt.Errorf("the local state directory: %w; set Options.StateDir or XDG_STATE_HOME to a place that can be written", err)
	}
	return refuseNetwork(dir, kind)
}

type readNopCloser struct{ *bytes.Reader }

func (readNopCloser) Close() error { return nil }

func bytesReader(b []byte) io.ReadSeekCloser { return readNopCloser{bytes.NewReader(b)} }
