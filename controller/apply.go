package controller

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Apply changes the state by one command. A *RefusedError means that the command changed nothing. What the proposer compared
// is compared again here, where it is set: between proposal and apply another command may have come first.
func (s *State) Apply(c Command) error {
	if err := s.allows(c); err != nil {
		return err
	}
	switch c := c.(type) {
	case *foundCommand:
		return s.applyFound(c)
	case *registerCommand:
		return s.applyRegister(c)
	case *reportCommand:
		return s.applyReport(c)
	case *createGroupCommand:
		return s.applyCreateGroup(c)
	case *issueEpochCommand:
		return s.applyIssueEpoch(c)
	case *giveUpCommand:
		return s.applyGiveUp(c)
	case *renewCommand:
		return s.applyRenew(c)
	case *raiseLevelCommand:
		return s.applyRaiseLevel(c)
	case *setModeCommand:
		return s.applySetMode(c)
	case *keepLearnerCommand:
		return s.applyKeepLearner(c)
	case *preferCommand:
		return s.applyPrefer(c)
	case *removeNodeCommand:
		return s.applyRemoveNode(c)
	case *namesrvCommand:
		return s.applyNamesrv(c)
	case *uncleanCommand:
		return s.applyUnclean(c)
	case *removeGroupCommand:
		return s.applyRemoveGroup(c)
	}
	panic(fmt.Sprintf("controller: no way to apply a %T", c))
}

func (s *State) applyFound(c *foundCommand) error {
	if c.Cluster.isZero() {
		return refuse(ErrInvalid, "a cluster id of zeros cannot be")
	}
	if s.cluster.Cluster.isZero() {
		s.cluster.Cluster = c.Cluster
		s.cluster.Level = c.Level.orNone()
		s.touch(keyCluster)
	}
	return nil
}

// checkNode refuses a node id that is bound to another check code. n is nil when the id is free.
func (s *State) checkNode(id ids.NodeID, checkCode hexID) (n *nodeEntry, err error) {
	n = s.nodes[id]
	if n != nil && n.CheckCode != checkCode && !n.CheckCode.isZero() {
		return nil, refuse(ErrNodeConflict, "node id %s belongs to another node (other check code, last at %s): give this node an id of its own, or its old data folder back",
			id, orUnknown(n.Addresses.Peer))
	}
	return n, nil
}

func orUnknown(s string) string {
	if s == "" {
		return "an unknown address"
	}
	return s
}

func (s *State) applyRegister(c *registerCommand) error {
	if err := c.Node.Check(); err != nil {
		return refuse(ErrInvalid, "%v", err)
	}
	if c.CheckCode.isZero() || c.Session.isZero() {
		return refuse(ErrInvalid, "node %s: a check code or session of zeros cannot be", c.Node)
	}
	if s.cluster.Cluster.isZero() {
		return refuse(ErrInvalid, "node %s: the cluster was not founded yet", c.Node)
	}
	n, err := s.checkNode(c.Node, c.CheckCode)
	switch {
	case err != nil:
		return err
	case n == nil:
		n = &nodeEntry{ID: c.Node, CheckCode: c.CheckCode}
		s.nodes[c.Node] = n
	case n.Session == c.Session:
		return nil
	case n.Session != c.Replaces:
		return refuse(ErrNodeConflict, "node %s: another process of it registered at the same time: stop one of them", c.Node)
	}
	n.Session, n.CheckCode = c.Session, c.CheckCode
	s.touchNode(n)
	return nil
}

func (s *State) applyReport(c *reportCommand) error {
	n := s.nodes[c.Node]
	if n == nil || n.Session != c.Session {
		return refuse(ErrUnregistered, "node %s: this process does not speak for it: register it first", c.Node)
	}
	if c.Addresses != nil && !n.Addresses.equal(*c.Addresses) {
		n.Addresses = *c.Addresses
		s.touchNode(n)
	}
	for _, f := range c.Replicas {
		if g, r := s.replicaOn(f.Group, f.Replica, c.Node); r != nil {
			if s.applyReplicaFacts(g, r, f) {
				s.touchGroup(g)
			}
		}
	}
	for _, f := range c.Masters {
		g, r := s.replicaOn(f.Group, f.Replica, c.Node)
		// A master has applied an entry of its own term. One of an epoch that is not the newest activates nothing.
		if r == nil || r.Lost != "" || f.Term.Epoch() < 1 || f.Term.Epoch() > g.Epoch || f.Term <= g.Master.Term {
			continue
		}
		g.Master = masterEntry{Replica: f.Replica, Term: f.Term}
		if g.Active < g.Epoch && f.Term.Epoch() == g.Epoch {
			g.activate()
		}
		s.touchGroup(g)
	}
	return nil
}

// replicaOn returns a group and its replica with that id if it is on the node.
func (s *State) replicaOn(group hexID, id ids.ReplicaID, node ids.NodeID) (*groupEntry, *replicaEntry) {
	g := s.byID[ids.GroupID(group)]
	if g == nil {
		return nil, nil
	}
	if r := g.replica(id); r != nil && r.Node == node {
		return g, r
	}
	return nil, nil
}

// applyReplicaFacts takes over what a node told about a replica, and tells whether that changed anything. Until the first
// record names it, a folder may be made again; from then on only the folder of that incarnation is the replica, and an
// identity that is lost stays lost.
func (s *State) applyReplicaFacts(g *groupEntry, r *replicaEntry, f replicaFacts) bool {
	if g.Epoch == 0 {
		if f.Incarnation.isZero() {
			return false
		}
		changed := r.Incarnation != f.Incarnation || r.Starts != f.Starts
		r.Incarnation, r.Starts = f.Incarnation, f.Starts
		if len(g.waitingFor()) == 0 {
			s.issueFirst(g)
			changed = true
		}
		return changed
	}
	if r.Incarnation.isZero() { // a new replica of a group that lives
		if f.Incarnation.isZero() || r.Lost != "" {
			return false
		}
		r.Incarnation, r.Starts = f.Incarnation, f.Starts
		return true
	}
	if why := lostReason(r, f); why != "" {
		if r.Lost != "" {
			return false
		}
		r.Lost = why
		return true
	}
	if !f.Incarnation.isZero() && f.Starts > r.Starts {
		r.Starts = f.Starts
		return true
	}
	return false
}

// lostReason tells why what was reported is not the replica that the record names, or "".
func lostReason(r *replicaEntry, f replicaFacts) string {
	switch {
	case f.Lost && f.Revived >= r.Revived:
		return fmt.Sprintf("replica %d on node %s cannot prove that it holds all that it promised", r.ID, r.Node)
	case f.Missing:
		return fmt.Sprintf("node %s has no folder of replica %d: its data was wiped or replaced", r.Node, r.ID)
	case !f.Incarnation.isZero() && f.Incarnation != r.Incarnation:
		return fmt.Sprintf("node %s has another incarnation of replica %d: its data was wiped or replaced", r.Node, r.ID)
	case f.Starts > 0 && f.Starts < r.Starts:
		return fmt.Sprintf("replica %d on node %s counts %d starts after %d were seen: its data is a restored backup", r.ID, r.Node, f.Starts, r.Starts)
	}
	return ""
}

// issueFirst issues the group's first epoch, which is 1 for a name that is new: the lowest V slots that may vote do, the others learn.
func (s *State) issueFirst(g *groupEntry) {
	var first voterSet
	for i := range g.Replicas {
		if r := &g.Replicas[i]; r.mayStay() && len(first) < g.modeVoters() {
			first = append(first, r.ID)
		}
	}
	slices.Sort(first)
	g.Epoch = g.After
	s.issue(g, first)
	g.activate()
}

func (s *State) applyCreateGroup(c *createGroupCommand) error {
	if err := c.validate(); err != nil {
		return err
	}
	if g := s.groups[c.Name]; g != nil {
		if g.sameAs(c) {
			return nil
		}
		return refuse(ErrExists, "group %s exists with other parameters (%s): choose another name, or repeat its own", c.Name, g.describe())
	}
	if len(s.nodes) < c.Members {
		return refuse(ErrInvalid, "group %s: mode %d-%d needs %d nodes, the cluster has %d: start more nodes or choose a smaller mode",
			c.Name, c.Answers, c.Members, c.Members, len(s.nodes))
	}
	for _, n := range c.Nodes {
		if s.nodes[n] == nil {
			return refuse(ErrInvalid, "group %s: node %s is not known: start it, or choose among %s", c.Name, n, strings.Join(s.nodeNames(), ", "))
		}
		if s.replicasOn(n) >= maxReplicas {
			return refuse(ErrInvalid, "group %s: node %s has %d replicas, and no node may have more: choose another node", c.Name, n, maxReplicas)
		}
	}
	if c.ID.isZero() || s.byID[ids.GroupID(c.ID)] != nil || s.removed[c.ID] != nil {
		return refuse(ErrInvalid, "group %s: the id %x is taken: try again", c.Name, c.ID[:])
	}
	g := &groupEntry{
		Name:        c.Name,
		ID:          c.ID,
		Answers:     c.Answers,
		Members:     c.Members,
		MinISR:      c.MinISR,
		SegmentSize: c.SegmentSize,
		Async:       c.Async,
		After:       s.after(c.Name),
	}
	for i, n := range c.Nodes {
		g.Replicas = append(g.Replicas, replicaEntry{ID: s.cluster.NextReplica, Slot: ids.Slot(i + 1), Node: n, Learner: slices.Contains(c.Learners, n)})
		s.cluster.NextReplica++
	}
	s.groups[g.Name] = g
	s.byID[ids.GroupID(g.ID)] = g
	s.touch(keyCluster)
	s.touchGroup(g)
	return nil
}

// maxReplicas is how many replicas a node may have. What one heartbeat tells of all of them fits into one command.
const maxReplicas = 1000

func (s *State) replicasOn(node ids.NodeID) (n int) {
	for _, g := range s.groups {
		if slices.ContainsFunc(g.Replicas, func(r replicaEntry) bool { return r.Node == node }) {
			n++
		}
	}
	return n
}

func (s *State) nodeNames() []string {
	var out []string
	for _, id := range sortedKeys(s.nodes) {
		out = append(out, string(id))
	}
	return out
}

// ensureDefaults fills in the minimum ISR and the segment size.
func (c *createGroupCommand) ensureDefaults() {
	if c.MinISR == 0 {
		c.MinISR = min(defaultMinISR(c.Answers, c.Members), max(1, len(c.Nodes)-len(c.Learners)))
	}
	if c.SegmentSize == 0 {
		c.SegmentSize = ids.DefaultSegmentSize
	}
}

// validate checks what does not depend on the state. It reports the first fault, as one line.
func (c *createGroupCommand) validate() error {
	fault := func(format string, args ...any) error {
		return refuse(ErrInvalid, "group %q: %s", c.Name, fmt.Sprintf(format, args...))
	}
	if !groupName.MatchString(c.Name) {
		return fault("a group name has 1 to 100 of A-Z a-z 0-9 _ -")
	}
	if err := CheckMode(c.Answers, c.Members); err != nil {
		return fault("%v", err)
	}
	if len(c.Nodes) != c.Members {
		return fault("mode %d-%d needs %d nodes, %d were given: name one node for each replica", c.Answers, c.Members, c.Members, len(c.Nodes))
	}
	for i, n := range c.Nodes {
		if err := n.Check(); err != nil {
			return fault("%v", err)
		}
		if slices.Contains(c.Nodes[:i], n) {
			return fault("node %s is named twice: each replica needs a node of its own", n)
		}
	}
	for i, n := range c.Learners {
		if !slices.Contains(c.Nodes, n) || slices.Contains(c.Learners[:i], n) {
			return fault("node %s is to have a learner: it has none of the replicas, or is named twice", n)
		}
	}
	trial := groupEntry{Answers: c.Answers, Members: c.Members, MinISR: c.MinISR}
	for _, n := range c.Nodes {
		trial.Replicas = append(trial.Replicas, replicaEntry{Node: n, Learner: slices.Contains(c.Learners, n)})
	}
	if err := trial.checkShape(); err != nil {
		return fault("%v", err)
	}
	if err := ids.CheckSegmentSize(c.SegmentSize, ids.MinTestSegmentSize); err != nil {
		return fault("%v", err)
	}
	return nil
}

// sameAs tells whether g is what c would make.
func (g *groupEntry) sameAs(c *createGroupCommand) bool {
	if g.Answers != c.Answers || g.Members != c.Members || g.MinISR != c.MinISR || g.SegmentSize != c.SegmentSize || g.Async != c.Async {
		return false
	}
	return slices.EqualFunc(g.Replicas, c.Nodes, func(r replicaEntry, n ids.NodeID) bool {
		return r.Node == n && r.Learner == slices.Contains(c.Learners, n)
	})
}

func (g *groupEntry) describe() string {
	var nodes []string
	for _, r := range g.Replicas {
		nodes = append(nodes, string(r.Node))
	}
	return fmt.Sprintf("mode %d-%d on %s, min ISR %d, segments of %d bytes, flush %s", g.Answers, g.Members, strings.Join(nodes, ","), g.MinISR, g.SegmentSize, g.flush())
}

// flush names when a replica acknowledges, as operators write it.
func (g *groupEntry) flush() string {
	if g.Async {
		return "async"
	}
	return "sync"
}

// validAddress tells whether a may be stored and told to others: host:port of at most 255 visible ASCII characters.
func validAddress(a string) bool {
	if len(a) > 255 || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	_, _, err := net.SplitHostPort(a)
	return err == nil
}
