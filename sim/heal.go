package sim

import (
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Bounds of the second phase, in virtual microseconds. A leader of the controllers that remembers how often replicas came and went
// lets each wait for up to a minute until it votes again; a new one does not.
const (
	healFresh = 60_000_000
	healKept  = 300_000_000
	healthy   = 3_000_000 // for so long a group that is well must stay as it is
)

// heal ends the faults and waits for the group to be well again, without a hand.
func (s *schedule) heal() {
	s.calm, s.c.decide = true, true
	s.p.DelayMax, s.p.DiskMax, s.p.ApplyMax = min(s.p.DelayMax, 3_000), min(s.p.DiskMax, 3_000), min(s.p.ApplyMax, 30_000)
	s.drop = nil
	clear(s.cut)
	clear(s.silent)
	clear(s.paused)
	s.w.Tracef("the faults end")
	bound := int64(healKept)
	if s.p.Fresh || !s.p.Decides || s.c.lead == nil {
		bound = healFresh
		s.c.elect()
	}
	for _, n := range s.w.Nodes {
		n.powerAfter, n.failSync = 0, false
		// A failure that the replica has not heard of yet parks it too, with its next write.
		if n.Up && (n.Replica.Parked() != nil || n.failed != nil || n.Log.Poisoned() != nil) {
			n.Kill()
			s.disconnect(n)
		}
		if !n.Up {
			s.open(n)
		}
		if s.w.Check.Err != nil {
			return
		}
		s.settleDisk(n)
	}
	s.begun = len(s.ops)
	begin := s.w.Now
	if s.until(bound, func() bool { return s.ill() == "" }) {
		s.healed = s.w.Now - begin
		master, epoch := s.master(), s.c.newest().Epoch
		s.until(healthy, func() bool { return false })
		if m, e := s.master(), s.c.newest().Epoch; s.w.Check.Err == nil && (m != master || e != epoch) {
			s.fail("a group that is well goes from epoch %d and master %d to %d and %d", epoch, master, e, m)
		}
	} else if s.w.Check.Err == nil {
		s.fail("after %d virtual ms without faults %s: %s", bound/1000, s.ill(), s.status())
	}
	s.ended = true // no more operations: now all must have all
	if s.w.Check.Err == nil && !s.until(healthy, func() bool { return s.lagging() == 0 }) && s.w.Check.Err == nil {
		s.fail("replica %d does not catch up: %s", s.lagging(), s.status())
	}
	if s.w.Check.Err == nil {
		s.w.Check.Final(s.w, s.c.newest(), s.ops)
	}
}

// ill tells what is missing until the group is well: as many voters as the mode has, all others learning, one master that the
// controllers know, an operation acknowledged in this phase and epoch, and all that was ever acknowledged applied everywhere.
func (s *schedule) ill() string {
	rec := s.c.newest()
	switch n := controller.Voters(s.p.A, s.p.M); {
	case len(rec.Voters) < n || len(rec.Voters) > n && !s.p.Adversary || len(rec.Voters)+len(rec.Learners) != s.p.M:
		return fmt.Sprintf("epoch %d has %d voters and %d learners in mode %d-%d", rec.Epoch, len(rec.Voters), len(rec.Learners), s.p.A, s.p.M)
	case s.c.active != rec.Epoch:
		return fmt.Sprintf("epoch %d is not active", rec.Epoch)
	}
	master := s.master()
	if master == 0 {
		return "there is not one master"
	}
	if m := s.c.group().Master; !m.GetLive() || ids.ReplicaID(m.GetReplicaId()) != master {
		return fmt.Sprintf("replica %d is master, the controllers know %d", master, m.GetReplicaId())
	}
	if id := s.lagging(); id != 0 {
		return fmt.Sprintf("replica %d lags", id)
	}
	for h := range s.handing {
		if h.n.Log == h.life {
			return fmt.Sprintf("replica %d is handing over", h.n.ID)
		}
	}
	for _, op := range s.ops[s.begun:] {
		if op.State == Acked && op.Term.Epoch() == rec.Epoch {
			return ""
		}
	}
	return "nothing was acknowledged"
}

// lagging is a replica that is not in the newest epoch, or has not applied all that was acknowledged; 0 when there is none.
func (s *schedule) lagging() ids.ReplicaID {
	for _, n := range s.w.Nodes {
		if !n.Up || n.Replica.Record().Epoch != s.c.newest().Epoch || n.Status().Applied < s.w.Check.MaxAcked {
			return n.ID
		}
	}
	return 0
}

// master is the one replica that leads; 0 when none or more than one does.
func (s *schedule) master() (master ids.ReplicaID) {
	for _, n := range s.w.Nodes {
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
	g := s.c.group()
	state := []string{fmt.Sprintf("epoch %d active %d voters %v stuck %q", g.Epoch, g.ActiveEpoch, idsOf(s.c.newest().Voters), g.Stuck)}
	for _, n := range s.w.Nodes {
		if n.Up {
			st := n.Status()
			state = append(state, fmt.Sprintf("n%d %s term %s epoch %d applied %d commit %d last %d parked %q", n.ID, st.Role, st.Term, st.Epoch, st.Applied, st.Commit, st.Last, st.Parked))
		}
	}
	return strings.Join(state, "; ")
}
