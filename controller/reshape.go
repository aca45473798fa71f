package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// This file has how an operator changes the shape of a group that lives: its mode, its min ISR, its replicas. A command says what is
// wanted; the epochs that lead there are decided one after the other (decideShape), each by the rules of every other one, and for
// as long as it takes:
//
//	added     no folder ──its node makes one──▶ learner ──caught up──▶ voter, if the mode wants one more
//	leaving   voter ──another one has caught up, or none is missing──▶ out of the record ──nothing speaks of it──▶ forgotten
//
// A replica that leaves is followed before it goes, never after: the number of copies does not fall.

// setModeCommand makes a group one of mode Answers-Members. What is so already stays as it is, so that it may be repeated.
type setModeCommand struct {
	Group    hexID           `json:"group"`
	Answers  int             `json:"answers"`
	Members  int             `json:"members"`
	MinISR   int             `json:"minISR"`
	Add      []ids.NodeID    `json:"add,omitempty"`      // nodes of new replicas
	Learners []ids.NodeID    `json:"learners,omitempty"` // those of them that are kept learners
	Remove   []ids.ReplicaID `json:"remove,omitempty"`   // that leave
}

func (*setModeCommand) commandType() byte { return typeSetMode }

func (*setModeCommand) needs() (Level, string) { return 2, "a change of a group's mode or replicas" }

// defaultMinISR is the min ISR of a mode when none is given.
func defaultMinISR(answers, members int) int {
	if answers == members {
		return max(1, answers-1)
	}
	return answers
}

// staysOn returns the replica on the node that is to stay in the group, or nil.
func (g *groupEntry) staysOn(node ids.NodeID) *replicaEntry {
	for i := range g.Replicas {
		if r := &g.Replicas[i]; r.Node == node && !r.Leaving {
			return r
		}
	}
	return nil
}

func (s *State) applySetMode(c *setModeCommand) error {
	g := s.byID[ids.GroupID(c.Group)]
	if g == nil {
		return refuse(ErrNotFound, "group %v does not exist", ids.GroupID(c.Group))
	}
	next, err := s.reshaped(g, c)
	if err != nil {
		return err
	}
	if next.NextReplica != s.cluster.NextReplica {
		s.cluster.NextReplica = next.NextReplica
		s.touch(keyCluster)
	}
	g.Answers, g.Members, g.MinISR, g.Preferred, g.Replicas = c.Answers, c.Members, c.MinISR, next.preferred, next.replicas
	s.touchGroup(g)
	return nil
}

// shape is what a setModeCommand makes of a group.
type shape struct {
	replicas    []replicaEntry
	preferred   ids.NodeID
	NextReplica ids.ReplicaID
}

// reshaped checks a command and returns what it makes of the group. It reports the first fault, as one line.
func (s *State) reshaped(g *groupEntry, c *setModeCommand) (shape, error) {
	fault := func(format string, args ...any) (shape, error) {
		return shape{}, refuse(ErrInvalid, "group %s: %s", g.Name, fmt.Sprintf(format, args...))
	}
	if g.Epoch == 0 {
		return fault("it is not ready yet: it waits for %s", strings.Join(g.waitingFor(), ", "))
	}
	if err := CheckMode(c.Answers, c.Members); err != nil {
		return fault("%v", err)
	}
	next := *g
	next.Replicas = slices.Clone(g.Replicas)
	out := shape{preferred: g.Preferred, NextReplica: s.cluster.NextReplica}
	moved := ids.NodeID("")
	for _, id := range c.Remove {
		r := next.replica(id)
		switch {
		case r != nil:
			if !r.Leaving && r.Node == g.preferredNode() {
				moved = r.Node
			}
			r.Leaving = true
		case id == 0 || id >= s.cluster.NextReplica || s.groupOf(id) != nil:
			return shape{}, refuse(ErrNotFound, "group %s has no replica %d: its replicas are %s", g.Name, id, g.replicaList())
		}
	}
	for i, n := range c.Add {
		if slices.Contains(c.Add[:i], n) {
			return fault("node %s is named twice: each replica needs a node of its own", n)
		}
		if next.staysOn(n) != nil {
			continue
		}
		if err := s.mayHost(&next, n); err != nil {
			return shape{}, err
		}
		slot := next.freeSlot()
		if slot == 0 {
			return fault("%d replicas are the most there can be, with those that leave: wait for one to be gone, or remove one first", raftlog.MaxVoters)
		}
		next.Replicas = append(next.Replicas, replicaEntry{ID: out.NextReplica, Slot: slot, Node: n, Learner: slices.Contains(c.Learners, n)})
		slices.SortFunc(next.Replicas, func(a, b replicaEntry) int { return cmp.Compare(a.Slot, b.Slot) })
		out.NextReplica++
	}
	if n := next.staying(); n < c.Members {
		return fault("mode %d-%d needs %s more than the %d that there would be: name that many nodes that have none of it%s",
			c.Answers, c.Members, plural(c.Members-n, "replica"), n, s.spareNodes(&next))
	} else if n > c.Members {
		return fault("mode %d-%d has %s fewer than the %d that there would be: say which ones go, of %s",
			c.Answers, c.Members, plural(n-c.Members, "replica"), n, next.replicaList())
	}
	next.Answers, next.Members, next.MinISR = c.Answers, c.Members, c.MinISR
	if err := next.checkShape(); err != nil {
		return fault("%v", err)
	}
	if now := min(len(g.voters()), len(g.Since[0])); c.MinISR > g.MinISR && c.MinISR > now && next.modeVoters() <= g.modeVoters() {
		return fault("a min ISR of %d is more than the %s that there are now: at most %d until the others are back", c.MinISR, plural(now, "voter"), now)
	}
	if moved != "" && len(c.Add) == 1 && len(c.Remove) == 1 {
		out.preferred = c.Add[0] // what takes the place of the preferred master is preferred
	} else if next.staysOn(out.preferred) == nil {
		out.preferred = ""
	}
	out.replicas = next.Replicas
	return out, nil
}

// checkShape tells what is wrong with the mode, the min ISR and the learners of a group together.
func (g *groupEntry) checkShape() error {
	may := 0
	for i := range g.Replicas {
		if g.Replicas[i].mayStay() {
			may++
		}
	}
	if may < g.Answers {
		return fmt.Errorf("an answer of mode %d-%d is on %s, and only %d of its replicas may vote: keep fewer of them learners",
			g.Answers, g.Members, plural(g.Answers, "voter"), may)
	}
	if v := g.modeVoters(); g.MinISR < 1 || g.MinISR > v {
		return fmt.Errorf("min ISR %d: mode %d-%d takes 1 to %d here, the number of its voters", g.MinISR, g.Answers, g.Members, v)
	}
	return nil
}

// mayHost refuses a node that cannot have a replica of the group.
func (s *State) mayHost(g *groupEntry, n ids.NodeID) error {
	if err := n.Check(); err != nil {
		return refuse(ErrInvalid, "group %s: %v", g.Name, err)
	}
	if s.nodes[n] == nil {
		return refuse(ErrInvalid, "group %s: node %s is not known: start it, or choose among %s", g.Name, n, strings.Join(s.nodeNames(), ", "))
	}
	for _, r := range g.Replicas {
		if r.Node == n || r.Heir == n {
			return refuse(ErrInvalid, "group %s: node %s has replica %d of it, and each replica needs a node of its own: choose another node, or wait until that one is gone",
				g.Name, n, r.ID)
		}
	}
	if s.replicasOn(n) >= maxReplicas {
		return refuse(ErrInvalid, "group %s: node %s has %d replicas, and no node may have more: choose another node", g.Name, n, maxReplicas)
	}
	return nil
}

// groupOf returns the group of a replica, nil when it is in none.
func (s *State) groupOf(id ids.ReplicaID) *groupEntry {
	for _, g := range s.groups {
		if g.replica(id) != nil {
			return g
		}
	}
	return nil
}

// spareNodes names the nodes that have no replica of the group.
func (s *State) spareNodes(g *groupEntry) string {
	var free []string
	for _, n := range s.nodeNames() {
		if !slices.ContainsFunc(g.Replicas, func(r replicaEntry) bool { return string(r.Node) == n || string(r.Heir) == n }) {
			free = append(free, n)
		}
	}
	if free == nil {
		return "; every node of the cluster has one: start another node"
	}
	return ", such as " + strings.Join(free, ", ")
}

// freeSlot returns the lowest slot that no replica has, 0 when there is none.
func (g *groupEntry) freeSlot() ids.Slot {
	for slot := ids.Slot(1); slot <= raftlog.MaxVoters; slot++ {
		if !slices.ContainsFunc(g.Replicas, func(r replicaEntry) bool { return r.Slot == slot }) {
			return slot
		}
	}
	return 0
}

// replicaList names the replicas for an error.
func (g *groupEntry) replicaList() string {
	var out []string
	for _, r := range g.Replicas {
		if !r.Leaving {
			out = append(out, fmt.Sprintf("%d on %s", r.ID, r.Node))
		}
	}
	return strings.Join(out, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// preferredNode is where the group's master should be.
func (g *groupEntry) preferredNode() ids.NodeID {
	if g.Preferred != "" {
		return g.Preferred
	}
	for i := range g.Replicas {
		if g.Replicas[i].mayStay() {
			return g.Replicas[i].Node
		}
	}
	return g.Replicas[0].Node
}

// decideShape works towards the shape that an operator wants. The group has a master, its newest epoch is active, and no voter that
// is silent or lost can leave now.
func (g *groupEntry) decideShape(v *groupView, master ids.ReplicaID) decision {
	current, want := g.voters(), g.modeVoters()
	if !g.modeInForce() {
		return decision{voters: current, campaign: master, reason: fmt.Sprintf("the mode is %d-%d with a min ISR of %d", g.Answers, g.Members, g.MinISR)}
	}
	joins := g.mayJoin(v, master)
	stay := g.stay(current)
	for _, id := range g.goers(master) {
		r := g.replica(id)
		var sets []voterSet
		switch {
		case stay >= want:
			sets = []voterSet{current.without(id)}
		case joins != 0 && g.replica(joins).mayStay():
			sets = []voterSet{current.without(id).with(joins), current.with(joins)} // at once, or one after the other
		default:
			continue // until the one that takes its place has caught up
		}
		if id == master {
			if to := g.handOverTo(v, master); to != 0 {
				return decision{handOver: to}
			}
		}
		for _, next := range sets {
			if !next.has(master) || !v.electable(next) || g.mayIssue(next) != nil {
				continue
			}
			d := decision{voters: next, campaign: master}
			var what []string
			if joins != 0 && next.has(joins) {
				d.joined = joins
				what = append(what, fmt.Sprintf("replica %d on node %s has caught up", joins, g.replica(joins).Node))
			}
			if !next.has(id) {
				what = append(what, fmt.Sprintf("replica %d on node %s %s", id, r.Node, r.goesBecause()))
			}
			d.reason = strings.Join(what, ", ")
			return d
		}
	}
	if joins == 0 || len(current) >= want {
		return decision{}
	}
	if next := current.with(joins); g.mayIssue(next) == nil {
		return decision{voters: next, campaign: master, joined: joins,
			reason: fmt.Sprintf("replica %d on node %s has caught up", joins, g.replica(joins).Node)}
	}
	return decision{}
}

// goesBecause says why a voter that is well leaves.
func (r *replicaEntry) goesBecause() string {
	switch {
	case r.Leaving:
		return "was taken out of the group"
	case r.Learner:
		return "is kept a learner"
	}
	return "is one voter more than the mode has"
}

// goers lists the voters that are to go although they are well: those that an operator took out, then those that he keeps learners;
// or else those that are too many, the highest slot first and never the master.
func (g *groupEntry) goers(master ids.ReplicaID) (out []ids.ReplicaID) {
	current := g.voters()
	for _, leaving := range []bool{true, false} {
		for i := range g.Replicas {
			if r := &g.Replicas[i]; current.has(r.ID) && !r.mayStay() && r.Leaving == leaving {
				out = append(out, r.ID)
			}
		}
	}
	if out != nil || len(current) <= g.modeVoters() {
		return out
	}
	for i := len(g.Replicas) - 1; i >= 0; i-- {
		if r := &g.Replicas[i]; current.has(r.ID) && r.ID != master {
			out = append(out, r.ID)
		}
	}
	return out
}

// mayJoin returns the learner that has been caught up for long enough to become a voter, 0 when there is none. One that leaves the
// group comes back only when no other one can.
func (g *groupEntry) mayJoin(v *groupView, master ids.ReplicaID) ids.ReplicaID {
	current := g.voters()
	for _, leaving := range []bool{false, true} {
		for i := range g.Replicas {
			r := &g.Replicas[i]
			m, known := v.replicas[master].members[r.ID]
			if r.Leaving != leaving || r.Learner || !g.learns(r, current) || !known || !v.mayVote(r.ID) || v.replicas[r.ID].leaving {
				continue
			}
			again := max(v.flaps[r.ID]-1, 0)
			if m.caughtUp >= min(caughtUpAfter<<min(again, maxDoublings), maxCaughtUp) && !(m.stalled > 0 && m.closed) {
				return r.ID
			}
		}
	}
	return 0
}

// handOverTo returns the voter that a master which leaves the group hands over to: one that stays and has the whole log.
func (g *groupEntry) handOverTo(v *groupView, master ids.ReplicaID) ids.ReplicaID {
	var fit voterSet
	for _, id := range g.voters() {
		m, known := v.replicas[master].members[id]
		if r := g.replica(id); id != master && r.mayStay() && known && m.stalled == 0 && m.caughtUp > 0 && !v.replicas[id].leaving {
			fit = append(fit, id)
		}
	}
	return g.best(v, fit)
}

// SetMode is what an operator wants of a group.
type SetMode struct {
	Group            string
	Answers, Members int
	MinISR           int // 0: that of the mode, if the group had that of its mode before; else as it was, if that can be
	On               []ids.NodeID
	Learners         []ids.NodeID
	Remove           []ids.ReplicaID // of a smaller mode, empty: those that are the least useful
}

// SetMode returns the command that changes a group's mode. It refuses to take out a replica that the group needs as things are, and
// chooses which ones go when nobody said so. Errors: ErrNotFound, ErrInvalid, ErrNotNow.
func (l *Leader) SetMode(now time.Time, st *State, want SetMode) (Command, error) {
	g := st.groups[want.Group]
	if g == nil {
		return nil, refuse(ErrNotFound, "group %q does not exist: look at the list of groups", cut(want.Group))
	}
	v, _ := l.view(now, g)
	if v == nil {
		return nil, refuse(ErrNotNow, "group %s: this controller leads no more: ask again", g.Name)
	}
	return st.setMode(g, v, want)
}

// setMode is SetMode with what is known of the group.
func (s *State) setMode(g *groupEntry, v *groupView, want SetMode) (Command, error) {
	c := &setModeCommand{Group: g.ID, Answers: want.Answers, Members: want.Members, MinISR: want.MinISR, Add: want.On, Learners: want.Learners, Remove: want.Remove}
	if g.Epoch > 0 && len(c.Remove) == 0 && want.Members > 0 {
		add := 0
		for _, n := range c.Add {
			if g.staysOn(n) == nil {
				add++
			}
		}
		if missing := max(0, want.Members-g.staying()); missing > 0 && add > missing {
			return nil, refuse(ErrInvalid, "group %s: mode %d-%d needs %s more, and %d nodes are named that have none: name as many, or say with --remove which replicas go",
				g.Name, want.Answers, want.Members, plural(missing, "replica"), add)
		}
		for n := g.staying() + add - want.Members; n > 0 && len(c.Remove) < n; {
			c.Remove = append(c.Remove, g.leastUseful(v, c.Remove))
		}
	}
	if c.MinISR == 0 {
		c.MinISR = g.MinISR
		if g.MinISR == defaultMinISR(g.Answers, g.Members) {
			c.MinISR = defaultMinISR(c.Answers, c.Members)
		}
		trial := *c
		trial.MinISR = 1
		if next, err := s.reshaped(g, &trial); err == nil {
			shaped := groupEntry{Answers: c.Answers, Members: c.Members, Replicas: next.replicas}
			c.MinISR = min(c.MinISR, shaped.modeVoters())
		}
	}
	if _, err := s.reshaped(g, c); err != nil {
		return nil, err
	}
	if err := g.mayMove(v, c); err != nil {
		return nil, err
	}
	if err := g.bearsRemoval(v, c); err != nil {
		return nil, err
	}
	return c, nil
}

// mayMove refuses other replicas for a group that no voter leads: a master has to carry that out, and until one does it could not be
// taken back either, since a replica that leaves or comes does so for good. A mode and a min ISR for the same replicas can always be
// changed, and back: they may be what the group needs to get a master.
func (g *groupEntry) mayMove(v *groupView, c *setModeCommand) error {
	moves := slices.ContainsFunc(c.Add, func(n ids.NodeID) bool { return g.staysOn(n) == nil }) ||
		slices.ContainsFunc(c.Remove, func(id ids.ReplicaID) bool { r := g.replica(id); return r != nil && !r.Leaving })
	led := slices.ContainsFunc(g.voters(), func(id ids.ReplicaID) bool { return v.live(id) && v.replicas[id].master })
	if !moves || led {
		return nil
	}
	if err := g.heardOf(v); err != nil {
		return err
	}
	return refuse(ErrNotNow, "group %s has no master, and nobody could add or remove its replicas, or take that back: ask again when `ledgermq admin group show %s` names one", g.Name, g.Name)
}

// Replace returns the command that gives the place of a replica to a new one on node, "": on the same. One that lives and votes does so
// until the new one has caught up, which must be on another node; giveUp gives it up at once. Any other one is given up at once.
// Errors: ErrNotFound, ErrInvalid, ErrNotNow.
func (l *Leader) Replace(now time.Time, st *State, group string, id ids.ReplicaID, node ids.NodeID, reason string, giveUp bool) (Command, error) {
	g := st.groups[group]
	if g == nil {
		return nil, refuse(ErrNotFound, "group %q does not exist: look at the list of groups", cut(group))
	}
	v, _ := l.view(now, g)
	if v == nil {
		return nil, refuse(ErrNotNow, "group %s: this controller leads no more: ask again", g.Name)
	}
	return st.replace(g, v, id, node, reason, giveUp)
}

// replace is Replace with what is known of the group.
func (s *State) replace(g *groupEntry, v *groupView, id ids.ReplicaID, node ids.NodeID, reason string, giveUp bool) (Command, error) {
	if err := g.heardOf(v); err != nil {
		return nil, err
	}
	r := g.replica(id)
	if r == nil || r.Lost != "" || giveUp || node == "" || node == r.Node || !v.mayVote(id) {
		if r != nil && r.Lost == "" && g.Epoch > 0 && g.everVoted().has(id) && g.liveMaster(v) == 0 {
			return nil, refuse(ErrNotNow, "group %s, replica %d: the group has no master, and may need this one to get one again: start the nodes of its voters; "+
				"when they are lost for ever, see `ledgermq admin group elect-unclean`", g.Name, id)
		}
		if r != nil && r.Lost == "" && !giveUp && v.mayVote(id) {
			return nil, refuse(ErrNotNow, "group %s, replica %d lives and votes, and a new one on the same node begins empty: until that has caught up the group has one copy less. "+
				"Name another node with --on, on which the new one catches up first, or say that it is given up with --give-up", g.Name, id)
		}
		return &giveUpCommand{Group: g.ID, Replica: id, Heir: node, Reason: reason}, nil
	}
	c := &setModeCommand{Group: g.ID, Answers: g.Answers, Members: g.Members, MinISR: g.MinISR, Add: []ids.NodeID{node}, Remove: []ids.ReplicaID{id}}
	if r.Learner {
		c.Learners = c.Add
	}
	if _, err := s.reshaped(g, c); err != nil {
		return nil, err
	}
	if err := g.mayMove(v, c); err != nil {
		return nil, err
	}
	return c, nil
}

// leastUseful returns the replica that the group misses the least: one that is lost, or silent, or only learns, rather than one that
// votes, or the preferred master, or the master; of equals the one with the highest slot. Those in but are passed over.
func (g *groupEntry) leastUseful(v *groupView, but []ids.ReplicaID) (least ids.ReplicaID) {
	current, worth := g.voters(), 0
	for _, r := range g.Replicas { // by slot
		if r.Leaving || slices.Contains(but, r.ID) {
			continue
		}
		n := 0
		for i, good := range []bool{r.Node == g.preferredNode(), v.replicas[r.ID].master, current.has(r.ID), !r.Learner, v.mayVote(r.ID), r.Lost == ""} {
			if good {
				n |= 1 << i
			}
		}
		if least == 0 || n <= worth {
			least, worth = r.ID, n
		}
	}
	return least
}

// bearsRemoval refuses to take voters out when too few replicas live that could take their places, and says which ones may go.
func (g *groupEntry) bearsRemoval(v *groupView, c *setModeCommand) error {
	current := g.voters()
	alive, votes := 0, ids.ReplicaID(0)
	var dead []string
	for i := range g.Replicas {
		r := &g.Replicas[i]
		switch {
		case r.Leaving:
		case slices.Contains(c.Remove, r.ID):
			if current.has(r.ID) && v.mayVote(r.ID) {
				votes = r.ID
			}
		case r.Lost == "" && v.mayVote(r.ID) && !r.Learner:
			alive++
		default:
			dead = append(dead, fmt.Sprintf("%d on %s", r.ID, r.Node))
		}
	}
	if votes == 0 || alive+len(c.Add) >= max(1, c.MinISR) {
		return nil
	}
	instead := "bring another one back, or add one, first"
	if dead != nil {
		instead = fmt.Sprintf("remove replica %s instead, or bring it back first", strings.Join(dead, " or "))
	}
	return refuse(ErrNotNow, "group %s needs replica %d on %s: without it %d of its replicas that may vote live, and the min ISR is %d: %s",
		g.Name, votes, g.replica(votes).Node, alive, c.MinISR, instead)
}

// missed tells whether the group's master said last that a member answers nothing, or does not advance.
func (g *groupEntry) missed(nodes nodeViews, id ids.ReplicaID) bool {
	m := g.replica(g.Master.Replica)
	return m != nil && slices.ContainsFunc(nodes.of(m.Node).reports[m.ID].GetMembers(), func(r *pb.MemberReport) bool {
		return ids.ReplicaID(r.GetReplicaId()) == id && r.GetStalledMillis() >= goneAfter.Milliseconds()
	})
}

// outstanding tells what is still to be done until the group is as it is wanted.
func (g *groupEntry) outstanding(nodes nodeViews) (out []string) {
	if g.Epoch == 0 {
		return nil
	}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if slices.ContainsFunc(g.Replicas, func(r replicaEntry) bool { return nodes.of(r.Node).reports[r.ID].GetFrozen() && r.Lost == "" }) {
		say("it is frozen, and removed")
	}
	current, want := g.voters(), g.modeVoters()
	if g.Active < g.Epoch {
		say("epoch %d has no master yet", g.Epoch)
	}
	if !g.modeInForce() {
		say("mode %d-%d with a min ISR of %d comes into force with the next epoch", g.Answers, g.Members, g.MinISR)
	}
	missing := len(current) < want || g.stay(current) < min(want, len(current))
	for i := range g.Replicas {
		r := &g.Replicas[i]
		votes, here := current.has(r.ID), fmt.Sprintf("replica %d on node %s", r.ID, r.Node)
		switch {
		case r.Leaving && votes && g.stay(current) < want:
			say("%s votes until another one has caught up, then it leaves", here)
		case r.Leaving:
			say("%s leaves", here)
		case r.Incarnation.isZero():
			say("%s is not made yet: its node has to do that", here)
		case r.Learner && votes:
			say("%s votes until it can be done without", here)
		case r.mayStay() && r.Lost == "" && !votes && missing && nodes.of(r.Node).live && g.missed(nodes, r.ID):
			say("%s answers its master nothing: when it does it catches up, and votes then", here)
		case r.mayStay() && r.Lost == "" && !votes && missing && nodes.of(r.Node).live:
			say("%s catches up, and votes then", here)
		case r.Lost == "" && !votes && nodes.of(r.Node).live && ids.Epoch(nodes.of(r.Node).reports[r.ID].GetEpoch()) < g.Epoch:
			say("%s is told of epoch %d", here, g.Epoch)
		}
	}
	if n := g.stay(current); n > want {
		say("%d of %s leave the SyncStateSet", n-want, plural(n, "voter"))
	}
	return out
}
