package sim

import (
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// heal ends the faults and waits for the group to work again.
func (s *schedule) heal() {
	s.calm = true
	s.p.DelayMax, s.p.DiskMax = min(s.p.DelayMax, 3_000), min(s.p.DiskMax, 3_000)
	clear(s.cut)
	s.w.Tracef("the faults end")
	for _, n := range s.w.Nodes {
		n.powerAfter, n.failSync = 0, false
		// A failure that the replica has not heard of yet parks it too, with its next write.
		if n.Up && (n.Replica.Parked() != nil || n.failed != nil || n.Log.Poisoned() != nil) {
			n.Kill()
		}
		if !n.Up {
			s.open(n)
		}
		if s.w.Check.Err != nil {
			return
		}
		s.inform(n)
		s.settleDisk(n)
	}
	s.begun = len(s.ops)
	rec := s.hist[len(s.hist)-1].rec
	if !s.until(s.p.Liveness, func() bool { return s.converged(rec) }) && s.w.Check.Err == nil {
		var state []string
		for _, n := range s.w.Nodes {
			if n.Up {
				st := n.Status()
				state = append(state, fmt.Sprintf("n%d %s term %s epoch %d applied %d commit %d last %d parked %q", n.ID, st.Role, st.Term, st.Epoch, st.Applied, st.Commit, st.Last, st.Parked))
			}
		}
		s.fail("no convergence within %d virtual ms after the faults: %s", s.p.Liveness/1000, strings.Join(state, "; "))
	}
	if s.w.Check.Err == nil {
		s.w.Check.Final(s.w, rec, s.ops)
	}
}

// ackedSince returns the highest index that was acknowledged in the second phase, 0 when none was.
func (s *schedule) ackedSince() (acked ids.Index) {
	for _, op := range s.ops[s.begun:] {
		if op.State == Acked {
			acked = max(acked, op.Index)
		}
	}
	return acked
}

// converged tells whether the newest epoch has a master that acknowledged an operation of this phase and all members have
// applied all that was ever acknowledged.
func (s *schedule) converged(rec raftlog.EpochRecord) bool {
	if s.ackedSince() == 0 {
		return false
	}
	for _, n := range s.w.Nodes {
		if _, ok := rec.Member(n.ID); !ok {
			continue
		}
		if !n.Up || n.Replica.Record().Epoch != rec.Epoch || n.Status().Applied < s.w.Check.MaxAcked {
			return false
		}
	}
	return true
}
