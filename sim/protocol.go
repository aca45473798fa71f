package sim

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// protocolStories are those of what a replica says and hears: seal, gate, and what Raft is told.
var protocolStories = []Story{
	// The set shrinks from three to two to one. Replica 3 hears of the second epoch and must not go on with the rules of the first one:
	// with 2 it would elect a master that lacks what 1 has committed alone.
	{"a message of a higher epoch", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		t.silence(3)
		t.must(t.issue(1, 2))
		t.give(1, 2)
		t.lead(1)
		t.awaitActive(2)
		t.pass(500)
		t.must(t.issue(1))
		t.part(1)
		t.give(1)
		t.lead(1)
		t.write(1)
		t.campaign(3)
		t.pass(1_000)
		t.hear(3)
	}},
	// A replica adopts an epoch in which it has no vote to give: with its old term it would go on in the old one.
	{"a voter of an epoch that is over", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.part(1)
		t.silence(1)
		t.lead(2)
		t.must(t.issue(2, 3))
		t.give(2, 3)
		t.propose(2) // of its old term, if it leads still
		t.pass(300)
		t.lead(2)
		t.write(2)
		clear(t.cut)
		t.hear(1)
		t.pass(1_000)
	}},
	// A replica acknowledges an append, and is told of a new epoch before that is durable. The acknowledgement leaves before the seal, or
	// never.
	{"an append under way when an epoch is adopted", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		t.silence(1, 2, 3)
		t.must(t.issue(1, 2))
		n := t.w.Node(2)
		t.propose(1)
		t.wait("replica 2 has something to write", func() bool {
			return slices.ContainsFunc(n.Queue, func(j *raftlog.Job) bool { return len(j.Frames) > 0 && len(j.Acks) > 0 })
		})
		t.adopt(n, t.w.newest())
		t.settleDisk(n)
		t.wait("replica 2 adopts", func() bool { return n.Replica.Record().Epoch == 2 })
		for _, id := range []ids.ReplicaID{1, 2, 3} {
			t.hear(id)
		}
		t.give(1)
		t.lead(1)
	}},
	// One of two records of an epoch was not issued by the controllers. Who has the other one does not vote for its owner.
	{"two records of one epoch", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		t.pass(500)
		t.silence(1, 2, 3)
		t.part(1, 2, 3)
		for _, a := range t.w.Nodes {
			for _, b := range t.w.Nodes {
				t.cut[way{a.Host, b.Host}] = true
			}
		}
		t.must(t.issue(1, 2))
		t.give(2)
		n := t.w.Node(3)
		t.must(n.Adopt(t.w.Record(2, 2, 1, []ids.ReplicaID{2, 3}, []ids.ReplicaID{1})))
		t.settleDisk(n)
		t.wait("replica 3 adopts", func() bool { return n.Replica.Record().Epoch == 2 })
		clear(t.cut)
		t.part(1)
		t.campaign(3)
		t.pass(1_000)
		if n.Machine.master {
			t.fail("story: replica 3 leads in an epoch that nobody issued")
		}
		t.give(1)
		clear(t.cut)
		t.part(3)
		t.lead(1)
		t.hear(1)
		t.hear(2)
		t.awaitActive(2)
		t.must(t.issue(1, 2))
		clear(t.cut)
		t.give(1, 2, 3)
		t.hear(3)
	}},
	// Messages that would have a master hand over, or another replica campaign, come from a peer that may not send them.
	{"what no peer may send", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		t.pass(300)
		reign := t.w.reign()
		term := t.w.Node(1).Status().Term
		for _, m := range []struct {
			to   ids.ReplicaID
			kind raftpb.MessageType
		}{{1, raftpb.MsgTransferLeader}, {2, raftpb.MsgHup}, {2, raftpb.MsgTimeoutNow}, {1, raftpb.MsgReadIndex}, {1, raftpb.MsgCheckQuorum}} {
			t.w.Node(m.to).Deliver(peer.Envelope{Group: t.w.Group, From: 3, To: m.to, Epoch: 1, Msg: &raftpb.Message{
				Type: m.kind.Enum(), From: new(uint64(3)), To: new(uint64(m.to)), Term: new(uint64(term))}})
			t.settleDisk(t.w.Node(m.to))
			t.pass(200)
		}
		t.write(1)
		if now := t.w.reign(); now != reign || t.w.Node(1).Status().Term != term {
			t.fail("story: from %s in term %s to %s in term %s", reign, term, now, t.w.Node(1).Status().Term)
		}
	}},
	// An order of the controllers to campaign, or to hand over, is for one term. It comes late.
	{"an order that comes late", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		old := t.w.Node(1).Status().Term
		t.lead(2)
		t.lead(1)
		reign := t.w.reign()
		obey := func(w *pb.WantedReplica) {
			n := t.w.Node(ids.ReplicaID(w.ReplicaId))
			w.GroupId, w.Incarnation = bytesOf(ids.UUID(t.w.Group)), bytesOf(ids.UUID(n.Incarnation))
			n.agent.obey(w)
			t.pass(1_000)
		}
		obey(&pb.WantedReplica{ReplicaId: 3, Campaign: true, CampaignTerm: uint64(old)})
		obey(&pb.WantedReplica{ReplicaId: 1, HandOverTo: 2, HandOverTerm: uint64(old)})
		if now := t.w.reign(); now != reign {
			t.fail("story: from %s to %s", reign, now)
		}
	}},
	// A master that hears nobody does not go on saying that it leads.
	{"a master that hears nobody", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.part(1)
		t.within(3_000, "replica 1 leads no more", func() bool { return !t.w.Node(1).Machine.master })
	}},
	// One that was cut off for long comes back, and takes the mastership from nobody.
	{"one that was cut off", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		reign, term := t.w.reign(), t.w.Node(1).Status().Term
		t.part(3)
		t.pass(8_000)
		clear(t.cut)
		t.pass(3_000)
		if now := t.w.reign(); now != reign || t.w.Node(1).Status().Term != term {
			t.fail("story: from %s in term %s to %s in term %s", reign, term, now, t.w.Node(1).Status().Term)
		}
	}},
	// An answer is for three copies: a majority is not enough.
	{"three copies", 3, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.write(1)
		t.part(3)
		t.tryWrite(1)
	}},
	// Two changes were meant for the same epoch: the second one comes too late, though its voters would be good.
	{"two changes of one epoch", 2, 3, 1, false, false, func(t *teller) {
		t.lead(1)
		t.must(t.issue(1, 2))
		if t.c.apply(controller.NewEpoch(t.w.Group, 1, []ids.ReplicaID{1, 3}, "a story")) == nil {
			t.rule("story: a change that was meant for epoch 1 is made to epoch 2")
		}
	}},
	// A learner that answers, and lacks most of the log, does not become a voter: the group would wait for it.
	{"a learner that is behind", 2, 3, 1, true, false, func(t *teller) {
		t.dies(3, 3_000)
		t.awaitActive(2)
		t.works(1_000)
		t.drop = func(e peer.Envelope) bool { return e.To == 3 && len(e.Msg.GetEntries()) > 0 }
		t.open(t.w.Node(3).Host)
		t.pass(8_000)
		if t.w.newest().IsVoter(3) {
			t.fail("story: replica 3 votes in epoch %d, its log ends at %d", t.w.newest().Epoch, t.w.Node(3).Log.Tail().Index)
		}
		t.drop = nil
	}},
}
