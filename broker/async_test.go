package broker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// identity reads which replica a folder is of, and why it was given up.
func identity(dir string) (id uint64, lost string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "replica.json"))
	if err != nil {
		return 0, "", err
	}
	var f struct {
		Replica uint64 `json:"replica"`
		Lost    string `json:"lost"`
	}
	err = json.Unmarshal(b, &f)
	return f.Replica, f.Lost, err
}

// back waits until the node takes part again, with a replica that follows the one before, or with the same one.
func (c *cluster) back(node string, before uint64, follows bool) (id uint64) {
	c.t.Helper()
	dir := c.groupDir(node)
	eventually(c.t, 60*time.Second, func() (err error) {
		if id, _, err = identity(dir); err != nil || follows && id <= before {
			return fmt.Errorf("the folder of replica %d has replica %d (%v)", before, id, err)
		}
		if !follows && id != before {
			c.t.Fatalf("replica %d is followed by %d, and nothing is lost", before, id)
		}
		return c.nodes[node].Ready()
	})
	return id
}

// lostWhy is why a replica of a node was given up, as its folder remembers.
func (c *cluster) lostWhy(node string, id uint64) string {
	c.t.Helper()
	_, why, err := identity(filepath.Join(c.dir, node, broker.LostFolder, fmt.Sprintf("%s-%d", filepath.Base(c.groupDir(node)), id)))
	if err != nil {
		c.t.Fatal(err)
	}
	return why
}

// A replica of a group that flushes asynchronously keeps its identity over the end of its process and over a clean stop, and loses it
// with the power, and with a failed sync: what it acknowledged may be gone then. The group goes on, and the one that follows
// learns everything.
func TestAsyncFlush(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex
		boots = map[string]int{}
		syncs atomic.Pointer[string] // the node whose log cannot be synced the next time
	)
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		mu.Lock()
		defer mu.Unlock()
		node := string(o.ID)
		o.BootID = fmt.Sprintf("boot-%d", boots[node])
		o.FS = vfs.Inject(vfs.OS, func(op vfs.Op, name string, _ int64, _ int) error {
			if n := syncs.Load(); op == vfs.OpSync && n != nil && *n == node && strings.HasSuffix(name, ".log") && syncs.CompareAndSwap(n, nil) {
				return errors.New("injected")
			}
			return nil
		})
	})
	reboot := func(node string) {
		mu.Lock()
		defer mu.Unlock()
		boots[node]++
	}
	c.makeGroup(&controllerpb.CreateGroupRequest{Name: "g1", Answers: 2, Members: 3, AsyncFlush: true})
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 8, 1<<10)
	node := c.slave("g1")
	id, _, err := identity(c.groupDir(node))
	if err != nil {
		t.Fatal(err)
	}

	c.kill(node)
	w.fill(8, 8, 1<<10)
	c.start(node)
	c.back(node, id, false)

	c.stop(node)
	reboot(node)
	c.start(node)
	c.back(node, id, false)

	c.kill(node)
	reboot(node)
	w.fill(16, 8, 1<<10)
	c.start(node)
	next := c.back(node, id, true)
	if why := c.lostWhy(node, id); !strings.Contains(why, "what it acknowledged last may be lost") {
		t.Errorf("after a power cut the folder of replica %d says %q", id, why)
	}

	syncs.Store(&node)
	w.fill(24, 8, 1<<10)
	eventually(t, 20*time.Second, func() error { // until the failure was met
		if now, why, err := identity(c.groupDir(node)); err == nil && now == next && why == "" {
			return errors.New("the failed sync was not noticed")
		}
		return nil
	})
	last := c.back(node, next, true)
	if why := c.lostWhy(node, next); !strings.Contains(why, "what was acknowledged and not synced may be lost") {
		t.Errorf("after a failed sync the folder of replica %d says %q", next, why)
	}
	w.fill(32, 8, 1<<10)
	c.await("g1", func(g *controllerpb.Group) error {
		for _, r := range g.Replicas {
			if r.ReplicaId == last && r.Voter && g.AsyncFlush {
				return nil
			}
		}
		return fmt.Errorf("replica %d does not vote: %v", last, g)
	})
	want := c.wire(c.master("g1"), "g1").answers()
	for _, node := range []string{"n1", "n2", "n3"} {
		s := c.wire(node, "g1")
		eventually(t, 20*time.Second, func() error {
			if got := s.answers(); got != want {
				return fmt.Errorf("%s answers\n%s\nthe master\n%s", node, got, want)
			}
			return nil
		})
	}
}

// What proves that something is missing: each is a lost identity, and a new replica follows.
func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 8, 1<<10)
	sent := 8
	for _, m := range []struct {
		name, why string
		harm      func(log string) error
	}{
		{"both slots of the meta file are bad", "the meta file is lost", func(log string) error {
			return os.WriteFile(filepath.Join(log, "meta"), make([]byte, 8192), 0o600)
		}},
		{"the log is shorter than it promised", "lost tail", func(log string) error {
			return os.Truncate(filepath.Join(log, "00000000000000000000.log"), 4096)
		}},
		{"the log was wiped", "no log here", os.RemoveAll},
	} {
		node := c.slave("g1")
		dir := c.groupDir(node)
		id, _, err := identity(dir)
		if err != nil {
			t.Fatal(err)
		}
		c.stop(node)
		if err := m.harm(filepath.Join(dir, "log")); err != nil {
			t.Fatal(err)
		}
		c.start(node)
		c.back(node, id, true)
		if why := c.lostWhy(node, id); !strings.Contains(why, m.why) {
			t.Errorf("%s: the folder says %q", m.name, why)
		}
		w.fill(sent, 4, 1<<10)
		sent += 4
	}
}
