package sim

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Story is a schedule that is written, not drawn: a case that a rule exists for and that random seeds meet too rarely. It has the
// same replicas, controllers and checker, on a network and disks without faults but for those of the story, and ends with the
// second phase of a seed.
type Story struct {
	Name         string
	A, M, MinISR int
	Decides      bool // the controllers decide; else the story does
	Async        bool // replicas acknowledge before they sync
	tell         func(*teller)
}

// Stories are all of them.
var Stories = slices.Concat(membershipStories, protocolStories, lossStories, doomedStories)

// membershipStories are those of who votes, who leads, and what an operator changes.
var membershipStories = []Story{
	// A voter goes on alone and nobody hears of it. The other one must not be allowed to go on alone too.
	{"alone after alone", 2, 2, 1, false, false, func(t *teller) {
		t.lead(1)
		t.silence(1)
		t.part(1)
		t.must(t.issue(1))
		t.give(1)
		t.lead(1)
		t.write(1)
		t.afterForbidden(2, 2)
	}},
	// One of two is replaced, and nobody hears of what the new pair commits. The other pair must not be allowed.
	{"replaced and replaced again", 2, 4, 1, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 2))
		t.give(1, 2)
		t.lead(1)
		t.awaitActive(2)
		t.silence(1, 3)
		t.must(t.issue(1, 3))
		t.part(1, 3)
		t.give(1, 3)
		t.lead(1)
		t.write(1) // on 1 and 3
		t.afterForbidden(2, 2, 4)
	}},
	// A master of an older epoch says that it leads, after a newer one was issued: that activates nothing.
	{"word of an old master", 2, 3, 1, false, false, func(t *teller) {
		t.lead(2)
		t.part(1)
		t.write(2) // on 2 and 3
		t.silence(1, 2, 3)
		t.lead(3) // again in epoch 1
		t.must(t.issue(1, 2))
		t.hear(3)
		t.wait("the controllers know master 3", func() bool { return t.c.group(t.w).Master.GetReplicaId() == 3 })
		t.afterForbidden(1, 1)
	}},
	// A master that was elected and has committed nothing in its epoch has not activated it.
	{"elected and nothing committed", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.part(2)
		t.write(1) // on 1 and 3
		t.must(t.issue(1, 2))
		clear(t.cut)
		t.part(3)
		t.drop = func(e peer.Envelope) bool { return e.Msg.GetType() == raftpb.MsgApp }
		t.give(1, 2)
		t.campaign(1)
		t.wait("replica 1 is elected", func() bool { return t.w.Node(1).Status().Master == 1 })
		t.pass(600) // for its reports
		t.drop = nil
		t.part(1)
		t.afterForbidden(2, 2)
	}},
	// A learner's copy is none: with a voter away, nothing is acknowledged.
	{"a learner does not count", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 2))
		t.give(1, 2, 3)
		t.lead(1)
		t.write(1)
		t.part(2)
		t.tryWrite(1)
	}},
	// Nor is a learner's vote one, or its campaign.
	{"a learner is not elected", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 2))
		t.give(1, 2, 3)
		t.lead(1)
		t.write(1)
		t.part(1)
		t.campaign(3)
		t.pass(2_000)
	}},
	// One voter more, one less: two at once are refused although majorities would meet.
	{"two at once", 2, 4, 1, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 2, 3, 4))
		t.give(1, 2, 3, 4)
		t.lead(1)
		t.awaitActive(2)
		t.forbidden(1, 2)
	}},
	// The set never gets smaller than the min ISR.
	{"min ISR", 2, 3, 2, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 2))
		t.give(1, 2)
		t.lead(1)
		t.awaitActive(2)
		t.forbidden(1)
	}},
	// Either one of two goes on alone, and both are voters again.
	{"a slave of two dies", 2, 2, 1, true, false, func(t *teller) { t.dies(2, 3_000) }},
	{"a master of two dies", 2, 2, 1, true, false, func(t *teller) {
		t.works(3_000)
		t.dies(t.w.master(), 500) // the other one is named: its own timeout would come later
	}},
	// A slave leaves and comes back: two epochs, one election in each.
	{"one election for one epoch", 2, 3, 1, true, false, func(t *teller) {
		t.dies(3, 3_000)
		t.awaitActive(2) // without 3
		t.open(t.w.Node(3).Host)
		t.awaitActive(3) // with it
		t.pass(2_000)
		if n := t.w.Check.Masters; n != 3 {
			t.fail("story: %d elections for 3 epochs", n)
		}
	}},
	// Three, two, one, where the operator allows one.
	{"two of three die, one after the other", 2, 3, 1, true, false, func(t *teller) {
		t.dies(1, 3_000)
		t.wait("the set has shrunk", func() bool { return len(t.w.newest().Voters) == 2 && t.w.active == t.w.newest().Epoch })
		t.dies(t.w.master(), 3_000)
	}},
	// A learner takes the place of a voter.
	{"a voter of four dies", 2, 4, 2, true, false, func(t *teller) {
		t.dies(2, 3_000)
		t.wait("replica 4 votes", func() bool { return t.w.newest().IsVoter(4) })
	}},
	// The epoch's second voter died before it knew: the epoch is given up.
	{"an epoch that nobody can lead", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		t.stop(3)
		t.must(t.issue(1, 3))
		t.give(1)
		t.works(5_000)
	}},
	// A replica was offered to begin anew, and got the log from another master before it did: it has acknowledged what it would give up.
	{"an offer that stands no more", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.part(2)
		t.w.Node(2).fetching = true // by the story's hand only
		for range 12 {
			t.writeBig(1, SegmentSize/8)
		}
		t.giveUpFront(1)
		clear(t.cut)
		n := t.w.Node(2)
		t.wait("replica 2 is offered a snapshot", func() bool { return n.Offer != nil })
		if n.Offer == nil {
			return
		}
		offer := n.Offer
		t.lead(3)
		t.wait("replica 2 has the log", func() bool { return n.Log.Tail() == t.w.Node(3).Log.Tail() })
		t.part(1)
		t.write(3) // on 2 and 3
		n.Offer = offer
		done, err := n.Install(t.w.Node(1))
		t.must(err)
		t.w.Node(2).fetching = false
		if done {
			t.openReplica(n)
			t.stop(3)
			clear(t.cut)
			t.lead(1)
			t.write(1)
		}
	}},
	// A replica moves to another machine while it is master: the new one votes before the old one goes, so that there are never fewer
	// than two copies.
	{"a master moves", 2, 2, 1, true, false, func(t *teller) {
		t.works(3_000)
		from := t.worlds[0].master()
		t.must(t.setMode(t.worlds[0], controller.SetMode{Answers: 2, Members: 2, On: []ids.NodeID{t.spare(t.worlds[0]).Name}, Remove: []ids.ReplicaID{from}}))
		t.wait("the replica is gone", func() bool { return t.worlds[0].Node(from).gone })
		for _, rec := range t.worlds[0].records {
			if len(rec.Voters) < 2 {
				t.fail("story: epoch %d has one voter", rec.Epoch)
			}
		}
		t.works(3_000)
	}},
	// An operator wants three copies of each message.
	{"another mode", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		t.must(t.setMode(t.worlds[0], controller.SetMode{Answers: 3, Members: 3}))
		t.wait("the mode is in force", func() bool { return t.worlds[0].newest().A == 3 && t.worlds[0].active == t.worlds[0].newest().Epoch })
		t.works(3_000)
	}},
	// One that is kept a learner takes nobody's place.
	{"a kept learner", 2, 3, 1, true, false, func(t *teller) {
		t.works(3_000)
		t.must(t.setMode(t.worlds[0], controller.SetMode{Answers: 2, Members: 4, On: []ids.NodeID{t.spare(t.worlds[0]).Name}, Learners: []ids.NodeID{"n4"}}))
		t.wait("replica 4 learns", func() bool {
			_, ok := t.worlds[0].newest().Member(4)
			return ok && t.worlds[0].active == t.worlds[0].newest().Epoch
		})
		t.forbidden(1, 2, 3, 4)
		t.dies(3, 3_000)
		t.pass(8_000)
		for _, rec := range t.worlds[0].records {
			if rec.IsVoter(4) {
				t.fail("story: the learner votes in epoch %d", rec.Epoch)
			}
		}
	}},
	// Controllers away: three go on by themselves; the set shrinks when the controllers are back.
	{"no controller", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		t.c.stop()
		t.dies(1, 4_000)
		t.c.elect()
		t.wait("the set has shrunk", func() bool { return len(t.w.newest().Voters) == 2 })
	}},
	// A master sleeps while another one is elected and acknowledges. The first thing that it hears when it wakes up is a question.
	{"a master wakes up and is asked", 2, 3, 1, true, false, func(t *teller) {
		t.works(3_000)
		n := t.w.Node(t.w.master())
		n.paused = t.Now + 10_000_000
		t.wait("another one leads", func() bool {
			return slices.ContainsFunc(t.w.Nodes, func(o *Node) bool { return o != n && o.Machine.master })
		})
		for _, o := range t.w.Nodes {
			if o != n && o.Machine.master {
				t.write(o.ID)
			}
		}
		n.paused = 0
		if !n.Machine.master {
			t.fail("story: replica %d knows that it leads no more", n.ID)
		}
		t.read(n)
		t.works(1_000)
	}},
	// Two groups whose masters are on different machines. One machine dies, and is back: the one group gets another master, the other one
	// keeps its own.
	{"a machine of two groups dies", 2, 3, 1, true, false, func(t *teller) {
		t.works(3_000)
		other := t.another(2, 3, 1)
		other.works(5_000)
		a, b := t.w.master(), other.w.master()
		if t.w.Node(a).Host == other.w.Node(b).Host {
			t.fail("story: replicas %d and %d are masters, on one machine", a, b)
		}
		t.dies(a, 500)
		other.works(500)
		other.wait("its set has shrunk", func() bool { return len(other.w.newest().Voters) == 2 && other.w.active == 2 })
		if m := other.w.master(); m != b || other.w.Check.Masters != 2 {
			t.fail("story: replica %d is master in the place of %d, after %d elections in 2 epochs", m, b, other.w.Check.Masters)
		}
		t.wait("the set has shrunk", func() bool { return len(t.w.newest().Voters) == 2 && t.w.active == 2 })
		t.open(t.w.Node(a).Host)
		t.awaitActive(3)
		other.awaitActive(3)
	}},
	// The disk of a machine fails one sync: the replica that asked for it leaves its group, the one of another group stays.
	{"a disk fails under one of two groups", 2, 3, 1, true, false, func(t *teller) {
		t.works(3_000)
		other := t.another(2, 3, 1)
		other.works(5_000)
		t.pass(1_000) // nobody writes
		before := t.w.reign()
		n := other.w.Node(other.w.master())
		n.FailSync()
		other.propose(n.ID)
		other.wait("it is master no more", func() bool { return !n.Machine.master })
		other.works(1_000)
		other.wait("its set has shrunk", func() bool { return !other.w.newest().IsVoter(n.ID) && other.w.active == 2 })
		if now := t.w.reign(); now != before {
			t.fail("story: the other group goes from %s to %s", before, now)
		}
	}},
	// A master's clock goes back, while a commit index waits for the next frame to carry it.
	{"a clock goes back", 2, 3, 1, true, false, func(t *teller) {
		t.works(3_000)
		id := t.w.master()
		op := t.propose(id)
		t.wait("it is acknowledged", func() bool { return op.State == Acked })
		t.step(t.w.Node(id).Host, -3600_000_000)
		t.within(1_000, "all have applied it", func() bool { return t.lagging() == 0 })
		t.step(t.w.Node(id%3+1).Host, 3600_000_000)
		t.works(1_000)
	}},
	// Two of three are lost for ever, with an operation that the third one lacks. An operator lets that one go on; when one of the others
	// comes back, with a longer log, it can be nothing under its old id.
	{"unclean election", 2, 3, 2, true, false, func(t *teller) {
		t.works(3_000)
		t.lead(1)
		t.works(3_000)
		t.part(3)
		t.write(1) // on 1 and 2
		t.stop(1)
		t.stop(2)
		clear(t.cut)
		t.pass(2_000)
		if t.w.master() != 0 {
			t.fail("story: replica %d leads alone, and nobody allowed it", t.w.master())
		}
		t.unclean(3, 1, 2)
		t.works(3_000)
		t.silence(1)
		t.open(t.w.Node(1).Host)
		t.wait("replica 1 learns from 3 that it is no member", func() bool {
			st := t.w.Node(1).Status()
			return st.Epoch == t.w.newest().Epoch && st.Parked != ""
		})
		t.works(3_000)
		t.hear(1)
		t.wait("replica 1 is given up", func() bool { return !t.w.Node(1).Up })
		t.works(3_000)
	}},
}

// Tell runs a story, with delays that a seed draws.
func Tell(st Story, seed uint64, o Options) Result {
	p := Params{Seed: seed, Hosts: st.M, Groups: []mode{{A: st.A, M: st.M, MinISR: st.MinISR, Async: st.Async}}, Decides: st.Decides, Adversary: !st.Decides, Fresh: true,
		ApplyMin: 500, ApplyMax: 1_000, DelayMin: 100, DelayMax: 500, DiskMin: 150, DiskMax: 500, Inflight: 1, MaxOp: 40, OpEvery: 5_000,
		Limits: raftlog.Limits{Message: 1 << 20, Inflight: 8 << 20, Uncommitted: 16 << 20, Window: 8 << 20}}
	return play(p, o, func(s *schedule) {
		s.calm, s.stride = true, 1
		s.begin()
		t := &teller{s, s.worlds[0]}
		if s.Err == nil {
			t.pass(1_500) // the nodes register
			st.tell(t)
		}
		switch {
		case s.Err != nil:
		case s.gaveUp: // not all can be well again
			s.judge()
		default:
			s.stride = 64
			for _, w := range s.worlds {
				s.after(1_000, func() { s.client(w) })
			}
			s.heal()
		}
	})
}

// teller has the verbs of stories. A verb that cannot be done fails the story.
type teller struct {
	*schedule
	w *World
}

// another makes a second group while all runs, with another machine as its first one, and returns a teller of it.
func (t *teller) another(a, m, minISR int) *teller {
	w := t.addWorld(mode{A: a, M: m, MinISR: minISR})
	t.c.create(w)
	for _, n := range w.Nodes {
		t.openReplica(n)
	}
	return &teller{t.schedule, w}
}

func (t *teller) must(err error) {
	if err != nil {
		t.fail("story: %w", err)
	}
}

// pass lets time pass, in virtual milliseconds.
func (t *teller) pass(ms int64) { t.until(ms*1_000, func() bool { return false }) }

func (t *teller) wait(what string, done func() bool) { t.within(10_000, what, done) }

// within waits for a time in virtual milliseconds at most.
func (t *teller) within(ms int64, what string, done func() bool) {
	if t.Err == nil && !t.until(ms*1_000, done) && t.Err == nil {
		t.fail("story: not within %d ms: %s: %s", ms, what, t.status())
	}
}

// issue has an epoch applied, or refused.
func (t *teller) issue(voters ...ids.ReplicaID) error {
	return t.c.apply(controller.NewEpoch(t.w.Group, t.w.newest().Epoch, voters, "a story"))
}

// unclean has an operator elect a replica that may lack what was acknowledged. The checker forgets what it lacks.
func (t *teller) unclean(id ids.ReplicaID, stopped ...ids.ReplicaID) {
	req := &pb.ElectUncleanRequest{Group: t.w.name, ReplicaId: uint64(id), Epoch: uint32(t.w.newest().Epoch)}
	for _, s := range stopped {
		if _, _, err := t.c.lead.Unclean(t.c.now(), t.c.state, req); err == nil {
			t.fail("story: an unclean election is taken before replica %d is named as stopped", s)
		}
		req.Stopped = append(req.Stopped, uint64(s))
	}
	_, cmd, err := t.c.lead.Unclean(t.c.now(), t.c.state, req)
	t.must(err)
	if t.Err == nil {
		t.gaveUp = true
		t.w.Check.forget(t.w.newest().Epoch+1, t.w.Node(id).Status().Last, t.w.ops)
		t.must(t.c.apply(cmd))
	}
}

// awaitActive waits until an epoch is noted as active, and no newer one is.
func (t *teller) awaitActive(epoch ids.Epoch) {
	t.wait(fmt.Sprintf("epoch %d is active", epoch), func() bool { return t.w.active == epoch })
}

// give hands the newest record to replicas, one after the other.
func (t *teller) give(list ...ids.ReplicaID) {
	for _, id := range list {
		n := t.w.Node(id)
		t.adopt(n, t.w.newest())
		t.settleDisk(n)
		t.wait(fmt.Sprintf("replica %d adopts", id), func() bool { return n.Replica.Record().Epoch == t.w.newest().Epoch })
	}
}

func (t *teller) campaign(id ids.ReplicaID) {
	t.w.Node(id).Campaign()
	t.settleDisk(t.w.Node(id))
}

// lead makes a replica master.
func (t *teller) lead(id ids.ReplicaID) {
	t.campaign(id)
	t.wait(fmt.Sprintf("replica %d leads", id), func() bool { return t.w.Node(id).Machine.master })
}

// part cuts replicas off from the others.
func (t *teller) part(list ...ids.ReplicaID) {
	for _, a := range t.w.Nodes {
		for _, b := range t.w.Nodes {
			if slices.Contains(list, a.ID) != slices.Contains(list, b.ID) {
				t.cut[way{a.Host, b.Host}] = true
			}
		}
	}
}

// silence cuts nodes off from the controllers; hear ends it.
func (t *teller) silence(list ...ids.ReplicaID) {
	for _, id := range list {
		t.w.Node(id).silent = true
	}
	t.pass(100) // what is on its way
}

func (t *teller) hear(id ids.ReplicaID) { t.w.Node(id).silent = false }

// write has an operation acknowledged.
func (t *teller) write(id ids.ReplicaID) {
	op := t.propose(id)
	t.wait(fmt.Sprintf("replica %d acknowledges", id), func() bool { return op.State == Acked })
}

// writeBig is write for an operation of a size.
func (t *teller) writeBig(id ids.ReplicaID, size int) {
	op := t.proposeSized(id, size)
	t.wait(fmt.Sprintf("replica %d acknowledges", id), func() bool { return op.State == Acked })
}

// giveUpFront makes a replica give up the front of its log, whoever lacks it.
func (t *teller) giveUpFront(id ids.ReplicaID) {
	n := t.w.Node(id)
	n.Machine.TakeSnapshot()
	if did, err := n.CutFront(); err != nil || !did {
		t.fail("story: replica %d has no front to give up: %v", id, err)
	}
}

// tryWrite gives a replica an operation and some time.
func (t *teller) tryWrite(id ids.ReplicaID) {
	t.propose(id)
	t.pass(1_000)
}

func (t *teller) propose(id ids.ReplicaID) *Op { return t.proposeSized(id, 0) }

// proposeSized pads the operation to a size.
func (t *teller) proposeSized(id ids.ReplicaID, size int) *Op {
	op := &Op{ID: len(t.w.ops) + 1, Payload: fmt.Sprintf("%-*s", size, fmt.Sprintf("op %d", len(t.w.ops)+1))}
	t.w.ops = append(t.w.ops, op)
	t.w.Node(id).Propose(op)
	t.settleDisk(t.w.Node(id))
	return op
}

// forbidden wants an epoch refused. It tells whether it was not: then the checker knows already, and the story shows what comes
// of it.
func (t *teller) forbidden(voters ...ids.ReplicaID) bool {
	if t.issue(voters...) != nil {
		return false
	}
	t.rule("story: the voters %v were not refused", voters)
	return true
}

// afterForbidden wants an epoch refused. If it is not, replica id leads in it.
func (t *teller) afterForbidden(id ids.ReplicaID, voters ...ids.ReplicaID) {
	if t.forbidden(voters...) {
		t.give(voters...)
		t.campaign(id)
		t.pass(1_000)
		t.tryWrite(id)
	}
}

// stop ends a process until the story ends.
func (t *teller) stop(id ids.ReplicaID) {
	h := t.w.Node(id).Host
	t.Tracef("%s is killed", h.Name)
	h.end()
	t.disconnect(h)
}

// dies stops a replica of a group that works, and wants the group to work again within a time in virtual milliseconds.
func (t *teller) dies(id ids.ReplicaID, ms int64) {
	t.works(3_000)
	t.stop(id)
	t.works(ms)
}

// works wants an operation acknowledged within a time in virtual milliseconds.
func (t *teller) works(ms int64) {
	var op *Op
	t.within(ms, "an operation is acknowledged", func() bool {
		if id := t.w.master(); id != 0 && (op == nil || op.State != Pending && op.State != Acked) {
			op = t.propose(id)
		}
		return op != nil && op.State == Acked
	})
}
