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
		if err := c.Kill(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		l.awaitMore(t, 200, 60*time.Second)
		// The controller believes a node for a second after its last heartbeat.
		eventually(t, 30*time.Second, "another master of g1", func() (bool, error) { return masterOf(t, c, "g1") != node, nil })
		if err := c.Restart(within(t, time.Minute), node); err != nil {
			t.Fatal(err)
		}
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
	eventually(t, 30*time.Second, "another master of g1", func() (bool, error) { return masterOf(t, c, "g1") != node, nil })
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
	if err := c.Kill(t.Context(), slave); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 500, 60*time.Second)
	if now := masterOf(t, c, "g1"); now != master {
		t.Errorf("the master went from %s to %s although only a slave died", master, now)
	}
	if err := c.Restart(within(t, time.Minute), slave); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 200, 60*time.Second)
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d sends failed although the master lived", n)
	}
	l.check(t, c)
}

func TestKillController(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startLoad(t, c, "KillController", senders)
	l.awaitMore(t, 200, 30*time.Second)
	node := masterOf(t, c, "g1")
	if err := c.Kill(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 500, 60*time.Second)
	// Without a controller a group still elects a master by itself.
	if err := c.Kill(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 300, 60*time.Second)
	if err := c.Restart(within(t, time.Minute), node); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(within(t, time.Minute), "c1"); err != nil {
		t.Fatal(err)
	}
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
	if err := c.Kill(t.Context(), "ns1"); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(t, 1000, 60*time.Second)
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d sends failed although only the name server is dead", n)
	}
	if err := c.Restart(within(t, time.Minute), "ns1"); err != nil {
		t.Fatal(err)
	}
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
	for _, id := range nodes {
		if err := c.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range nodes {
		if err := c.Restart(within(t, time.Minute), id); err != nil {
			t.Fatal(err)
		}
	}
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
	for _, id := range []string{"ns1", "ns2"} {
		if err := c.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for dead := time.Now(); time.Since(dead) < 2*time.Minute; {
		l.awaitMore(t, 50, 30*time.Second)
		awaitReceived(50)
	}
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d sends failed although only name servers are dead: %v", n, l.why)
	}
	for _, id := range []string{"ns1", "ns2"} {
		if err := c.Restart(within(t, time.Minute), id); err != nil {
			t.Fatal(err)
		}
	}
	l.check(t, c)
}
