package broker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// A reset moves a group while its members run. It is a command of the log, and then pending:
//
//	222 ──▶ RecordReset: the group's offset is the new one; commits of its members are left out from here on
//	          │  held pulls of the group in these queues are sent home, so that the members come again at once
//	pull  ──▶ 21 with the new offset: the member drops what it has fetched, and
//	pull  ──▶ at the new offset, by a member that was told ──▶ RecordResetTaken ──▶ served; commits count again
//
// A member that is at the new offset by chance is told as well: what it has fetched below it must not be committed. That a member was told
// is in memory only; another master tells it again.

// resetRequest is the header of 222.
type resetRequest struct {
	group     string
	topic     state.Topic
	queue     int32 // -1: all
	offset    int64 // -1: by time
	timestamp int64 // below 0: the end
}

// resetOffset takes INVOKE_BROKER_TO_RESET_OFFSET (222): by time, to the end, or one queue to an offset. It answers where the group goes
// on. Members of a broadcasting group keep their offsets themselves: each that is connected is told with 220.
func (r *Replica) resetOffset(req *remoting.Command, pend *remoting.Pending) {
	p, err := r.parseReset(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	if err := r.awaitCommits(p.group); err != nil {
		answerError(pend, err)
		return
	}
	r.confirmed(func(req *remoting.Command) (*remoting.Command, error) {
		offsets, err := r.resetPlaces(&p)
		if err != nil {
			return nil, err
		}
		if conns := r.broadcasters(p.group); len(conns) > 0 {
			err = r.pushReset(conns, &p, offsets)
		} else {
			offsets, err = r.commitReset(p.group, offsets)
		}
		if err != nil {
			return nil, err
		}
		return bodyAnswer(r.resetBody(p.topic.Name, offsets)), nil
	})(req, pend)
}

func (r *Replica) parseReset(req *remoting.Command) (p resetRequest, err error) {
	if p.group, err = req.MustString("group"); err != nil {
		return p, err
	}
	if err = message.ValidGroup(p.group); err != nil {
		return p, err
	}
	name, err := req.MustString("topic")
	if err != nil {
		return p, err
	}
	if p.timestamp, err = req.MustInt64("timestamp"); err != nil {
		return p, err
	}
	if _, err = req.BoolOr("isForce", true); err != nil {
		return p, err
	}
	if p.queue, err = req.Int32Or("queueId", -1); err != nil {
		return p, err
	}
	if _, given := req.Get("offset"); given {
		p.offset, err = req.MustInt64("offset")
	} else {
		p.offset = -1
	}
	if err != nil {
		return p, err
	}
	t, ref := r.topic(name)
	if ref != nil {
		return p, ref
	}
	p.topic = t
	if _, known := r.st.Group(p.group); !known && !message.IsSystemGroup(p.group) && len(r.st.ConsumerOffsets(p.group, name)) == 0 {
		return p, refuse(remoting.SubscriptionGroupNotExist, "consumer group %q does not exist in group %s", p.group, r.group)
	}
	if p.queue >= max(t.ReadQueues, t.WriteQueues) {
		return p, refuse(remoting.InvalidParameter, "queue %d of topic %s does not exist: it has %d", p.queue, name, max(t.ReadQueues, t.WriteQueues))
	}
	if p.offset != -1 && p.queue < 0 {
		return p, refuse(remoting.InvalidParameter, "offset %d is for one queue: name it with queueId, or leave the offset away", p.offset)
	}
	if p.offset < -1 {
		return p, refuse(remoting.InvalidParameter, "offset %d is negative", p.offset)
	}
	return p, nil
}

// resetPlaces finds where the group shall go on in each queue.
func (r *Replica) resetPlaces(p *resetRequest) ([]state.ConsumerOffset, error) {
	queues := []ids.QueueID{ids.QueueID(p.queue)}
	if p.queue < 0 {
		queues = queues[:0]
		for q := range ids.QueueID(p.topic.ReadQueues) {
			queues = append(queues, q)
		}
	}
	all := make([]state.ConsumerOffset, 0, len(queues))
	for _, q := range queues {
		k := index.Key{Topic: p.topic.ID, Queue: q}
		first, end := r.queueRange(k)
		o := ids.QueueOffset(p.offset)
		switch {
		case p.offset >= 0 && (o < first || o > end):
			return nil, refuse(remoting.SystemError, "offset %d is not in queue %d of topic %s, which has %d to %d", o, q, p.topic.Name, first, end)
		case p.offset >= 0:
		case p.timestamp < 0:
			o = end
		default:
			var err error
			if o, err = r.searchTime(k, first, end, p.timestamp, false); err != nil {
				return nil, err
			}
		}
		all = append(all, state.ConsumerOffset{Group: p.group, Topic: p.topic.ID, Queue: q, Offset: o})
	}
	return all, nil
}

// commitReset puts a reset into the log and returns what it has become there.
func (r *Replica) commitReset(group string, offsets []state.ConsumerOffset) ([]state.ConsumerOffset, error) {
	if err := r.needLevel(remoting.SystemError, "a reset of consumer offsets needs"); err != nil {
		return nil, err
	}
	if ref := r.door(); ref != nil {
		return nil, ref
	}
	var done []state.ConsumerOffset
	for part := range slices.Chunk(offsets, maxOffsets) {
		e, err := r.commitCommand(state.RecordReset, state.AppendReset(nil, group, part))
		if err != nil {
			return nil, err
		}
		done = append(done, e.Offsets...)
	}
	return done, nil
}

// resetBody is RocketMQ's ResetOffsetBody.
func (r *Replica) resetBody(topic string, offsets []state.ConsumerOffset) []byte {
	table := map[queueJSON]int64{}
	for _, o := range offsets {
		table[queueJSON{Topic: topic, BrokerName: r.group, QueueID: int32(o.Queue)}] = int64(o.Offset)
	}
	return append(laxjson.AppendObjectMap([]byte(`{"offsetTable":`), byQueue(table)), '}')
}

// broadcasters are the connected members of a broadcasting group.
func (r *Replica) broadcasters(group string) (conns map[*remoting.Conn]clientInfo) {
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	g := r.presence.groups[group]
	if g == nil || g.model != modelBroadcasting {
		return nil
	}
	conns = map[*remoting.Conn]clientInfo{}
	for c, m := range g.members {
		conns[c] = m.clientInfo
	}
	return conns
}

// pushReset tells the members of a broadcasting group with RESET_CONSUMER_CLIENT_OFFSET (220).
func (r *Replica) pushReset(conns map[*remoting.Conn]clientInfo, p *resetRequest, offsets []state.ConsumerOffset) error {
	type queueForC struct {
		queueJSON
		Offset int64 `json:"offset"`
	}
	list := struct {
		Table []queueForC `json:"offsetTable"`
	}{}
	for _, o := range offsets {
		list.Table = append(list.Table, queueForC{queueJSON{Topic: p.topic.Name, BrokerName: r.group, QueueID: int32(o.Queue)}, int64(o.Offset)})
	}
	forC, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("write the reset: %w", err)
	}
	body, missed := r.resetBody(p.topic.Name, offsets), []string(nil)
	for c, info := range conns {
		push := remoting.NewRequest(remoting.ResetConsumerClientOffset)
		push.Set("topic", p.topic.Name)
		push.Set("group", p.group)
		push.SetInt64("timestamp", p.timestamp)
		push.SetBool("isForce", true)
		push.Body = body
		if info.language == remoting.LangCPP {
			push.Body = forC
		}
		if err := c.Push(push); err != nil {
			missed = append(missed, c.RemoteAddr().String())
		}
	}
	if len(missed) > 0 {
		slices.Sort(missed)
		return refuse(remoting.SystemError, "members of the broadcasting group %q could not be told: %s", p.group, strings.Join(missed, ", "))
	}
	return nil
}

// sendHome answers the held pulls that a reset concerns, so that their members come again and are told. It runs on the loop.
func (r *Replica) sendHome(offsets []state.ConsumerOffset) {
	var all []*heldPull
	for _, o := range offsets {
		all = append(all, r.holds.ofGroup(index.Key{Topic: o.Topic, Queue: o.Queue}, o.Group)...)
	}
	if len(all) == 0 {
		return
	}
	r.spawn(func() {
		for _, h := range all {
			h.moved = true
			r.expire(h)
		}
	})
}

// resetPending tells whether a pull must be answered by pullDuringReset. Members of a broadcasting group have offsets of their own.
func (r *Replica) resetPending(group string, k index.Key) bool {
	if _, pending := r.st.PendingReset(group, k); !pending {
		return false
	}
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	g := r.presence.groups[group]
	return g == nil || g.model != modelBroadcasting
}

// pullDuringReset answers a pull of a group whose offset was reset in the queue.
func (r *Replica) pullDuringReset(req *remoting.Command, pend *remoting.Pending) {
	p, err := parsePull(req)
	var t state.Topic
	if err == nil {
		t, err = r.mayPull(pend.Conn(), &p)
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	k := index.Key{Topic: t.ID, Queue: p.queue}
	ctx, cancel := r.requestContext()
	defer cancel()
	if err := r.confirm(ctx); err != nil {
		answerError(pend, err)
		return
	}
	if reset, pending := r.st.PendingReset(p.group, k); pending {
		knows := r.resetsTold.tell(reset, clientOf(req, pend))
		if p.offset != reset.Offset || !knows {
			f := found{code: remoting.PullOffsetMoved, next: reset.Offset, remark: "the offset of the group was reset"}
			f.min, f.max = r.queueRange(k)
			resp := new(remoting.Command)
			r.fill(resp, f, nil)
			pend.Answer(resp)
			return
		}
		if err := r.awaitCommits(p.group); err != nil { // what came before the reset: it is left out as long as that is pending
			answerError(pend, err)
			return
		}
		if _, err := r.commitCommand(state.RecordResetTaken, state.AppendResetTaken(nil, p.group, k, reset.Offset)); err != nil {
			answerError(pend, err)
			return
		}
		r.resetsTold.forget(reset)
	}
	s := pullScratches.Get().(*pullScratch)
	defer pullScratches.Put(s)
	f, err := r.look(k, &p, s)
	if err != nil {
		answerError(pend, err)
		return
	}
	_, forwarded := req.Get(fieldForward) // who passed it on does not wait long
	if f.code == remoting.PullNotFound && p.sysFlag&message.PullSuspend != 0 && p.suspend > 0 && !forwarded {
		p.own()
		r.hold(&heldPull{req: p, key: k, pending: *pend, conn: pend.Conn(), deadline: r.now().Add(p.suspend)})
		return
	}
	r.fill(&s.resp, f, s.body)
	r.given(&p, k, f, s.body)
	pend.Answer(&s.resp)
}

// maxClientName bounds what a replica that passes a request on names its client: an address.
const maxClientName = 128

// clientOf names the client of a request, also of one that was forwarded.
func clientOf(req *remoting.Command, pend *remoting.Pending) string {
	if c, ok := req.Get(fieldClient); ok && len(c) <= maxClientName {
		return c
	}
	return pend.Conn().RemoteAddr().String()
}

// knowsReset notes that a member which asks where its group goes on (14) knows of a reset by the answer. Only one that came after the
// reset: what came before may have fetched messages already.
func (r *Replica) knowsReset(pend *remoting.Pending, reset state.Reset) {
	c := pend.Conn()
	r.presenceMu.Lock()
	var joined time.Time
	if g := r.presence.groups[reset.Group]; g != nil && g.members[c] != nil {
		joined = g.members[c].joined
	}
	r.presenceMu.Unlock()
	if !joined.IsZero() && joined.UnixMilli() > reset.Time {
		r.resetsTold.tell(reset, c.RemoteAddr().String())
	}
}

// resetsTold are the clients that know of each pending reset. Bound: maxTold clients of all resets; beyond it all are forgotten, and told
// again.
type resetsTold struct {
	mu      sync.Mutex
	who     map[state.Reset]map[string]bool
	clients int // in who
}

const maxTold = 100_000

// tell notes that a client knows of a reset, and tells whether it did before. Their names may lie in a request.
func (t *resetsTold) tell(reset state.Reset, client string) (knew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who[reset][client] {
		return true
	}
	if t.who == nil || t.clients >= maxTold {
		t.who, t.clients = map[state.Reset]map[string]bool{}, 0
	}
	clients := t.who[reset]
	if clients == nil {
		clients = map[string]bool{}
		reset.Group = strings.Clone(reset.Group)
		t.who[reset] = clients
	}
	clients[strings.Clone(client)] = true
	t.clients++
	return false
}

func (t *resetsTold) forget(reset state.Reset) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients -= len(t.who[reset])
	delete(t.who, reset)
}

// cloneOffset takes CLONE_GROUP_OFFSET (314): one group goes on where another one is, in one topic or in all of that one's. Members of
// the first are told as by a reset.
func (r *Replica) cloneOffset(req *remoting.Command, pend *remoting.Pending) {
	from, err := req.MustString("srcGroup")
	to := ""
	if err == nil {
		to, err = req.MustString("destGroup")
	}
	if err == nil {
		err = message.ValidGroup(from)
	}
	if err == nil {
		err = message.ValidGroup(to)
	}
	if err == nil && from == to {
		err = refuse(remoting.InvalidParameter, "srcGroup and destGroup are the same group %q", from)
	}
	offline := false
	if err == nil {
		offline, err = req.BoolOr("offline", false)
	}
	for _, g := range []string{from, to} {
		if err == nil {
			err = r.awaitCommits(g)
		}
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	topics := []string{strings.TrimSpace(req.GetOr("topic", ""))}
	if topics[0] == "" {
		topics = r.st.TopicsOf(from)
	} else if _, ref := r.topic(topics[0]); ref != nil {
		answerError(pend, ref)
		return
	}
	if !offline {
		topics = r.subscribed(from, topics)
	}
	r.confirmed(func(*remoting.Command) (*remoting.Command, error) {
		var all []state.ConsumerOffset
		for _, t := range topics {
			if t != message.RetryTopic(from) { // its messages are the other group's own
				all = append(all, r.st.ConsumerOffsets(from, t)...)
			}
		}
		if len(all) == 0 {
			return nil, refuse(remoting.SystemError, "consumer group %q has no offset there that could be cloned", from)
		}
		if err := r.ensureGroup(to); err != nil {
			return nil, err
		}
		if _, err := r.commitReset(to, all); err != nil {
			return nil, err
		}
		return remoting.NewResponse(remoting.Success, ""), nil
	})(req, pend)
}
