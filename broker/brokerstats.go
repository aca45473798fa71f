package broker

import (
	"strings"

	"github.com/ledgermq/ledgermq/remoting"
)

// statsItem is RocketMQ's BrokerStatsItem.
type statsItem struct {
	Sum   int64   `json:"sum"`
	TPS   float64 `json:"tps"`
	AvgPT float64 `json:"avgpt"` // what one counted thing is on average: 1 for numbers, bytes for sizes
}

type statsData struct {
	Minute statsItem `json:"statsMinute"`
	Hour   statsItem `json:"statsHour"`
	Day    statsItem `json:"statsDay"`
}

// Names of statistics that this broker has: those of messages by number, and by bytes.
var statsKinds = map[string]struct {
	kind  tallyKind
	bytes bool
}{
	"TOPIC_PUT_NUMS": {tallyPut, false}, "TOPIC_PUT_SIZE": {tallyPut, true},
	"GROUP_GET_NUMS": {tallyGet, false}, "GROUP_GET_SIZE": {tallyGet, true},
}

// brokerStats takes VIEW_BROKER_STATS_DATA (315). What was never counted is refused, as RocketMQ does: nothing is known of it, and
// that is not zero.
func (r *Replica) brokerStats(req *remoting.Command) (*remoting.Command, error) {
	name, err := req.MustString("statsName")
	if err != nil {
		return nil, err
	}
	key, err := req.MustString("statsKey")
	if err != nil {
		return nil, err
	}
	now := r.now()
	if name == "BROKER_PUT_NUMS" || name == "BROKER_GET_NUMS" {
		if key != r.node.o.ClusterName {
			return nil, refuse(remoting.SystemError, "the stats <%s> <%s> not exist: the key is the cluster's name, %s", name, key, r.node.o.ClusterName)
		}
		all := allPuts
		if name == "BROKER_GET_NUMS" {
			all = allGets
		}
		minute, hour, day, _ := r.stats.find(all, now)
		return jsonAnswer(statsData{minute.item(false), hour.item(false), day.item(false)})
	}
	kind, known := statsKinds[name]
	if !known {
		return nil, refuse(remoting.SystemError, "the stats <%s> not exist: this broker counts TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, GROUP_GET_NUMS, GROUP_GET_SIZE, BROKER_PUT_NUMS and BROKER_GET_NUMS; what is sent back and what is given up are the puts of %%RETRY%% and %%DLQ%% topics", name)
	}
	topic, group, _ := strings.Cut(key, "@")
	if kind.kind == tallyPut && topic != key || kind.kind != tallyPut && group == "" {
		return nil, refuse(remoting.SystemError, "the stats <%s> <%s> not exist: the key is a topic, or topic@group for figures of a consumer group", name, key)
	}
	t, found := r.st.Topic(topic)
	var minute, hour, day span
	if found {
		minute, hour, day, found = r.stats.find(tallyKey{kind.kind, t.ID, group}, now)
	}
	if !found {
		return nil, refuse(remoting.SystemError, "the stats <%s> <%s> not exist: nothing of it was counted here", name, key)
	}
	return jsonAnswer(statsData{minute.item(kind.bytes), hour.item(kind.bytes), day.item(kind.bytes)})
}

func (s span) item(bytes bool) statsItem {
	v := s.count
	if bytes {
		v = s.bytes
	}
	i := statsItem{Sum: v}
	if s.over > 0 {
		i.TPS = float64(v) / s.over.Seconds()
	}
	if s.count > 0 {
		i.AvgPT = float64(v) / float64(s.count)
	}
	return i
}

// totalsNow is what this replica has counted so far.
func (r *Replica) totalsNow() totalSample {
	c := &r.counters
	return totalSample{put: c.messagesIn.Load(), putBytes: c.bytesIn.Load(), get: c.messagesOut.Load(), getBytes: c.bytesOut.Load(),
		found: c.pulls.Load(), missed: c.pullsMissed.Load()}
}
