package datastore

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

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
