package controller

import (
	"errors"
	"testing"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// renewal tells how far the replica of a slot has come.
func (st *story) reports(node ids.NodeID, f replicaFacts) {
	st.t.Helper()
	f.Group = st.g.ID
	must(st.t, st.s.Apply(&reportCommand{Node: node, Session: st.s.nodes[node].Session, Replicas: []replicaFacts{f}}))
	must(st.t, st.s.Check())
}

// decides applies what is decided until nothing is left to do, with replica master leading, and returns how many steps it took.
func (st *story) decides(master ids.ReplicaID) (steps int) {
	st.t.Helper()
	for ; steps < 20; steps++ {
		st.well(master)
		d := st.g.decide(&st.v)
		switch {
		case d.renew != 0:
			must(st.t, st.s.Apply(&renewCommand{Group: st.g.ID, Replica: d.renew, Epoch: st.g.Epoch}))
		case d.voters != nil:
			must(st.t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: d.voters, Reason: d.reason}))
			becomeMaster(st.t, st.s, st.g, d.campaign)
		case d.handOver != 0:
			becomeMaster(st.t, st.s, st.g, d.handOver)
			master = d.handOver
		default:
			return steps
		}
		must(st.t, st.s.Check())
	}
	st.t.Fatalf("no end after %d steps: %+v", steps, st.g)
	return steps
}

// A wiped voter leaves, its slot gets a new id, and the new replica votes at last. The old id never comes back.
func TestLostReplicaIsFollowed(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct{ a, m int }{{2, 2}, {2, 3}, {3, 5}} {
		st := tell(t, mode.a, mode.m, 0)
		st.reports("n2", replicaFacts{Replica: 2, Missing: true})
		if n := st.decides(1); n != 2 {
			t.Errorf("mode %d-%d: %d steps, want two: it leaves the voters, and is followed", mode.a, mode.m, n)
		}
		heir := st.g.Replicas[1]
		if heir.ID != ids.ReplicaID(mode.m+1) || heir.Slot != 2 || heir.Node != "n2" || heir.Lost != "" || !heir.Incarnation.isZero() {
			t.Fatalf("mode %d-%d: the heir is %+v", mode.a, mode.m, heir)
		}
		st.reports("n2", replicaFacts{Replica: 2, Incarnation: hexOf(0x11), Starts: 99}) // the old one has nothing to say any more
		st.reports("n2", replicaFacts{Replica: heir.ID, Incarnation: hexOf(0x77), Starts: 1})
		if n := st.decides(1); n != 2 {
			t.Errorf("mode %d-%d: %d steps, want two: it learns, and votes", mode.a, mode.m, n)
		}
		if v := st.g.voters(); len(v) != min(mode.m, 2*mode.a-1) || !v.has(heir.ID) || v.has(2) {
			t.Errorf("mode %d-%d: in the end %v vote", mode.a, mode.m, v)
		}
	}
}

// A lost learner leaves the record before its slot goes to another one; a lost voter that the min ISR holds stays.
func TestLostReplicaBounds(t *testing.T) {
	t.Parallel()
	st := tell(t, 1, 2, 0)
	st.reports("n2", replicaFacts{Replica: 2, Incarnation: hexOf(0x11), Starts: 1, Lost: true})
	if st.g.replica(2).Lost == "" {
		t.Fatal("the replica's own word that it is lost was not taken")
	}
	if err := st.s.Apply(&renewCommand{Group: st.g.ID, Replica: 2, Epoch: st.g.Epoch}); !errors.Is(err, ErrInvalid) {
		t.Errorf("renewed while the record names it: %v", err)
	}
	if n := st.decides(1); n != 2 || st.g.Replicas[1].ID != 3 {
		t.Errorf("%d steps, %+v", n, st.g.Replicas[1])
	}

	held := tell(t, 2, 2, 2)
	held.reports("n2", replicaFacts{Replica: 2, Missing: true})
	if n := held.decides(1); n != 0 || held.g.replica(2) == nil {
		t.Errorf("%d steps although the min ISR holds the voter", n)
	}
}

func TestGiveUp(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 2)
	give := func(id ids.ReplicaID, heir ids.NodeID) error {
		before := st.s.Hash()
		err := st.s.Apply(&giveUpCommand{Group: st.g.ID, Replica: id, Heir: heir, Reason: "a test"})
		if err != nil && st.s.Hash() != before {
			t.Errorf("refused (%v), and changed the state", err)
		}
		must(t, st.s.Check())
		return err
	}
	for _, test := range []struct {
		id   ids.ReplicaID
		heir ids.NodeID
		kind error
	}{
		{9, "", ErrNotFound}, {3, "n9", ErrInvalid}, {3, "n1", ErrInvalid},
	} {
		if err := give(test.id, test.heir); !errors.Is(err, test.kind) {
			t.Errorf("replica %d for %q: %v", test.id, test.heir, err)
		}
	}
	must(t, give(3, "n4"))
	must(t, give(3, "n5")) // another mind
	must(t, give(3, "n4"))
	st.decides(1)
	if r := st.g.Replicas[2]; r.ID != 4 || r.Node != "n4" || r.Slot != 3 {
		t.Fatalf("the heir is %+v", r)
	}
	// The voters are two now, as few as the min ISR allows.
	if err := give(2, ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("a voter was given up below the min ISR: %v", err)
	}
	st.reports("n4", replicaFacts{Replica: 4, Incarnation: hexOf(0x44), Starts: 1})
	st.decides(1)
	if v := st.g.voters(); !v.has(4) || len(v) != 3 {
		t.Errorf("in the end %v vote", v)
	}
	must(t, give(2, ""))
	st.decides(1)
	if r := st.g.Replicas[1]; r.ID != 5 || r.Node != "n2" {
		t.Errorf("the heir on the same node is %+v", r)
	}
}

// A node is told whether an operator wanted that its replica goes: that is no fault of anything.
func TestPlannedLeave(t *testing.T) {
	t.Parallel()
	told := func(st *story, node ids.NodeID, id ids.ReplicaID) *pb.WantedReplica {
		t.Helper()
		if r := st.g.replica(id); r != nil {
			return st.s.wantedReplica(st.g, r)
		}
		list := st.s.givenUp(node, []*pb.ReplicaReport{{GroupId: st.g.ID.bytes(), ReplicaId: uint64(id)}})
		if len(list) != 1 || !list[0].GetRetired() || list[0].GetLost() == "" {
			t.Fatalf("%s is told %+v of a replica that is gone", node, list)
		}
		return list[0]
	}
	wants := func(what string, w *pb.WantedReplica, lost, planned bool) {
		t.Helper()
		if (w.GetLost() != "") != lost || w.GetPlanned() != planned {
			t.Errorf("%s: lost %q, planned %v", what, w.GetLost(), w.GetPlanned())
		}
	}
	st := tell(t, 2, 3, 2)
	wants("one that is well", told(st, "n3", 3), false, false)
	st.reports("n3", replicaFacts{Replica: 3, Missing: true})
	wants("one that was wiped", told(st, "n3", 3), true, false)

	st = tell(t, 2, 3, 2)
	must(t, st.s.Apply(&giveUpCommand{Group: st.g.ID, Replica: 3, Heir: "n4", Reason: "its disk is old"}))
	wants("one that is given up", told(st, "n3", 3), true, true)
	st.decides(1)
	wants("one that was given up", told(st, "n3", 3), true, true)

	st = tell(t, 2, 3, 0)
	must(t, st.setMode(SetMode{Answers: 2, Members: 3, On: []ids.NodeID{"n4"}, Remove: []ids.ReplicaID{3}}))
	st.reshapes(1, 3)
	wants("one that was moved", told(st, "n3", 3), true, true)
	if w := told(st, "n3", 3); w.GetMasterReplicaId() != 1 || len(w.GetOthers()) != 3 {
		t.Errorf("it is to forward to %d of %v", w.GetMasterReplicaId(), w.GetOthers())
	}

	st = lastOne(t)
	st.s.cluster.Level = NewestLevel
	must(t, st.unclean(3))
	wants("one that an unclean election gives up", told(st, "n1", 1), true, false)
	st.g.Replicas[0].ID = 9 // its place has a new one, on another node
	st.g.Replicas[0].Node = "n4"
	wants("one that an unclean election gave up", told(st, "n1", 1), true, false)
}
