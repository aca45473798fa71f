package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgermq/ledgermq/remoting"
)

// series are what a node serves, as name{label="value",…} without the labels of its own group, with their values.
func (c *cluster) series(node string) map[string]float64 {
	c.t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c.nodes[node])
	families, err := reg.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "group" {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// The lag of a group is what is behind its offsets, by queue and in all, and the age of the oldest; a queue without an offset has none, a
// slave has none, and those of a deleted group and topic are gone.
func TestGroupMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 2)
	for range 5 {
		w.ok(remoting.SendMessage, []byte("body"), sendFields("T")...)
	}
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.ok(remoting.PullMessage, nil, pullFields("cg", "T", 0)...)
	w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", "cg", "topic", "T", "queueId", "0", "commitOffset", "2")
	w.ok(remoting.SendMessage, []byte("again"), sendFields("%RETRY%cg")...)
	w.ok(remoting.ConsumerSendMsgBack, nil, "group", "cg", "offset", fmt.Sprint(records(t, w.ok(remoting.PullMessage, nil, pullFields("cg", "T", 0)...).Body)[0].PhysicalOffset), "delayLevel", "-1", "originMsgId", "x")
	pair := `{consumer_group="cg",topic="T"}`
	want := map[string]float64{
		`ledgermq_topic_messages_in_total{topic="T"}`: 5, `ledgermq_consumer_lag_messages` + pair: 3,
		`ledgermq_consumer_queue_lag_messages{consumer_group="cg",queue="0",topic="T"}`: 3,
		`ledgermq_consumer_in_flight_messages` + pair:                                   3, `ledgermq_consumer_messages_out_total` + pair: 10,
		`ledgermq_consumer_retries_total{consumer_group="cg"}`: 1, `ledgermq_consumer_dead_letters_total{consumer_group="cg"}`: 1,
		`ledgermq_consumer_dead_letters{consumer_group="cg"}`: 1, `ledgermq_replica_series_left_out{}`: 0,
	}
	eventually(t, 10*time.Second, func() error {
		have := c.series(master)
		for name, v := range want {
			if got, there := have[name]; !there || got != v {
				return fmt.Errorf("%s is %v (%v), want %v", name, got, there, v)
			}
		}
		return nil
	})
	have := c.series(master)
	if _, there := have[`ledgermq_consumer_queue_lag_messages{consumer_group="cg",queue="1",topic="T"}`]; there {
		t.Error("a queue without an offset has a lag")
	}
	if age, there := have[`ledgermq_consumer_oldest_seconds`+pair]; !there || age < 0 || age > 60 {
		t.Errorf("the oldest is %v s old (%v)", age, there)
	}
	for name := range c.series(c.besides(master)) {
		if strings.Contains(name, `topic=`) {
			t.Errorf("a slave has %s", name)
		}
	}
	// While a member broadcasts, which keeps its own offsets, the lag is not known.
	w.join("alone", "cg", "BROADCASTING", "T", "*")
	broadcasts := c.series(master)
	for name := range broadcasts {
		if strings.HasPrefix(name, "ledgermq_consumer_") && strings.HasSuffix(name, pair) && !strings.Contains(name, "messages_out") || strings.Contains(name, "queue_lag") && strings.Contains(name, `"cg"`) {
			t.Errorf("a group that broadcasts has %s", name)
		}
	}
	if v := broadcasts[`ledgermq_consumer_messages_out_total`+pair]; v != 10 {
		t.Errorf("a group that broadcasts was given %v messages", v)
	}
	w.ok(remoting.UnregisterClient, nil, "clientID", "alone", "consumerGroup", "cg")
	// The next master tells the same of what waits, though nobody has consumed from it yet.
	c.kill(master)
	master = c.masterOfTheRest("g1")
	w = c.wire(master, "g1")
	eventually(t, 10*time.Second, func() error {
		have := c.series(master)
		for _, name := range []string{`ledgermq_consumer_lag_messages` + pair, `ledgermq_consumer_queue_lag_messages{consumer_group="cg",queue="0",topic="T"}`,
			`ledgermq_consumer_dead_letters{consumer_group="cg"}`} {
			if got, there := have[name]; !there || got != want[name] {
				return fmt.Errorf("after a failover %s is %v (%v), want %v", name, got, there, want[name])
			}
		}
		if age, there := have[`ledgermq_consumer_oldest_seconds`+pair]; !there || age < 0 || age > 60 {
			return fmt.Errorf("after a failover the oldest is %v s old (%v)", age, there)
		}
		return nil
	})
	w.ok(remoting.UpdateConsumerOffset, nil, "consumerGroup", "cg", "topic", "T", "queueId", "0", "commitOffset", "5")
	if _, there := c.series(master)[`ledgermq_consumer_oldest_seconds`+pair]; there {
		t.Error("what is consumed has an age")
	}
	w.ok(remoting.DeleteSubscriptionGroup, nil, "groupName", "cg", "cleanOffset", "true")
	for name := range c.series(master) {
		if strings.Contains(name, `topic="T"`) && strings.Contains(name, `consumer_group="cg"`) {
			t.Errorf("a deleted group has %s", name)
		}
	}
	w.ok(remoting.DeleteTopicInBroker, nil, "topic", "T")
	for name := range c.series(master) {
		if strings.Contains(name, `topic="T"`) {
			t.Errorf("a deleted topic has %s", name)
		}
	}
}
