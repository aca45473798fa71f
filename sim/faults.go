package sim

import (
	"slices"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
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
	if s.chance(s.p.Reset) && n.Up {
		s.disconnect(n)
	}
	if s.chance(s.p.Pause) && n.Up {
		s.pause(n)
	}
	if s.chance(s.p.Controller) {
		s.controllerFault()
	}
	if s.p.Adversary && s.chance(s.p.Epoch) {
		s.issue()
	}
	if s.p.Informs && s.chance(s.p.Inform) && n.Up {
		s.inform(n)
	}
	if s.pausedFor(n) > 0 {
		return
	}
	if s.p.Adversary && s.chance(s.p.Campaign) && n.Up {
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
	if s.chance(s.p.Cut) && n.Up && n.failed == nil {
		s.cutFront(n)
	}
	s.settleDisk(n)
}

// handover is asked for and not done, as long as that process lives.
type handover struct {
	n    *Node
	life *commitlog.Log
}

// transfer asks n to hand its mastership to any replica.
func (s *schedule) transfer(n *Node) {
	to := s.w.Nodes[s.r.IntN(len(s.w.Nodes))].ID
	s.w.Tracef("n%d is told to hand over to %d", n.ID, to)
	h := &handover{n, n.Log}
	s.handing[h] = true
	n.Transfer(to, func(err error) {
		delete(s.handing, h)
		s.w.Tracef("n%d hands over to %d: %v", n.ID, to, err)
	})
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

// controllerFault takes the controllers' leader away for a while, lets another one lead, or cuts a node off from them.
func (s *schedule) controllerFault() {
	c := s.c
	switch {
	case c.lead == nil:
		c.elect()
	case s.chance(0.4):
		c.elect()
	case s.chance(0.5):
		c.stop()
		s.after(s.between(50_000, 4_000_000), func() {
			if c.lead == nil {
				c.elect()
			}
		})
	default:
		n := s.w.Nodes[s.r.IntN(len(s.w.Nodes))]
		s.silent[n.ID] = !s.silent[n.ID]
		s.w.Tracef("n%d is cut off from the controllers: %t", n.ID, s.silent[n.ID])
	}
}

// issue is the adversary: it wants any voters, mostly ones that are near those of a recent epoch. The controllers' rules have the
// last word.
func (s *schedule) issue() {
	c := s.c
	list := c.records[max(0, len(c.records)-3):]
	base := idsOf(list[s.r.IntN(len(list))].Voters)
	var voters []ids.ReplicaID
	changes := 1 + s.r.IntN(2)
	wild := s.chance(0.2)
	for _, k := range s.r.Perm(len(s.w.Nodes)) {
		id := s.w.Nodes[k].ID
		in := slices.Contains(base, id)
		if wild && s.chance(0.5) || !wild && changes > 0 && s.chance(0.5) {
			in = !in
			changes--
		}
		if in {
			voters = append(voters, id)
		}
	}
	slices.Sort(voters)
	cmd := controller.NewEpoch(s.w.Group, c.newest().Epoch, voters, "an adversary")
	s.after(s.between(s.p.ApplyMin, s.p.ApplyMax), func() {
		if !s.calm {
			_ = c.apply(cmd) // most are refused
		}
	})
}

// inform gives a record to a replica, mostly the newest.
func (s *schedule) inform(n *Node) {
	c := s.c
	k := len(c.records) - 1
	if s.chance(0.2) {
		k = s.r.IntN(len(c.records))
	}
	s.adopt(n, c.records[k])
}

// pause stops a process for a while, as a signal or a busy machine does.
func (s *schedule) pause(n *Node) {
	d := s.between(10_000, 2_500_000)
	s.paused[n.ID] = s.w.Now + d
	s.w.Tracef("n%d is paused for %d ms", n.ID, d/1000)
}

// pausedFor is how long the process of n does nothing yet.
func (s *schedule) pausedFor(n *Node) int64 { return max(0, s.paused[n.ID]-s.w.Now) }

// disconnect closes the connections of n with the other nodes, on their side.
func (s *schedule) disconnect(n *Node) {
	for _, other := range s.w.Nodes {
		if other == n || s.cut[[2]ids.ReplicaID{n.ID, other.ID}] || s.cut[[2]ids.ReplicaID{other.ID, n.ID}] {
			continue
		}
		life := other.Log
		var closed func()
		closed = func() {
			if d := s.pausedFor(other); d > 0 {
				s.after(d, closed)
			} else if other.Up && other.Log == life {
				s.w.Tracef("n%d loses its connection to n%d", other.ID, n.ID)
				other.PeerDown(n)
				s.settleDisk(other)
			}
		}
		s.after(s.between(s.p.DelayMin, s.p.DelayMax), closed)
	}
}
