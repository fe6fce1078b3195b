package datastore

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
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

type readNopCloser struct{ *bytes.Reader }

func (readNopCloser) Close() error { return nil }

func bytesReader(b []byte) io.ReadSeekCloser { return readNopCloser{bytes.NewReader(b)} }
