package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/remoting"
)

// lockedBuffer takes the log lines of several nodes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// groupDir is the folder of a node's only replica.
func (c *cluster) groupDir(node string) string {
	c.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(c.dir, node, "groups", "*"))
	if err != nil || len(dirs) != 1 {
		c.t.Fatalf("node %s has the group folders %v (%v), want one", node, dirs, err)
	}
	return dirs[0]
}

// answers is all that a replica tells of the topic T with four queues.
func (w *wire) answers() string {
	w.t.Helper()
	var b strings.Builder
	for q := range 4 {
		for off := int64(0); ; {
			resp := w.call(remoting.PullMessage, nil, pullFields("cg", "T", off, "queueId", strconv.Itoa(q))...)
			if _, told := resp.Get("nextBeginOffset"); !told {
				fmt.Fprintf(&b, "queue %d from %d: code %d %q\n", q, off, resp.Code, resp.Remark)
				break
			}
			fmt.Fprintf(&b, "queue %d from %d: code %d min %d max %d\n", q, off, resp.Code, number(w.t, resp, "minOffset"), number(w.t, resp, "maxOffset"))
			next := number(w.t, resp, "nextBeginOffset")
			for _, m := range records(w.t, resp.Body) {
				fmt.Fprintf(&b, "  %d at %d: %d bytes, %s\n", m.QueueOffset, m.PhysicalOffset, len(m.Body), m.Body[:min(len(m.Body), 8)])
			}
			if next <= off {
				break
			}
			off = next
		}
	}
	for _, key := range []string{"k0", "k1", "k2", "every"} {
		resp := w.call(remoting.QueryMessage, nil, "topic", "T", "key", key, "maxNum", "64", "beginTimestamp", "0", "endTimestamp", strconv.FormatInt(1<<63-1, 10))
		fmt.Fprintf(&b, "key %s: code %d", key, resp.Code)
		for _, m := range records(w.t, resp.Body) {
			fmt.Fprintf(&b, " %d/%d", m.QueueID, m.QueueOffset)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// fill sends n messages of size bytes over the four queues of T, with two keys each.
func (w *wire) fill(from, n, size int) {
	w.t.Helper()
	body := bytes.Repeat([]byte("."), size)
	for i := from; i < from+n; i++ {
		copy(body, fmt.Sprintf("%08d", i))
		// A busy machine may change the master in between; the old one then passes the send on.
		eventually(w.t, 20*time.Second, func() error {
			resp := w.call(remoting.SendMessage, body, sendFields("T", "queueId", strconv.Itoa(i%4), "properties", fmt.Sprintf("KEYS\x01k%d every\x02", i%50))...)
			if resp.Code == remoting.Success {
				return nil
			}
			if !strings.HasPrefix(resp.Remark, "[NOT_STORED]") {
				w.t.Fatalf("send %d: code %d %q", i, resp.Code, resp.Remark)
			}
			return fmt.Errorf("send %d: %q", i, resp.Remark)
		})
	}
}

func removeFiles(t *testing.T, pattern string) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatalf("nothing matches %s: the test would prove nothing", pattern)
	}
	for _, n := range names {
		if err := os.RemoveAll(n); err != nil {
			t.Fatal(err)
		}
	}
}

// Without its index, and before the first cut without its snapshots too, a replica starts and answers the same.
func TestDerivedFilesCanBeDeleted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 60, 40<<10) // more than two checkpoints of 1 MiB
	node := c.slave("g1")
	s := c.wire(node, "g1")
	want := w.answers()
	eventually(t, 10*time.Second, func() error {
		if got := s.answers(); got != want {
			return fmt.Errorf("the slave answers\n%s\nthe master\n%s", got, want)
		}
		return nil
	})
	sent := 60
	for name, remove := range map[string]func(dir string){
		"index":     func(dir string) { removeFiles(t, filepath.Join(dir, "index", "*")) },
		"snapshots": func(dir string) { removeFiles(t, filepath.Join(dir, "state-*")) },
		"index and snapshots": func(dir string) {
			removeFiles(t, filepath.Join(dir, "index", "*"))
			removeFiles(t, filepath.Join(dir, "state-*"))
		},
	} {
		for _, clean := range []bool{true, false} {
			dir := c.groupDir(node)
			w := c.wire(c.master("g1"), "g1")
			w.fill(sent, 60, 40<<10) // at least one checkpoint more
			sent += 60
			want := w.answers()
			eventually(t, 20*time.Second, func() error {
				index, _ := filepath.Glob(filepath.Join(dir, "index", "*"))
				snapshots, _ := filepath.Glob(filepath.Join(dir, "state-*"))
				if len(index) == 0 || len(snapshots) == 0 {
					return fmt.Errorf("no checkpoint yet: %v %v", index, snapshots)
				}
				return nil
			})
			if clean {
				c.stop(node)
			} else {
				c.kill(node)
			}
			remove(dir)
			c.start(node)
			eventually(t, 20*time.Second, func() error { return c.nodes[node].Ready() })
			s := c.wire(node, "g1")
			eventually(t, 20*time.Second, func() error {
				if resp := s.call(remoting.PullMessage, nil, pullFields("cg", "T", 0)...); resp.Code != remoting.Success {
					return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
				}
				if got := s.answers(); got != want {
					return fmt.Errorf("without its %s (clean stop: %v) it answers\n%s\nbefore\n%s", name, clean, got, want)
				}
				return nil
			})
		}
	}
}

// Old segments go when the group agrees, the least offsets move with them, and the state's snapshots are primary data from
// then on: a replica that lost both does not serve before it has one of another replica. A file of the index that cannot be removed stops none of it.
func TestRetention(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	stuck := vfs.Inject(vfs.OS, func(op vfs.Op, name string, _ int64, _ int) error {
		if op == vfs.OpRemove && strings.HasSuffix(name, "/index/00000000000000000000.idx") {
			return io.ErrNoProgress
		}
		return nil
	})
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		o.RetentionBytes, o.FS, o.Logger = 20<<20, stuck, zerolog.New(&log)
	}, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 60, 1<<20)
	var first int64
	eventually(t, 40*time.Second, func() error {
		first = number(t, w.ok(remoting.GetMinOffset, nil, "topic", "T", "queueId", "0"), "offset")
		if first == 0 {
			return fmt.Errorf("the queue still begins at 0")
		}
		return nil
	})
	for _, node := range []string{"n1", "n2", "n3"} {
		s := c.wire(node, "g1")
		eventually(t, 20*time.Second, func() error {
			logs, err := filepath.Glob(filepath.Join(c.groupDir(node), "log", "00000000000000000000.log"))
			if err != nil || len(logs) > 0 {
				return fmt.Errorf("%s still has %v (%v)", node, logs, err)
			}
			resp := s.call(remoting.PullMessage, nil, pullFields("cg", "T", 0)...)
			if resp.Code != remoting.PullOffsetMoved || number(t, resp, "nextBeginOffset") != number(t, resp, "minOffset") {
				return fmt.Errorf("below the front %s answers code %d, next %d", node, resp.Code, number(t, resp, "nextBeginOffset"))
			}
			return nil
		})
	}
	eventually(t, 20*time.Second, func() error { // the segments go a moment before the line is written
		if told := log.String(); !strings.Contains(told, "segments that the group gave up cannot be removed") || strings.Contains(told, "cannot write a checkpoint") {
			return fmt.Errorf("a file of the index cannot be removed, and the log says:\n%s", told)
		}
		return nil
	})
	node := c.slave("g1")
	c.stop(node)
	removeFiles(t, filepath.Join(c.groupDir(node), "index", "*"))
	c.start(node)
	s := c.wire(node, "g1")
	eventually(t, 20*time.Second, func() error {
		if err := c.nodes[node].Ready(); err != nil {
			return err
		}
		if got, want := s.answers(), w.answers(); got != want { // the front may have moved on
			return fmt.Errorf("after a restart without index it answers\n%s\nthe master\n%s", got, want)
		}
		return nil
	})
	dir := c.groupDir(node)
	c.stop(node)
	removeFiles(t, filepath.Join(dir, "state-*"))
	c.start(node)
	// It gets a snapshot of another replica, and answers as before.
	stateless := func() {
		t.Helper()
		eventually(t, 40*time.Second, func() error {
			if err := c.nodes[node].Ready(); err != nil {
				return err
			}
			if r := c.nodes[node].Replica("g1"); r == nil || r.CatchingUp() {
				return fmt.Errorf("%s catches up", node)
			}
			if got, want := c.wire(node, "g1").answers(), c.wire(c.master("g1"), "g1").answers(); got != want {
				return fmt.Errorf("without its own state it answers\n%s\nthe master\n%s", got, want)
			}
			return nil
		})
	}
	stateless()
	if n := c.nodes[node].Repairs("g1"); n != 1 {
		t.Errorf("%d repairs, want 1", n)
	}
	// Also when the log lacks what the snapshot contains.
	c.kill(node)
	w.fill(5000, 40, 1<<20)
	removeFiles(t, filepath.Join(dir, "*.snap")) // that of the other one too
	c.start(node)
	stateless()
	w.fill(6000, 4, 1<<10)
	stateless()
}

// After a cut either of the two state snapshots is enough: the log reaches back to the older one.
func TestEitherSnapshotServesAfterACut(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.RetentionBytes, o.CheckpointBytes = 1<<20, 18<<20 }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 45, 1<<20)
	node := c.slave("g1")
	dir := c.groupDir(node)
	var snapshots []string
	eventually(t, 40*time.Second, func() error {
		snapshots, _ = filepath.Glob(filepath.Join(dir, "state-*.snap"))
		logs, err := filepath.Glob(filepath.Join(dir, "log", "00000000000000000000.log"))
		if err != nil || len(logs) > 0 || len(snapshots) < 2 {
			return fmt.Errorf("%s still has %v, and the snapshots %v (%v)", node, logs, snapshots, err)
		}
		return nil
	})
	c.kill(node)
	newest := snapshots[len(snapshots)-1]
	b, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(newest, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c.start(node)
	s := c.wire(node, "g1")
	eventually(t, 20*time.Second, func() error {
		if err := c.nodes[node].Ready(); err != nil {
			return err
		}
		if got, want := s.answers(), w.answers(); got != want { // the front may have moved on
			return fmt.Errorf("with its older snapshot it answers\n%s\nthe master\n%s", got, want)
		}
		return nil
	})
}

// A wiped disk, a restored backup and a foreign folder are lost identities: parked, named, never voting.
func TestLostIdentities(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 8, 1<<10)
	node := c.slave("g1")
	dir := c.groupDir(node)
	c.stop(node)
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	c.start(node)
	eventually(t, 20*time.Second, func() error { return c.nodes[node].Ready() })
	// followed waits until another replica has the old one's place, and takes part.
	followed := func(old uint64) {
		t.Helper()
		c.start(node)
		eventually(t, 60*time.Second, func() error {
			if id, _, err := identity(dir); err != nil || id <= old {
				return fmt.Errorf("the folder of replica %d has replica %d (%v)", old, id, err)
			}
			return c.nodes[node].Ready()
		})
		w.fill(100, 4, 1<<10)
	}
	first, _, err := identity(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Let the controller see more starts than the backup will have, then restore it.
	for range 2 {
		seen := c.startsSeen("g1", node)
		c.stop(node)
		c.start(node)
		eventually(t, 20*time.Second, func() error {
			if now := c.startsSeen("g1", node); now <= seen {
				return fmt.Errorf("the controller has seen start %d", now)
			}
			return nil
		})
	}
	c.stop(node)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	followed(first)
	c.stop(node)
	// The old one stays lost, without anybody who could tell.
	lost := filepath.Join(c.dir, node, "lost", fmt.Sprintf("%s-%d", filepath.Base(dir), first))
	if _, why, err := identity(lost); err != nil || !strings.Contains(why, "restored backup") {
		t.Fatalf("the folder does not remember why its identity is lost: %q (%v)", why, err)
	}
	second, _, err := identity(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.ctl.Close()
	kept := t.TempDir()
	if err := errors.Join(os.Rename(dir, filepath.Join(kept, "new")), os.CopyFS(dir, os.DirFS(lost))); err != nil {
		t.Fatal(err)
	}
	c.start(node)
	if err := c.nodes[node].Ready(); err == nil || !strings.Contains(err.Error(), "restored backup") {
		t.Fatalf("without a controller %s says %v", node, err)
	}
	c.stop(node)
	c.startController()
	// A wiped folder.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	followed(second)
}

// What is wrong with the options of a node is told at once, and nothing is made of it.
func TestNodeOptionsReportAllFaults(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "n1")
	n, err := broker.OpenNode(broker.NodeOptions{Dir: dir, RetentionBytes: -1, ScrubEvery: -1, TransactionCheckInterval: -1, TimerMaxDelay: -1, CheckpointBytes: 1, Namesrv: []string{"here"}})
	if err == nil {
		t.Fatal(errors.Join(n.Close(), errors.New("it was opened")))
	}
	for _, want := range []string{"no controller address", "no listener for replication", "no listener for clients", "retention of -1", "a scrub every -1ns",
		"checks of transactions every -1ns", "delays of at most -1ns", "a checkpoint every 1 bytes", `address "here"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not told:\n%v", want, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
}

// One folder serves one process, and one node.
func TestFolderIsTaken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	o := broker.NodeOptions{ID: "n1", Dir: filepath.Join(c.dir, "n1"), Controllers: []string{c.ctlAt}, PeerListener: listen(t, "")}
	o.ClientListener = c.clientListener("n1")
	if _, err := broker.OpenNode(o); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Fatalf("a second process on one folder: %v", err)
	}
	c.stop("n1")
	o.ID = "n9"
	if _, err := broker.OpenNode(o); err == nil || !strings.Contains(err.Error(), "belongs to node n1") {
		t.Fatalf("another node on the folder: %v", err)
	}
	o.PeerListener.Close()
}
