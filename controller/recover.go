package controller

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// This file has how the state is made anew when the disks of all controllers are lost, from what is durable on the nodes. It is pure;
// recovering.go gathers the testimonies.
//
//	nodes ──testify: records that they have adopted──▶ newest record of each group ──a majority of its voters is whole──▶ epoch e'
//	                                                                               └─else─▶ only an unclean election goes on
//
// Why nothing that was answered OK is lost. Let e be the newest epoch that an answering node has adopted, and let a majority of its voters
// answer. A later epoch k that was issued may have committed something only if a majority of its voters had adopted it. Such a majority
// meets every majority of e's voters, for e was no older than the last active epoch when k was issued; so one of those that answer
// would have adopted k, and none has. From then on nobody issues anything but the new controllers: nodes that answered hold to them. What
// was issued and is still on its way overlaps e's voters, so the new epoch e' has exactly these, until it is active: whoever is elected
// in it has all that was committed before, in e, and in whatever k might still come to life until a majority is in e'. After that it cannot.
//
// What remains. An unclean election begins a history that does not overlap the one before. If nobody who answers has heard of it, then
// whoever went on alone is a member of the newest known record that does not answer, or whose node has no folder of it any more, since
// others took its place later: what its node keeps of it in lost/ then tells of those, who must answer too. So each member that does not answer, voter or learner, must be named as stopped for ever, and
// of one whose folder is gone the plan says what that may mean. It is the operator who says that what only those have is given up.
//
// A replica that is stopped, or whose folder is gone, is named in e' with an incarnation that no folder has: should it come back in spite
// of all, it parks as soon as it sees the record. One that says itself that it is lost has that on its disk; of an asynchronous group it
// may still be chosen to go on.

// Numbers that the lost controllers may have given are not given again: the new ones are round and leave out at least these many. An epoch that
// no answering node has seen was issued at most every 200 ms, and each one that gets no master makes the next one wait for longer.
const (
	epochsLeft   = 500_000
	epochRound   = 1_000_000
	replicasLeft = 50_000
	replicaRound = 100_000
)

// nextRound is the first number after a multiple of round, and more than left behind known.
func nextRound(known, left, round uint64) uint64 { return (known+left+round-1)/round*round + 1 }

// recoveryPlan is what the testimonies come to.
type recoveryPlan struct {
	state   *State   // nil while something is in the way
	blocked []string // what is in the way
	notes   []string
	cluster hexID
	groups  []*pb.RecoveredGroup
}

func (p *recoveryPlan) block(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.blocked, text) {
		p.blocked = append(p.blocked, text)
	}
}

func (p *recoveryPlan) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// recovery is what a plan is made of.
type recovery struct {
	number  uint32
	token   hexID
	heard   map[ids.NodeID]*pb.Testimony
	stopped []ids.NodeID
	millis  int64 // now, since 1970
	absent  map[ids.NodeID][]string
	plan    *recoveryPlan
}

// oldReplica is a replica that a node has testified about.
type oldReplica struct {
	*pb.ReplicaTestimony
	node   ids.NodeID
	record *raftlog.EpochRecord // nil: it has adopted none
}

// planRecovery makes the state that follows from what the nodes have testified, or tells what is in the way. stopped are the nodes of
// which an operator says that they will never act with what they have.
func planRecovery(number uint32, token hexID, list []*pb.Testimony, stopped []ids.NodeID, millis int64) *recoveryPlan {
	r := &recovery{number: number, token: token, heard: map[ids.NodeID]*pb.Testimony{}, stopped: stopped, millis: millis,
		absent: map[ids.NodeID][]string{}, plan: &recoveryPlan{}}
	p := r.plan
	r.hear(list)
	if len(p.blocked) > 0 {
		return p
	}
	s := r.newState()
	known := map[ids.NodeID]bool{}
	for _, n := range r.nodes() {
		for _, other := range r.heard[n].GetPeers() {
			known[ids.NodeID(other)] = true
		}
	}
	newest := r.removedGroups(s)
	groups := r.groups(s.removed)
	for _, name := range sortedKeys(groups) {
		for _, o := range groups[name] {
			newest = max(newest, ids.ReplicaID(o.GetReplicaId()))
			for _, m := range o.members() {
				newest = max(newest, m.ID)
				known[m.Node] = true
			}
			for _, w := range o.GetWishes().GetReplicas() {
				newest = max(newest, ids.ReplicaID(w.GetReplicaId()))
			}
		}
	}
	s.cluster.NextReplica = ids.ReplicaID(nextRound(uint64(newest), replicasLeft, replicaRound))
	for _, name := range sortedKeys(groups) {
		r.recoverGroup(s, name, groups[name])
	}
	r.tellAbsent(known)
	if len(p.blocked) > 0 {
		return p
	}
	if err := s.Check(); err != nil {
		p.block("what the nodes have does not fit together: %v", err)
		return p
	}
	if len(s.groups) == 0 {
		p.note("no answering node has a group")
	}
	p.state = s
	return p
}

// hear sorts the testimonies, and finds those that cannot stand beside each other.
func (r *recovery) hear(list []*pb.Testimony) {
	p := r.plan
	var first ids.NodeID
	for _, t := range list {
		id := ids.NodeID(t.GetNodeId())
		var cluster hexID
		copy(cluster[:], t.GetClusterId())
		switch other := r.heard[id]; {
		case other != nil:
			p.block("two nodes say that they are %s, at %s and %s: stop the one that is not", id, orUnknown(other.GetPeerAddress()), orUnknown(t.GetPeerAddress()))
			continue
		case cluster.isZero():
			p.note("node %s belongs to no cluster yet: it has nothing to tell", id)
			continue
		case p.cluster.isZero():
			p.cluster, first = cluster, id
		case p.cluster != cluster:
			p.block("node %s belongs to cluster %v, node %s to %v: stop the nodes that are not of this cluster", first, ids.ClusterID(p.cluster), id, ids.ClusterID(cluster))
		}
		if err := OwnLevels().Check(Level(t.GetLevel())); err != nil {
			p.block("node %s: %v", id, err)
		}
		r.heard[id] = t
	}
	if len(r.heard) == 0 && len(p.blocked) == 0 {
		p.block("no node of a cluster has testified yet: nodes do when no controller leads at the addresses that they know, so let this one listen at one of those, " +
			"or start the nodes with --controllers that has one of those and this one")
	}
	for _, n := range r.stopped {
		if r.heard[n] != nil {
			p.block("--stopped %s: it is not stopped: it answers at %s", n, orUnknown(r.heard[n].GetPeerAddress()))
		}
	}
}

func (r *recovery) nodes() []ids.NodeID { return sortedKeys(r.heard) }

// newState has the cluster and its nodes.
func (r *recovery) newState() *State {
	s := NewState()
	s.cluster.Cluster, s.cluster.Recovery, s.cluster.Level = r.plan.cluster, r.number, 2 // the least that knows of recoveries
	lists := map[string]int{}
	for _, n := range r.nodes() {
		t := r.heard[n]
		e := &nodeEntry{ID: n, Addresses: addresses{Peer: t.GetPeerAddress()}}
		copy(e.CheckCode[:], t.GetCheckCode())
		s.nodes[n] = e
		s.cluster.Level = max(s.cluster.Level, Level(t.GetLevel()))
		if list := t.GetNamesrv(); len(list) > 0 && checkNamesrv(list) == nil {
			lists[strings.Join(list, ",")]++
		}
	}
	best := ""
	for _, list := range sortedKeys(lists) {
		if best == "" || lists[list] > lists[best] {
			best = list
		}
	}
	if best != "" {
		s.cluster.Namesrv = strings.Split(best, ",")
	}
	if len(lists) > 1 {
		r.plan.note("the nodes do not agree on the list of name servers: %s is taken", best)
	}
	for _, n := range r.nodes() {
		if levels := LevelsOf(r.heard[n].GetLevels()); !levels.has(s.level()) {
			r.plan.block("node %s understands the feature levels %v, and this needs %d: start the new program there", n, levels, s.level())
		}
	}
	return s
}

// removedGroups finds the groups of which a node knows that they were removed, and returns the greatest replica id that they had. A node that
// has not heard of it may have a replica of one: the group is not made again.
func (r *recovery) removedGroups(s *State) (newest ids.ReplicaID) {
	for _, n := range r.nodes() {
		for _, t := range slices.Concat(r.heard[n].GetReplicas(), r.heard[n].GetRetired()) {
			e := &removedEntry{Name: t.GetGroupName(), Millis: r.millis}
			copy(e.ID[:], t.GetGroupId())
			if !t.GetRemoved() || e.ID.isZero() || !groupName.MatchString(e.Name) {
				continue
			}
			newest = max(newest, ids.ReplicaID(t.GetReplicaId()))
			if record, err := raftlog.DecodeEpochRecord(t.GetEpochRecord()); err == nil && record.Group == ids.GroupID(e.ID) {
				e.Epoch = record.Epoch
			}
			if known := s.removed[e.ID]; known == nil {
				s.removed[e.ID] = e
				r.plan.note("group %s, %v, was removed: it stays so", e.Name, ids.GroupID(e.ID))
			} else {
				known.Epoch = max(known.Epoch, e.Epoch)
			}
		}
	}
	return newest
}

// groups sorts what was testified by the groups' names, without those that were removed.
func (r *recovery) groups(removed map[hexID]*removedEntry) map[string][]oldReplica {
	p := r.plan
	out := map[string][]oldReplica{}
	where := map[ids.ReplicaID]ids.NodeID{}
	names := map[ids.GroupID]string{}
	for _, n := range r.nodes() {
		for _, t := range r.heard[n].GetReplicas() {
			var group ids.GroupID
			copy(group[:], t.GetGroupId())
			if removed[hexID(group)] != nil {
				continue
			}
			o := oldReplica{ReplicaTestimony: t, node: n}
			id, name := ids.ReplicaID(t.GetReplicaId()), t.GetGroupName()
			if t.GetUnready() != "" {
				p.block("node %s cannot tell yet what its replica of group %s has: %s", n, cmp.Or(name, group.String()), t.GetUnready())
				continue
			}
			if !groupName.MatchString(name) || id == 0 {
				p.block("node %s has replica %d of a group %q: its replica.json is damaged", n, id, cut(name))
				continue
			}
			if other, twice := where[id]; twice {
				p.block("the nodes %s and %s both say that they have replica %d: one of them is a copy: stop it", other, n, id)
			}
			where[id] = n
			if known, ok := names[group]; ok && known != name {
				p.block("group %v is named %s and %s: a replica.json is damaged", group, known, name)
			}
			names[group] = name
			if b := t.GetEpochRecord(); len(b) > 0 {
				record, err := raftlog.DecodeEpochRecord(b)
				switch {
				case err != nil:
					p.block("node %s, group %s: its epoch record is damaged: %v", n, name, err)
					continue
				case record.Group != group || record.Cluster != ids.ClusterID(p.cluster):
					p.block("node %s, group %s: its epoch record is of another group or cluster", n, name)
					continue
				}
				o.record = &record
			}
			out[name] = append(out[name], o)
		}
	}
	return out
}

func (o *oldReplica) members() []raftlog.Member {
	if o.record == nil {
		return nil
	}
	return slices.Concat(o.record.Voters, o.record.Learners)
}

// need says that a node that does not answer has a replica which counts.
func (r *recovery) need(n ids.NodeID, what string) {
	if r.heard[n] == nil && !slices.Contains(r.stopped, n) {
		r.absent[n] = append(r.absent[n], what)
	}
}

// recoverGroup makes one group anew.
func (r *recovery) recoverGroup(s *State, name string, list []oldReplica) {
	p := r.plan
	// The newest record first; of equal ones that of the lowest slot.
	slices.SortStableFunc(list, func(a, b oldReplica) int {
		return cmp.Or(cmp.Compare(b.epoch(), a.epoch()), cmp.Compare(a.GetSlot(), b.GetSlot()))
	})
	newest := list[0].record
	for i, o := range list {
		if string(o.GetGroupId()) != string(list[0].GetGroupId()) {
			p.block("two groups are named %s, on the nodes %s and %s: one of them must not be recovered: stop its nodes", name, list[0].node, o.node)
			return
		}
		for _, other := range list[:i] {
			if o.record != nil && other.record != nil && o.record.Epoch == other.record.Epoch && o.record.Hash() != other.record.Hash() {
				p.block("group %s: the nodes %s and %s have two different records of epoch %d", name, other.node, o.node, o.record.Epoch)
				return
			}
		}
	}
	if newest == nil {
		for _, o := range list {
			for _, w := range o.GetWishes().GetReplicas() {
				r.need(ids.NodeID(w.GetNodeId()), "group "+name)
			}
		}
		p.note("group %s is not recovered: no answering node has an epoch record of it; its folder on %s is left as it is", name, list[0].node)
		return
	}
	if uint64(newest.Epoch)+epochsLeft+epochRound+1 > math.MaxUint32 {
		p.block("group %s: no epoch is left after %d", name, newest.Epoch)
		return
	}
	g := &groupEntry{Name: name, ID: hexID(newest.Group), SegmentSize: newest.SegmentSize, Async: list[0].GetAsyncFlush(), After: min(s.after(name), newest.Epoch)}
	out := &pb.RecoveredGroup{Name: name, KnownEpoch: uint32(newest.Epoch)}
	p.groups = append(p.groups, out)
	whole := 0
	for _, m := range list[0].members() {
		e := replicaEntry{ID: m.ID, Slot: m.Slot, Node: m.Node, Incarnation: hexID(m.Incarnation)}
		r.need(m.Node, fmt.Sprintf("replica %d of group %s", m.ID, name))
		var itself bool
		if e.Starts, e.Lost, itself = r.judge(list, m); e.Lost != "" {
			if !itself {
				e.Incarnation = noFolder(m.Incarnation, r.token)
			}
			out.Notes = append(out.Notes, fmt.Sprintf("replica %d on node %s is lost: %s", e.ID, e.Node, e.Lost))
			if r.heard[m.Node] != nil && r.folderGone(list, m) {
				out.Notes = append(out.Notes, fmt.Sprintf("should replica %d have gone on alone after an unclean election, and others have taken its place, they have what came after: "+
					"look into `lost/` on node %s, and let all nodes run before this is done", e.ID, e.Node))
			}
		}
		if newest.IsVoter(m.ID) {
			out.Voters = append(out.Voters, string(m.Node))
			if e.Lost == "" && r.heard[m.Node] != nil {
				out.Heard = append(out.Heard, string(m.Node))
				whole++
			}
		}
		g.Replicas = append(g.Replicas, e)
	}
	r.laterElsewhere(newest, out)
	g.sortReplicas()
	if !r.shape(s, g, list, newest) {
		out.Notes = append(out.Notes, fmt.Sprintf("its mode is not known: it is %d-%d now, with a min ISR of %d; `group set-mode` changes it", g.Answers, g.Members, g.MinISR))
	}
	for _, e := range g.Replicas {
		if s.nodes[e.Node] == nil { // whoever comes first with that id has it
			s.nodes[e.Node] = &nodeEntry{ID: e.Node}
		}
	}
	var voters voterSet
	for _, m := range newest.Voters {
		voters = append(voters, m.ID)
	}
	slices.Sort(voters)
	out.Sure = whole >= majority(len(voters))
	g.Active, g.Since = newest.Epoch, []voterSet{voters}
	g.Epoch = ids.Epoch(nextRound(uint64(newest.Epoch), epochsLeft, epochRound)) - 1
	s.issue(g, voters)
	g.Recovered = g.Epoch
	out.Epoch = uint32(g.Epoch)
	why := fmt.Sprintf("the controllers were recovered; epoch %d was the newest that a node knew", newest.Epoch)
	if !out.Sure {
		why += ", and too few of its voters are left"
		out.Notes = append(out.Notes, fmt.Sprintf("%d of its %d voters are whole, a majority is %d: it gets no master by itself. `group elect-unclean` lets one of them go on, "+
			"which may lack what was answered OK", whole, len(voters), majority(len(voters))))
	}
	g.remember(change{Epoch: g.Epoch, Voters: voters, Reason: why, Millis: r.millis})
	s.groups[name] = g
	s.byID[ids.GroupID(g.ID)] = g
}

func (o *oldReplica) epoch() ids.Epoch {
	if o.record == nil {
		return 0
	}
	return o.record.Epoch
}

// laterElsewhere looks for an epoch that only a replica has adopted which was taken out since: others went on, after an unclean election
// perhaps, and they must answer.
func (r *recovery) laterElsewhere(newest *raftlog.EpochRecord, out *pb.RecoveredGroup) {
	var later *raftlog.EpochRecord
	on := ids.NodeID("")
	for _, n := range r.nodes() {
		for _, t := range r.heard[n].GetRetired() {
			record, err := raftlog.DecodeEpochRecord(t.GetEpochRecord())
			if err != nil || record.Group != newest.Group || record.Cluster != newest.Cluster || record.Epoch <= newest.Epoch || later != nil && record.Epoch <= later.Epoch {
				continue
			}
			later, on = &record, n
		}
	}
	if later == nil {
		return
	}
	for _, m := range slices.Concat(later.Voters, later.Learners) {
		r.need(m.Node, fmt.Sprintf("replica %d of epoch %d of group %s, which only `lost/` on node %s tells of", m.ID, later.Epoch, out.GetName(), on))
	}
	out.Notes = append(out.Notes, fmt.Sprintf("`lost/` on node %s tells of epoch %d, which no running replica has adopted: what its voters went on with is not here", on, later.Epoch))
}

// folderGone tells whether no node has the member's folder of that incarnation.
func (r *recovery) folderGone(list []oldReplica, m raftlog.Member) bool {
	return !slices.ContainsFunc(list, func(o oldReplica) bool {
		return ids.ReplicaID(o.GetReplicaId()) == m.ID && string(o.GetIncarnation()) == string(m.Incarnation[:])
	})
}

// judge tells how often the replica was started, and why it is lost, "" when it is not; itself: it says so itself.
func (r *recovery) judge(list []oldReplica, m raftlog.Member) (starts uint64, lost string, itself bool) {
	if slices.Contains(r.stopped, m.Node) {
		return 0, fmt.Sprintf("node %s was said to be stopped for ever when the controllers were recovered", m.Node), false
	}
	if r.heard[m.Node] == nil {
		return 0, "", false // it is in the way, and told as such
	}
	i := slices.IndexFunc(list, func(o oldReplica) bool { return ids.ReplicaID(o.GetReplicaId()) == m.ID })
	if i < 0 {
		return 0, fmt.Sprintf("node %s has no folder of it: its data was wiped or replaced", m.Node), false
	}
	o := list[i]
	switch {
	case o.node != m.Node:
		r.plan.block("replica %d is on node %s, its records say %s: one of them is a copy: stop it", m.ID, o.node, m.Node)
	case string(o.GetIncarnation()) != string(m.Incarnation[:]):
		return 0, fmt.Sprintf("node %s has another incarnation of it: its data was wiped or replaced", m.Node), false
	case o.GetLost() != "":
		return o.GetStarts(), cut(o.GetLost()), true
	}
	return o.GetStarts(), "", false
}

// noFolder is an incarnation that no folder has.
func noFolder(i ids.Incarnation, token hexID) hexID {
	sum := sha256.Sum256(slices.Concat([]byte("lost"), i[:], token[:]))
	return hexID(sum[:16])
}

func (g *groupEntry) sortReplicas() {
	slices.SortFunc(g.Replicas, func(a, b replicaEntry) int { return cmp.Compare(a.Slot, b.Slot) })
}

// shape gives the group what stands in no record: as the nodes were told last, else what the record lets guess; then it is false.
func (r *recovery) shape(s *State, g *groupEntry, list []oldReplica, record *raftlog.EpochRecord) bool {
	for _, o := range list {
		w := o.GetWishes()
		if w == nil {
			continue
		}
		next, trial := s.cluster.NextReplica, *g
		trial.Replicas = slices.Clone(g.Replicas)
		trial.Answers, trial.Members, trial.MinISR, trial.Preferred = int(w.GetAnswers()), int(w.GetMembers()), int(w.GetMinIsr()), ids.NodeID(w.GetPreferredNode())
		for _, wish := range w.GetReplicas() {
			slot, node := ids.Slot(wish.GetSlot()), ids.NodeID(wish.GetNodeId())
			if e := trial.replica(ids.ReplicaID(wish.GetReplicaId())); e != nil {
				e.Learner, e.Leaving = wish.GetLearner(), wish.GetLeaving()
				continue
			}
			taken := func(e replicaEntry) bool { return e.Slot == slot || e.Node == node }
			if wish.GetLeaving() || slices.ContainsFunc(trial.Replicas, taken) {
				continue
			}
			// It is in no record: what is known of its id ended with the controllers, so its place gets a new one, which begins empty.
			trial.Replicas = append(trial.Replicas, replicaEntry{ID: next, Slot: slot, Node: node, Learner: wish.GetLearner()})
			next++
		}
		trial.sortReplicas()
		if trial.staysOn(trial.Preferred) == nil {
			trial.Preferred = ""
		}
		// A node that had lost the controllers before may have old wishes; what the record has of the mode is never older.
		agrees := trial.Answers == int(record.A) && trial.minISRWith(len(record.Voters)) == int(record.MinISR)
		if agrees && CheckMode(trial.Answers, trial.Members) == nil && trial.staying() == trial.Members && trial.checkShape() == nil {
			*g, s.cluster.NextReplica = trial, next
			return true
		}
	}
	g.Members = len(g.Replicas)
	g.Answers = min(int(record.A), g.Members)
	g.MinISR = min(int(record.MinISR), g.modeVoters())
	return false
}

// tellAbsent tells which nodes do not answer, and which of them are in the way. known are those that answering nodes know.
func (r *recovery) tellAbsent(known map[ids.NodeID]bool) {
	p := r.plan
	for _, n := range sortedKeys(r.absent) {
		what := r.absent[n]
		if len(what) > 3 {
			what = append(slices.Clone(what[:3]), fmt.Sprintf("%d more", len(what)-3))
		}
		p.block("node %s does not answer, and has %s: start it, or make sure that it is stopped for ever and say --stopped %s", n, strings.Join(what, ", "), n)
	}
	for _, n := range sortedKeys(known) {
		if r.heard[n] == nil && r.absent[n] == nil && !slices.Contains(r.stopped, n) {
			p.note("node %s does not answer: what only such nodes have is not recovered", n)
		}
	}
	for _, n := range r.stopped {
		if !known[n] && r.heard[n] == nil {
			p.block("--stopped %s: no answering node knows a node of that name", n)
		}
	}
}
