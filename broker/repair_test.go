package broker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/remoting"
)

// segment is the n-th file of the log of a node's replica, counted from its end when n is negative.
func (c *cluster) segment(node string, n int) string {
	c.t.Helper()
	list, err := filepath.Glob(filepath.Join(c.groupDir(node), "log", "*.log"))
	if err != nil || len(list) <= max(n, -n-1) {
		c.t.Fatalf("%s has %v (%v), not segment %d", node, list, err, n)
	}
	return list[(n+len(list))%len(list)]
}

// flip changes one bit of a file in its place.
func flip(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// readLog opens the log of a node's replica beside it.
func (c *cluster) readLog(node string) (*commitlog.Log, error) {
	dir := c.groupDir(node)
	b, err := os.ReadFile(filepath.Join(dir, "replica.json"))
	if err != nil {
		return nil, err
	}
	var f struct {
		Cluster     string
		SegmentSize int64
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	id, err1 := ids.ParseUUID(f.Cluster)
	group, err2 := ids.ParseUUID(filepath.Base(dir))
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%v, %v", err1, err2)
	}
	return commitlog.Open(commitlog.Options{FS: vfs.OS, Dir: filepath.Join(dir, "log"), Cluster: ids.ClusterID(id), Group: ids.GroupID(group), SegmentSize: f.SegmentSize, ReadOnly: true})
}

// chains reads the sealed segments of a node's log and returns what the last frame of each is.
func (c *cluster) chains(node string) ([]string, error) {
	l, err := c.readLog(node)
	if err != nil {
		return nil, err
	}
	defer l.Close(false)
	var list []string
	for _, s := range l.Segments() {
		if !s.Sealed {
			continue
		}
		if err := l.CheckSegment(s.Base, func(int) error { return nil }); err != nil {
			return nil, err
		}
		fr, err := l.ReadFrame(s.LastIndex, nil)
		if err != nil {
			return nil, err
		}
		list = append(list, fmt.Sprintf("%d: %d %08x", s.Base, fr.Index(), fr.Chain()))
	}
	return list, nil
}

// awaitRepaired returns when the node has repaired its replica, is ready, and has the same sealed segments as another one.
func (c *cluster) awaitRepaired(node, other string, repairs int64) {
	c.t.Helper()
	eventually(c.t, 60*time.Second, func() error {
		if err := c.nodes[node].Ready(); err != nil {
			return err
		}
		if n := c.nodes[node].Repairs("g1"); n < repairs {
			return fmt.Errorf("%d repairs, want %d", n, repairs)
		}
		got, err := c.chains(node)
		if err != nil {
			return err
		}
		want, err := c.chains(other)
		if err != nil {
			return err
		}
		if len(got) == 0 || !slices.Equal(got, want) {
			return fmt.Errorf("%s has %q, %s has %q", node, got, other, want)
		}
		return nil
	})
}

// A bit flips in a sealed segment of a replica that runs. The scrub finds it, the replica is repaired from another one, also when it is
// the master, and answers as before.
func TestScrubAndRepair(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) {
		o.CheckpointBytes, o.ScrubEvery, o.ScrubRate = 18<<20, 200*time.Millisecond, 1<<30
	}, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 40, 1<<20)
	want := w.answers()
	for _, leads := range []bool{false, true} {
		node := c.slave("g1")
		if leads {
			node = c.master("g1")
		}
		before := c.nodes[node].Repairs("g1")
		flip(t, c.segment(node, 1), 5<<20+77)
		eventually(t, 60*time.Second, func() error {
			if c.nodes[node].Repairs("g1") == before {
				return fmt.Errorf("%s has repaired nothing: %v", node, c.nodes[node].Ready())
			}
			return nil
		})
		c.awaitRepaired(node, c.besides(node), before+1)
		if got := c.wire(node, "g1").answers(); got != want {
			t.Errorf("after its repair %s answers\n%s\nbefore\n%s", node, got, want)
		}
	}
	m := c.master("g1")
	c.wire(m, "g1").fill(40, 4, 1<<10)
}

// A bit of a message flips on the disk of a replica that runs, and the next thing that happens is a pull of that message: it gets an error, not
// the damaged bytes, the replica says so once, and is repaired from another one, also when it is the master.
func TestPullMeetsDamage(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.Logger = zerolog.New(&log).Level(zerolog.ErrorLevel) }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 24, 1<<10)
	want := w.answers()
	for said, leads := range []bool{false, true} {
		node := c.slave("g1")
		if leads {
			node = c.master("g1")
		}
		s := c.wire(node, "g1")
		pull := damageUnder(t, c, node, s, want)
		before := c.nodes[node].Repairs("g1")
		resp := s.call(remoting.PullMessage, nil, pull...)
		if resp.Code != remoting.SystemBusy || len(resp.Body) > 0 || !strings.Contains(resp.Remark, "is damaged on this replica") {
			t.Errorf("a pull of a damaged message from %s: code %d %q, %d bytes", node, resp.Code, resp.Remark, len(resp.Body))
		}
		eventually(t, 60*time.Second, func() error {
			if n := c.nodes[node].Repairs("g1"); n != before+1 {
				return fmt.Errorf("%s has made %d repairs: %v", node, n-before, c.nodes[node].Ready())
			}
			return c.nodes[node].Ready()
		})
		s = c.wire(node, "g1")
		eventually(t, 20*time.Second, func() error {
			if got := s.answers(); got != want {
				return fmt.Errorf("after its repair %s answers\n%s\nbefore\n%s", node, got, want)
			}
			return nil
		})
		if n := strings.Count(log.String(), "a pull met damage"); n != said+1 {
			t.Errorf("%d lines tell of the damage, want %d:\n%s", n, said+1, log.String())
		}
	}
}

// damageUnder waits until a node answers what the others do, flips a bit of a message in its log, and returns the pull that meets it.
func damageUnder(t *testing.T, c *cluster, node string, s *wire, want string) (pull []string) {
	t.Helper()
	eventually(t, 20*time.Second, func() error {
		if got := s.answers(); got != want {
			return fmt.Errorf("%s answers\n%s\nthe master\n%s", node, got, want)
		}
		return nil
	})
	pull = pullFields("cg", "T", 2, "queueId", "1", "maxMsgNums", "2")
	good := records(t, s.call(remoting.PullMessage, nil, pull...).Body)
	flip(t, c.segment(node, 0), int64(good[1].PhysicalOffset)+300)
	return pull
}

// damagedSlave has a slave meet damage in a pull, after what before does to its node, and returns its name and a connection.
func damagedSlave(t *testing.T, c *cluster, before func(*broker.Node)) (string, *wire) {
	t.Helper()
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.topic("empty", 1)
	w.fill(0, 24, 1<<10)
	want := w.answers()
	node := c.slave("g1")
	s := c.wire(node, "g1")
	pull := damageUnder(t, c, node, s, want)
	before(c.nodes[node])
	if resp := s.call(remoting.PullMessage, nil, pull...); resp.Code != remoting.SystemBusy {
		t.Fatalf("a pull of a damaged message from %s: code %d %q", node, resp.Code, resp.Remark)
	}
	return node, s
}

// Damage is met while the replica is still being opened, and the node does not have it yet, so that nobody can close it: it goes on with what it
// does by the clock, such as to end a held pull, and is repaired once the node has it.
func TestDamageWhileBeingOpened(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	var known func()
	node, s := damagedSlave(t, c, func(n *broker.Node) { known = n.Unknown("g1") })
	resp := s.call(remoting.PullMessage, nil, pullFields("cg", "empty", 0, "sysFlag", "6", "suspendTimeoutMillis", "500")...)
	if resp.Code != remoting.PullNotFound {
		t.Errorf("a held pull: code %d %q", resp.Code, resp.Remark)
	}
	known()
	eventually(t, 60*time.Second, func() error {
		if n := c.nodes[node].Repairs("g1"); n != 1 {
			return fmt.Errorf("%s has made %d repairs: %v", node, n, c.nodes[node].Ready())
		}
		return c.nodes[node].Ready()
	})
}

// A damaged replica whose repair cannot even begin is closed all the same, and says why.
func TestDamageThatCannotBeRepaired(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	node, _ := damagedSlave(t, c, func(n *broker.Node) { n.Unrepairable("g1") })
	eventually(t, 20*time.Second, func() error {
		if err := c.nodes[node].Ready(); err == nil || !strings.Contains(err.Error(), "it cannot be repaired") {
			return fmt.Errorf("it says %v", err)
		}
		return nil
	})
	if c.nodes[node].Replica("g1") != nil {
		t.Error("it is open")
	}
}

// The last frame that a replica acknowledged goes bad while it runs, and a read finds it, before the replica has noted durably that it was
// there. Nobody can tell then that it was the last one: the identity is lost, and the frame is not cut as a torn tail.
func TestDamagedTailWhileRunning(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	node := c.slave("g1")
	id, _, err := identity(c.groupDir(node))
	if err != nil {
		t.Fatal(err)
	}
	w.fill(0, 12, 1<<10)
	name := c.segment(node, -1)
	eventually(t, 20*time.Second, func() error {
		l, err := c.readLog(node)
		if err != nil {
			return err
		}
		last, err := l.ReadFrame(l.Tail().Index, nil)
		if err := errors.Join(err, l.Close(false)); err != nil {
			return err
		}
		flip(t, name, int64(last.Offset())+200)
		if err := c.nodes[node].ReadLast("g1"); err == nil {
			flip(t, name, int64(last.Offset())+200) // back: the log has a later frame meanwhile, as after an election
			return errors.New("the last frame is a good one")
		}
		return nil
	})
	c.back(node, id, true)
	if why := c.lostWhy(node, id); !strings.Contains(why, "lost tail") {
		t.Errorf("the folder of replica %d says %q", id, why)
	}
	w.fill(12, 4, 1<<10)
}

// What is damaged while a replica is stopped, and a start sees, is repaired before the replica takes part: a segment's header, the whole
// file, a frame that is not the last one. Two of them, damaged in different places, help each other.
func TestRepairAtAStart(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.CheckpointBytes = 18 << 20 }, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 4)
	w.fill(0, 40, 1<<20)
	want := w.answers()
	both := []string{c.slave("g1"), c.master("g1")}
	slices.Sort(both)
	third := "n1"
	for _, n := range []string{"n2", "n3"} {
		if !slices.Contains(both, n) {
			third = n
		}
	}
	if slices.Contains(both, third) {
		t.Fatalf("%v and %s", both, third)
	}
	c.kill(third) // the two have only each other
	for _, n := range both {
		c.kill(n)
	}
	if err := os.Remove(c.segment(both[0], 1)); err != nil {
		t.Fatal(err)
	}
	flip(t, c.segment(both[0], -1), 40)   // the header
	flip(t, c.segment(both[1], 0), 24)    // too
	flip(t, c.segment(both[1], 0), 8<<20) // and a frame behind it
	for _, n := range both {
		c.start(n)
	}
	c.awaitRepaired(both[0], both[1], 1)
	c.awaitRepaired(both[1], both[0], 1)
	for _, n := range both {
		eventually(t, 20*time.Second, func() error {
			if got := c.wire(n, "g1").answers(); got != want {
				return fmt.Errorf("after its repair %s answers\n%s\nbefore\n%s", n, got, want)
			}
			return nil
		})
	}
}

// The only replica of a group has nobody to be repaired from: it stays parked, says why, and is as it was.
func TestNobodyToRepairFrom(t *testing.T) {
	t.Parallel()
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.ScrubEvery = 200 * time.Millisecond })
	c.createGroup("g1", 1, 1)
	w := c.wire("n1", "g1")
	w.topic("T", 4)
	w.fill(0, 20, 1<<20)
	name := c.segment("n1", 0)
	flip(t, name, 5<<20)
	eventually(t, 20*time.Second, func() error {
		if err := c.nodes["n1"].Ready(); err == nil || !strings.Contains(err.Error(), "no other replica to repair it from") {
			return fmt.Errorf("it says %v", err)
		}
		return nil
	})
	c.stop("n1")
	flip(t, name, 5<<20) // the operator has brought the file back
	c.start("n1")
	eventually(t, 20*time.Second, func() error { return c.nodes["n1"].Ready() })
}

// A log that ends too early, in a group that has no other replica: it stays parked as it is, and goes on when the file is brought back. But
// what cannot be told from another one's folder, without its meta file, is lost.
func TestTooShortAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.createGroup("g1", 1, 1)
	w := c.wire("n1", "g1")
	w.topic("T", 4)
	w.fill(0, 8, 1<<10)
	want := w.answers()
	name, aside := c.segment("n1", 0), filepath.Join(t.TempDir(), "aside")
	lost := func() string {
		_, why, err := identity(c.groupDir("n1"))
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	short := func() {
		t.Helper()
		c.stop("n1")
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(aside, b, 0o600)
		}
		if err == nil {
			err = os.Truncate(name, 4096)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.start("n1")
		eventually(t, 20*time.Second, func() error {
			if err := c.nodes["n1"].Ready(); err == nil || !strings.Contains(err.Error(), "no other replica to repair it from") {
				return fmt.Errorf("it says %v", err)
			}
			return nil
		})
		if why := lost(); why != "" {
			t.Fatalf("it is given up: %s", why)
		}
	}
	short()
	if err := os.Rename(aside, name); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error { return c.nodes["n1"].Ready() })
	if got := c.wire("n1", "g1").answers(); got != want {
		t.Errorf("it answers\n%s\nbefore\n%s", got, want)
	}
	short()
	if err := os.WriteFile(filepath.Join(filepath.Dir(name), "meta"), make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		if why := lost(); !strings.Contains(why, "the meta file is lost") {
			return fmt.Errorf("it is given up: %q", why)
		}
		return nil
	})
}
