package raftlog

import (
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Turn does all that follows from the inputs since the last turn: it applies what is committed, tells what is acknowledged,
// and forms and proposes the next frames. now is the time in milliseconds since 1970.
func (r *Replica) Turn(now int64) {
	r.now, r.more, r.turnBytes = now, false, 0
	r.guard(func() {
		r.drain()
		r.takeOffer()
		r.drain()
		r.settle()
		for !r.more && r.mayForm() && r.propose() {
			r.drain()
			r.settle()
		}
		r.startReads()
		r.drain()
		r.handOver()
		r.drain()
		r.releaseLone()
		r.pumpAll()
		r.w.trim(min(r.applied, r.synced), r.lowestMatch(), r.cfg.Limits.Window)
	})
	r.tellRole()
	r.endTransfer()
}

// maxTurnBytes bounds the frames that one turn applies, so that a replica which has much to replay still hears of time and votes.
const maxTurnBytes = 4 << 20

// More tells that the last turn stopped before all was done: the next one is due at once.
func (r *Replica) More() bool { return r.more }

// drain takes from Raft all that it has ready, but for entries to apply above maxTurnBytes.
//
// Invariant: the first Ready takes all new entries and messages; those after it only carry committed entries. So when it stops
// early no staged frame is forgotten, and no frame is formed.
func (r *Replica) drain() {
	for n := 0; r.rn != nil && !r.seal.active() && r.rn.HasReady(); n++ {
		if n > 0 && r.turnBytes > maxTurnBytes {
			r.more = true
			break
		}
		r.ready(r.rn.Ready())
	}
	clear(r.staged)
}

func (r *Replica) ready(rd raft.Ready) {
	if !raft.IsEmptySnap(rd.Snapshot) {
		panic(raftPanic("it restores a snapshot by itself"))
	}
	if !raft.IsEmptyHardState(rd.HardState) {
		r.commit = ids.Index(rd.HardState.GetCommit())
	}
	term := termOf(rd, r.owner.Term)
	if rd.SoftState != nil {
		r.softState(rd.SoftState, term)
	}
	for _, s := range rd.ReadStates {
		r.reads.confirmed(s)
		r.reads.applied(r.applied)
	}
	r.admit(rd.Entries, term)
	var apply *pb.Message
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			r.appendJob(m)
		case raft.LocalApplyThread:
			apply = m
		default:
			r.send(m)
		}
	}
	if apply != nil {
		r.apply(apply)
	}
}

// termOf returns the term that a Ready leaves the replica in.
func termOf(rd raft.Ready, current ids.Term) ids.Term {
	if raft.IsEmptyHardState(rd.HardState) {
		return current
	}
	return ids.Term(rd.HardState.GetTerm())
}

func (r *Replica) softState(s *raft.SoftState, term ids.Term) {
	leading := s.RaftState == raft.StateLeader
	if leading != r.leading {
		for _, m := range r.members {
			m.flow, m.match = flow{}, 0
		}
		r.ownEmpty, r.acked = 0, 0
	}
	r.state, r.leading, r.lead = s.RaftState, leading, ids.ReplicaID(s.Lead)
	if !leading {
		r.reads.fail(&NotMasterError{Master: r.lead, Term: term})
		r.form.inflight = r.form.inflight[:0]
	}
	if r.lead != 0 && !leading {
		// Another one leads. Whether it has what we proposed is not known here.
		r.form.abandonAll(r.sm)
	}
	r.ackDirty = true
}

// admit takes the entries that Raft has appended into the window, each with its frame: staged by the message or the proposal
// that brought it, or made here when it is the empty entry of our own new term.
func (r *Replica) admit(entries []*pb.Entry, term ids.Term) {
	for _, e := range entries {
		i, t := ids.Index(e.GetIndex()), ids.Term(e.GetTerm())
		if i <= r.tail.Index {
			r.truncate(i)
		}
		f, ok := r.staged[entryKey{i, t}]
		switch {
		case ok:
		case len(e.GetData()) == 0:
			f = r.log.EmptyFrame(r.tail, t, i)
		default:
			panic(raftPanic(fmt.Sprintf("entry %d of term %s came without its frame", i, t)))
		}
		if r.leading && t == term && len(e.GetData()) == 0 && r.ownEmpty == 0 {
			r.ownEmpty = i
		}
		r.tail = r.tail.After(f)
		r.maxTime = max(r.maxTime, f.Time())
		r.w.push(slot{entry: e, frame: f, tail: r.tail})
	}
}

// truncate forgets entry i and all after it; the job that carries the new entry i makes the log do the same.
func (r *Replica) truncate(i ids.Index) {
	r.tail = r.tailBefore(i)
	r.w.truncate(i)
	r.form.truncate(r.sm, i)
	r.synced = min(r.synced, i-1)
	r.cuts++
}

// tailBefore returns the tail of the log after entry i-1.
func (r *Replica) tailBefore(i ids.Index) commitlog.Tail {
	if s := r.w.at(i - 1); s != nil {
		return s.tail
	}
	if i > 1 {
		f, err := r.log.ReadFrame(i-1, nil)
		if err != nil {
			panic(storageError{fmt.Errorf("raftlog: read the entry before a truncation: %w", err)})
		}
		return commitlog.Tail{}.After(f)
	}
	f, err := r.frameOf(i)
	if err != nil {
		panic(storageError{fmt.Errorf("raftlog: read the first entry: %w", err)})
	}
	return commitlog.Tail{Offset: f.Offset(), Chain: f.PrevChain()}
}

// frameOf returns the frame of entry i from the window or the log.
func (r *Replica) frameOf(i ids.Index) (commitlog.Frame, error) {
	if s := r.w.at(i); s != nil {
		return s.frame, nil
	}
	return r.log.ReadFrame(i, nil)
}

// appendJob turns a MsgStorageAppend into a job of the writer. A job without frames, owner and responses would do nothing: a
// commit index alone needs no write, Raft learns it again.
func (r *Replica) appendJob(m *pb.Message) {
	j := &Job{Commit: r.commit, cuts: r.cuts}
	if n := len(m.GetEntries()); n > 0 {
		j.First = ids.Index(m.GetEntries()[0].GetIndex())
		j.Frames = make([]commitlog.Frame, n)
		for k := range n {
			j.Frames[k] = r.w.at(j.First + ids.Index(k)).frame
		}
	}
	r.owner.Commit = r.commit
	if m.GetTerm() != 0 && (ids.Term(m.GetTerm()) != r.owner.Term || ids.ReplicaID(m.GetVote()) != r.owner.Vote) {
		r.owner.Term, r.owner.Vote = ids.Term(m.GetTerm()), ids.ReplicaID(m.GetVote())
		o := r.owner
		j.Owner = &o
	}
	for _, resp := range m.GetResponses() {
		switch {
		case resp.GetTo() == uint64(r.cfg.Replica):
			j.responses = append(j.responses, resp)
		case !r.repeated(resp):
			if p := r.members[ids.ReplicaID(resp.GetTo())]; p != nil {
				j.Acks = append(j.Acks, r.envelope(p, resp, nil))
			}
		}
	}
	if len(j.Frames) > 0 || j.Owner != nil || len(j.responses)+len(j.Acks) > 0 {
		r.emit(j)
	}
}

// repeated tells whether resp acknowledges to the same master what was acknowledged in this very tick: the answer to a message
// that only carried the commit index. A probing master asks again with its next heartbeat, so it gets its answer then.
func (r *Replica) repeated(resp *pb.Message) bool {
	if resp.GetType() != pb.MsgAppResp || resp.GetReject() {
		return false
	}
	mark := ackMark{to: resp.GetTo(), term: resp.GetTerm(), index: resp.GetIndex(), tick: r.ticks}
	if mark == r.lastAck {
		return true
	}
	r.lastAck = mark
	return false
}

func (r *Replica) emit(j *Job) {
	r.outstanding++
	r.out.Jobs = append(r.out.Jobs, j)
}

// Completed tells that jobs, the oldest outstanding ones, are written and durable, or that writing them failed. After a
// failure the writer must not write anything more.
func (r *Replica) Completed(jobs []*Job, err error) {
	r.outstanding -= len(jobs)
	if err != nil {
		reason := "the log could not be written"
		if r.log.Poisoned() != nil {
			reason = "the log is poisoned"
		}
		r.park(reason, err)
	}
	if r.parked != nil {
		return
	}
	r.guard(func() {
		for _, j := range jobs {
			r.completed(j)
		}
		r.continueSeal()
	})
}

func (r *Replica) completed(j *Job) {
	if n := len(j.Frames); n > 0 && j.cuts == r.cuts {
		r.synced = max(r.synced, j.Frames[n-1].Index())
	}
	for _, m := range j.responses {
		if r.rn != nil && !r.seal.active() {
			_ = r.rn.Step(m)
			r.ackDirty = true
		}
	}
	if j.seal {
		r.sealed()
	}
}

// apply hands committed entries to the state machine and tells Raft.
func (r *Replica) apply(m *pb.Message) {
	for _, e := range m.GetEntries() {
		i, term := ids.Index(e.GetIndex()), ids.Term(e.GetTerm())
		if i <= r.applied {
			continue
		}
		f, err := r.committedFrame(i, term)
		if err != nil {
			r.park(fmt.Sprintf("committed entry %d could not be read", i), err)
			return
		}
		own := r.form.applied(r.sm, i, term)
		c := Committed{Index: i, Term: term, Time: f.Time(), Frame: f, Token: own.token}
		if err := r.sm.Apply(c); err != nil {
			if c.Token != nil {
				r.sm.Abandon(c.Token, Unknown)
			}
			r.park(fmt.Sprintf("committed entry %d could not be applied", i), err)
			return
		}
		r.applied = i
		r.turnBytes += len(f)
		r.form.keep(own)
		if i == r.ownEmpty && r.leading {
			r.tellRole()
		}
	}
	for _, resp := range m.GetResponses() {
		_ = r.rn.Step(resp)
	}
	r.reads.applied(r.applied)
	r.ackDirty = true
}

func (r *Replica) committedFrame(i ids.Index, term ids.Term) (commitlog.Frame, error) {
	if s := r.w.at(i); s != nil {
		return s.frame, nil
	}
	f, err := r.log.ReadFrame(i, r.read)
	if err != nil {
		return nil, err
	}
	if cap(f) > cap(r.read) {
		r.read = f[:0]
	}
	if f.Term() != term {
		return nil, fmt.Errorf("the frame is of term %s, the entry of %s", f.Term(), term)
	}
	return f, nil
}

// isMaster tells whether this replica leads and has applied the empty entry of its term.
func (r *Replica) isMaster() bool {
	return r.leading && r.rn != nil && r.ownEmpty != 0 && r.applied >= r.ownEmpty && !r.seal.active()
}

// tellRole tells the state machine when the role, its term or the known master has changed.
func (r *Replica) tellRole() {
	role := Role{Kind: RoleFollower, Term: r.owner.Term, Master: r.lead}
	switch {
	case r.parked != nil || r.rn == nil && r.record.Epoch > 0 && !r.seal.active():
		role.Kind, role.Master = RoleParked, 0
	case r.isMaster():
		role.Kind = RoleMaster
		role.Handed = r.handedIn != 0 && role.Term == r.handedIn+1
	}
	if m := r.members[role.Master]; m != nil {
		role.Node = m.Node
	}
	if r.roleTold && role == r.role {
		return
	}
	if role.Kind != r.role.Kind || !r.roleTold {
		r.logger.Info().Uint32("epoch", uint32(r.record.Epoch)).Stringer("term", role.Term).Uint64("master", uint64(role.Master)).Msg("role: " + role.Kind.String())
	}
	if role.Kind == RoleMaster {
		r.form.wanted = true
	}
	r.role, r.roleTold = role, true
	r.sm.Role(role)
}

func (r *Replica) notMaster() error {
	if r.parked != nil {
		return r.parked
	}
	master := r.lead
	if r.leading {
		master = 0
	}
	return &NotMasterError{Master: master, Term: r.owner.Term}
}

// Check tests the invariants of Replica and its window and returns the first that is broken. The simulation calls it after each
// turn.
func (r *Replica) Check() error {
	if r.applied > r.commit && r.parked == nil || r.commit > r.tail.Index {
		return fmt.Errorf("raftlog: applied %d, commit %d, last %d are out of order", r.applied, r.commit, r.tail.Index)
	}
	if r.parked != nil && r.rn != nil {
		return fmt.Errorf("raftlog: a parked replica has a RawNode")
	}
	var n int64
	for k, s := range r.w.slots {
		n += int64(len(s.frame))
		if i := r.w.first + ids.Index(k); s.frame.Index() != i || s.entry.GetIndex() != uint64(i) || uint64(s.frame.Term()) != s.entry.GetTerm() {
			return fmt.Errorf("raftlog: window slot %d holds frame %d and entry %d", i, s.frame.Index(), s.entry.GetIndex())
		}
	}
	switch {
	case n != r.w.bytes:
		return fmt.Errorf("raftlog: the window has %d bytes and counts %d", n, r.w.bytes)
	case len(r.w.slots) > 0 && r.w.end()-1 != r.tail.Index:
		return fmt.Errorf("raftlog: the window ends at %d, the log at %d", r.w.end()-1, r.tail.Index)
	case r.synced < r.tail.Index && (len(r.w.slots) == 0 || r.w.first > r.synced+1):
		return fmt.Errorf("raftlog: durable is %d of %d, the window has %d frames from %d on", r.synced, r.tail.Index, len(r.w.slots), r.w.first)
	}
	return nil
}
