package raftlog

import (
	"cmp"
	"errors"
	"slices"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// flow bounds the frame bytes on their way to one follower. Raft counts messages of thin entries; here its MsgApps are split
// by the bytes of their frames and wait when too many bytes are unacknowledged. Only the thin message waits: frames are
// attached when it leaves.
//
// Bound: held has at most maxInflightMessages of Raft's messages, each of thinLimit bytes. When a held message makes no progress
// for an election timeout the flow starts afresh; what it held counts as lost, and Raft probes.
type flow struct {
	sent     []sentMark
	inflight int64 // bytes in sent
	held     []*pb.Message
	stalled  int // ticks without an acknowledgement while something is held

	lone      *pb.Message // carries a commit index only, and waits for the next frame to carry it
	loneUntil int64
}

type sentMark struct {
	last  uint64
	bytes int64
}

// send puts m on its way: every message to a peer passes here.
func (r *Replica) send(m *pb.Message) {
	p := r.members[ids.ReplicaID(m.GetTo())]
	if p == nil {
		return
	}
	switch m.GetType() {
	case pb.MsgSnap:
		r.sendOffer(p, m)
	case pb.MsgProp, pb.MsgReadIndex, pb.MsgReadIndexResp:
		return // not spoken between replicas
	case pb.MsgApp:
		r.sendAppend(p, m)
	default:
		r.push(p, m, nil)
	}
}

func (r *Replica) sendAppend(p *member, m *pb.Message) {
	f := &p.flow
	if len(m.GetEntries()) == 0 {
		switch {
		case len(f.held) > 0:
			f.held = append(f.held, m)
		case r.cfg.CommitHold > 0:
			if f.lone == nil {
				f.loneUntil = r.now + r.cfg.CommitHold.Milliseconds()
			}
			f.lone = m
		default:
			r.push(p, m, nil)
		}
		return
	}
	f.lone = nil
	for m != nil {
		var part *pb.Message
		part, m = r.split(m)
		f.held = append(f.held, part)
	}
	r.pump(p)
}

// pump lets held messages leave while few enough bytes are on their way. What the window no longer has is read from the log: at
// most Limits.Message a turn, so that a follower far behind does not hold up the others; the next turn goes on.
func (r *Replica) pump(p *member) {
	f := &p.flow
	for len(f.held) > 0 {
		next := f.held[0]
		if f.inflight > 0 && f.inflight+r.frameBytes(next) > r.cfg.Limits.Inflight {
			return
		}
		if e := next.GetEntries(); len(e) > 0 && r.w.at(ids.Index(e[0].GetIndex())) == nil {
			if r.reread >= r.cfg.Limits.Message {
				r.starved = true
				return
			}
			r.reread += r.frameBytes(next)
		}
		f.held = f.held[1:]
		r.release(p, next)
	}
}

// pumpAll goes on where the last turn's share of reading was used up.
func (r *Replica) pumpAll() {
	r.reread = 0
	if !r.starved {
		return
	}
	r.starved = false
	for _, p := range r.sortedMembers() {
		r.pump(p)
	}
	r.more = r.more || r.starved
}

// split cuts off m what one message may carry. The rest follows as a MsgApp of its own, anchored at the last entry before it.
func (r *Replica) split(m *pb.Message) (part, rest *pb.Message) {
	var size int64
	for k, e := range m.GetEntries() {
		n := frameSize(e)
		if k == 0 || size+n <= r.cfg.Limits.Message {
			size += n
			continue
		}
		before := m.GetEntries()[k-1]
		cut := func(entries []*pb.Entry, index, term uint64) *pb.Message {
			return &pb.Message{Type: pb.MsgApp.Enum(), To: m.To, From: m.From, Term: m.Term, Commit: m.Commit,
				Index: new(index), LogTerm: new(term), Entries: entries}
		}
		return cut(m.GetEntries()[:k], m.GetIndex(), m.GetLogTerm()), cut(m.GetEntries()[k:], before.GetIndex(), before.GetTerm())
	}
	return m, nil
}

// frameSize returns the size of the frame that belongs to e.
func frameSize(e *pb.Entry) int64 {
	if len(e.GetData()) == 0 {
		return commitlog.EmptyFrameSize
	}
	ref, err := commitlog.DecodeRef(e.GetData())
	if err != nil {
		panic(raftPanic("an entry of ours does not name its frame: " + err.Error()))
	}
	return int64(ref.Size)
}

func (r *Replica) frameBytes(m *pb.Message) (n int64) {
	for _, e := range m.GetEntries() {
		n += frameSize(e)
	}
	return n
}

// release attaches the frames and lets m leave.
func (r *Replica) release(p *member, m *pb.Message) {
	entries := m.GetEntries()
	frames := make([]commitlog.Frame, 0, len(entries))
	var size int64
	for _, e := range entries {
		f, err := r.frameOf(ids.Index(e.GetIndex()))
		switch {
		case errors.Is(err, commitlog.ErrCompacted):
			return // cut away meanwhile; Raft will find out
		case err != nil:
			panic(storageError{err})
		case f.Term() != ids.Term(e.GetTerm()):
			return // replaced meanwhile: this replica leads no more
		}
		frames = append(frames, f)
		size += int64(len(f))
	}
	if len(entries) > 0 {
		p.flow.sent = append(p.flow.sent, sentMark{entries[len(entries)-1].GetIndex(), size})
		p.flow.inflight += size
	}
	r.push(p, m, frames)
}

// attachEvery is after how many ticks a member is shown the record though it is in this epoch too: one with another record
// of the same epoch must be noticed.
const attachEvery = 20

// push adds the envelope to the output.
func (r *Replica) push(p *member, m *pb.Message, frames []commitlog.Frame) {
	r.out.Sends = append(r.out.Sends, r.envelope(p, m, frames))
}

// envelope addresses m, and attaches the epoch record when the member may lack it.
func (r *Replica) envelope(p *member, m *pb.Message, frames []commitlog.Frame) Outgoing {
	env := peer.Envelope{Group: r.cfg.Group, From: r.cfg.Replica, To: p.ID, Epoch: r.record.Epoch, Msg: m, Frames: frames}
	vote := m.GetType() == pb.MsgVote || m.GetType() == pb.MsgPreVote || m.GetType() == pb.MsgSnap
	if vote || p.epoch < r.record.Epoch && p.attached != r.ticks || r.ticks-p.attached >= attachEvery {
		env.Record = r.encoded
		p.attached = r.ticks
	}
	return Outgoing{p.Node, env}
}

// acknowledged tells the flow of p that its follower answered a MsgApp, after Raft has seen the answer.
func (r *Replica) acknowledged(p *member, m *pb.Message) {
	f := &p.flow
	for len(f.sent) > 0 && f.sent[0].last <= m.GetIndex() {
		f.inflight -= f.sent[0].bytes
		f.sent = f.sent[1:]
		f.stalled = 0
	}
	r.pump(p)
}

// tick ends a wait that makes no progress, and bounds the hold of a lone commit index also when the clock stands still.
func (f *flow) tick(r *Replica, p *member) {
	if f.lone != nil {
		m := f.lone
		f.lone = nil
		r.push(p, m, nil)
	}
	if len(f.held) == 0 {
		f.stalled = 0
		return
	}
	if f.stalled++; f.stalled > r.cfg.ElectionTick {
		*f = flow{}
	}
}

// releaseLone sends the commit indexes that have waited long enough.
func (r *Replica) releaseLone() {
	if !r.leading {
		return
	}
	for _, p := range r.sortedMembers() {
		if m := p.flow.lone; m != nil && p.flow.loneUntil <= r.now {
			p.flow.lone = nil
			r.push(p, m, nil)
		}
	}
}

// forgetFlows drops what waits for the members: this replica leads nobody any more.
func (r *Replica) forgetFlows() {
	for _, p := range r.members {
		p.flow = flow{}
	}
	r.starved = false
}

// HoldUntil returns the time, in milliseconds since 1970, at which a turn is due though nothing happens; ok is false when none
// is.
func (r *Replica) HoldUntil() (millis int64, ok bool) {
	for _, p := range r.members {
		if p.flow.lone != nil && (!ok || p.flow.loneUntil < millis) {
			millis, ok = p.flow.loneUntil, true
		}
	}
	return millis, ok
}

// PeerDown tells that the connection to a node is gone: what was on its way is lost, and Raft probes.
func (r *Replica) PeerDown(node ids.NodeID) {
	if r.rn == nil || r.seal.active() {
		return
	}
	r.guard(func() {
		for _, p := range r.sortedMembers() {
			if p.Node == node && p.current && p.ID != r.cfg.Replica {
				p.flow = flow{}
				p.closed = true
				r.masterClosed = r.masterClosed || p.ID == r.lead
				r.rn.ReportUnreachable(uint64(p.ID))
			}
		}
	})
}

// sortedMembers returns all known members by id, so that runs repeat.
func (r *Replica) sortedMembers() []*member {
	if len(r.order) != len(r.members) {
		r.order = r.order[:0]
		for _, m := range r.members {
			r.order = append(r.order, m)
		}
		slices.SortFunc(r.order, func(a, b *member) int { return cmp.Compare(a.ID, b.ID) })
	}
	return r.order
}

// kthMatch returns the last entry that is durable on K voters.
func (r *Replica) kthMatch() ids.Index {
	var list [MaxVoters]uint64
	n := 0
	r.rn.WithProgress(func(_ uint64, typ raft.ProgressType, p tracker.Progress) {
		if typ == raft.ProgressTypePeer && n < len(list) {
			list[n] = p.Match
			n++
		}
	})
	slices.Sort(list[:n])
	return ids.Index(list[n-r.record.K()])
}

// refresh renews the members' figures.
func (r *Replica) refresh() {
	if r.rn == nil || !r.leading {
		return
	}
	r.rn.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		if m := r.members[ids.ReplicaID(id)]; m != nil {
			m.match, m.behind = ids.Index(p.Match), p.State == tracker.StateSnapshot
		}
	})
}

// lowestMatch returns the last entry that every member is known to have; on a replica that does not lead, the last entry.
func (r *Replica) lowestMatch() ids.Index {
	low := r.tail.Index
	if !r.leading {
		return low
	}
	for _, m := range r.members {
		if m.current && m.ID != r.cfg.Replica {
			low = min(low, m.match)
		}
	}
	return low
}
