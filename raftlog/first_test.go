package raftlog_test

import (
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/sim"
)

// TestFirstElectionIsLeftToTheFirst holds that a new group waits long for the first of its voters, also where its clock is the
// slowest; that it does not wait for ever; and that this is over with the first election.
func TestFirstElectionIsLeftToTheFirst(t *testing.T) {
	t.Parallel()
	master := func(w *trio, nodes []*sim.Node) (id ids.ReplicaID) {
		for _, n := range nodes {
			if n.Status().Role == raftlog.RoleMaster {
				id = n.ID
			}
		}
		return id
	}
	tick := func(w *trio, nodes []*sim.Node, timeouts int) {
		for range 6 * timeouts { // the default of ElectionTick
			for _, n := range nodes {
				n.Tick()
			}
			w.settle(nodes)
		}
	}
	w := newTrio(t, nil)
	others := w.w.Nodes[1:]
	tick(w, others, 15)
	if got := master(w, w.w.Nodes); got != 0 || w.w.Node(2).Status().Term.Election() != 0 {
		t.Errorf("replica %d leads before the first one's clock went on", got)
	}
	tick(w, w.w.Nodes, 3)
	if got := master(w, w.w.Nodes); got != 1 {
		t.Errorf("replica %d leads, want the first", got)
	}
	tick(w, others, 12) // the first one has died
	if got := master(w, others); got != 2 && got != 3 {
		t.Errorf("replica %d leads after the first one: they wait for it as if nothing had been", got)
	}

	w = newTrio(t, nil)
	others = w.w.Nodes[1:]
	tick(w, others, 30)
	if got := master(w, others); got != 2 && got != 3 {
		t.Errorf("replica %d leads a group whose first replica never came", got)
	}
}
