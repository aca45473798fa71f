package sim

import (
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// This file is a naive twin of the controllers' rules, for the checker.

func (c *Verdict) rule(format string, args ...any) {
	if c.Rule == nil {
		c.Rule = fmt.Errorf(format, args...)
	}
}

// issued judges a record by those before it: every majority of its voters must meet every majority of every epoch from the last
// active one on, its voters differ from those of that one by one added and one removed at most, and there are as many as the min ISR
// that is wanted, or as that one had.
func (c *Checker) issued(before []raftlog.EpochRecord, active ids.Epoch, rec raftlog.EpochRecord, minISR int) {
	if int(rec.Epoch) != len(before)+1 {
		c.rule("epoch %d follows epoch %d", rec.Epoch, len(before))
		return
	}
	if len(rec.Voters) < int(rec.MinISR) {
		c.rule("epoch %d has %d voters, the min ISR is %d", rec.Epoch, len(rec.Voters), rec.MinISR)
	}
	if active == 0 || rec.Epoch == c.unclean {
		return
	}
	since := before[active-1:]
	if n := min(minISR, len(since[0].Voters)); len(rec.Voters) < n || int(rec.MinISR) < n {
		c.rule("epoch %d has %d voters and a min ISR of %d, %d are wanted and %d were in epoch %d", rec.Epoch, len(rec.Voters), rec.MinISR, minISR, len(since[0].Voters), active)
	}
	for _, old := range since {
		if !overlap(rec, old) {
			c.rule("epoch %d with the voters %v does not meet epoch %d with %v; epoch %d is the last active one", rec.Epoch, idsOf(rec.Voters), old.Epoch, idsOf(old.Voters), active)
		}
	}
	if a, b := only(rec, since[0]), only(since[0], rec); a > 1 || b > 1 {
		c.rule("epoch %d with the voters %v adds %d and removes %d, since epoch %d with %v was active", rec.Epoch, idsOf(rec.Voters), a, b, active, idsOf(since[0].Voters))
	}
}

// activated demands that a master of that epoch has applied an entry of its own. Epoch 1 counts as active.
func (c *Checker) activated(epoch ids.Epoch) {
	for term := range c.masters {
		if term.Epoch() == epoch {
			return
		}
	}
	if epoch > 1 && epoch != c.unclean {
		c.rule("epoch %d is noted as active and never had a master", epoch)
	}
}

// overlap tries all majorities of the one against all of the other.
func overlap(a, b raftlog.EpochRecord) bool {
	for _, q := range majorities(a) {
		for _, w := range majorities(b) {
			if !meet(q, w) {
				return false
			}
		}
	}
	return true
}

// majorities are all sets of more than half of the voters.
func majorities(rec raftlog.EpochRecord) (out [][]ids.ReplicaID) {
	for mask := range 1 << len(rec.Voters) {
		var set []ids.ReplicaID
		for i, m := range rec.Voters {
			if mask>>i&1 != 0 {
				set = append(set, m.ID)
			}
		}
		if 2*len(set) > len(rec.Voters) {
			out = append(out, set)
		}
	}
	return out
}

func meet(a, b []ids.ReplicaID) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				return true
			}
		}
	}
	return false
}

// only counts the voters of a that b does not have.
func only(a, b raftlog.EpochRecord) (n int) {
	for _, m := range a.Voters {
		if !b.IsVoter(m.ID) {
			n++
		}
	}
	return n
}
