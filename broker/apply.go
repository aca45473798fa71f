package broker

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// undecidedAfter is how long a proposal may wait in the inbox of a master that makes no progress.
const undecidedAfter = 5 * time.Second

// Apply implements raftlog.StateMachine: it carries out one committed frame on the state and the index. An error means that
// this replica cannot go on.
func (r *Replica) Apply(c raftlog.Committed) (err error) {
	defer func() {
		if err != nil {
			r.halfApplied.Store(true)
		}
	}()
	if c.Index <= r.catchup.received {
		return r.applyKnown(c)
	}
	var items []proposal
	t, own := c.Token.(*batch)
	if own {
		items = t.items
	}
	item, nth := 0, 0
	for rec := range c.Frame.Records() {
		e, err := r.st.Apply(c.Time, c.Term, rec)
		if err != nil {
			return fmt.Errorf("apply the record at %d: %w", rec.Offset, err)
		}
		if err := r.effect(rec, e); err != nil {
			return err
		}
		if item < len(items) {
			items[item].apply(nth, e)
			if nth++; nth == items[item].records() {
				item, nth = item+1, 0
			}
		}
	}
	if c.Frame != nil {
		r.appliedEnd.Store((int64(c.Frame.Offset()) + int64(c.Frame.Size()) + 7) &^ 7)
	}
	r.applied.Store(uint64(c.Index))
	r.settleOverlay(c.Index)
	r.frozenTo(c.Index)
	if own {
		t.index = c.Index
		r.owed = append(r.owed, t)
	}
	return r.checkpointIfDue(c)
}

// applyKnown is Apply for an entry that the received state contains: only the index lacks it.
func (r *Replica) applyKnown(c raftlog.Committed) error {
	for rec := range c.Frame.Records() {
		if err := r.addMessage(rec, r.idx.Add, &r.words); err != nil {
			return fmt.Errorf("index the record at %d: %w", rec.Offset, err)
		}
		if err := r.addTimer(rec); err != nil {
			return fmt.Errorf("index the timer at %d: %w", rec.Offset, err)
		}
	}
	r.appliedEnd.Store((int64(c.Frame.Offset()) + int64(c.Frame.Size()) + 7) &^ 7)
	r.applied.Store(uint64(c.Index))
	if c.Index == r.catchup.received {
		r.log.Info().Uint64("entry", uint64(c.Index)).Msg("the log reaches the state snapshot of the master: this replica answers again")
		return nil
	}
	r.indexCheckpointIfDue()
	return nil
}

// effect carries on what a record changed: into the index, to waiting pulls, to the name servers.
func (r *Replica) effect(rec commitlog.Record, e state.Effect) error {
	switch e.Kind {
	case state.EffectMessage:
		r.words = wordsOf(r.words[:0], e.Key.Topic, rec.Body[e.Entry.Offset-rec.Offset:])
		if err := r.idx.Add(e.Key, e.QueueOffset, e.Entry, r.words...); err != nil {
			return fmt.Errorf("index the message at %d: %w", e.Entry.Offset, err)
		}
		r.counters.messagesIn.Add(1)
		r.counters.bytesIn.Add(int64(e.Entry.Size))
		if !r.stats.put(e.Key.Topic, e.Entry.Size) {
			r.stats.begin(e.Key.Topic, r.topicName(e.Key.Topic), r.now())
			r.stats.put(e.Key.Topic, e.Entry.Size)
		}
		r.arrived(e.Key)
	case state.EffectTopic, state.EffectSettings:
		r.routesChanged = true
	case state.EffectTopicDeleted:
		r.routesChanged = true
		r.idx.Drop(e.Topic.ID)
		r.stats.forgetTopic(e.Topic.ID)
	case state.EffectGroupDeleted:
		r.stats.forgetGroup(e.Group.Name)
	case state.EffectOffsets:
		if len(e.Back) > 0 {
			r.wentBack(e.Back)
		}
	case state.EffectReset:
		r.sendHome(e.Offsets)
	case state.EffectCut:
		r.cutTo(e.Cut)
	case state.EffectHalf, state.EffectTransactionEnded:
		r.counters.transactions.count(&e)
	case state.EffectTimer:
		r.timers.applied(e.Timer)
		r.counters.timersIn.Add(1)
	case state.EffectTimersFired:
		r.counters.timersFired.Add(int64(e.Count))
	case state.EffectTimersRolled:
		r.counters.timersRolled.Add(int64(e.Count))
	case state.EffectTimerRecalled:
		r.counters.timersRecalled.Add(1)
	case state.EffectFrozen:
		r.frozen.Store(true)
		r.routesChanged = true // there are none any more
	}
	return nil
}

// arrived notes that a queue has a new message; Flush wakes who waits for it.
func (r *Replica) arrived(k index.Key) {
	if r.holds.waiting(k) {
		r.woken[k] = struct{}{}
	}
}

// Acked implements raftlog.StateMachine: everything up to this index is answered OK.
func (r *Replica) Acked(upTo ids.Index) {
	n := 0
	for ; n < len(r.owed) && r.owed[n].index <= upTo; n++ {
		took := time.Since(r.owed[n].formed)
		r.counters.commits.Observe(took.Seconds())
		r.gathering.ended(len(r.owed[n].items), took)
		r.counters.answers.add(took, len(r.owed[n].items))
		r.finish(r.owed[n], outcomeOK)
		r.owed[n] = nil
	}
	r.owed = append(r.owed[:0], r.owed[n:]...)
}

// Abandon implements raftlog.StateMachine.
func (r *Replica) Abandon(token any, stored raftlog.Outcome) {
	t := token.(*batch)
	o := outcomeUnknown
	if stored == raftlog.NotStored {
		o = outcomeNotStored
	}
	for i, owed := range r.owed {
		if owed == t { // applied already, but not known on enough voters
			r.owed = append(r.owed[:i], r.owed[i+1:]...)
			r.finish(t, o)
			return
		}
	}
	if t == r.newest && o == outcomeNotStored {
		r.takeBack(t)
	}
	r.finish(t, o)
}

func (r *Replica) finish(t *batch, o outcome) {
	if t == r.newest {
		r.newest = nil
	}
	for _, p := range t.items {
		p.finish(r, o)
	}
	t.free()
}

// Role implements raftlog.StateMachine.
func (r *Replica) Role(role raftlog.Role) {
	switch role.Kind {
	case raftlog.RoleMaster:
		r.tellMaster(&role)
		r.overlay, r.formedTo, r.newest = map[index.Key]ids.QueueOffset{}, 0, nil
		r.endings.begin()
		r.timers.begin(r.st)
		r.freezeAt = 0
		// The leases of ordered queues must be extended by the first record of the term.
		r.inbox.mu.Lock()
		first := []proposal{&command{kind: state.RecordLeaseExtension, at: r.now()}}
		first = append(first, r.forming[r.formed:]...) // what waits in a term of ours that ended without another master
		r.forming, r.formed = r.forming[:0], 0
		r.inbox.items = append(first, r.inbox.items...)
		r.inbox.open, r.inbox.enough = true, 0
		r.inbox.mu.Unlock()
		r.makeSystemTopics()
		r.role.Store(&role)
		r.office.quiet.Store(0) // it may have handed over a moment ago
		signal(r.node.beat)     // the controller learns of it at once
		signal(r.timers.wake)
	default:
		// The role first: who finds the inbox closed then waits for the next master.
		if old := r.role.Swap(&role); old.Kind == raftlog.RoleMaster {
			r.office.led.Store(r.now().UnixMilli())
		}
		r.inbox.setOpen(false)
		if role.Kind == raftlog.RoleParked || role.Master != 0 && role.Master != r.id {
			r.refuseWaiting(r.forming[r.formed:])
			r.forming, r.formed = r.forming[:0], 0
			r.refuseWaiting(r.inbox.take(nil))
		} // else an election is under way, as after each change of the epoch, and what waits goes on if this replica wins it
	}
	if role.Master != 0 && (role.Master != r.id || role.Kind == raftlog.RoleMaster) {
		r.ledLast = role
	}
	r.office.tell()
	r.routesChanged = true
}

// tellMaster logs that this replica is master: as a warning when the mastership came to it from another one that did not hand it over, for
// then something is wrong with that one, or was.
func (r *Replica) tellMaster(role *raftlog.Role) {
	last := &r.ledLast
	if last.Master == 0 || last.Master == r.id || role.Handed {
		r.log.Info().Stringer("term", role.Term).Msg("this replica is master")
		return
	}
	reason := "nothing was heard of that one"
	if asked := r.campaigned.Load(); role.Term.Epoch() > last.Term.Epoch() {
		reason = fmt.Sprintf("the voters changed, in epoch %d", role.Term.Epoch())
	} else if asked > uint64(last.Term) {
		reason = "the controllers named this replica"
	}
	r.log.Warn().Stringer("term", role.Term).Str("from", cmp.Or(string(last.Node), fmt.Sprintf("replica %d", last.Master))).Str("to", string(r.node.o.ID)).Str("reason", reason).Msg("the mastership moved by itself")
}

func (r *Replica) refuseWaiting(waiting []proposal) {
	for i, p := range waiting {
		p.finish(r, outcomeNotStored)
		waiting[i] = nil
	}
}

// Flush implements raftlog.StateMachine: the end of a turn of the loop. Answers leave, one write a connection, and held pulls
// are woken.
func (r *Replica) Flush() {
	for c := range r.answered {
		c.Flush()
		delete(r.answered, c)
	}
	if len(r.woken) > 0 {
		r.wake()
	}
	if r.heldBack {
		r.heldBack = false
		r.raft.Wake()
	}
	if r.routesChanged {
		r.routesChanged = false
		r.node.kickRegistrars()
	}
	if now := r.now(); now.Sub(r.swept) > 100*time.Millisecond {
		r.swept = now
		r.refuseOverdue(now)
	}
}

// refuseOverdue ends proposals that a master without progress could not put into a frame, or that waited for an election for too
// long: they are certainly not stored.
func (r *Replica) refuseOverdue(now time.Time) {
	limit := time.Duration(undecidedAfter)
	if r.role.Load().Kind != raftlog.RoleMaster {
		limit = awaitMaster
	}
	if r.formed < len(r.forming) {
		n := r.formed
		for n < len(r.forming) && now.Sub(r.forming[n].since()) > limit {
			n++
		}
		r.refuseWaiting(r.forming[r.formed:n])
		r.formed = n
		return
	}
	r.inbox.mu.Lock()
	n := 0
	for n < len(r.inbox.items) && now.Sub(r.inbox.items[n].since()) > limit {
		n++
	}
	overdue := append([]proposal(nil), r.inbox.items[:n]...)
	r.inbox.items = append(r.inbox.items[:0], r.inbox.items[n:]...)
	r.inbox.mu.Unlock()
	r.refuseWaiting(overdue)
}

// sendReply is where the answer of a send goes.
type sendReply struct {
	pending remoting.Pending
	queue   ids.QueueID
	unique  []byte // UNIQ_KEY of the message, for transactionId
	recall  []byte // recallHandle, of a message with a time
}

// finish answers a send and ends its life.
func (s *send) finish(r *Replica, o outcome) {
	s.answer(r, o)
	s.release()
}

func (s *send) answer(r *Replica, o outcome) {
	if s.whenDone != nil {
		if o == outcomeOK && s.dropped {
			o = outcomeNotStored
		}
		s.whenDone(r, o, s)
		return
	}
	c := s.reply.pending.Conn()
	if c == nil {
		return
	}
	resp := &r.response
	resp.Reset()
	switch {
	case o == outcomeOK && s.dropped:
		resp.Code, resp.Remark = remoting.TopicNotExist, "[NOT_STORED] the topic was deleted"
	case o == outcomeOK:
		r.sendOK(resp, s)
		r.counters.sendsOK.Add(1)
	case o == outcomeNotStored:
		r.counters.sendsFailed.Add(1)
		resp.Code, resp.Remark = remoting.ServiceNotAvailable, remarkNotStored
	default:
		r.counters.unknown.Add(1)
		resp.Code, resp.Remark = remoting.ServiceNotAvailable, remarkUnknown
	}
	s.reply.pending.AppendAnswer(resp)
	r.answered[c] = struct{}{}
}

const (
	remarkNotStored = "[NOT_STORED] this replica is not master, or has no quorum: ask another one"
	remarkUnknown   = "[UNKNOWN] the master changed, or too few replicas answered, before the message was known to be stored"
)

// refusal is what an outcome says to who waits for it: nil when it is OK.
func (o outcome) refusal() error {
	switch o {
	case outcomeOK:
		return nil
	case outcomeNotStored:
		return refuse(remoting.ServiceNotAvailable, remarkNotStored)
	}
	return refuse(remoting.ServiceNotAvailable, remarkUnknown)
}

func (r *Replica) sendOK(resp *remoting.Command, s *send) {
	resp.Code = remoting.Success
	r.scratch = r.scratch[:0]
	for i := range s.recs {
		if i > 0 {
			r.scratch = append(r.scratch, ',')
		}
		r.scratch = message.AppendOffsetMessageID(r.scratch, r.storeHost, s.recs[i].phys)
	}
	resp.SetBytes("msgId", r.scratch)
	resp.SetInt64("queueId", int64(s.reply.queue))
	resp.SetInt64("queueOffset", int64(s.first))
	if len(s.reply.unique) > 0 {
		resp.SetBytes("transactionId", s.reply.unique)
	}
	if len(s.reply.recall) > 0 {
		resp.SetBytes("recallHandle", s.reply.recall)
	}
	resp.Set(message.KeyMsgRegion, defaultRegion)
	resp.Set(message.KeyTraceOn, "true")
}

const defaultRegion = "DefaultRegion"
