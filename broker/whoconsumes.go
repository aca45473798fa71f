package broker

import (
	"context"
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// subscribers are the groups with a member here that subscribes to the topic, sorted.
func (p *presence[C]) subscribers(topic string) (groups []string) {
	for name, g := range p.groups {
		for _, m := range g.members {
			if _, subscribes := m.subs[topic]; subscribes {
				groups = append(groups, name)
				break
			}
		}
	}
	slices.Sort(groups)
	return groups
}

// consumersOfTopic takes QUERY_TOPIC_CONSUME_BY_WHO (300): the groups with a member that subscribes to the topic now, and those that have
// an offset in it.
func (r *Replica) consumersOfTopic(req *remoting.Command) (*remoting.Command, error) {
	topic, err := req.MustString("topic")
	if err != nil {
		return nil, err
	}
	r.presenceMu.Lock()
	groups := r.presence.subscribers(topic)
	r.presenceMu.Unlock()
	groups = append(groups, r.st.GroupsOn(topic)...)
	slices.Sort(groups)
	return jsonAnswer(struct {
		Groups []string `json:"groupList"`
	}{emptyList(slices.Compact(groups))})
}

func emptyList(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// topicsOfConsumer takes QUERY_TOPICS_BY_CONSUMER (343): the topics in which a group has an offset.
func (r *Replica) topicsOfConsumer(req *remoting.Command) (*remoting.Command, error) {
	group, err := req.MustString("group")
	if err != nil {
		return nil, err
	}
	return r.topicList(r.st.TopicsOf(group))
}

// subscriptionOf takes QUERY_SUBSCRIPTION_BY_CONSUMER (345): what the members of a group that are connected here want of a topic; the newest
// version when they differ, and nothing when nobody subscribes.
func (r *Replica) subscriptionOf(req *remoting.Command) (*remoting.Command, error) {
	group, err := req.MustString("group")
	if err != nil {
		return nil, err
	}
	topic, err := req.MustString("topic")
	if err != nil {
		return nil, err
	}
	answer := struct {
		Group        string            `json:"group"`
		Subscription *subscriptionJSON `json:"subscriptionData,omitempty"`
		Topic        string            `json:"topic"`
	}{Group: group, Topic: topic}
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	if g := r.presence.groups[group]; g != nil {
		for _, m := range g.members {
			if s, subscribes := m.subs[topic]; subscribes && (answer.Subscription == nil || answer.Subscription.SubVersion < s.SubVersion) {
				answer.Subscription = new(showSubscription(s))
			}
		}
	}
	return jsonAnswer(answer)
}

func (r *Replica) topicList(topics []string) (*remoting.Command, error) {
	return jsonAnswer(struct {
		Broker string   `json:"brokerAddr"`
		Topics []string `json:"topicList"`
	}{r.advertise, emptyList(topics)})
}

// systemTopics takes GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305): those that the broker makes itself.
func (r *Replica) systemTopics(*remoting.Command) (*remoting.Command, error) {
	var names []string
	for _, t := range r.st.Topics() {
		if message.IsSystemTopic(t.Name) || t.Name == r.group || t.Name == r.node.o.ClusterName {
			names = append(names, t.Name)
		}
	}
	return r.topicList(names)
}

type timeSpanJSON struct {
	Queue    queueJSON `json:"messageQueue"`
	Min      int64     `json:"minTimeStamp"`
	Max      int64     `json:"maxTimeStamp"`
	Consumed int64     `json:"consumeTimeStamp"`
	Delay    int64     `json:"delayTime"`
}

// consumeTimeSpan takes QUERY_CONSUME_TIME_SPAN (303): for each queue of a topic when its first and last message and the last one that the
// group consumed were stored, 0 where there is none, and for how long the next one waits.
func (r *Replica) consumeTimeSpan(ctx context.Context, req *remoting.Command) (*remoting.Command, error) {
	t, err := r.topicOf(req)
	if err != nil {
		return nil, err
	}
	group, err := req.MustString("group")
	if err != nil {
		return nil, err
	}
	spans := []timeSpanJSON{}
	for q := range ids.QueueID(max(t.ReadQueues, t.WriteQueues)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		k := index.Key{Topic: t.ID, Queue: q}
		first, end := r.queueRange(k)
		s := timeSpanJSON{Queue: queueJSON{Topic: t.Name, BrokerName: r.group, QueueID: int32(q)}}
		at, _ := r.st.ConsumerOffset(group, t.Name, q)
		for _, want := range []struct {
			offset ids.QueueOffset
			time   *int64
		}{{first, &s.Min}, {end - 1, &s.Max}, {at - 1, &s.Consumed}} {
			if want.offset < first || want.offset >= end {
				continue
			}
			if *want.time, err = r.storeTime(k, want.offset); err != nil {
				return nil, fmt.Errorf("queue %d: %w", q, err)
			}
		}
		if at >= first && at < end {
			next, err := r.storeTime(k, at)
			if err != nil {
				return nil, fmt.Errorf("queue %d: %w", q, err)
			}
			s.Delay = max(0, r.now().UnixMilli()-next)
		}
		spans = append(spans, s)
	}
	return jsonAnswer(struct {
		Spans []timeSpanJSON `json:"consumeTimeSpanSet"`
	}{spans})
}
