package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

const (
	relayTimeout  = 10 * time.Second // for one member's answer
	statusTimeout = 5 * time.Second  // for the answers of all members
	maxRelays     = 32               // requests at once that wait for members, each for one worker's time

	versionV3_0_7 = 28 // the first client that answers 221
	versionV3_1_8 = 62 // the first client that answers 307 and 309
)

// relay takes GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309): the member that is named answers, over the connection
// that it has to this replica; one that has none here may have one to the master. What it answers goes back as it is. 309 gets the message.
func (r *Replica) relay(req *remoting.Command, pend *remoting.Pending) {
	group, err := req.MustString("consumerGroup")
	client := ""
	if err == nil {
		client, err = req.MustString("clientId")
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	c, info, online := r.memberConn(group, client)
	if _, hop := req.Get(fieldForward); !online && !hop && !r.isMaster() {
		r.forwardPending(req, pend)
		return
	}
	if !online {
		answerError(pend, refuse(remoting.SystemError, "consumer %q of group %q is not connected here", client, group))
		return
	}
	if info.version < versionV3_1_8 {
		answerError(pend, refuse(remoting.SystemError, "consumer %q has the protocol version %d, which does not know this request: it needs %d", client, info.version, versionV3_1_8))
		return
	}
	ask := remoting.NewRequest(req.Code)
	for k, v := range req.Fields() {
		if k != fieldForward && k != fieldClient {
			ask.Set(k, v)
		}
	}
	if err := r.relaying(); err != nil {
		answerError(pend, err)
		return
	}
	defer r.relays.Add(-1)
	if req.Code == remoting.ConsumeMessageDirectly {
		if err := r.addMessageTo(ask); err != nil {
			answerError(pend, err)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, relayTimeout)
	defer cancel()
	resp, err := c.Call(ctx, ask)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		answerError(pend, refuse(remoting.ConsumeMsgTimeout, "consumer %q of group %q did not answer within %v", client, group, relayTimeout))
	case err != nil:
		answerError(pend, refuse(remoting.SystemError, "consumer %q of group %q could not be asked: %v", client, group, err))
	default:
		pend.Answer(resp)
	}
}

// relaying counts a request that waits for members, who may be slow, in r.relays, or refuses it: such ones must not hold all workers.
func (r *Replica) relaying() error {
	if r.relays.Add(1) > maxRelays {
		r.relays.Add(-1)
		return refuse(remoting.SystemBusy, "%d requests wait for the answers of clients: try again", maxRelays)
	}
	return nil
}

// addMessageTo completes a 309: the message that its msgId, an offset id, names, and what the client needs to know of topic and group.
func (r *Replica) addMessageTo(ask *remoting.Command) error {
	id, err := ask.MustString("msgId")
	if err != nil {
		return err
	}
	_, off, err := message.ParseOffsetMessageID(id)
	if err != nil {
		return refuse(remoting.SystemError, "msgId %.80q is no offset id of a message: %v", id, err)
	}
	raw, err := r.recordAt(off)
	if err != nil {
		return err
	}
	ask.Body = raw
	ask.Set("brokerName", r.group)
	if t, found := r.st.Topic(ask.GetOr("topic", "")); found {
		ask.SetInt32("topicSysFlag", t.SysFlag)
	}
	if g, found := r.st.Group(ask.GetOr("consumerGroup", "")); found {
		ask.SetInt32("groupSysFlag", g.SysFlag)
	}
	return nil
}

// memberStatus takes INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): each connected member of the group, or the one that clientAddr names,
// tells with 221 how far it is in the queues that it has. A member that does not answer is left out, as in RocketMQ.
func (r *Replica) memberStatus(req *remoting.Command, pend *remoting.Pending) {
	topic, err := req.MustString("topic")
	group := ""
	if err == nil {
		group, err = req.MustString("group")
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	only := strings.TrimSpace(req.GetOr("clientAddr", ""))
	type asked struct {
		member
		conn  *remoting.Conn
		table map[string]int64
	}
	var members []*asked
	r.presenceMu.Lock()
	if g := r.presence.groups[group]; g != nil {
		for c, m := range g.members {
			if only == "" || only == m.clientID {
				members = append(members, &asked{member: *m, conn: c})
			}
		}
	}
	r.presenceMu.Unlock()
	if len(members) == 0 {
		answerError(pend, refuse(remoting.SystemError, "consumer group %q has no such member that is connected here", group))
		return
	}
	if err := r.relaying(); err != nil {
		answerError(pend, err)
		return
	}
	defer r.relays.Add(-1)
	slices.SortFunc(members, func(a, b *asked) int { return cmp.Compare(a.clientID, b.clientID) })
	ctx, cancel := context.WithTimeout(r.ctx, statusTimeout)
	defer cancel()
	answers := make(chan struct{}, len(members))
	for _, m := range members {
		if m.version < versionV3_0_7 {
			answerError(pend, refuse(remoting.SystemError, "consumer %q has the protocol version %d, which does not know this request: it needs %d", m.clientID, m.version, versionV3_0_7))
			return
		}
	}
	for _, m := range members {
		r.spawn(func() {
			defer func() { answers <- struct{}{} }()
			ask := remoting.NewRequest(remoting.GetConsumerStatusFromClient)
			ask.Set("topic", topic)
			ask.Set("group", group)
			resp, err := m.conn.Call(ctx, ask)
			if err == nil && resp.Code == remoting.Success {
				err = r.guarded(func() (err error) { m.table, err = queueTable(resp.Body); return err })
			}
			if err != nil {
				r.log.Debug().Err(err).Str("consumer_group", group).Str("client", m.clientID).Msg("a member did not tell its progress")
			}
		})
	}
	for range members {
		<-answers
	}
	body := []byte(`{"consumerTable":{`)
	for i, m := range members {
		if m.table == nil || i > 0 && members[i-1].clientID == m.clientID && members[i-1].table != nil {
			continue
		}
		if body[len(body)-1] == '}' {
			body = append(body, ',')
		}
		name, err := json.Marshal(m.clientID)
		if err != nil {
			answerError(pend, fmt.Errorf("write the answer: %w", err))
			return
		}
		body = append(append(body, name...), ':', '{')
		for j, q := range slices.Sorted(maps.Keys(m.table)) {
			if j > 0 {
				body = append(body, ',')
			}
			body = fmt.Appendf(body, "%s:%d", q, m.table[q])
		}
		body = append(body, '}')
	}
	pend.Answer(bodyAnswer(append(body, "},\"messageQueueTable\":{}}"...)))
}

// queueTable reads the offsets by queue out of a client's answer to 221. The keys are the queues' JSON.
func queueTable(body []byte) (map[string]int64, error) {
	text, err := laxjson.Standard(body)
	if err != nil {
		return nil, err
	}
	var status struct {
		Table map[string]int64 `json:"messageQueueTable"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return nil, err
	}
	table := make(map[string]int64, len(status.Table))
	for k, v := range status.Table {
		var q queueJSON
		if err := json.Unmarshal([]byte(k), &q); err != nil {
			return nil, fmt.Errorf("the key %.80q is no queue: %w", k, err)
		}
		key, err := json.Marshal(q)
		if err != nil {
			return nil, err
		}
		table[string(key)] = v
	}
	return table, nil
}
