package raftlog

import (
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Status is a snapshot of one replica. Index, commit and role are those of the last turn of the loop; the members' figures are
// renewed with each tick.
type Status struct {
	Replica    ids.ReplicaID
	Role       RoleKind
	Term       ids.Term
	Master     ids.ReplicaID // 0 when none is known
	MasterNode ids.NodeID
	Epoch      ids.Epoch // 0 while the first record is waited for
	Hash       [16]byte  // of the record in force

	Commit  ids.Index
	Applied ids.Index
	Last    ids.Index          // last entry, durable or not
	End     ids.PhysicalOffset // aligned end of the last frame
	Synced  ids.Index          // last durable entry here; less than what it acknowledges when its log flushes asynchronously

	// Activated tells that this master has applied an entry it created in this epoch: what the controller waits for.
	Activated bool

	Voters   []MemberStatus
	Learners []MemberStatus
	Heard    int // voters heard within the last second, with this replica itself when it votes

	// MasterSilent is how long a follower has not heard a master of its term, since it began its epoch at most; 0 on a master.
	// MasterClosed tells that the connection to the master's node was closed and the master was not heard since.
	MasterSilent time.Duration
	MasterClosed bool

	Leaving bool // see Group.Leave

	K      int // voters that an answered entry is on
	MinISR int

	Parked   string // why the replica is parked, "" when it is not
	Lost     bool   // it is parked because its identity is lost: the owner must remember that beyond this process life
	Poisoned error  // the first failure of the log, nil when there is none
}

// MemberStatus is what a replica knows of one member of its epoch.
type MemberStatus struct {
	Member
	Match ids.Index // last entry known to be durable there; only a master knows it, else 0
	Heard bool      // heard within the last second
	// Behind: it lacks what the master's log has given up, and is offered a snapshot. Only a master knows it.
	Behind bool

	// What a master sees of the member, 0 and false elsewhere. Stalled is for how long it has answered nothing, or was behind and
	// did not advance. CaughtUp is for how long it has had everything that was committed a moment before. Closed tells that the
	// connection to its node was closed and it was not heard since.
	Stalled  time.Duration
	CaughtUp time.Duration
	Closed   bool
}

// Status returns the whole snapshot.
func (r *Replica) Status() Status {
	s := r.snapshot()
	r.memberStatus(&s)
	return s
}

// snapshot returns the snapshot without the members' figures.
func (r *Replica) snapshot() Status {
	s := Status{
		Replica: r.cfg.Replica, Role: r.role.Kind, Term: r.owner.Term, Master: r.lead, Epoch: r.record.Epoch, Hash: r.hash,
		Commit: r.commit, Applied: r.applied, Last: r.tail.Index, End: r.tail.Offset, Synced: r.durable(),
		Poisoned: r.log.Poisoned(), Leaving: r.leaving,
	}
	if m := r.members[r.lead]; m != nil {
		s.MasterNode = m.Node
	}
	s.Activated = r.role.Kind == RoleMaster && r.isMaster()
	if r.record.Epoch > 0 {
		s.K, s.MinISR = r.record.K(), int(r.record.MinISR)
	}
	switch {
	case r.parked != nil:
		s.Parked, s.Lost = r.parked.Error(), r.parked.Lost
	case r.rn == nil && !r.seal.active():
		s.Parked = r.idle
	}
	return s
}

// durable is the last entry that is durable here.
func (r *Replica) durable() ids.Index {
	if !r.log.Async() {
		return r.synced
	}
	synced, _ := r.log.Synced()
	return min(r.synced, synced)
}

// masterStatus adds what a follower knows of its master.
func (r *Replica) masterStatus(s *Status) {
	s.MasterSilent, s.MasterClosed = 0, false
	if !r.leading {
		s.MasterSilent, s.MasterClosed = r.since(r.masterHeard), r.masterClosed
	}
}

// memberStatus adds the members' figures.
func (r *Replica) memberStatus(s *Status) {
	r.refresh()
	second := int64(time.Second / r.cfg.Tick)
	r.masterStatus(s)
	list := func(members []Member, voters bool) (out []MemberStatus) {
		for _, m := range members {
			ms := MemberStatus{Member: m}
			if m.ID == r.cfg.Replica {
				ms.Heard, ms.Match = r.rn != nil, r.synced
			} else if p := r.members[m.ID]; p != nil {
				ms.Heard = p.heard >= 0 && r.ticks-p.heard <= second
				if r.leading {
					ms.Match, ms.Behind = p.match, p.behind
					ms.Stalled, ms.CaughtUp, ms.Closed = r.stalled(p), r.caughtUp(p), p.closed
				}
			}
			if voters && ms.Heard {
				s.Heard++
			}
			out = append(out, ms)
		}
		return out
	}
	s.Heard = 0
	s.Voters, s.Learners = list(r.record.Voters, true), list(r.record.Learners, false)
}

// shutDown settles what waits, at the end of the process life.
func (r *Replica) shutDown() {
	r.form.abandonAll(r.sm)
	r.reads.fail(ErrClosed)
	r.rn, r.leading, r.lead = nil, false, 0
	if r.parked == nil {
		r.parked = &ParkedError{Reason: "the group is closed"}
	}
	r.endTransfer()
}
