package broker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker"
)

// A replica whose disk was wiped after the group gave up the front of its log gets the state of its master, begins its log at the
// master's front, and answers like the others: also after it was killed in the middle, and after a restart.
func TestCatchUpBehindTheFront(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		o.RetentionBytes, o.CheckpointBytes, o.Logger = 1<<20, 18<<20, zerolog.New(&log)
	}, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 60, 1<<20)
	node := c.slave("g1")
	gone := func(node string) error {
		logs, err := filepath.Glob(filepath.Join(c.dir, node, "groups", "*", "log", "*.log"))
		if err != nil || len(logs) == 0 || filepath.Base(logs[0]) == "00000000000000000000.log" {
			return fmt.Errorf("%s has %v (%v)", node, logs, err)
		}
		return nil
	}
	eventually(t, 40*time.Second, func() error { return gone(c.master("g1")) })
	dir := c.groupDir(node)
	c.kill(node)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	w.fill(60, 4, 1<<10)
	c.start(node)
	caughtUp := func() {
		t.Helper()
		eventually(t, 60*time.Second, func() error {
			if err := gone(node); err != nil {
				return err // the replica is closed once more before its log begins anew
			}
			if err := c.nodes[node].Ready(); err != nil {
				return err
			}
			r := c.nodes[node].Replica("g1")
			if r == nil || r.CatchingUp() {
				return fmt.Errorf("%s catches up", node)
			}
			s, m := c.wire(node, "g1"), c.wire(c.master("g1"), "g1")
			if got, want := s.answers(), m.answers(); got != want {
				return fmt.Errorf("it answers\n%s\nthe master\n%s", got, want)
			}
			return nil
		})
	}
	caughtUp()
	if told := log.String(); !strings.Contains(told, "the log begins anew at the front of the master's") ||
		!strings.Contains(told, "the log reaches the state snapshot of the master") {
		t.Errorf("the log does not tell of it:\n%s", told)
	}
	for _, clean := range []bool{true, false} {
		if clean {
			c.stop(node)
		} else {
			c.kill(node)
		}
		c.start(node)
		caughtUp()
	}
	w.fill(64, 4, 1<<10)
	caughtUp()
}
