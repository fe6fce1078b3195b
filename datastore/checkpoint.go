package datastore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/catalog"
	"github.com/swampd/swampd/internal/format"
)

// checkpointIfDue starts a checkpoint in the background when the log has grown
// enough since the last one (R22; off the commit path). It returns the tip,
// counted from the newest checkpoint of this Store.
func (s *Store) checkpointIfDue(tip catalog.State) catalog.State {
	if !s.due(tip) {
		return tip
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ckBusy || s.closed {
		return tip
	}
	if st := s.ckState; st.CheckpointSeq > tip.CheckpointSeq {
		// Bytes of commits since st are forgotten: they are few.
		tip.CheckpointSeq, tip.LogSlots, tip.LogBytes = st.CheckpointSeq, tip.Head-st.CheckpointSeq, st.LogBytes
		if !s.due(tip) {
			return tip
		}
	}
	s.ckBusy = true
	s.work.Go(func() {
		defer func() {
			s.mu.Lock()
			s.ckBusy = false
			s.mu.Unlock()
		}()
		if err := s.makeCheckpoint(s.ctx); err != nil && s.ctx.Err() == nil {
			s.opts.Logger.Warn("no checkpoint was made; a later commit tries again", "error", err)
		}
	})
	return tip
}

func (s *Store) due(tip catalog.State) bool {
	return s.opts.CheckpointSlots > 0 && tip.LogSlots >= uint64(s.opts.CheckpointSlots) ||
		s.opts.CheckpointBytes > 0 && tip.LogBytes >= s.opts.CheckpointBytes
}

// finishCheckpoint lets a checkpoint that is being made come to its end, so that
// programs that run for one commit make theirs too.
func (s *Store) finishCheckpoint() {
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	t := time.NewTimer(checkpointGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.cancel(errors.New("the checkpoint took too long to wait for at the end"))
		<-done
	}
}

const checkpointGrace = 2 * time.Minute

// Checkpoint writes the state as sorted shards and makes the checkpoint record
// name them, so that opening the datastore without a cache does not read the
// whole log. Shards that nothing touched since the last checkpoint are shared
// with it. It needs no lease: the record is replaced only in the version whose
// shards are shared (R22), and moves forward only. The floor is not moved.
//
// It covers what this Store has seen, and does nothing if there is no news since
// the last one. It waits until the local catalog has all that, and as long as the
// shards need to be sent; no commit waits for it. After an error (ErrClosed,
// ErrCorrupt, ctx's, those of the store) the checkpoint of before counts.
func (s *Store) Checkpoint(ctx context.Context) error {
	err := s.open()
	if err == nil {
		err = s.makeCheckpoint(ctx)
	}
	return fail("checkpoint", "", err)
}

func (s *Store) makeCheckpoint(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		if attempt > 0 {
			if err := pause(ctx, attempt); err != nil {
				return err
			}
		}
		err := s.tryCheckpoint(ctx)
		if err == nil {
			return s.countFromHere(ctx)
		}
		if !errors.Is(err, errCheckpointLost) || attempt >= 5 {
			return err
		}
	}
}

// countFromHere lets the next commits count the log from the checkpoint that the
// catalog knows now.
func (s *Store) countFromHere(ctx context.Context) error {
	st, err := s.cat.State(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ckState = st
	return nil
}

var errCheckpointLost = errors.New("another checkpoint was made meanwhile")

func (s *Store) tryCheckpoint(ctx context.Context) error {
	// The record in the version whose shards will be shared.
	data, info, err := getWhole(ctx, s.bucket, format.CheckpointKey, format.MaxControl)
	if err != nil {
		return err
	}
	ck, err := format.DecodeCheckpoint(data)
	if err != nil {
		return fmt.Errorf("%s: %w", format.CheckpointKey, err)
	}
	if err := s.flush(ctx); err != nil {
		return err
	}
	if err := s.cat.Update(ctx, func(tx *catalog.Tx) error { return tx.SetCheckpoint(ctx, *ck) }); err != nil {
		return err
	}
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	st := snap.State()
	if st.Head <= ck.Seq {
		return nil // nothing new
	}
	m := &checkpointMaker{s: s, snap: snap, state: st, id: uuid.New()}
	if ck.Seq > 0 {
		if m.old, err = readRoot(ctx, s.bucket, ck); errors.Is(err, ErrCorrupt) {
			s.opts.Logger.Warn("the newest checkpoint is damaged; the next one shares nothing with it", "error", err)
		} else if err != nil {
			return err
		}
	}
	root, err := m.make(ctx)
	if errors.Is(err, catalog.ErrPruned) { // another process that shares the catalog has made a newer one
		return fmt.Errorf("%w (%w)", errCheckpointLost, err)
	}
	if err != nil {
		return err
	}
	return s.publish(ctx, ck, info.Version, root, m.id)
}

// publish writes the root and replaces the checkpoint record.
func (s *Store) publish(ctx context.Context, ck *format.Checkpoint, version backend.Version, root *format.Root, id uuid.UUID) error {
	data, err := format.EncodeRoot(root)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	next := *ck
	next.Previous, next.Seq, next.Root, next.RootSize = ck.Seq, root.Seq, format.RootKey(root.Seq, id), int64(len(data))
	next.RootHash, next.Beat = hex.EncodeToString(sum[:]), uuid.New()
	next.Sweep, next.Horizon = max(ck.Sweep, root.Sweep), max(ck.Horizon, root.Horizon)
	if err := s.putObject(ctx, next.Root, data, sum); err != nil {
		return err
	}
	rec, err := format.EncodeCheckpoint(&next)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		rctx, cancel := bounded(ctx, "the checkpoint record", 0)
		_, err = s.bucket.Replace(rctx, format.CheckpointKey, backend.Bytes(rec), version)
		err = named(rctx, err)
		cancel()
		if err == nil {
			break
		}
		// A lost answer: the record's beat tells whether it is the one sent.
		got, _, rerr := getWhole(ctx, s.bucket, format.CheckpointKey, format.MaxControl)
		if rerr == nil && string(got) == string(rec) {
			break
		}
		if errors.Is(err, backend.ErrChanged) && rerr == nil {
			return errCheckpointLost
		}
		if attempt >= uploadAttempts {
			return errors.Join(err, rerr)
		}
		if perr := pause(ctx, attempt+1); perr != nil {
			return err
		}
	}
	return s.cat.Update(ctx, func(tx *catalog.Tx) error { return tx.SetCheckpoint(ctx, next) })
}

// putObject makes a small object of ours under a fresh name.
func (s *Store) putObject(ctx context.Context, key string, data []byte, sum format.Hash) error {
	o := &object{meta: format.Object{Name: key, Size: int64(len(data)), Checksum: sum}, body: bytesBody(data, sum)}
	return s.upload(ctx, o)
}

// checkpointMaker writes the shards of one checkpoint from a snapshot.
type checkpointMaker struct {
	s     *Store
	snap  *catalog.Snapshot
	state catalog.State
	id    uuid.UUID
	old   *format.Root // nil: there was none

	n    int // shards written
	root format.Root
}

func (m *checkpointMaker) make(ctx context.Context) (*format.Root, error) {
	m.root = format.Root{
		Datastore: m.s.marker.Datastore, Seq: m.state.Head, ChainHash: m.state.Hash, Fence: m.state.Fence,
		Session: m.state.Session, Sweep: m.state.Sweep, Horizon: m.state.Horizon, Time: m.s.opts.now().UnixNano(),
	}
	for _, table := range []format.Table{format.TableVersions, format.TableObjects, format.TableLog} {
		var refs []format.ShardRef
		if m.old != nil {
			for _, r := range m.old.Shards {
				if r.Table == table {
					refs = append(refs, r)
				}
			}
		}
		if err := m.table(ctx, table, refs); err != nil {
			return nil, err
		}
	}
	for _, r := range m.root.Shards {
		switch r.Table {
		case format.TableVersions:
			m.root.Versions += r.Rows
		case format.TableObjects:
			m.root.Objects += r.Rows
		case format.TableLog:
			m.root.Slots += r.Rows
		}
	}
	return &m.root, nil
}

// table writes the shards of one table: old ones whose range nothing touched
// are shared, the ranges of the others are written anew.
func (m *checkpointMaker) table(ctx context.Context, table format.Table, old []format.ShardRef) error {
	if len(old) == 0 {
		return m.write(ctx, table, "", "")
	}
	touched, err := m.touched(ctx, table, old)
	if err != nil {
		return err
	}
	for i := 0; i < len(old); i++ {
		if !touched[i] {
			m.root.Shards = append(m.root.Shards, old[i])
			continue
		}
		// Neighbours that are touched too are written in one go, so that small
		// shards grow together.
		j := i
		for j+1 < len(old) && touched[j+1] {
			j++
		}
		first, limit := old[i].First, ""
		if i == 0 {
			first = ""
		}
		if j+1 < len(old) {
			limit = old[j+1].First
		}
		if err := m.write(ctx, table, first, limit); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// touched says which of the old shards hold keys that changed since.
func (m *checkpointMaker) touched(ctx context.Context, table format.Table, old []format.ShardRef) ([]bool, error) {
	touched := make([]bool, len(old))
	for key, err := range m.snap.Dirty(ctx, table, m.old.Seq) {
		if err != nil {
			return nil, err
		}
		i, found := slices.BinarySearchFunc(old, key, func(r format.ShardRef, k string) int {
			switch {
			case r.First < k:
				return -1
			case r.First > k:
				return 1
			}
			return 0
		})
		if !found {
			i = max(0, i-1)
		}
		touched[i] = true
	}
	return touched, nil
}

// write makes shards of the rows with keys in [first, limit).
func (m *checkpointMaker) write(ctx context.Context, table format.Table, first, limit string) error {
	w := format.NewShardWriter(table)
	err := m.rows(ctx, table, first, limit, w, func() error { return m.flush(ctx, w, &first) })
	if err != nil || w.Rows() == 0 {
		return err
	}
	return m.flush(ctx, w, &first)
}

// flush stores one shard. The first shard of a range begins where the range
// does, so that keys before its first row belong to it too.
func (m *checkpointMaker) flush(ctx context.Context, w *format.ShardWriter, first *string) error {
	data, ref, err := w.Flush()
	if err != nil {
		return err
	}
	m.n++
	ref.Name = format.ShardKey(m.state.Head, m.id, m.n)
	if *first != "" && *first < ref.First {
		ref.First = *first
	}
	*first = ""
	if err := m.s.putObject(ctx, ref.Name, data, ref.Checksum); err != nil {
		return err
	}
	m.root.Shards = append(m.root.Shards, ref)
	m.s.opts.Progress(Progress{Phase: "checkpoint", Done: int64(m.n)})
	return nil
}

func (m *checkpointMaker) rows(ctx context.Context, table format.Table, first, limit string, w *format.ShardWriter, flush func() error) error {
	full := func(err error) error {
		if err == nil && w.Full() {
			err = flush()
		}
		return err
	}
	switch table {
	case format.TableVersions:
		for row, err := range m.snap.VersionRows(ctx, first, limit) {
			if err == nil {
				err = full(w.AddVersion(&row.VersionRow, row.Object))
			}
			if err != nil {
				return err
			}
		}
	case format.TableObjects:
		for row, err := range m.snap.ObjectRows(ctx, first, limit) {
			if err == nil {
				err = full(w.AddObject(&row))
			}
			if err != nil {
				return err
			}
		}
	case format.TableLog:
		for row, err := range m.snap.LogRows(ctx, first, limit) {
			if err == nil {
				err = full(w.AddLog(&row))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
