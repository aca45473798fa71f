package broker

import (
	"encoding/json"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/remoting"
)

// groupConfigJSON is RocketMQ's SubscriptionGroupConfig as a broker shows it.
type groupConfigJSON struct {
	Attributes                     map[string]string `json:"attributes"`
	BrokerID                       int64             `json:"brokerId"`
	ConsumeBroadcastEnable         bool              `json:"consumeBroadcastEnable"`
	ConsumeEnable                  bool              `json:"consumeEnable"`
	ConsumeFromMinEnable           bool              `json:"consumeFromMinEnable"`
	ConsumeMessageOrderly          bool              `json:"consumeMessageOrderly"`
	ConsumeTimeoutMinute           int32             `json:"consumeTimeoutMinute"`
	GroupName                      string            `json:"groupName"`
	GroupRetryPolicy               retryPolicyJSON   `json:"groupRetryPolicy"`
	GroupSysFlag                   int32             `json:"groupSysFlag"`
	NotifyConsumerIdsChangedEnable bool              `json:"notifyConsumerIdsChangedEnable"`
	RetryMaxTimes                  int32             `json:"retryMaxTimes"`
	RetryQueueNums                 int32             `json:"retryQueueNums"`
	WhichBrokerWhenConsumeSlowly   int64             `json:"whichBrokerWhenConsumeSlowly"`
}

// retryPolicyJSON is RocketMQ's GroupRetryPolicy.
type retryPolicyJSON struct {
	Type        string                 `json:"type"`
	Exponential *exponentialPolicyJSON `json:"exponentialRetryPolicy,omitempty"`
	Customized  *customizedPolicyJSON  `json:"customizedRetryPolicy,omitempty"`
}

type exponentialPolicyJSON struct {
	Initial    int64 `json:"initial"`
	Max        int64 `json:"max"`
	Multiplier int64 `json:"multiplier"`
}

type customizedPolicyJSON struct {
	Next []int64 `json:"next"`
}

func showGroup(g *state.SubscriptionGroup) groupConfigJSON {
	j := groupConfigJSON{Attributes: g.Attributes, BrokerID: g.BrokerID, ConsumeBroadcastEnable: g.BroadcastEnable, ConsumeEnable: g.ConsumeEnable,
		ConsumeFromMinEnable: g.ConsumeFromMinEnable, ConsumeMessageOrderly: g.Orderly, ConsumeTimeoutMinute: g.TimeoutMinutes, GroupName: g.Name,
		GroupSysFlag: g.SysFlag, NotifyConsumerIdsChangedEnable: g.NotifyIDsChanged, RetryMaxTimes: g.RetryMax, RetryQueueNums: g.RetryQueues,
		WhichBrokerWhenConsumeSlowly: g.WhenSlowBrokerID, GroupRetryPolicy: retryPolicyJSON{Type: "CUSTOMIZED"}}
	if j.Attributes == nil {
		j.Attributes = map[string]string{}
	}
	switch p := &g.RetryPolicy; p.Kind {
	case state.RetryCustomized:
		j.GroupRetryPolicy.Customized = &customizedPolicyJSON{p.Next}
	case state.RetryExponential:
		j.GroupRetryPolicy = retryPolicyJSON{Type: "EXPONENTIAL", Exponential: &exponentialPolicyJSON{p.Initial, p.Max, p.Multiplier}}
	}
	return j
}

// maxGroupsShown is how many groups one answer of 201 has when the request asks for pages.
const maxGroupsShown = 2000

// allGroups takes GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201). A request with groupSeq, maxGroupNum or dataVersion, as admin clients from 5.4 on
// send, asks for a page: the groups by name from groupSeq on, from the first one when they have changed since that version.
func (r *Replica) allGroups(req *remoting.Command) (*remoting.Command, error) {
	groups, version := r.st.Groups(), r.dataVersion(r.st.GroupVersion())
	total := len(groups)
	_, paged1 := req.Get("groupSeq")
	_, paged2 := req.Get("maxGroupNum")
	_, paged3 := req.Get("dataVersion")
	if paged1 || paged2 || paged3 {
		from, err := req.Int32Or("groupSeq", 0)
		if err != nil {
			return nil, err
		}
		most, err := req.Int32Or("maxGroupNum", maxGroupsShown)
		if err != nil {
			return nil, err
		}
		if from < 0 || most < 0 {
			return nil, refuse(remoting.InvalidParameter, "groupSeq %d or maxGroupNum %d is negative", from, most)
		}
		var seen dataVersionJSON
		if json.Unmarshal([]byte(req.GetOr("dataVersion", "")), &seen) != nil || seen != version {
			from = 0
		}
		groups = groups[min(int(from), total):]
		groups = groups[:min(len(groups), int(most), maxGroupsShown)]
	}
	table := make(map[string]groupConfigJSON, len(groups))
	for i := range groups {
		table[groups[i].Name] = showGroup(&groups[i])
	}
	resp, err := jsonAnswer(struct {
		DataVersion dataVersionJSON            `json:"dataVersion"`
		Forbidden   map[string]map[string]int  `json:"forbiddenTable"`
		Groups      map[string]groupConfigJSON `json:"subscriptionGroupTable"`
	}{version, r.forbiddenTable(), table})
	if err == nil {
		resp.SetInt64("totalGroupNum", int64(total))
	}
	return resp, err
}

// listedTopics are the topics of a header field, separated by semicolons.
func listedTopics(s string) (list []string) {
	for t := range strings.SplitSeq(s, ";") {
		if t = strings.TrimSpace(t); t != "" {
			list = append(list, t)
		}
	}
	return list
}
