package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// This file has the rules by which a SyncStateSet may change. They are pure; where a command is applied they decide, and where
// the leader chooses what to propose it asks them first.
//
// A majority of the voters elects and a majority commits. The next epoch's voters may only be such that every majority of them
// meets every majority of every set since the last active epoch: then whoever is elected has all that was committed.

// voterSet is the voters of one epoch, by id, sorted.
type voterSet []ids.ReplicaID

func (v voterSet) has(id ids.ReplicaID) bool { return slices.Contains(v, id) }

func (v voterSet) with(id ids.ReplicaID) voterSet {
	out := append(slices.Clone(v), id)
	slices.Sort(out)
	return out
}

func (v voterSet) without(id ids.ReplicaID) voterSet {
	return slices.DeleteFunc(slices.Clone(v), func(other ids.ReplicaID) bool { return other == id })
}

func (v voterSet) String() string {
	var out []string
	for _, id := range v {
		out = append(out, fmt.Sprint(id))
	}
	return "{" + strings.Join(out, ",") + "}"
}

// majority is how many of n voters elect a master, and how many commit an entry.
func majority(n int) int { return n/2 + 1 }

// overlaps tells whether every majority of next meets every majority of old. It counts instead of trying all: a majority of next
// takes as few of the common voters as it can, and one of old takes none of those if enough others are left.
func overlaps(next, old voterSet) bool {
	common := 0
	for _, id := range next {
		if old.has(id) {
			common++
		}
	}
	taken := max(0, majority(len(next))-(len(next)-common))
	return majority(len(old)) > len(old)-taken
}

// oneApart tells whether b is a with at most one voter added and at most one removed.
func oneApart(a, b voterSet) bool {
	added, removed := 0, 0
	for _, id := range b {
		if !a.has(id) {
			added++
		}
	}
	for _, id := range a {
		if !b.has(id) {
			removed++
		}
	}
	return added <= 1 && removed <= 1
}

// mayIssue refuses voters that must not be the next epoch's.
func (g *groupEntry) mayIssue(next voterSet) error {
	fault := func(format string, args ...any) error {
		return refuse(ErrInvalid, "group %s: voters %v after epoch %d: %s", g.Name, next, g.Epoch, fmt.Sprintf(format, args...))
	}
	if g.Epoch == 0 {
		return fault("the group waits for %s", strings.Join(g.waitingFor(), ", "))
	}
	if !slices.IsSorted(next) || len(slices.Compact(slices.Clone(next))) != len(next) {
		return fault("a replica is named twice, or not in the order of ids")
	}
	if least := g.least(); len(next) < least {
		return fault("%d voters are fewer than %d, with a min ISR of %d", len(next), least, g.MinISR)
	}
	if len(next) > raftlog.MaxVoters {
		return fault("%d voters: at most %d", len(next), raftlog.MaxVoters)
	}
	current := g.voters()
	for _, id := range next {
		r := g.replica(id)
		switch {
		case r == nil:
			return fault("the group has no replica %d", id)
		case r.Incarnation.isZero():
			return fault("replica %d was not created yet", id)
		case r.Lost != "" && !current.has(id) && !g.Since[0].has(id):
			return fault("replica %d is lost: %s", id, r.Lost)
		case r.Learner && !current.has(id) && !g.Since[0].has(id):
			return fault("replica %d is kept a learner", id)
		}
	}
	if g.Active < g.Recovered && !slices.Equal(next, g.Since[0]) {
		return fault("the controllers were recovered: until a master leads in epoch %d no other voters than %v may follow", g.Recovered, g.Since[0])
	}
	if !oneApart(g.Since[0], next) {
		return fault("they differ by more than one voter from %v, those of epoch %d, the last active one", g.Since[0], g.Active)
	}
	for _, old := range g.Since {
		if !overlaps(next, old) {
			return fault("a majority of them may lack what a majority of %v has committed", old)
		}
	}
	return nil
}

// least is how many voters the next epoch has at least: the min ISR, or what the last active one had when that was fewer, as after
// an unclean election, or when the min ISR was raised together with the number of voters. Then the set may only grow.
func (g *groupEntry) least() int { return max(1, min(g.MinISR, len(g.Since[0]))) }

// staying is how many replicas the group is to have.
func (g *groupEntry) staying() (n int) {
	for _, r := range g.Replicas {
		if !r.Leaving {
			n++
		}
	}
	return n
}

// mayStay tells whether the replica is one that the mode wants to vote when it is well.
func (r *replicaEntry) mayStay() bool { return !r.Leaving && !r.Learner }

// modeVoters is how many voters the group has when all are well.
func (g *groupEntry) modeVoters() int {
	n := 0
	for i := range g.Replicas {
		if g.Replicas[i].mayStay() {
			n++
		}
	}
	return min(n, Voters(g.Answers, g.Members))
}

// stay is how many of the voters need not leave for an operator's sake.
func (g *groupEntry) stay(voters voterSet) (n int) {
	for _, id := range voters {
		if r := g.replica(id); r != nil && r.mayStay() {
			n++
		}
	}
	return n
}

// learns tells whether the replica is in a record with these voters, though it is none of them. One that leaves the group goes on
// learning while voters are missing: it may have to come back until another one has caught up.
func (g *groupEntry) learns(r *replicaEntry, voters voterSet) bool {
	return !voters.has(r.ID) && r.Lost == "" && !r.Incarnation.isZero() && (!r.Leaving || g.stay(voters) < g.modeVoters())
}

// minISRWith is the min ISR that is in force with so many voters.
func (g *groupEntry) minISRWith(voters int) int { return min(g.MinISR, voters) }

// modeInForce tells whether the newest record says what the group's mode is.
func (g *groupEntry) modeInForce() bool {
	return int(g.Record.A) == g.Answers && int(g.Record.MinISR) == g.minISRWith(len(g.Record.Voters))
}

// voters returns those of the newest epoch.
func (g *groupEntry) voters() voterSet {
	if g.Record == nil {
		return nil
	}
	var out voterSet
	for _, m := range g.Record.Voters {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return out
}

// issue makes the next epoch with these voters, in the mode that the group has now.
func (s *State) issue(g *groupEntry, voters voterSet) {
	record := raftlog.EpochRecord{
		Cluster:     ids.ClusterID(s.cluster.Cluster),
		Group:       ids.GroupID(g.ID),
		Epoch:       g.Epoch + 1,
		A:           uint8(g.Answers),
		MinISR:      uint8(g.minISRWith(len(voters))),
		SegmentSize: g.SegmentSize,
	}
	for i := range g.Replicas {
		r := &g.Replicas[i]
		m := raftlog.Member{ID: r.ID, Slot: r.Slot, Node: r.Node, Incarnation: ids.Incarnation(r.Incarnation)}
		switch {
		case voters.has(r.ID):
			record.Voters = append(record.Voters, m)
		case g.learns(r, voters):
			record.Learners = append(record.Learners, m)
		}
	}
	g.Epoch++
	g.Record = issued(record)
	if !slices.ContainsFunc(g.Since, func(v voterSet) bool { return slices.Equal(v, voters) }) {
		g.Since = append(g.Since, voters)
	}
}

// activate notes that a master of the newest epoch has committed an entry of its own in it.
func (g *groupEntry) activate() {
	g.Active = g.Epoch
	g.Since = []voterSet{g.voters()}
}

// maxChanges bounds how many changes of membership a group remembers.
const maxChanges = 8

// change is one epoch as an operator wants to see it.
type change struct {
	Epoch  ids.Epoch `json:"epoch"`
	Voters voterSet  `json:"voters"`
	Reason string    `json:"reason"`
	Millis int64     `json:"millis"` // by the clock of the controller that proposed it, since 1970
	// Unclean: what only other replicas had is not in the log any more.
	Unclean bool `json:"unclean,omitempty"`
}

// remember notes a change, and forgets the oldest.
func (g *groupEntry) remember(c change) {
	g.Changes = append(g.Changes, c)
	if n := len(g.Changes); n > maxChanges {
		g.Changes = slices.Clone(g.Changes[n-maxChanges:])
	}
}

// issueEpochCommand is the next epoch of a group.
type issueEpochCommand struct {
	Group  hexID     `json:"group"`
	Epoch  ids.Epoch `json:"epoch"` // the newest one that the proposer saw: compare-and-set
	Voters voterSet  `json:"voters"`
	Reason string    `json:"reason"`
	Millis int64     `json:"millis"`
}

func (*issueEpochCommand) commandType() byte { return typeIssueEpoch }

func (s *State) applyIssueEpoch(c *issueEpochCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	switch {
	case g == nil:
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	case g.Epoch != c.Epoch:
		return refuse(ErrStale, "group %s: epoch %d is the newest, the change was meant for %d: look again", g.Name, g.Epoch, c.Epoch)
	case len(c.Reason) > maxReportText:
		return refuse(ErrInvalid, "group %s: a reason of %d bytes: at most %d", g.Name, len(c.Reason), maxReportText)
	}
	if err := g.mayIssue(c.Voters); err != nil {
		return err
	}
	s.issue(g, c.Voters)
	g.remember(change{Epoch: g.Epoch, Voters: c.Voters, Reason: c.Reason, Millis: c.Millis})
	s.touchGroup(g)
	return nil
}
