package sim

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// lossStories are those of disks that lose what was promised from them: rules of identity and of recovery. In most of them replicas 1 and
// 2 of three have what is acknowledged, 1 is away, and 2 comes back without it, or with it: 2 and 3 are a majority, and must get a
// master only in the latter case.
var lossStories = []Story{
	// What was acknowledged and not synced goes with the power. The replica must not elect a master that lacks it too.
	{"a tail lost with the power", 2, 3, 2, true, true, func(t *teller) {
		t.unsynced = true
		t.onTwo()
		t.losesPower(2)
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// The same with the end of the process alone: nothing is missing.
	{"a tail that the end of a process does not take", 2, 3, 2, true, true, func(t *teller) {
		t.unsynced = true
		t.onTwo()
		t.startAgain(2)
		clear(t.cut)
		t.works(6_000)
	}},
	// A sync fails under asynchronous flush: what was acknowledged may be gone, and can still be read. The next start must not take it
	// for good.
	{"a failed sync behind an acknowledgement", 2, 3, 2, true, true, func(t *teller) {
		t.works(3_000)
		t.unsynced = true
		t.works(1_000)
		n := t.harm(2)
		n.lostSync = true
		n.FailSync()
		if n.SyncBehind() == nil {
			t.fail("story: nothing was to be synced")
		}
		n.Complete()
		t.wait("replica 2 knows what that means", func() bool { return n.lost != "" })
		t.unsynced = false
		t.startAgain(2)
		t.isFollowed(2)
	}},
	// A sync fails, and the disk never gets what can be read. A start writes it again before it counts.
	{"a failed sync and the page cache", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		t.lead(1)
		t.part(3)
		n := t.w.Node(2)
		n.lostSync = true
		n.FailSync()
		op := t.propose(1)
		t.wait("replica 2 parks", func() bool { return n.Replica.Parked() != nil })
		t.startAgain(2)
		t.wait("replica 1 acknowledges", func() bool { return op.State == Acked })
		t.stop(1)
		t.powerOf(2)
		clear(t.cut)
		t.works(6_000)
	}},
	// A bit flips in the last frame of what is known to be durable. It is no torn write, and nobody can tell what was there.
	{"a bad end below the durable bound", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		t.flipsLast(2, 1, true)
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// A bit flips behind the durable bound, in a frame that others follow. It is none either, and whoever has the frame can help.
	{"a bad frame that others follow", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		t.flipsLast(2, 2, false)
		t.lackAndMustNotLead()
		t.isRepaired(2)
	}},
	// The end of a log is gone: it is shorter than what its meta file knows to be durable.
	{"a log that ends below its durable bound", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		t.losesEnd(2)
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// A bit flips while the log is open, and a scrub finds it.
	{"a bad frame that a scrub finds", 2, 3, 1, true, false, func(t *teller) {
		t.works(3_000)
		n := t.harm(2)
		for range 8 {
			t.works(1_000)
		}
		ref, err := n.Log.RefOf(3)
		t.must(err)
		t.must(n.flipBit(ref.Offset+ids.PhysicalOffset(ref.Size)-9, 1))
		t.scrub(n)
		t.wait("the damage is found", func() bool { return n.damage != nil })
		t.works(3_000)
		t.isRepaired(2)
	}},
	// The replica that is asked first has another frame in the place of the bad one, of a term that came to nothing. It must not be taken.
	{"another history in the place of a bad frame", 2, 3, 1, false, false, func(t *teller) {
		t.lead(2)
		t.write(2)
		t.pass(300)
		first := t.w.Node(2).Log.Tail().Index + 1
		t.drop = func(e peer.Envelope) bool { return e.From == 1 && e.Msg.GetType() == raftpb.MsgApp }
		t.campaign(1)
		t.wait("replica 1 is elected", func() bool { return t.w.Node(1).Log.Tail().Index == first }) // an empty frame, on 1 alone
		t.drop = func(e peer.Envelope) bool { return e.To == 1 }
		t.lead(2) // with an empty frame of its own there
		for range 4 {
			t.write(2)
		}
		t.pass(300)
		n := t.harm(3)
		t.must(n.Writer.Checkpoint())
		ours, err := t.w.Node(1).Log.RefOf(first)
		t.must(err)
		ref, err := n.Log.RefOf(first)
		t.must(err)
		if ours.Offset != ref.Offset || ours.Size != ref.Size || ours.CRC == ref.CRC {
			t.fail("story: the frames are %+v and %+v", ours, ref)
		}
		t.stop(3)
		t.must(n.flipBit(ref.Offset+ids.PhysicalOffset(ref.Size)-9, 1))
		t.open(n.Host)
		t.isRepaired(3)
		t.drop = nil
	}},
	// A bit flips in the last frame that was acknowledged, behind the durable bound, and is read: what the process knows of the end of its
	// log must outlive it.
	{"a bad end that a read finds", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		n := t.harm(2)
		if n.Log.Meta().BoundIndex >= n.Log.Tail().Index {
			t.fail("story: the durable bound is at the end")
		}
		ref, err := n.Log.RefOf(n.Log.Tail().Index)
		t.must(err)
		t.must(n.flipBit(ref.Offset+ids.PhysicalOffset(ref.Size)-9, 1))
		if n.scrubbed() {
			t.fail("story: nobody noticed")
		}
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// The disk of a replica is new. It must not vote, and is followed by another one.
	{"a wiped disk", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		n := t.harm(2)
		t.stop(2)
		n.Disk = vfs.NewMem()
		t.open(n.Host)
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// So is one where a folder was made again for the same replica.
	{"a folder made again", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		n := t.harm(2)
		t.stop(2)
		n.Disk = vfs.NewMem()
		n.Incarnation[1]++
		t.must(n.create())
		rec := t.w.newest() // its node gives it what the controllers have
		t.must(n.Open(&rec))
		n.running = true
		n.life++
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// So is one that was restored from a copy: it has started less often than the controllers saw.
	{"a restored backup", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		n := t.w.Node(2)
		copied := t.copyDisk(n)
		for range 2 {
			t.startAgain(2)
			t.pass(1_000)
		}
		t.within(60_000, "replica 2 votes again", func() bool { return len(t.w.newest().Voters) == 3 && t.w.active == t.w.newest().Epoch })
		t.onTwo()
		t.harm(2)
		t.stop(2)
		n.Disk = copied
		for _, o := range t.w.Nodes {
			t.cut[way{n.Host, o.Host}], t.cut[way{o.Host, n.Host}] = true, true
		}
		t.open(n.Host)
		t.wait("replica 2 is known as a backup", func() bool { return n.lost != "" })
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// One that is lost has left the voters. It never is one again.
	{"a lost replica does not come back", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 3))
		t.give(1, 3)
		t.lead(1)
		t.awaitActive(2)
		n := t.harm(2)
		t.stop(2)
		n.Disk = vfs.NewMem()
		t.open(n.Host)
		t.wait("replica 2 is known as lost", func() bool { return t.c.group(t.w).Replicas[1].Lost != "" })
		t.forbidden(1, 2, 3)
	}},
	// Nor is one whose node has not made its folder: nobody knows under which incarnation.
	{"a replica that is not made yet", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		h := t.spare(t.w)
		h.end()
		h.life++
		t.must(t.setMode(t.w, controller.SetMode{Answers: 2, Members: 4, On: []ids.NodeID{h.Name}}))
		t.forbidden(1, 2, 3, 4)
		t.open(h)
	}},
	// Both slots of a meta file are bad: nobody knows how it voted.
	{"a meta file that cannot be read", 2, 3, 2, true, false, func(t *teller) {
		t.onTwo()
		t.harm(2)
		t.stop(2)
		t.must(t.w.Node(2).flipMeta(0))
		t.must(t.w.Node(2).flipMeta(1))
		t.open(t.w.Node(2).Host)
		t.lackAndMustNotLead()
		t.isFollowed(2)
	}},
	// One slot of it is bad, the newer one: the vote is in the other one too.
	{"a vote in a bad slot", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		t.part(1)
		t.drop = func(e peer.Envelope) bool { return e.Msg.GetType() == raftpb.MsgVoteResp }
		t.campaign(2)
		n := t.w.Node(3)
		t.wait("replica 3 votes for 2", func() bool { return n.votes[t.w.Node(2).Status().Term] == 2 })
		voted := t.w.Node(2).Status().Term
		t.harm(3)
		t.stop(3)
		t.must(n.flipMeta(n.newestSlot()))
		t.open(n.Host)
		if o, err := raftlog.DecodeOwner(n.Log.Meta().Owner); err != nil || o.Term < voted || o.Term == voted && o.Vote != 2 {
			t.fail("story: replica 3 knows a vote for %d in term %s, it voted for 2 in term %s: %v", o.Vote, o.Term, voted, err)
		}
		t.drop = nil
		clear(t.cut)
		n.rotten = false
	}},
	// A replica was master alone for a while. What it had is cut off, and does not come back with the next start.
	{"what was cut stays cut", 2, 3, 1, false, false, func(t *teller) {
		t.p.Inflight = 8 // frames
		t.startAgain(1)
		t.lead(1)
		t.write(1)
		t.part(1)
		for range 6 {
			t.propose(1)
			t.pass(10)
		}
		t.lead(2)
		t.write(2)
		n := t.w.Node(1)
		had := n.Log.Tail().Index
		clear(t.cut)
		t.wait("replica 1 has the log of 2", func() bool { return n.Log.Tail() == t.w.Node(2).Log.Tail() })
		tail := n.Log.Tail()
		if had <= tail.Index {
			t.fail("story: nothing was cut: %d, %d", had, tail.Index)
		}
		t.part(1)
		t.powerOf(1)
		if !n.Up {
			t.fail("story: replica 1 is not open")
		} else if now := n.Log.Tail(); now != tail {
			t.fail("story: the log of replica 1 ended at %+v, it ends at %+v", tail, now)
		}
		clear(t.cut)
		t.write(2)
	}},
	// A disk is full: no file grows, while votes and terms are written in place. The others go on; when there is room again, a start is
	// all that is needed.
	{"a full disk", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		t.lead(1)
		t.works(3_000)
		n := t.w.Node(1)
		t.fillAhead(n)
		n.full = true
		n.mayPark()
		t.lead(2) // 1 hears of the new term, and stores it
		t.lead(1)
		t.wait("replica 1 finds no room", func() bool {
			if n.Machine.master {
				t.proposeSized(1, SegmentSize/8)
			} else if id := t.w.master(); id != 0 {
				t.proposeSized(id, SegmentSize/8)
			}
			t.pass(20)
			return n.Replica.Parked() != nil
		})
		t.works(3_000)
		n.full = false
		t.startAgain(1)
		t.wait("replica 1 votes again", func() bool { return t.w.newest().IsVoter(1) && t.w.active == t.w.newest().Epoch && n.Up })
	}},
	// One of two is wiped before the group ever had a master: the other one goes on alone. Both groups are on these machines.
	{"wiped before the first master", 2, 2, 1, true, false, func(t *teller) {
		t.works(3_000)
		t.drop = func(peer.Envelope) bool { return true }
		other := t.another(2, 2, 1)
		t.wait("the group has its first epoch", func() bool { return len(other.w.records) == 1 })
		n := other.harm(other.w.Nodes[1].ID)
		other.stop(n.ID)
		n.Disk = vfs.NewMem()
		t.open(n.Host)
		t.pass(2_000)
		t.drop = nil
		other.works(3_000)
		other.isFollowed(n.ID)
	}},
}

// harm notes that a story hurts the disk of a replica.
func (t *teller) harm(id ids.ReplicaID) *Node {
	n := t.w.Node(id)
	n.harmed = true
	return n
}

// startAgain ends a process and starts it.
func (t *teller) startAgain(id ids.ReplicaID) {
	t.stop(id)
	t.open(t.w.Node(id).Host)
}

// powerOf takes the power of a machine and starts it again.
func (t *teller) powerOf(id ids.ReplicaID) {
	n := t.w.Node(id)
	t.Tracef("%s loses its power", n.Name)
	n.cutWorst(16)
	t.open(n.Host)
	t.disconnect(n.Host)
}

// cutWorst takes the power of a machine with one replica, and leaves as little of its log as some tries find.
func (n *Node) cutWorst(tries uint64) (last ids.Index) {
	n.running = false
	n.down()
	n.boot++
	var worst *vfs.Mem
	for seed := range tries {
		disk := n.Disk.Crash(rand.New(rand.NewPCG(seed+1, 1)))
		o := n.logOptions(disk)
		o.ReadOnly = true
		var tail ids.Index
		if l, err := commitlog.Open(o); err == nil {
			tail = l.Tail().Index
			_ = l.Close(false) // it was only read
		}
		if worst == nil || tail < last {
			worst, last = disk, tail
		}
	}
	n.Disk = worst
	return last
}

// onTwo has operations acknowledged that are on 1 and 2 alone, and stops 1.
func (t *teller) onTwo() {
	t.works(6_000)
	t.lead(1)
	t.works(3_000)
	t.part(3)
	for range 4 {
		t.write(1)
	}
	t.stop(1)
}

// losesPower takes the power of a machine in such a way that nothing is left that was not synced.
func (t *teller) losesPower(id ids.ReplicaID) {
	n := t.harm(id)
	had := n.Log.Tail().Index
	if last := n.cutWorst(100); last+4 > had {
		t.fail("story: the power takes nothing: %d of %d entries are left", last, had)
	}
	t.open(n.Host)
	t.disconnect(n.Host)
}

// losesEnd cuts the last frames out of a log while it is stopped, though they are below its durable bound.
func (t *teller) losesEnd(id ids.ReplicaID) {
	n := t.harm(id)
	t.must(n.Writer.Checkpoint())
	tail := n.Log.Tail()
	ref, err := n.Log.RefOf(tail.Index - 3)
	t.must(err)
	t.stop(id)
	f, err := n.Disk.OpenReadWrite(segmentFile(ref.Offset))
	t.must(err)
	if t.Err != nil {
		return
	}
	_, err = f.WriteAt(make([]byte, tail.Offset-ref.Offset), int64(ref.Offset%SegmentSize))
	t.must(errors.Join(err, f.SyncData(), f.Close()))
	t.open(n.Host)
}

// flipsLast flips a bit of a frame near the end of a replica's log while it is stopped: the n-th one from the end, below the durable
// bound or behind it.
func (t *teller) flipsLast(id ids.ReplicaID, nth ids.Index, below bool) {
	n := t.harm(id)
	if below {
		t.must(n.Writer.Checkpoint())
	}
	tail := n.Log.Tail().Index
	ref, err := n.Log.RefOf(tail + 1 - nth)
	t.must(err)
	if bound := n.Log.Meta().BoundIndex; (bound >= tail) != below || !below && bound > tail-nth {
		t.fail("story: the durable bound is at %d of %d", bound, tail)
	}
	t.stop(id)
	t.must(n.flipBit(ref.Offset+ids.PhysicalOffset(ref.Size)-9, 1))
	t.open(n.Host)
}

// newestSlot is the slot of the meta file that was written last.
func (n *Node) newestSlot() int {
	b, err := vfs.ReadFile(n.Disk, "log/meta")
	if err != nil || len(b) < 2*metaSlot {
		return 0
	}
	seq := func(slot int) uint64 { return binary.BigEndian.Uint64(b[slot*metaSlot+8:]) }
	if seq(1) > seq(0) {
		return 1
	}
	return 0
}

// metaSlot is the size of a slot of the meta file, which has the number of its write behind eight bytes: docs/format/meta.md.
const metaSlot = 4096

// flipMeta changes a bit of one slot of the meta file.
func (n *Node) flipMeta(slot int) error { return n.flip("log/meta", int64(slot*metaSlot+300), 1) }

// copyDisk is a backup of a machine that runs.
func (t *teller) copyDisk(n *Node) *vfs.Mem {
	to := vfs.NewMem()
	names, err := n.Disk.List("log")
	t.must(errors.Join(err, vfs.MkdirDurable(to, "log")))
	for _, name := range names {
		b, err := vfs.ReadFile(n.Disk, "log/"+name)
		t.must(errors.Join(err, vfs.WriteFileAtomic(to, "log/"+name, b)))
	}
	return to
}

// lackAndMustNotLead: 1 is stopped and has what is acknowledged; 2 and 3 are a majority that lacks it, and must get no master. When 1 is
// back the group works.
func (t *teller) lackAndMustNotLead() {
	clear(t.cut)
	t.pass(4_000)
	if id := t.w.master(); id != 0 {
		t.fail("story: replica %d leads without what was acknowledged", id)
	}
	t.unsynced = false
	t.open(t.w.Node(1).Host)
	t.disconnect(t.w.Node(1).Host)
	t.works(10_000)
}

// isFollowed wants another replica in the place of one that is lost.
func (t *teller) isFollowed(id ids.ReplicaID) {
	n := t.w.Node(id)
	t.wait("another one follows it", func() bool { return n.gone })
}

// isRepaired wants a damaged replica to have its log again, as it was, under its own id.
func (t *teller) isRepaired(id ids.ReplicaID) {
	n := t.w.Node(id)
	t.within(20_000, "its log is repaired", func() bool { return n.gone || n.Up && n.damage == nil && n.Replica.Parked() == nil && n.scrubbed() })
	if n.gone {
		t.fail("story: replica %d is followed by another one, and could be repaired", id)
	}
	n.rotten = false
}
