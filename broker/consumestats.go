package broker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// offsetJSON is RocketMQ's OffsetWrapper: how far a group is in one queue.
type offsetJSON struct {
	BrokerOffset   int64 `json:"brokerOffset"`
	ConsumerOffset int64 `json:"consumerOffset"`
	LastTimestamp  int64 `json:"lastTimestamp"` // store time of the last message that the group has consumed; 0: none, or not retained
	PullOffset     int64 `json:"pullOffset"`

	// Ours, which RocketMQ's clients pass over: store time of the first message that the group has not consumed, absent when there is none;
	// where the queue begins; and whether anything was committed.
	Oldest    int64 `json:"oldestTimestamp,omitempty"`
	MinOffset int64 `json:"minOffset"`
	Committed bool  `json:"committed"`
}

// consumeStats takes GET_CONSUME_STATS (208): how far a group is, on a confirmed master and with all that its members have committed.
func (r *Replica) consumeStats(req *remoting.Command, pend *remoting.Pending) {
	group, err := req.MustString("consumerGroup")
	if err == nil {
		err = message.ValidGroup(group)
	}
	if err == nil {
		err = r.awaitCommits(group)
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	r.confirmed(func(req *remoting.Command) (*remoting.Command, error) {
		return r.progress(group, r.topicsAsked(group, req))
	})(req, pend)
}

// topicsAsked are the topics of a request for a group's progress: those of topicList; or topic, or all that the group has an offset on,
// but none that its connected members do not subscribe to.
func (r *Replica) topicsAsked(group string, req *remoting.Command) []string {
	if list := listedTopics(req.GetOr("topicList", "")); len(list) > 0 {
		return list
	}
	topics := []string{strings.TrimSpace(req.GetOr("topic", ""))}
	if topics[0] == "" {
		topics = r.st.TopicsOf(group)
	}
	return r.subscribed(group, topics)
}

// subscribed leaves out the topics that the members of the group, if there are any, do not subscribe to.
func (r *Replica) subscribed(group string, topics []string) []string {
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	g := r.presence.groups[group]
	if g == nil {
		return topics
	}
	subs := map[string]bool{}
	for _, m := range g.members {
		for t := range m.subs {
			subs[t] = true
		}
	}
	return slices.DeleteFunc(topics, func(t string) bool { return len(subs) > 0 && !subs[t] })
}

// progress makes RocketMQ's ConsumeStats. Topics that do not exist are left out, as RocketMQ does.
func (r *Replica) progress(group string, topics []string) (*remoting.Command, error) {
	table, tps := map[queueJSON]offsetJSON{}, 0.0
	for _, name := range topics {
		t, found := r.st.Topic(name)
		if !found {
			continue
		}
		minute, _, _, _ := r.stats.find(tallyKey{tallyGet, t.ID, group}, r.now())
		tps += minute.item(false).TPS
		for q := range ids.QueueID(t.ReadQueues) {
			o, err := r.progressIn(group, name, index.Key{Topic: t.ID, Queue: q})
			if err != nil {
				return nil, err
			}
			table[queueJSON{Topic: name, BrokerName: r.group, QueueID: int32(q)}] = o
		}
	}
	body := laxjson.AppendObjectMap(fmt.Appendf(nil, `{"consumeTps":%g,"offsetTable":`, tps), byQueue(table))
	return bodyAnswer(append(body, '}')), nil
}

func (r *Replica) progressIn(group, topic string, k index.Key) (o offsetJSON, err error) {
	consumed, committed := r.st.ConsumerOffset(group, topic, k.Queue)
	for {
		first, end := r.queueRange(k)
		o = offsetJSON{BrokerOffset: int64(end), ConsumerOffset: int64(consumed), PullOffset: int64(consumed), MinOffset: int64(first), Committed: committed}
		if last := consumed - 1; last >= first && last < end {
			o.LastTimestamp, err = r.storeTime(k, last)
		}
		if next := max(consumed, first); err == nil && next < end {
			o.Oldest, err = r.storeTime(k, next)
		}
		if again, _ := r.queueRange(k); err == nil || again == first {
			return o, err
		} // the front was cut meanwhile
	}
}

// byQueue walks a map from queues in their order.
func byQueue[V any](m map[queueJSON]V) func(yield func(any, any) bool) {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b queueJSON) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.QueueID, b.QueueID))
	})
	return func(yield func(any, any) bool) {
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
