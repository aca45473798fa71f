package sim

import (
	"bytes"
	"errors"
	"slices"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// The pace of a node's heartbeats, in virtual microseconds, as in broker.
const (
	heartbeatEvery = 200_000
	callTimeout    = 2_000_000
)

// agent speaks with the controllers for one node: it registers each process of it, tells the state of all its replicas in one
// heartbeat, and does what the answers want. What is told and what is wanted is the product's code.
type agent struct {
	s *schedule
	h *Host

	life       int // of the process that speaks
	session    ids.UUID
	sequence   uint64
	registered bool
	busy       bool
	call       int // number of the call under way, or of the next one
	last       int64
	campaigned map[ids.ReplicaID]uint64 // term + 1 of the last order to campaign
}

// checkCode of the node's data folder.
func (h *Host) checkCode() ids.UUID { return ids.UUID{0xCC, h.Name[1]} }

// firstSession is that of the process that founds the group.
func (h *Host) firstSession() ids.UUID { return ids.UUID{1, h.Name[1]} }

// beat looks at whether a heartbeat is due, again and again.
func (a *agent) beat() {
	a.s.after(a.s.between(45_000, 55_000), a.beat)
	a.look(false)
}

// hurry sends a heartbeat at once: a replica has become master.
func (a *agent) hurry() { a.look(true) }

func (a *agent) look(due bool) {
	s, h := a.s, a.h
	if !h.running || s.pausedFor(h) > 0 {
		return
	}
	if a.life != h.life { // another process
		*a = agent{s: s, h: h, life: h.life, call: a.call + 1, campaigned: make(map[ids.ReplicaID]uint64)}
		for i := range a.session {
			a.session[i] = byte(s.r.Uint32())
		}
	}
	if a.busy || !due && a.registered && s.Now-a.last < heartbeatEvery && !h.urgent() {
		return
	}
	a.busy, a.last = true, s.Now
	if !a.registered {
		a.ask(func(answer func(func())) {
			s.c.register(h, a.session, func(err error) {
				answer(func() { a.registered = err == nil })
			})
		})
		return
	}
	a.sequence++
	req := a.request()
	a.ask(func(answer func(func())) {
		s.c.heartbeat(h, req, func(list []*pb.WantedReplica, err error) {
			answer(func() {
				if errors.Is(err, controller.ErrUnregistered) {
					a.registered = false
				}
				for _, w := range list {
					a.obey(w)
				}
			})
		})
	})
}

// ask makes one call over the network. The node takes the first of answer, a failure of the network and its time-out.
func (a *agent) ask(call func(answer func(func()))) {
	s, h, id, life := a.s, a.h, a.call, a.life
	var finish func(func())
	finish = func(then func()) {
		if d := s.pausedFor(h); d > 0 {
			s.after(d, func() { finish(then) })
			return
		}
		if a.call != id || a.life != life || h.life != life || !h.running {
			return
		}
		a.call++
		a.busy = false
		if then != nil {
			then()
		}
	}
	travels := func(do func()) {
		if h.silent {
			return // the call ends with its time-out
		}
		if !s.calm && s.chance(s.p.CallLoss) {
			s.after(s.between(1_000, 500_000), func() { finish(nil) })
			return
		}
		s.after(s.between(s.p.DelayMin, s.p.DelayMax), do)
	}
	s.after(callTimeout, func() { finish(nil) })
	travels(func() {
		call(func(then func()) { travels(func() { finish(then) }) })
	})
}

// urgent tells whether a replica has news that must not wait.
func (h *Host) urgent() bool {
	return slices.ContainsFunc(h.Nodes, func(n *Node) bool { return n.Up && controller.Urgent(n.Status()) })
}

// request tells the state of the node's replicas.
func (a *agent) request() *pb.HeartbeatRequest {
	h := a.h
	req := &pb.HeartbeatRequest{NodeId: string(h.Name), CheckCode: bytesOf(h.checkCode()), Session: bytesOf(a.session), Sequence: a.sequence,
		Levels: controller.OwnLevels().Wire()}
	for _, n := range h.Nodes {
		switch {
		case n.Up:
			req.Replicas = append(req.Replicas, n.report())
		case n.missing:
			req.Replicas = append(req.Replicas, &pb.ReplicaReport{GroupId: bytesOf(ids.UUID(n.w.Group)), ReplicaId: uint64(n.ID),
				Role: pb.Role_ROLE_PARKED, Parked: "its folder is missing", Missing: true})
		case n.reviving:
			req.Replicas = append(req.Replicas, &pb.ReplicaReport{GroupId: bytesOf(ids.UUID(n.w.Group)), ReplicaId: uint64(n.ID),
				Incarnation: bytesOf(ids.UUID(n.Incarnation)), Revived: uint32(n.revived)})
		case n.lost != "" || n.damage != nil:
			rep := &pb.ReplicaReport{GroupId: bytesOf(ids.UUID(n.w.Group)), ReplicaId: uint64(n.ID), Incarnation: bytesOf(ids.UUID(n.Incarnation)),
				Role: pb.Role_ROLE_PARKED, Parked: n.lost, IdentityLost: n.lost != "", Revived: uint32(n.revived)}
			if has := n.look(); n.lost != "" && has != nil {
				has.report(rep)
			}
			if n.damage != nil {
				rep.Parked = n.damage.Error()
			}
			req.Replicas = append(req.Replicas, rep)
		}
	}
	return req
}

func (n *Node) report() *pb.ReplicaReport {
	st := n.Status()
	last, err := n.Log.TermOf(st.Last)
	if err != nil {
		last = 0
	}
	rep := &pb.ReplicaReport{GroupId: bytesOf(ids.UUID(n.w.Group)), ReplicaId: uint64(n.ID), Incarnation: bytesOf(ids.UUID(n.Incarnation)), Starts: n.Log.Meta().Starts, Revived: uint32(n.revived)}
	controller.Report(rep, st, last)
	var terms []ids.Term
	var starts []ids.Index
	for _, t := range n.Log.Epochs() {
		terms, starts = append(terms, t.Term), append(starts, t.StartIndex)
	}
	controller.ReportTerms(rep, terms, starts)
	return rep
}

// obey does what the controller wants of a replica.
func (a *agent) obey(w *pb.WantedReplica) {
	s := a.s
	k := slices.IndexFunc(a.h.Nodes, func(n *Node) bool { return bytes.Equal(n.w.Group[:], w.GroupId) })
	if k < 0 {
		s.fail("node %s is to have a replica of group %x, of which it has none", a.h.Name, w.GroupId)
		return
	}
	n := a.h.Nodes[k]
	if s.gaveUp && (w.Lost != "" || ids.ReplicaID(w.ReplicaId) != n.ID) { // or another one follows it
		if n.Up {
			s.Tracef("r%d is given up: %s", n.ID, w.Lost)
			n.Kill()
		}
		return
	}
	if w.Retired {
		s.Tracef("r%d is removed: %s", n.ID, w.Lost)
		s.retire(n)
		return
	}
	switch id := ids.ReplicaID(w.ReplicaId); {
	case id > n.ID && len(w.Incarnation) == 0:
		s.follow(n, id)
		return
	case id != n.ID:
		s.Tracef("r%d is told what r%d is to be", n.ID, id)
		return // of a controller that knows an older state
	case n.missing && len(w.Incarnation) == 0:
		s.remake(n) // nobody knows yet what was there
		return
	case n.lost != "" && ids.Epoch(w.Revived) > n.revived:
		s.revive(n, ids.Epoch(w.Revived))
		return // the next heartbeat opens it
	case n.lost != "" || n.missing:
		return
	case w.Lost != "":
		s.lose(n, w.Lost)
		return
	case n.reviving && len(w.EpochRecord) > 0:
		if rec, err := raftlog.DecodeEpochRecord(w.EpochRecord); err == nil && rec.Epoch >= n.revived {
			s.openWith(n, &rec)
		}
		return
	case !n.Up:
		return
	}
	if own := n.Log.Meta().Starts; own < w.Starts {
		s.lose(n, "it is a restored backup")
		return
	}
	st := n.Status()
	var rec *raftlog.EpochRecord
	if len(w.EpochRecord) > 0 {
		r, err := raftlog.DecodeEpochRecord(w.EpochRecord)
		if err != nil {
			s.fail("replica %d is sent a record that does not decode: %w", n.ID, err)
			return
		}
		rec = &r
	}
	if rec != nil && rec.Epoch > st.Epoch {
		s.adopt(n, *rec)
	}
	if to := controller.HandsOver(w, st); to != 0 {
		s.Tracef("r%d is told to hand over to %d", n.ID, to)
		n.Transfer(to, func(error) {})
	}
	if controller.Campaigns(w, st, rec) && a.campaigned[n.ID] != w.CampaignTerm+1 {
		a.campaigned[n.ID] = w.CampaignTerm + 1
		s.Tracef("r%d is told to campaign in term %s", n.ID, ids.Term(w.CampaignTerm))
		n.Campaign()
	}
	if to := controller.HandsOver(w, st); to != 0 {
		s.handOver(n, to)
	}
	s.settleDisk(n)
}

// adopt gives n a record.
func (s *schedule) adopt(n *Node, rec raftlog.EpochRecord) {
	if err := n.Adopt(rec); err != nil && n.Replica.Parked() == nil && !errors.Is(err, raftlog.ErrStaleEpoch) {
		s.fail("replica %d refuses the record of epoch %d: %w", n.ID, rec.Epoch, err)
	}
}
