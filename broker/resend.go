package broker

import (
	"errors"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// resendDeadLetter takes RESEND_DEAD_LETTER (31023), our own: a dead letter, named by its offset in the group's %DLQ% queue and its place in
// the log, goes to the group's retry topic again, with all tries before it. It is sent once, whoever asks and however often, unless `force`
// says otherwise: what was sent has an id that follows from the dead letter, and is looked for first. 604 tells that it was found.
//
// No second one slips in between the look and the send: here one is at work at a time; a command that is applied before the look says that
// all proposals before it are too, or never will be; and the message is put into a frame of the same term only, so no other master had a
// turn meanwhile.
//
// Each that waits for its turn holds a worker, so at most maxResends do.
func (r *Replica) resendDeadLetter(req *remoting.Command, pend *remoting.Pending) {
	if err := r.resend(req); err != nil {
		answerError(pend, err)
		return
	}
	ok(pend)
}

// maxResends bounds the requests that are at work or wait for their turn: beyond it they must not hold all workers.
const maxResends = 16

func (r *Replica) resend(req *remoting.Command) error {
	group, err := req.MustString("consumerGroup")
	if err != nil {
		return err
	}
	offset, err := req.MustInt64("offset")
	if err != nil {
		return err
	}
	phys, err := req.MustInt64("physicalOffset")
	if err != nil {
		return err
	}
	force, err := req.BoolOr("force", false)
	if err != nil {
		return err
	}
	if _, known := r.st.Group(group); !known {
		return refuse(remoting.SubscriptionGroupNotExist, "consumer group %q does not exist in group %s", group, r.group)
	}
	if ref := r.door(); ref != nil {
		return ref
	}
	return r.sendAgain(group, ids.QueueOffset(offset), ids.PhysicalOffset(phys), force)
}

// sendAgain sends a dead letter to its group again.
func (r *Replica) sendAgain(group string, offset ids.QueueOffset, phys ids.PhysicalOffset, force bool) error {
	defer r.resending.Add(-1)
	if r.resending.Add(1) > maxResends {
		return refuse(remoting.SystemBusy, "%d dead letters are being sent again: try again", maxResends)
	}
	r.resends.Lock()
	defer r.resends.Unlock()
	term := r.term()
	if _, err := r.commitCommand(state.RecordOffsets, state.AppendOffsets(nil, nil)); err != nil { // changes nothing
		return err
	}
	dead, err := r.deadLetter(group, offset, phys)
	if err != nil {
		return err
	}
	retry, err := r.ensureTopic(retryTopic(group))
	if err != nil {
		return err
	}
	id := message.ResentID(r.group, dead)
	if !force {
		ctx, cancel := r.requestContext()
		defer cancel()
		q := query{topic: retry.Name, kind: index.WordUnique, word: id, max: 1, end: 1<<63 - 1, before: 1<<63 - 1}
		found, _, err := r.find(ctx, &q)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return refuse(remoting.IllegalOperation, "dead letter %d of consumer group %s was sent again before", offset, group)
		}
	}
	rec := *dead
	rec.Properties = message.ResentProperties(r.group, dead)
	rec.Topic, rec.QueueID, rec.StoreHost = retry.Name, 0, r.storeHost
	rec.ReconsumeTimes, rec.PreparedOffset = 0, 0
	rec.SysFlag &^= message.SysTransaction
	p := newSend(r.now())
	p.key, p.term = index.Key{Topic: retry.ID}, term
	if _, err := r.encodeOne(p, &rec, true, false); err != nil {
		p.release()
		return err
	}
	done := make(chan outcome, 1)
	p.whenDone = func(_ *Replica, o outcome, _ *send) { done <- o }
	if !r.propose(p) {
		p.release()
		return outcomeNotStored.refusal()
	}
	return (<-done).refusal()
}

// deadLetter reads a dead letter of a group.
func (r *Replica) deadLetter(group string, offset ids.QueueOffset, phys ids.PhysicalOffset) (*message.Record, error) {
	t, ref := r.topic(message.DLQTopic(group))
	if ref != nil {
		return nil, ref
	}
	gone := refuse(remoting.SystemError, "consumer group %s has no dead letter %d at the physical offset %d", group, offset, phys)
	k := index.Key{Topic: t.ID}
	if first, end := r.queueRange(k); offset < first || offset >= end {
		return nil, gone
	}
	e, err := r.entries(k, offset, 1, nil)
	if err != nil {
		return nil, err
	}
	if len(e) == 0 || e[0].Offset != phys {
		return nil, gone
	}
	raw, err := r.messageAt(&t, phys)
	if err != nil {
		return nil, err
	}
	if raw == nil {
		return nil, errors.New("the index names a message of another topic")
	}
	rec, _, err := message.Decode(raw)
	return &rec, err
}
