package broker

import (
	"math"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// sendBack takes CONSUMER_SEND_MSG_BACK (36): a consumer could not handle a message. It goes to the group's retry topic with
// its count raised, to come after a delay, and to the dead-letter topic when the count has reached the maximum or the consumer gives it up;
// see retry.go. The original stays where it is, so a crash in between loses nothing.
func (r *Replica) sendBack(req *remoting.Command, pend *remoting.Pending) {
	p, err := r.prepareBack(req)
	if err != nil {
		answerError(pend, notStored(err))
		return
	}
	if p == nil {
		ok(pend)
		return
	}
	answer := *pend
	p.whenDone = func(r *Replica, o outcome, s *send) {
		if o == outcomeOK {
			r.counters.handedBack(s.dead)
		}
		answerOutcome(&answer, o)
	}
	if !r.propose(p) {
		answerError(pend, outcomeNotStored.refusal())
		p.release()
	}
}

// prepareBack builds the message of the next try, nil when the group wants none.
func (r *Replica) prepareBack(req *remoting.Command) (*send, error) {
	group, err := req.MustString("group")
	if err != nil {
		return nil, err
	}
	offset, err := req.MustInt64("offset")
	if err != nil {
		return nil, err
	}
	level, err := req.MustInt32("delayLevel")
	if err != nil {
		return nil, err
	}
	limit, err := req.Int32Or("maxReconsumeTimes", -1)
	if err != nil {
		return nil, err
	}
	if ref := r.door(); ref != nil {
		return nil, ref
	}
	g, err := r.groupForRetry(strings.Clone(group))
	if err != nil {
		return nil, err
	}
	if g.RetryQueues <= 0 {
		return nil, nil
	}
	limit = retryMaximum(&g, limit)
	raw, err := r.recordAt(ids.PhysicalOffset(offset))
	if err != nil {
		return nil, err
	}
	old, _, err := message.Decode(raw)
	if err != nil {
		return nil, err
	}
	rec := old
	if _, have := message.Property(rec.Properties, message.KeyRetryTopic); !have {
		rec.Properties = message.SetProperty(rec.Properties, message.KeyRetryTopic, old.Topic)
	}
	if _, have := message.Property(rec.Properties, message.KeyOriginMessageID); !have {
		origin, ok := req.Get("originMsgId")
		if !ok || origin == "" {
			origin = message.OffsetMessageID(old.StoreHost, old.PhysicalOffset)
		}
		rec.Properties = message.SetProperty(rec.Properties, message.KeyOriginMessageID, origin)
	}
	rec.Properties = message.DeleteProperty(rec.Properties, message.KeyDelayLevel)
	target, wait := retryTopic(group), later{}
	dead := old.ReconsumeTimes >= limit || level < 0
	switch {
	case dead:
		target = dlqTopic(group)
		rec.Properties = markDead(rec.Properties, old.Topic)
	case level > 0:
		wait = r.afterLevel(int(level))
	default:
		wait = r.nextTry(&g, old.ReconsumeTimes)
	}
	if r.mayDelay(wait) != nil { // at once, as before there were delays
		wait = later{}
	}
	t, err := r.ensureTopic(target)
	if err != nil {
		return nil, err
	}
	rec.Topic, rec.QueueID, rec.StoreHost = t.Name, 0, r.storeHost
	if rec.ReconsumeTimes < math.MaxInt32 { // a client may have sent it with any number
		rec.ReconsumeTimes++
	}
	rec.PreparedOffset = 0 // of a transaction, which is over
	rec.SysFlag &^= message.SysTransaction
	rec.Properties = message.DeleteProperty(rec.Properties, message.KeyTransactionPrepared)
	p := newSend(r.now())
	p.key, p.later = index.Key{Topic: t.ID}, wait
	p.dead = dead
	if _, err := r.encodeOne(p, &rec, true, false); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

// recordAt reads the message whose RocketMQ record starts at off, and makes sure that it is one: the offset comes from a
// client.
func (r *Replica) recordAt(off ids.PhysicalOffset) ([]byte, error) { return r.storedAt(off, false) }

// storedAt is recordAt, which finds delayed messages in the form in which they wait too when waiting is set.
func (r *Replica) storedAt(off ids.PhysicalOffset, waiting bool) ([]byte, error) {
	gone := refuse(remoting.SystemError, "no message lies at the physical offset %d", off)
	if off < 0 || int64(off) >= r.appliedEnd.Load() {
		return nil, gone
	}
	i, err := r.clog.IndexAt(off)
	if err != nil {
		return nil, gone
	}
	if uint64(i) > r.applied.Load() {
		return nil, gone
	}
	f, err := r.clog.ReadFrame(i, nil)
	if err != nil {
		return nil, err
	}
	for rec := range f.Records() {
		if rec.Type == state.RecordMessage && rec.Offset+state.MessagePrefixSize == off {
			return rec.Body[state.MessagePrefixSize:], nil
		}
		if waiting && rec.Type == state.RecordTimer && rec.Offset+state.TimerPrefixSize == off {
			return rec.Body[state.TimerPrefixSize:], nil
		}
	}
	return nil, gone
}

// handleView takes VIEW_MESSAGE_BY_ID (33).
func (r *Replica) handleView(c *remoting.Conn, req *remoting.Command) {
	off, err := req.MustInt64("offset")
	if err != nil {
		replyError(c, req, err)
		return
	}
	topic := strings.Clone(req.GetOr("topic", ""))
	c.Async(req, func(_ *remoting.Command, pend *remoting.Pending) {
		raw, err := r.storedAt(ids.PhysicalOffset(off), true)
		if err == nil && topic != "" {
			if m, _, derr := message.Decode(raw); derr != nil || m.Topic != topic && propertyOr(m.Properties, message.KeyRealTopic, "") != topic {
				err = refuse(remoting.SystemError, "the message at the physical offset %d is not of topic %q", off, topic)
			}
		}
		if err != nil {
			answerError(pend, err)
			return
		}
		resp := remoting.NewResponse(remoting.Success, "")
		resp.Body = raw
		pend.Answer(resp)
	})
}
