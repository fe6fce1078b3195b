package datastore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// retainSlot is K of rule R1: a slot is deleted no sooner than this after the
// floor covers it, on the store's clock. Two answers of the store whose Dates
// differ by less than half of it may be put together.
const retainSlot = time.Hour

// window is how many slots are asked for at once while there is news.
const window = 8

// loadAhead is from how many slots on a replica prefers the checkpoint to the
// records, although the records are still there.
const loadAhead = 4096

// follower keeps a catalog current with the log of a datastore: rule R2. Its
// methods are not safe for concurrent use; the Store's log lane serialises them.
type follower struct {
	bucket *backend.Bucket
	cat    *catalog.DB

	// tip is the newest slot that was read or landed; the catalog may be behind
	// it by what waits for accounting (see overlay.go).
	tip catalog.State
	// proof is the store's Date of the answer that showed the slot after tip
	// empty, or of the direct success of the create of tip (R1). Zero = none.
	proof time.Time
	// ck is the checkpoint record as it was last read, ckVersion its version.
	ck        format.Checkpoint
	ckVersion backend.Version

	// folded is told of each record before it is applied (fencing, R8, R9); an
	// error ends the catch-up.
	folded func(rec *format.Record, hash format.Hash) error
	// ignoreCheckpoint makes the follower read every record above the floor.
	ignoreCheckpoint bool
	// limit, if not 0, is the slot at which catching up ends.
	limit uint64
	// needCheckpoint makes a damaged checkpoint an error even where the log
	// could take its place.
	needCheckpoint bool
	progress       func(Progress)
	warn           func(msg string, err error)
}

// answer is what the store said about one slot.
type answer struct {
	slot uint64
	data []byte // nil: the slot is empty
	date time.Time
	err  error
}

// catchUp reads until there is no news. Each round asks for the next slots and
// for the checkpoint record together, looks at the floor first, and counts only
// if the answers' Dates are close; else the floor is read again, after them.
func (f *follower) catchUp(ctx context.Context) error {
	ask := 1
	for resets := 0; ; {
		n := f.tip.Head
		if f.limit > 0 {
			if n >= f.limit {
				return nil
			}
			ask = int(min(uint64(ask), f.limit-n))
		}
		answers, err := f.round(ctx, n, ask)
		if err != nil {
			return err
		}
		if f.behind(n) {
			err := f.loadCheckpoint(ctx)
			if errors.Is(err, ErrCorrupt) && f.ck.Floor <= n && !f.needCheckpoint {
				// Every record is still there: the log says it all without it.
				f.ignoreCheckpoint = true
				if f.warn != nil {
					f.warn("the checkpoint is damaged; reading the log instead", err)
				}
			} else if err != nil {
				return err
			}
			ask = 1
			continue
		}
		more, err := f.apply(ctx, answers)
		if resets < 3 && catalogStartsAnew(err) {
			resets++
			if err := f.restart(ctx, err); err != nil {
				return err
			}
			ask = 1
			continue
		}
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
		ask = window
	}
}

// catalogStartsAnew says whether err is about the local catalog only: another
// process emptied it, it was damaged, or it followed a record that is not in
// the log (a store that was restored from an old copy).
func catalogStartsAnew(err error) bool {
	return errors.Is(err, catalog.ErrGap) || errors.Is(err, catalog.ErrFork) || errors.Is(err, catalog.ErrDamaged)
}

// restart begins again with what the catalog has, or with nothing.
func (f *follower) restart(ctx context.Context, why error) error {
	if f.warn != nil {
		f.warn("the local catalog is made anew", why)
	}
	if errors.Is(why, catalog.ErrFork) {
		if err := f.cat.Reset(ctx); err != nil {
			return err
		}
	}
	return f.reload(ctx)
}

// behind says whether the replica at n must, or had better, take the checkpoint.
func (f *follower) behind(n uint64) bool {
	if f.ck.Floor > n {
		return true
	}
	return !f.ignoreCheckpoint && f.ck.Seq > n && (n == 0 || f.ck.Seq-n > loadAhead)
}

// round asks for slots n+1 … n+count and the checkpoint record at once. When it
// returns, f.ck is conclusive for all the answers.
func (f *follower) round(ctx context.Context, n uint64, count int) ([]answer, error) {
	ctx, cancel := bounded(ctx, "the next slots of the log", 0)
	defer cancel()
	ch := make(chan answer, count)
	for i := range count {
		go func() { ch <- f.readSlot(ctx, n+1+uint64(i)) }()
	}
	ckDate, ckErr := f.readCheckpoint(ctx)
	answers := make([]answer, count)
	for range count {
		a := <-ch
		answers[a.slot-n-1] = a
	}
	if ckErr != nil {
		return nil, named(ctx, ckErr)
	}
	conclusive := !ckDate.IsZero()
	for _, a := range answers {
		if a.err != nil {
			return nil, named(ctx, a.err)
		}
		if a.date.IsZero() || apart(a.date, ckDate) >= retainSlot/2 {
			conclusive = false
		}
	}
	if !conclusive {
		if _, err := f.readCheckpoint(ctx); err != nil {
			return nil, named(ctx, err)
		}
	}
	return answers, nil
}

func apart(a, b time.Time) time.Duration { return a.Sub(b).Abs() }

var errOtherLog = errors.New("the log does not hold the newest record that the local catalog knows")

// hasTip says errOtherLog if the log does not hold the record that tip names.
func (f *follower) hasTip(ctx context.Context, tip catalog.State) error {
	if tip.Head == 0 {
		return nil
	}
	ctx, cancel := bounded(ctx, "the newest record that is known", 0)
	defer cancel()
	a := f.readSlot(ctx, tip.Head)
	if a.err == nil && (a.data == nil || sha256.Sum256(a.data) != tip.Hash) {
		return errOtherLog
	}
	return a.err
}

// readSlot asks for one slot of the log.
func (f *follower) readSlot(ctx context.Context, slot uint64) answer {
	data, info, err := getWhole(ctx, f.bucket, format.SlotKey(slot), format.MaxRecord)
	if errors.Is(err, backend.ErrNotFound) {
		return answer{slot: slot, date: backend.Date(err)}
	}
	return answer{slot: slot, data: data, date: info.Date, err: err}
}

// readCheckpoint refreshes f.ck. The record only moves forward; one that went
// back is a store that lost writes.
func (f *follower) readCheckpoint(ctx context.Context) (time.Time, error) {
	data, info, err := getWhole(ctx, f.bucket, format.CheckpointKey, format.MaxControl)
	if errors.Is(err, backend.ErrNotFound) {
		return time.Time{}, fmt.Errorf("%w: %s is missing, without which nobody can tell which slots still count; put it back from a copy of the store", ErrCorrupt, format.CheckpointKey)
	}
	if err != nil {
		return time.Time{}, err
	}
	ck, err := format.DecodeCheckpoint(data)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", format.CheckpointKey, err)
	}
	if ck.Floor < f.ck.Floor || ck.Seq < f.ck.Seq {
		return time.Time{}, fmt.Errorf("%w: %s went back from slot %d (floor %d) to slot %d (floor %d): the store lost a write or an old copy was restored",
			ErrCorrupt, format.CheckpointKey, f.ck.Seq, f.ck.Floor, ck.Seq, ck.Floor)
	}
	f.ck, f.ckVersion = *ck, info.Version
	return info.Date, nil
}

// apply folds the answers in order and says whether more may follow them. On a
// record that cannot be used the floor is read again before anything is called
// damaged.
func (f *follower) apply(ctx context.Context, answers []answer) (more bool, err error) {
	var recs []decoded
	var bad error
	var empty *answer
	for i, a := range answers {
		if a.data == nil {
			empty = &answers[i]
			break
		}
		rec, err := format.DecodeRecord(a.data)
		if err == nil && rec.Slot != a.slot {
			err = fmt.Errorf("%w: it says it is slot %d", ErrCorrupt, rec.Slot)
		}
		if err != nil {
			bad = err
			break
		}
		recs = append(recs, decoded{rec, sha256.Sum256(a.data), logSize(rec, a.data)})
	}
	for _, d := range recs {
		if f.folded != nil {
			if err := f.folded(d.rec, d.hash); err != nil {
				return false, err
			}
		}
	}
	if len(recs) > 0 {
		if err := f.fold(ctx, recs); errors.Is(err, catalog.ErrChain) {
			bad = err
		} else if err != nil {
			return false, err
		}
	}
	if bad != nil {
		return true, f.damaged(ctx, f.tip.Head+1, bad)
	}
	if empty == nil || f.tip.Head+1 != empty.slot { // another process is ahead of these answers
		return true, nil
	}
	f.proof = empty.date
	return false, nil
}

// logSize is what a record takes in the store: its object and its change lists.
func logSize(rec *format.Record, data []byte) int64 {
	size := int64(len(data))
	for _, ref := range rec.Lists {
		size += ref.Object.Size
	}
	for i := range rec.Entries {
		for _, ref := range rec.Entries[i].Lists {
			size += ref.Object.Size
		}
	}
	return size
}

type decoded struct {
	rec  *format.Record
	hash format.Hash
	size int64
}

// fold applies records to the catalog in one transaction. What another process
// that shares the catalog has applied already is passed over.
func (f *follower) fold(ctx context.Context, recs []decoded) error {
	var foldErr error
	err := f.cat.Update(ctx, func(tx *catalog.Tx) error {
		for _, d := range recs {
			if foldErr = tx.Fold(ctx, d.rec, d.hash, d.size, f.fetchList(ctx)); foldErr != nil {
				break // keep those before it
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := f.reload(ctx); err != nil {
		return err
	}
	return foldErr
}

// reload takes the tip from the catalog.
func (f *follower) reload(ctx context.Context) error {
	st, err := f.cat.State(ctx)
	if err != nil {
		return err
	}
	if st.Head < f.tip.Head {
		f.proof = time.Time{} // it was of a later slot
	}
	if st.Head != f.tip.Head || st.Hash != f.tip.Hash {
		f.tip = st
	} else {
		f.tip.CheckpointSeq, f.tip.LogSlots, f.tip.LogBytes = st.CheckpointSeq, st.LogSlots, st.LogBytes
	}
	return nil
}

// fetchList returns the callback that reads one change list of a record.
func (f *follower) fetchList(ctx context.Context) func(format.ListRef) (*format.Block, error) {
	return func(ref format.ListRef) (*format.Block, error) {
		return readList(ctx, f.bucket, ref)
	}
}

func readList(ctx context.Context, bucket *backend.Bucket, ref format.ListRef) (*format.Block, error) {
	ctx, cancel := bounded(ctx, "the change list "+ref.Object.Name, ref.Object.Size)
	defer cancel()
	data, _, err := getWhole(ctx, bucket, ref.Object.Name, ref.Object.Size)
	if err != nil {
		return nil, named(ctx, err)
	}
	if int64(len(data)) != ref.Object.Size || sha256.Sum256(data) != ref.Object.Checksum {
		return nil, fmt.Errorf("%w: the change list %s has another size or checksum than its record says", ErrCorrupt, ref.Object.Name)
	}
	b, err := format.DecodeBlock(data)
	if err != nil {
		return nil, fmt.Errorf("change list %s: %w", ref.Object.Name, err)
	}
	return b, nil
}

// damaged is called for a record that cannot be used. It may be a leftover that
// somebody created in a slot after it was truncated (rule R2): the floor decides.
func (f *follower) damaged(ctx context.Context, slot uint64, why error) error {
	if errors.Is(why, ErrUpgrade) {
		return fmt.Errorf("record %s: %w", format.SlotKey(slot), why)
	}
	ctx, cancel := bounded(ctx, "the log floor", 0)
	defer cancel()
	if _, err := f.readCheckpoint(ctx); err != nil {
		return named(ctx, err)
	}
	if f.ck.Floor >= slot || f.ck.Floor > f.tip.Head {
		return nil // the next round loads the checkpoint
	}
	if errors.Is(why, catalog.ErrChain) {
		why = fmt.Errorf("%w: it does not follow the record before it", ErrCorrupt)
	}
	return fmt.Errorf("record %s: %w; see swampd verify", format.SlotKey(slot), why)
}

// loadCheckpoint replaces the catalog by the checkpoint that f.ck names.
func (f *follower) loadCheckpoint(ctx context.Context) error {
	for {
		err := f.tryLoad(ctx)
		if !errors.Is(err, backend.ErrNotFound) {
			return err
		}
		// A newer checkpoint may have taken its place meanwhile.
		before := f.ck.Root
		if _, err := f.readCheckpoint(ctx); err != nil {
			return err
		}
		if f.ck.Root == before {
			return err
		}
	}
}

func (f *follower) tryLoad(ctx context.Context) error {
	root, err := readRoot(ctx, f.bucket, &f.ck)
	if err != nil {
		return err
	}
	if f.progress != nil {
		f.progress(Progress{Phase: "catch up", Total: int64(len(root.Shards))})
	}
	var done int64
	shard := func(ref format.ShardRef) (*format.Shard, error) {
		sh, err := readShard(ctx, f.bucket, ref)
		if done++; f.progress != nil {
			f.progress(Progress{Phase: "catch up", Done: done, Total: int64(len(root.Shards))})
		}
		return sh, err
	}
	if err := f.cat.LoadCheckpoint(ctx, root, f.ck, shard); err != nil {
		return fmt.Errorf("checkpoint %s: %w", f.ck.Root, err)
	}
	f.proof = time.Time{}
	before := f.tip.Head
	if err := f.reload(ctx); err != nil {
		return err
	}
	if f.tip.Head <= before && f.ck.Floor > before {
		return fmt.Errorf("%w: the checkpoint %s does not reach the floor %d", ErrCorrupt, f.ck.Root, f.ck.Floor)
	}
	return nil
}

// missingPart makes the absence of a part of a checkpoint damage.
func missingPart(err error) error {
	if errors.Is(err, backend.ErrNotFound) {
		return fmt.Errorf("%w: a part of a checkpoint is missing: %w", ErrCorrupt, err)
	}
	return err
}

func readRoot(ctx context.Context, bucket *backend.Bucket, ck *format.Checkpoint) (*format.Root, error) {
	ctx, cancel := bounded(ctx, "the checkpoint "+ck.Root, ck.RootSize)
	defer cancel()
	data, _, err := getWhole(ctx, bucket, ck.Root, ck.RootSize)
	if err != nil {
		return nil, missingPart(named(ctx, err))
	}
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != ck.RootHash {
		return nil, fmt.Errorf("%w: the checkpoint %s has another checksum than %s says", ErrCorrupt, ck.Root, format.CheckpointKey)
	}
	root, err := format.DecodeRoot(data)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", ck.Root, err)
	}
	if root.Seq != ck.Seq {
		return nil, fmt.Errorf("%w: the checkpoint %s is of slot %d, not %d", ErrCorrupt, ck.Root, root.Seq, ck.Seq)
	}
	return root, nil
}

func readShard(ctx context.Context, bucket *backend.Bucket, ref format.ShardRef) (*format.Shard, error) {
	ctx, cancel := bounded(ctx, "the checkpoint shard "+ref.Name, ref.Size)
	defer cancel()
	data, _, err := getWhole(ctx, bucket, ref.Name, ref.Size)
	if err != nil {
		return nil, missingPart(named(ctx, err))
	}
	if sha256.Sum256(data) != ref.Checksum {
		return nil, fmt.Errorf("%w: the checkpoint shard %s has another checksum than its root says", ErrCorrupt, ref.Name)
	}
	sh, err := format.DecodeShard(data)
	if err != nil {
		return nil, fmt.Errorf("checkpoint shard %s: %w", ref.Name, err)
	}
	if sh.Table != ref.Table {
		return nil, fmt.Errorf("%w: the checkpoint shard %s is of another table", ErrCorrupt, ref.Name)
	}
	return sh, nil
}

// getWhole reads an object of at most limit bytes.
func getWhole(ctx context.Context, bucket *backend.Bucket, key string, limit int64) (data []byte, info backend.Info, err error) {
	err = uncut(ctx, func() error {
		obj, err := bucket.Get(ctx, key, backend.GetOptions{})
		if err != nil {
			return err
		}
		defer obj.Body.Close()
		info = obj.Info
		if obj.Size > limit {
			return fmt.Errorf("%w: %s has %d bytes, at most %d can be right", ErrCorrupt, key, obj.Size, limit)
		}
		data = make([]byte, obj.Size)
		return readFull(obj.Body, data, key)
	})
	if err != nil {
		return nil, info, err
	}
	return data, info, nil
}
