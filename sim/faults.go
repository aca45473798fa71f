package sim

import (
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// fault is one step of what may go wrong.
func (s *schedule) fault() {
	if s.calm {
		return
	}
	s.after(s.p.Fault, s.fault)
	n := s.w.Nodes[s.r.IntN(len(s.w.Nodes))]
	if s.chance(s.p.Crash) && n.Up {
		if s.chance(0.5) {
			s.powerCut(n)
		} else {
			s.kill(n)
		}
	}
	if n.Up && s.w.Check.mayPark[n.ID] && s.chance(0.1) {
		s.kill(n) // an operator restarts what has parked
	}
	if s.chance(s.p.Partition) {
		s.partition()
	}
	if s.chance(s.p.FailSync) && n.Up {
		n.failSync = true
		s.w.Check.mayPark[n.ID] = true
	}
	if s.chance(s.p.Epoch) {
		s.issue()
	}
	if s.chance(0.3) && n.Up {
		s.inform(n)
	}
	if s.chance(s.p.Campaign) && n.Up {
		s.w.Tracef("n%d is told to campaign", n.ID)
		n.Campaign()
	}
	if s.chance(s.p.Checkpoint) && n.Up {
		s.checkpoint(n)
	}
	if s.chance(0.3) && n.Up {
		s.fillAhead(n)
	}
	if s.chance(s.p.Transfer) && n.Up {
		s.transfer(n)
	}
	s.settleDisk(n)
}

// transfer asks n to hand its mastership to any replica.
func (s *schedule) transfer(n *Node) {
	to := s.w.Nodes[s.r.IntN(len(s.w.Nodes))].ID
	s.w.Tracef("n%d is told to hand over to %d", n.ID, to)
	n.Transfer(to, func(err error) { s.w.Tracef("n%d hands over to %d: %v", n.ID, to, err) })
}

// fillAhead prepares the log's space, as the background loop of a node does. A failure is no fault of the replica's.
func (s *schedule) fillAhead(n *Node) {
	for more := true; more; {
		var err error
		if more, err = n.Log.FillAhead(); err != nil {
			s.w.Tracef("n%d: fill ahead: %v", n.ID, err)
			s.w.Check.mayPark[n.ID] = true
			break
		}
	}
	if n.powerAfter < 0 {
		s.powerCut(n)
	}
}

// checkpoint renews the durable bound, and keeps what the state machine has.
func (s *schedule) checkpoint(n *Node) {
	if n.failed != nil {
		return
	}
	if s.chance(0.5) {
		n.Machine.TakeSnapshot()
	}
	if err := n.Writer.Checkpoint(); err != nil {
		n.failed = err
		n.written = append(n.written, writtenJobs{nil, err})
		s.w.Check.mayPark[n.ID] = true
		n.Complete()
	}
	if n.powerAfter < 0 {
		s.powerCut(n)
	}
}

// partition cuts some directions, or mends all.
func (s *schedule) partition() {
	if len(s.cut) > 0 && s.chance(0.5) {
		clear(s.cut)
		s.w.Tracef("the network is whole")
		return
	}
	a := s.w.Nodes[s.r.IntN(len(s.w.Nodes))].ID
	for _, b := range s.w.Nodes {
		if b.ID == a {
			continue
		}
		if in := s.chance(0.7); in {
			s.cut[[2]ids.ReplicaID{a, b.ID}] = true
		}
		if out := s.chance(0.7); out {
			s.cut[[2]ids.ReplicaID{b.ID, a}] = true
		}
	}
	s.w.Tracef("n%d is cut off in some directions", a)
}

// issue makes the next epoch: one voter is added, removed or replaced, and every majority of it meets every majority of each
// epoch from the last active one on.
func (s *schedule) issue() {
	cur := s.hist[len(s.hist)-1].rec
	var voters []ids.ReplicaID
	for _, m := range cur.Voters {
		voters = append(voters, m.ID)
	}
	var others []ids.ReplicaID
	for _, n := range s.w.Nodes {
		if !slices.Contains(voters, n.ID) {
			others = append(others, n.ID)
		}
	}
	if len(voters) > 1 && s.chance(0.5) {
		k := s.r.IntN(len(voters))
		voters = slices.Delete(voters, k, k+1)
	}
	if len(others) > 0 && s.chance(0.5) {
		voters = append(voters, others[s.r.IntN(len(others))])
	}
	for i := len(s.hist) - 1; i >= 0; i-- {
		if !Overlap(voters, s.hist[i].rec) {
			return
		}
		if s.hist[i].active {
			break
		}
	}
	var learners []ids.ReplicaID
	for _, n := range s.w.Nodes {
		if !slices.Contains(voters, n.ID) && s.chance(0.8) {
			learners = append(learners, n.ID)
		}
	}
	rec := s.w.Record(cur.Epoch+1, s.p.A, 1, voters, learners)
	s.hist = append(s.hist, issued{rec: rec})
	s.epochs++
	s.w.Tracef("epoch %d: voters %v learners %v", rec.Epoch, voters, learners)
	if n := s.w.Nodes[s.r.IntN(len(s.w.Nodes))]; n.Up {
		s.inform(n)
	}
}

// Overlap tells whether every majority of voters meets every majority of the voters of rec.
func Overlap(voters []ids.ReplicaID, rec raftlog.EpochRecord) bool {
	common := 0
	for _, id := range voters {
		if rec.IsVoter(id) {
			common++
		}
	}
	na, nb := len(voters), len(rec.Voters)
	needA, needB := max(0, na/2+1-(na-common)), max(0, nb/2+1-(nb-common))
	return needA+needB > common
}

// inform gives n the newest record.
func (s *schedule) inform(n *Node) {
	rec := s.hist[len(s.hist)-1].rec
	if err := n.Adopt(rec); err != nil && n.Replica.Parked() == nil {
		s.fail("replica %d refuses the record of epoch %d: %v", n.ID, rec.Epoch, err)
	}
}
