package broker

import (
	"fmt"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

const (
	houseTick     = 50 * time.Millisecond
	presenceEvery = 10 * time.Second
	upkeepEvery   = 10 * time.Second
	mendPause     = time.Second // between two rebuilds that readers asked for
)

// housekeeping is what a replica does by the clock and at once: it ends held pulls whose time is over, forgets silent members and
// writes consumer offsets that have waited. Nothing in it waits for a disk or for a quorum.
func (r *Replica) housekeeping() {
	t := time.NewTicker(houseTick)
	defer t.Stop()
	var presenceAt time.Time
	for {
		select {
		case <-t.C:
		case <-r.ctx.Done():
			for _, h := range r.holds.all() {
				r.expire(h)
			}
			return
		}
		now := r.now()
		if st := r.raft.Status(); st.Lost && r.node.park(r, st.Parked, false) {
			return // park closes this replica, which ends this loop
		}
		if err := r.clog.Poisoned(); err != nil && repairable(err) && r.node.repairOpen(r, err) {
			return // it closes this replica too
		}
		for _, h := range r.holds.expired(now) {
			r.expire(h)
		}
		if r.office.speaks(now) {
			r.node.kickRegistrars()
		}
		if r.commits.due(now) && !r.office.handing.Load() {
			r.flushCommits("", nil)
		}
		if r.stats.due(now) {
			r.stats.tick(now, r.totalsNow())
		}
		if now.Sub(presenceAt) > presenceEvery {
			presenceAt = now
			r.presenceMu.Lock()
			changed := r.presence.expire(now)
			r.presenceMu.Unlock()
			r.notifyMembers(changed)
		}
	}
}

// upkeep is what a replica does by the clock and may take long: it mends the index, which readers of a hole ask for too, and gives
// up old segments.
func (r *Replica) upkeep() {
	for {
		if err := r.mendIndex(); err != nil {
			r.log.Error().Err(err).Msg("a part of the queue index cannot be rebuilt")
		}
		if err := r.mendTimers(); err != nil && r.ctx.Err() == nil {
			r.log.Error().Err(err).Msg("the timer index cannot be rebuilt")
		}
		r.dropCutFiles()
		if err := r.retain(r.now()); err != nil && r.ctx.Err() == nil {
			r.log.Error().Err(err).Msg("old segments cannot be given up")
		}
		if !r.pause(mendPause, nil) || !r.pause(upkeepEvery-mendPause, r.mend) {
			return
		}
	}
}

// pause waits for d, or less when early comes. It returns false when the replica closes.
func (r *Replica) pause(d time.Duration, early <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-early:
	case <-r.ctx.Done():
		return false
	}
	return true
}

// retain gives up what is too old or too much; it waits for an administrator's request that does so already.
func (r *Replica) retain(now time.Time) error {
	r.retaining.Lock()
	defer r.retaining.Unlock()
	return r.giveUpFront(now)
}

// giveUpFront proposes to give up the front of the log when its oldest segments are older or more than the options allow. Never past
// what a voter lacks, nor past this master's own durable snapshot; a learner holds it for a while, see learnerHold. The caller holds
// retaining: two at once would take the same messages along.
func (r *Replica) giveUpFront(now time.Time) error {
	if !r.isMaster() || r.frozen.Load() { // what is to be kept would be stored again
		return nil
	}
	front, err := r.frontWanted(now)
	if err != nil || front == 0 {
		return err
	}
	if err := r.rollHalves(front); err != nil {
		return err
	}
	if err := r.rollTimers(front, rollTimersGathered); err != nil {
		return err
	}
	var mins []state.QueueMin
	err = r.idx.CutMins(front, func(k index.Key, first ids.QueueOffset) error {
		mins = append(mins, state.QueueMin{Key: k, Min: first})
		return nil
	})
	if err != nil {
		return err
	}
	for {
		n := min(len(mins), state.MaxCutMins)
		if _, err := r.commitCommand(state.RecordCutFront, state.AppendCutFront(nil, front, mins[:n])); err != nil {
			return fmt.Errorf("cut the front at %d: %w", front, err)
		}
		if mins = mins[n:]; len(mins) == 0 {
			return nil
		}
	}
}

// frontWanted returns the base of the first segment to keep, 0 when nothing is to go.
func (r *Replica) frontWanted(now time.Time) (ids.PhysicalOffset, error) {
	segs := r.clog.Segments()
	held, all := r.raft.MinMatch()
	snapshot := ids.PhysicalOffset(r.checkpoint.offset.Load())
	n := 0 // segments to give up
	// What is taken along must have room besides, else it would be taken along again and again.
	_, waiting, _ := r.st.TimersPending()
	most := r.node.o.RetentionBytes + 2*(r.pendingHalfBytes()+int64(waiting))
	for i, s := range segs {
		if !s.Sealed || i+1 == len(segs) || s.LastIndex >= held {
			break
		}
		next := segs[i+1].Base
		if next > snapshot {
			break
		}
		tooMuch := r.node.o.RetentionBytes > 0 && r.appliedEnd.Load()-int64(s.Base) > most
		tooOld := false
		if age := r.retentionAge(); !tooMuch && age > 0 {
			at, err := r.timeOf(s.FirstIndex, s.LastIndex)
			if err != nil {
				return 0, err
			}
			tooOld = at != 0 && now.Sub(time.UnixMilli(at)) > age
		}
		if !tooMuch && !tooOld {
			break
		}
		n = i + 1
	}
	front := segs[heldByLearners(segs, n, all)].Base
	if int64(front) <= r.checkpoint.cut.Load() || front <= r.clog.FirstOffset() {
		return 0, nil
	}
	return front, nil
}

// learnerHold is how many segments that could be given up are kept for a learner that lacks them: one that is about to have them need
// not begin anew, and one that is away for long does not fill the disk. Who comes too late gets the state, and the log from its
// front.
const learnerHold = 4

// heldByLearners returns how many of the first n segments to give up while every learner has the log up to entry all.
func heldByLearners(segs []commitlog.SegmentInfo, n int, all ids.Index) int {
	had := 0
	for had < n && segs[had].LastIndex < all {
		had++
	}
	return max(had, n-learnerHold)
}

// timeOf is the time of the last frame with records in [first, last]; 0 when all are empty.
func (r *Replica) timeOf(first, last ids.Index) (int64, error) {
	for i := last; i >= first; i-- {
		f, err := r.clog.ReadFrame(i, nil)
		if err != nil {
			return 0, err
		}
		if !f.Empty() {
			return f.Time(), nil
		}
	}
	return 0, nil
}

// mendIndex fills holes that damaged index files left, from the log.
func (r *Replica) mendIndex() error {
	for _, hole := range r.idx.Missing() {
		if int64(hole.To) > r.appliedEnd.Load() || hole.From < r.clog.FirstOffset()&^(ids.PhysicalOffset(r.clog.SegmentSize())-1) {
			continue
		}
		first, err := r.clog.IndexAt(hole.From)
		if err != nil {
			return fmt.Errorf("find the frame at %d: %w", hole.From, err)
		}
		var words []uint64
		err = r.idx.Rebuild(hole, func(add func(index.Key, ids.QueueOffset, index.Entry, ...uint64) error) error {
			for f, err := range r.clog.Frames(first) {
				if err != nil {
					return err
				}
				if f.Offset() >= hole.To {
					return nil
				}
				for rec := range f.Records() {
					if err := r.addMessage(rec, add, &words); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		r.log.Info().Int64("from", int64(hole.From)).Int64("to", int64(hole.To)).Msg("a damaged part of the queue index was rebuilt from the log")
	}
	return nil
}
