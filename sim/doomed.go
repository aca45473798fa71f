package sim

import (
	"errors"
	"slices"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/controller"
	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// This file has what becomes of an asynchronous group in which too few voters can prove what they hold, as in package broker:
//
//	lost ──its node looks, and tells──▶ the longest log is chosen ──▶ it opens in spite of its loss, and begins the epoch ──▶ the others are followed

// hasLog is what the log of a lost replica has.
type hasLog struct {
	last   ids.Index
	terms  []ids.Term
	starts []ids.Index
}

func (l *hasLog) lastTerm() ids.Term { return l.term(l.last) }

// term returns the term of entry i, 0 when it is not there.
func (l *hasLog) term(i ids.Index) (t ids.Term) {
	if i == 0 || i > l.last {
		return 0
	}
	for k, start := range l.starts {
		if start <= i {
			t = l.terms[k]
		}
	}
	return t
}

func (l *hasLog) report(rep *pb.ReplicaReport) {
	rep.Looked, rep.LastIndex, rep.LastTerm = true, uint64(l.last), uint64(l.lastTerm())
	controller.TellTerms(rep, l.terms, l.starts)
}

func hasOf(l *commitlog.Log) *hasLog {
	has := &hasLog{last: l.Tail().Index}
	for _, t := range l.Epochs() {
		has.terms, has.starts = append(has.terms, t.Term), append(has.starts, t.StartIndex)
	}
	return has
}

// look tells what the log of a lost replica has; nil when it could not go on with it.
func (n *Node) look() *hasLog {
	if n.has == nil && n.lost != "" && n.w.mode.Async {
		n.has = n.readLog()
	}
	return n.has
}

// readLog tells what the log of a replica has that is not open.
func (n *Node) readLog() *hasLog {
	o := n.logOptions(n.Disk)
	o.ReadOnly = true
	l, err := commitlog.Open(o)
	if err != nil {
		return nil
	}
	defer l.Close(false)
	state := ids.Index(len(n.snapshot))
	if l.FirstIndex() > state+1 {
		state = ids.Index(len(n.incoming))
	}
	if state > l.Tail().Index || state+1 < l.FirstIndex() {
		return nil
	}
	return hasOf(l)
}

// holds is what a voter has, whether it is open, lost, or away.
func (n *Node) holds() *hasLog {
	switch {
	case n.Up:
		return hasOf(n.Log)
	case n.missing || n.gone:
		return &hasLog{}
	}
	if has := n.readLog(); has != nil {
		return has
	}
	return &hasLog{}
}

// revive lets a lost replica go on with what its log has. The controllers chose it.
func (s *schedule) revive(n *Node, epoch ids.Epoch) {
	has := n.look()
	if has == nil {
		s.fail("replica %d is to go on with a log that it could not tell", n.ID)
		return
	}
	s.Tracef("r%d goes on with its log up to %d", n.ID, has.last)
	n.lost, n.revived, n.reviving, n.has = "", epoch, true, nil
	n.promised, n.synced = min(n.promised, has.last), min(n.synced, has.last)
}

// begin opens the log of a replica that was chosen, in spite of its loss, and seals the epoch. Nothing is acknowledged before both are
// durable, so it may be repeated.
func (n *Node) begin(record *raftlog.EpochRecord) error {
	if record == nil || record.Epoch < n.revived {
		return errors.New("sim: a replica is to go on without the epoch that it won")
	}
	if err := raftlog.Seal(n.Log, *record); err != nil {
		return err
	}
	n.reviving = false
	return nil
}

// goesOn judges an unclean election that no operator asked for, and lets the checker forget what the winner lacks. The promise: what was
// acknowledged by the master of a term stays when a voter since the last active epoch still has it, and an entry of that term or a later one.
func (s *schedule) goesOn(w *World, epoch ids.Epoch, winner ids.ReplicaID) {
	n := w.Node(winner)
	has := n.holds()
	after := ids.Index(0)
	for after < has.last {
		if e, ok := w.Check.values[after+1]; ok && e.Term != has.term(after+1) && int(after) >= len(n.snapshot) {
			break
		}
		after++
	}
	s.Tracef("r%d is elected uncleanly in epoch %d: the group keeps its entries up to %d", winner, epoch, after)
	voters := make(map[ids.ReplicaID]bool)
	for _, rec := range w.records[w.active-1:] {
		for _, m := range rec.Voters {
			voters[m.ID] = true
		}
	}
	for _, op := range w.ops {
		if op.State != Acked || op.Index <= after {
			continue
		}
		s.dropped++
		for _, v := range w.Nodes {
			if !voters[v.ID] || v.gone {
				continue
			}
			if x := v.holds(); x.term(op.Index) == op.Term && x.lastTerm() >= op.Told {
				s.fail("the unclean election of replica %d in epoch %d drops operation %d (entry %d of term %s), which replica %d still has, up to entry %d of term %s",
					winner, epoch, op.ID, op.Index, op.Term, v.ID, x.last, x.lastTerm())
			}
		}
	}
	w.Check.forget(epoch, after, w.ops)
	for _, o := range w.Nodes {
		if !o.gone {
			o.harmed, o.out = true, o != n
		}
	}
	s.uncleans++
}

// blackout takes the power of all machines at once. Asynchronous groups then have no voter that can prove what it holds.
func (s *schedule) blackout() {
	if s.calm || s.p.Adversary || s.gaveUp {
		return
	}
	for _, w := range s.worlds {
		if !w.mode.Async {
			continue
		}
		if len(w.records) == 0 || w.active != w.newest().Epoch || w.misses() || w.repairs() {
			return
		}
	}
	for _, w := range s.worlds {
		for _, n := range w.Nodes {
			n.harmed = n.harmed || w.mode.Async && !n.gone
		}
	}
	s.Tracef("all machines lose their power")
	for _, h := range s.Hosts {
		if h.running {
			s.powerCut(h)
		} else {
			h.PowerCut(s.r) // it is started again already
		}
	}
}

// doomedStories are those of asynchronous groups in which all voters lose their power.
var doomedStories = []Story{
	// One of them had synced what was acknowledged. It goes on, though the others are asked first.
	{"all lose their power", 2, 3, 2, true, true, func(t *teller) {
		t.beforeBlackout()
		for range 3 {
			t.write(1) // on 1 and 2
		}
		t.syncs(2)
		t.allLosePower()
		t.works(10_000)
		t.keepsAll()
	}},
	// The log with the most entries is of a term in which nothing of them was acknowledged.
	{"the longest log is of an older term", 2, 3, 2, true, true, func(t *teller) {
		t.p.Inflight = 6
		t.works(3_000)
		t.startAgain(3)
		t.beforeBlackout()
		clear(t.cut)
		t.lead(3)
		t.part(3)
		for range 6 {
			t.propose(3) // on 3 alone
		}
		t.pass(100)
		t.syncs(3)
		t.lead(1)
		t.write(1)
		t.syncs(2)
		if t.w.Node(3).Log.Tail().Index <= t.w.Node(2).Log.Tail().Index {
			t.fail("story: the log of the older term is not the longer one")
		}
		t.allLosePower()
		t.works(10_000)
		t.keepsAll()
	}},
	// The one that had synced is silent. It is waited for.
	{"who may have it is silent", 2, 3, 2, true, true, func(t *teller) {
		t.beforeBlackout()
		for range 3 {
			t.write(1)
		}
		t.syncs(2)
		t.allLosePower(2)
		t.c.elect() // a leader that never heard it
		t.pass(6_000)
		if id := t.w.master(); id != 0 {
			t.fail("story: replica %d leads, and one that may have more is silent", id)
		}
		t.open(t.w.Node(2).Host)
		t.works(10_000)
		t.keepsAll()
	}},
	// Nobody had synced: what was acknowledged is gone, and the group goes on.
	{"nobody has it any more", 2, 3, 2, true, true, func(t *teller) {
		t.beforeBlackout()
		t.write(1)
		t.allLosePower()
		t.works(10_000)
		if t.dropped == 0 {
			t.fail("story: the power takes nothing")
		}
	}},
	// The one that goes on loses its power again, before it has begun and afterwards.
	{"the power goes once more", 2, 3, 2, true, true, func(t *teller) {
		t.beforeBlackout()
		t.write(1)
		t.syncs(2)
		t.allLosePower()
		n := t.w.Node(2)
		t.wait("replica 2 is chosen", func() bool { return n.reviving })
		n.PowerAfter(1)
		t.wait("the power goes", func() bool { return !n.running })
		t.wait("replica 2 has begun", func() bool { return n.Up && !n.reviving })
		n.PowerAfter(2)
		t.wait("the power goes again", func() bool { return !n.running })
		t.works(20_000)
		t.keepsAll()
	}},
}

// beforeBlackout lets a group work, of which all is synced, and then cuts replica 3 off: 1 leads, and nothing more is synced.
func (t *teller) beforeBlackout() {
	t.works(6_000)
	t.lead(1)
	t.works(3_000)
	t.pass(300)
	t.syncs(1, 2, 3)
	t.unsynced = true
	t.part(3)
}

// syncs makes durable what replicas have written.
func (t *teller) syncs(list ...ids.ReplicaID) {
	for _, id := range list {
		t.must(t.w.Node(id).SyncBehind())
	}
}

// allLosePower takes the power of all machines, in such a way that nothing is left that was not synced, and starts them again but for
// some.
func (t *teller) allLosePower(but ...ids.ReplicaID) {
	for _, n := range t.w.Nodes {
		t.harm(n.ID)
		n.cutWorst(100)
	}
	t.unsynced = false
	clear(t.cut)
	for _, n := range t.w.Nodes {
		t.disconnect(n.Host)
		if !slices.Contains(but, n.ID) {
			t.open(n.Host)
		}
	}
}

// keepsAll wants nothing lost that was acknowledged.
func (t *teller) keepsAll() {
	if t.uncleans == 0 {
		t.fail("story: the group went on without an unclean election")
	}
	if t.dropped != 0 {
		t.fail("story: %d acknowledged operations are lost, and one replica had synced them", t.dropped)
	}
}
