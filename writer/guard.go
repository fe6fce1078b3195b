package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
)

// heldGuard is a guard that this process has locked. Several sessions of a
// process, one after the other, may use it: a session that could not be given
// back keeps it until it is, and must not keep it from the next.
type heldGuard struct {
	record Guard
	file   *os.File
	drop   func()
	users  int // guarded by Process.guardMu
}

var errGuardLocked = errors.New("another process has it locked")

// takeGuard locks the guard file at path, which it makes if there is none.
// errGuardLocked may pass; every other error says why there can be no guard.
func (p *Process) takeGuard(ctx context.Context, path string) (*heldGuard, error) {
	p.guardMu.Lock()
	defer p.guardMu.Unlock()
	if g := p.guards[path]; g != nil {
		g.users++
		return g, nil
	}
	var err error
	// A judge locks a guard for the moment of a look; so a few times.
	for range 5 {
		var g *heldGuard
		if g, err = lockHeldGuard(path); err == nil {
			g.users = 1
			p.guards[path] = g
			return g, nil
		}
		if !errors.Is(err, errGuardLocked) || !sleep(ctx, jitter(2*time.Millisecond)) {
			break
		}
	}
	return nil, err
}

// leaveGuard unlocks it when nobody in this process uses it any more. The file
// stays: another one in its place would be another guard.
func (p *Process) leaveGuard(g *heldGuard) {
	if g == nil {
		return
	}
	p.guardMu.Lock()
	defer p.guardMu.Unlock()
	if g.users--; g.users == 0 {
		delete(p.guards, g.record.Path)
		g.drop()
		g.file.Close()
	}
}

func lockHeldGuard(path string) (_ *heldGuard, err error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the guard %s: its path is not absolute", word(path))
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("the guard %s is no regular file", word(path))
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the guard: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	remote, err := networkFilesystem(f)
	if err != nil {
		return nil, fmt.Errorf("the guard %s: %w", word(path), err)
	}
	if remote != "" {
		return nil, fmt.Errorf("the guard %s is on a network filesystem (%s), where locks of other machines may not show", word(path), remote)
	}
	locked, err := lockGuard(f, true)
	if err != nil {
		return nil, fmt.Errorf("the guard: %w", err)
	}
	if !locked {
		return nil, fmt.Errorf("the guard %s: %w", word(path), errGuardLocked)
	}
	// Is it still the file of that name? Somebody may have put another there.
	mine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	there, err := os.Lstat(path)
	if err != nil || !os.SameFile(mine, there) {
		return nil, fmt.Errorf("the guard %s was replaced meanwhile: %w", word(path), errGuardLocked)
	}
	id, err := guardID(f)
	if err != nil {
		return nil, err
	}
	inode, err := guardInode(f)
	if err != nil {
		return nil, fmt.Errorf("the guard %s: %w", word(path), err)
	}
	return &heldGuard{record: Guard{Path: path, Inode: inode, ID: id}, file: f, drop: keepGuard(f)}, nil
}

// guardID reads the id in a guard that is locked, or gives it one.
func guardID(f *os.File) (string, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxGuard+1))
	if err != nil {
		return "", fmt.Errorf("the guard: %w", err)
	}
	if id := bytes.TrimSpace(data); len(id) > 0 && !torn(data) {
		if _, err := uuid.ParseBytes(id); err != nil {
			return "", fmt.Errorf("the guard %s holds something else than an id; name a file of its own for it", word(f.Name()))
		}
		return string(id), nil
	}
	id := uuid.New().String()
	if _, err := f.WriteAt([]byte(id+"\n"), 0); err != nil {
		return "", fmt.Errorf("the guard: %w", err)
	}
	if err := f.Sync(); err != nil {
		return "", fmt.Errorf("the guard: %w", err)
	}
	return id, nil
}

// torn: a crash cut off the write of an id, and left some of it, or zeros. No
// record names such a guard: the id is synced before.
func torn(data []byte) bool {
	_, err := uuid.ParseBytes(bytes.TrimSpace(data))
	return err != nil && len(data) <= guardLen && len(bytes.Trim(data, "0123456789abcdef-\n\x00")) == 0
}

const guardLen = 37 // an id and the end of its line

// takeGuard gets the session's guard, if one is wished for and can be had. It may
// be called again: a guard that another process has locked may come free.
func (s *session) takeGuard(ctx context.Context) {
	if s.opts.Guard == "" || s.guard != nil || s.noGuard != nil && !errors.Is(s.noGuard, errGuardLocked) {
		return
	}
	s.guard, s.noGuard = s.proc.takeGuard(ctx, s.opts.Guard)
}

// awaitGuard waits a moment for a guard that another has locked. Whoever has just
// given the lease back keeps its guard until it knows that it has; its successor
// would promise nothing as long as it lives.
func (s *session) awaitGuard(ctx context.Context) {
	for range 20 {
		if !errors.Is(s.noGuard, errGuardLocked) || !sleep(ctx, guardTime/20) {
			return
		}
		s.takeGuard(ctx)
	}
}

// promise is what a record may say about fast adoption: only what can be kept.
func (s *session) promise() (*Guard, *Adoption) {
	if s.guard == nil {
		if s.noGuard != nil {
			s.opts.Logger.Warn("no guard: a writer of the same id that comes after this one waits for the lease's time (TTL and skew)", "reason", s.noGuard)
		}
		return nil, nil
	}
	guard := s.guard.record
	if !s.opts.FastAdoption {
		return &guard, nil
	}
	beat := s.opts.Beat.Milliseconds()
	return &guard, &Adoption{BeatMillis: beat, SelfFenceMillis: 3 * beat, SilenceMillis: 4 * beat}
}

// adoption says whether the holder of l promised what a fast takeover by this
// session needs, and after which silence; or why not. Three proofs are needed:
// the guard (checked here), the silence (by the caller), the CAS on the version
// that was silent.
func (s *session) adoption(l *Lease) (silence time.Duration, why string) {
	switch {
	case !s.opts.FastAdoption:
		return 0, "fast adoption is not asked for"
	case l.Writer != s.opts.Writer:
		return 0, fmt.Sprintf("it is writer %s, this is %s", word(l.Writer), word(s.opts.Writer))
	case l.Epoch != s.opts.Epoch:
		return 0, fmt.Sprintf("it is of epoch %s, this is of %s", word(l.Epoch), word(s.opts.Epoch))
	case l.Adoption == nil || l.Guard == nil:
		return 0, "its record promises no fast adoption"
	}
	a := l.Adoption
	const most = int64(maxTTL / time.Millisecond)
	if a.BeatMillis <= 0 || a.BeatMillis > most || a.SelfFenceMillis < a.BeatMillis || a.SelfFenceMillis > most ||
		a.SilenceMillis <= a.SelfFenceMillis || a.SilenceMillis > most {
		return 0, fmt.Sprintf("its promise makes no sense (beat %d ms, self-fence %d ms, silence %d ms)", a.BeatMillis, a.SelfFenceMillis, a.SilenceMillis)
	}
	if s.guard == nil {
		return 0, fmt.Sprintf("its guard could not be had: %v", s.noGuard)
	}
	mine := s.guard.record
	if mine.Path != l.Guard.Path || mine.Inode != l.Guard.Inode || mine.ID != l.Guard.ID {
		return 0, fmt.Sprintf("its guard is %s (inode %d, id %s), and the one here is %s (inode %d, id %s): a copy is not the guard",
			word(l.Guard.Path), l.Guard.Inode, word(l.Guard.ID), word(mine.Path), mine.Inode, mine.ID)
	}
	return time.Duration(max(a.SilenceMillis, 4*a.BeatMillis)) * time.Millisecond, ""
}
