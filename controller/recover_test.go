package controller

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// testify is what the nodes of a group say that have adopted its newest record.
func testify(s *State, g *groupEntry) []*pb.Testimony {
	var out []*pb.Testimony
	for _, r := range g.Replicas {
		code := s.nodes[r.Node].CheckCode
		out = append(out, &pb.Testimony{NodeId: string(r.Node), CheckCode: code[:], ClusterId: s.cluster.Cluster.bytes(), Level: uint32(s.level()),
			Levels: OwnLevels().Wire(), PeerAddress: "127.0.0.1:1", Replicas: []*pb.ReplicaTestimony{testifyReplica(g, &r, g.Record)}})
	}
	return out
}

func testifyReplica(g *groupEntry, r *replicaEntry, record *issuedRecord) *pb.ReplicaTestimony {
	return &pb.ReplicaTestimony{GroupId: g.ID.bytes(), GroupName: g.Name, ReplicaId: uint64(r.ID), Slot: uint32(r.Slot), Incarnation: r.Incarnation.bytes(), Starts: 3,
		SegmentSize: g.SegmentSize, EpochRecord: record.bytes(), Wishes: g.wishes()}
}

// stop takes a node's testimony away.
func stop(list []*pb.Testimony, nodes ...string) []*pb.Testimony {
	return slices.DeleteFunc(slices.Clone(list), func(t *pb.Testimony) bool { return slices.Contains(nodes, t.GetNodeId()) })
}

func TestRecoverPlan(t *testing.T) {
	t.Parallel()
	type story struct {
		s *State
		g *groupEntry
		l []*pb.Testimony
	}
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, st *story)
		stopped string
		blocked string // "": it is made
		unsure  bool
		note    string
	}{
		{name: "all answer"},
		{name: "nobody", change: func(_ *testing.T, st *story) { st.l = nil }, blocked: "no node of a cluster has testified yet"},
		{name: "a voter is absent", change: func(_ *testing.T, st *story) { st.l = stop(st.l, "n3") }, blocked: "node n3 does not answer, and has replica 3 of group g"},
		{name: "a voter is stopped", change: func(_ *testing.T, st *story) { st.l = stop(st.l, "n3") }, stopped: "n3"},
		{name: "two voters are stopped", change: func(_ *testing.T, st *story) { st.l = stop(st.l, "n1", "n3") }, stopped: "n1,n3", unsure: true, note: "1 of its 3 voters are whole, a majority is 2"},
		{name: "one that answers is said to be stopped", stopped: "n2", blocked: "--stopped n2: it is not stopped"},
		{name: "a name that nobody knows", stopped: "n9", blocked: "--stopped n9: no answering node knows"},
		{name: "one that was taken out knew more", change: func(_ *testing.T, st *story) {
			later := st.g.Record.EpochRecord
			later.Epoch += 3
			later.Voters = append(slices.Clone(later.Voters[2:]), raftlog.Member{ID: 9, Slot: 4, Node: "n4", Incarnation: ids.Incarnation{9}})
			later.Learners = nil
			gone := st.l[2].Replicas[0]
			gone.EpochRecord = later.Encode()
			st.l[2].Replicas, st.l[2].Retired = nil, []*pb.ReplicaTestimony{gone}
		}, blocked: "node n4 does not answer, and has replica 9 of epoch 4 of group g"},
		{name: "one that was taken out knew less", change: func(_ *testing.T, st *story) {
			st.l[2].Replicas, st.l[2].Retired = nil, st.l[2].Replicas
		}, note: "should replica 3 have gone on alone"},
		{name: "wishes from before the mode changed", change: func(_ *testing.T, st *story) {
			for _, n := range st.l {
				n.Replicas[0].Wishes.MinIsr++
			}
		}, note: "its mode is not known"},
		{name: "a wiped disk", change: func(_ *testing.T, st *story) { st.l[1].Replicas = nil }, note: "has no folder of it"},
		{name: "another incarnation", change: func(_ *testing.T, st *story) { st.l[1].Replicas[0].Incarnation = slices.Repeat([]byte{9}, 16) }, note: "another incarnation"},
		{name: "a lost identity", change: func(_ *testing.T, st *story) { st.l[1].Replicas[0].Lost = "its tail is gone" }, note: "its tail is gone"},
		{name: "two lost identities", change: func(_ *testing.T, st *story) { st.l[0].Replicas[0].Lost, st.l[1].Replicas[0].Lost = "x", "y" }, unsure: true},
		{name: "all lost", change: func(_ *testing.T, st *story) {
			for _, n := range st.l {
				n.Replicas[0].Lost = "its power was lost"
			}
		}, unsure: true, note: "0 of its 3 voters are whole"},
		{name: "one that cannot tell", change: func(_ *testing.T, st *story) { st.l[1].Replicas[0].Unready = "it is being opened" }, blocked: "it is being opened"},
		{name: "two nodes of one name", change: func(_ *testing.T, st *story) { st.l[1].NodeId = "n1" }, blocked: "two nodes say that they are n1"},
		{name: "two clusters", change: func(_ *testing.T, st *story) { st.l[1].ClusterId = slices.Repeat([]byte{7}, 16) }, blocked: "belongs to cluster"},
		{name: "a copy", change: func(_ *testing.T, st *story) { st.l[1].Replicas[0].ReplicaId = 1 }, blocked: "both say that they have replica 1"},
		{name: "a copy on another node", change: func(_ *testing.T, st *story) {
			st.l[1].Replicas, st.l[2].Replicas = st.l[2].Replicas, st.l[1].Replicas
		}, blocked: "its records say n2"},
		{name: "a damaged record", change: func(_ *testing.T, st *story) { st.l[1].Replicas[0].EpochRecord[60] ^= 1 }, blocked: "its epoch record is damaged"},
		{name: "two records of one epoch", change: func(_ *testing.T, st *story) {
			r := st.g.Record.EpochRecord
			r.MinISR = 2
			st.l[1].Replicas[0].EpochRecord = r.Encode()
		}, blocked: "two different records of epoch 1"},
		{name: "no record", change: func(_ *testing.T, st *story) {
			for _, n := range st.l {
				n.Replicas[0].EpochRecord = nil
			}
		}, note: "is not recovered"},
		{name: "a newer program's level", change: func(_ *testing.T, st *story) { st.l[1].Level = uint32(NewestLevel) + 1 }, blocked: "feature level"},
		{name: "an older program", change: func(_ *testing.T, st *story) { st.l[1].Levels = nil }, blocked: "start the new program there"},
		{name: "no wishes", change: func(_ *testing.T, st *story) {
			for _, n := range st.l {
				n.Replicas[0].Wishes = nil
			}
		}, note: "its mode is not known: it is 2-3 now"},
		{name: "another node that is absent", change: func(_ *testing.T, st *story) { st.l[0].Peers = []string{"n7"} }, note: "node n7 does not answer: what only such nodes have"},
		{name: "a newer record elsewhere", change: func(t *testing.T, st *story) {
			must(t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: 1, Voters: voterSet{1, 2}, Reason: "x"}))
			st.l[1].Replicas[0].EpochRecord = st.g.Record.bytes()
			st.l = stop(st.l, "n1")
		}, stopped: "n1", unsure: true, note: "1 of its 2 voters are whole"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, g := readyState(t, 2, 3, 1)
			st := &story{s, g, testify(s, g)}
			if tt.change != nil {
				tt.change(t, st)
			}
			var stopped []ids.NodeID
			if tt.stopped != "" {
				for _, n := range strings.Split(tt.stopped, ",") {
					stopped = append(stopped, ids.NodeID(n))
				}
			}
			p := planRecovery(1, hexOf(5), st.l, stopped, 1000)
			said := strings.Join(p.blocked, "\n")
			if tt.blocked != "" {
				if p.state != nil || !strings.Contains(said, tt.blocked) {
					t.Fatalf("blocked: %q, want %q", said, tt.blocked)
				}
				return
			}
			if p.state == nil || said != "" {
				t.Fatalf("blocked: %q", said)
			}
			notes := slices.Clone(p.notes)
			for _, g := range p.groups {
				notes = append(notes, g.GetNotes()...)
				if g.GetSure() == tt.unsure {
					t.Errorf("sure: %t", g.GetSure())
				}
			}
			if text := strings.Join(notes, "\n"); !strings.Contains(text, tt.note) {
				t.Errorf("notes: %q, want %q", text, tt.note)
			}
			must(t, p.state.Check())
			again, err := stateOf(p.state.entries())
			must(t, err)
			if again.Hash() != p.state.Hash() {
				t.Error("the state is not that of its entries")
			}
			if now := p.state.groups["g"]; now != nil && tt.unsure {
				for _, set := range []voterSet{{1}, {2}, {1, 2}, {2, 3}} {
					if now.mayIssue(set) == nil && !slices.Equal(set, now.voters()) {
						t.Errorf("the voters %v may follow", set)
					}
				}
			}
		})
	}
}

// What no record has is as the nodes were told last.
func TestRecoverWishes(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 1)
	must(t, s.Apply(&raiseLevelCommand{2}))
	must(t, s.Apply(&keepLearnerCommand{Group: g.ID, Replica: 3, Learner: true}))
	must(t, s.Apply(&preferCommand{Group: g.ID, Node: "n2"}))
	becomeMaster(t, s, g, 1)
	must(t, s.Apply(&issueEpochCommand{Group: g.ID, Epoch: 1, Voters: voterSet{1, 2}, Reason: "x"}))
	// Replica 3 is given up, and replica 4, which follows it, is in no record yet.
	becomeMaster(t, s, g, 1)
	must(t, s.Apply(&giveUpCommand{Group: g.ID, Replica: 3}))
	must(t, s.Apply(&issueEpochCommand{Group: g.ID, Epoch: 2, Voters: voterSet{1, 2}, Reason: "x"}))
	becomeMaster(t, s, g, 1)
	must(t, s.Apply(&renewCommand{Group: g.ID, Replica: 3, Epoch: 3}))
	list := testify(s, g)
	p := planRecovery(4, hexOf(5), list, nil, 1000)
	if p.state == nil {
		t.Fatal(p.blocked)
	}
	now := p.state.groups["g"]
	if now.Answers != 2 || now.Members != 3 || now.MinISR != 1 || now.Preferred != "n2" || p.state.cluster.Recovery != 4 || p.state.level() != 2 {
		t.Errorf("it is %+v", now)
	}
	if r := now.Replicas[2]; r.ID != 100001 || !r.Learner || !r.Incarnation.isZero() || r.Slot != 3 || p.state.cluster.NextReplica != 100002 {
		t.Errorf("the third replica is %+v", r)
	}
	if now.Epoch != 1000001 || now.Active != 3 || !slices.Equal(now.voters(), voterSet{1, 2}) || now.Replicas[0].Starts != 3 {
		t.Errorf("epoch %d after %d: %v", now.Epoch, now.Active, now.voters())
	}
	// A node that did not answer has no check code: the first that comes with its id has it.
	p = planRecovery(4, hexOf(5), stop(list, "n2"), []ids.NodeID{"n2"}, 1000)
	must(t, p.state.Apply(&registerCommand{Node: "n2", CheckCode: hexOf(8), Session: hexOf(9)}))
	if err := p.state.Apply(&registerCommand{Node: "n2", CheckCode: hexOf(7), Session: hexOf(6), Replaces: hexOf(9)}); err == nil {
		t.Error("a second node took the id")
	}
	if m, _ := p.state.groups["g"].Record.Member(2); hexID(m.Incarnation) == g.Replicas[1].Incarnation {
		t.Error("a replica that is stopped is named as it was")
	}
	// One that says itself that it is lost may still be chosen, when its group flushes asynchronously.
	list[1].Replicas[0].Lost = "its tail is gone"
	p = planRecovery(4, hexOf(5), list, nil, 1000)
	if m, _ := p.state.groups["g"].Record.Member(2); hexID(m.Incarnation) != g.Replicas[1].Incarnation || p.state.groups["g"].Replicas[1].Lost != "its tail is gone" {
		t.Errorf("a replica that says that it is lost is %+v", p.state.groups["g"].Replicas[1])
	}
}

// Until the epoch of the recovery is active nothing else follows it, and nobody is said to have everything.
func TestRecoveredFollows(t *testing.T) {
	t.Parallel()
	s, g := readyState(t, 2, 3, 1)
	p := planRecovery(1, hexOf(5), testify(s, g), nil, 1000)
	s, g = p.state, p.state.groups["g"]
	for id := range g.Replicas {
		n := s.nodes[g.Replicas[id].Node]
		must(t, s.Apply(&registerCommand{Node: n.ID, CheckCode: n.CheckCode, Session: hexOf(byte(id + 1))}))
	}
	next := func() error {
		return s.Apply(&issueEpochCommand{Group: g.ID, Epoch: g.Epoch, Voters: voterSet{1, 2}, Reason: "x"})
	}
	if err := next(); err == nil || g.keepsAll(1) != "" {
		t.Errorf("a change before it is active: %v", err)
	}
	becomeMaster(t, s, g, 2)
	must(t, next())
	must(t, s.Check())
}

// history is a group under the lost controllers, as the naive rules have it: who has adopted what, whose log has what.
type history struct {
	r         *rand.Rand
	s         *State
	g         *groupEntry
	records   map[ids.Epoch]raftlog.EpochRecord
	adopted   map[ids.ReplicaID]ids.Epoch
	logs      map[ids.ReplicaID][]logged
	committed []logged
	elections int
}

type logged struct {
	epoch ids.Epoch
	n     int // of the election
}

func (h *history) some(set []ids.ReplicaID) (out voterSet) {
	for _, id := range set {
		if h.r.IntN(2) == 0 {
			out = append(out, id)
		}
	}
	return out
}

func votersOf(r raftlog.EpochRecord) (out voterSet) {
	for _, m := range r.Voters {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return out
}

// elect lets some of the voters of an epoch that have adopted it, and of may, elect one of them, which writes an entry to some of them.
func (h *history) elect(epoch ids.Epoch, may voterSet) (log []logged, committed bool) {
	voters := votersOf(h.records[epoch])
	here := slices.DeleteFunc(slices.Clone(voters), func(id ids.ReplicaID) bool { return h.adopted[id] != epoch || !may.has(id) })
	q := h.some(here)
	if len(q) < majority(len(voters)) {
		return nil, false
	}
	longest := q[0]
	for _, id := range q[1:] {
		if longer(h.logs[id], h.logs[longest]) {
			longest = id
		}
	}
	h.elections++
	log = h.logs[longest]
	with := append(slices.Clone(log), logged{epoch, h.elections})
	w := h.some(here)
	for _, id := range w {
		h.logs[id] = with
	}
	if committed = len(w) >= majority(len(voters)); committed {
		h.committed = append(h.committed, logged{epoch, h.elections})
	}
	return log, committed
}

func longer(a, b []logged) bool {
	last := func(l []logged) logged {
		if len(l) == 0 {
			return logged{}
		}
		return l[len(l)-1]
	}
	x, y := last(a), last(b)
	if x != y {
		return x.epoch > y.epoch || x.epoch == y.epoch && x.n > y.n
	}
	return len(a) > len(b)
}

// step is something that may happen.
func (h *history) step(issues bool, may voterSet) (newest bool) {
	all := setOf(1<<len(h.g.Replicas) - 1)
	epoch := ids.Epoch(1 + h.r.IntN(int(h.g.Epoch)))
	switch h.r.IntN(4) {
	case 0:
		if set := h.some(all); issues && h.s.Apply(&issueEpochCommand{Group: h.g.ID, Epoch: h.g.Epoch, Voters: set, Reason: "x"}) == nil {
			h.records[h.g.Epoch] = h.g.Record.EpochRecord
		}
	case 1, 2:
		if id := all[h.r.IntN(len(all))]; epoch > h.adopted[id] {
			h.adopted[id] = epoch
		}
	default:
		if _, committed := h.elect(epoch, may); committed {
			if epoch == h.g.Epoch && issues && h.r.IntN(3) > 0 {
				h.g.activate()
			}
			return true
		}
	}
	return false
}

// Random histories of real epoch records, with records that reach only some, elections in old epochs and masters of which the controllers never
// hear; then the controllers are lost at a random moment and only some nodes answer. Whatever was committed, also by old epochs
// that come to life after the plan was made, whoever is elected in the epoch of the recovery, or in one that follows it by the rules, has
// it. Where the plan does not call a group sure, one that goes on alone would have lost something now and then: so the rule is not too strict.
func TestRecoverLosesNothing(t *testing.T) {
	t.Parallel()
	seeds := 4_000
	if testing.Short() {
		seeds = 1_000
	}
	sure, unsure, losses, late := 0, 0, 0, 0
	for seed := range seeds {
		h := &history{r: newRand(uint64(seed)), records: map[ids.Epoch]raftlog.EpochRecord{}, adopted: map[ids.ReplicaID]ids.Epoch{}, logs: map[ids.ReplicaID][]logged{}}
		m := 2 + h.r.IntN(4)
		h.s, h.g = readyState(t, (m+1)/2, m, 1)
		h.records[1] = h.g.Record.EpochRecord
		all := setOf(1<<m - 1)
		for _, id := range all {
			h.adopted[id] = 1
		}
		for range 10 + h.r.IntN(60) {
			h.step(true, all)
		}
		answers := h.some(all)
		var list []*pb.Testimony
		var stopped []ids.NodeID
		for _, n := range testify(h.s, h.g) {
			id := ids.ReplicaID(n.Replicas[0].GetReplicaId())
			record := h.records[h.adopted[id]]
			if n.Replicas[0].EpochRecord = record.Encode(); answers.has(id) {
				list = append(list, n)
			} else {
				stopped = append(stopped, ids.NodeID(n.GetNodeId()))
			}
		}
		p := planRecovery(1, hexOf(5), list, stopped, 1000)
		if len(answers) == 0 {
			continue
		}
		for len(p.blocked) > 0 { // a node that only absent ones have heard of
			i := slices.IndexFunc(stopped, func(n ids.NodeID) bool { return strings.Contains(strings.Join(p.blocked, ";"), "--stopped "+string(n)) })
			if i < 0 {
				t.Fatalf("seed %d: blocked: %v", seed, p.blocked)
			}
			stopped = slices.Delete(stopped, i, i+1)
			p = planRecovery(1, hexOf(5), list, stopped, 1000)
		}
		g := p.state.groups["g"]
		voters := g.voters()
		first := g.Epoch
		if p.groups[0].GetSure() {
			sure++
		} else if unsure++; len(voters) > 0 {
			var best ids.ReplicaID
			for _, id := range voters {
				if answers.has(id) && (best == 0 || longer(h.logs[id], h.logs[best])) {
					best = id
				}
			}
			if best != 0 && h.lacks(h.logs[best]) != "" {
				losses++
			}
		}
		elected := false
		h.records[first] = g.Record.EpochRecord
		for range 60 {
			if h.step(false, all) {
				if late++; elected {
					t.Fatalf("seed %d: an old epoch commits after a majority is in the new one", seed)
				}
			}
			if set := h.some(all); p.state.Apply(&issueEpochCommand{Group: g.ID, Epoch: g.Epoch, Voters: set, Reason: "x"}) == nil {
				h.records[g.Epoch] = g.Record.EpochRecord
			}
			epoch := first + ids.Epoch(h.r.IntN(int(g.Epoch-first)+1))
			if id := all[h.r.IntN(len(all))]; h.r.IntN(2) == 0 && epoch > h.adopted[id] {
				h.adopted[id] = epoch // one that is stopped parks with that
			}
			if log, committed := h.elect(epoch, answers); log != nil || committed {
				elected = true
				if what := h.lacks(log); what != "" {
					t.Fatalf("seed %d: a master of the recovered epoch %d lacks %s, committed before\nanswers %v of %d, adopted %v, voters %v", seed, epoch, what, answers, m, h.adopted, voters)
				}
				if epoch == g.Epoch && committed {
					g.activate()
				}
			}
		}
	}
	if sure < seeds/10 || losses < seeds/1000 || late == 0 {
		t.Errorf("%d sure, %d not, of which %d would have lost something, %d late commits: this tests too little", sure, unsure, losses, late)
	}
	t.Logf("%d sure, %d not, of which %d would have lost something; %d commits of old epochs after the plan", sure, unsure, losses, late)
}

// lacks returns what was committed before and log has not, "" when it has all. The last entry may be the one that the master just made.
func (h *history) lacks(log []logged) string {
	for _, c := range h.committed {
		if !slices.Contains(log, c) && c.n != h.elections {
			return fmt.Sprintf("entry %d of epoch %d", c.n, c.epoch)
		}
	}
	return ""
}
