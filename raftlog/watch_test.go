package raftlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/sim"
)

// member returns what n knows of replica id.
func (w *trio) member(t *testing.T, n ids.ReplicaID, id ids.ReplicaID) raftlog.MemberStatus {
	t.Helper()
	st := w.w.Node(n).Status()
	for _, m := range append(st.Voters, st.Learners...) {
		if m.ID == id {
			return m
		}
	}
	t.Fatalf("replica %d does not know replica %d", n, id)
	return raftlog.MemberStatus{}
}

// second lets a second pass at the nodes; what they send to others waits.
func (w *trio) second(nodes ...*sim.Node) {
	for range 20 { // ticks of 50 ms
		for _, n := range nodes {
			n.Tick()
		}
		w.settle(nodes)
	}
}

func TestMasterWatchesMembers(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	n1, n2, n3 := w.w.Node(1), w.w.Node(2), w.w.Node(3)
	w.propose(t, "a")
	w.second(n1, n2, n3)
	for _, id := range []ids.ReplicaID{2, 3} {
		if m := w.member(t, 1, id); m.Stalled != 0 || m.CaughtUp < 700*time.Millisecond || m.Closed {
			t.Errorf("a member that does well: %+v", m)
		}
	}
	// Replica 3 is cut off.
	w.second(n1, n2)
	if m := w.member(t, 1, 3); m.Stalled < 900*time.Millisecond || m.Stalled > 1100*time.Millisecond || m.CaughtUp != 0 {
		t.Errorf("a member that was silent for a second: %+v", m)
	}
	if m := w.member(t, 1, 2); m.Stalled != 0 {
		t.Errorf("the other one: %+v", m)
	}
	if st := n3.Status(); st.MasterClosed {
		t.Errorf("a follower whose connection was not closed: %+v", st)
	}
	n1.Replica.PeerDown("n3")
	if m := w.member(t, 1, 3); !m.Closed {
		t.Errorf("a member whose connection was closed: %+v", m)
	}
	w.second(n1, n2, n3)
	if m := w.member(t, 1, 3); m.Stalled != 0 || m.Closed || m.CaughtUp < 500*time.Millisecond {
		t.Errorf("a member that is back: %+v", m)
	}
}

// A member whose disk hangs answers heartbeats and does not advance.
func TestMasterWatchesHungDisk(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	n1, n2, n3 := w.w.Node(1), w.w.Node(2), w.w.Node(3)
	w.second(n1, n2, n3)
	for k := range 20 {
		w.propose(t, fmt.Sprint("op ", k))
		for _, n := range []*sim.Node{n1, n2, n3} {
			n.Tick()
		}
		// settle would write replica 3's jobs: its messages are delivered by hand.
		for round := 0; round < 20; round++ {
			out := w.net
			w.net = nil
			for _, o := range out {
				w.w.Node(o.Envelope.To).Deliver(o.Envelope)
			}
			for _, n := range []*sim.Node{n1, n2} {
				if n.Busy() {
					n.Write()
					for n.Complete() {
					}
				}
			}
			if len(w.net) == 0 && !n1.Busy() && !n2.Busy() {
				break
			}
		}
		if w.w.Check.Err != nil {
			t.Fatal(w.w.Check.Err)
		}
	}
	if m := w.member(t, 1, 3); m.Stalled < 800*time.Millisecond || !m.Heard || m.CaughtUp != 0 {
		t.Errorf("a member with a hung disk: %+v", m)
	}
	if m := w.member(t, 1, 2); m.Stalled != 0 || m.CaughtUp == 0 {
		t.Errorf("the other one: %+v", m)
	}
}

func TestFollowerMissesMaster(t *testing.T) {
	t.Parallel()
	w := newTrio(t, nil)
	w.elect(t)
	n1, n2, n3 := w.w.Node(1), w.w.Node(2), w.w.Node(3)
	w.second(n1, n2, n3)
	if st := n2.Status(); st.MasterSilent > 100*time.Millisecond || st.MasterClosed {
		t.Errorf("a follower that hears its master: %v, closed %t", st.MasterSilent, st.MasterClosed)
	}
	if st := n1.Status(); st.MasterSilent != 0 {
		t.Errorf("a master misses one: %v", st.MasterSilent)
	}
	n2.Replica.PeerDown("n3")
	if n2.Status().MasterClosed {
		t.Error("the connection to another follower was taken for the master's")
	}
	n2.Replica.PeerDown("n1")
	if !n2.Status().MasterClosed {
		t.Error("the master's connection was closed")
	}
	for range 4 {
		n2.Tick()
	}
	if st := n2.Status(); st.MasterSilent < 200*time.Millisecond || st.MasterSilent > 300*time.Millisecond {
		t.Errorf("after four ticks without the master: %v", st.MasterSilent)
	}
	w.second(n1, n2, n3)
	if st := n2.Status(); st.MasterSilent > 100*time.Millisecond || st.MasterClosed {
		t.Errorf("a follower that hears its master again: %v, closed %t", st.MasterSilent, st.MasterClosed)
	}
	// A master that steps down begins to miss one only then.
	w.second(n1)
	w.second(n1)
	if st := n1.Status(); st.Role == raftlog.RoleMaster || st.MasterSilent < 500*time.Millisecond || st.MasterSilent > 1900*time.Millisecond {
		t.Errorf("a master without a quorum: %s, misses one for %v", st.Role, st.MasterSilent)
	}
}
