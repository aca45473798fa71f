package tests

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// wipe removes the folders of all replicas of a node that does not run, as a new disk would.
func wipe(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(c.Dir, node, "groups", "*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no replica of %s in %s: %v", node, c.Dir, err)
	}
	for _, f := range folders {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
}

// replicaOn returns the id of the replica of g1 on a node.
func replicaOn(t *testing.T, c *cluster.Cluster, node string) (id uint64) {
	t.Helper()
	for _, g := range groups(t, c) {
		for _, r := range g.Replicas {
			if g.Name == "g1" && r.Node == node {
				id = r.ID
			}
		}
	}
	return id
}

// A replica whose disk was wiped never comes back under its id. A new one takes its place by itself, gets the whole log, and votes.
func TestWipedReplica(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"2-2", "2-3"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			nodes := []string{"n1", "n2", "n3"}[:mode[2]-'0']
			c := start(t, cluster.Options{Nodes: len(nodes), Groups: 1, Mode: mode})
			l := startOwnLoad(t, c, "Wiped", senders)
			l.awaitMore(t, 200, 60*time.Second)
			for _, victim := range []string{"n1", "n2"} { // a master, then a slave or the other master
				old := replicaOn(t, c, victim)
				kill(t, c, victim)
				voters(t, c, slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == victim })...)
				wipe(t, c, victim)
				restart(t, c, victim)
				voters(t, c, nodes...)
				if id := replicaOn(t, c, victim); id <= old {
					t.Errorf("the replica of %s has id %d, the lost one had %d", victim, id, old)
				}
				l.awaitMore(t, 100, 60*time.Second)
			}
			l.check(t, c)
		})
	}
}

// A node that never comes back: an operator gives its replica's place to another node. When the old one does come back its replica
// takes no part.
func TestReplaceNode(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Groups: 1, Mode: "2-3"})
	l := startOwnLoad(t, c, "Replace", senders)
	l.awaitMore(t, 200, 60*time.Second)
	admin := func(args ...string) error {
		_, err := c.Admin(within(t, 20*time.Second), args...)
		return err
	}
	for _, args := range [][]string{
		{"group", "replace", "g1", "--replica", "9"},
		{"group", "replace", "g1", "--replica", "3", "--on", "n9"},
		{"group", "replace", "g1", "--replica", "3", "--on", "n1"},
		{"group", "replace", "g9", "--replica", "3"},
	} {
		if err := admin(args...); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
	kill(t, c, "n3")
	voters(t, c, "n1", "n2")
	if err := admin("group", "replace", "g1", "--replica", "3", "--on", "n4", "--reason", "its disk is dead"); err != nil {
		t.Fatal(err)
	}
	voters(t, c, "n1", "n2", "n4")
	l.awaitMore(t, 100, 60*time.Second)
	// The last but one can be given up only while enough others vote.
	kill(t, c, "n2")
	voters(t, c, "n1", "n4")
	if err := admin("group", "replace", "g1", "--replica", "1", "--on", "n2"); err == nil {
		t.Error("a voter was given up below the min ISR")
	}
	restart(t, c, "n2")
	voters(t, c, "n1", "n2", "n4")
	restart(t, c, "n3") // it has no replica any more: its folder is kept aside
	eventually(t, time.Minute, "n3 learns that its replica was given up", func() (bool, error) {
		old, err := filepath.Glob(filepath.Join(c.Dir, "n3", "lost", "*-3"))
		return len(old) == 1, err
	})
	voters(t, c, "n1", "n2", "n4")
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
}
