package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// These tests hold that a planned end of a master costs no send: SIGTERM hands over, and what clients with old routes still send to
// the old master reaches the new one through it.

// maxHandOver is the goal for the time without an OK in a hand-over, on a machine of its own. Tests share theirs with others.
const maxHandOver = 50 * time.Millisecond

// handOver ends the master of g1 with SIGTERM under load and returns its node when it has ended. The longest time without an OK is
// that of the hand-over alone, then that until the node has ended.
func handOver(t *testing.T, c *cluster.Cluster, l *load) string {
	t.Helper()
	l.awaitMore(t, 500, 30*time.Second)
	old := masterOf(t, c, "g1")
	l.gap.Store(0)
	began := time.Now()
	if err := c.Terminate(old); err != nil {
		t.Fatal(err)
	}
	awaitOtherMaster(t, c, old, 20*time.Second)
	l.awaitMore(t, 200, 30*time.Second)
	t.Logf("longest gap in the hand-over: %d ms (goal %v)", l.gap.Load(), maxHandOver)
	if gap := time.Duration(l.gap.Load()) * time.Millisecond; gap > 20*maxHandOver {
		t.Errorf("%v without an OK: that is no hand-over, but a failover", gap)
	}
	l.gap.Store(0)
	if err := c.Ended(within(t, time.Minute), old); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 35*time.Second {
		t.Errorf("%s ended after %v; stock clients look at their routes every 30 s", old, d)
	}
	l.awaitMore(t, 500, 30*time.Second)
	t.Logf("longest gap until its end: %d ms", l.gap.Load())
	return old
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"2-2", "2-3"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster.Options{Nodes: int(mode[2] - '0'), Groups: 1, Mode: mode})
			own := startOwnLoad(t, c, "HandOverOwn", senders)
			stock := startLoad(t, c, "HandOverStock", senders)
			stock.awaitMore(t, 100, 30*time.Second)
			old := handOver(t, c, own)
			stock.awaitMore(t, 500, 30*time.Second)
			own.end()
			stock.end()
			own.noneFailed(t)
			stock.noneFailed(t)
			restart(t, c, old)
			own.check(t, c)
			stock.check(t, c)
		})
	}
}

// A second signal ends a node that drains at once; so does the first one when nobody can take over.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	l := startOwnLoad(t, c, "SecondSignal", senders)
	l.awaitMore(t, 200, 30*time.Second)
	old := masterOf(t, c, "g1")
	if err := c.Terminate(old); err != nil {
		t.Fatal(err)
	}
	awaitOtherMaster(t, c, old, 20*time.Second)
	if m, err := c.Member(old); err != nil || !m.Running {
		t.Fatalf("%s does not forward: %v", old, err)
	}
	began := time.Now()
	if err := c.Terminate(old); err != nil {
		t.Fatal(err)
	}
	if err := c.Ended(within(t, 20*time.Second), old); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s ended %v after the second signal", old, time.Since(began))
	l.awaitMore(t, 200, 30*time.Second)
	l.end()
	l.noneFailed(t)
	restart(t, c, old)
	l.check(t, c)
}

func TestNobodyTakesOver(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 1, Groups: 1, Mode: "1-1", Args: []string{"--log-level", "info"}})
	if err := c.Terminate("n1"); err != nil {
		t.Fatal(err)
	}
	if err := c.Ended(within(t, 20*time.Second), "n1"); err != nil {
		t.Fatal(err)
	}
	if log := c.Logs(); !strings.Contains(log, "no other replica can take over") {
		t.Errorf("n1 does not say that nobody takes over:\n%s", log)
	}
	restart(t, c, "n1")
}

// An operator moves masters under load, and no send fails. What would lose something is refused.
func TestElect(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 2})
	own := startOwnLoad(t, c, "ElectOwn", senders/2)
	stock := startLoad(t, c, "ElectStock", senders/2)
	elect := func(args ...string) error {
		_, err := c.Admin(within(t, 30*time.Second), append([]string{"elect"}, args...)...)
		return err
	}
	for _, node := range []string{"n2", "n3", "n2", "n2"} {
		own.gap.Store(0)
		if err := elect("g1", "--node", node); err != nil {
			t.Fatal(err)
		}
		if m := masterOf(t, c, "g1"); m != node {
			t.Errorf("elected %s, the master is %s", node, m)
		}
		own.awaitMore(t, 100, 30*time.Second)
		stock.awaitMore(t, 100, 30*time.Second)
		t.Logf("longest gap: %d ms", own.gap.Load())
	}
	var balance []struct{ Group, Before, Master, Error string }
	if err := c.AdminJSON(within(t, time.Minute), &balance, "rebalance"); err != nil {
		t.Fatal(err)
	}
	if len(balance) != 2 || balance[0].Before != "n2" || balance[0].Master != "n1" || balance[1].Master != "n2" {
		t.Errorf("rebalance: %+v", balance)
	}
	own.awaitMore(t, 100, 30*time.Second)
	stock.awaitMore(t, 100, 30*time.Second)
	own.end()
	stock.end()
	own.noneFailed(t)
	stock.noneFailed(t)

	refused(t, elect("nobody", "--node", "n1"), 1, "does not exist")
	refused(t, elect("g1", "--node", "n9"), 1, "no replica on node")
	kill(t, c, "n3")
	voters(t, c, "n1", "n2")
	refused(t, elect("g1", "--node", "n3"), 1, "not a voter")
	restart(t, c, "n3")
	voters(t, c, "n1", "n2", "n3")
	own.check(t, c)
	stock.check(t, c)
}
