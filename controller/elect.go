package controller

import (
	"strings"
	"time"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// order tells a group's master to hand over. It is given once, with the next answer to its node; the term fences it, and so does
// Raft: only who has the whole log can take over.
type order struct {
	to     ids.ReplicaID
	master ids.ReplicaID
	term   ids.Term
}

// Elect orders the group's master to hand over to the replica on node. It returns nil also when that one is master already. Errors:
// ErrNotFound, ErrInvalid, ErrNotNow.
func (l *Leader) Elect(now time.Time, st *State, group string, node ids.NodeID) error {
	g := st.groups[group]
	if g == nil {
		return refuse(ErrNotFound, "group %q does not exist: look at the list of groups", cut(group))
	}
	v, _ := l.view(now, g)
	if v == nil {
		return refuse(ErrNotNow, "group %s: this controller leads no more: ask again", g.Name)
	}
	o, err := g.elect(v, node)
	if err != nil || o.to == o.master {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.plans[ids.GroupID(g.ID)]; p != nil {
		p.order = o
	}
	return nil
}

// elect looks whether the replica on node may be made master now.
func (g *groupEntry) elect(v *groupView, node ids.NodeID) (order, error) {
	var r *replicaEntry
	var nodes []string
	for i := range g.Replicas {
		nodes = append(nodes, string(g.Replicas[i].Node))
		if g.Replicas[i].Node == node {
			r = &g.Replicas[i]
		}
	}
	if r == nil {
		return order{}, refuse(ErrInvalid, "group %s has no replica on node %q: its replicas are on %s", g.Name, cut(string(node)), strings.Join(nodes, ", "))
	}
	notNow := func(format string, args ...any) (order, error) {
		return order{}, refuse(ErrNotNow, "group %s, replica %d on node %s: "+format, append([]any{g.Name, r.ID, node}, args...)...)
	}
	if !g.voters().has(r.ID) {
		return notNow("it is not a voter of epoch %d: it may lack what was answered OK", g.Epoch)
	}
	if g.Active < g.Epoch {
		return notNow("epoch %d has no master yet: ask again in a moment", g.Epoch)
	}
	o := order{to: r.ID}
	for _, id := range g.voters() {
		if m := v.replicas[id]; v.mayVote(id) && m.master && m.epoch == g.Epoch && m.term > o.term {
			o.master, o.term = id, m.term
		}
	}
	to := v.replicas[r.ID]
	m, known := v.replicas[o.master].members[r.ID]
	switch {
	case o.master == r.ID:
		return o, nil
	case !v.live(r.ID):
		return notNow("it was not heard for %v", to.silent.Round(time.Millisecond))
	case !to.able:
		return notNow("it is parked, poisoned or lost")
	case to.leaving:
		return notNow("its node is about to end")
	case o.master == 0:
		return notNow("the group has no master that could hand over; one is elected as soon as one can be")
	case !known || m.stalled > 0 || m.caughtUp == 0:
		return notNow("it is behind: it has the log up to entry %d, the master up to %d", m.match, v.replicas[o.master].last)
	}
	return o, nil
}

// orderHandOver orders the master to hand over to a voter, unless that was done a moment ago.
func (s *soft) orderHandOver(now time.Time, g *groupEntry, v *groupView, to ids.ReplicaID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, master := s.plans[ids.GroupID(g.ID)], g.liveMaster(v)
	if p == nil || master == 0 || now.Sub(p.ordered) < electAgain {
		return
	}
	p.order, p.ordered = order{to: to, master: master, term: v.replicas[master].term}, now
}

// takeOrder gives the order to hand over to the master that it is for, once.
func (s *soft) takeOrder(g *groupEntry, r *replicaEntry, w *pb.WantedReplica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.plans[ids.GroupID(g.ID)]; p != nil && p.order.to != 0 && p.order.master == r.ID {
		w.HandOverTo, w.HandOverTerm = uint64(p.order.to), uint64(p.order.term)
		p.order = order{}
	}
}
