package broker

import (
	"strconv"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// endRequest is the header of END_TRANSACTION (37). The Go client sends no topic; nothing needs it.
type endRequest struct {
	group   string
	number  ids.QueueOffset
	origin  ids.PhysicalOffset
	end     int32    // transaction bits of a system flag; 0: the producer does not know yet
	uniques []string // what the client takes for the unique key of the message
}

func parseEnd(req *remoting.Command) (e endRequest, err error) {
	if e.group, err = req.MustString("producerGroup"); err != nil {
		return e, err
	}
	number, err := req.MustInt64("tranStateTableOffset")
	if err != nil {
		return e, err
	}
	origin, err := req.MustInt64("commitLogOffset")
	if err != nil {
		return e, err
	}
	if e.end, err = req.MustInt32("commitOrRollback"); err != nil {
		return e, err
	}
	if _, err = req.BoolOr("fromTransactionCheck", false); err != nil {
		return e, err
	}
	e.number, e.origin = ids.QueueOffset(number), ids.PhysicalOffset(origin)
	for _, key := range [...]string{"msgId", "transactionId"} {
		if v := req.GetOr(key, ""); v != "" {
			e.uniques = append(e.uniques, v)
		}
	}
	return e, nil
}

// endTransaction takes END_TRANSACTION (37): a producer commits or rolls back, by itself or asked. Clients send it one-way; who waits gets
// 0 when the transaction has ended so, also when it had before, 604 when it has ended the other way, 1 when there is no such one, and
// else what a send would get: then it is pending still.
func (r *Replica) endTransaction(req *remoting.Command, pend *remoting.Pending) {
	h, err := parseEnd(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	var decision state.Decision
	switch h.end {
	case 0:
		ok(pend) // it stays pending, and is asked for
		return
	case message.SysCommit:
		decision = state.Committed
	case message.SysRollback:
		decision = state.RolledBack
	default:
		answerError(pend, refuse(remoting.InvalidParameter, "commitOrRollback is %d: use 8 for a commit, 12 for a rollback, 0 for neither", h.end))
		return
	}
	r.end(req, pend, &h, decision)
}

// end proposes the end of a transaction and answers when it is known how that went.
func (r *Replica) end(req *remoting.Command, pend *remoting.Pending, h *endRequest, decision state.Decision) {
	e, err := r.prepareEnd(h, decision)
	if err != nil || e == nil {
		answerEnd(pend, err)
		return
	}
	answer := *pend
	e.done = func(err error) { r.answerAtFlush(&answer, err) }
	if !r.propose(e) {
		if e.message != nil {
			e.message.release()
		}
		r.forwardPending(req, pend)
	}
}

func answerEnd(pend *remoting.Pending, err error) {
	if err != nil {
		answerError(pend, err)
		return
	}
	ok(pend)
}

// answerAtFlush answers on the loop, whose turn ends with one write to each connection.
func (r *Replica) answerAtFlush(pend *remoting.Pending, err error) {
	c := pend.Conn()
	if c == nil {
		return
	}
	resp := &r.response
	resp.Reset()
	if err != nil {
		resp.Code, resp.Remark = errorAnswer(err)
	}
	pend.AppendAnswer(resp)
	r.answered[c] = struct{}{}
}

// prepareEnd finds the transaction that a producer names, and makes sure that it is this one. It returns nil, nil when it has ended so.
func (r *Replica) prepareEnd(h *endRequest, decision state.Decision) (*ending, error) {
	x, d, pending, known := r.st.Transaction(h.number)
	if !known {
		ctx, cancel := r.requestContext()
		defer cancel()
		if err := r.confirm(ctx); err != nil { // only the master knows what there is not
			return nil, err
		}
		if x, d, pending, known = r.st.Transaction(h.number); !known {
			return nil, refuse(remoting.SystemError, "there is no transaction %d in group %s", h.number, r.group)
		}
	}
	e := &ending{number: h.number, decision: decision, at: r.now()}
	if !pending {
		if err := r.wasIt(h); err != nil {
			return nil, err
		}
		return nil, e.against(d)
	}
	if err := h.names(&x); err != nil {
		return nil, err
	}
	return r.prepareEnding(e, &x, h.uniques)
}

// names tells whether a producer means this transaction.
func (h *endRequest) names(x *state.Transaction) error {
	switch {
	case h.group != x.Group:
		return refuse(remoting.SystemError, "transaction %d is not one of producer group %q", h.number, h.group)
	case h.origin != x.Origin:
		return refuse(remoting.SystemError, "transaction %d has no half message at the physical offset %d", h.number, h.origin)
	}
	return nil
}

// prepareEnding builds the proposal that ends x. With uniques, one of them must be the unique key of its message.
func (r *Replica) prepareEnding(e *ending, x *state.Transaction, uniques []string) (*ending, error) {
	if ref := r.door(); ref != nil {
		return nil, ref
	}
	rec, err := r.readHalf(x)
	if err != nil { // it may just have been stored again, at the end of the log
		if y, _, pending, _ := r.st.Transaction(x.Number); pending && y.At != x.At {
			rec, err = r.readHalf(&y)
		}
	}
	if err != nil {
		return nil, err
	}
	unique, _ := message.Property(rec.Properties, message.KeyUniqueKey)
	if !oneOf(unique, uniques) {
		return nil, refuse(remoting.SystemError, "transaction %d has another message than %s", x.Number, uniques[0])
	}
	if e.decision == state.Committed {
		if e.message, err = r.committed(&rec, x); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func oneOf(s string, list []string) bool {
	for _, t := range list {
		if s == t {
			return true
		}
	}
	return len(list) == 0
}

// committed builds the message of a half message. Its topic may have fewer queues than it had; that it may not be written to any more
// does not matter, since the half message was taken before.
func (r *Replica) committed(rec *message.Record, x *state.Transaction) (*send, error) {
	name, _ := message.Property(rec.Properties, message.KeyRealTopic)
	queue := realQueue(rec.Properties)
	t, found := r.st.Topic(name)
	if !found {
		return nil, refuse(remoting.TopicNotExist, "[NOT_STORED] topic %q does not exist in group %s any more: transaction %d stays pending", name, r.group, x.Number)
	}
	if queue >= ids.QueueID(max(t.ReadQueues, t.WriteQueues)) {
		queue %= ids.QueueID(max(t.WriteQueues, 1))
	}
	tags, _ := message.Property(rec.Properties, message.KeyTags)
	rec.Properties = message.DeleteProperty(message.DeleteProperty(rec.Properties, message.KeyRealTopic), message.KeyRealQueueID)
	rec.Properties = withChecks(rec.Properties, x)
	rec.Topic, rec.QueueID, rec.StoreHost = t.Name, queue, r.storeHost
	rec.SysFlag = rec.SysFlag&^message.SysTransaction | message.SysCommit
	rec.PreparedOffset = int64(x.Origin)
	p := newSend(r.now())
	p.key = index.Key{Topic: t.ID, Queue: rec.QueueID}
	p.buf = rec.AppendTo(p.buf)
	p.recs = append(p.recs, sendRecord{end: len(p.buf), tags: message.TagsCode(tags)})
	return p, nil
}

// realQueue is the queue that a half message is for.
func realQueue(props string) ids.QueueID {
	text, _ := message.Property(props, message.KeyRealQueueID)
	q, err := strconv.ParseInt(text, 10, 32)
	if err != nil || q < 0 {
		return 0 // makeHalf wrote it
	}
	return ids.QueueID(q)
}

// withChecks tells how often the producer was asked, if it was and if there is room: RocketMQ's consumers see that.
func withChecks(props string, x *state.Transaction) string {
	if x.Checks == 0 {
		return props
	}
	if more := message.SetProperty(props, message.KeyCheckTimes, strconv.Itoa(int(x.Checks))); len(more) <= message.MaxProperties {
		return more
	}
	return props
}

// wasIt refuses the end of a transaction that has ended, when the log still tells that another one is meant.
func (r *Replica) wasIt(h *endRequest) error {
	if h.origin >= 0 && h.origin < r.clog.FirstOffset() {
		return nil
	}
	group, err := r.groupOf(h)
	if err == nil && group != h.group {
		return refuse(remoting.SystemError, "transaction %d is not one of producer group %q", h.number, h.group)
	}
	return err
}

// groupOf looks up in the log whose half message lies where h says.
func (r *Replica) groupOf(h *endRequest) (string, error) {
	none := refuse(remoting.SystemError, "transaction %d has no half message at the physical offset %d", h.number, h.origin)
	if h.origin < 0 || int64(h.origin) >= r.appliedEnd.Load() {
		return "", none
	}
	i, err := r.clog.IndexAt(h.origin)
	if err != nil {
		return "", none
	}
	f, err := r.clog.ReadFrame(i, nil)
	if err != nil {
		return "", err
	}
	for rec := range f.Records() {
		if rec.Type != state.RecordHalf {
			continue
		}
		p, body, err := state.ParseHalf(rec.Body)
		if err == nil && p.Number == h.number && rec.Offset+ids.PhysicalOffset(len(rec.Body)-len(body)) == h.origin {
			return p.Group, nil
		}
	}
	return "", none
}
