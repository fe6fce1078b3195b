package backend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// undecided says that a store did not say whether a request was carried out, or
// that it was not for now. Such requests are asked again, or read back.
func undecided(err error) bool {
	return errors.Is(err, ErrUnknown) || errors.Is(err, ErrBusy) || errors.Is(err, ErrConflict)
}

// outOfPlace says that an error is one of the contract's answers. Where another
// was due, the store broke a promise; all other errors say nothing about it.
func outOfPlace(err error) bool {
	for _, s := range []error{ErrNotFound, ErrExists, ErrChanged, ErrBadContent, ErrUnsupported, ErrBadKey} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// unexpected is the verdict on an error where none was due.
func unexpected(err error, format string, args ...any) error {
	if outOfPlace(err) {
		return broke(err, format, args...)
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// probeTries is how often a request without a decision is asked again. Drivers
// have waited and repeated on their own before they say ErrBusy.
const probeTries = 3

// read returns what a key holds, whole or a part. A key that holds nothing is
// ErrNotFound.
func (p *prober) read(key string, opts GetOptions) ([]byte, Info, error) {
	p.requests.Add(1)
	sent := time.Now()
	obj, err := p.b.Get(p.ctx, key, opts)
	if err != nil {
		return nil, Info{}, err
	}
	p.clock(obj.Now, sent)
	defer obj.Body.Close()
	data, err := io.ReadAll(io.LimitReader(obj.Body, 1<<20))
	return data, obj.Info, err
}

func (p *prober) create(key string, body Body) (Info, error) {
	p.requests.Add(1)
	info, err := p.b.Create(p.ctx, key, body)
	p.wrote(err)
	return info, err
}

func (p *prober) replace(key string, body Body, old Version) (Info, error) {
	p.requests.Add(1)
	info, err := p.b.Replace(p.ctx, key, body, old)
	p.wrote(err)
	return info, err
}

// wrote notes that something may have been made, for the clean-up.
func (p *prober) wrote(err error) {
	for _, s := range []error{ErrDenied, ErrNoBucket, ErrClosed, ErrFull} {
		if errors.Is(err, s) {
			return
		}
	}
	p.dirty.Store(true)
}

// made demands that data is created at key, which holds nothing.
func (p *prober) made(key string, data []byte) (Info, error) {
	return p.written(key, data, "the create of a new key", func() (Info, error) { return p.create(key, Bytes(data)) })
}

// replaced demands that data replaces version old.
func (p *prober) replaced(key string, data []byte, old Version) (Info, error) {
	return p.written(key, data, "the replace of the version that was read", func() (Info, error) { return p.replace(key, Bytes(data), old) })
}

// written demands that a write succeeds; answers that decide nothing are read
// back, since a write that was done may be refused when it is asked again.
func (p *prober) written(key string, data []byte, what string, write func() (Info, error)) (Info, error) {
	for try := 1; ; try++ {
		info, err := write()
		if err == nil {
			return info, nil
		}
		if try == 1 && !undecided(err) {
			return info, unexpected(err, "%s failed", what)
		}
		held, back, rerr := p.read(key, GetOptions{})
		if rerr == nil && bytes.Equal(held, data) {
			return back, nil
		}
		if !undecided(err) || try == probeTries || p.ctx.Err() != nil {
			return info, unexpected(err, "%s failed", what)
		}
	}
}

// refused demands that a write is refused with want.
func (p *prober) refused(what string, want error, write func() error) error {
	var err error
	for range probeTries {
		switch err = write(); {
		case errors.Is(err, want):
			return nil
		case err == nil:
			return broke(nil, "%s was answered with success", what)
		case !undecided(err):
			return unexpected(err, "%s was answered otherwise than by %q", what, want)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// holds demands that key holds data.
func (p *prober) holds(key string, data []byte, when string) (Info, error) {
	held, info, err := p.read(key, GetOptions{})
	switch {
	case err != nil:
		return info, unexpected(err, "%s, the read failed", when)
	case !bytes.Equal(held, data):
		return info, broke(nil, "%s, the key holds %q instead of %q", when, short(held), data)
	}
	return info, nil
}

// nothing demands that key holds nothing.
func (p *prober) nothing(key, when string) error {
	held, _, err := p.read(key, GetOptions{})
	switch {
	case err == nil:
		return broke(nil, "%s, the key holds %q instead of nothing", when, short(held))
	case !errors.Is(err, ErrNotFound):
		return unexpected(err, "%s, the read failed", when)
	}
	return nil
}

func short(b []byte) []byte { return b[:min(len(b), 100)] }

func (p *prober) checkCreate() error {
	key, first, second := p.key("create"), p.text("first"), p.text("second")
	if _, err := p.made(key, first); err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		data []byte
	}{{"a second create of the same bytes", first}, {"a create of a key that holds something else", second}} {
		err := p.refused(c.what, ErrExists, func() error {
			_, err := p.create(key, Bytes(c.data))
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := p.holds(key, first, "after two creates that were refused")
	return err
}

// race lets n writers put contents of their own to key at once, and demands that
// exactly one succeeds and that the key holds its content.
func (p *prober) race(key string, n int, refused error, write func(body Body) (Info, error)) error {
	texts, errs := make([][]byte, n), make([]error, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		texts[i] = p.text(fmt.Sprintf("racer %d", i))
		body := Bytes(texts[i])
		wg.Go(func() {
			<-start
			_, errs[i] = write(body)
		})
	}
	close(start)
	wg.Wait()

	held, _, err := p.read(key, GetOptions{})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return unexpected(err, "after the race, the read failed")
	}
	owner := slices.IndexFunc(texts, func(t []byte) bool { return bytes.Equal(t, held) })
	winners, open := 0, error(nil)
	for i, err := range errs {
		switch {
		case err == nil:
			winners++
		case undecided(err):
			open = err
		case !errors.Is(err, refused):
			return unexpected(err, "a loser of the race was answered otherwise than by %q", refused)
		case i == owner:
			return broke(err, "a writer was refused, and the key holds its bytes")
		}
	}
	switch {
	case winners > 1:
		return broke(nil, "%d of %d writers were answered with success", winners, n)
	case winners == 1 && (owner < 0 || errs[owner] != nil):
		return broke(nil, "one writer was answered with success, and the key holds %q, which it did not send", short(held))
	case winners == 0 && owner < 0 && open != nil:
		return fmt.Errorf("no writer was answered with success: %w", open)
	case winners == 0 && owner < 0:
		return broke(nil, "none of %d writers was answered with success", n)
	}
	return nil
}

func (p *prober) checkParts() error {
	key, first, second := p.key("parts"), p.text("first"), p.text("second")
	create := func(data []byte) (Info, error) {
		p.requests.Add(1)
		info, err := p.b.createInParts(p.ctx, key, Bytes(data))
		p.wrote(err)
		return info, err
	}
	_, err := p.written(key, first, "the create of a new key in parts", func() (Info, error) { return create(first) })
	if err != nil {
		return err
	}
	err = p.refused("a create in parts of a key that holds something else", ErrExists, func() error {
		_, err := create(second)
		return err
	})
	if err != nil {
		return err
	}
	_, err = p.holds(key, first, "after a create in parts that was refused")
	return err
}

func (p *prober) checkCreateRace() error {
	key := p.key("race")
	return p.race(key, 8, ErrExists, func(body Body) (Info, error) { return p.create(key, body) })
}

func (p *prober) checkReplace() error {
	key, other, missing := p.record("replace"), p.record("other"), p.record("missing")
	first, err := p.made(key, p.text("first"))
	if err != nil {
		return err
	}
	foreign, err := p.made(other, p.text("other"))
	if err != nil {
		return err
	}
	second, err := p.replaced(key, p.text("second"), first.Version)
	if err != nil {
		return err
	}
	if second.Version == first.Version {
		return broke(nil, "the version %q stayed when the record was replaced", first.Version)
	}
	for _, c := range []struct {
		what, key string
		old       Version
	}{
		{"a replace of a stale version", key, first.Version},
		{"a replace of another object's version", key, foreign.Version},
		{"a replace of a missing key", missing, second.Version},
	} {
		if c.old == second.Version && c.key == key {
			continue // the store numbers the versions of each key alike
		}
		err := p.refused(c.what, ErrChanged, func() error {
			_, err := p.replace(c.key, Bytes(p.text(c.what)), c.old)
			return err
		})
		if err != nil {
			return err
		}
	}
	if _, _, err := p.read(key, GetOptions{IfVersion: first.Version}); !errors.Is(err, ErrChanged) {
		if err == nil {
			return broke(nil, "a read of a stale version was answered with another")
		}
		return unexpected(err, "a read of a stale version was answered otherwise than by %q", ErrChanged)
	}
	if err := p.nothing(missing, "after a replace that was refused"); err != nil {
		return err
	}
	now, err := p.holds(key, p.text("second"), "after replaces that were refused")
	if err == nil && now.Version != second.Version {
		return broke(nil, "the replace said that the version is %q, and the read that it is %q", second.Version, now.Version)
	}
	return err
}

func (p *prober) checkReplaceRace() error {
	key := p.record("race")
	made, err := p.made(key, p.text("begin"))
	if err != nil {
		return err
	}
	return p.race(key, 4, ErrChanged, func(body Body) (Info, error) { return p.replace(key, body, made.Version) })
}

func (p *prober) checkReadWrites() error {
	key, first, again := p.record("reread"), p.text("first"), p.text("again")
	// Reading before writing fills caches that remember what is missing.
	if err := p.nothing(key, "before it was created"); err != nil {
		return err
	}
	if _, err := p.made(key, first); err != nil {
		return err
	}
	info, err := p.holds(key, first, "right after the create")
	if err != nil {
		return err
	}
	if got, err := p.list(key, ""); err != nil {
		return err
	} else if len(got) != 1 {
		return broke(nil, "right after the create, the listing shows %d objects instead of 1", len(got))
	}
	if _, err := p.replaced(key, p.text("second"), info.Version); err != nil {
		return err
	}
	if _, err := p.holds(key, p.text("second"), "right after the replace"); err != nil {
		return err
	}
	p.requests.Add(1)
	if err := p.b.Delete(p.ctx, []string{key}); err != nil {
		return unexpected(err, "the delete failed")
	}
	if err := p.nothing(key, "right after the delete"); err != nil {
		return err
	}
	_, err = p.written(key, again, "the create of a key that was deleted", func() (Info, error) { return p.create(key, Bytes(again)) })
	if err != nil {
		return err
	}
	_, err = p.holds(key, again, "after it was created again")
	return err
}

func (p *prober) list(prefix, after string) ([]string, error) {
	p.requests.Add(1)
	var keys []string
	for e, err := range p.b.List(p.ctx, prefix, after) {
		if err != nil {
			return keys, unexpected(err, "the listing failed")
		}
		keys = append(keys, e.Key)
	}
	return keys, nil
}

func (p *prober) checkListOrder() error {
	// In byte order "-" and "." come before "/", and "0" after it; a walk through
	// directories sees "a/" first or last. Neither length is in this order.
	var want []string
	for _, name := range []string{"a-x", "a.b", "a/bc", "a0"} {
		key := p.key("list/" + name)
		if _, err := p.made(key, p.text(name)); err != nil {
			return err
		}
		want = append(want, key)
	}
	got, err := p.list("probe/list/a", want[0])
	// Other probes may be at work.
	got = slices.DeleteFunc(got, func(k string) bool { return !strings.HasSuffix(k, p.id) })
	if err == nil && !slices.Equal(got, want[1:]) {
		return broke(nil, "the listing after %s is %s instead of %s", want[0], strings.Join(got, " "), strings.Join(want[1:], " "))
	}
	return err
}

func (p *prober) checkRanges() error {
	key, text := p.key("ranges"), p.text("0123456789")
	if _, err := p.made(key, text); err != nil {
		return err
	}
	for _, c := range []struct {
		opts GetOptions
		want []byte
	}{
		{GetOptions{Offset: 3, Length: 4}, text[3:7]},
		{GetOptions{Offset: -5}, text[len(text)-5:]},
		{GetOptions{Offset: int64(len(text)) + 10}, nil},
	} {
		got, info, err := p.read(key, c.opts)
		what := fmt.Sprintf("the range from byte %d, %d bytes long (0: to the end)", c.opts.Offset, c.opts.Length)
		switch {
		case err != nil:
			return unexpected(err, "the read of %s failed", what)
		case !bytes.Equal(got, c.want) || info.Size != int64(len(text)):
			return broke(nil, "%s is %q of %d bytes instead of %q of %d", what, short(got), info.Size, c.want, len(text))
		}
	}
	return nil
}

func (p *prober) checkContent() error {
	key := p.key("content")
	body := Bytes(p.text("damaged"))
	body.SHA256[0] ^= 1
	err := p.refused("a create with a wrong sha256", ErrBadContent, func() error {
		_, err := p.create(key, body)
		return err
	})
	if err != nil {
		return err
	}
	return p.nothing(key, "after a create that was refused")
}
