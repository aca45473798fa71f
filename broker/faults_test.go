package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/remoting"
)

// badDisk fails one kind of operation on one kind of file of one node, from arm to mend, and counts how often it was tried.
type badDisk struct {
	mu    sync.Mutex
	node  string
	op    vfs.Op
	file  string // pattern of the path in the replica's folder; "": the folder itself
	tries int
}

func (d *badDisk) fs(node string) vfs.FS {
	return vfs.Inject(vfs.OS, func(op vfs.Op, name string, _ int64, n int) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if node != d.node || op != d.op {
			return nil
		}
		_, inside, _ := strings.Cut(filepath.ToSlash(name), "/groups/")
		_, inside, _ = strings.Cut(inside, "/")
		if ok, err := filepath.Match(d.file, inside); err != nil || !ok {
			return err
		}
		if op == vfs.OpWrite && d.file == "log/*.log" && n > longestFrame {
			return nil // zeros ahead of the writer, which may fail: a write of the writer's is meant
		}
		d.tries++
		if op == vfs.OpWrite {
			return &vfs.ShortWrite{N: n / 2, Err: errInjected}
		}
		return errInjected
	})
}

// longestFrame is above what the log's writer writes at once while sends are of 1 KiB, and below the steps of 1 MiB in which its space is prepared.
const longestFrame = 512 << 10

var errInjected = errors.New("injected disk error")

func (d *badDisk) arm(node string, op vfs.Op, file string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.node, d.op, d.file, d.tries = node, op, file, 0
}

func (d *badDisk) mend() { d.arm("", 0, "") }

func (d *badDisk) tried() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tries
}

// TestFailingDisk lets each kind of operation on each kind of file fail, on a master and on a slave. A failure in the log poisons it: the
// replica takes no part any more and says why, what waits ends as unknown, the failed sync is never tried again. One in what is
// derived from the log costs a longer start. The group goes on, and the replica is back after a restart with a good disk.
func TestFailingDisk(t *testing.T) {
	t.Parallel()
	type fault struct {
		op   vfs.Op
		file string
	}
	poisons := []fault{{vfs.OpWrite, "log/*.log"}, {vfs.OpSync, "log/*.log"}, {vfs.OpWrite, "log/meta"}, {vfs.OpSync, "log/meta"}, {vfs.OpRename, "log/*.next"}}
	harmless := []fault{{vfs.OpWrite, "log/*.idx.tmp"}, {vfs.OpRename, "log/*.idx.tmp"}, {vfs.OpCreate, "log/*.next"}, {vfs.OpWrite, "index/*"}, {vfs.OpSync, "index/*"}, {vfs.OpRename, "index/*"},
		{vfs.OpSyncDir, "index"}, {vfs.OpWrite, "*.snap.tmp"}, {vfs.OpSync, "*.snap.tmp"}, {vfs.OpRename, "*.snap.tmp"}, {vfs.OpSyncDir, ""}}
	for _, role := range []string{"master", "slave"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			d := &badDisk{}
			c := newTunedCluster(t, func(o *broker.NodeOptions) { o.FS = d.fs(string(o.ID)) }, "g1")
			c.wire(c.master("g1"), "g1").topic("T", 1)
			var ok []string
			unknown, sent := 0, 0
			// send sends one message to whoever is master, and notes what it was answered.
			send := func(size int) error {
				body := bytes.Repeat([]byte("."), size)
				name := fmt.Sprintf("%06d", sent)
				sent++
				copy(body, name)
				resp := <-c.wire(c.master("g1"), "g1").start(remoting.SendMessage, body, sendFields("T")...)
				switch {
				case resp.Code == remoting.Success:
					ok = append(ok, name)
					return nil
				case strings.HasPrefix(resp.Remark, "[UNKNOWN]"):
					unknown++
				case !strings.HasPrefix(resp.Remark, "[NOT_STORED]") && resp.Code != -1:
					t.Errorf("a send is answered with code %d %q", resp.Code, resp.Remark)
				}
				return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
			}
			for i, f := range append(append([]fault{}, poisons...), harmless...) {
				name := fmt.Sprintf("%v of %s", f.op, f.file)
				node := c.master("g1")
				if role == "slave" {
					node = c.slave("g1")
				}
				unknown = 0
				d.arm(node, f.op, f.file)
				size := 256 << 10 // a segment has 64 messages, a checkpoint comes after 4
				if f.file == "log/*.log" {
					size = 1 << 10 // so that its writes are told from those that prepare its space
				}
				eventually(t, 60*time.Second, func() error {
					_ = send(size)
					if d.tried() == 0 {
						return fmt.Errorf("%s: did not come about", name)
					}
					return nil
				})
				eventually(t, 60*time.Second, func() error { return send(size) }) // the group goes on
				if i < len(poisons) {
					c.await("g1", func(g *controllerpb.Group) error {
						for _, r := range g.Replicas {
							if rep := r.GetReport(); r.NodeId == node && (rep.GetRole() != controllerpb.Role_ROLE_PARKED ||
								!strings.Contains(rep.GetPoisoned(), errInjected.Error()) || !strings.Contains(rep.GetParked(), "the log is poisoned")) {
								return fmt.Errorf("%s: %s reports %v", name, node, rep)
							}
						}
						return nil
					})
					if err := c.nodes[node].Ready(); err == nil || !strings.Contains(err.Error(), errInjected.Error()) {
						t.Errorf("%s: %s is ready: %v", name, node, err)
					}
					if n := d.tried(); n != 1 {
						t.Errorf("%s was tried %d times", name, n)
					}
					if role == "master" && f == poisons[0] && unknown == 0 {
						t.Errorf("%s: no send that waited ended as unknown", name)
					}
				} else if err := c.nodes[node].Ready(); err != nil && !errors.Is(err, broker.ErrNoMaster) {
					t.Errorf("%s: %s is not ready: %v", name, node, err)
				}
				d.mend()
				if i >= len(poisons) && i < len(poisons)+len(harmless)-1 {
					continue // it goes on; one start with all of it comes at the end
				}
				c.ctl.Close() // one that begins anew does not remember how often the node failed, and lets it vote soon
				c.startController()
				c.kill(node)
				c.start(node)
				eventually(t, 60*time.Second, func() error { return c.nodes[node].Ready() })
				c.await("g1", func(g *controllerpb.Group) error { // three voters again, or the next failure is one too many
					for _, r := range g.Replicas {
						if !r.Voter {
							return fmt.Errorf("%s: replica %d does not vote", name, r.ReplicaId)
						}
					}
					return nil
				})
			}
			c.haveOnce(30*time.Second, ok)
		})
	}
}

// haveOnce waits until each replica of g1 shows each of these messages once; a name is the first six bytes of a body.
func (c *cluster) haveOnce(limit time.Duration, names []string) {
	c.t.Helper()
	for _, node := range []string{"n1", "n2", "n3"} {
		w := c.wire(node, "g1")
		eventually(c.t, limit, func() error {
			have := map[string]int{}
			for off, end := int64(0), int64(1); off < end; {
				resp := w.call(remoting.PullMessage, nil, pullFields("cg", "T", off)...)
				if resp.Code != remoting.Success {
					return fmt.Errorf("%s from %d: code %d %q", node, off, resp.Code, resp.Remark)
				}
				for _, m := range records(c.t, resp.Body) {
					have[string(m.Body[:6])]++
				}
				off, end = number(c.t, resp, "nextBeginOffset"), number(c.t, resp, "maxOffset")
			}
			for _, name := range names {
				if have[name] != 1 {
					return fmt.Errorf("%s has message %s, which was answered OK, %d times", node, name, have[name])
				}
			}
			return nil
		})
	}
}
