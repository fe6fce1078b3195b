package datastore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/filelock"
)

// What a Store stages lies in <StateDir>/staging/<uuid>, beside a file that the
// process holds locked as long as it lives. A directory whose lock can be had
// belongs to a process that is gone: its contents were never committed through
// this version of the engine's outbox, and are removed.

// stagingDir makes a directory inside this Store's staging area.
func (s *Store) stagingDir(name string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", ErrClosed
	}
	if s.staging == "" {
		var err error
		for range 5 {
			if err = s.claimStaging(); err == nil {
				break
			}
		}
		if err != nil {
			return "", fmt.Errorf("the local staging area: %w", err)
		}
	}
	dir := filepath.Join(s.staging, name)
	return dir, os.MkdirAll(dir, 0o700)
}

// claimStaging makes and locks this Store's staging area. Another process that
// cleans up may have taken the new directory for an abandoned one before it was
// locked: then the lock is not the one in the directory, and another is made.
func (s *Store) claimStaging() error {
	dir := filepath.Join(s.dir, "staging", uuid.New().String())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := filepath.Join(dir, "lock")
	lock, err := lockFile(name)
	if err != nil {
		return err
	}
	locked, err := lock.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(name); err == nil && !os.SameFile(locked, there) {
			err = fmt.Errorf("%s was removed by another process", dir)
		}
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	s.staging, s.stagingLock = dir, lock
	return nil
}

// closeStaging removes this Store's staging area.
func (s *Store) closeStaging() error {
	if s.staging == "" {
		return nil
	}
	// First the contents, then the lock, so that nobody takes a half for a whole.
	return errors.Join(os.RemoveAll(s.staging), s.stagingLock.Close())
}

// cleanStaging removes what processes that are gone left behind. What cannot be
// removed is no reason not to work.
func (s *Store) cleanStaging() {
	root := filepath.Join(s.dir, "staging")
	dirs, err := os.ReadDir(root)
	if err != nil {
		return
	}
	for _, d := range dirs {
		dir := filepath.Join(root, d.Name())
		lock, err := lockFile(filepath.Join(dir, "lock"))
		if err != nil {
			continue // in use
		}
		if err := os.RemoveAll(dir); err != nil {
			s.opts.Logger.Warn("a staging area of an earlier process was not removed", "dir", dir, "error", err)
		}
		lock.Close()
	}
}

// lockFile makes the file and takes its exclusive lock. It does not wait.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ok, err := filelock.TryLock(f)
	if err == nil && !ok {
		err = fmt.Errorf("another process has %s locked", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
