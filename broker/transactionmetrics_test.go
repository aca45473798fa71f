package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// The metrics of transactions are what is pending and how it ended, on each replica; what only a master can tell is absent on the others,
// and what is not there is no 0. A failover changes none of it.
func TestTransactionMetrics(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.TransactionCheckInterval = time.Millisecond }, "g1")
	first := c.master("g1")
	w := c.wire(first, "g1")
	w.topic("T", 1)
	const oldest = `ledgermq_replica_transaction_oldest_pending_seconds{}`
	if v, there := c.series(first)[oldest]; there {
		t.Errorf("nothing is pending, and the oldest is %v s old", v)
	}
	a, b, again := w.half("A"), w.half("B"), w.half("C")
	w.half("D") // stays
	w.halfOf("stuck", "S", "0")
	for x, end := range map[tx]int32{a: message.SysCommit, b: message.SysRollback, again: message.SysCommit} {
		for range 2 { // the second one changes nothing
			if resp := w.end(x, end); resp.Code != remoting.Success {
				t.Fatal(resp.Code, resp.Remark)
			}
		}
	}
	p := c.producer(first, "stuck")
	for range 15 {
		p.question()
	}
	want := map[string]float64{
		`ledgermq_replica_transactions_pending{}`: 2, `ledgermq_replica_transactions_given_up{}`: 1, `ledgermq_replica_half_messages_total{}`: 5,
		`ledgermq_replica_transactions_ended_total{decision="commit"}`: 2, `ledgermq_replica_transactions_ended_total{decision="rollback"}`: 1,
	}
	check := func(node string, checks float64) {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			have := c.series(node)
			for name, v := range want {
				if got, there := have[name]; !there || got != v {
					return fmt.Errorf("%s: %s is %v (%v), want %v", node, name, got, there, v)
				}
			}
			if got := have[`ledgermq_replica_transaction_checks_total{}`]; got != checks {
				return fmt.Errorf("%s has sent %v checks, want %v", node, got, checks)
			}
			return nil
		})
	}
	check(first, 15)
	slave := c.besides(first)
	check(slave, 0)
	if v, there := c.series(slave)[oldest]; there {
		t.Errorf("a slave says that the oldest is %v s old", v)
	}
	if v, there := c.series(first)[oldest]; !there || v <= 0 || v > 120 {
		t.Errorf("the oldest is %v s old (%v)", v, there)
	}
	c.kill(first)
	next := c.masterOfTheRest("g1")
	check(next, 0)
	eventually(t, 20*time.Second, func() error {
		if v, there := c.series(next)[oldest]; !there || v <= 0 {
			return fmt.Errorf("the oldest is %v s old (%v)", v, there)
		}
		return nil
	})
}

// A group that nobody uses does not grow, whatever waits in it: a message for its time, a transaction for its end, a consumer for a message.
func TestIdleGroupDoesNotGrow(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	node := c.master("g1")
	w := c.wire(node, "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.ok(remoting.SendMessage, []byte("later"), sendFields("T", "properties", props("TIMER_DELAY_SEC", "3600"))...)
	w.halfOf("nobody", "N", "0")
	w.lock("a", 0)
	c.wire(node, "g1").start(remoting.PullMessage, nil, pullFields("cg", "T", 0, "sysFlag", "6", "suspendTimeoutMillis", "15000")...)
	end := func() float64 { return c.metric(node, "ledgermq_replica_end_offset_bytes") }
	before := end()
	at := time.Now().Add(5 * time.Second)
	eventually(t, 20*time.Second, func() error { return until(at) })
	if grown := end() - before; grown > 4096 {
		t.Errorf("in 5 s without a request the log grew by %v bytes", grown)
	}
}
