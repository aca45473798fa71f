package controller

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// A group that is removed is forgotten but for its id, in the state, in what is written and in a snapshot. Its name is free, and a group that
// gets it begins behind its epochs.
func TestRemoveGroup(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 3)
	must(t, s.Apply(creation("g", 1, 2, 3)))
	must(t, s.Apply(creation("other", 2, 2, 3)))
	reportAll(t, s, "g")
	remove := &removeGroupCommand{Group: hexOf(1), Millis: 1_700_000_000_000}
	refused := func(c Command, kind error, says string) {
		t.Helper()
		before := s.Hash()
		if err := s.Apply(c); !errors.Is(err, kind) || !strings.Contains(err.Error(), says) || s.Hash() != before {
			t.Errorf("%+v: %v, want %v with %q and no change", c, err, kind, says)
		}
	}
	refused(remove, ErrNotNow, "the removal of a group needs the cluster's feature level 3")
	s.cluster.Level = NewestLevel
	refused(&removeGroupCommand{Group: hexOf(9)}, ErrNotFound, "does not exist")
	refused(&removeGroupCommand{Group: hexOf(1), Pending: true}, ErrInvalid, "ready by now")
	if _, err := s.PendingRemoval(time.Unix(1, 0), "g"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a group that is ready, as one that is not: %v", err)
	}
	g := s.groups["g"]
	must(t, s.Apply(&issueEpochCommand{Group: g.ID, Epoch: 1, Voters: voterSet{1, 2}, Reason: "x"}))
	s.takeChanges()
	must(t, s.Apply(remove))
	if c := s.takeChanges(); len(c) != 2 || c[0].key != "group/g" || c[0].value != nil || c[1].key != "removed/"+strings.Repeat("01", 16) || c[1].value == nil {
		t.Errorf("what is written: %+v", c)
	}
	before := s.Hash()
	must(t, s.Apply(remove)) // again
	if s.Hash() != before || len(s.takeChanges()) != 0 {
		t.Error("the second removal changed something")
	}
	again, err := decodeSnapshot(encodeSnapshot(s))
	must(t, err)
	if again.Hash() != before || !bytes.Equal(encodeSnapshot(again), encodeSnapshot(s)) {
		t.Error("a snapshot is not read as it was written")
	}
	s = again
	if err := s.unknownGroup("g"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "was removed at 2023-11-14T22:13:20Z") {
		t.Errorf("who asks for it is told: %v", err)
	}
	if uses := s.nodeUses("n1"); len(uses) != 1 || strings.Contains(uses[0], "group g") {
		t.Errorf("n1 is needed for %v", uses)
	}
	refused(creation("h", 1, 2, 3), ErrInvalid, "is taken")
	refused(&issueEpochCommand{Group: hexOf(1), Epoch: 2, Voters: voterSet{1, 2, 3}}, ErrNotFound, "does not exist")

	must(t, s.Apply(creation("g", 3, 2, 3)))
	must(t, s.Check())
	if n := s.groups["g"]; n.Epoch != 0 || n.After != 2 || n.Replicas[0].ID != 7 {
		t.Errorf("the new group: %+v", n)
	}
	reportAll(t, s, "g")
	n := s.groups["g"]
	if n.Epoch != 3 || n.Active != 3 || n.Record.Epoch != 3 || n.Record.Group != ids.GroupID(hexOf(3)) {
		t.Errorf("it begins with epoch %d, active %d", n.Epoch, n.Active)
	}
	must(t, s.Check())

	// One that has never been ready goes at once; and the name keeps its epochs.
	must(t, s.Apply(&removeGroupCommand{Group: hexOf(3)}))
	must(t, s.Apply(creation("g", 4, 2, 3)))
	c, err := s.PendingRemoval(time.Unix(1, 0), "g")
	must(t, err)
	must(t, s.Apply(c))
	must(t, s.Apply(creation("g", 5, 2, 3)))
	if n := s.groups["g"]; n.After != 3 {
		t.Errorf("the last group of the name begins after epoch %d", n.After)
	}
	if _, err := s.PendingRemoval(time.Unix(1, 0), "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a group that is not there: %v", err)
	}
	back, err := stateOf(s.entries())
	must(t, err)
	if back.Hash() != s.Hash() {
		t.Error("the state is not that of its entries")
	}
	bad := s.entries()
	for i, e := range bad {
		if strings.HasPrefix(e.key, keyRemovedPrefix) {
			bad[i].key = keyRemovedPrefix + strings.Repeat("ee", 16)
		}
	}
	if _, err := stateOf(bad); err == nil {
		t.Error("an entry under a wrong key is taken")
	}
}

// The controllers remove a group as soon as any replica says that it is frozen, whoever leads, and tell each node that still has a replica of
// it, also one that comes later; its own new group of that name is none of them.
func TestFrozenGroupIsRemoved(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 0)
	s.cluster.Level = NewestLevel
	now := time.Unix(1_000, 0)
	l := NewLeader(time.Second)
	l.Begin(now, 1)
	report := func(replica uint64, frozen bool) *pb.ReplicaReport {
		return &pb.ReplicaReport{GroupId: bytes.Clone(g.ID[:]), ReplicaId: replica, Incarnation: g.replica(ids.ReplicaID(replica)).Incarnation.bytes(), Epoch: uint32(g.Epoch), Role: pb.Role_ROLE_FOLLOWER, Frozen: frozen}
	}
	hear := func(node ids.NodeID, sequence uint64, reports ...*pb.ReplicaReport) {
		l.hear(now, node, s.nodes[node].Session, sequence, OwnLevels(), reports)
	}
	reports := []*pb.ReplicaReport{report(1, false), report(2, false), report(3, false)}
	hear("n2", 1, reports[1])
	for _, p := range l.Decide(now, s, "n2") {
		if _, removes := p.Command.(*removeGroupCommand); removes {
			t.Fatal("a group that is not frozen is removed")
		}
		p.Done(now, ErrStale)
	}
	hear("n3", 1, report(3, true))
	var list []*Proposal
	for i := range 3 { // a refusal, or a change of the leader, does not end it
		list = l.Decide(now, s, "n3")
		if len(list) != 1 {
			t.Fatalf("try %d: %d proposals", i, len(list))
		}
		if i < 2 {
			list[0].Done(now, ErrStale)
		}
	}
	if c := l.Describe(now, s, g.Name).GetChanging(); !slices.Contains(c, "it is frozen, and removed") {
		t.Errorf("group show says %q", c)
	}
	must(t, s.Apply(list[0].Command))
	list[0].Done(now, nil)
	if len(l.Decide(now, s, "n3")) != 0 || s.groups[g.Name] != nil {
		t.Error("the group is there still")
	}
	told := func(node ids.NodeID) []*pb.WantedReplica { return l.Wanted(now, s, node) }
	if w := told("n1"); len(w) != 0 {
		t.Errorf("n1, which has not said what it has, is told %v", w)
	}
	hear("n1", 1, reports[0]) // it was away
	for node, id := range map[ids.NodeID]uint64{"n1": 1, "n2": 2, "n3": 3} {
		w := told(node)
		if len(w) != 1 || w[0].GetReplicaId() != id || !w[0].GetRetired() || !w[0].GetRemoved() || !w[0].GetPlanned() || w[0].GetLost() != "group g was removed" || len(w[0].GetOthers()) != 0 {
			t.Errorf("%s is told %v", node, w)
		}
	}
	again := creation("g", 8, 2, 3)
	must(t, s.Apply(again))
	w := told("n1")
	if len(w) != 2 || w[0].GetReplicaId() != 4 || w[0].GetRetired() || !w[1].GetRemoved() {
		t.Errorf("with a new group of the name n1 is told %v", w)
	}
	hear("n1", 2)
	if w := told("n1"); len(w) != 1 || w[0].GetRetired() {
		t.Errorf("when the old folder is gone n1 is told %v", w)
	}
}

// A group that was removed is not made again from what the nodes have when all controllers are lost: one node knows of it.
func TestRecoverRemoved(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 0)
	s.cluster.Level = NewestLevel
	list := testify(s, g)
	list[2].Retired, list[2].Replicas = list[2].Replicas, nil
	list[2].Retired[0].Removed = true
	list[1].Replicas = nil
	p := planRecovery(1, hexOf(5), list, nil, 1000)
	if p.state == nil {
		t.Fatalf("blocked: %q", p.blocked)
	}
	if p.state.groups["g"] != nil || p.state.removed[g.ID] == nil || p.state.removed[g.ID].Epoch != g.Epoch || !strings.Contains(strings.Join(p.notes, "\n"), "was removed: it stays so") {
		t.Errorf("%+v, notes %q", p.state.removed, p.notes)
	}
	must(t, p.state.Check())
	must(t, p.state.Apply(creation("g", 8, 2, 3)))
	if n := p.state.groups["g"]; n.After != g.Epoch {
		t.Errorf("a new group of the name begins after epoch %d", n.After)
	}
}
