package broker

import (
	"context"
	"fmt"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// topicJSON is RocketMQ's TopicConfig.
type topicJSON struct {
	Attributes  map[string]string `json:"attributes"`
	Order       bool              `json:"order"`
	Perm        int32             `json:"perm"`
	ReadQueues  int32             `json:"readQueueNums"`
	FilterType  string            `json:"topicFilterType"`
	Name        string            `json:"topicName"`
	SysFlag     int32             `json:"topicSysFlag"`
	WriteQueues int32             `json:"writeQueueNums"`
}

func topicConfig(t *state.Topic) topicJSON {
	attributes := t.Attributes
	if attributes == nil {
		attributes = map[string]string{}
	}
	return topicJSON{Attributes: attributes, Order: t.Order, Perm: t.Perm, ReadQueues: t.ReadQueues, FilterType: "SINGLE_TAG",
		Name: t.Name, SysFlag: t.SysFlag, WriteQueues: t.WriteQueues}
}

// dataVersionJSON is RocketMQ's DataVersion.
type dataVersionJSON struct {
	Counter      int64 `json:"counter"`
	StateVersion int64 `json:"stateVersion"`
	Timestamp    int64 `json:"timestamp"`
}

func (r *Replica) dataVersion(v state.DataVersion) dataVersionJSON {
	return dataVersionJSON{Counter: v.Counter, StateVersion: int64(r.term()), Timestamp: v.Time}
}

// topicName is the name of a topic that lives.
func (r *Replica) topicName(id ids.TopicID) string {
	t, _ := r.st.TopicByID(id)
	return t.Name
}

// allTopics takes GET_ALL_TOPIC_CONFIG (21).
func (r *Replica) allTopics(*remoting.Command) (*remoting.Command, error) {
	table := map[string]topicJSON{}
	for _, t := range r.st.Topics() {
		table[t.Name] = topicConfig(&t)
	}
	resp, err := jsonAnswer(struct {
		Version dataVersionJSON      `json:"dataVersion"`
		Table   map[string]topicJSON `json:"topicConfigTable"`
	}{r.dataVersion(r.st.TopicVersion()), table})
	if err == nil {
		resp.SetInt64("totalTopicNum", int64(len(table)))
	}
	return resp, err
}

// oneTopic takes GET_TOPIC_CONFIG (351).
func (r *Replica) oneTopic(req *remoting.Command) (*remoting.Command, error) {
	t, err := r.topicOf(req)
	if err != nil {
		return nil, err
	}
	return jsonAnswer(topicConfig(&t))
}

func (r *Replica) topicOf(req *remoting.Command) (state.Topic, error) {
	name, err := req.MustString("topic")
	if err != nil {
		return state.Topic{}, err
	}
	t, ref := r.topic(name)
	if ref != nil {
		return t, ref
	}
	return t, nil
}

type topicOffsetJSON struct {
	LastUpdate int64           `json:"lastUpdateTimestamp"`
	Max        ids.QueueOffset `json:"maxOffset"`
	Min        ids.QueueOffset `json:"minOffset"`
}

// topicStats takes GET_TOPIC_STATS_INFO (202): first and next offset of each queue, and when its last message was stored, 0 when it has
// none any more.
func (r *Replica) topicStats(ctx context.Context, req *remoting.Command) (*remoting.Command, error) {
	t, err := r.topicOf(req)
	if err != nil {
		return nil, err
	}
	var queues []topicOffsetJSON
	for q := range ids.QueueID(max(t.ReadQueues, t.WriteQueues)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		o, err := r.lastOf(index.Key{Topic: t.ID, Queue: q})
		if err != nil {
			return nil, err
		}
		queues = append(queues, o)
	}
	minute, _, _, _ := r.stats.find(tallyKey{kind: tallyPut, topic: t.ID}, r.now())
	body := append([]byte(`{"offsetTable":`), laxjson.AppendObjectMap(nil, func(yield func(any, any) bool) {
		for q, o := range queues {
			if !yield(queueJSON{Topic: t.Name, BrokerName: r.group, QueueID: int32(q)}, o) {
				return
			}
		}
	})...)
	resp := remoting.NewResponse(remoting.Success, "")
	resp.Body = fmt.Appendf(body, `,"topicPutTps":%g}`, minute.item(false).TPS)
	return resp, nil
}

// lastOf is what topicStats tells of one queue.
func (r *Replica) lastOf(k index.Key) (o topicOffsetJSON, err error) {
	for {
		o.Min, o.Max = r.queueRange(k)
		if o.Min == o.Max {
			return o, nil
		}
		if o.LastUpdate, err = r.storeTime(k, o.Max-1); err == nil {
			return o, nil
		}
		if first, _ := r.queueRange(k); first == o.Min { // else the front was cut meanwhile
			return o, err
		}
	}
}
