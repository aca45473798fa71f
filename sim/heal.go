package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Bounds of the second phase, in virtual microseconds. A leader of the controllers that remembers how often replicas came and went
// lets each wait for up to a minute until it votes again; a new one does not.
const (
	healFresh = 60_000_000
	healKept  = 300_000_000
	healthy   = 3_000_000 // for so long a group that is well must stay as it is
)

// heal ends the faults and waits for the groups to be well again, without a hand.
func (s *schedule) heal() {
	s.calm, s.c.decide = true, true
	s.p.DelayMax, s.p.DiskMax, s.p.ApplyMax = min(s.p.DelayMax, 3_000), min(s.p.DiskMax, 3_000), min(s.p.ApplyMax, 30_000)
	s.drop = nil
	clear(s.cut)
	s.Tracef("the faults end")
	bound := int64(healKept)
	if s.p.Fresh || !s.p.Decides || s.c.lead == nil {
		bound = healFresh
		s.c.elect()
	}
	for _, h := range s.Hosts {
		h.powerAfter, h.failSync, h.full, h.silent, h.paused = 0, false, false, false, 0
		for _, n := range slices.Clone(h.Nodes) {
			s.inspect(n)
		}
		// A failure that the replica has not heard of yet parks it too, with its next write.
		if h.running && slices.ContainsFunc(h.Nodes, func(n *Node) bool {
			return n.Up && (n.Replica.Parked() != nil || n.failed != nil || n.Log.Poisoned() != nil)
		}) {
			h.end()
			s.disconnect(h)
		}
		if !h.running {
			s.open(h)
		}
		if s.Err != nil {
			return
		}
		for _, n := range h.Nodes {
			s.settleDisk(n)
		}
	}
	for _, w := range s.worlds {
		w.begun = len(w.ops)
	}
	begin := s.Now
	if s.until(bound, func() bool { return s.ill() == "" }) {
		s.healed = s.Now - begin
		var before []string
		for _, w := range s.worlds {
			before = append(before, w.reign())
		}
		s.until(healthy, func() bool { return false })
		for i, w := range s.worlds {
			if now := w.reign(); s.Err == nil && now != before[i] {
				s.fail("group %s, which is well, goes from %s to %s", w.name, before[i], now)
			}
		}
	} else if s.Err == nil {
		s.fail("after %d virtual ms without faults %s: %s", bound/1000, s.ill(), s.status())
	}
	s.ended = true // no more operations: now all must have all
	if s.Err == nil && !s.until(healthy, func() bool { return s.lagging() == 0 }) && s.Err == nil {
		s.fail("replica %d does not catch up: %s", s.lagging(), s.status())
	}
	if s.Err == nil {
		s.judge()
	}
}

// judge compares the logs of each group, at the end.
func (s *schedule) judge() {
	for _, w := range s.worlds {
		w.Check.Final(w, w.newest(), w.ops)
	}
}

// reign tells who leads in which epoch.
func (w *World) reign() string {
	return fmt.Sprintf("epoch %d and master %d", w.newest().Epoch, w.master())
}

// ill tells what is missing until all groups are well; "" when nothing is.
func (s *schedule) ill() string {
	for _, w := range s.worlds {
		if what := s.illOf(w); what != "" {
			return fmt.Sprintf("group %s: %s", w.name, what)
		}
	}
	for h := range s.handing {
		if h.n.Log == h.life {
			return fmt.Sprintf("replica %d is handing over", h.n.ID)
		}
	}
	if s.c.applyAt > s.Now { // of what was decided when a group was not well yet
		return "a command of the controllers is on its way"
	}
	return ""
}

// illOf tells what is missing until a group is well: as many voters as the mode has, all others learning, one master that the
// controllers know, an operation acknowledged in this phase and epoch, and all that was ever acknowledged applied everywhere.
func (s *schedule) illOf(w *World) string {
	rec, g := w.newest(), s.c.group(w)
	switch n := int(g.ModeVoters); {
	case len(rec.Voters) != n || len(rec.Voters)+len(rec.Learners) != int(g.Members) || uint32(rec.A) != g.Answers || uint32(rec.MinISR) != g.MinIsr:
		return fmt.Sprintf("epoch %d has %d voters and %d learners, A %d and min ISR %d in mode %d-%d with %d", rec.Epoch, len(rec.Voters), len(rec.Learners), rec.A, rec.MinISR,
			g.Answers, g.Members, g.MinIsr)
	case len(g.Changing) > 0:
		return strings.Join(g.Changing, ", ")
	case w.active != rec.Epoch:
		return fmt.Sprintf("epoch %d is not active", rec.Epoch)
	}
	master := w.master()
	if master == 0 {
		return "there is not one master"
	}
	if m := g.Master; !m.GetLive() || ids.ReplicaID(m.GetReplicaId()) != master {
		return fmt.Sprintf("replica %d is master, the controllers know %d", master, m.GetReplicaId())
	}
	if id := w.lagging(); id != 0 {
		return fmt.Sprintf("replica %d lags", id)
	}
	for _, n := range w.Nodes {
		if n.rotten && !n.gone {
			return fmt.Sprintf("a bit of the log of replica %d has flipped", n.ID)
		}
	}
	for _, op := range w.ops[w.begun:] {
		if op.State == Acked && op.Term.Epoch() == rec.Epoch {
			return ""
		}
	}
	return "nothing was acknowledged"
}

// lagging is a replica that is not in the newest epoch, or has not applied all that was acknowledged; 0 when there is none.
func (w *World) lagging() ids.ReplicaID {
	for _, n := range w.Nodes {
		if !n.gone && (!n.Up || n.Replica.Record().Epoch != w.newest().Epoch || n.Status().Applied < w.Check.MaxAcked) {
			return n.ID
		}
	}
	return 0
}

func (s *schedule) lagging() ids.ReplicaID {
	for _, w := range s.worlds {
		if id := w.lagging(); id != 0 {
			return id
		}
	}
	return 0
}

// master is the one replica that leads; 0 when none or more than one does.
func (w *World) master() (master ids.ReplicaID) {
	for _, n := range w.Nodes {
		if n.Up && n.Machine.master {
			if master != 0 {
				return 0
			}
			master = n.ID
		}
	}
	return master
}

// status is one line for an error.
func (s *schedule) status() string {
	var state []string
	for _, w := range s.worlds {
		state = append(state, s.statusOf(w))
	}
	return strings.Join(state, "; ")
}

func (s *schedule) statusOf(w *World) string {
	g := s.c.group(w)
	state := []string{fmt.Sprintf("%s epoch %d active %d voters %v stuck %q changing %q", w.name, g.Epoch, g.ActiveEpoch, idsOf(w.newest().Voters), g.Stuck, g.Changing)}
	for _, n := range w.Nodes {
		if n.Up {
			st := n.Status()
			state = append(state, fmt.Sprintf("r%d %s term %s epoch %d applied %d commit %d last %d parked %q", n.ID, st.Role, st.Term, st.Epoch, st.Applied, st.Commit, st.Last, st.Parked))
		} else if !n.gone {
			state = append(state, fmt.Sprintf("r%d is not open, lost %q missing %t damage %v", n.ID, n.lost, n.missing, n.damage))
		}
	}
	return strings.Join(state, "; ")
}
