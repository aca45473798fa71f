package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// An election that an operator asks for is refused, with the reason, when the replica cannot lead or would have to lack something.
func TestElect(t *testing.T) {
	t.Parallel()
	change := func(id ids.ReplicaID, f func(*replicaView)) func(*story) {
		return func(st *story) {
			v := st.v.replicas[id]
			f(&v)
			st.v.replicas[id] = v
		}
	}
	for _, tt := range []struct {
		name string
		a, m int
		node ids.NodeID
		do   func(*story)
		kind error
		says string
	}{
		{"a voter that has caught up", 2, 3, "n2", nil, nil, ""},
		{"the master", 2, 3, "n1", nil, nil, ""},
		{"no replica there", 2, 3, "n9", nil, ErrInvalid, `no replica on node "n9": its replicas are on n1, n2, n3`},
		{"a learner", 2, 4, "n4", nil, ErrNotNow, "not a voter of epoch 1"},
		{"a silent one", 2, 3, "n2", func(st *story) { st.dead(2) }, ErrNotNow, "not heard for 2s"},
		{"a parked one", 2, 3, "n2", change(2, func(v *replicaView) { v.able = false }), ErrNotNow, "parked"},
		{"one that leaves", 2, 3, "n2", change(2, func(v *replicaView) { v.leaving = true }), ErrNotNow, "about to end"},
		{"no master", 2, 3, "n2", change(1, func(v *replicaView) { v.master = false }), ErrNotNow, "no master"},
		{"one that is behind", 2, 3, "n2", change(1, func(v *replicaView) { v.members[2] = memberView{match: 40} }), ErrNotNow, "up to entry 40, the master up to 100"},
		{"one that does not advance", 2, 3, "n2", change(1, func(v *replicaView) {
			v.members[2] = memberView{match: 40, stalled: time.Second, caughtUp: time.Second}
		}), ErrNotNow, "behind"},
		{"a change of the membership", 2, 3, "n2", func(st *story) { st.g.Epoch++ }, ErrNotNow, "epoch 2"},
	} {
		st := tell(t, tt.a, tt.m, 0)
		if tt.do != nil {
			tt.do(st)
		}
		o, err := st.g.elect(&st.v, tt.node)
		switch {
		case tt.kind == nil:
			if err != nil || o.master != 1 || st.g.replica(o.to).Node != tt.node || o.term != st.g.Master.Term {
				t.Errorf("%s: %+v, %v", tt.name, o, err)
			}
		case !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says):
			t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.kind, tt.says)
		}
	}
}

// The order reaches the master that it is for, once, and no other one.
func TestElectOrder(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 0)
	becomeMaster(t, s, g, 1)
	now := time.Unix(1_000, 0)
	l := NewLeader(time.Second)
	l.Begin(now, 1)
	hear := func(node ids.NodeID, sequence uint64, rep *pb.ReplicaReport) {
		rep.GroupId, rep.Epoch, rep.Term = g.ID[:], uint32(g.Epoch), uint64(g.Master.Term)
		l.hear(now, node, s.nodes[node].Session, sequence, OwnLevels(), []*pb.ReplicaReport{rep})
	}
	hear("n1", 1, &pb.ReplicaReport{ReplicaId: 1, Role: pb.Role_ROLE_MASTER, Members: []*pb.MemberReport{{ReplicaId: 2, CaughtUpMillis: 500}}})
	hear("n2", 1, &pb.ReplicaReport{ReplicaId: 2, Role: pb.Role_ROLE_FOLLOWER})
	if err := l.Elect(now, s, "nobody", "n2"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a group that is not there: %v", err)
	}
	must(t, l.Elect(now, s, g.Name, "n2"))
	given := func(node ids.NodeID) (to, term uint64) {
		for _, w := range l.Wanted(now, s, node) {
			to, term = w.HandOverTo, w.HandOverTerm
		}
		return to, term
	}
	if to, _ := given("n2"); to != 0 {
		t.Errorf("a slave is told to hand over to %d", to)
	}
	if to, term := given("n1"); to != 2 || term != uint64(g.Master.Term) {
		t.Errorf("the master is told to hand over to %d in term %d", to, term)
	}
	if to, _ := given("n1"); to != 0 {
		t.Errorf("the master is told a second time to hand over to %d", to)
	}
}

// Of voters with equal logs one that stays is named master, and a learner that leaves gets no vote.
func TestLeavingReplicas(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 0)
	leaves := func(id ids.ReplicaID) {
		v := st.v.replicas[id]
		v.leaving = true
		st.v.replicas[id] = v
	}
	st.dead(1)
	leaves(2)
	st.want(decision{campaign: 3})

	st = tell(t, 2, 2, 0)
	st.dead(2)
	st.apply()
	st.well(1)
	leaves(2)
	st.want(decision{})
}

// An epoch in which a master goes on is issued when its node speaks, whose answer then has the record and the order to campaign. One
// that another replica is to lead waits for nobody.
func TestEpochWaitsForItsMaster(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 1)
	becomeMaster(t, s, g, 1)
	now := time.Unix(1_000, 0)
	l := NewLeader(time.Second)
	l.Begin(now, 1)
	hear := func(id ids.ReplicaID, sequence uint64, rep *pb.ReplicaReport) {
		node := g.replica(id).Node
		rep.GroupId, rep.ReplicaId, rep.Epoch, rep.Term = g.ID[:], uint64(id), uint32(g.Epoch), uint64(g.Master.Term)
		rep.LastIndex, rep.LastTerm = uint64(100+id), uint64(g.Master.Term)
		l.hear(now, node, s.nodes[node].Session, sequence, OwnLevels(), []*pb.ReplicaReport{rep})
	}
	issued := func(node ids.NodeID) *issueEpochCommand {
		t.Helper()
		for _, p := range l.Decide(now, s, node) {
			must(t, s.Apply(p.Command))
			p.Done(now, nil)
			return p.Command.(*issueEpochCommand)
		}
		return nil
	}
	campaigns := func(node ids.NodeID) bool {
		w := l.Wanted(now, s, node)[0]
		return w.GetCampaign() && w.GetEpochRecord() != nil
	}
	hear(1, 1, &pb.ReplicaReport{Role: pb.Role_ROLE_MASTER, Members: []*pb.MemberReport{{ReplicaId: 2, CaughtUpMillis: 500}, {ReplicaId: 3, StalledMillis: 2000}}})
	hear(2, 1, &pb.ReplicaReport{Role: pb.Role_ROLE_FOLLOWER})
	if c := issued("n2"); c != nil {
		t.Fatalf("issued when a slave's node spoke: %+v", c)
	}
	if c := issued("n1"); c == nil || len(c.Voters) != 2 {
		t.Fatalf("issued when the master's node spoke: %+v", c)
	}
	if issued("n2") != nil || campaigns("n2") || !campaigns("n1") {
		t.Error("it is not the master alone that is told of its epoch, and to campaign")
	}

	becomeMaster(t, s, g, 1)
	hear(1, 2, &pb.ReplicaReport{Role: pb.Role_ROLE_MASTER, Members: []*pb.MemberReport{{ReplicaId: 2, CaughtUpMillis: 500}}})
	now = now.Add(2 * time.Second)
	hear(2, 2, &pb.ReplicaReport{Role: pb.Role_ROLE_FOLLOWER, MasterSilentMillis: 2000})
	if c := issued("n2"); c == nil || !slices.Equal(c.Voters, voterSet{2}) {
		t.Fatalf("issued when the master is dead: %+v", c)
	}
	if !campaigns("n2") {
		t.Error("the one that lives is not told to campaign")
	}
}
