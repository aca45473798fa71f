package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// change alters what is known of a replica.
func (st *story) change(id ids.ReplicaID, f func(*replicaView)) {
	v := st.v.replicas[id]
	f(&v)
	st.v.replicas[id] = v
}

// lastOne makes a group in which replica 3 is the last one of three that lives, with the terms of its log told.
func lastOne(t *testing.T) *story {
	st := tell(t, 2, 3, 2)
	st.dead(1, 2)
	st.change(3, func(v *replicaView) { v.terms = []termStart{{ids.MakeTerm(1, 1), 1}}; v.last = 95 })
	return st
}

func TestPlanUnclean(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		do      func(*story)
		replica ids.ReplicaID
		stopped voterSet
		kind    error
		says    string // in the error, or in what may be lost
	}{
		{"the last one", nil, 3, voterSet{1, 2}, nil, "replica 1 on node n1 had the log up to entry 100"},
		{"a voter not named", nil, 3, voterSet{1}, ErrInvalid, "--stopped 2"},
		{"nobody named", nil, 3, nil, ErrInvalid, "--stopped 1"},
		{"no such replica", nil, 9, voterSet{1, 2}, ErrNotFound, "no replica 9"},
		{"no such stopped one", nil, 3, voterSet{1, 2, 7}, ErrInvalid, "--stopped 7"},
		{"itself is stopped", nil, 3, voterSet{1, 2, 3}, ErrInvalid, "is to be elected"},
		{"one that is silent", nil, 2, voterSet{1}, ErrNotNow, "not heard"},
		{"one that is parked", func(st *story) { st.change(3, func(v *replicaView) { v.able = false }) }, 3, voterSet{1, 2}, ErrNotNow, "parked"},
		{"one of an old epoch", func(st *story) { st.change(3, func(v *replicaView) { v.epoch = 0 }) }, 3, voterSet{1, 2}, ErrNotNow, "not adopted"},
		{"one that has not told its terms", func(st *story) { st.change(3, func(v *replicaView) { v.terms = nil }) }, 3, voterSet{1, 2}, ErrNotNow, "terms"},
		{"one that this controller had no time to hear", func(st *story) { st.change(2, func(v *replicaView) { v.heard, v.early = false, true }) }, 3, voterSet{1, 2}, ErrNotNow, "has not heard node n2 yet"},
		{"a voter that lives and is parked", func(st *story) {
			st.change(2, func(v *replicaView) { v.heard, v.silent, v.able = true, 0, false })
		}, 3, voterSet{1}, ErrInvalid, "say --stopped 2"},
		{"the same, given up", func(st *story) {
			st.change(2, func(v *replicaView) { v.heard, v.silent, v.able = true, 0, false })
		}, 3, voterSet{1, 2}, nil, "replica 1 on node n1"},
		{"a master leads", func(st *story) { st.well(1) }, 3, nil, ErrNotNow, "is master"},
		{"a majority lives", func(st *story) { st.well(0) }, 3, voterSet{}, ErrNotNow, "live to elect"},
	} {
		st := lastOne(t)
		if c.do != nil {
			c.do(st)
		}
		p, err := st.g.planUnclean(&st.v, c.replica, c.stopped)
		text := strings.Join(p.losses, "\n")
		if err != nil {
			text = err.Error()
		}
		if !errors.Is(err, c.kind) || !strings.Contains(text, c.says) {
			t.Errorf("%s: %v %q, want %v with %q", c.name, err, p.losses, c.kind, c.says)
		}
	}
}

// With two of five alive the one that has more is the one to elect, and who is named as stopped must be.
func TestPlanUncleanOfFive(t *testing.T) {
	t.Parallel()
	st := tell(t, 3, 5, 0)
	st.dead(1, 2, 3)
	for id := ids.ReplicaID(4); id <= 5; id++ {
		st.change(id, func(v *replicaView) { v.terms = []termStart{{ids.MakeTerm(1, 1), 1}}; v.last = 90 + ids.Index(id) })
	}
	plan := func(id ids.ReplicaID, stopped ...ids.ReplicaID) error {
		_, err := st.g.planUnclean(&st.v, id, stopped)
		return err
	}
	if err := plan(4, 1, 2, 3); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "replica 5 on node n5 lives and has more") {
		t.Errorf("the one that has less: %v", err)
	}
	if err := plan(5, 1, 2, 3, 4); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "not stopped") {
		t.Errorf("a stopped one that lives: %v", err)
	}
	must(t, plan(5, 1, 2, 3))
	st.change(5, func(v *replicaView) { v.lastTerm -= 1 }) // longer, of an older term
	if err := plan(5, 1, 2, 3); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "replica 4") {
		t.Errorf("the one of an older term: %v", err)
	}
}

// In 2-2 with a min ISR of two the one that is left has everything, and the operator is told so.
func TestPlanUncleanLosesNothing(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 2)
	st.dead(1)
	st.change(2, func(v *replicaView) { v.terms = []termStart{{1, 1}} })
	if p, err := st.g.planUnclean(&st.v, 2, voterSet{1}); err != nil || len(p.losses) > 0 || len(p.gone) != 1 {
		t.Errorf("%+v %v", p, err)
	}
	// A learner of 1-2 may lack anything.
	st = tell(t, 1, 2, 1)
	st.dead(1)
	st.change(2, func(v *replicaView) { v.terms = []termStart{{1, 1}} })
	if p, err := st.g.planUnclean(&st.v, 2, voterSet{1}); err != nil || len(p.losses) == 0 {
		t.Errorf("%+v %v", p, err)
	}
}

func (st *story) unclean(winner ids.ReplicaID) error {
	before := st.s.Hash()
	err := st.s.Apply(&uncleanCommand{Group: st.g.ID, Epoch: st.g.Epoch, Winner: winner, Last: 95, Terms: []termStart{{1, 1}}, Millis: 5})
	if err != nil && st.s.Hash() != before {
		st.t.Errorf("a refused command changed the state: %v", err)
	}
	must(st.t, st.s.Check())
	return err
}

// The group goes on with one voter, the others come back under new ids, and the min ISR binds again as soon as it can.
func TestUnclean(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 2)
	if err := st.unclean(3); !errors.Is(err, ErrNotNow) {
		t.Errorf("at feature level 1: %v", err)
	}
	must(t, st.s.Apply(&raiseLevelCommand{2}))
	must(t, st.unclean(3))
	if st.g.Epoch != 2 || st.g.Active != 2 || !slices.Equal(st.g.voters(), voterSet{3}) || len(st.g.Record.Learners) > 0 || st.g.Record.MinISR != 1 || st.g.MinISR != 2 {
		t.Fatalf("after the election: %+v %+v", st.g, st.g.Record)
	}
	if err := st.s.Apply(&uncleanCommand{Group: st.g.ID, Epoch: 1, Winner: 3}); !errors.Is(err, ErrStale) {
		t.Errorf("the same election again: %v", err)
	}
	for _, id := range []ids.ReplicaID{1, 2} {
		if err := st.unclean(id); !errors.Is(err, ErrInvalid) {
			t.Errorf("replica %d, which was given up, was elected: %v", id, err)
		}
		// The old word of a replica that was given up makes it nothing.
		must(t, st.s.Apply(&reportCommand{Node: st.g.replica(id).Node, Session: st.s.nodes[st.g.replica(id).Node].Session,
			Replicas: []replicaFacts{{Group: st.g.ID, Replica: id, Incarnation: st.g.replica(id).Incarnation, Starts: 9}},
			Masters:  []masterFacts{{st.g.ID, id, ids.MakeTerm(2, 7)}}}))
		if st.g.Master.Term.Epoch() == 2 || st.g.replica(id).Lost == "" {
			t.Errorf("replica %d is master, or lost no more", id)
		}
	}
	becomeMaster(t, st.s, st.g, 3)
	if n := st.decides(3); n != 2 {
		t.Fatalf("%d steps, want two: both are followed by new ones", n)
	}
	for slot, node := range []ids.NodeID{"n1", "n2"} {
		r := st.g.Replicas[slot]
		if r.ID < 4 || r.Node != node || r.Lost != "" {
			t.Fatalf("slot %d has %+v", slot+1, r)
		}
		st.reports(node, replicaFacts{Replica: r.ID, Incarnation: hexOf(byte(0x70 + slot)), Starts: 1})
		st.decides(3)
	}
	if v := st.g.voters(); len(v) != 3 || v.has(1) || v.has(2) || st.g.Record.MinISR != 2 {
		t.Errorf("in the end %v vote, min ISR %d", v, st.g.Record.MinISR)
	}
	v := st.g.voters()
	must(t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: v.without(v[2])}))
	becomeMaster(t, st.s, st.g, 3)
	if err := st.g.mayIssue(voterSet{3}); err == nil {
		t.Error("the min ISR does not bind any more")
	}
	if u := st.g.uncleans(); len(u) != 1 || !slices.Equal(u[0].Gone, []uint64{1, 2}) || u[0].Last != 95 || st.g.UncleanCount != 1 {
		t.Errorf("remembered: %v", u)
	}
}

// While the set is below the min ISR, an epoch that nobody can lead is taken back.
func TestUncleanGivesUpAnEpoch(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 2)
	must(t, st.s.Apply(&raiseLevelCommand{2}))
	must(t, st.unclean(3))
	becomeMaster(t, st.s, st.g, 3)
	st.decides(3)
	r := st.g.Replicas[0]
	st.reports(r.Node, replicaFacts{Replica: r.ID, Incarnation: hexOf(0x70), Starts: 1})
	must(t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: voterSet{3}}))
	becomeMaster(t, st.s, st.g, 3)
	must(t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: voterSet{3, r.ID}}))
	st.well(0)
	st.change(r.ID, func(v *replicaView) { v.silent = time.Minute })
	st.want(decision{voters: voterSet{3}, givenUp: true, campaign: 3})
}
