package sim

import (
	"errors"

	"github.com/ledgermq/ledgermq/commitlog"
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

// agent speaks with the controllers for one node: it registers each process of it, tells the replica's state in heartbeats, and
// does what the answers want. What is told and what is wanted is the product's code.
type agent struct {
	s *schedule
	n *Node

	life       *commitlog.Log // of the process that speaks
	session    ids.UUID
	sequence   uint64
	registered bool
	busy       bool
	call       int // number of the call under way, or of the next one
	last       int64
	campaigned uint64 // term + 1 of the last order to campaign
}

// checkCode of the node's data folder.
func (n *Node) checkCode() ids.UUID { return ids.UUID{0xCC, byte(n.ID)} }

// beat looks at whether a heartbeat is due, again and again.
func (a *agent) beat() {
	a.s.after(a.s.between(45_000, 55_000), a.beat)
	a.look(false)
}

// hurry sends a heartbeat at once: the replica has become master.
func (a *agent) hurry() { a.look(true) }

func (a *agent) look(due bool) {
	s, n := a.s, a.n
	if !n.Up || s.pausedFor(n) > 0 {
		return
	}
	if a.life != n.Log { // another process
		*a = agent{s: s, n: n, life: n.Log, call: a.call + 1}
		for i := range a.session {
			a.session[i] = byte(s.r.Uint32())
		}
	}
	if a.busy || !due && a.registered && s.w.Now-a.last < heartbeatEvery && !controller.Urgent(n.Status()) {
		return
	}
	a.busy, a.last = true, s.w.Now
	if !a.registered {
		a.ask(func(answer func(func())) {
			s.c.register(n.Name(), n.checkCode(), a.session, func(err error) {
				answer(func() { a.registered = err == nil })
			})
		})
		return
	}
	a.sequence++
	req := a.request()
	a.ask(func(answer func(func())) {
		s.c.heartbeat(req, func(list []*pb.WantedReplica, err error) {
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
	s, n, id, life := a.s, a.n, a.call, a.life
	var finish func(func())
	finish = func(then func()) {
		if d := s.pausedFor(n); d > 0 {
			s.after(d, func() { finish(then) })
			return
		}
		if a.call != id || a.life != life || n.Log != life {
			return
		}
		a.call++
		a.busy = false
		if then != nil {
			then()
		}
	}
	travels := func(do func()) {
		if s.silent[n.ID] {
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

// request tells the state of the node's replica.
func (a *agent) request() *pb.HeartbeatRequest {
	n := a.n
	st := n.Status()
	last, err := n.Log.TermOf(st.Last)
	if err != nil {
		last = 0
	}
	rep := &pb.ReplicaReport{GroupId: bytesOf(ids.UUID(n.w.Group)), ReplicaId: uint64(n.ID), Incarnation: bytesOf(ids.UUID(n.Incarnation)), Starts: n.Log.Meta().Starts}
	controller.Report(rep, st, last)
	var terms []ids.Term
	var starts []ids.Index
	for _, t := range n.Log.Epochs() {
		terms, starts = append(terms, t.Term), append(starts, t.StartIndex)
	}
	controller.ReportTerms(rep, terms, starts)
	return &pb.HeartbeatRequest{NodeId: string(n.Name()), CheckCode: bytesOf(n.checkCode()), Session: bytesOf(a.session), Sequence: a.sequence, Replicas: []*pb.ReplicaReport{rep},
		Levels: controller.OwnLevels().Wire()}
}

// obey does what the controller wants of the replica.
func (a *agent) obey(w *pb.WantedReplica) {
	s, n := a.s, a.n
	if s.gaveUp && (w.Lost != "" || ids.ReplicaID(w.ReplicaId) != n.ID) { // or another one follows it
		s.w.Tracef("n%d is given up: %s", n.ID, w.Lost)
		n.Kill()
		s.disconnect(n)
		return
	}
	if w.Lost != "" {
		s.fail("the controllers give replica %d up: %s", n.ID, w.Lost)
		return
	}
	if own := n.Log.Meta().Starts; own < w.Starts {
		s.fail("replica %d counts %d starts, the controllers saw %d", n.ID, own, w.Starts)
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
	if controller.Campaigns(w, st, rec) && a.campaigned != w.CampaignTerm+1 {
		a.campaigned = w.CampaignTerm + 1
		s.w.Tracef("n%d is told to campaign in term %s", n.ID, ids.Term(w.CampaignTerm))
		n.Campaign()
	}
	s.settleDisk(n)
}

// adopt gives n a record.
func (s *schedule) adopt(n *Node, rec raftlog.EpochRecord) {
	if err := n.Adopt(rec); err != nil && n.Replica.Parked() == nil && !errors.Is(err, raftlog.ErrStaleEpoch) {
		s.fail("replica %d refuses the record of epoch %d: %w", n.ID, rec.Epoch, err)
	}
}
