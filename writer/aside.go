package writer

import (
	"context"
	"errors"
	"fmt"
)

// ReleaseAside gives the lease back beside whatever the session is stuck in, for a
// process that is about to end (Watchdog): on a connection of its own, if Connect
// is set, and without a lock that other code of the session takes. Another's lease
// is left alone. It does not look at what is in flight; ctx bounds it. The hold is
// lost with it.
func (h *Hold) ReleaseAside(ctx context.Context) error {
	s := h.s
	s.cancel(fmt.Errorf("session %s: %w", s.id, ErrReleased))
	bucket := h.bucket
	if s.opts.Connect != nil {
		own, err := s.opts.Connect(ctx)
		if err != nil {
			return fmt.Errorf("giving the writer's lease back: %w", err)
		}
		defer own.Close()
		bucket = own
	}
	c := &cell{bucket: bucket, boot: s.opts.Boot, call: releaseTime}
	for {
		err := s.releaseOnce(ctx, c)
		if !errors.As(err, new(*foreignError)) {
			return err
		}
		// A renewal of mine came first, or another writer: look again.
	}
}

func (s *session) releaseOnce(ctx context.Context, c *cell) error {
	seen, err := c.look(ctx)
	if err != nil {
		return err
	}
	l, err := decodeSeen(c.bucket, seen)
	if err != nil {
		return err
	}
	if l == nil || l.Session != s.id {
		return s.fenced(seen)
	}
	if l.Released {
		return nil
	}
	l.Released = true
	l.Beat++
	l.Renewed = s.opts.Now().UTC()
	data, err := l.Encode()
	if err != nil {
		return err
	}
	c.version, c.doubts = seen.info.Version, nil
	_, err = c.swap(ctx, data)
	return err
}
