package sim

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// This file has the faults that cost a replica its identity, or that it needs another replica to mend, and what becomes of it, as in
// package broker:
//
//	wiped, a restored backup, a lost tail ──its node reports it──▶ lost for ever ──another id──▶ a new, empty replica
//	a flipped bit ──a start, a read or a scrub finds it──▶ closed ──frames of another replica──▶ open again
//
// A group bears one of them at a time, when all voters are there and one can be spared: who loses more waits for an operator, but for what
// doomed.go has.

// mayLose tells whether n's group can do without it for now, and lets it bear a fault.
func (s *schedule) mayLose(n *Node) bool {
	w := n.w
	if n.harmed {
		return s.calm || len(w.records) == 0 || !s.needed(n)
	}
	if s.calm || s.p.Adversary || s.gaveUp || len(w.records) == 0 || w.active != w.newest().Epoch {
		return false
	}
	if rec := w.newest(); rec.IsVoter(n.ID) && len(rec.Voters) <= max(1, int(rec.MinISR), int(s.c.group(w).MinIsr)) {
		return false
	}
	for _, o := range w.Nodes {
		if !o.gone && o.harmed && (!o.Up || o.Replica.Parked() != nil || o.rotten) || o.rotten && !o.gone {
			return false
		}
	}
	for _, o := range w.Nodes {
		if o.harmed { // it is followed or repaired
			o.harmed, o.powerAfter, o.failSync = false, 0, false
		}
	}
	n.harmed = true
	return true
}

// needed tells whether only an operator could help if n lost its identity: its set gets no smaller, or it is the only voter and has a bit
// that has flipped.
func (s *schedule) needed(n *Node) bool {
	rec := n.w.newest()
	if len(rec.Voters) == 1 {
		return rec.IsVoter(n.ID) && n.rotten
	}
	return rec.IsVoter(n.ID) && len(rec.Voters) <= max(int(rec.MinISR), int(s.c.group(n.w).MinIsr))
}

// misses tells whether a replica is lost, or damaged, or may be.
func (w *World) misses() bool {
	return slices.ContainsFunc(w.Nodes, func(n *Node) bool { return !n.gone && n.harmed && !n.Up })
}

// mayCut tells whether a machine may lose its power or fail a sync: that costs a replica its identity when it acknowledges before it
// syncs.
func (s *schedule) mayCut(h *Host) bool {
	for _, n := range h.Nodes {
		if n.w.mode.Async && !s.mayLose(n) {
			return false
		}
	}
	return true
}

// armPower lets the power of a machine go at one of its next writes.
func (s *schedule) armPower(h *Host, within int) {
	if s.mayCut(h) {
		h.powerAfter = 1 + s.r.IntN(within)
	}
}

// lose notes that a replica has lost its identity. Its folder says so from now on.
func (s *schedule) lose(n *Node, why string) {
	if !n.harmed {
		s.fail("replica %d loses its identity: %s", n.ID, why)
	}
	s.Tracef("r%d is lost: %s", n.ID, why)
	s.shut(n)
	n.lost, n.damage = why, nil
}

// shut closes one replica of a process that goes on.
func (s *schedule) shut(n *Node) {
	if n.Up {
		h := n.Host
		power, fail := h.powerAfter, h.failSync
		n.Kill()
		h.powerAfter, h.failSync = power, fail
	}
}

// retire closes a replica for ever: it was removed, or another one follows it.
func (s *schedule) retire(n *Node) {
	s.shut(n)
	n.gone = true
	n.Host.Nodes = slices.DeleteFunc(n.Host.Nodes, func(o *Node) bool { return o == n })
}

// follow makes the replica that follows a lost one.
func (s *schedule) follow(n *Node, id ids.ReplicaID) {
	if n.lost == "" && !n.missing {
		s.lose(n, fmt.Sprintf("replica %d follows it", id))
	}
	h := n.Host
	s.retire(n)
	heir, err := n.w.addNode(h, id)
	if err != nil {
		s.fail("create replica %d: %w", id, err)
		return
	}
	s.Tracef("r%d follows r%d", id, n.ID)
	s.heirs++
	s.after(s.between(0, 50_000), func() { s.tick(heir) })
	s.openReplica(heir)
}

// remake makes the folder of a replica once more, as another incarnation.
func (s *schedule) remake(n *Node) {
	s.Tracef("r%d is made again", n.ID)
	n.Incarnation[1]++
	n.missing = false
	if err := n.create(); err != nil {
		s.fail("create replica %d: %w", n.ID, err)
		return
	}
	s.openReplica(n)
}

// repairable tells whether another replica can help against a fault of a log.
func repairable(err error) bool {
	var damage *commitlog.DamageError
	var corrupt *commitlog.CorruptionError
	return errors.As(err, &damage) || errors.As(err, &corrupt) && corrupt.Offset >= 0
}

// inspect looks at what a replica has found on its disk: then it is closed.
func (s *schedule) inspect(n *Node) {
	if !n.Up || s.Err != nil {
		return
	}
	if p := n.Replica.Parked(); p != nil && p.Lost {
		s.lose(n, p.Reason)
		return
	}
	if err := n.Log.Poisoned(); err != nil && repairable(err) {
		unknown := n.Log.KeepBound()
		s.shut(n)
		if n.powerAfter < 0 {
			s.powerCut(n.Host)
			return
		}
		if unknown != nil {
			s.lose(n, unknown.Error())
			return
		}
		s.closed(n, err)
	}
}

// closed is told why a log cannot be opened, or was closed, and does what follows from it.
func (s *schedule) closed(n *Node, err error) {
	h := n.Host
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, errDisk):
		s.Tracef("%s is ended: %v", h.Name, err) // by an operator, who starts it again
		h.end()
		s.reopen(h)
	case errors.Is(err, commitlog.ErrNotCreated):
		if !n.harmed {
			s.fail("replica %d has no folder", n.ID)
		}
		n.missing = true
	case repairable(err):
		if !n.harmed {
			s.fail("replica %d is damaged: %w", n.ID, err)
			return
		}
		s.Tracef("r%d is damaged: %v", n.ID, err)
		n.damage = err
		s.repair(n, err, s.between(1_000, 1_000_000))
	case commitlog.IdentityLost(err):
		s.lose(n, err.Error())
	default:
		s.fail("replica %d does not open: %v", n.ID, err)
	}
}

// repair lets a damaged replica ask the others, again and again.
func (s *schedule) repair(n *Node, fault error, pause int64) {
	life := n.life
	s.after(pause, func() {
		if d := s.pausedFor(n.Host); d > 0 {
			s.repair(n, fault, d)
			return
		}
		if !n.running || n.life != life || n.damage != fault {
			return
		}
		if !s.calm && s.chance(0.1) {
			s.armPower(n.Host, 20)
		}
		done, err := s.repairRound(n, fault)
		s.Tracef("r%d is repaired: %t, %v", n.ID, done, err)
		switch {
		case n.powerAfter < 0:
			s.powerCut(n.Host)
		case done:
			s.openReplica(n)
		case commitlog.IdentityLost(err):
			s.lose(n, err.Error())
		default:
			s.repair(n, fault, s.between(500_000, 2_000_000))
		}
	})
}

// repairRound asks one replica after the other for what is damaged.
func (s *schedule) repairRound(n *Node, fault error) (done bool, err error) {
	options := n.logOptions(vfs.Inject(n.Disk, n.rule))
	var at ids.PhysicalOffset
	var damage *commitlog.DamageError
	var corrupt *commitlog.CorruptionError
	if errors.As(fault, &damage) {
		at = damage.Offset
	} else if errors.As(fault, &corrupt) {
		at = corrupt.Offset
	}
	for _, o := range n.w.Nodes {
		r, err := commitlog.OpenRepair(options, at)
		if err != nil {
			return false, err
		}
		if _, _, needs := r.Need(); !needs {
			if r.Damaged() {
				err = r.Commit()
			}
			return err == nil, errors.Join(err, r.Close())
		}
		if o != n && !o.gone && o.running && s.pausedFor(o.Host) == 0 && !s.cut[way{n.Host, o.Host}] && !s.cut[way{o.Host, n.Host}] && (s.calm || !s.chance(s.p.Loss)) {
			if err = s.repairFrom(r, o); err == nil {
				s.repairs++
				return true, r.Close()
			}
			s.Tracef("r%d gets nothing of use from r%d: %v", n.ID, o.ID, err)
		}
		if err := r.Close(); err != nil || n.powerAfter < 0 {
			return false, err
		}
	}
	return false, nil
}

// repairFrom takes from o what r needs.
func (s *schedule) repairFrom(r *commitlog.Repair, o *Node) error {
	for {
		_, off, needs := r.Need()
		if !needs {
			return r.Commit()
		}
		b := make([]byte, s.between(1, int64(SegmentSize-off%SegmentSize)+1))
		var k int
		var err error
		switch {
		case o.Up:
			k, err = o.Log.ReadRaw(b, off)
		case o.damage != nil:
			k, err = commitlog.ReadRaw(o.logOptions(o.Disk), b, off)
		default:
			err = errors.New("it is not open")
		}
		if err == nil {
			err = r.Put(b[:k])
		}
		if err != nil {
			return err
		}
	}
}

// syncBehind makes durable, some time, what was written.
func (s *schedule) syncBehind(n *Node) {
	life := n.Log
	s.after(s.between(1_000, 100_000), func() {
		if n.Log != life || !n.Up || s.unsynced {
			return
		}
		err := n.SyncBehind()
		switch {
		case n.powerAfter < 0:
			s.powerCut(n.Host)
		case err != nil:
			n.w.Check.mayPark[n.ID] = true
			n.Complete()
		}
	})
}

// fill leaves the disk of a machine without room for a while.
func (s *schedule) fill(h *Host) {
	s.Tracef("the disk of %s is full", h.Name)
	h.full = true
	h.mayPark()
	s.fulls++
	s.after(s.between(100_000, 4_000_000), func() {
		s.Tracef("the disk of %s has room", h.Name)
		h.full = false
	})
}

// wipe ends a process and removes the folders of its replicas, those that their groups can do without.
func (s *schedule) wipe(h *Host) {
	var list []*Node
	for _, n := range h.Nodes {
		if !n.missing && n.lost == "" && !n.harmed && s.mayLose(n) {
			list = append(list, n)
		}
	}
	if list == nil {
		return
	}
	if h.running {
		s.kill(h)
	} // else its start is on its way
	for _, n := range list {
		s.Tracef("the folder of r%d is removed", n.ID)
		n.Disk = vfs.NewMem()
	}
}

// repairs tells whether a replica of the group needs what others have of the log: none of it is given up meanwhile, as the group would
// agree to.
func (w *World) repairs() bool {
	return slices.ContainsFunc(w.Nodes, func(n *Node) bool { return !n.gone && (n.rotten || n.damage != nil) })
}

// flip changes one bit of what is committed, and durable, in the log of a replica. It may be found at once, or by a scrub.
func (s *schedule) flip(n *Node) {
	if n.harmed || n.w.repairs() {
		return
	}
	from, to := n.Log.FirstOffset(), n.Log.Meta().BoundOffset
	for _, o := range n.w.Nodes {
		if !o.gone && !o.Up {
			return
		} else if o.Up {
			from = max(from, o.Log.FirstOffset())
		}
	}
	if ref, err := n.Log.RefOf(n.Status().Commit); err == nil {
		to = min(to, ref.Offset+ids.PhysicalOffset(ref.Size))
	}
	if to <= from || !s.mayLose(n) {
		return
	}
	at := from + ids.PhysicalOffset(s.r.Int64N(int64(to-from)))
	switch err := n.flipBit(at, 1<<s.r.IntN(8)); {
	case errors.Is(err, io.EOF): // a segment ends before its last byte
		n.rotten = false
		return
	case err != nil:
		s.fail("flip a bit of replica %d: %w", n.ID, err)
		return
	}
	s.flips++
	s.scrub(n)
}

// flipBit changes one bit of the log, on the disk.
func (n *Node) flipBit(at ids.PhysicalOffset, bit byte) error {
	n.rotten = true
	return n.flip(segmentFile(at), int64(at%SegmentSize), bit)
}

// segmentFile is where an offset of a log is.
func segmentFile(at ids.PhysicalOffset) string {
	return fmt.Sprintf("log/%020d.log", at/SegmentSize*SegmentSize)
}

// flip changes one bit of a file.
func (n *Node) flip(name string, at int64, bit byte) error {
	n.w.Tracef("a bit of %s of r%d flips at %d", name, n.ID, at)
	f, err := n.Disk.OpenReadWrite(name)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	b[0] ^= bit
	if err == nil {
		_, err = f.WriteAt(b, at)
	}
	return errors.Join(err, f.SyncData(), f.Close())
}

// scrub reads a log until nothing of it is bad, or it is lost.
func (s *schedule) scrub(n *Node) {
	s.after(s.between(500_000, 3_000_000), func() {
		if n.gone || n.lost != "" || n.missing {
			n.rotten = false
			return
		}
		if n.Up && s.pausedFor(n.Host) == 0 && n.Log.Poisoned() == nil && n.scrubbed() {
			n.rotten = false // or the bit is of no frame
			return
		}
		s.scrub(n)
	})
}

// scrubbed reads a whole log, as the daily scrub reads what is sealed, and tells whether it is good.
func (n *Node) scrubbed() bool {
	for _, seg := range n.Log.Segments() {
		if seg.Sealed {
			if err := n.Log.CheckSegment(seg.Base, func(int) error { return nil }); err != nil {
				return false
			}
		}
	}
	for _, err := range n.Log.Frames(n.Log.FirstIndex()) {
		if err != nil {
			return false
		}
	}
	return true
}
