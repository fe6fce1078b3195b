package liar

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
)

type entries = iter.Seq2[backend.Entry, error]

// Liars about listings.
var listLiars = []Liar{
	{
		Name:   "a temporary object is listed",
		Breaks: []string{"List/an empty store lists nothing"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, prefix, after string) []backend.Entry {
				if prefix == "" && after < "tmp" {
					all = append(all, backend.Entry{Key: "tmp", Size: 1})
				}
				return all
			})
		}),
	},
	{
		Name:   "list walks directories",
		Breaks: []string{"List/byte order of the whole key"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry {
				slices.SortFunc(all, func(a, b backend.Entry) int {
					return slices.Compare(strings.Split(a.Key, "/"), strings.Split(b.Key, "/"))
				})
				return all
			})
		}),
	},
	{
		Name:   "list has no order",
		Breaks: []string{"List/byte order of the whole key", "Model/random calls agree with a map"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry {
				slices.SortFunc(all, func(a, b backend.Entry) int {
					return cmp.Or(cmp.Compare(len(b.Key), len(a.Key)), strings.Compare(a.Key, b.Key))
				})
				return all
			})
		}),
	},
	{
		Name:   "a prefix ends at a slash",
		Breaks: []string{"List/prefix"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.list = func(ctx context.Context, prefix, after string) entries {
				return d.Driver.List(ctx, prefix[:strings.LastIndexByte(prefix, '/')+1], after)
			}
		}),
	},
	{
		Name:   "after is included",
		Breaks: []string{"List/after", "List/pages"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.list = func(ctx context.Context, prefix, after string) entries {
				return func(yield func(backend.Entry, error) bool) {
					if after != "" && strings.HasPrefix(after, prefix) {
						if info, err := d.info(ctx, after); err == nil && !yield(backend.Entry{Key: after, Size: info.Size}, nil) {
							return
						}
					}
					d.Driver.List(ctx, prefix, after)(yield)
				}
			}
		}),
	},
	{
		Name:   "after is ignored below a prefix",
		Breaks: []string{"List/prefix and after together"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.list = func(ctx context.Context, prefix, after string) entries {
				if prefix != "" {
					after = ""
				}
				return d.Driver.List(ctx, prefix, after)
			}
		}),
	},
	{
		Name:   "list ends after the first page",
		Breaks: []string{"List/pages"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry { return all[:min(1000, len(all))] })
		}),
	},
	{
		Name:   "the first object of each further page is skipped",
		Breaks: []string{"List/pages"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry {
				var some []backend.Entry
				for i, e := range all {
					if i == 0 || i%1000 != 0 {
						some = append(some, e)
					}
				}
				return some
			})
		}),
	},
	{
		Name:   "entries have no size",
		Breaks: []string{"List/entries say size and time", "List/a replaced record is listed once"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry {
				for i := range all {
					all[i].Size = 0
				}
				return all
			})
		}),
	},
	{
		Name:   "entries have the time of the listing",
		Breaks: []string{"List/entries say size and time"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry {
				for i := range all {
					all[i].Modified = time.Time{}
				}
				return all
			})
		}),
	},
	{
		Name:   "a replaced record is listed with all its versions",
		Breaks: []string{"List/a replaced record is listed once"},
		fresh: func() spoil {
			var mu sync.Mutex
			times := map[string]int{}
			return func(_ *memory.Store, d *driver) {
				d.replace = func(ctx context.Context, key string, body backend.Body, old backend.Version) (backend.Info, error) {
					info, err := d.Driver.Replace(ctx, key, body, old)
					if err == nil {
						mu.Lock()
						times[key]++
						mu.Unlock()
					}
					return info, err
				}
				d.sorted(func(all []backend.Entry, _, _ string) []backend.Entry {
					mu.Lock()
					defer mu.Unlock()
					var more []backend.Entry
					for _, e := range all {
						for range times[e.Key] + 1 {
							more = append(more, e)
						}
					}
					return more
				})
			}
		},
	},
	{
		Name:   "list goes on when it is left",
		Breaks: []string{"List/may be left early"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.list = func(ctx context.Context, prefix, after string) entries {
				return func(yield func(backend.Entry, error) bool) {
					for e, err := range d.Driver.List(ctx, prefix, after) {
						yield(e, err)
					}
				}
			}
		}),
	},
	{
		Name:   "pages are counted instead of keyed",
		Breaks: []string{"List/shows what stays while others come and go"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.list = func(ctx context.Context, prefix, after string) entries {
				return func(yield func(backend.Entry, error) bool) {
					const page = 7
					for skip := 0; ; skip += page {
						n := 0
						for e, err := range d.Driver.List(ctx, prefix, after) {
							if n++; err == nil && n <= skip {
								continue
							}
							if n > skip+page {
								break
							}
							if !yield(e, err) || err != nil {
								return
							}
						}
						if n < skip+page {
							return
						}
						dawdle()
					}
				}
			}
		}),
	},
	{
		Name:   "a list that is cut short says nothing",
		Breaks: []string{"List/a cancelled context ends it with one error"},
		fresh: plain(func(_ *memory.Store, d *driver) {
			d.list = func(ctx context.Context, prefix, after string) entries {
				return func(yield func(backend.Entry, error) bool) {
					for e, err := range d.Driver.List(ctx, prefix, after) {
						if errors.Is(err, context.Canceled) || !yield(e, err) {
							return
						}
					}
				}
			}
		}),
	},
}

// sorted changes whole listings.
func (d *driver) sorted(change func(all []backend.Entry, prefix, after string) []backend.Entry) {
	d.list = func(ctx context.Context, prefix, after string) entries {
		return func(yield func(backend.Entry, error) bool) {
			var all []backend.Entry
			for e, err := range d.Driver.List(ctx, prefix, after) {
				if err != nil {
					yield(e, err)
					return
				}
				all = append(all, e)
			}
			for _, e := range change(all, prefix, after) {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}
