package broker

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/timer"
)

// checkpoint writes state and index beside the loop, one at a time.
type checkpoint struct {
	busy   atomic.Bool
	offset atomic.Int64 // of the newest durable snapshot: the log before it is not needed for a start
	older  atomic.Int64 // of the one before, as far as this process knows: with it a start works if the newest is damaged
	cut    atomic.Int64 // the front that the group agreed on; files go once both snapshots are past it
	wg     sync.WaitGroup
}

// checkpointIfDue starts a checkpoint when enough log was applied since the last one. The state is cloned here, on the loop,
// which takes microseconds; it is written in the background.
func (r *Replica) checkpointIfDue(c raftlog.Committed) error {
	end := ids.PhysicalOffset(r.appliedEnd.Load())
	if end-r.sinceCheck < ids.PhysicalOffset(r.node.o.CheckpointBytes) {
		if r.idx.Full() {
			r.spillIndex(end)
		}
		return nil
	}
	if !r.checkpoint.busy.CompareAndSwap(false, true) {
		return nil
	}
	r.sinceCheck = end
	meta := r.snapshotMeta()
	meta.Index, meta.Term = c.Index, c.Term
	if c.Frame != nil {
		meta.Chain = c.Frame.Chain()
	}
	clone := r.st.Clone()
	r.checkpoint.wg.Add(1)
	go func() {
		defer r.checkpoint.wg.Done()
		defer r.checkpoint.busy.Store(false)
		if err := r.writeCheckpoint(meta, clone); err != nil {
			r.log.Error().Err(err).Msg("cannot write a checkpoint: the next start replays more of the log")
			return
		}
		signal(r.mend) // upkeep gives up what is not needed any more: while the replica opens there is no group to ask
	}()
	return nil
}

// indexCheckpointIfDue is checkpointIfDue while the state is ahead of the log.
func (r *Replica) indexCheckpointIfDue() {
	end := ids.PhysicalOffset(r.appliedEnd.Load())
	if r.indexed+ids.PhysicalOffset(r.node.o.CheckpointBytes) <= end || r.idx.Full() {
		r.spillIndex(end)
	}
}

// spillIndex makes the index durable up to end, in the background, unless a checkpoint is under way.
func (r *Replica) spillIndex(end ids.PhysicalOffset) {
	if !r.checkpoint.busy.CompareAndSwap(false, true) {
		return
	}
	r.indexed = end
	b := r.st.TimerBounds() // of now: what becomes past meanwhile may be lost again with the end of the log
	r.checkpoint.wg.Go(func() {
		defer r.checkpoint.busy.Store(false)
		err := r.syncBefore()
		if err == nil {
			err = r.checkpointIndexes(end, b)
		}
		if err != nil {
			r.log.Error().Err(err).Msg("cannot write a checkpoint of the indexes: the next start reads more of the log")
		}
	})
}

// snapshotMeta is that of a snapshot of now, without the frame's term and chain.
func (r *Replica) snapshotMeta() state.SnapshotMeta {
	return state.SnapshotMeta{Group: r.gid, Index: ids.Index(r.applied.Load()), Offset: ids.PhysicalOffset(r.appliedEnd.Load())}
}

// lastCheckpoint is the one of a clean stop. The loop has ended.
func (r *Replica) lastCheckpoint() error {
	meta := r.snapshotMeta()
	if meta.Index == 0 {
		return nil
	}
	if r.catchingUp() {
		return r.checkpointIndexes(meta.Offset, r.st.TimerBounds()) // the state is of a later entry
	}
	if meta.Offset == ids.PhysicalOffset(r.checkpoint.offset.Load()) { // the snapshot is there; the index may have been rebuilt
		return r.checkpointIndexes(meta.Offset, r.st.TimerBounds())
	}
	f, err := r.clog.ReadFrame(meta.Index, nil)
	if err != nil {
		return fmt.Errorf("read the last applied frame: %w", err)
	}
	meta.Term, meta.Chain = f.Term(), f.Chain()
	if err := r.writeCheckpoint(meta, r.st); err != nil {
		return err
	}
	r.dropCutFiles()
	return nil
}

// writeCheckpoint makes index and state durable up to meta.
func (r *Replica) writeCheckpoint(meta state.SnapshotMeta, st *state.State) error {
	if meta.Index == 0 {
		return nil
	}
	if err := r.syncBefore(); err != nil {
		return err
	}
	if err := r.checkpointIndexes(meta.Offset, st.TimerBounds()); err != nil {
		return err
	}
	r.proveTimers(meta.Offset, st)
	meta, err := state.WriteSnapshot(r.node.o.FS, r.dir, meta, st)
	if err != nil {
		return err
	}
	r.keepNewest(meta)
	if before := r.checkpoint.offset.Swap(int64(meta.Offset)); before < int64(meta.Offset) {
		r.checkpoint.older.Store(before)
	}
	return nil
}

// syncBefore makes durable what is applied. Before a checkpoint of a log that flushes asynchronously: else that may be ahead of its log
// after a loss of power.
func (r *Replica) syncBefore() error {
	if !r.clog.Async() {
		return nil
	}
	if err := r.clog.Sync(); err != nil {
		return fmt.Errorf("sync before a checkpoint: %w", err)
	}
	return nil
}

// checkpointIndexes makes the indexes durable up to end. What is past by b, of a state whose log is durable, is left out of the timers.
func (r *Replica) checkpointIndexes(end ids.PhysicalOffset, b timer.Bounds) error {
	if err := r.idx.Checkpoint(end); err != nil {
		return fmt.Errorf("checkpoint of the queue index: %w", err)
	}
	if err := r.checkpointTimers(end, b); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// cutTo notes the agreed front of the log. It runs on the loop.
func (r *Replica) cutTo(base ids.PhysicalOffset) {
	if int64(base) > r.checkpoint.cut.Load() {
		r.checkpoint.cut.Store(int64(base))
		r.log.Info().Int64("front", int64(base)).Msg("the group gave up the front of its log")
	}
}

// dropCutFiles removes what lies before the agreed front, as far as both of this replica's snapshots are past it: after a cut they
// are primary data, and each of them must be enough for a start. What cannot be removed is tried again by upkeep.
func (r *Replica) dropCutFiles() {
	if r.sending() {
		return // who is being sent the state needs the log that goes with it
	}
	front := min(r.checkpoint.cut.Load(), r.checkpoint.older.Load()&^(r.clog.SegmentSize()-1))
	if _, all := r.raft.MinMatch(); r.isMaster() {
		segs := r.clog.Segments()
		n := 0
		for n < len(segs)-1 && int64(segs[n].Base) < front {
			n++
		}
		front = int64(segs[heldByLearners(segs, n, all)].Base)
	}
	if ids.PhysicalOffset(front) <= r.clog.FirstOffset() {
		return
	}
	r.timers.idx.CutFront(ids.PhysicalOffset(front))
	if err := errors.Join(r.idx.CutFront(ids.PhysicalOffset(front)), r.clog.CutFront(ids.PhysicalOffset(front))); err != nil {
		r.log.Error().Err(err).Msg("segments that the group gave up cannot be removed")
	}
}
