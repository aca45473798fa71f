package tests

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// reboot makes the logs of a node that does not run tell of another boot of the machine, as after a loss of power: see the meta file in
// docs/format/commitlog.md. What was written is all there; the node cannot know that.
func reboot(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Dir, node, "groups", "*", "log", "meta"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no log of %s in %s: %v", node, c.Dir, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for slot := range slices.Chunk(b, 4096) {
			copy(slot[152:], "another boot of the machine that this node is on")
			binary.BigEndian.PutUint32(slot[4092:], crc32.Checksum(slot[:4092], crc32.MakeTable(crc32.Castagnoli)))
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A group that flushes asynchronously: killed processes lose nothing and keep their identities; a replica whose machine lost its power is
// followed by a new one; when no voters are left that could elect, the group waits and says so.
func TestAsyncFlush(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1, Args: []string{"--flush", "async"}})
	l := startOwnLoad(t, c, "Async", senders)
	l.awaitMore(t, 500, 60*time.Second)
	all := []string{"n1", "n2", "n3"}
	ids := map[string]uint64{}
	for _, n := range all {
		ids[n] = replicaOn(t, c, n)
	}
	kill(t, c, all...)
	restart(t, c, all...)
	voters(t, c, all...)
	l.awaitMore(t, 200, 60*time.Second)
	for _, n := range all {
		if id := replicaOn(t, c, n); id != ids[n] {
			t.Errorf("after a kill the replica of %s has id %d, it had %d", n, id, ids[n])
		}
	}
	kill(t, c, "n2")
	voters(t, c, "n1", "n3")
	reboot(t, c, "n2")
	restart(t, c, "n2")
	voters(t, c, all...)
	if id := replicaOn(t, c, "n2"); id <= ids["n2"] {
		t.Errorf("the replica of %s has id %d, the lost one had %d", "n2", id, ids["n2"])
	}
	l.awaitMore(t, 100, 60*time.Second)
	l.check(t, c)
	kill(t, c, all...)
	reboot(t, c, "n1")
	reboot(t, c, "n3")
	for _, n := range all {
		// A node with a replica that is lost is not ready, but it runs.
		if _, err := c.Run(within(t, time.Minute), "dev", "start", n, "--data", c.Dir, "--timeout", "2s"); err == nil && n != "n2" {
			t.Errorf("%s is ready", n)
		}
	}
	eventually(t, 30*time.Second, "the group says what it waits for", func() (bool, error) {
		for _, g := range groups(t, c) {
			if strings.Contains(g.Stuck, "which is lost for ever") {
				return true, nil
			}
		}
		return false, nil
	})
}
