package raftlog

import (
	"bytes"
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog/peer"
)

// Receive takes one envelope from a peer. It drops what is not for this replica, refuses what no peer may send, lets a message
// of a higher epoch wait until that epoch is adopted, and gives the rest to Raft.
func (r *Replica) Receive(env peer.Envelope) {
	if r.parked != nil {
		return
	}
	m := env.Msg
	if m == nil {
		r.refuse(env, "it has no message")
		return
	}
	if env.Group != r.cfg.Group || env.To != r.cfg.Replica || m.GetTo() != uint64(env.To) || m.GetFrom() != uint64(env.From) ||
		env.From == r.cfg.Replica {
		r.refuse(env, "it is not addressed to this replica")
		return
	}
	if !peer.Carried(m.GetType()) || m.GetTerm() == 0 {
		r.refuse(env, "a peer may not send it")
		return
	}
	if e := ids.Term(m.GetTerm()).Epoch(); e > env.Epoch && !r.hooks.skipGate {
		r.refuse(env, fmt.Sprintf("its term is of epoch %d, its sender in %d", e, env.Epoch))
		return
	}
	if env.Epoch > r.record.Epoch && !r.hooks.skipGate {
		r.gate(env)
		return
	}
	if r.seal.active() {
		r.seal.keep(env)
		return
	}
	if env.Epoch == r.record.Epoch && r.conflicts(env) {
		r.refuse(env, "its record of this epoch is not the one in force here: one of the two was not issued by this cluster's controller")
		return
	}
	if r.rn != nil {
		r.guard(func() { r.step(env) })
	}
}

// conflicts tells whether the sender of env has shown another record of the epoch in force. It attaches its record from time to
// time; once it has shown another one, nothing that it says in this epoch counts.
func (r *Replica) conflicts(env peer.Envelope) bool {
	p := r.members[env.From]
	if p == nil {
		return false
	}
	if env.Record != nil {
		p.conflict = !bytes.Equal(env.Record, r.encoded)
	}
	return p.conflict
}

func (r *Replica) refuse(env peer.Envelope, why string) {
	if r.refusedTick == r.ticks && r.refusals > 0 {
		return // one line a tick
	}
	r.refusedTick = r.ticks
	r.refusals++
	r.logger.Error().Uint64("from", uint64(env.From)).Uint32("epoch", uint32(env.Epoch)).Stringer("type", env.Msg.GetType()).
		Msg("message refused: " + why)
}

// step gives a message of this epoch or a lower one to Raft, which answers a lower term with its own.
func (r *Replica) step(env peer.Envelope) {
	m := env.Msg
	p := r.members[env.From]
	if p == nil {
		return // a former member that this process never knew: it learns of its removal from the controller
	}
	p.epoch = max(p.epoch, env.Epoch)
	if env.Epoch == r.record.Epoch {
		if !p.current {
			r.refuse(env, "its sender is not a member of this epoch")
			return
		}
		p.heard, p.closed = r.ticks, false
	}
	switch m.GetType() {
	case pb.MsgApp:
		if !r.takeFrames(env) {
			return
		}
	case pb.MsgAppResp:
		if !m.GetReject() && ids.Index(m.GetIndex()) > r.tail.Index && m.GetTerm() == uint64(r.owner.Term) {
			r.refuse(env, fmt.Sprintf("it acknowledges entry %d, the log ends at %d", m.GetIndex(), r.tail.Index))
			return
		}
		if m.GetReject() {
			p.flow = flow{}
		}
	case pb.MsgHeartbeat:
		if ids.Index(m.GetCommit()) > r.tail.Index && m.GetTerm() >= uint64(r.owner.Term) {
			r.park(fmt.Sprintf("the master counts entry %d as acknowledged by this replica, its log ends at %d: a lost tail", m.GetCommit(), r.tail.Index), nil)
			r.parked.Lost = true
			return
		}
	case pb.MsgTimeoutNow:
		if env.From != r.lead || r.leaving {
			return
		}
		r.handedIn = r.owner.Term
	case pb.MsgSnap:
		r.receiveOffer(p, env)
		return
	}
	_ = r.rn.Step(m)
	if t := m.GetType(); (t == pb.MsgApp || t == pb.MsgHeartbeat) && m.GetTerm() >= uint64(r.owner.Term) {
		r.masterHeard, r.masterClosed = r.ticks, false
	}
	if m.GetType() == pb.MsgAppResp {
		r.ackDirty = true
		if r.leading && !m.GetReject() && m.GetTerm() == uint64(r.owner.Term) {
			r.acknowledged(p, m)
		}
	}
}

// takeFrames compares the frames of a MsgApp with its thin entries and stages them. False: the message must not be stepped.
func (r *Replica) takeFrames(env peer.Envelope) bool {
	m := env.Msg
	if len(env.Frames) != len(m.GetEntries()) {
		r.refuse(env, fmt.Sprintf("%d frames for %d entries", len(env.Frames), len(m.GetEntries())))
		return false
	}
	if len(env.Frames) == 0 {
		return true
	}
	var chain uint32 // after the frame before, of this message
	for k, e := range m.GetEntries() {
		f := env.Frames[k]
		if fault := mismatch(e, f, m.GetIndex()+uint64(k)+1); fault != "" {
			r.refuse(env, fault)
			return false
		}
		if k > 0 && f.PrevChain() != chain {
			r.refuse(env, fmt.Sprintf("frame %d does not continue the chain", f.Index()))
			return false
		}
		chain = f.Chain()
		before := entryKey{ids.Index(m.GetIndex()), ids.Term(m.GetLogTerm())}
		if k > 0 {
			last := m.GetEntries()[k-1]
			before = entryKey{ids.Index(last.GetIndex()), ids.Term(last.GetTerm())}
		}
		t, known := r.tailAfter(before)
		if known && f.PrevChain() != t.Chain {
			r.park(fmt.Sprintf("entry %d of term %d has another chain value here than on replica %d: the logs differ where they must be equal",
				before.index, before.term, env.From), nil)
			return false
		}
		if !known { // Raft takes it only when it takes the entry before it, which then came in this turn
			if s := r.staged[before]; s != nil {
				t, known = commitlog.Tail{}.After(s), true
			}
		}
		if known {
			if err := r.log.Follows(t, f); err != nil {
				r.refuse(env, err.Error())
				return false
			}
		}
		key := entryKey{f.Index(), f.Term()}
		if s := r.staged[key]; s != nil && s.Chain() != f.Chain() {
			r.refuse(env, fmt.Sprintf("another frame %d of term %s came before it", f.Index(), f.Term()))
			return false
		}
		r.staged[key] = f
	}
	return true
}

// mismatch tells how a frame differs from its thin entry, "" when it does not.
func mismatch(e *pb.Entry, f commitlog.Frame, index uint64) string {
	switch {
	case e.GetType() != pb.EntryNormal:
		return fmt.Sprintf("entry %d changes the configuration", e.GetIndex())
	case e.GetIndex() != index || uint64(f.Index()) != index:
		return fmt.Sprintf("entry %d and frame %d in the place of %d", e.GetIndex(), f.Index(), index)
	case uint64(f.Term()) != e.GetTerm():
		return fmt.Sprintf("frame %d is of term %s, its entry of %s", index, f.Term(), ids.Term(e.GetTerm()))
	case len(e.GetData()) == 0:
		if !f.Empty() {
			return fmt.Sprintf("entry %d is empty, its frame is not", index)
		}
		return ""
	}
	ref, err := commitlog.DecodeRef(e.GetData())
	if err != nil {
		return fmt.Sprintf("entry %d: %v", index, err)
	}
	if ref != f.Ref() {
		return fmt.Sprintf("entry %d names frame %+v, %+v came", index, ref, f.Ref())
	}
	return ""
}

// tailAfter returns the tail of the log after an entry, when this replica has that entry in that term.
func (r *Replica) tailAfter(e entryKey) (t commitlog.Tail, known bool) {
	if e.index == r.tail.Index {
		return r.tail, e.term == r.tail.Term
	}
	if s := r.w.at(e.index); s != nil {
		return s.tail, s.frame.Term() == e.term
	}
	if e.index > r.tail.Index {
		return t, false
	}
	if e.index == 0 {
		f, err := r.frameOf(1)
		if err != nil {
			return t, false
		}
		return commitlog.Tail{Offset: f.Offset(), Chain: f.PrevChain()}, true
	}
	if term, err := r.log.TermOf(e.index); err != nil || term != e.term {
		return t, false
	}
	if f := r.log.Front(); e.index == f.Prev.Index {
		t = f.Prev
		t.Offset = r.log.FirstOffset()
		return t, true
	}
	ref, err := r.log.RefOf(e.index)
	return commitlog.Tail{Term: e.term, Index: e.index, Offset: ref.Offset + ids.PhysicalOffset(ref.Size), Chain: ref.CRC}, err == nil
}
