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
	h := s.anyHost()
	if s.chance(s.p.Crash) && h.running {
		if s.chance(0.5) && s.mayCut(h) {
			s.powerCut(h)
		} else {
			s.kill(h)
		}
	}
	if h.running && slices.ContainsFunc(h.Nodes, func(n *Node) bool { return n.w.Check.mayPark[n.ID] }) && s.chance(0.1) {
		s.kill(h) // an operator restarts what has parked
	}
	if s.chance(s.p.Partition) {
		s.partition()
	}
	if s.chance(s.p.FailSync) && h.running && s.mayCut(h) {
		h.lostSync = s.chance(0.5)
		h.FailSync()
	}
	if s.chance(s.p.Full) && h.running && !h.full {
		s.fill(h)
	}
	if s.chance(s.p.Blackout) {
		s.blackout()
	}
	if s.chance(s.p.Wipe) {
		s.wipe(h)
	}
	if s.chance(s.p.Reset) && h.running {
		s.disconnect(h)
	}
	if s.chance(s.p.Pause) && h.running {
		s.pause(h)
	}
	if s.chance(s.p.Clock) {
		by := s.between(1_000, 1<<s.between(11, 33))
		if s.chance(0.5) {
			by = -by
		}
		s.step(h, by)
	}
	if s.chance(s.p.Controller) {
		s.controllerFault()
	}
	for _, w := range s.worlds {
		if s.p.Adversary && s.chance(s.p.Epoch) {
			s.issue(w)
		}
		if s.chance(s.p.Operate) {
			s.operate(w)
		}
	}
	for _, n := range h.Nodes {
		s.faultAt(n)
	}
}

func (s *schedule) anyHost() *Host { return s.Hosts[s.r.IntN(len(s.Hosts))] }

// faultAt is the part of a fault step for one replica of the machine.
func (s *schedule) faultAt(n *Node) {
	if s.p.Informs && s.chance(s.p.Inform) && n.Up {
		s.inform(n)
	}
	if s.pausedFor(n.Host) > 0 {
		return
	}
	if s.p.Adversary && s.chance(s.p.Campaign) && n.Up {
		s.Tracef("r%d is told to campaign", n.ID)
		n.Campaign()
	}
	if s.chance(s.p.Checkpoint) && n.Up {
		s.checkpoint(n)
	}
	if s.chance(s.p.Flip) && n.Up && n.failed == nil {
		s.flip(n)
	}
	if s.chance(0.3) && n.Up {
		s.fillAhead(n)
	}
	if s.chance(s.p.Transfer) && n.Up {
		s.transfer(n)
	}
	if s.chance(s.p.Cut) && n.Up && n.failed == nil && !n.w.repairs() {
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
func (s *schedule) transfer(n *Node) { s.handOver(n, n.w.Nodes[s.r.IntN(len(n.w.Nodes))].ID) }

func (s *schedule) handOver(n *Node, to ids.ReplicaID) {
	s.Tracef("r%d is told to hand over to %d", n.ID, to)
	h := &handover{n, n.Log}
	s.handing[h] = true
	n.Transfer(to, func(err error) {
		delete(s.handing, h)
		s.Tracef("r%d hands over to %d: %v", n.ID, to, err)
	})
}

// fillAhead prepares the log's space, as the background loop of a node does. A failure is no fault of the replica's.
func (s *schedule) fillAhead(n *Node) {
	for more := true; more; {
		var err error
		if more, err = n.Log.FillAhead(); err != nil {
			s.Tracef("r%d: fill ahead: %v", n.ID, err)
			n.w.Check.mayPark[n.ID] = true
			break
		}
	}
	if n.powerAfter < 0 {
		s.powerCut(n.Host)
	}
}

// checkpoint renews the durable bound, and keeps what the state machine has.
func (s *schedule) checkpoint(n *Node) {
	if n.failed != nil {
		return
	}
	keep := s.chance(0.5)
	if err := n.Writer.Checkpoint(); err != nil {
		n.failed = err
		n.written = append(n.written, writtenJobs{nil, err})
		n.w.Check.mayPark[n.ID] = true
		n.Complete()
	} else if keep { // never ahead of what is durable of the log
		n.Machine.TakeSnapshot()
	}
	if n.powerAfter < 0 {
		s.powerCut(n.Host)
	}
}

// partition cuts some directions, or mends all.
func (s *schedule) partition() {
	if len(s.cut) > 0 && s.chance(0.5) {
		clear(s.cut)
		s.Tracef("the network is whole")
		return
	}
	a := s.anyHost()
	for _, b := range s.Hosts {
		if b == a {
			continue
		}
		if in := s.chance(0.7); in {
			s.cut[way{a, b}] = true
		}
		if out := s.chance(0.7); out {
			s.cut[way{b, a}] = true
		}
	}
	s.Tracef("%s is cut off in some directions", a.Name)
}

// controllerFault takes the controllers' leader away for a while, lets another one lead, or cuts a node off from them.
func (s *schedule) controllerFault() {
	c := s.c
	switch {
	case c.lead == nil:
		c.elect()
	case s.chance(0.4):
		c.elect()
	case s.chance(0.4):
		c.depose()
	case s.chance(0.5):
		c.stop()
		s.after(s.between(50_000, 4_000_000), func() {
			if c.lead == nil {
				c.elect()
			}
		})
	default:
		h := s.anyHost()
		h.silent = !h.silent
		s.Tracef("%s is cut off from the controllers: %t", h.Name, h.silent)
	}
}

// issue is the adversary: it wants any voters, mostly ones that are near those of a recent epoch. The controllers' rules have the
// last word.
func (s *schedule) issue(w *World) {
	c := s.c
	list := w.records[max(0, len(w.records)-3):]
	base := idsOf(list[s.r.IntN(len(list))].Voters)
	var voters []ids.ReplicaID
	changes := 1 + s.r.IntN(2)
	wild := s.chance(0.2)
	for _, k := range s.r.Perm(len(w.Nodes)) {
		id := w.Nodes[k].ID
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
	cmd := controller.NewEpoch(w.Group, w.newest().Epoch, voters, "an adversary")
	s.after(s.between(s.p.ApplyMin, s.p.ApplyMax), func() {
		if !s.calm {
			_ = c.apply(cmd) // most are refused
		}
	})
}

// inform gives a record to a replica, mostly the newest.
func (s *schedule) inform(n *Node) {
	k := len(n.w.records) - 1
	if s.chance(0.2) {
		k = s.r.IntN(len(n.w.records))
	}
	s.adopt(n, n.w.records[k])
}

// pause stops a process for a while, as a signal or a busy machine does.
func (s *schedule) pause(h *Host) {
	d := s.between(10_000, 2_500_000)
	h.paused = s.Now + d
	s.Tracef("%s is paused for %d ms", h.Name, d/1000)
}

// step sets the wall clock of a machine forward or back.
func (s *schedule) step(h *Host, by int64) {
	h.clock += by
	s.Tracef("the clock of %s steps to %d ms ahead", h.Name, h.clock/1000)
}

// pausedFor is how long the process of h does nothing yet.
func (s *schedule) pausedFor(h *Host) int64 { return max(0, h.paused-s.Now) }

// disconnect closes the connections of h with the other machines, on their side.
func (s *schedule) disconnect(h *Host) {
	for _, other := range s.Hosts {
		if other == h || s.cut[way{h, other}] || s.cut[way{other, h}] {
			continue
		}
		life := other.life
		var closed func()
		closed = func() {
			if d := s.pausedFor(other); d > 0 {
				s.after(d, closed)
				return
			}
			if !other.running || other.life != life {
				return
			}
			s.Tracef("%s loses its connection to %s", other.Name, h.Name)
			for _, n := range other.Nodes {
				if far := h.at(n.w); far != nil && n.Up {
					n.PeerDown(far)
					s.settleDisk(n)
				}
			}
		}
		s.after(s.between(s.p.DelayMin, s.p.DelayMax), closed)
	}
}
