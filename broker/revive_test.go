package broker_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// All machines of a group that flushes asynchronously lose their power: none can prove what it holds. When each has told what it has, the
// one with the longest log goes on, and the others follow under new ids. It is marked as an unclean election, and happens again.
func TestAllLosePower(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	boot := 0
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		mu.Lock()
		defer mu.Unlock()
		o.BootID = fmt.Sprintf("boot-%d", boot)
	})
	c.makeGroup(&controllerpb.CreateGroupRequest{Name: "g1", Answers: 2, Members: 3, AsyncFlush: true})
	c.wire(c.master("g1"), "g1").topic("T", 4)
	all := []string{"n1", "n2", "n3"}
	for round := range 2 {
		c.wire(c.master("g1"), "g1").fill(8*round, 8, 1<<10)
		// The longest log is that of the master and one slave.
		behind := c.slave("g1")
		c.kill(behind)
		c.await("g1", func(g *controllerpb.Group) error {
			for _, r := range g.Replicas {
				if r.NodeId == behind && r.Voter {
					return fmt.Errorf("%s votes", behind)
				}
			}
			return nil
		})
		c.wire(c.master("g1"), "g1").fill(100+8*round, 8, 1<<10)
		want := c.wire(c.master("g1"), "g1").answers()
		for _, n := range all {
			if n != behind {
				c.kill(n)
			}
		}
		mu.Lock()
		boot++
		mu.Unlock()
		c.start(behind) // alone it must not be chosen
		c.await("g1", func(g *controllerpb.Group) error {
			if !strings.Contains(g.Stuck, "which is lost for ever") && !strings.Contains(g.Stuck, "not there") {
				return fmt.Errorf("stuck is %q", g.Stuck)
			}
			return nil
		})
		for _, n := range all {
			if n != behind {
				c.start(n)
			}
		}
		// The one that goes on knows that its last entry is committed when it leads, so what it answers as a follower may be less.
		c.await("g1", func(g *controllerpb.Group) error {
			last := g.Changes[len(g.Changes)-1]
			if g.UncleanElections != uint64(round+1) || !g.GetMaster().GetLive() || ids.Term(g.GetMaster().GetTerm()).Epoch() < ids.Epoch(last.Epoch) {
				return fmt.Errorf("%d unclean elections, last change %v, master %v", g.UncleanElections, last, g.GetMaster())
			}
			return nil
		})
		if got := c.wire(c.master("g1"), "g1").answers(); got != want {
			t.Fatalf("round %d: afterwards the group answers\n%s\nbefore\n%s", round, got, want)
		}
		c.wire(c.master("g1"), "g1").fill(200+8*round, 4, 1<<10)
		eventually(t, 90*time.Second, func() error {
			for _, n := range all {
				if err := c.nodes[n].Ready(); err != nil {
					return err
				}
			}
			return nil
		})
		c.await("g1", func(g *controllerpb.Group) error {
			for _, r := range g.Replicas {
				if !r.Voter {
					return fmt.Errorf("replica %d on %s does not vote", r.ReplicaId, r.NodeId)
				}
			}
			return nil
		})
	}
}
