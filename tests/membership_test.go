package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// These tests hold what a mode promises: which failures it survives, one after another, with and without the controller.
// Each loads one group, and at the end finds every message that was answered OK on every replica.

// voters waits until the group's SyncStateSet is on these nodes, and a master leads in it.
func voters(t *testing.T, c *cluster.Cluster, want ...string) {
	t.Helper()
	eventually(t, time.Minute, "the voters", func() (bool, error) {
		for _, g := range groups(t, c) {
			if g.Name != "g1" || g.Master == nil || !g.Master.Live || g.ActiveEpoch != g.Epoch {
				continue
			}
			var have []string
			for _, r := range g.Replicas {
				if r.Voter {
					have = append(have, r.Node)
				}
			}
			return slices.Equal(have, want), nil
		}
		return false, nil
	})
}

// Mode 2-2: both replicas have every message, and either one goes on alone.
func TestTwoOfTwo(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"})
	firstLeads(t, c, "g1", "n1")
	l := startOwnLoad(t, c, "TwoOfTwo", senders)
	l.awaitMore(t, 200, 30*time.Second)
	kill(t, c, "n1") // the master
	voters(t, c, "n2")
	l.awaitMore(t, 200, 60*time.Second)
	restart(t, c, "n1")
	voters(t, c, "n1", "n2")
	l.awaitMore(t, 200, 60*time.Second)
	kill(t, c, "n1") // now a slave
	voters(t, c, "n2")
	l.awaitMore(t, 200, 60*time.Second)
	restart(t, c, "n1")
	voters(t, c, "n1", "n2")
	kill(t, c, "n2") // the master, the only one that was there all the time
	voters(t, c, "n1")
	l.awaitMore(t, 200, 60*time.Second)
	restart(t, c, "n2")
	voters(t, c, "n1", "n2")
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
}

// Mode 2-2, one after the other: the first one to die lacks what the last one took alone, and must not lead without it.
func TestTwoOfTwoBothDead(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"})
	firstLeads(t, c, "g1", "n1")
	l := startOwnLoad(t, c, "BothDead", senders)
	l.awaitMore(t, 200, 30*time.Second)
	kill(t, c, "n2")
	voters(t, c, "n1")
	l.awaitMore(t, 200, 60*time.Second)
	kill(t, c, "n1")
	restart(t, c, "n2")
	eventually(t, 30*time.Second, "n2 waits for n1", func() (bool, error) {
		for _, g := range groups(t, c) {
			if g.Name == "g1" && g.Stuck != "" && (g.Master == nil || !g.Master.Live) {
				return true, nil
			}
		}
		return false, nil
	})
	restart(t, c, "n1")
	voters(t, c, "n1", "n2")
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
}

// Mode 2-2 without the controller: it has the deciding vote, so a lost replica stops sends until it is back.
func TestTwoOfTwoWithoutController(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"})
	firstLeads(t, c, "g1", "n1")
	l := startOwnLoad(t, c, "NoController", senders)
	l.awaitMore(t, 200, 30*time.Second)
	kill(t, c, "c1")
	l.awaitMore(t, 500, 60*time.Second) // both replicas live: nothing else stops
	kill(t, c, "n2")
	l.awaitStop(t, 30*time.Second)
	restart(t, c, "c1")
	voters(t, c, "n1")
	l.awaitMore(t, 200, 60*time.Second)
	restart(t, c, "n2")
	voters(t, c, "n1", "n2")
	l.check(t, c)
}

// Mode 2-3 with a min ISR of one: two replicas are lost one after the other, and the last one goes on.
func TestOneAfterAnother(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1, MinISR: 1})
	firstLeads(t, c, "g1", "n1")
	l := startOwnLoad(t, c, "OneByOne", senders)
	l.awaitMore(t, 200, 30*time.Second)
	kill(t, c, "n1")
	voters(t, c, "n2", "n3")
	l.awaitMore(t, 200, 60*time.Second)
	master := masterOf(t, c, "g1")
	last := "n2"
	if master == "n2" {
		last = "n3"
	}
	kill(t, c, master)
	voters(t, c, last)
	l.awaitMore(t, 200, 60*time.Second)
	restart(t, c, "n1", master)
	voters(t, c, "n1", "n2", "n3")
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
}

// A paused replica of two loses its place, and finds out when it wakes up: what it does then counts for nothing.
func TestTwoOfTwoPause(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2, Groups: 1, Mode: "2-2"})
	firstLeads(t, c, "g1", "n1")
	l := startOwnLoad(t, c, "PauseTwo", senders)
	l.awaitMore(t, 200, 30*time.Second)
	if err := c.Pause("n1"); err != nil {
		t.Fatal(err)
	}
	voters(t, c, "n2")
	l.awaitMore(t, 200, 60*time.Second)
	if err := c.Resume("n1"); err != nil {
		t.Fatal(err)
	}
	voters(t, c, "n1", "n2")
	l.awaitMore(t, 200, 60*time.Second)
	l.check(t, c)
}
