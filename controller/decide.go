package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// This file decides what the leader of the controllers does for one group, from the replicated state and from what the nodes
// said last. It is pure. Whatever it decides is checked again where the command is applied, so a wrong view costs time, never
// a message.

// The times of the SyncStateSet.
const (
	stalledAfter  = time.Second            // a voter that answers nothing, or is behind and does not advance, for so long leaves
	goneAfter     = 300 * time.Millisecond // one whose connection was closed leaves after so long without a word
	freshWithin   = 300 * time.Millisecond // how new the word of a replica must be that is to go on alone
	caughtUpAfter = 3 * time.Second        // a learner that has been caught up for so long becomes a voter; doubled when it flaps
	maxCaughtUp   = time.Minute            // bound of that doubling
	flapMemory    = 10 * time.Minute       // how long it is remembered that a replica left the voters
	activeAfter   = 500 * time.Millisecond // an epoch that is not active by then is given up; doubled with each one in a row
	maxActive     = 30 * time.Second       // bound of that doubling
	nearEnd       = 1000                   // entries that a learner may lack and still take the place of a voter at once
	firstAlone    = 200 * time.Millisecond // how long only the replica that is to lead a new epoch is given its record
	maxDoublings  = 6
)

// replicaView is what is known of a replica now.
type replicaView struct {
	silent   time.Duration // since its node was heard, or since this controller leads
	heard    bool          // since this controller leads
	early    bool          // not heard, and had no chance to be: nothing can be said of it
	able     bool          // it has a log and may vote: neither parked nor poisoned, and it has adopted a record
	master   bool
	frozen   bool // it has applied a freeze: the group is to be removed
	leaving  bool // its process ends soon
	told     bool // what it said is all that its log has, or it said that it has none
	usable   bool // it could lead with the log that it told of, lost or not
	epoch    ids.Epoch
	term     ids.Term
	lastTerm ids.Term
	last     ids.Index
	terms    []termStart // the newest ones of its log, while it hears no master
	// masterSilent is how long it has not heard a master, as a follower; closed tells that the master's connection was closed.
	masterSilent time.Duration
	masterClosed bool
	members      map[ids.ReplicaID]memberView // of a master
}

// memberView is what a master says of another member.
type memberView struct {
	stalled  time.Duration // for how long it answers nothing, or is behind and does not advance
	closed   bool          // its connection was closed and it was not heard since
	caughtUp time.Duration // for how long it has had all that was committed a moment before
	match    ids.Index
}

// groupView is what is known of a group now.
type groupView struct {
	replicas map[ids.ReplicaID]replicaView
	newest   time.Duration          // since the newest epoch was issued, or since this controller leads
	first    ids.ReplicaID          // that the newest epoch was issued for and is given its record first; 0: not known
	failures int                    // epochs in a row that were given up
	doomed   time.Duration          // since no majority could prove what it holds any more, as far as this controller knows; 0: one can
	flaps    map[ids.ReplicaID]int  // how often a replica left the voters not long ago
	silence  time.Duration          // after which a node counts as silent
	near     map[ids.ReplicaID]bool // in the zone of the preferred master
}

// decision is what to do for a group now. The zero value is: nothing.
type decision struct {
	voters   voterSet      // not nil: issue the next epoch with them
	reason   string        // for the operator
	campaign ids.ReplicaID // not 0: this replica is to campaign
	givenUp  bool          // voters replace an epoch that did not become active
	joined   ids.ReplicaID // not 0: a learner that becomes a voter
	left     ids.ReplicaID // not 0: a voter that leaves
	stuck    string        // why a group without master gets none
	renew    ids.ReplicaID // not 0: its slot gets a new replica, or it is forgotten when it leaves the group
	handOver ids.ReplicaID // not 0: the master is to hand over to it
	remove   bool          // the group is frozen
	unclean  ids.ReplicaID // not 0: it goes on alone though it may lack what was answered OK; stuck says why it may
}

// decide looks at one group.
func (g *groupEntry) decide(v *groupView) decision {
	if g.Epoch == 0 {
		return decision{}
	}
	master := g.liveMaster(v)
	switch {
	case v.frozen():
		return decision{remove: true}
	case master == 0 && v.doomed > 0:
		return g.decideDoomed(v)
	case g.Active < g.Epoch && master == 0:
		return g.decideInactive(v)
	case g.Active < g.Epoch:
		return decision{} // its report is on its way
	case master != 0:
		return g.decideMembers(v, master)
	}
	return g.decideFailover(v)
}

func (v *groupView) live(id ids.ReplicaID) bool {
	r := v.replicas[id]
	return r.heard && r.silent < v.silence
}

// mayVote tells whether a replica is there to elect.
func (v *groupView) mayVote(id ids.ReplicaID) bool { return v.live(id) && v.replicas[id].able }

// liveMaster returns the replica that leads in the newest epoch, 0 when none is known.
func (g *groupEntry) liveMaster(v *groupView) ids.ReplicaID {
	var best ids.ReplicaID
	for _, id := range g.voters() {
		r := v.replicas[id]
		if v.fresh(id) && r.master && r.epoch == g.Epoch && (best == 0 || r.term > v.replicas[best].term) {
			best = id
		}
	}
	return best
}

// fresh tells whether a replica is there to elect, and was so a moment ago.
func (v *groupView) fresh(id ids.ReplicaID) bool {
	return v.mayVote(id) && v.replicas[id].silent < freshWithin
}

// electable tells whether enough of the voters are there to elect a master, as far as their last words are new.
func (v *groupView) electable(set voterSet) bool {
	n := 0
	for _, id := range set {
		if v.fresh(id) {
			n++
		}
	}
	return n >= majority(len(set))
}

// best returns the voter that should lead: the one with the longest log, then one that does not leave soon, then the preferred one,
// then one in the zone of that, then the one with the lowest slot. Raft's vote has the last word, so an old view does no harm.
func (g *groupEntry) best(v *groupView, set voterSet) ids.ReplicaID {
	var best ids.ReplicaID
	for _, r := range g.Replicas { // by slot
		if !set.has(r.ID) || !v.fresh(r.ID) {
			continue
		}
		a, b := v.replicas[r.ID], v.replicas[best]
		if best == 0 || cmp.Or(cmp.Compare(a.lastTerm, b.lastTerm), cmp.Compare(a.last, b.last), stays(a)-stays(b),
			g.wanted(v, r.ID)-g.wanted(v, best)) > 0 {
			best = r.ID
		}
	}
	return best
}

// wanted is 2 for the preferred master, 1 for another replica in its zone.
func (g *groupEntry) wanted(v *groupView, id ids.ReplicaID) int {
	switch r := g.replica(id); {
	case r != nil && r.Node == g.preferredNode():
		return 2
	case v.near[id]:
		return 1
	}
	return 0
}

// stays is 1 for a replica whose process goes on, 0 for one that leaves soon.
func stays(r replicaView) int {
	if r.leaving {
		return 0
	}
	return 1
}

// decideInactive: the newest epoch has no master yet.
func (g *groupEntry) decideInactive(v *groupView) decision {
	current := g.voters()
	d := decision{}
	switch {
	case g.elected(v, current): // the master's report is on its way: another campaign would depose it
	case v.first != 0 && v.newest < activeAfter && v.mayVote(v.first):
		// Nobody else while it may still come about. It is mostly the master of the epoch before, which goes on with all that it has
		// taken: another one, whose last word is only newer, would end that as unknown.
		d.campaign = v.first
	case v.electable(current):
		d.campaign = g.best(v, current)
	default:
		d.stuck = g.waits(v, current)
	}
	if v.newest < min(activeAfter<<min(v.failures, maxDoublings), maxActive) {
		return d
	}
	sets := []voterSet{g.Since[0]}
	for _, id := range g.Since[0] {
		sets = append(sets, g.Since[0].without(id))
	}
	for _, set := range sets {
		if !slices.Equal(set, current) && v.electable(set) && g.mayIssue(set) == nil {
			return decision{voters: set, givenUp: true, campaign: g.best(v, set),
				reason: fmt.Sprintf("epoch %d with the voters %v got no master within %v", g.Epoch, current, v.newest.Round(time.Millisecond))}
		}
	}
	return d
}

// elected tells whether a voter has an entry of the newest epoch and hears the master that made it.
func (g *groupEntry) elected(v *groupView, current voterSet) bool {
	return slices.ContainsFunc(current, func(id ids.ReplicaID) bool {
		r := v.replicas[id]
		return v.fresh(id) && r.epoch == g.Epoch && r.lastTerm.Epoch() == g.Epoch && r.masterSilent < goneAfter && !r.masterClosed
	})
}

// decideMembers keeps the set of a group with a master.
func (g *groupEntry) decideMembers(v *groupView, master ids.ReplicaID) decision {
	current := g.voters()
	for _, id := range current {
		m := v.replicas[master].members[id]
		lost := g.replica(id).Lost != ""
		if id == master || !lost && m.stalled < stalledAfter && !(m.closed && m.stalled >= goneAfter) {
			continue
		}
		why := fmt.Sprintf("replica %d on node %s answered nothing, or did not advance, for %v", id, g.replica(id).Node, m.stalled.Round(time.Millisecond))
		if lost {
			why = fmt.Sprintf("replica %d on node %s is lost", id, g.replica(id).Node)
		}
		if d := g.replaceVoter(v, current, id, master); d.voters != nil {
			d.reason = why
			return d
		}
	}
	if d := g.decideLost(v, master); d.voters != nil || d.renew != 0 {
		return d
	}
	return g.decideShape(v, master)
}

// replaceVoter returns the set without the voter id: with a learner in its place where the mode has one that is not far behind,
// else smaller.
func (g *groupEntry) replaceVoter(v *groupView, current voterSet, id, master ids.ReplicaID) decision {
	var learner ids.ReplicaID
	for _, r := range g.Replicas {
		m, known := v.replicas[master].members[r.ID]
		if !current.has(r.ID) && r.Lost == "" && !r.Learner && known && m.caughtUp > 0 && v.mayVote(r.ID) &&
			(learner == 0 || m.match > v.replicas[master].members[learner].match) {
			learner = r.ID
		}
	}
	smaller := current.without(id)
	for _, next := range []voterSet{smaller.with(learner), smaller} {
		if next.has(0) || !next.has(master) || !v.electable(next) || g.mayIssue(next) != nil {
			continue
		}
		d := decision{voters: next, campaign: master, left: id}
		if next.has(learner) {
			d.joined = learner
		}
		return d
	}
	return decision{}
}

// decideFailover: the newest epoch is active, and nobody is known to lead in it.
func (g *groupEntry) decideFailover(v *groupView) decision {
	current := g.voters()
	if first := g.staysOn(g.preferredNode()); g.Master.Replica == 0 && first != nil && v.replicas[first.ID].silent < v.silence && !g.misses(v, current) {
		// The group has never had a master: the first of `on` that may vote leads first.
		if v.mayVote(first.ID) {
			return decision{campaign: first.ID}
		}
		return decision{}
	}
	if !g.masterGone(v) {
		return decision{}
	}
	if v.electable(current) {
		return decision{campaign: g.best(v, current)}
	}
	// One voter at a time: the set without one that is silent, if those that are left can elect. A learner in its place keeps the
	// number of copies; one that is far behind would hold up the group, so it is taken only when nothing else is allowed.
	for _, id := range current {
		if v.fresh(id) {
			continue
		}
		smaller := current.without(id)
		sets := []voterSet{smaller}
		if learner, near := g.bestLearner(v, current); near {
			sets = []voterSet{smaller.with(learner), smaller}
		} else if learner != 0 {
			sets = append(sets, smaller.with(learner))
		}
		for _, next := range sets {
			if !v.electable(next) || g.mayIssue(next) != nil {
				continue
			}
			d := decision{voters: next, campaign: g.best(v, smaller), left: id,
				reason: fmt.Sprintf("replica %d on node %s is silent for %v and the others miss a master", id, g.replica(id).Node, v.replicas[id].silent.Round(time.Millisecond))}
			for _, other := range next {
				if !current.has(other) {
					d.joined = other
				}
			}
			return d
		}
	}
	return decision{stuck: g.waits(v, current)}
}

// misses tells whether a voter is lost, or was silent for so long that nobody should wait for it.
func (g *groupEntry) misses(v *groupView, set voterSet) bool {
	return slices.ContainsFunc(set, func(id ids.ReplicaID) bool {
		return g.replica(id).Lost != "" || !v.live(id) && !v.replicas[id].early
	})
}

// bestLearner returns the learner that has the longest log, 0 when there is none, and whether it is near the end of the voters'
// logs.
func (g *groupEntry) bestLearner(v *groupView, current voterSet) (best ids.ReplicaID, near bool) {
	var learners voterSet
	for _, r := range g.Replicas {
		if !current.has(r.ID) && r.Lost == "" && !r.Learner {
			learners = append(learners, r.ID)
		}
	}
	if best = g.best(v, learners); best == 0 {
		return 0, false
	}
	l, m := v.replicas[best], v.replicas[g.best(v, current)]
	return best, l.last+nearEnd >= m.last
}

// masterGone tells whether the master that the group had is not there any more: its node is silent and a voter confirms that it
// hears no master, or no voter is there to ask; or it is there and says itself that it does not lead.
func (g *groupEntry) masterGone(v *groupView) bool {
	m, known := v.replicas[g.Master.Replica]
	if !known { // it never had one, or its report is on its way
		return !g.elected(v, g.voters())
	}
	if m.heard && m.silent < freshWithin {
		// It is there, and does not lead. A voter that hears another master knows better.
		return !m.able || m.masterSilent >= goneAfter
	}
	confirmed := false
	for _, id := range g.voters() {
		r := v.replicas[id]
		if !v.fresh(id) || id == g.Master.Replica {
			continue
		}
		if r.masterSilent < goneAfter && !r.masterClosed {
			return false // it hears one, of which the controller has not heard yet
		}
		confirmed = true
	}
	return m.silent >= freshWithin && (confirmed || m.silent >= v.silence)
}

// waits tells what a group without master waits for.
func (g *groupEntry) waits(v *groupView, set voterSet) string {
	var missing []string
	for _, id := range set {
		if r := g.replica(id); r.Lost != "" {
			missing = append(missing, fmt.Sprintf("replica %d on node %s, which is lost for ever (%s)", id, r.Node, r.Lost))
		} else if !v.fresh(id) {
			missing = append(missing, fmt.Sprintf("replica %d on node %s", id, r.Node))
		}
	}
	return fmt.Sprintf("%d of the voters %v are needed to elect a master; not there: %v%s", majority(len(set)), set, missing, g.heldByMinISR(v))
}

// heldByMinISR says which min ISR would let the others go on, who have all that was answered OK; "" when it is not the min ISR that a group
// without master waits for.
func (g *groupEntry) heldByMinISR(v *groupView) string {
	for _, id := range g.Since[0] {
		smaller, relaxed := g.Since[0].without(id), *g
		relaxed.MinISR = len(smaller)
		if len(smaller) > 0 && len(smaller) < g.least() && v.electable(smaller) && relaxed.mayIssue(smaller) == nil {
			return fmt.Sprintf("; the min ISR is %d: `ledgermq admin group set-mode %s %d-%d --min-isr %d` lets the others go on, who have all that was answered OK",
				g.MinISR, g.Name, g.Answers, g.Members, len(smaller))
		}
	}
	return ""
}
