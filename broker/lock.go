package broker

import (
	"encoding/json"
	"fmt"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// maxClientID bounds the name of a client that the log keeps.
const maxClientID = 1024

type queueJSON struct {
	Topic      string `json:"topic"`
	BrokerName string `json:"brokerName"`
	QueueID    int32  `json:"queueId"`
}

// lockQueues takes LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42). Locks are in the log: a failover loses none that was granted.
// What an unlocking consumer has committed is stored first, so that the next owner starts behind it.
func (r *Replica) lockQueues(req *remoting.Command, pend *remoting.Pending) {
	var body struct {
		Group  string      `json:"consumerGroup"`
		Client string      `json:"clientId"`
		Queues []queueJSON `json:"mqSet"`
	}
	if err := json.Unmarshal(req.Body, &body); err != nil {
		answerError(pend, refuse(remoting.SystemError, "the body cannot be read: %v", err))
		return
	}
	if body.Group == "" || body.Client == "" {
		answerError(pend, refuse(remoting.SystemError, "the body names no consumerGroup or no clientId"))
		return
	}
	if err := message.ValidGroup(body.Group); err != nil {
		answerError(pend, err)
		return
	}
	if len(body.Client) > maxClientID {
		answerError(pend, refuse(remoting.InvalidParameter, "a clientId of %d bytes is over the limit of %d", len(body.Client), maxClientID))
		return
	}
	byKey := map[index.Key]queueJSON{}
	var keys []index.Key
	for _, q := range body.Queues {
		t, found := r.st.Topic(q.Topic)
		if !found || q.QueueID < 0 || q.QueueID >= max(t.ReadQueues, t.WriteQueues) {
			continue // not granted, as RocketMQ leaves out what it does not lock
		}
		k := index.Key{Topic: t.ID, Queue: ids.QueueID(q.QueueID)}
		byKey[k] = q
		keys = append(keys, k)
	}
	kind := state.RecordLock
	if req.Code == remoting.UnlockBatchMQ {
		kind = state.RecordUnlock
		if err := r.awaitCommits(body.Group); err != nil {
			answerError(pend, err)
			return
		}
	}
	granted := []queueJSON{}
	if len(keys) > 0 {
		e, err := r.commitCommand(kind, state.AppendLock(nil, body.Group, body.Client, keys))
		if err != nil {
			answerError(pend, err)
			return
		}
		for _, k := range e.Locked {
			granted = append(granted, byKey[k])
		}
	}
	if kind == state.RecordUnlock {
		ok(pend)
		return
	}
	b, err := json.Marshal(struct {
		Locked []queueJSON `json:"lockOKMQSet"`
	}{granted})
	if err != nil {
		answerError(pend, fmt.Errorf("encode the answer: %w", err))
		return
	}
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = b
	pend.Answer(resp)
}
