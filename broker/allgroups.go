package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// oneGroup takes GET_SUBSCRIPTIONGROUP_CONFIG (352).
func (r *Replica) oneGroup(req *remoting.Command) (*remoting.Command, error) {
	name, err := req.MustString("group")
	if err != nil {
		return nil, err
	}
	g, known := r.st.Group(name)
	if !known {
		return nil, refuse(remoting.SubscriptionGroupNotExist, "consumer group %q does not exist in group %s", name, r.group)
	}
	return jsonAnswer(showGroup(&g))
}

// allConsumeStats takes GET_BROKER_CONSUME_STATS (317): how far every group is on each topic that it has an offset on; with isOrder only
// the ordered topics.
func (r *Replica) allConsumeStats(ctx context.Context, req *remoting.Command) (*remoting.Command, error) {
	ordered, err := req.BoolOr("isOrder", false)
	if err != nil {
		return nil, err
	}
	topics := map[string][]string{} // of each group
	for _, t := range r.st.Topics() {
		if ordered && !t.Order {
			continue
		}
		for _, g := range r.st.GroupsOn(t.Name) {
			topics[g] = append(topics[g], t.Name)
		}
	}
	total := int64(0)
	body := []byte(`{"brokerAddr":"` + r.advertise + `","consumeStatsList":[`)
	for i, group := range slices.Sorted(maps.Keys(topics)) {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{%q:[`, group)
		for j, name := range topics[group] {
			t, found := r.st.Topic(name)
			if !found {
				continue
			}
			if j > 0 {
				body = append(body, ',')
			}
			table := map[queueJSON]offsetJSON{}
			for q := range ids.QueueID(t.ReadQueues) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				o, err := r.progressIn(group, name, index.Key{Topic: t.ID, Queue: q})
				if err != nil {
					return nil, err
				}
				total += max(0, o.BrokerOffset-o.ConsumerOffset)
				table[queueJSON{Topic: name, BrokerName: r.group, QueueID: int32(q)}] = o
			}
			minute, _, _, _ := r.stats.find(tallyKey{tallyGet, t.ID, group}, r.now())
			body = laxjson.AppendObjectMap(fmt.Appendf(body, `{"consumeTps":%g,"offsetTable":`, minute.item(false).TPS), byQueue(table))
			body = append(body, '}')
		}
		body = append(body, `]}`...)
	}
	return bodyAnswer(fmt.Appendf(body, `],"totalDiff":%d,"totalInflightDiff":0}`, total)), nil
}

type producerJSON struct {
	ClientID string `json:"clientId"`
	Language string `json:"language"`
	Seen     int64  `json:"lastUpdateTimestamp"`
	Addr     string `json:"remoteIP"`
	Version  int32  `json:"version"`
}

// allProducers takes GET_ALL_PRODUCER_INFO (328): the producers that are connected to this replica, by group.
func (r *Replica) allProducers(*remoting.Command) (*remoting.Command, error) {
	table := map[string][]producerJSON{}
	r.presenceMu.Lock()
	defer r.presenceMu.Unlock()
	for group, members := range r.presence.producers {
		for c, m := range members {
			table[group] = append(table[group], producerJSON{m.clientID, remoting.LanguageName(m.language), m.seen.UnixMilli(), c.RemoteAddr().String(), m.version})
		}
	}
	return jsonAnswer(map[string]any{"data": table})
}
