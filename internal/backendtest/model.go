package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/swampd/swampd/backend"
)

var modelTests = []subtest{
	{"random calls agree with a map", func(e *env) {
		for seed := range uint64(e.pick(1, 3, 1)) {
			m := &model{env: e, rng: rand.New(rand.NewPCG(seed, 0)), now: map[string]held{}, stale: map[string][]backend.Version{}}
			for range e.pick(300, 600, 60) {
				m.step()
				if e.Failed() {
					e.Fatalf("seed %d, the last calls were:\n%s", seed, m.trace())
				}
			}
			e.remove(e.a, slices.Collect(maps.Keys(m.now))...)
		}
	}},
}

// model says what a store must hold after calls that come one after another.
type model struct {
	*env
	rng   *rand.Rand
	now   map[string]held
	stale map[string][]backend.Version
	log   []string
	n     int
}

type held struct {
	data []byte
	v    backend.Version
}

var modelKeys = []string{"a-x", "a.b", "a/b", "a/c", "a0", "b/c/d", "_control/x", "_control/y/z", "_control/y-z"}

func (m *model) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *model) trace() string {
	var b bytes.Buffer
	for _, l := range m.log[max(0, len(m.log)-12):] {
		fmt.Fprintln(&b, l)
	}
	return b.String()
}

func (m *model) step() {
	m.n++
	b := m.handle(m.rng.IntN(2))
	key := modelKeys[m.rng.IntN(len(modelKeys))]
	was, there := m.now[key]
	data := fmt.Appendf(nil, "%d:%x", m.n, noise(m.rng.IntN(40), uint64(m.n)))
	switch m.rng.IntN(6) {
	case 0:
		info, err := b.Create(m.ctx, key, backend.Bytes(data))
		m.note("create %s %q: %q %v", key, data, info.Version, err)
		m.wrote(key, there, backend.ErrExists, held{data, info.Version}, err)
	case 1, 2:
		m.replaceStep(b, key, was, there, data)
	case 3:
		keys := []string{key}
		if m.rng.IntN(4) == 0 {
			keys = append(keys, modelKeys[m.rng.IntN(len(modelKeys))])
		}
		err := b.Delete(m.ctx, keys)
		m.note("delete %q: %v", keys, err)
		if err != nil {
			m.Errorf("delete: %v", err)
		}
		for _, k := range keys {
			if h, ok := m.now[k]; ok {
				m.stale[k] = append(m.stale[k], h.v)
				delete(m.now, k)
			}
		}
	case 4:
		m.getStep(b, key, was, there)
	case 5:
		prefix := []string{"", "a", "a/", "_control/", "_control/y", "b", "x"}[m.rng.IntN(7)]
		after := append([]string{"", "", "a", "b/c"}, modelKeys...)[m.rng.IntN(len(modelKeys)+4)]
		got := m.list(b, prefix, after)
		m.note("list %q after %q: %v", prefix, after, got)
		var keys []string
		for _, entry := range got {
			keys = append(keys, entry.Key)
			if size := int64(len(m.now[entry.Key].data)); entry.Size != size {
				m.Errorf("%s is listed with %d bytes, has %d", entry.Key, entry.Size, size)
			}
		}
		if want := expect(slices.Sorted(maps.Keys(m.now)), prefix, after); !slices.Equal(keys, want) {
			m.Errorf("list of %q after %q: %q, want %q", prefix, after, keys, want)
		}
	}
}

// replaceStep replaces the version that is there, or a stale one.
func (m *model) replaceStep(b *backend.Bucket, key string, was held, there bool, data []byte) {
	if !backend.Replaceable(key) {
		return
	}
	v := was.v
	if old := m.stale[key]; len(old) > 0 && (!there || m.rng.IntN(3) == 0) {
		v = old[m.rng.IntN(len(old))]
	}
	if v == "" {
		return
	}
	info, err := b.Replace(m.ctx, key, backend.Bytes(data), v)
	m.note("replace %s %q by %q: %q %v", key, v, data, info.Version, err)
	m.wrote(key, !there || v != was.v, backend.ErrChanged, held{data, info.Version}, err)
}

// wrote accounts for a create or replace that had to be refused, or not.
func (m *model) wrote(key string, refuse bool, want error, now held, err error) {
	switch {
	case refuse && !errors.Is(err, want):
		m.Errorf("%v, want %q", errText(err), want)
	case !refuse && err != nil:
		m.Errorf("%v", err)
	case !refuse:
		if h, ok := m.now[key]; ok {
			m.stale[key] = append(m.stale[key], h.v)
		}
		if slices.Contains(m.stale[key], now.v) {
			m.Errorf("the version %q of %s came back", now.v, key)
		}
		m.now[key] = now
	}
}

func (m *model) getStep(b *backend.Bucket, key string, was held, there bool) {
	var opts backend.GetOptions
	if m.rng.IntN(2) == 0 {
		opts = backend.GetOptions{Offset: int64(m.rng.IntN(80) - 40), Length: int64(m.rng.IntN(20))}
	}
	wantErr := backend.ErrNotFound
	if old := m.stale[key]; len(old) > 0 && m.rng.IntN(3) == 0 {
		opts.IfVersion, wantErr, there = old[m.rng.IntN(len(old))], backend.ErrChanged, false
	} else if there && m.rng.IntN(3) == 0 {
		opts.IfVersion = was.v
	}
	got, obj, err := read(m.ctx, b, key, opts)
	m.note("get %s %+v: %q %v", key, opts, got, err)
	if !there {
		if !errors.Is(err, wantErr) {
			m.Errorf("get of %s %+v: %v, want %q", key, opts, errText(err), wantErr)
		}
		return
	}
	size := int64(len(was.data))
	from := opts.Offset
	if from < 0 {
		from = max(0, size+from)
	}
	from = min(from, size)
	to := size
	if opts.Length > 0 {
		to = min(size, from+opts.Length)
	}
	if err != nil || !bytes.Equal(got, was.data[from:to]) || obj.Version != was.v || obj.Size != size {
		m.Errorf("get of %s %+v: %q, %v; want %q of version %q", key, opts, got, err, was.data[from:to], was.v)
	}
}
