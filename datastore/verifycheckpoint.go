package datastore

import (
	"context"
	"fmt"
	"iter"
	"reflect"

	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// checkpoint loads the checkpoint into a catalog of its own, lets it follow the
// log to where the other one is, and compares the two. Where the floor has
// passed, both come from the checkpoint, and only what is above it is compared.
func (v *verifier) checkpoint(ctx context.Context, log *follower, genesis format.Hash) error {
	f, err := v.replica(ctx, "checkpoint.db", genesis, false, log.tip.Head)
	if err != nil {
		return v.orFinding(log.ck.Root, err)
	}
	defer f.cat.Close()
	// A checkpoint that was made in between may be ahead.
	for attempt := 0; f.tip.Head != log.tip.Head; attempt++ {
		if attempt == 10 {
			return fmt.Errorf("%w: checkpoints are made faster than they can be read", ErrBusy)
		}
		low := log
		if f.tip.Head < log.tip.Head {
			low = f
		}
		low.limit = max(f.tip.Head, log.tip.Head)
		if err := low.catchUp(ctx); err != nil {
			return v.orFinding(format.CommitPrefix, err)
		}
	}
	a, err := log.cat.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := f.cat.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	return v.compare(ctx, f.ck.Root, a, b)
}

// standing is what a state says besides its rows. The horizon is not in it: no
// record tells it.
type standing struct {
	Hash    format.Hash
	Fence   uint64
	Session [16]byte
	Sweep   uint64
}

func standingOf(st catalog.State) standing {
	return standing{st.Hash, st.Fence, st.Session, st.Sweep}
}

// compare looks at whole rows of all three tables. A checkpoint may have
// forgotten slots up to its horizon, and dead objects whose names are dead by
// the sweep mark as well.
func (v *verifier) compare(ctx context.Context, root string, log, ck *catalog.Snapshot) error {
	st := ck.State()
	a, b := standingOf(log.State()), standingOf(st)
	if d := difference(&a, &b); d != "" {
		v.find(root, false, "the checkpoint and the log disagree about the state after slot %d (%s)", st.Head, d)
	}
	t := tables{v, root}
	err := rows(t, log.VersionRows(ctx, "", ""), ck.VersionRows(ctx, "", ""), func(r *catalog.VersionRow) (string, string) {
		return format.VersionKey(r.Change.Path, r.Slot), fmt.Sprintf("%s of slot %d", r.Change.Path, r.Slot)
	}, func(*catalog.VersionRow) bool { return false })
	if err != nil {
		return err
	}
	err = rows(t, log.ObjectRows(ctx, "", ""), ck.ObjectRows(ctx, "", ""), func(r *format.ObjectRow) (string, string) {
		return r.Object.Name, r.Object.Name
	}, func(r *format.ObjectRow) bool {
		head, ok := format.DataHead(r.Object.Name)
		return r.Dead != 0 && ok && head <= st.Sweep
	})
	if err != nil {
		return err
	}
	return rows(t, log.LogRows(ctx, "", ""), ck.LogRows(ctx, "", ""), func(r *format.LogRow) (string, string) {
		return format.SlotKey(r.Slot), format.SlotKey(r.Slot)
	}, func(r *format.LogRow) bool { return r.Slot <= st.Horizon })
}

// tables gets what rows finds.
type tables struct {
	v    *verifier
	root string
}

// rows walks over the rows of one table in the log's catalog and in that of the
// checkpoint, both in the order of their keys. identify gives a row's key and
// its name for people; the checkpoint need not have a row that mayLack.
func rows[T any](t tables, log, ck iter.Seq2[T, error], identify func(*T) (key, name string), mayLack func(*T) bool) error {
	next, stop := iter.Pull2(ck)
	defer stop()
	got, err, more := next()
	for want, werr := range log {
		if werr != nil {
			return werr
		}
		key, name := identify(&want)
		for more && err == nil {
			k, extra := identify(&got)
			if k >= key {
				break
			}
			t.v.find(t.root, false, "the checkpoint has %s, which the log has not", extra)
			got, err, more = next()
		}
		if err != nil {
			return err
		}
		there := false
		if more {
			k, _ := identify(&got)
			there = k == key
		}
		if !there {
			if !mayLack(&want) {
				t.v.find(t.root, false, "the checkpoint lacks %s, which the log has", name)
			}
			continue
		}
		if d := difference(&want, &got); d != "" {
			t.v.find(t.root, false, "the checkpoint and the log disagree about %s (%s)", name, d)
		}
		got, err, more = next()
	}
	for more && err == nil {
		_, extra := identify(&got)
		t.v.find(t.root, false, "the checkpoint has %s, which the log has not", extra)
		got, err, more = next()
	}
	return err
}

// difference names the first field in which two values differ, or is empty. All
// fields count, so that one that is added to a row is compared as well.
func difference[T any](a, b *T) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	return differing("", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

func differing(name string, a, b reflect.Value) string {
	switch {
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			if x, y := a.Field(i), b.Field(i); !reflect.DeepEqual(x.Interface(), y.Interface()) {
				field := a.Type().Field(i)
				if field.Anonymous {
					return differing(name, x, y)
				}
				if name != "" {
					return differing(name+"."+field.Name, x, y)
				}
				return differing(field.Name, x, y)
			}
		}
	case a.Kind() == reflect.Slice && a.Len() == b.Len() && a.Type().Elem().Kind() == reflect.Struct:
		for i := range a.Len() {
			if x, y := a.Index(i), b.Index(i); !reflect.DeepEqual(x.Interface(), y.Interface()) {
				return differing(fmt.Sprintf("%s[%d]", name, i), x, y)
			}
		}
	}
	return name
}
