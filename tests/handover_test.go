package tests

import (
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
	eventually(t, 20*time.Second, "another master of g1", func() (bool, error) { return masterOf(t, c, "g1") != old, nil })
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

func (l *load) noneFailed(t *testing.T) {
	t.Helper()
	if n := l.failed.Load(); n > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Errorf("%d sends failed: %v", n, l.why)
	}
}

func TestHandOverTwoOfThree(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
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
}

func TestHandOverTwoOfTwo(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"})
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
}
