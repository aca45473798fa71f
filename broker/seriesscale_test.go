package broker

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/broker/state"
)

// seriesOf are the metrics with names of topics and consumer groups of a replica.
type seriesOf struct{ r *Replica }

func (s seriesOf) Describe(chan<- *prometheus.Desc) {}
func (s seriesOf) Collect(ch chan<- prometheus.Metric) {
	m := newGroupMetrics()
	m.collect(ch, s.r)
}

// gathered counts the series by name, without and with a part of a label's value in them.
func (s seriesOf) gathered(t *testing.T, part string) (all, with map[string]int, leftOut float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(s)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all, with = map[string]int{}, map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[f.GetName()]++
			v := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if v < 0 || math.IsNaN(v) {
				t.Errorf("%s is %v", f.GetName(), v)
			}
			if f.GetName() == "ledgermq_replica_series_left_out" {
				leftOut = v
			}
			for _, l := range m.GetLabel() {
				if strings.Contains(l.GetValue(), part) {
					with[f.GetName()]++
					break
				}
			}
		}
	}
	return all, with, leftOut
}

// A hundred thousand topics and consumer groups: their series have a bound and say what is left out, nothing is slow, and what is deleted
// leaves no series.
func TestSeriesAtScale(t *testing.T) {
	t.Parallel()
	const n = 50_000
	l := newTimerLoop(t)
	name := func(i int) (topic, group string) { return fmt.Sprintf("Topic%06d", i), fmt.Sprintf("Group%06d", i) }
	for i := range n {
		topic, group := name(i)
		l.r.proposeNow(state.RecordTopicPut, state.AppendTopicPut(nil, state.Put, state.Topic{Name: topic, ReadQueues: 4, WriteQueues: 4, Perm: 6}))
		l.r.proposeNow(state.RecordGroupPut, state.AppendGroupPut(nil, state.Create, state.DefaultGroup(group)))
		if i%1000 == 999 {
			l.all()
		}
	}
	for i := range n {
		topic, group := name(i)
		top, _ := l.r.st.Topic(topic)
		l.r.proposeNow(state.RecordOffsets, state.AppendOffsets(nil, []state.ConsumerOffset{{Group: group, Topic: top.ID, Queue: 0}, {Group: group, Topic: top.ID, Queue: 3}}))
		l.r.stats.add(tallyPut, "", top.ID, topic, 1, 1, time.Now())
		l.r.stats.add(tallyGet, group, top.ID, topic, 1, 1, time.Now())
		if i%1000 == 999 {
			l.all()
		}
	}
	began := time.Now()
	all, _, leftOut := seriesOf{l.r}.gathered(t, "")
	t.Logf("the series of %d topics and groups took %v", n, time.Since(began))
	total := 0
	for _, c := range all {
		total += c
	}
	if want := float64(len(l.r.st.Topics()) - maxTopicSeries + n - maxPairSeries); leftOut != want {
		t.Errorf("%v are said to be left out, want %v", leftOut, want)
	}
	if all["ledgermq_consumer_lag_messages"] != maxPairSeries || all["ledgermq_consumer_queue_lag_messages"] > maxQueueSeries || total > 2*maxTopicSeries+3*maxPairSeries+maxQueueSeries+1 {
		t.Errorf("%d series: %v", total, all)
	}
	if n := len(l.r.stats.tallies); n > maxTallies {
		t.Errorf("%d tallies", n)
	}
	for i := range 200 {
		if topic, group := name(i); i != 7 {
			l.r.proposeNow(state.RecordTopicDelete, state.AppendTopicDelete(nil, topic))
			l.r.proposeNow(state.RecordGroupDelete, state.AppendGroupDelete(nil, group, true))
		}
	}
	l.all()
	_, with, _ := seriesOf{l.r}.gathered(t, "ic0001")
	if with["ledgermq_topic_messages_in_total"] != 0 || with["ledgermq_consumer_lag_messages"] != 0 {
		t.Errorf("what was deleted has %v", with)
	}
	if _, with, _ := (seriesOf{l.r}).gathered(t, "000007"); with["ledgermq_topic_messages_in_total"] != 1 || with["ledgermq_consumer_lag_messages"] != 1 {
		t.Errorf("what is there has %v", with)
	}
}
