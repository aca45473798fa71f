package controller

import (
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file has how a lost replica is followed by a new one. A replica that cannot prove what it holds gives up its id for ever: it
// may have acknowledged what it lacks. Its slot gets a new id, whose replica begins as an empty learner and shares no past with
// the old one:
//
//	lost ──leaves the voters (decide)──▶ out of the record ──renew──▶ new id, no folder ──its node makes one──▶ learner ──▶ voter
//
// Nobody has to do anything, unless the node itself is gone: then an operator names another one.

// giveUpCommand is an operator's word that a replica is lost. The group must be able to do without it.
type giveUpCommand struct {
	Group   hexID         `json:"group"`
	Replica ids.ReplicaID `json:"replica"`
	Heir    ids.NodeID    `json:"heir"` // node of the one that follows it; "": the same
	Reason  string        `json:"reason"`
}

// givenUpByOperator begins why such a replica is lost.
const givenUpByOperator = "given up by an operator"

// renewCommand gives the slot of a lost replica to a new one, or forgets one that left its group.
type renewCommand struct {
	Group   hexID         `json:"group"`
	Replica ids.ReplicaID `json:"replica"` // the old one
	Epoch   ids.Epoch     `json:"epoch"`   // the newest one that the proposer saw: compare-and-set
}

func (*giveUpCommand) commandType() byte { return typeGiveUp }
func (*renewCommand) commandType() byte  { return typeRenew }

// inRecord tells whether the newest record names the replica, as a voter or a learner.
func (g *groupEntry) inRecord(id ids.ReplicaID) bool {
	if g.Record == nil {
		return false
	}
	_, ok := g.Record.Member(id)
	return ok
}

// needs tells why the group cannot do without the replica, "" when it can.
func (g *groupEntry) needs(id ids.ReplicaID) string {
	current := g.voters()
	if current.has(id) && len(current)-1 < g.least() {
		return fmt.Sprintf("it is one of %d voters, and there must never be fewer than %d", len(current), g.least())
	}
	for _, set := range g.Since {
		if set.has(id) && !current.has(id) {
			return fmt.Sprintf("epoch %d is not active yet, and it voted in epoch %d: wait for a master", g.Epoch, g.Active)
		}
	}
	return ""
}

func (s *State) applyGiveUp(c *giveUpCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	if g == nil {
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	}
	fault := func(format string, args ...any) error {
		return refuse(ErrInvalid, "group %s, replica %d: %s", g.Name, c.Replica, fmt.Sprintf(format, args...))
	}
	r := g.replica(c.Replica)
	switch {
	case r == nil:
		return refuse(ErrNotFound, "group %s has no replica %d: look at `group show`", g.Name, c.Replica)
	case g.Epoch == 0:
		return fault("the group is not ready yet")
	case len(c.Reason) > maxReportText:
		return fault("a reason of %d bytes: at most %d", len(c.Reason), maxReportText)
	case c.Heir != "" && s.nodes[c.Heir] == nil:
		return fault("node %s is not known: start it first", c.Heir)
	case slices.ContainsFunc(g.Replicas, func(o replicaEntry) bool {
		return o.ID != r.ID && (o.Node == c.Heir || o.Heir != "" && o.Heir == c.Heir)
	}):
		return fault("node %s has a replica of this group: each replica needs a node of its own", c.Heir)
	}
	if why := g.needs(r.ID); why != "" {
		return fault("%s", why)
	}
	if r.Lost == "" {
		r.Lost = givenUpByOperator
		if c.Reason != "" {
			r.Lost += ": " + c.Reason
		}
	}
	r.Heir = c.Heir
	if r.Heir == r.Node {
		r.Heir = ""
	}
	s.touchGroup(g)
	return nil
}

func (s *State) applyRenew(c *renewCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	if g == nil {
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	}
	r := g.replica(c.Replica)
	switch {
	case r == nil || g.Epoch != c.Epoch:
		return refuse(ErrStale, "group %s: replica %d in epoch %d: changed meanwhile", g.Name, c.Replica, c.Epoch)
	case !g.mayRenew(r):
		return refuse(ErrInvalid, "group %s: replica %d is neither lost nor leaving, or still a part of an epoch", g.Name, c.Replica)
	}
	if r.Leaving {
		g.Replicas = slices.DeleteFunc(slices.Clone(g.Replicas), func(o replicaEntry) bool { return o.ID == c.Replica })
		s.touchGroup(g)
		return nil
	}
	n := replicaEntry{ID: s.cluster.NextReplica, Slot: r.Slot, Node: r.Node, Learner: r.Learner}
	if r.Heir != "" {
		if g.Preferred == r.Node {
			g.Preferred = r.Heir
		}
		n.Node = r.Heir
	}
	s.cluster.NextReplica++
	*r = n
	s.touch(keyCluster)
	s.touchGroup(g)
	return nil
}

// mayRenew tells whether nothing speaks of the replica any more.
func (g *groupEntry) mayRenew(r *replicaEntry) bool {
	return (r.Lost != "" || r.Leaving) && g.Active == g.Epoch && !g.inRecord(r.ID) && g.Master.Replica != r.ID &&
		!slices.ContainsFunc(g.Since, func(set voterSet) bool { return set.has(r.ID) })
}

// decideLost looks after replicas that are lost, new, or on their way out. The group has a master, and its newest epoch is active.
func (g *groupEntry) decideLost(v *groupView, master ids.ReplicaID) decision {
	current := g.voters()
	for i := range g.Replicas {
		r := &g.Replicas[i]
		same := decision{voters: current, campaign: master}
		switch {
		case current.has(r.ID):
		case r.Lost != "" && g.inRecord(r.ID):
			same.reason = fmt.Sprintf("replica %d on node %s is lost", r.ID, r.Node)
			return same
		case r.Leaving && g.inRecord(r.ID) && !g.learns(r, current):
			same.reason = fmt.Sprintf("replica %d on node %s leaves the group", r.ID, r.Node)
			return same
		case g.mayRenew(r):
			return decision{renew: r.ID}
		case g.learns(r, current) && !g.inRecord(r.ID):
			same.reason = fmt.Sprintf("replica %d on node %s is new, and learns", r.ID, r.Node)
			return same
		}
	}
	return decision{}
}
