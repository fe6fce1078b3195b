package datastore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// VerifyOptions says how deep to look. Nil means: no contents are read.
type VerifyOptions struct {
	ReadData bool // read and check every stored byte
	Progress func(Progress)
}

// Finding is one thing that is wrong.
type Finding struct {
	Key  string // object, or path and slot
	What string
	// Harmless: it costs space, not data (an object that nothing names).
	Harmless bool
}

// VerifyReport says what was looked at and what was found.
type VerifyReport struct {
	Head, Floor, Checkpoint uint64
	Records                 uint64 // of the log that were read and chained
	Versions                uint64
	Objects                 uint64 // data objects that are named
	Bytes                   int64  // stored bytes of those
	DataRead                int64  // content bytes that were read and checked
	Findings                []Finding
	// More counts findings beyond the first 1,000 that are harmless and the first
	// 1,000 that are not.
	More uint64
}

// OK says whether nothing was found that costs data.
func (r *VerifyReport) OK() bool {
	for _, f := range r.Findings {
		if !f.Harmless {
			return false
		}
	}
	return true
}

const maxFindings = 1000

// Verify reads the log and the checkpoint anew, without the local cache, and
// checks that records are chained, that every row of the checkpoint says what the
// log says, and that every data object that is named is there in its size; with
// ReadData, every byte. It changes nothing in the store. An error means that it
// could not finish; what is wrong is in the report.
func (s *Store) Verify(ctx context.Context, o *VerifyOptions) (*VerifyReport, error) {
	if o == nil {
		o = &VerifyOptions{}
	}
	dir, err := s.stagingDir("verify-" + newID().String())
	if err != nil {
		return nil, fail("verify", "", err)
	}
	v := &verifier{s: s, o: o, report: &VerifyReport{}, dir: dir, found: map[bool]int{}}
	err = errors.Join(v.run(ctx), os.RemoveAll(dir))
	v.report.DataRead = v.read.Load()
	return v.report, fail("verify", "", err)
}

type verifier struct {
	s      *Store
	o      *VerifyOptions
	dir    string
	mu     sync.Mutex
	report *VerifyReport
	found  map[bool]int // findings in the report, by Harmless
	bytes  int64        // of all contents, as far as that is known
	read   atomic.Int64 // of those, DataRead
}

func (v *verifier) find(key string, harmless bool, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.found[harmless] >= maxFindings {
		v.report.More++
		return
	}
	v.found[harmless]++
	v.report.Findings = append(v.report.Findings, Finding{Key: key, What: fmt.Sprintf(format, args...), Harmless: harmless})
}

func (v *verifier) progress(p Progress) {
	if v.o.Progress != nil {
		v.o.Progress(p)
	}
}

func (v *verifier) run(ctx context.Context) error {
	_, genesis, err := readMarker(ctx, v.s.bucket)
	if err != nil {
		return v.orFinding(format.FormatKey, err)
	}
	// The log, from its first record or, if that is gone, from the checkpoint.
	logCat, err := v.replica(ctx, "log.db", genesis, true, 0)
	if err != nil {
		return v.orFinding(format.CommitPrefix, err)
	}
	defer logCat.cat.Close()
	v.report.Head, v.report.Floor, v.report.Checkpoint = logCat.tip.Head, logCat.ck.Floor, logCat.ck.Seq
	if logCat.ck.Seq > 0 {
		if err := v.checkpoint(ctx, logCat, genesis); err != nil {
			return err
		}
	}
	snap, err := logCat.cat.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	for d, err := range snap.Defects(ctx) {
		if err != nil {
			return err
		}
		v.find(format.SlotKey(d.Slot), false, "%s", d.Error())
	}
	v.report.Versions = snap.Counts().Versions
	if err := v.objects(ctx, snap); err != nil {
		return err
	}
	if v.o.ReadData {
		return v.readData(ctx, snap)
	}
	return nil
}

// orFinding makes damage a finding, and leaves other errors what they are.
func (v *verifier) orFinding(key string, err error) error {
	if errors.Is(err, ErrCorrupt) {
		v.find(key, false, "%v", err)
		return nil
	}
	return err
}

// replica follows the log into a fresh catalog, up to slot limit if that is not 0.
func (v *verifier) replica(ctx context.Context, name string, genesis format.Hash, ignoreCheckpoint bool, limit uint64) (*follower, error) {
	cat, err := catalog.Open(ctx, filepath.Join(v.dir, name), catalog.Options{Datastore: v.s.marker.Datastore, Genesis: genesis})
	if err != nil {
		return nil, err
	}
	f := &follower{bucket: v.s.bucket, cat: cat, ignoreCheckpoint: ignoreCheckpoint, needCheckpoint: !ignoreCheckpoint, limit: limit}
	f.folded = func(rec *format.Record, _ format.Hash) error {
		v.report.Records++
		v.progress(Progress{Phase: "verify log", Done: int64(v.report.Records)})
		return nil
	}
	if !ignoreCheckpoint {
		f.folded = nil
	}
	if err := f.reload(ctx); err != nil {
		return nil, errors.Join(err, cat.Close())
	}
	if err := f.catchUp(ctx); err != nil {
		return nil, errors.Join(err, cat.Close())
	}
	return f, nil
}

// objects compares one listing of the data objects with what is named: both in
// order, so that neither is held in memory.
func (v *verifier) objects(ctx context.Context, snap *catalog.Snapshot) error {
	next, stop := iter.Pull2(v.s.bucket.List(ctx, format.DataPrefix, ""))
	defer stop()
	entry, err, more := next()
	orphan := func() {
		v.find(entry.Key, true, "no commit names it (an upload whose commit never came, or one that is on its way)")
	}
	for o, oerr := range snap.Objects(ctx, "") {
		if oerr != nil {
			return oerr
		}
		for more && err == nil && entry.Key < o.Object.Name {
			orphan()
			entry, err, more = next()
		}
		if err != nil {
			return err
		}
		there := more && entry.Key == o.Object.Name
		switch {
		case !o.Live():
			if there {
				v.find(o.Object.Name, true, "it is dead since slot %d and not deleted yet", o.Dead)
			}
		case !there:
			v.find(o.Object.Name, false, "it is missing (%d bytes, named by slot %d)", o.Object.Size, o.Born)
		case entry.Size != o.Object.Size:
			v.find(o.Object.Name, false, "it has %d bytes, slot %d says %d", entry.Size, o.Born, o.Object.Size)
		}
		if o.Live() {
			v.report.Objects++
			v.report.Bytes += o.Object.Size
			v.progress(Progress{Phase: "verify objects", Done: int64(v.report.Objects), Total: int64(snap.Counts().Objects)})
		}
		if there {
			entry, err, more = next()
		}
	}
	for more && err == nil {
		orphan()
		entry, err, more = next()
	}
	return err
}

// verifyRoom is how many bytes of footers and change lists are checked at once;
// decoded, they take some ten times as much.
const verifyRoom = 4 << 20

// readData reads every version's content, and the footers.
func (v *verifier) readData(ctx context.Context, snap *catalog.Snapshot) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetchAtOnce)
	room := semaphore.NewWeighted(verifyRoom)
	for o, err := range snap.Objects(gctx, "") {
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		if !o.Live() {
			continue
		}
		need := int64(o.Object.FooterSize)
		if o.Object.Kind == format.ObjectList {
			need = o.Object.Size
		}
		need = min(need, verifyRoom)
		if err := room.Acquire(gctx, need); err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error {
			defer room.Release(need)
			return v.soften(gctx, o.Object.Name, v.object(gctx, &o.Object))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if n := snap.Counts(); n.Versions == n.Paths {
		v.bytes = n.PathBytes // no older versions
	}
	// Contents by object, so that what is close is read at once.
	return v.s.Fetch(ctx, v.contents(ctx, snap), &FetchOptions{Damaged: func(ver Version, err error) error {
		return v.soften(ctx, fmt.Sprintf("%s of slot %d", ver.Path, ver.Slot), err)
	}}, func(_ context.Context, ver Version, r io.Reader) error {
		n, err := io.Copy(io.Discard, r)
		if err == nil {
			v.progress(Progress{Phase: "verify data", Done: v.read.Add(n), Total: v.bytes})
		}
		return err
	})
}

// contents yields every version that has a content.
func (v *verifier) contents(ctx context.Context, snap *catalog.Snapshot) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		for row, err := range snap.VersionRows(ctx, "", "") {
			if err == nil && row.Change.Op == format.OpDelete {
				continue
			}
			var ver Version
			if err == nil {
				var cv catalog.Version
				if cv, err = snap.Lookup(ctx, row.Change.Path, row.Slot); err == nil {
					ver = fromCatalog(&cv)
				}
			}
			if !yield(ver, err) || err != nil {
				return
			}
		}
	}
}

// object checks what of an object no content covers: footer or change list.
func (v *verifier) object(ctx context.Context, o *format.Object) error {
	if o.Kind == format.ObjectList {
		_, err := readList(ctx, v.s.bucket, format.ListRef{Object: *o})
		return err
	}
	data, size, err := getTail(ctx, v.s.bucket, o.Name, o.FooterSize)
	if err != nil {
		return err
	}
	if size != o.Size || sha256Of(data) != o.Checksum {
		return fmt.Errorf("%w: size or footer differ from what its commit says", ErrCorrupt)
	}
	_, err = format.DecodeFooter(data)
	return err
}

// soften makes an error about one object a finding, unless ctx ended.
func (v *verifier) soften(ctx context.Context, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isDamage(err):
		v.find(key, false, "%v", err)
		return nil
	}
	return err
}
