package tests

import (
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// Each test loads a cluster through the official Go client, breaks one member under that load, waits until sends go on, mends
// what was broken, and then finds every message that was answered OK on every replica. A stock client that loses its master
// retries in another group at once, which is why the clusters have three.

const senders = 8

func TestKillMaster(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startLoad(t, c, "KillMaster", senders)
	l.awaitMore(t, 200, 30*time.Second)
	for range 2 {
		node := masterOf(t, c, "g1")
		kill(t, c, node)
		l.awaitMore(t, 200, 60*time.Second)
		awaitOtherMaster(t, c, node, 30*time.Second)
		restart(t, c, node)
		l.awaitMore(t, 100, 60*time.Second)
	}
	l.check(t, c)
}

func TestPauseMaster(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startLoad(t, c, "PauseMaster", senders)
	l.awaitMore(t, 200, 30*time.Second)
	node := masterOf(t, c, "g1")
	if err := c.Pause(node); err != nil {
		t.Fatal(err)
	}
	awaitOtherMaster(t, c, node, 30*time.Second)
	l.awaitMore(t, 200, 60*time.Second)
	// The old master wakes up in the middle of what it was doing, and must find out that its time is over.
	if err := c.Resume(node); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 200, 60*time.Second)
	l.check(t, c)
}

func TestKillSlave(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	l := startLoad(t, c, "KillSlave", senders)
	l.awaitMore(t, 200, 30*time.Second)
	master := masterOf(t, c, "g1")
	slave := "n2"
	if master == slave {
		slave = "n3"
	}
	kill(t, c, slave)
	l.awaitMore(t, 500, 60*time.Second)
	if now := masterOf(t, c, "g1"); now != master {
		t.Errorf("the master went from %s to %s although only a slave died", master, now)
	}
	restart(t, c, slave)
	l.awaitMore(t, 200, 60*time.Second)
	l.noneFailed(t) // the master lived
	l.check(t, c)
}

func TestKillController(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startLoad(t, c, "KillController", senders)
	l.awaitMore(t, 200, 30*time.Second)
	node := masterOf(t, c, "g1")
	kill(t, c, "c1")
	l.awaitMore(t, 500, 60*time.Second)
	// Without a controller a group still elects a master by itself.
	kill(t, c, node)
	l.awaitMore(t, 300, 60*time.Second)
	restart(t, c, node)
	restart(t, c, "c1")
	if now := masterOf(t, c, "g1"); now == node {
		t.Errorf("%s is master of g1 again; nobody moves a master back", node)
	}
	l.check(t, c)
}

func TestKillNameServer(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startLoad(t, c, "KillNameServer", senders)
	l.awaitMore(t, 200, 30*time.Second)
	kill(t, c, "ns1")
	l.awaitMore(t, 1000, 60*time.Second)
	l.noneFailed(t) // only the name server is dead
	restart(t, c, "ns1")
	l.awaitMore(t, 200, 60*time.Second)
	l.check(t, c)
}

// TestKillEverything ends all nodes at once under load and starts them again: what was answered OK was on disks.
func TestKillEverything(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startLoad(t, c, "KillEverything", senders)
	l.awaitMore(t, 500, 60*time.Second)
	nodes := []string{"n1", "n2", "n3"}
	kill(t, c, nodes...)
	restart(t, c, nodes...)
	l.awaitMore(t, 100, 90*time.Second)
	l.check(t, c)
}

// TestNameServersDeadForTwoMinutes holds that running clients go on with the routes that they have: sending and consuming.
func TestNameServersDeadForTwoMinutes(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Args: []string{"--namesrv-count", "2"}})
	l := startPacedLoad(t, c, "NoNameServer", 2, 20*time.Millisecond)
	l.awaitMore(t, 50, 30*time.Second)
	received := startConsumer(t, c, "NoNameServer", "readers")
	awaitReceived := func(n int64) {
		t.Helper()
		from := received.Load()
		eventually(t, time.Minute, "more consumed messages", func() (bool, error) { return received.Load() >= from+n, nil })
	}
	awaitReceived(50)
	kill(t, c, "ns1", "ns2")
	for dead := time.Now(); time.Since(dead) < 2*time.Minute; {
		l.awaitMore(t, 50, 30*time.Second)
		awaitReceived(50)
	}
	l.noneFailed(t) // only name servers are dead
	restart(t, c, "ns1", "ns2")
	l.check(t, c)
}
