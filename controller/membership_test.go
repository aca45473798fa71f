package controller

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// setOf returns the replicas whose bits are set: bit 0 is replica 1.
func setOf(mask uint) voterSet {
	var out voterSet
	for id := ids.ReplicaID(1); mask != 0; id, mask = id+1, mask>>1 {
		if mask&1 != 0 {
			out = append(out, id)
		}
	}
	return out
}

// majorities returns the masks of all subsets of mask that are more than half of it.
func majorities(mask uint) (out []uint) {
	for sub := mask; sub != 0; sub = (sub - 1) & mask {
		if 2*bits.OnesCount(sub) > bits.OnesCount(mask) {
			out = append(out, sub)
		}
	}
	return out
}

// All pairs of sets of up to five replicas, against the rule as it is written: every majority of one meets every one of the other.
func TestOverlapsTwin(t *testing.T) {
	t.Parallel()
	for next := uint(1); next < 32; next++ {
		for old := uint(1); old < 32; old++ {
			want := true
			for _, q := range majorities(next) {
				for _, w := range majorities(old) {
					want = want && q&w != 0
				}
			}
			if got := overlaps(setOf(next), setOf(old)); got != want {
				t.Errorf("overlaps(%v, %v) = %t", setOf(next), setOf(old), got)
			}
			diff := oneApart(setOf(old), setOf(next))
			if want := bits.OnesCount(next&^old) <= 1 && bits.OnesCount(old&^next) <= 1; diff != want {
				t.Errorf("oneApart(%v, %v) = %t", setOf(old), setOf(next), diff)
			}
		}
	}
}

// The sets that the design names.
func TestOverlapsExamples(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		old, next voterSet
		want      bool
	}{
		{voterSet{1, 2}, voterSet{1}, true},
		{voterSet{1, 2}, voterSet{2}, true},
		{voterSet{1, 2}, voterSet{1, 3}, true},
		{voterSet{1, 2}, voterSet{3}, false},
		{voterSet{1, 2, 3}, voterSet{1, 2}, true},
		{voterSet{1, 2}, voterSet{1, 2, 3}, true},
		{voterSet{1, 2, 3}, voterSet{1}, false},
		{voterSet{1, 2, 3}, voterSet{1, 2, 4}, false},
		{voterSet{1}, voterSet{1, 2, 3}, false},
		{voterSet{1}, voterSet{1, 2}, true},
		{voterSet{1}, voterSet{2}, false},
	} {
		if got := overlaps(test.next, test.old); got != test.want {
			t.Errorf("%v after %v: %t", test.next, test.old, got)
		}
	}
}

// readyState has one group of the mode in epoch 1, with nodes n1 to n5.
func readyState(t testing.TB, a, m, minISR int) (*State, *groupEntry) {
	t.Helper()
	s := foundedState(t, 5)
	c := creation("g", 1, a, m)
	if minISR > 0 {
		c.MinISR = minISR
	}
	must(t, s.Apply(c))
	reportAll(t, s, "g")
	must(t, s.Check())
	return s, s.groups["g"]
}

// becomeMaster lets the replica report itself as master of the newest epoch.
func becomeMaster(t testing.TB, s *State, g *groupEntry, id ids.ReplicaID) {
	t.Helper()
	r := g.replica(id)
	must(t, s.Apply(&reportCommand{Node: r.Node, Session: s.nodes[r.Node].Session,
		Masters: []masterFacts{{g.ID, id, ids.MakeTerm(g.Epoch, uint32(g.Master.Term)+1)}}}))
}

func TestIssueEpoch(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 1)
	issue := func(voters voterSet) error {
		return s.Apply(&issueEpochCommand{Group: g.ID, Epoch: g.Epoch, Voters: voters, Reason: "test"})
	}
	refused := func(kind error, voters voterSet) {
		t.Helper()
		before := s.Hash()
		if err := issue(voters); !errors.Is(err, kind) || s.Hash() != before {
			t.Errorf("voters %v in epoch %d: %v", voters, g.Epoch, err)
		}
	}
	refused(ErrInvalid, voterSet{1})       // two at once
	refused(ErrInvalid, voterSet{})        // nobody
	refused(ErrInvalid, voterSet{2, 1})    // not sorted
	refused(ErrInvalid, voterSet{1, 1})    // twice
	refused(ErrInvalid, voterSet{1, 2, 9}) // not of the group
	if err := s.Apply(&issueEpochCommand{Group: g.ID, Epoch: 2, Voters: voterSet{1, 2}}); !errors.Is(err, ErrStale) {
		t.Errorf("an epoch that is not the newest: %v", err)
	}
	if err := s.Apply(&issueEpochCommand{Group: hexOf(9), Epoch: 1, Voters: voterSet{1, 2}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown group: %v", err)
	}
	must(t, issue(voterSet{1, 2}))
	record := g.Record
	if record.Epoch != 2 || len(record.Voters) != 2 || len(record.Learners) != 1 || g.Active != 1 {
		t.Errorf("record %+v, active %d", record, g.Active)
	}
	// Epoch 2 is not active: only the set of epoch 1, or one next to that, may follow.
	refused(ErrInvalid, voterSet{1})
	must(t, issue(voterSet{1, 3})) // next to {1,2,3}, and meets {1,2}: replica 1 is in every majority of both
	must(t, issue(voterSet{1, 2, 3}))
	must(t, s.Check())
	becomeMaster(t, s, g, 2)
	if g.Active != 4 || len(g.Since) != 1 || g.Master.Replica != 2 {
		t.Errorf("after the master's report: active %d, since %v", g.Active, g.Since)
	}
	must(t, issue(voterSet{2, 3}))
	becomeMaster(t, s, g, 2)
	refused(ErrInvalid, voterSet{1}) // may lack what {2,3} committed
	must(t, issue(voterSet{2}))
	// A report of an older epoch activates nothing.
	must(t, s.Apply(&reportCommand{Node: "n3", Session: hexOf(3), Masters: []masterFacts{{g.ID, 3, ids.MakeTerm(g.Epoch-1, 99)}}}))
	if g.Active == g.Epoch {
		t.Error("an epoch became active by the master of another one")
	}
	becomeMaster(t, s, g, 2)
	refused(ErrInvalid, voterSet{3})
	must(t, issue(voterSet{2, 3}))
	must(t, s.Check())
	for range 2 * maxChanges {
		becomeMaster(t, s, g, 2)
		must(t, issue(voterSet{2}))
		becomeMaster(t, s, g, 2)
		must(t, issue(voterSet{2, 3}))
	}
	if len(g.Changes) != maxChanges || g.Changes[maxChanges-1].Epoch != g.Epoch {
		t.Errorf("the changes are %+v", g.Changes)
	}
	must(t, s.Check())
}

// The min ISR holds, a lost replica never joins, and one that was not created yet neither.
func TestIssueEpochBounds(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 0) // min ISR 2
	issue := func(voters voterSet) error {
		return s.Apply(&issueEpochCommand{Group: g.ID, Epoch: g.Epoch, Voters: voters})
	}
	must(t, issue(voterSet{1, 2}))
	becomeMaster(t, s, g, 1)
	if err := issue(voterSet{1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("one voter with a min ISR of two: %v", err)
	}
	must(t, s.Apply(&reportCommand{Node: "n3", Session: hexOf(3), Replicas: []replicaFacts{{Group: g.ID, Replica: 3, Missing: true}}}))
	if err := issue(voterSet{1, 2, 3}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a lost replica: %v", err)
	}
	must(t, issue(voterSet{1, 2})) // the same voters, without the lost learner
	record := g.Record
	if len(record.Learners) != 0 {
		t.Errorf("a lost replica learns: %+v", record.Learners)
	}
	must(t, s.Check())
}

// Every chain of up to three epochs in groups of up to four replicas that the rules let through, active or not: whoever can be
// elected in the last one has everything that may have been committed since the last active one.
func TestChainsOverlapTwin(t *testing.T) {
	t.Parallel()
	for first := uint(1); first < 16; first++ {
		g := &groupEntry{Name: "g", Epoch: 1, Active: 1, MinISR: 1, Since: []voterSet{setOf(first)}}
		for i := range 4 {
			g.Replicas = append(g.Replicas, replicaEntry{ID: ids.ReplicaID(i + 1), Slot: ids.Slot(i + 1), Node: ids.NodeID(fmt.Sprintf("n%d", i+1)), Incarnation: hexOf(1)})
		}
		record := raftlog.EpochRecord{Cluster: ids.ClusterID(hexOf(1)), Group: ids.GroupID(hexOf(1)), Epoch: 1, A: 1, MinISR: 1, SegmentSize: ids.MinTestSegmentSize}
		for _, id := range setOf(first) {
			record.Voters = append(record.Voters, raftlog.Member{ID: id, Slot: ids.Slot(id), Node: g.replica(id).Node, Incarnation: ids.Incarnation(hexOf(1))})
		}
		g.Record = issued(record)
		var walk func(chain []uint)
		walk = func(chain []uint) {
			for next := uint(1); next < 16; next++ {
				g.Since = nil
				for _, c := range chain {
					g.Since = append(g.Since, setOf(c))
				}
				if g.mayIssue(setOf(next)) != nil {
					continue
				}
				for _, old := range chain {
					for _, q := range majorities(next) {
						for _, w := range majorities(old) {
							if q&w == 0 {
								t.Fatalf("%v may follow %v: %v elects, %v committed", setOf(next), g.Since, setOf(q), setOf(w))
							}
						}
					}
				}
				if len(chain) < 3 {
					walk(append(slices.Clone(chain), next))
				}
			}
		}
		walk([]uint{first})
	}
}

// story makes views of a group for decide.
type story struct {
	t *testing.T
	s *State
	g *groupEntry
	v groupView
}

func tell(t *testing.T, a, m, minISR int) *story {
	s, g := readyState(t, a, m, minISR)
	st := &story{t: t, s: s, g: g}
	becomeMaster(t, s, g, 1)
	st.well(1)
	return st
}

// well makes all replicas live, with replica master leading.
func (st *story) well(master ids.ReplicaID) {
	st.v = groupView{replicas: map[ids.ReplicaID]replicaView{}, flaps: map[ids.ReplicaID]int{}, silence: time.Second, newest: time.Hour}
	for _, r := range st.g.Replicas {
		v := replicaView{heard: true, silent: 100 * time.Millisecond, able: true, epoch: st.g.Epoch, term: st.g.Master.Term, lastTerm: st.g.Master.Term, last: 100}
		if r.ID == master {
			v.master = true
			v.members = map[ids.ReplicaID]memberView{}
			for _, o := range st.g.Replicas {
				if o.ID != master {
					v.members[o.ID] = memberView{match: 100, caughtUp: time.Minute}
				}
			}
		}
		st.v.replicas[r.ID] = v
	}
}

// dead makes replicas silent for a time that their master, if it lives, has noticed.
func (st *story) dead(list ...ids.ReplicaID) {
	for _, id := range list {
		v := st.v.replicas[id]
		v.silent = 2 * time.Second
		st.v.replicas[id] = v
		for _, r := range st.g.Replicas {
			o := st.v.replicas[r.ID]
			if v.master {
				o.masterSilent = 2 * time.Second
				st.v.replicas[r.ID] = o
			}
			if o.master {
				o.members[id] = memberView{match: 90, stalled: 2 * time.Second}
			}
		}
	}
}

func (st *story) want(want decision) {
	st.t.Helper()
	got := st.g.decide(&st.v)
	if !slices.Equal(got.voters, want.voters) || got.campaign != want.campaign || got.joined != want.joined || got.left != want.left ||
		got.givenUp != want.givenUp || (got.stuck != "") != (want.stuck != "") || (got.reason != "") != (want.voters != nil) {
		st.t.Errorf("decided %+v, want %+v", got, want)
	}
}

// apply issues what was decided and lets its campaigner win.
func (st *story) apply() {
	st.t.Helper()
	d := st.g.decide(&st.v)
	must(st.t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: d.voters, Reason: d.reason}))
	becomeMaster(st.t, st.s, st.g, d.campaign)
	must(st.t, st.s.Check())
	st.well(d.campaign)
}

func TestDecideTwoOfTwo(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 0)
	st.want(decision{})

	st.dead(2) // a slave: the master goes on alone
	st.want(decision{voters: voterSet{1}, campaign: 1, left: 2})
	st.apply()
	st.dead(2)
	st.want(decision{})
	st.dead(1) // both, one after the other: only the last one may come back first
	st.want(decision{stuck: "x"})
	st.well(0)
	st.dead(1)
	st.want(decision{stuck: "x"})
	st.well(1)
	st.want(decision{voters: voterSet{1, 2}, campaign: 1, joined: 2}) // it is back, and has caught up
	st.apply()

	st.dead(1) // the master
	st.want(decision{voters: voterSet{2}, campaign: 2, left: 1})
	// Its word must be new: it may have died a moment ago too.
	v := st.v.replicas[2]
	v.silent = 400 * time.Millisecond
	st.v.replicas[2] = v
	st.want(decision{stuck: "x"})
	// The slave hears its master: the controller alone is cut off from it.
	v.silent, v.masterSilent = 0, 0
	st.v.replicas[2] = v
	st.want(decision{})
	// The connection was closed: it need not wait.
	v.masterClosed = true
	st.v.replicas[2] = v
	st.want(decision{voters: voterSet{2}, campaign: 2, left: 1})
}

// TestDecideBeforeTheFirstMaster: the first voter is named while the others are there, or may still come; one that is lost, or does not
// come, is not waited for.
func TestDecideBeforeTheFirstMaster(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 2, 1)
	st := &story{t: t, s: s, g: g}
	st.well(0)
	st.want(decision{campaign: 1})
	early := st.v.replicas[2]
	st.v.replicas[2] = replicaView{early: true}
	st.want(decision{campaign: 1})

	st.v.replicas[2] = early
	st.dead(2)
	st.want(decision{voters: voterSet{1}, campaign: 1, left: 2})
	st.well(0)
	g.replica(2).Lost = "wiped"
	lost := st.v.replicas[2]
	lost.able = false
	st.v.replicas[2] = lost
	st.want(decision{voters: voterSet{1}, campaign: 1, left: 2})
	st.well(0)
	g.replica(2).Lost = ""
	g.replica(1).Lost = "wiped" // the preferred one
	lost = st.v.replicas[1]
	lost.able = false
	st.v.replicas[1] = lost
	st.want(decision{voters: voterSet{2}, campaign: 2, left: 1})
}

func TestDecideMinISRTwo(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 2)
	st.dead(2)
	st.want(decision{})
	st.well(1)
	st.dead(1)
	st.want(decision{stuck: "x"})
}

func TestDecideTwoOfThree(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 1)
	st.dead(1) // a majority is there: a named election inside the epoch, of the longest log
	v := st.v.replicas[3]
	v.last = 101
	st.v.replicas[3] = v
	st.want(decision{campaign: 3})
	st.well(3)
	st.dead(1)
	st.want(decision{voters: voterSet{2, 3}, campaign: 3, left: 1})
	st.apply()
	st.dead(1, 3) // a second one, later: go on with the last
	st.want(decision{voters: voterSet{2}, campaign: 2, left: 3})
	st.apply()
	st.want(decision{voters: voterSet{1, 2}, campaign: 2, joined: 1})

	both := tell(t, 2, 3, 1)
	both.dead(1, 2) // two at once: the last one may lack what they have committed
	both.want(decision{stuck: "x"})
}

func TestDecideLearners(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 4, 0) // three voters and a learner
	st.want(decision{})
	st.dead(2)
	st.want(decision{voters: voterSet{1, 3}, campaign: 1, left: 2})
	st.apply()
	st.dead(2)
	st.want(decision{voters: voterSet{1, 3, 4}, campaign: 1, joined: 4})

	// A second one is lost before the first is a voter again: it takes its place, though it is not known to have all.
	st = tell(t, 2, 3, 2)
	st.dead(1)
	v := st.v.replicas[2]
	v.last = 101
	st.v.replicas[2] = v
	st.want(decision{campaign: 2})
	st.well(2)
	st.dead(1)
	st.apply()
	st.dead(2)
	st.want(decision{voters: voterSet{1, 3}, campaign: 3, left: 2, joined: 1})
	v = st.v.replicas[1]
	v.last = 5
	v.lastTerm--
	st.v.replicas[1] = v
	v = st.v.replicas[3]
	v.last = 5000
	st.v.replicas[3] = v
	st.want(decision{voters: voterSet{1, 3}, campaign: 3, left: 2, joined: 1})
	st.g.MinISR = 1 // alone is allowed, and the learner is far behind
	st.want(decision{voters: voterSet{3}, campaign: 3, left: 2})

	two := tell(t, 1, 2, 0) // one voter and an asynchronous learner
	two.dead(1)
	two.want(decision{stuck: "x"}) // the learner may lack messages

	// A learner that has just come, or flaps, waits.
	st = tell(t, 2, 3, 1)
	st.dead(3)
	st.apply()
	m := st.v.replicas[1].members[3]
	m.caughtUp = 2 * time.Second
	st.v.replicas[1].members[3] = m
	st.want(decision{})
	m.caughtUp = 4 * time.Second
	st.v.replicas[1].members[3] = m
	st.v.flaps[3] = 2
	st.want(decision{})
	st.v.flaps[3] = 1 // it left once
	st.want(decision{voters: voterSet{1, 2, 3}, campaign: 1, joined: 3})
}

// A replica that leaves again and again waits longer, and one that has been well for a while does not.
func TestFlapsAreForgotten(t *testing.T) {
	t.Parallel()
	_, g := readyState(t, 2, 3, 1)
	l := NewLeader(time.Second)
	now := time.UnixMilli(1_700_000_000_000)
	l.Begin(now, 1)
	flaps := func() int {
		v, _ := l.view(now, g)
		return v.flaps[3]
	}
	leave := func() { l.end(now, ids.GroupID(g.ID), g.Epoch, decision{voters: voterSet{1, 2}, left: 3}, true) }
	if n := flaps(); n != 0 {
		t.Errorf("at the beginning %d", n)
	}
	for want := 1; want <= 3; want++ {
		leave()
		if n := flaps(); n != want {
			t.Errorf("after leaving %d times: %d", want, n)
		}
		now = now.Add(flapMemory / 2)
	}
	now = now.Add(flapMemory)
	if n := flaps(); n != 0 {
		t.Errorf("after a long peace: %d", n)
	}
	leave()
	if n := flaps(); n != 1 {
		t.Errorf("after a long peace and leaving once: %d", n)
	}
}

// A voter with a hung disk answers heartbeats and does not advance; one whose connection is closed is given less time.
func TestDecideStalled(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 0)
	for _, test := range []struct {
		m    memberView
		want decision
	}{
		{memberView{stalled: 900 * time.Millisecond}, decision{}},
		{memberView{stalled: time.Second}, decision{voters: voterSet{1}, campaign: 1, left: 2}},
		{memberView{stalled: 250 * time.Millisecond, closed: true}, decision{}},
		{memberView{stalled: 300 * time.Millisecond, closed: true}, decision{voters: voterSet{1}, campaign: 1, left: 2}},
	} {
		st.v.replicas[1].members[2] = test.m
		st.want(test.want)
	}
}

// An epoch that nobody leads is given up, later each time, for the voters of the last active one.
func TestDecideInactive(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 2, 0)
	st.dead(2)
	must(t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: 1, Voters: voterSet{1}}))
	st.well(0) // the one that was to go on is not master yet, and both are there
	st.v.newest = 100 * time.Millisecond
	st.want(decision{campaign: 1})
	st.v.newest = 600 * time.Millisecond
	st.want(decision{voters: voterSet{1, 2}, campaign: 1, givenUp: true})
	st.v.failures = 1
	st.want(decision{campaign: 1})
	// A voter has what a master of this epoch wrote, and hears it: its report is on its way.
	v := st.v.replicas[1]
	v.epoch, v.lastTerm = 2, ids.MakeTerm(2, 1)
	st.v.replicas[1] = v
	st.want(decision{})
	v.masterSilent = time.Second
	st.v.replicas[1] = v
	st.want(decision{campaign: 1})
	st.v.newest, st.v.failures = time.Minute, 100
	st.want(decision{voters: voterSet{1, 2}, campaign: 1, givenUp: true})
	st.dead(1) // the chosen one died: the other may lack what it committed in the new epoch
	st.want(decision{stuck: "x"})
	st.well(1)
	st.want(decision{}) // its report is on its way
}

// Whatever the views say and an operator wants, what is decided may be issued, and its campaigner is one of the voters.
func TestDecisionsMayBeIssued(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := newRand(seed)
		m := 1 + r.IntN(5)
		st := tell(t, 1+r.IntN(m), m, 1)
		for step := range 60 {
			if r.IntN(6) == 0 {
				want := SetMode{Answers: 1 + r.IntN(5), Members: 1 + r.IntN(5), MinISR: r.IntN(3)}
				for k := range 5 {
					if id := ids.ReplicaID(k + 1); r.IntN(4) == 0 {
						want.Remove = append(want.Remove, id)
					}
					if r.IntN(3) == 0 {
						want.On = append(want.On, ids.NodeID(fmt.Sprintf("n%d", k+1)))
					}
				}
				_ = st.setMode(want) // most are refused
			}
			if r.IntN(2) == 0 {
				st.creates()
			}
			list := append(st.g.voters(), 0)
			st.well(list[r.IntN(len(list))])
			for id := range st.v.replicas {
				if r.IntN(3) == 0 {
					st.dead(id)
				}
			}
			for id, v := range st.v.replicas {
				v.last = ids.Index(r.IntN(3))
				v.epoch -= ids.Epoch(r.IntN(8) / 7)
				v.able = r.IntN(10) > 0
				st.v.replicas[id] = v
			}
			st.v.newest = time.Duration(r.IntN(2000)) * time.Millisecond
			st.v.failures = r.IntN(3)
			d := st.g.decide(&st.v)
			if d.renew != 0 {
				must(t, st.s.Apply(&renewCommand{Group: st.g.ID, Replica: d.renew, Epoch: st.g.Epoch}))
				must(t, st.s.Check())
			}
			if d.voters == nil {
				if d.campaign != 0 && !st.g.voters().has(d.campaign) {
					t.Fatalf("seed %d step %d: replica %d is to campaign among %v", seed, step, d.campaign, st.g.voters())
				}
				continue
			}
			if !d.voters.has(d.campaign) {
				t.Fatalf("seed %d step %d: %+v", seed, step, d)
			}
			if err := st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: d.voters, Reason: d.reason}); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			must(t, st.s.Check())
			if r.IntN(3) > 0 {
				becomeMaster(t, st.s, st.g, d.voters[r.IntN(len(d.voters))])
			}
		}
	}
}

// best against the rule as it is written: the longest log, then the lowest slot, among those that are there.
func TestBestTwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := newRand(seed)
		st := tell(t, 3, 5, 1)
		var want ids.ReplicaID
		for id := ids.ReplicaID(5); id >= 1; id-- {
			v := st.v.replicas[id]
			v.lastTerm, v.last, v.able = ids.Term(r.IntN(3)), ids.Index(r.IntN(3)), r.IntN(4) > 0
			st.v.replicas[id] = v
			if w := st.v.replicas[want]; v.able && (want == 0 || fmt.Sprint(v.lastTerm, v.last) >= fmt.Sprint(w.lastTerm, w.last)) {
				want = id
			}
		}
		if got := st.g.best(&st.v, voterSet{1, 2, 3, 4, 5}); got != want {
			t.Fatalf("seed %d: replica %d, want %d of %+v", seed, got, want, st.v.replicas)
		}
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// In an epoch that has just been issued the one that it was issued for campaigns, and nobody else whose report is only newer; when it is
// gone, or has had its time, the one with the longest log does.
func TestFirstCampaigns(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 3, 2)
	must(t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: st.g.Epoch, Voters: voterSet{1, 2, 3}, Reason: "replica 4 is new"}))
	st.well(0)
	st.v.first, st.v.newest = 1, 0
	ahead := st.v.replicas[2]
	ahead.last++
	st.v.replicas[2] = ahead
	for _, newest := range []time.Duration{0, firstAlone, activeAfter - 1} {
		st.v.newest = newest
		st.want(decision{campaign: 1})
	}
	st.change(1, func(v *replicaView) { v.silent = 2 * freshWithin }) // its word is late, as those of the others may be
	st.change(3, func(v *replicaView) { v.silent = 2 * freshWithin })
	st.want(decision{campaign: 1})
	st.change(3, func(v *replicaView) { v.silent = 0 })
	st.change(1, func(v *replicaView) { v.silent = 2 * time.Second })
	st.want(decision{campaign: 2})
	st.change(1, func(v *replicaView) { v.silent, v.able = 0, false })
	st.want(decision{campaign: 2})
	st.change(1, func(v *replicaView) { v.able = true })
	st.v.newest = activeAfter
	st.want(decision{voters: voterSet{2, 3}, campaign: 2, givenUp: true})
	st.v.newest, st.v.first = 0, 0
	st.want(decision{campaign: 2})
}
