package controller

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// creates lets the nodes make the replicas that they have not made yet.
func (st *story) creates() {
	st.t.Helper()
	for _, r := range slices.Clone(st.g.Replicas) {
		if r.Incarnation.isZero() {
			st.reports(r.Node, replicaFacts{Replica: r.ID, Incarnation: hexOf(byte(0x80 + r.ID)), Starts: 1})
		}
	}
}

// mask is a set as bits, for the twin.
func mask(v voterSet) (m uint) {
	for _, id := range v {
		m |= 1 << id
	}
	return m
}

// reshapes applies what is decided, with all replicas well, until nothing is left, and holds each epoch against the rules as they are
// written: all majorities of neighbours meet, one voter at a time, never fewer than the min ISR once there were as many, and never
// fewer voters than least.
func (st *story) reshapes(master ids.ReplicaID, least int) (steps int) {
	st.t.Helper()
	for ; steps < 30; steps++ {
		st.creates()
		st.well(master)
		before, epoch := st.g.voters(), st.g.Epoch
		d := st.g.decide(&st.v)
		switch {
		case d.handOver != 0:
			if !before.has(d.handOver) || st.g.replica(d.handOver).Leaving {
				st.t.Fatalf("the master is to hand over to %d of %v", d.handOver, before)
			}
			becomeMaster(st.t, st.s, st.g, d.handOver)
			master = d.handOver
			continue
		case d.renew != 0:
			must(st.t, st.s.Apply(&renewCommand{Group: st.g.ID, Replica: d.renew, Epoch: st.g.Epoch}))
			must(st.t, st.s.Check())
			continue
		case d.voters == nil:
			return steps
		}
		must(st.t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: epoch, Voters: d.voters, Reason: d.reason}))
		must(st.t, st.s.Check())
		old, next := mask(before), mask(d.voters)
		for _, q := range majorities(next) {
			for _, w := range majorities(old) {
				if q&w == 0 {
					st.t.Fatalf("%v after %v: a majority of one meets none of the other", d.voters, before)
				}
			}
		}
		if bits.OnesCount(next&^old) > 1 || bits.OnesCount(old&^next) > 1 {
			st.t.Fatalf("%v after %v", d.voters, before)
		}
		if n := len(d.voters); n < least || n < min(st.g.MinISR, len(before)) || n > 5 {
			st.t.Fatalf("%v after %v: want %d at least, with a min ISR of %d", d.voters, before, least, st.g.MinISR)
		}
		if !d.voters.has(master) || d.campaign != master || d.reason == "" {
			st.t.Fatalf("master %d: %+v", master, d)
		}
		becomeMaster(st.t, st.s, st.g, d.campaign)
	}
	st.t.Fatalf("no end: %+v", st.g)
	return steps
}

// shaped demands that the group is what its mode says, and that nothing is left to be done.
func (st *story) shaped(a, m int) {
	st.t.Helper()
	g := st.g
	rec := g.Record
	if int(rec.A) != a || int(rec.MinISR) != g.MinISR || len(rec.Voters) != g.modeVoters() || len(rec.Voters)+len(rec.Learners) != m || len(g.Replicas) != m {
		st.t.Fatalf("mode %d-%d: the record %+v, replicas %+v", a, m, rec, g.Replicas)
	}
	nodes := nodeViews{heard: map[ids.NodeID]nodeView{}}
	for _, r := range g.Replicas {
		nodes.heard[r.Node] = nodeView{live: true, reports: map[ids.ReplicaID]*pb.ReplicaReport{r.ID: {Epoch: uint32(g.Epoch)}}}
	}
	if left := g.outstanding(nodes); left != nil {
		st.t.Fatalf("left to be done: %q", left)
	}
}

// setMode is an operator's command, as the leader makes it.
func (st *story) setMode(want SetMode) error {
	st.t.Helper()
	st.s.cluster.Level = NewestLevel
	cmd, err := st.s.setMode(st.g, &st.v, want)
	if err != nil {
		return err
	}
	hash := st.s.Hash()
	if err = st.s.Apply(cmd); err != nil && st.s.Hash() != hash {
		st.t.Fatalf("refused (%v), and changed the state", err)
	}
	if err == nil {
		must(st.t, st.s.Check())
		hash = st.s.Hash()
		must(st.t, st.s.Apply(cmd)) // again: nothing more
		if st.s.Hash() != hash {
			st.t.Fatalf("%+v is not the same the second time", cmd)
		}
	}
	return err
}

// Every change of one mode into another, with each replica as master: each step keeps the rules, and the end is the new mode.
func TestEveryChangeOfMode(t *testing.T) {
	t.Parallel()
	each := func(do func(a, m int)) {
		for m := 1; m <= 5; m++ {
			for a := 1; a <= m; a++ {
				do(a, m)
			}
		}
	}
	each(func(a, m int) {
		each(func(na, nm int) {
			for master := 1; master <= Voters(a, m); master++ {
				st := tell(t, a, m, 0)
				becomeMaster(t, st.s, st.g, ids.ReplicaID(master))
				st.well(ids.ReplicaID(master))
				want := SetMode{Answers: na, Members: nm}
				for k := m; k < nm; k++ {
					want.On = append(want.On, ids.NodeID(fmt.Sprintf("n%d", k+1)))
				}
				if err := st.setMode(want); err != nil {
					t.Fatalf("%d-%d to %d-%d: %v", a, m, na, nm, err)
				}
				if n := st.reshapes(ids.ReplicaID(master), min(Voters(a, m), Voters(na, nm))); n > 20 {
					t.Errorf("%d-%d to %d-%d takes %d steps", a, m, na, nm, n)
				}
				st.shaped(na, nm)
			}
		})
	})
}

// A replica moves to another node: the new one votes before the old one goes, also when that is the master or the only one.
func TestEveryMove(t *testing.T) {
	t.Parallel()
	for m := 1; m <= 4; m++ {
		for a := 1; a <= m; a++ {
			for id := 1; id <= m; id++ {
				for master := 1; master <= Voters(a, m); master++ {
					st := tell(t, a, m, 0)
					becomeMaster(t, st.s, st.g, ids.ReplicaID(master))
					st.well(ids.ReplicaID(master))
					preferred := st.g.preferredNode() == st.g.replica(ids.ReplicaID(id)).Node
					if err := st.setMode(SetMode{Answers: a, Members: m, On: []ids.NodeID{"n5"}, Remove: []ids.ReplicaID{ids.ReplicaID(id)}}); err != nil {
						t.Fatal(err)
					}
					st.reshapes(ids.ReplicaID(master), Voters(a, m))
					st.shaped(a, m)
					if st.g.replica(ids.ReplicaID(id)) != nil || st.g.staysOn("n5") == nil {
						t.Fatalf("mode %d-%d: replica %d did not move: %+v", a, m, id, st.g.Replicas)
					}
					if preferred && st.g.preferredNode() != "n5" {
						t.Errorf("mode %d-%d: the preferred node is %s after replica %d moved", a, m, st.g.preferredNode(), id)
					}
				}
			}
		}
	}
}

// All replicas at once: one after the other.
func TestMoveAll(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 0)
	if err := st.setMode(SetMode{Answers: 2, Members: 2, On: []ids.NodeID{"n4", "n5"}, Remove: []ids.ReplicaID{1, 2}}); err != nil {
		t.Fatal(err)
	}
	st.reshapes(1, 2)
	st.shaped(2, 2)
}

// While the new replica is not there the old one stays, and one that fell out comes back.
func TestLeavingWaits(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 0)
	if err := st.setMode(SetMode{Answers: 2, Members: 2, On: []ids.NodeID{"n3"}, Remove: []ids.ReplicaID{2}}); err != nil {
		t.Fatal(err)
	}
	st.well(1)
	st.want(decision{}) // n3 has made nothing yet
	st.creates()
	st.well(1)
	st.apply() // replica 3 learns
	lags := func() {
		st.well(1)
		st.v.replicas[1].members[3] = memberView{match: 5}
	}
	lags()
	st.want(decision{})
	st.dead(2) // the old one dies meanwhile
	st.want(decision{voters: voterSet{1}, campaign: 1, left: 2})
	st.apply()
	lags()
	if rec := st.g.Record; len(rec.Learners) != 2 {
		t.Errorf("replica 2 is out although no other one can take its place: %+v", rec)
	}
	st.want(decision{voters: voterSet{1, 2}, campaign: 1, joined: 2})
	st.apply()
	st.well(1)
	st.want(decision{voters: voterSet{1, 3}, campaign: 1, joined: 3})
	st.apply()
	st.reshapes(1, 2)
	st.shaped(2, 2)
}

// The min ISR comes into force with the voters that it needs, and never goes back.
func TestMinISRGrows(t *testing.T) {
	t.Parallel()
	st := tell(t, 1, 1, 0)
	if err := st.setMode(SetMode{Answers: 2, Members: 3, On: []ids.NodeID{"n2", "n3"}}); err != nil {
		t.Fatal(err)
	}
	inForce := func(want int) {
		t.Helper()
		if got := int(st.g.Record.MinISR); got != want {
			t.Errorf("epoch %d with %v has a min ISR of %d, want %d", st.g.Epoch, st.g.voters(), got, want)
		}
	}
	for len(st.g.voters()) < 2 {
		inForce(1)
		st.creates()
		st.well(1)
		st.apply()
	}
	inForce(2)
	if err := st.g.mayIssue(voterSet{1}); err == nil {
		t.Error("the set may shrink below the min ISR that it has reached")
	}
}

// Learners by an operator's word never vote, and vote when he says otherwise.
func TestKeptLearners(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 5)
	s.cluster.Level = NewestLevel
	c := creation("g", 1, 2, 4)
	c.Learners = []ids.NodeID{"n1", "n3"}
	must(t, s.Apply(c))
	reportAll(t, s, "g")
	st := &story{t: t, s: s, g: s.groups["g"]}
	if v := st.g.voters(); !slices.Equal(v, voterSet{2, 4}) || st.g.preferredNode() != "n2" {
		t.Fatalf("%v vote, preferred is %s", v, st.g.preferredNode())
	}
	becomeMaster(t, s, st.g, 2)
	st.well(2)
	st.want(decision{})
	if err := st.g.mayIssue(voterSet{1, 2, 4}); err == nil {
		t.Error("a learner may become a voter")
	}
	st.dead(4)
	st.want(decision{}) // a learner does not take the place of a voter, and the min ISR is two
	st.g.MinISR = 1
	st.want(decision{voters: voterSet{2}, campaign: 2, left: 4})
	st.well(2)
	st.dead(2)
	st.want(decision{voters: voterSet{4}, campaign: 4, left: 2})
}

// What cannot be is refused, with what would be taken instead.
func TestSetModeRefused(t *testing.T) {
	t.Parallel()
	n := func(list ...ids.NodeID) []ids.NodeID { return list }
	for _, tt := range []struct {
		a, m int
		do   func(*story)
		want SetMode
		kind error
		says string
	}{
		{2, 3, nil, SetMode{Answers: 3, Members: 2}, ErrInvalid, "mode 3-2 cannot be"},
		{2, 3, nil, SetMode{Answers: 2, Members: 6}, ErrInvalid, "mode 2-6 cannot be"},
		{2, 3, nil, SetMode{Answers: 0, Members: 3}, ErrInvalid, "mode 0-3 cannot be"},
		{2, 3, nil, SetMode{Answers: 2, Members: 0}, ErrInvalid, "mode 2-0 cannot be"},
		{2, 3, nil, SetMode{Answers: 2, Members: 5}, ErrInvalid, "2 replicas more than the 3 that there would be: name that many nodes that have none of it, such as n4, n5"},
		{2, 3, nil, SetMode{Answers: 2, Members: 5, On: n("n4")}, ErrInvalid, "needs 1 replica more"},
		{2, 3, nil, SetMode{Answers: 2, Members: 4, On: n("n4", "n5")}, ErrInvalid, "mode 2-4 needs 1 replica more, and 2 nodes are named"},
		{2, 3, nil, SetMode{Answers: 2, Members: 4, On: n("n3")}, ErrInvalid, "needs 1 replica more"},
		{2, 3, nil, SetMode{Answers: 2, Members: 4, On: n("n9")}, ErrInvalid, "node n9 is not known"},
		{2, 3, nil, SetMode{Answers: 2, Members: 5, On: n("n4", "n4")}, ErrInvalid, "named twice"},
		{2, 3, nil, SetMode{Answers: 2, Members: 2, Remove: []ids.ReplicaID{9}}, ErrNotFound, "has no replica 9: its replicas are 1 on n1, 2 on n2, 3 on n3"},
		{2, 3, nil, SetMode{Answers: 2, Members: 3, Remove: []ids.ReplicaID{3}}, ErrInvalid, "needs 1 replica more"},
		{2, 3, nil, SetMode{Answers: 2, Members: 2, Remove: []ids.ReplicaID{1, 3}}, ErrInvalid, "needs 1 replica more"},
		{2, 3, nil, SetMode{Answers: 2, Members: 3, MinISR: 4}, ErrInvalid, "min ISR 4: mode 2-3 takes 1 to 3"},
		{3, 3, func(st *story) { st.dead(3); st.apply() }, SetMode{Answers: 3, Members: 3, MinISR: 3}, ErrInvalid, "more than the 2 voters that there are now: at most 2"},
		{2, 3, nil, SetMode{Answers: 3, Members: 4, On: n("n4"), Learners: n("n4")}, nil, ""},
		{2, 2, nil, SetMode{Answers: 3, Members: 3, On: n("n4"), Learners: n("n4")}, ErrInvalid, "on 3 voters, and only 2 of its replicas may vote"},
		{2, 3, func(st *story) { st.dead(3); st.apply(); st.dead(3) }, SetMode{Answers: 1, Members: 1, Remove: []ids.ReplicaID{1, 2}}, ErrNotNow, "needs replica 2 on n2: without it 0 of its replicas that may vote live, and the min ISR is 1: remove replica 3 on n3 instead"},
		{2, 5, func(st *story) {
			must(st.t, st.s.Apply(&registerCommand{Node: "n6", CheckCode: hexOf(6), Session: hexOf(6)}))
		},
			SetMode{Answers: 2, Members: 5, On: n("n6"), Remove: []ids.ReplicaID{5}}, ErrInvalid, "5 replicas are the most there can be"},
	} {
		st := tell(t, tt.a, tt.m, 0)
		if tt.do != nil {
			tt.do(st)
		}
		st.s.cluster.Level = NewestLevel
		hash := st.s.Hash()
		err := st.setMode(tt.want)
		if tt.kind == nil && err == nil {
			continue
		}
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says) || st.s.Hash() != hash {
			t.Errorf("%d-%d to %+v: %v, want %v with %q", tt.a, tt.m, tt.want, err, tt.kind, tt.says)
		}
	}
	pending := foundedState(t, 3)
	if err := pending.Apply(&setModeCommand{Group: hexOf(1)}); !errors.Is(err, ErrNotNow) {
		t.Errorf("at feature level 1: %v", err)
	}
	pending.cluster.Level = NewestLevel
	must(t, pending.Apply(creation("g", 1, 2, 3)))
	if err := pending.Apply(&setModeCommand{Group: hexOf(1), Answers: 1, Members: 3, MinISR: 1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a group that is not ready: %v", err)
	}
	if err := pending.Apply(&setModeCommand{Group: hexOf(9)}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown group: %v", err)
	}
}

// Which replica goes when nobody says it.
func TestLeastUseful(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what string
		do   func(*story)
		want ids.ReplicaID
	}{
		{"all well: the highest slot", func(*story) {}, 4}, // a learner of 2-4, too
		{"a silent voter", func(st *story) { st.dead(2) }, 2},
		{"a lost one before a silent one", func(st *story) { st.dead(2); st.g.replica(3).Lost = "wiped" }, 3},
		{"one that is kept a learner", func(st *story) { st.g.replica(3).Learner = true }, 3},
		{"one that leaves already is passed over", func(st *story) { st.g.replica(4).Leaving = true }, 3},
		{"not the master, not the preferred one", func(st *story) {
			st.g.replica(4).Leaving = true
			st.g.Preferred = "n2"
			st.well(3)
		}, 1},
	} {
		st := tell(t, 2, 4, 0)
		tt.do(st)
		if got := st.g.leastUseful(&st.v, nil); got != tt.want {
			t.Errorf("%s: replica %d, want %d", tt.what, got, tt.want)
		}
	}
}

// A group without a master takes no wish for other replicas, which it could not take back. What changes only its mode or min ISR is
// taken, and taken back.
func TestSetModeWithoutMaster(t *testing.T) {
	t.Parallel()
	moves := []SetMode{
		{Answers: 2, Members: 4, On: []ids.NodeID{"n4"}},
		{Answers: 2, Members: 2},
		{Answers: 2, Members: 2, Remove: []ids.ReplicaID{1}},
		{Answers: 2, Members: 3, On: []ids.NodeID{"n4"}, Remove: []ids.ReplicaID{1}},
	}
	for _, want := range moves {
		st := tell(t, 2, 3, 2)
		st.dead(1, 2)
		st.s.cluster.Level = NewestLevel
		hash := st.s.Hash()
		if err := st.setMode(want); !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), "group g has no master") || st.s.Hash() != hash {
			t.Errorf("%+v: %v", want, err)
		}
		early := st.v.replicas[1]
		early.heard, early.early = false, true
		st.v.replicas[1] = early
		if err := st.setMode(want); !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), "ask again in some seconds") {
			t.Errorf("%+v of a new controller: %v", want, err)
		}
		st.well(1)
		newer := st.v.replicas[1] // leads, and is a moment behind the newest epoch
		newer.epoch--
		st.v.replicas[1] = newer
		if err := st.setMode(want); err != nil {
			t.Errorf("%+v with a master: %v", want, err)
		}
	}
	st := tell(t, 2, 3, 2)
	st.dead(1, 2)
	for _, want := range []SetMode{{Answers: 2, Members: 3, MinISR: 1}, {Answers: 3, Members: 3}, {Answers: 2, Members: 3, MinISR: 2}} {
		if err := st.setMode(want); err != nil || st.g.Answers != want.Answers || want.MinISR != 0 && st.g.MinISR != want.MinISR {
			t.Errorf("%+v: %v", want, err)
		}
	}
}

// A group without a master may need each of its voters to get one again: none is given up then, on no node.
func TestReplaceWithoutMaster(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 2)
	st.dead(1, 2)
	for _, id := range []ids.ReplicaID{1, 2, 3} {
		for _, node := range []ids.NodeID{"", "n4"} {
			for _, giveUp := range []bool{false, true} {
				says := "elect-unclean"
				if id == 3 && node == "n4" && !giveUp {
					says = "nobody could add or remove its replicas" // it lives, and would be moved
				}
				if _, err := st.s.replace(st.g, &st.v, id, node, "", giveUp); !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), says) {
					t.Errorf("replica %d on %q, give up %v: %v", id, node, giveUp, err)
				}
			}
		}
	}
	st = tell(t, 2, 3, 2)
	st.dead(2)
	if c, err := st.s.replace(st.g, &st.v, 2, "n4", "", false); err != nil || c.commandType() != typeGiveUp {
		t.Errorf("a dead one of a group with a master: %v, %v", c, err)
	}
	if c, err := st.s.replace(st.g, &st.v, 3, "n4", "", false); err != nil || c.commandType() != typeSetMode {
		t.Errorf("a living one of a group with a master: %v, %v", c, err)
	}
	// A living one would lose its copy before the new one on its node has one: only by the operator's word.
	for _, node := range []ids.NodeID{"", "n3"} {
		if _, err := st.s.replace(st.g, &st.v, 3, node, "", false); !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), "--give-up") {
			t.Errorf("a living one on %q: %v", node, err)
		}
		if c, err := st.s.replace(st.g, &st.v, 3, node, "", true); err != nil || c.commandType() != typeGiveUp {
			t.Errorf("a living one on %q, given up: %v, %v", node, c, err)
		}
	}
}

// A group that the min ISR alone keeps from a master says which one would let the others go on.
func TestHeldByMinISR(t *testing.T) {
	t.Parallel()
	const hint = "admin group set-mode"
	st := tell(t, 2, 2, 2)
	st.dead(1)
	if got := st.g.waits(&st.v, st.g.voters()); !strings.Contains(got, hint+" "+st.g.Name+" 2-2 --min-isr 1") {
		t.Errorf("one of two, min ISR 2: %s", got)
	}
	if err := st.setMode(SetMode{Answers: 2, Members: 2, MinISR: 1}); err != nil {
		t.Error(err)
	}
	if got := st.g.waits(&st.v, st.g.voters()); strings.Contains(got, hint) {
		t.Errorf("one of two, min ISR 1: %s", got)
	}
	st = tell(t, 2, 3, 2)
	st.dead(1, 2) // the third one may lack what they had
	if got := st.g.waits(&st.v, st.g.voters()); strings.Contains(got, hint) {
		t.Errorf("two of three at once: %s", got)
	}
}
