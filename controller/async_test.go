package controller

import (
	"cmp"
	"errors"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// A group that flushes asynchronously is a new thing of level 2, is recorded as such, and another flush mode makes another group.
func TestAsyncGroup(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 3)
	c := creation("g1", 1, 2, 3)
	c.Async = true
	if err := s.Apply(c); !errors.Is(err, ErrNotNow) || !strings.Contains(err.Error(), "asynchronous flush needs the cluster's feature level 2") {
		t.Errorf("at level 1: %v", err)
	}
	must(t, s.Apply(&raiseLevelCommand{2}))
	must(t, s.Apply(c))
	g := s.groups["g1"]
	if !g.Async || !s.wantedReplica(g, &g.Replicas[0]).GetAsyncFlush() || !s.describe(g, nodeViews{}).GetAsyncFlush() {
		t.Error("the group does not flush asynchronously")
	}
	must(t, s.Apply(c))
	if err := s.Apply(creation("g1", 2, 2, 3)); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "flush async") {
		t.Errorf("the same group with another flush mode: %v", err)
	}
}

// loses tells of a replica that lost its power, and of what its log has.
func (st *story) loses(id ids.ReplicaID, last ids.Index) {
	st.g.replica(id).Lost = "its machine lost its power"
	st.change(id, func(v *replicaView) {
		v.able, v.told, v.usable, v.last, v.terms = false, true, true, last, []termStart{{ids.MakeTerm(1, 1), 1}}
	})
}

// powerless is a group of an asynchronous mode without a master, whose replicas all told what they have: 100 entries.
func powerless(t testing.TB, a, m, minISR int) *story {
	s, g := readyState(t, a, m, minISR)
	st := &story{s: s, g: g}
	st.t, _ = t.(*testing.T)
	becomeMaster(t, s, g, 1)
	st.well(0)
	g.Async, s.cluster.Level = true, 2
	st.v.doomed = time.Minute
	for _, r := range g.Replicas {
		st.change(r.ID, func(v *replicaView) {
			v.masterSilent, v.told, v.usable, v.terms = time.Minute, true, true, []termStart{{ids.MakeTerm(1, 1), 1}}
		})
	}
	return st
}

// decideIf is decide, with what the leader would know of how long the group is doomed.
func (st *story) decideIf() decision {
	if !st.g.doomed() {
		st.v.doomed = 0
	}
	return st.g.decide(&st.v)
}

// The unclean election without an operator: only when no majority has kept its identity, and every voter has told what it has.
func TestAsyncElection(t *testing.T) {
	t.Parallel()
	all := func(st *story) { st.loses(1, 90); st.loses(2, 95); st.loses(3, 80) }
	for _, c := range []struct {
		name  string
		do    func(*story)
		want  ids.ReplicaID
		stuck string
	}{
		{"all are lost", all, 2, ""},
		{"all have the same: the preferred one", func(st *story) { st.loses(1, 90); st.loses(2, 90); st.loses(3, 90); st.g.Preferred = "n3" }, 3, ""},
		{"two are lost, and the third has less", func(st *story) { st.loses(1, 200); st.loses(2, 95) }, 1, ""},
		{"two are lost, and the third has more", func(st *story) { st.loses(1, 50); st.loses(2, 50) }, 3, ""},
		{"two are lost, and the third has as much", func(st *story) { st.loses(1, 100); st.loses(2, 100) }, 3, ""},
		{"a term goes before a length", func(st *story) { all(st); st.change(3, func(v *replicaView) { v.lastTerm++ }) }, 3, ""},
		{"one is lost", func(st *story) { st.loses(1, 200) }, 0, ""},
		{"a synchronous group", func(st *story) { all(st); st.g.Async = false }, 0, "lost for ever"},
		{"the controllers were recovered, and nobody has led since", func(st *story) { all(st); st.g.Recovered, st.g.Active = st.g.Epoch, st.g.Epoch-1 }, 0, ""},
		{"one is silent", func(st *story) { all(st); st.dead(3) }, 0, "replica 3 on node n3 is silent"},
		{"an intact one is silent", func(st *story) { st.loses(1, 200); st.loses(2, 95); st.dead(3) }, 0, "replica 3 on node n3 is silent"},
		{"one has not told", func(st *story) { all(st); st.change(3, func(v *replicaView) { v.told = false }) }, 0, "has not told what its log has"},
		{"one was heard before the loss only", func(st *story) { all(st); st.v.doomed = wordAge }, 0, "was not heard again yet"},
		{"an intact one is parked", func(st *story) {
			st.loses(1, 90)
			st.loses(2, 95)
			st.change(3, func(v *replicaView) { v.able = false })
		}, 0, "takes no part"},
		{"one is wiped", func(st *story) { all(st); st.change(2, func(v *replicaView) { v.usable, v.terms = false, nil }) }, 1, ""},
		{"all are wiped", func(st *story) {
			all(st)
			for id := range ids.ReplicaID(3) {
				st.change(id+1, func(v *replicaView) { v.usable = false })
			}
		}, 0, "none of them has a log"},
		{"an old master of a minority still leads", func(st *story) {
			st.loses(1, 90)
			st.loses(2, 95)
			st.change(3, func(v *replicaView) { v.master, v.term = true, ids.MakeTerm(1, 9) })
		}, 0, ""},
		{"one that left the voters since may have the most", func(st *story) {
			must(st.t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: 1, Voters: voterSet{1, 2}}))
			all(st)
			st.change(3, func(v *replicaView) { v.last = 99 })
		}, 3, ""},
		{"one that left the voters before is not asked", func(st *story) {
			must(st.t, st.s.Apply(&issueEpochCommand{Group: st.g.ID, Epoch: 1, Voters: voterSet{1, 2}}))
			becomeMaster(st.t, st.s, st.g, 1)
			st.loses(1, 90)
			st.loses(2, 95)
			st.dead(3)
		}, 2, ""},
	} {
		st := powerless(t, 2, 3, 2)
		c.do(st)
		d := st.decideIf()
		if d.unclean != c.want || d.stuck == "" && c.stuck != "" || !strings.Contains(d.stuck, c.stuck) {
			t.Errorf("%s: replica %d wins, want %d; stuck %q", c.name, d.unclean, c.want, d.stuck)
		}
		if d.unclean == 0 || t.Failed() {
			continue
		}
		was := st.g.replica(c.want).Lost
		u := &uncleanCommand{Group: st.g.ID, Epoch: st.g.Epoch, Winner: d.unclean, Last: 95, Terms: []termStart{{ids.MakeTerm(1, 1), 1}}, Revive: was != "", Auto: true}
		must(t, st.s.Apply(u))
		must(t, st.s.Check())
		r := st.g.replica(c.want)
		if r.Lost != "" || (r.Revived == st.g.Epoch) != (was != "") || len(st.g.voters()) != 1 || st.g.Active != st.g.Epoch || st.g.doomed() {
			t.Errorf("%s: the winner is %+v in epoch %d of %v", c.name, r, st.g.Epoch, st.g.voters())
		}
		// What it said of its loss before does not count any more, and what it says now does.
		old := replicaFacts{Group: st.g.ID, Replica: r.ID, Incarnation: r.Incarnation, Lost: true}
		if was != "" && (st.s.applyReplicaFacts(st.g, r, old) || r.Lost != "") {
			t.Errorf("%s: the winner is lost by an old report", c.name)
		}
		old.Revived = st.g.Epoch
		if !st.s.applyReplicaFacts(st.g, r, old) || r.Lost == "" {
			t.Errorf("%s: the winner cannot be lost again", c.name)
		}
	}
}

// What the leader of the controllers could not know is looked at again where its command is applied.
func TestAsyncElectionApplied(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(*story, *uncleanCommand)
		says string
	}{
		{"enough have kept their identities", func(st *story, _ *uncleanCommand) { st.g.replica(1).Lost, st.g.replica(3).Lost = "", "" }, "have kept their identities"},
		{"a synchronous group", func(st *story, _ *uncleanCommand) { st.g.Async = false }, "flushes synchronously"},
		{"a lost one is to be elected as one that is not", func(_ *story, u *uncleanCommand) { u.Revive = false }, "it is lost"},
		{"it never voted", func(st *story, u *uncleanCommand) {
			st.g.Since = []voterSet{{1, 3}}
		}, "not in the record"},
		{"the controllers were recovered", func(st *story, _ *uncleanCommand) { st.g.Recovered, st.g.Active = st.g.Epoch, st.g.Epoch-1 }, "were recovered"},
		{"another epoch", func(_ *story, u *uncleanCommand) { u.Epoch++ }, "is the newest"},
	} {
		st := powerless(t, 2, 3, 2)
		for id := range ids.ReplicaID(3) {
			st.loses(id+1, 90)
		}
		u := &uncleanCommand{Group: st.g.ID, Epoch: 1, Winner: 2, Revive: true, Auto: true}
		c.do(st, u)
		before := st.s.Hash()
		if err := st.s.Apply(u); err == nil || !strings.Contains(err.Error(), c.says) || st.s.Hash() != before {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// All modes of up to five replicas with each one intact, silent, or lost with less or more of its log told, or nothing: against the rule as it
// is written. Nobody goes on uncleanly while any majority of any set that can be issued is intact, nor before every voter has told; who goes
// on has what each of them has.
func TestAsyncElectionTwin(t *testing.T) {
	t.Parallel()
	const intact, silent, less, more, untold = 0, 1, 2, 3, 4
	cases, elected := 0, 0
	for m := 1; m <= 5; m++ {
		kinds := 5
		if m == 5 {
			kinds = untold // the others show it
		}
		for a := 1; a <= m; a++ {
			for _, minISR := range []int{0, 1} {
				for _, shrunk := range []bool{false, true} {
					base := powerless(t, a, m, minISR)
					if n := len(base.g.voters()); shrunk && (n < 2 ||
						base.s.Apply(&issueEpochCommand{Group: base.g.ID, Epoch: 1, Voters: base.g.voters().without(ids.ReplicaID(n))}) != nil) {
						continue
					}
					views, twin := base.v.replicas, make([]bool, 1<<m)
					for lost := range twin {
						for i := range m {
							base.g.replica(ids.ReplicaID(i + 1)).Lost = []string{"", "lost"}[lost>>i&1]
						}
						if twin[lost] = twinDoomed(base.g, uint(lost), m); base.g.doomed() != twin[lost] {
							t.Fatalf("mode %d-%d, min ISR %d, shrunk %t, replicas %0*b lost: doomed is %t", a, m, base.g.MinISR, shrunk, m, lost, !twin[lost])
						}
					}
					for code := range pow(kinds, m) {
						st := &story{t: t, s: base.s, g: base.g, v: base.v}
						st.v.replicas, st.v.doomed = maps.Clone(views), time.Minute
						var lost, told uint
						for i, rest := 0, code; i < m; i, rest = i+1, rest/kinds {
							id := ids.ReplicaID(i + 1)
							st.g.replica(id).Lost = ""
							switch rest % kinds {
							case silent:
								st.dead(id)
							case less, more:
								st.loses(id, ids.Index(80+10*(rest%kinds)))
							case untold:
								st.loses(id, 200)
								st.change(id, func(v *replicaView) { v.told, v.usable = false, false })
							}
							if rest%kinds >= less {
								lost |= 1 << i
							}
							if rest%kinds != silent && rest%kinds != untold {
								told |= 1 << i
							}
						}
						cases++
						doomed := twin[lost]
						if !doomed {
							st.v.doomed = 0 // as the leader of the controllers sees to
						}
						d := st.g.decide(&st.v)
						voted := maskOf(st.g.everVoted())
						if want := doomed && voted&^told == 0; (d.unclean != 0) != want {
							t.Fatalf("mode %d-%d, min ISR %d, shrunk %t, replicas %0*b lost, %0*b told: %d goes on, stuck %q", a, m, st.g.MinISR, shrunk, m, lost, m, told, d.unclean, d.stuck)
						}
						if d.unclean == 0 {
							continue
						}
						elected++
						for _, id := range st.g.everVoted() {
							if st.v.replicas[id].last > st.v.replicas[d.unclean].last || !st.g.everVoted().has(d.unclean) {
								t.Fatalf("mode %d-%d, %0*b lost: replica %d goes on, replica %d has more", a, m, m, lost, d.unclean, id)
							}
						}
					}
				}
			}
		}
	}
	if elected < 1000 {
		t.Errorf("%d elections in %d cases", elected, cases)
	}
}

func pow(base, n int) int {
	out := 1
	for range n {
		out *= base
	}
	return out
}

func maskOf(set voterSet) (mask uint) {
	for _, id := range set {
		mask |= 1 << (id - 1)
	}
	return mask
}

// twinDoomed is doomed by trying everything: no set that elects, or that the controllers issue for a group without a master, has a majority
// that is not lost.
func twinDoomed(g *groupEntry, lost uint, m int) bool {
	current, active := maskOf(g.voters()), maskOf(g.Since[0])
	for set := uint(1); set < 1<<m; set++ {
		removed, added := bits.OnesCount(active&^set), bits.OnesCount(set&^active)
		proposed := added == 0 && removed <= 1 || added == 1 && removed == 1 && g.Active == g.Epoch
		allowed := proposed && bits.OnesCount(set) >= max(1, min(g.MinISR, bits.OnesCount(active))) && set&^active&lost == 0
		for _, old := range g.Since {
			for _, q := range majorities(set) {
				for _, w := range majorities(maskOf(old)) {
					allowed = allowed && q&w != 0
				}
			}
		}
		if set != current && !allowed {
			continue
		}
		for _, q := range majorities(set) {
			if q&lost == 0 {
				return false
			}
		}
	}
	return true
}

// Every short history of three voters under Raft's rules, and every way in which each of them loses the end of its log: what was committed,
// and any of them still has, up to an entry of the master that committed it, is in the log that goes on.
func TestLongestLogKeeps(t *testing.T) {
	t.Parallel()
	type entry = int // 10*term + number
	type history struct {
		logs      [3][]entry
		committed map[entry]int // with the term of the master that did
	}
	newer := func(a, b []entry) bool { // at least as up to date
		if len(a) == 0 || len(b) == 0 {
			return len(b) == 0
		}
		return cmp.Or(cmp.Compare(a[len(a)-1]/10, b[len(b)-1]/10), cmp.Compare(len(a), len(b))) >= 0
	}
	histories, cuts := 0, 0
	check := func(h history) {
		histories++
		var lens [3]int
		for lens[0] = 0; lens[0] <= len(h.logs[0]); lens[0]++ {
			for lens[1] = 0; lens[1] <= len(h.logs[1]); lens[1]++ {
				for lens[2] = 0; lens[2] <= len(h.logs[2]); lens[2]++ {
					cuts++
					winner := h.logs[0][:lens[0]]
					for i := 1; i < 3; i++ {
						if log := h.logs[i][:lens[i]]; !newer(winner, log) {
							winner = log
						}
					}
					for e, term := range h.committed {
						for i := range 3 {
							log := h.logs[i][:lens[i]]
							if slices.Contains(log, e) && log[len(log)-1]/10 >= term && !slices.Contains(winner, e) {
								t.Fatalf("logs %v cut at %v: entry %d was committed, and %v goes on", h.logs, lens, e, winner)
							}
						}
					}
				}
			}
		}
	}
	var extend func(h history, term int)
	extend = func(h history, term int) {
		check(h)
		if term > 3 {
			return
		}
		for leader := range 3 {
			votes := 0
			for i := range 3 {
				if newer(h.logs[leader], h.logs[i]) {
					votes++
				}
			}
			if votes < 2 {
				continue
			}
			for appended := 1; appended <= max(1, 3-term); appended++ { // fewer later on: it is a question of time
				log := slices.Clone(h.logs[leader])
				for n := range appended {
					log = append(log, 10*term+n)
				}
				// Each follower has as much of the leader's log as it got, or what it had.
				for _, got := range pairs(len(log) + 1) {
					next := history{logs: h.logs, committed: maps.Clone(h.committed)}
					next.logs[leader] = log
					copies := make([]int, len(log)+1) // copies[n]: logs that agree with the leader's up to n
					for n := range copies {
						copies[n] = 1
					}
					for f, i := range [2]int{(leader + 1) % 3, (leader + 2) % 3} {
						n := got[f]
						if n == 0 {
							continue // it heard nothing
						}
						if mine := h.logs[i]; len(mine) < n || !slices.Equal(mine[:n], log[:n]) { // else it had that, and maybe more of the same
							next.logs[i] = log[:n]
						}
						for k := range n + 1 {
							copies[k]++
						}
					}
					for n := len(log); n > len(log)-appended; n-- {
						if copies[n] >= 2 { // an entry of its own term, with all before
							for _, e := range log[:n] {
								if _, before := next.committed[e]; !before {
									next.committed[e] = term
								}
							}
							break
						}
					}
					extend(next, term+1)
				}
			}
		}
	}
	extend(history{committed: map[entry]int{}}, 1)
	if histories < 10000 {
		t.Errorf("%d histories, %d cuts", histories, cuts)
	}
}

// pairs returns all pairs of numbers below n.
func pairs(n int) (out [][2]int) {
	for a := range n {
		for b := range n {
			out = append(out, [2]int{a, b})
		}
	}
	return out
}

// An operator may elect a lost replica of an asynchronous group, and must name who cannot tell.
func TestPlanUncleanOfLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		do      func(*story)
		replica ids.ReplicaID
		stopped voterSet
		kind    error
		says    string
	}{
		{"one never comes back", func(st *story) { st.dead(3) }, 2, voterSet{3}, nil, "after entry 95"},
		{"one that is not named", func(st *story) { st.dead(3) }, 2, nil, ErrInvalid, "--stopped 3"},
		{"the one that has less", func(st *story) { st.dead(3) }, 1, voterSet{3}, ErrInvalid, "replica 2 on node n2 lives and has more"},
		{"one that cannot tell", func(st *story) { st.change(3, func(v *replicaView) { v.told, v.usable = false, false }) }, 2, nil, ErrInvalid, "--stopped 3 to give up what it has"},
		{"one that cannot tell, given up", func(st *story) { st.change(3, func(v *replicaView) { v.told, v.usable = false, false }) }, 2, voterSet{3}, nil, "after entry 95"},
		{"it cannot tell itself", func(st *story) { st.change(2, func(v *replicaView) { v.told, v.usable = false, false }) }, 2, voterSet{3}, ErrNotNow, "has not told what its log has"},
		{"a synchronous group", func(st *story) { st.g.Async = false }, 2, voterSet{3}, ErrInvalid, "it is lost"},
	} {
		st := powerless(t, 2, 3, 2)
		st.loses(1, 90)
		st.loses(2, 95)
		st.loses(3, 80)
		c.do(st)
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
