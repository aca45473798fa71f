package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file has what an operator wishes of a group or a node beside its shape: who is kept a learner, who is to be master, and that a
// node is forgotten.

// keepLearnerCommand keeps a replica a learner, or lets it vote again.
type keepLearnerCommand struct {
	Group   hexID         `json:"group"`
	Replica ids.ReplicaID `json:"replica"`
	Learner bool          `json:"learner"`
}

// preferCommand names the node whose replica is to be the group's master.
type preferCommand struct {
	Group hexID      `json:"group"`
	Node  ids.NodeID `json:"node"`
}

// removeNodeCommand forgets a node that has no replica.
type removeNodeCommand struct {
	Node ids.NodeID `json:"node"`
}

func (*keepLearnerCommand) commandType() byte { return typeKeepLearner }
func (*preferCommand) commandType() byte      { return typePrefer }
func (*removeNodeCommand) commandType() byte  { return typeRemoveNode }

func (*keepLearnerCommand) needs() (Level, string) { return 2, "a replica that is kept a learner" }
func (*preferCommand) needs() (Level, string)      { return 2, "a preferred master by an operator's word" }
func (*removeNodeCommand) needs() (Level, string)  { return 2, "the removal of a node" }

func (s *State) applyKeepLearner(c *keepLearnerCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	if g == nil {
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	}
	r := g.replica(c.Replica)
	switch {
	case r == nil || r.Leaving:
		return refuse(ErrNotFound, "group %s has no replica %d: its replicas are %s", g.Name, c.Replica, g.replicaList())
	case r.Learner == c.Learner:
		return nil
	}
	trial := *g
	trial.Replicas = slices.Clone(g.Replicas)
	trial.replica(c.Replica).Learner = c.Learner
	if err := trial.checkShape(); err != nil {
		return refuse(ErrInvalid, "group %s, replica %d: %v", g.Name, c.Replica, err)
	}
	r.Learner = c.Learner
	s.touchGroup(g)
	return nil
}

func (s *State) applyPrefer(c *preferCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	if g == nil {
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	}
	switch r := g.staysOn(c.Node); {
	case r == nil:
		return refuse(ErrInvalid, "group %s has no replica on node %q: its replicas are %s", g.Name, cut(string(c.Node)), g.replicaList())
	case r.Learner:
		return refuse(ErrInvalid, "group %s: replica %d on node %s is kept a learner and never becomes master", g.Name, r.ID, r.Node)
	}
	if g.Preferred != c.Node {
		g.Preferred = c.Node
		s.touchGroup(g)
	}
	return nil
}

// nodeUses lists what a node is needed for.
func (s *State) nodeUses(node ids.NodeID) (out []string) {
	for _, name := range sortedKeys(s.groups) {
		for _, r := range s.groups[name].Replicas {
			if r.Node == node || r.Heir == node {
				out = append(out, fmt.Sprintf("replica %d of group %s", r.ID, name))
			}
		}
	}
	return out
}

func (s *State) applyRemoveNode(c *removeNodeCommand) error {
	if s.nodes[c.Node] == nil {
		return refuse(ErrNotFound, "node %q is not known: the nodes are %s", cut(string(c.Node)), strings.Join(s.nodeNames(), ", "))
	}
	if uses := s.nodeUses(c.Node); uses != nil {
		return refuse(ErrInvalid, "node %s has %s: move or remove each first, with `admin group replace` or `remove-replica`", c.Node, strings.Join(uses, ", "))
	}
	delete(s.nodes, c.Node)
	s.touch(keyNodePrefix + string(c.Node))
	return nil
}

// near lists the replicas in the zone of the preferred master's node.
func (s *State) near(g *groupEntry) map[ids.ReplicaID]bool {
	n := s.nodes[g.preferredNode()]
	if n == nil || n.Addresses.Zone == "" {
		return nil
	}
	out := map[ids.ReplicaID]bool{}
	for _, r := range g.Replicas {
		out[r.ID] = s.nodes[r.Node].Addresses.Zone == n.Addresses.Zone
	}
	return out
}

// validZone tells whether a zone may be stored: at most 64 visible ASCII characters.
func validZone(z string) bool {
	return len(z) <= 64 && !strings.ContainsFunc(z, func(r rune) bool { return r <= ' ' || r > '~' })
}
