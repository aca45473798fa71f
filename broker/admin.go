package broker

import (
	"encoding/json"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// MaxTopicQueues bounds the queues of one topic, so that a slip of the hand does not make a table of billions.
const MaxTopicQueues = 65536

// putTopic takes UPDATE_AND_CREATE_TOPIC (17). It answers when the topic is in the log and, if they answer within a second,
// known to the name servers.
func (r *Replica) putTopic(req *remoting.Command, pend *remoting.Pending) {
	t, err := parseTopic(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	if ref := r.door(); ref != nil {
		answerError(pend, ref)
		return
	}
	r.putTopics(pend, []state.Topic{t})
}

// putTopics creates or changes topics that were checked, each in a command of its own, and tells the name servers.
func (r *Replica) putTopics(pend *remoting.Pending, topics []state.Topic) {
	for i, t := range topics {
		if _, err := r.commitCommand(state.RecordTopicPut, state.AppendTopicPut(nil, state.Put, t)); err != nil {
			if i > 0 {
				r.node.publish(r)
			}
			answerError(pend, err)
			return
		}
	}
	r.node.publish(r)
	ok(pend)
}

func parseTopic(req *remoting.Command) (t state.Topic, err error) {
	if t.Name, err = req.MustString("topic"); err != nil {
		return t, err
	}
	if t.ReadQueues, err = req.MustInt32("readQueueNums"); err != nil {
		return t, err
	}
	if t.WriteQueues, err = req.MustInt32("writeQueueNums"); err != nil {
		return t, err
	}
	if t.Perm, err = req.MustInt32("perm"); err != nil {
		return t, err
	}
	if t.SysFlag, err = req.Int32Or("topicSysFlag", 0); err != nil {
		return t, err
	}
	if t.Order, err = req.BoolOr("order", false); err != nil {
		return t, err
	}
	if kind := req.GetOr("topicFilterType", "SINGLE_TAG"); kind != "SINGLE_TAG" {
		return t, refuse(remoting.InvalidParameter, "topicFilterType %q: only SINGLE_TAG is supported", kind)
	}
	if t.Attributes, err = parseAttributes(req.GetOr("attributes", "")); err != nil {
		return t, err
	}
	return t, checkTopic(&t)
}

// checkTopic checks what an operator wants of a topic, and takes its name out of the request.
func checkTopic(t *state.Topic) (err error) {
	if t.Name, err = checkedName(t.Name, message.ValidTopic); err != nil {
		return err
	}
	if message.IsSystemTopic(t.Name) {
		return refuse(remoting.InvalidParameter, "topic %q is the broker's own: choose another name", t.Name)
	}
	for _, n := range []int32{t.ReadQueues, t.WriteQueues} {
		if n < 1 || n > MaxTopicQueues {
			return refuse(remoting.InvalidParameter, "%d queues for topic %s: use 1 to %d", n, t.Name, MaxTopicQueues)
		}
	}
	if t.Perm < 0 || t.Perm > permRead|permWrite|permInherit {
		return refuse(remoting.InvalidParameter, "permission %d of topic %s: use the sum of 4 (read), 2 (write) and 1 (inherit)", t.Perm, t.Name)
	}
	return nil
}

// parseAttributes reads "+key=value,…". "-key" removes one, which here means that it is not there.
func parseAttributes(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	m := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" || strings.HasPrefix(part, "-") {
			continue
		}
		k, v, found := strings.Cut(strings.TrimPrefix(part, "+"), "=")
		if !found || k == "" || v == "" {
			return nil, refuse(remoting.SystemError, "attribute %q: want +key=value", part)
		}
		switch {
		case k == "message.type" && (v == "NORMAL" || v == "FIFO" || v == "UNSPECIFIED"):
		case k == "cleanup.policy" && v == "DELETE", k == "queue.type" && v == "SimpleCQ":
		default:
			return nil, refuse(remoting.SystemError, "attribute %s=%s is not supported", k, v)
		}
		m[strings.Clone(k)] = strings.Clone(v)
	}
	return m, nil
}

// deleteTopic takes DELETE_TOPIC_IN_BROKER (215). Deleting what is not there is a success.
func (r *Replica) deleteTopic(req *remoting.Command, pend *remoting.Pending) {
	name, err := req.MustString("topic")
	if err == nil {
		name, err = checkedName(name, message.ValidTopic)
	}
	if err == nil && (message.IsSystemTopic(name) || name == r.group || name == r.node.o.ClusterName) {
		err = refuse(remoting.InvalidParameter, "topic %q is the broker's own: it cannot be deleted", name)
	}
	if err != nil {
		answerError(pend, err)
		return
	}
	if _, err := r.commitCommand(state.RecordTopicDelete, state.AppendTopicDelete(nil, name)); err != nil {
		answerError(pend, err)
		return
	}
	r.node.publish(r)
	ok(pend)
}

// groupJSON is RocketMQ's SubscriptionGroupConfig. Absent fields keep the defaults.
type groupJSON struct {
	GroupName                      string            `json:"groupName"`
	ConsumeEnable                  *bool             `json:"consumeEnable"`
	ConsumeFromMinEnable           *bool             `json:"consumeFromMinEnable"`
	ConsumeBroadcastEnable         *bool             `json:"consumeBroadcastEnable"`
	ConsumeMessageOrderly          *bool             `json:"consumeMessageOrderly"`
	NotifyConsumerIdsChangedEnable *bool             `json:"notifyConsumerIdsChangedEnable"`
	RetryQueueNums                 *int32            `json:"retryQueueNums"`
	RetryMaxTimes                  *int32            `json:"retryMaxTimes"`
	BrokerID                       *int64            `json:"brokerId"`
	WhichBrokerWhenConsumeSlowly   *int64            `json:"whichBrokerWhenConsumeSlowly"`
	GroupSysFlag                   *int32            `json:"groupSysFlag"`
	ConsumeTimeoutMinute           *int32            `json:"consumeTimeoutMinute"`
	GroupRetryPolicy               *retryPolicyJSON  `json:"groupRetryPolicy"`
	Attributes                     map[string]string `json:"attributes"`
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}

// putGroup takes UPDATE_AND_CREATE_SUBSCRIPTION_GROUP (200).
func (r *Replica) putGroup(req *remoting.Command, pend *remoting.Pending) {
	var j groupJSON
	if err := json.Unmarshal(req.Body, &j); err != nil {
		answerError(pend, refuse(remoting.SystemError, "the body cannot be read: %v", err))
		return
	}
	g, err := j.group()
	if err != nil {
		answerError(pend, err)
		return
	}
	r.putGroups(pend, []state.SubscriptionGroup{g})
}

// putGroups creates or changes groups that were checked, each in a command of its own, with their retry topics.
func (r *Replica) putGroups(pend *remoting.Pending, groups []state.SubscriptionGroup) {
	for _, g := range groups {
		if _, err := r.commitCommand(state.RecordGroupPut, state.AppendGroupPut(nil, state.Put, g)); err != nil {
			answerError(pend, err)
			return
		}
		if _, err := r.ensureTopic(retryTopic(g.Name)); err != nil {
			answerError(pend, err)
			return
		}
	}
	r.node.publish(r)
	ok(pend)
}

// group is the checked group of a request.
func (j *groupJSON) group() (state.SubscriptionGroup, error) {
	if err := message.ValidGroup(j.GroupName); err != nil {
		return state.SubscriptionGroup{}, err
	}
	g := state.DefaultGroup(j.GroupName)
	set(&g.ConsumeEnable, j.ConsumeEnable)
	set(&g.ConsumeFromMinEnable, j.ConsumeFromMinEnable)
	set(&g.BroadcastEnable, j.ConsumeBroadcastEnable)
	set(&g.Orderly, j.ConsumeMessageOrderly)
	set(&g.NotifyIDsChanged, j.NotifyConsumerIdsChangedEnable)
	set(&g.RetryQueues, j.RetryQueueNums)
	set(&g.RetryMax, j.RetryMaxTimes)
	set(&g.BrokerID, j.BrokerID)
	set(&g.WhenSlowBrokerID, j.WhichBrokerWhenConsumeSlowly)
	set(&g.SysFlag, j.GroupSysFlag)
	set(&g.TimeoutMinutes, j.ConsumeTimeoutMinute)
	if len(j.Attributes) > 0 {
		g.Attributes = j.Attributes
	}
	if g.RetryQueues < 0 || g.RetryQueues > 1024 || g.RetryMax < -1 {
		return g, refuse(remoting.InvalidParameter, "retryQueueNums %d or retryMaxTimes %d of group %s is out of range", g.RetryQueues, g.RetryMax, g.Name)
	}
	var err error
	g.RetryPolicy, err = j.GroupRetryPolicy.policy()
	return g, err
}
