package broker

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

// Bounds of the series that one replica has with names of topics and consumer groups in them. They follow from what there is when metrics
// are asked for, so those of a deleted topic or group are gone at once. What is over a bound is left out, last in the order of the topics'
// names, and counted by ledgermq_replica_series_left_out.
const (
	maxTopicSeries = 5_000
	maxPairSeries  = 5_000  // of a topic and a consumer group
	maxQueueSeries = 10_000 // of a pair, and a queue
	maxOldestReads = 2_000  // of the log, for ages
)

// groupMetrics are those of topics and consumer groups. A master alone has them: it knows what was committed. What is not known, the lag of
// a queue that a group has no offset in for one, or of a group that broadcasts, is absent and never 0.
type groupMetrics struct {
	topicIn, topicBytes, out, lag, queueLag, oldest, inFlight, retries, dead, deadKept, leftOut *prometheus.Desc
}

func newGroupMetrics() groupMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ledgermq_"+name, help, append([]string{"group"}, labels...), nil)
	}
	return groupMetrics{
		topicIn:    desc("topic_messages_in_total", "Messages of a topic, by its master; since the master's process began.", "topic"),
		topicBytes: desc("topic_bytes_in_total", "Bytes of messages of a topic, likewise.", "topic"),
		out:        desc("consumer_messages_out_total", "Messages of a topic that a consumer group was given by the master.", "topic", "consumer_group"),
		lag:        desc("consumer_lag_messages", "Messages of a topic behind a consumer group's offsets, in the queues where it has one; absent while a member broadcasts.", "topic", "consumer_group"),
		queueLag:   desc("consumer_queue_lag_messages", "The same, by queue.", "topic", "consumer_group", "queue"),
		oldest:     desc("consumer_oldest_seconds", "Age of the oldest message of a topic that a consumer group has not consumed; absent when there is none.", "topic", "consumer_group"),
		inFlight:   desc("consumer_in_flight_messages", "Messages that members of a consumer group were given and have not committed yet; absent until one was given.", "topic", "consumer_group"),
		retries:    desc("consumer_retries_total", "Messages that a consumer group sent back; since the master's process began.", "consumer_group"),
		dead:       desc("consumer_dead_letters_total", "Messages that were given up for a consumer group; likewise.", "consumer_group"),
		deadKept:   desc("consumer_dead_letters", "Messages in the dead-letter topic of a consumer group.", "consumer_group"),
		leftOut:    desc("replica_series_left_out", "Series of topics and consumer groups that are over their bounds and left out."),
	}
}

// givenQueues are the offsets behind the last message that a group was given, by queue.
type givenQueues struct {
	list atomic.Pointer[[]atomic.Int64]
}

// gave notes that members go on from next in a queue. Two that meet lose one note at most: the next pull brings it again.
func (g *givenQueues) gave(q ids.QueueID, next ids.QueueOffset) {
	list := g.list.Load()
	if list == nil || int(q) >= len(*list) {
		grown := make([]atomic.Int64, q+1)
		if list != nil {
			for i := range *list {
				grown[i].Store((*list)[i].Load())
			}
		}
		g.list.CompareAndSwap(list, &grown)
		list = g.list.Load()
	}
	if int(q) < len(*list) {
		(*list)[q].Store(int64(next))
	}
}

// next is the offset behind the last message that was given of a queue, 0 when none was.
func (g *givenQueues) next(q ids.QueueID) int64 {
	if list := g.list.Load(); list != nil && int(q) < len(*list) {
		return (*list)[q].Load()
	}
	return 0
}

// tally returns the tally of a thing, nil when there is none.
func (s *statistics) tally(k tallyKey) *tally {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tallies[k]
}

func (m *groupMetrics) collect(ch chan<- prometheus.Metric, r *Replica) {
	if !r.isMaster() {
		return
	}
	topicsLeft, pairsLeft, queuesLeft, readsLeft, leftOut := maxTopicSeries, maxPairSeries, maxQueueSeries, maxOldestReads, 0
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), append([]string{r.group}, labels...)...)
	}
	now := r.now().UnixMilli()
	groups := r.st.GroupsByTopic()
	r.presenceMu.Lock()
	alone := r.presence.broadcasting() // their members keep their offsets themselves: what is here tells nothing
	r.presenceMu.Unlock()
	for _, t := range r.st.Topics() {
		puts := r.stats.tally(tallyKey{kind: tallyPut, topic: t.ID})
		if topicsLeft--; topicsLeft < 0 {
			leftOut++
		} else if puts != nil {
			send(m.topicIn, prometheus.CounterValue, puts.count.Load(), t.Name)
			send(m.topicBytes, prometheus.CounterValue, puts.bytes.Load(), t.Name)
			if g, is := message.GroupOfRetryTopic(t.Name); is {
				send(m.retries, prometheus.CounterValue, puts.count.Load(), g)
			}
			if message.IsDLQTopic(t.Name) {
				send(m.dead, prometheus.CounterValue, puts.count.Load(), t.Name[len(message.DLQPrefix):])
			}
		}
		if message.IsDLQTopic(t.Name) && topicsLeft >= 0 {
			var kept int64
			for q := range ids.QueueID(max(t.ReadQueues, t.WriteQueues)) {
				first, end := r.queueRange(index.Key{Topic: t.ID, Queue: q})
				kept += int64(end - first)
			}
			send(m.deadKept, prometheus.GaugeValue, kept, t.Name[len(message.DLQPrefix):])
		}
		for _, g := range groups[t.ID] {
			if pairsLeft--; pairsLeft < 0 {
				leftOut++
				continue
			}
			gets := r.stats.tally(tallyKey{tallyGet, t.ID, g})
			if gets != nil {
				send(m.out, prometheus.CounterValue, gets.count.Load(), t.Name, g)
			}
			if alone[g] {
				continue
			}
			var lag, inFlight int64
			oldest, given := int64(0), false
			for _, o := range r.st.ConsumerOffsets(g, t.Name) {
				k := index.Key{Topic: t.ID, Queue: o.Queue}
				first, end := r.queueRange(k)
				at := max(o.Offset, first)
				behind := max(0, int64(end-at))
				lag += behind
				if queuesLeft--; queuesLeft < 0 {
					leftOut++
				} else {
					send(m.queueLag, prometheus.GaugeValue, behind, t.Name, g, strconv.Itoa(int(o.Queue)))
				}
				if readsLeft > 0 && behind > 0 {
					readsLeft--
					if time, err := r.storeTime(k, at); err == nil && (oldest == 0 || time < oldest) {
						oldest = time
					}
				}
				if gets != nil {
					if next := gets.given.next(o.Queue); next > 0 {
						given = true
						inFlight += max(0, next-int64(o.Offset))
					}
				}
			}
			send(m.lag, prometheus.GaugeValue, lag, t.Name, g)
			if oldest != 0 {
				ch <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, float64(max(0, now-oldest))/1000, r.group, t.Name, g)
			}
			if given {
				send(m.inFlight, prometheus.GaugeValue, inFlight, t.Name, g)
			}
		}
	}
	send(m.leftOut, prometheus.GaugeValue, int64(leftOut))
}
