package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// Fields that our own replicas and clients put into headers besides RocketMQ's. Stock clients ignore them.
const (
	fieldMaster  = "ledgermqMaster"  // in an answer: client address of the master, when it is another replica
	fieldTerm    = "ledgermqTerm"    // in an answer: the term that is known here
	fieldForward = "ledgermqForward" // in a forwarded request: the term in which it was forwarded
	fieldClient  = "ledgermqClient"  // in a forwarded request: address of the client
	fieldMore    = "ledgermqMore"    // in the answer to a query: a bound ended it, there may be older messages
	fieldBefore  = "ledgermqBefore"  // in a query: only what lies before this place of the log, to go on where an answer ended
)

// requestTimeout bounds what a request may wait for quorum rounds and commits.
const requestTimeout = 2500 * time.Millisecond

// handle is the one entry of all requests of clients. It runs on the connection's reader and never blocks: what waits for a
// quorum or for the disk goes to the worker pool.
func (r *Replica) handle(c *remoting.Conn, req *remoting.Command) {
	if r.catchingUp() && asksForMessages(req.Code) {
		c.ReplyError(req, remoting.ServiceNotAvailable, "this replica has not caught up with its group yet: ask another one")
		return
	}
	switch req.Code {
	case remoting.SendMessage, remoting.SendMessageV2, remoting.SendBatchMessage:
		r.handleSend(c, req)
	case remoting.PullMessage, remoting.LitePullMessage:
		r.handlePull(c, req)
	case remoting.HeartBeat:
		r.handleHeartbeat(c, req)
	case remoting.UnregisterClient:
		r.handleUnregister(c, req)
	case remoting.GetConsumerListByGroup:
		r.handleConsumerList(c, req)
	case remoting.CheckClientConfig:
		r.handleCheckClientConfig(c, req)
	case remoting.ViewMessageByID:
		r.handleView(c, req)
	case remoting.UpdateConsumerOffset:
		r.handleUpdateOffset(c, req)
	default:
		if slow := r.slow(req.Code); slow != nil {
			c.Async(req, slow)
		} else {
			replyError(c, req, unsupported(req.Code))
		}
	}
}

// asksForMessages tells whether a replica answers this from its own index.
func asksForMessages(code int32) bool {
	switch code {
	case remoting.PullMessage, remoting.LitePullMessage, remoting.QueryMessage, remoting.ViewMessageByID,
		remoting.SearchOffsetByTimestamp, remoting.GetMaxOffset, remoting.GetMinOffset, remoting.GetEarliestMsgStoreTime:
		return true
	}
	return false
}

// slow returns what answers a request that waits for a quorum or the disk, also one that waited for a master and met it here; nil for
// another code.
func (r *Replica) slow(code int32) func(*remoting.Command, *remoting.Pending) {
	switch code {
	case remoting.QueryMessage:
		return r.queryMessage
	case remoting.QueryConsumerOffset:
		return r.queryOffset
	case remoting.SearchOffsetByTimestamp, remoting.GetMaxOffset, remoting.GetMinOffset, remoting.GetEarliestMsgStoreTime:
		return r.onMaster(r.queueBounds)
	case remoting.LockBatchMQ, remoting.UnlockBatchMQ:
		return r.onMaster(r.lockQueues)
	case remoting.ConsumerSendMsgBack:
		return r.onMaster(r.sendBack)
	case remoting.EndTransaction:
		return r.onMaster(r.endTransaction)
	case remoting.ListTransactions:
		return r.confirmed(r.listTransactions)
	case remoting.ResolveTransaction:
		return r.onMaster(r.resolveTransaction)
	case remoting.ResumeCheckHalfMessage:
		return r.onMaster(r.resumeChecks)
	case remoting.RecallMessage:
		return r.onMaster(r.recallMessage)
	case remoting.ShowTimers:
		return r.confirmed(r.showTimers)
	case remoting.ResendDeadLetter:
		return r.onMaster(r.resendDeadLetter)
	case remoting.FreezeGroup:
		return r.onMaster(r.freezeGroup)
	case remoting.UpdateAndCreateTopic:
		return r.onMaster(r.putTopic)
	case remoting.DeleteTopicInBroker:
		return r.onMaster(r.deleteTopic)
	case remoting.UpdateAndCreateSubscriptionGroup:
		return r.onMaster(r.putGroup)
	case remoting.PullMessage, remoting.LitePullMessage:
		return r.onMaster(r.pullDuringReset)
	}
	if h := r.consumerHandler(code); h != nil {
		return h
	}
	return r.adminHandler(code)
}

// onMaster has the master answer what comes to another replica.
func (r *Replica) onMaster(h func(*remoting.Command, *remoting.Pending)) func(*remoting.Command, *remoting.Pending) {
	return func(req *remoting.Command, pend *remoting.Pending) {
		if !r.isMaster() {
			r.forwardPending(req, pend)
			return
		}
		h(req, pend)
	}
}

// refusal is an answer that is not OK: a code of the protocol and one line.
type refusal struct {
	code   int32
	remark string
}

func (e *refusal) Error() string { return fmt.Sprintf("code %d: %s", e.code, e.remark) }

func refuse(code int32, format string, args ...any) *refusal {
	return &refusal{code, remoting.Line(fmt.Sprintf(format, args...))} // it may repeat what a client sent
}

// errorAnswer is the table from errors to codes of the wire.
func errorAnswer(err error) (code int32, remark string) {
	var ref *refusal
	var field *remoting.FieldError
	var name *message.NameError
	var format *message.FormatError
	var notMaster *raftlog.NotMasterError
	var parked *raftlog.ParkedError
	switch {
	case errors.As(err, &ref):
		return ref.code, ref.remark
	case errors.As(err, &field):
		return remoting.SystemError, remoting.Line(err.Error())
	case errors.As(err, &name):
		return remoting.InvalidParameter, remoting.Line(err.Error())
	case errors.As(err, &format):
		return remoting.MessageIllegal, remoting.Line(err.Error())
	case errors.As(err, &notMaster), errors.As(err, &parked), errors.Is(err, raftlog.ErrClosed):
		return remoting.ServiceNotAvailable, remarkNotStored
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return remoting.ServiceNotAvailable, "no quorum answered in time"
	}
	return remoting.SystemError, remoting.Line(err.Error())
}

// notStored is what is answered to a send that err ended before its message was proposed: nothing of it can be in the log,
// whatever else is unknown.
func notStored(err error) *refusal {
	code, remark := errorAnswer(err)
	if strings.HasPrefix(remark, unknownMark) {
		remark = "the topic could not be made sure of in time"
	}
	return &refusal{code, notStoredMark + strings.TrimPrefix(remark, notStoredMark)}
}

// Each answer to a send that is not OK begins with one of these.
const (
	notStoredMark = "[NOT_STORED] "
	unknownMark   = "[UNKNOWN] "
)

func answerError(p *remoting.Pending, err error) {
	code, remark := errorAnswer(err)
	p.Answer(remoting.NewResponse(code, remark))
}

func replyError(c *remoting.Conn, req *remoting.Command, err error) {
	code, remark := errorAnswer(err)
	c.ReplyError(req, code, remark)
}

// ok answers an empty success.
func ok(p *remoting.Pending) { p.Answer(remoting.NewResponse(remoting.Success, "")) }

// confirm returns once this replica is known to be master, by a quorum, at some moment after the call began, with all that was
// committed then applied.
func (r *Replica) confirm(ctx context.Context) error {
	_, err := r.raft.ReadIndex(ctx)
	return err
}

// commitCommand proposes a command of a request that may block, and turns its outcome into an error.
func (r *Replica) commitCommand(kind uint8, body []byte) (state.Effect, error) {
	if recordSpace(len(body)) > maxSendSpace {
		return state.Effect{}, refuse(remoting.InvalidParameter, "[NOT_STORED] a change of %d bytes is over the limit of one frame", len(body))
	}
	e, o := r.await(kind, body)
	return e, o.refusal()
}

// door tells why a send or a change is refused right now although this replica is master, or nil.
func (r *Replica) door() *refusal {
	if r.frozen.Load() {
		return refuse(remoting.NoPermission, frozenRemark, r.group)
	}
	st := r.raft.Status()
	if need := max(st.K, st.MinISR); st.Heard < need {
		return refuse(remoting.SystemError, "[NOT_STORED] %d of the %d replicas that must have a message were heard within the last second", st.Heard, need)
	}
	if r.node.diskFull.Load() {
		return refuse(remoting.SystemError, "[NOT_STORED] the disk of the master is nearly full")
	}
	return nil
}

// needLevel refuses what the cluster's feature level is too low for. what has its verb: "a reset needs".
func (r *Replica) needLevel(code int32, what string) error {
	if level := r.node.Level(); level < controller.LevelService {
		return refuse(code, "%s the cluster's feature level %d, and it is %d: run `ledgermq admin cluster upgrade` when all programs are new enough", what, controller.LevelService, level)
	}
	return nil
}

// groupMissing tells whether an unknown consumer group must be refused: groups are not created by themselves here, and it is none of
// those that RocketMQ's tools use everywhere.
func (r *Replica) groupMissing(group string) bool {
	return !r.createsGroups() && !message.IsSystemGroup(group)
}

// topic finds a topic, or the refusal for an unknown one.
func (r *Replica) topic(name string) (state.Topic, *refusal) {
	if t, ok := r.st.Topic(name); ok {
		return t, nil
	}
	return state.Topic{}, refuse(remoting.TopicNotExist, "topic %q does not exist in group %s: create it, or send to it while auto-create is on", name, r.group)
}

// confirmedQueue confirms that this replica is master, as confirm does, and then finds the queue that a request names.
func (r *Replica) confirmedQueue(req *remoting.Command) (t state.Topic, q ids.QueueID, err error) {
	ctx, cancel := r.requestContext()
	defer cancel()
	if err := r.confirm(ctx); err != nil {
		return t, 0, err
	}
	name, err := req.MustString("topic")
	if err != nil {
		return t, 0, err
	}
	t, ref := r.topic(name)
	if ref != nil {
		return t, 0, ref
	}
	q, err = queueOf(&t, req)
	return t, q, err
}

// queueOf reads the queueId field and checks it against the topic.
func queueOf(t *state.Topic, req *remoting.Command) (ids.QueueID, error) {
	q, err := req.MustInt32("queueId")
	if err != nil {
		return 0, err
	}
	if n := max(t.ReadQueues, t.WriteQueues); q < 0 || q >= n {
		return 0, refuse(remoting.InvalidParameter, "queue %d of topic %s does not exist: it has %d", q, t.Name, n)
	}
	return ids.QueueID(q), nil
}
