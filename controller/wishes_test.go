package controller

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// A replica that an operator keeps a learner leaves the voters when it can be done without, and comes back when he says so.
func TestKeepLearner(t *testing.T) {
	t.Parallel()
	st := tell(t, 2, 4, 0)
	st.s.cluster.Level = NewestLevel
	keep := func(id ids.ReplicaID, learner bool) error {
		return st.s.Apply(&keepLearnerCommand{Group: st.g.ID, Replica: id, Learner: learner})
	}
	must(t, keep(1, true)) // the master: another one leads, then replica 4 takes its place
	st.reshapes(1, 3)
	st.shaped(2, 4)
	if v := st.g.voters(); !slices.Equal(v, voterSet{2, 3, 4}) || st.g.preferredNode() != "n2" {
		t.Errorf("%v vote, preferred is %s", v, st.g.preferredNode())
	}
	must(t, keep(4, true))
	st.reshapes(2, 2)
	st.shaped(2, 4)
	for _, tt := range []struct {
		err  error
		kind error
		says string
	}{
		{keep(3, true), ErrInvalid, "on 2 voters, and only 1 of its replicas may vote"},
		{keep(9, true), ErrNotFound, "has no replica 9"},
		{st.s.Apply(&keepLearnerCommand{Group: hexOf(9)}), ErrNotFound, "does not exist"},
		{st.s.Apply(&preferCommand{Group: st.g.ID, Node: "n9"}), ErrInvalid, "its replicas are 1 on n1, 2 on n2"},
		{st.s.Apply(&preferCommand{Group: st.g.ID, Node: "n4"}), ErrInvalid, "kept a learner"},
		{st.s.Apply(&removeNodeCommand{"n4"}), ErrInvalid, "node n4 has replica 4 of group g: move or remove each first"},
		{st.s.Apply(&removeNodeCommand{"n9"}), ErrNotFound, "the nodes are n1, n2"},
	} {
		if !errors.Is(tt.err, tt.kind) || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%v, want %v with %q", tt.err, tt.kind, tt.says)
		}
	}
	must(t, keep(1, false))
	must(t, keep(4, false))
	st.reshapes(2, 2)
	st.shaped(2, 4)
	must(t, st.s.Apply(&preferCommand{Group: st.g.ID, Node: "n3"}))
	if st.g.preferredNode() != "n3" {
		t.Errorf("preferred is %s", st.g.preferredNode())
	}
	must(t, st.s.Check())
}

// A node without replicas is forgotten: in the state, in what is written, and its id is free.
func TestRemoveNode(t *testing.T) {
	t.Parallel()
	s := foundedState(t, 4)
	s.cluster.Level = NewestLevel
	must(t, s.Apply(creation("g", 1, 2, 3)))
	s.takeChanges()
	must(t, s.Apply(&removeNodeCommand{"n4"}))
	if c := s.takeChanges(); len(c) != 1 || c[0].key != "node/n4" || c[0].value != nil {
		t.Errorf("what is written: %+v", c)
	}
	if again, err := stateOf(s.entries()); err != nil || again.nodes["n4"] != nil || again.Hash() != s.Hash() {
		t.Errorf("read back: %v", err)
	}
	must(t, s.Apply(&registerCommand{Node: "n4", CheckCode: hexOf(0x44), Session: hexOf(0x44)})) // another node
	if c := s.takeChanges(); len(c) != 1 || c[0].value == nil {
		t.Errorf("what is written: %+v", c)
	}
}

// best against the rule as it is written: the longest log, then one that stays, then the preferred one, then its zone, then the lowest
// slot, among those that are there.
func TestBestPrefers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := newRand(seed)
		st := tell(t, 3, 5, 1)
		g := st.g
		if p := r.IntN(6); p > 0 {
			g.Preferred = g.Replicas[p-1].Node
		}
		for _, n := range st.s.nodes {
			n.Addresses.Zone = []string{"", "east", "west"}[r.IntN(3)]
		}
		st.v.near = st.s.near(g)
		zone := func(id ids.ReplicaID) string { return st.s.nodes[g.replica(id).Node].Addresses.Zone }
		preferred := g.staysOn(g.preferredNode()).ID
		var there []ids.ReplicaID
		for id := ids.ReplicaID(1); id <= 5; id++ {
			v := st.v.replicas[id]
			v.lastTerm, v.last, v.able, v.leaving = ids.Term(r.IntN(2)), ids.Index(r.IntN(2)), r.IntN(4) > 0, r.IntN(4) == 0
			st.v.replicas[id] = v
			if v.able {
				there = append(there, id)
			}
		}
		rank := func(b bool) int {
			if b {
				return 0
			}
			return 1
		}
		slices.SortFunc(there, func(a, b ids.ReplicaID) int {
			x, y := st.v.replicas[a], st.v.replicas[b]
			near := func(id ids.ReplicaID) bool { return zone(preferred) != "" && zone(id) == zone(preferred) }
			return cmp.Or(cmp.Compare(y.lastTerm, x.lastTerm), cmp.Compare(y.last, x.last), rank(!x.leaving)-rank(!y.leaving),
				rank(a == preferred)-rank(b == preferred), rank(near(a))-rank(near(b)), cmp.Compare(a, b))
		})
		want := ids.ReplicaID(0)
		if len(there) > 0 {
			want = there[0]
		}
		if got := g.best(&st.v, voterSet{1, 2, 3, 4, 5}); got != want {
			t.Fatalf("seed %d: replica %d, want %d; preferred %d", seed, got, want, preferred)
		}
	}
}
