package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/remoting"
)

// smallDisk is the disk of one node.
type smallDisk interface {
	vfs.FS
	nearlyFull() // leaves less room than the bound below which sends are refused
	full()       // leaves none: writes fail
	room()       // takes both back
}

// toldDisk says how full it is, and refuses writes when it is told to. Its full does not show in Space: writes meet the end of the
// disk though sends were let in.
type toldDisk struct {
	vfs.FS
	free atomic.Uint64
	end  atomic.Bool
}

const toldSize = 1 << 40

func newToldDisk() *toldDisk {
	d := &toldDisk{}
	d.room()
	d.FS = vfs.Inject(vfs.OS, func(op vfs.Op, _ string, _ int64, n int) error {
		if !d.end.Load() {
			return nil
		}
		switch op {
		case vfs.OpWrite:
			return &vfs.ShortWrite{N: n / 2, Err: syscall.ENOSPC}
		case vfs.OpCreate, vfs.OpMkdir:
			return syscall.ENOSPC
		}
		return nil
	})
	return d
}

func (d *toldDisk) Space(string) (free, total uint64, err error) { return d.free.Load(), toldSize, nil }

func (d *toldDisk) nearlyFull() { d.free.Store(toldSize / 25) }
func (d *toldDisk) full()       { d.end.Store(true) }
func (d *toldDisk) room()       { d.free.Store(toldSize / 2); d.end.Store(false) }

// realDisk is a small file system of the kernel's with a file that takes up the room.
type realDisk struct {
	vfs.FS
	t   *testing.T
	dir string
}

// noMount skips the test, or fails it where LEDGERMQ_TEST_MOUNTS says that file systems can be mounted.
func noMount(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("LEDGERMQ_TEST_MOUNTS") == "1" {
		t.Fatalf("LEDGERMQ_TEST_MOUNTS=1, but %s", why)
	}
	t.Skip(why)
}

// newRealDisk mounts a file system at dir. It needs root, and a kernel that allows it to.
func newRealDisk(t *testing.T, dir string) *realDisk {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mountSmall(dir, 192<<20); err != nil {
		noMount(t, fmt.Sprintf("no file system can be mounted here: %v", err))
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return &realDisk{FS: vfs.OS, t: t, dir: dir}
}

func (d *realDisk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill grows the ballast until no more than left bytes are free, or the disk takes no more.
func (d *realDisk) fill(left uint64) {
	d.t.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for {
		free, _, err := d.Space(d.dir)
		if err != nil {
			d.t.Fatal(err)
		}
		if free <= left {
			return
		}
		if _, err := f.Write(make([]byte, min(free-left, 1<<20))); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *realDisk) nearlyFull() { d.fill(24 << 20) } // two segments are 32 MiB
func (d *realDisk) full()       { d.fill(0) }
func (d *realDisk) room() {
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Fatal(err)
	}
}

// disks gives each node its disk, which outlives the node.
type disks struct {
	mu   sync.Mutex
	of   map[string]smallDisk
	make func(dir string) smallDisk
}

func (d *disks) tune(o *broker.NodeOptions) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of[string(o.ID)] == nil {
		d.of[string(o.ID)] = d.make(o.Dir)
	}
	o.FS = d.of[string(o.ID)]
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("told", func(t *testing.T) {
		t.Parallel()
		testFullDisk(t, func(string) smallDisk { return newToldDisk() })
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		if runtime.GOOS != "linux" || os.Getuid() != 0 {
			noMount(t, "it mounts a small file system: run it as root on Linux")
		}
		testFullDisk(t, func(dir string) smallDisk { return newRealDisk(t, dir) })
	})
}

// While a disk is nearly full, sends are refused by name, and reads, acknowledgements and elections go on; with room again sends are
// taken. A write that meets the end of a disk costs the group one replica, which comes back with a restart, and no message that
// was answered OK.
func testFullDisk(t *testing.T, make func(dir string) smallDisk) {
	d := &disks{of: map[string]smallDisk{}, make: make}
	c := newTunedCluster(t, d.tune, "g1")
	all := func(f func(smallDisk)) {
		for _, id := range []string{"n1", "n2", "n3"} {
			f(d.of[id])
		}
	}
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","retryMaxTimes":5}`))
	var answered []string
	sent := 0
	// send sends one message of size bytes and returns the answer. It notes the message when it was stored.
	send := func(w *wire, size int) *remoting.Command {
		body := bytes.Repeat([]byte("."), size)
		name := fmt.Sprintf("%06d", sent)
		sent++
		copy(body, name)
		resp := <-w.start(remoting.SendMessage, body, sendFields("T")...)
		if resp.Code == remoting.Success {
			answered = append(answered, name)
		}
		return resp
	}
	// sends returns once one is taken.
	sends := func(when string) {
		t.Helper()
		eventually(t, 30*time.Second, func() error {
			if resp := send(c.wire(c.master("g1"), "g1"), 100); resp.Code != remoting.Success {
				return fmt.Errorf("%s a send is answered with code %d %q", when, resp.Code, resp.Remark)
			}
			return nil
		})
	}
	for range 20 {
		sends("at the start")
	}

	all(smallDisk.nearlyFull)
	const remark = "[NOT_STORED] the disk of the master is nearly full"
	refused := func(resp *remoting.Command) error {
		if resp.Code != remoting.SystemError || resp.Remark != remark {
			return fmt.Errorf("the disks are nearly full, and a request is answered with code %d %q", resp.Code, resp.Remark)
		}
		return nil
	}
	eventually(t, 20*time.Second, func() error { return refused(send(c.wire(c.master("g1"), "g1"), 100)) })
	goesOn := func(offset int) {
		t.Helper()
		master := c.master("g1")
		w, s := c.wire(master, "g1"), c.wire(c.besides(master), "g1")
		v2 := []string{"a", "pg", "b", "T", "c", "TBW102", "d", "4", "e", "0", "f", "0", "g", "0", "h", "0", "i", "", "m", "false"}
		back := []string{"group", "cg", "offset", "0", "delayLevel", "0", "originMsgId", "x"}
		newTopic := []string{"topic", "New", "defaultTopic", "TBW102", "readQueueNums", "1", "writeQueueNums", "1", "perm", "6", "topicFilterType", "SINGLE_TAG", "order", "false"}
		for what, ask := range map[string]func() *remoting.Command{
			"send":                  func() *remoting.Command { return w.call(remoting.SendMessage, []byte("x"), sendFields("T")...) },
			"send through a slave":  func() *remoting.Command { return s.call(remoting.SendMessage, []byte("x"), sendFields("T")...) },
			"send of version 2":     func() *remoting.Command { return w.call(remoting.SendMessageV2, []byte("x"), v2...) },
			"batch":                 func() *remoting.Command { return w.call(remoting.SendBatchMessage, []byte("x"), v2...) },
			"send to a new topic":   func() *remoting.Command { return w.call(remoting.SendMessage, []byte("x"), sendFields("New")...) },
			"send back":             func() *remoting.Command { return w.call(remoting.ConsumerSendMsgBack, nil, back...) },
			"creation of the topic": func() *remoting.Command { return w.call(remoting.UpdateAndCreateTopic, nil, newTopic...) },
		} {
			eventually(t, 20*time.Second, func() error { // a busy machine may change the master in between
				if err := refused(ask()); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				return nil
			})
		}
		works := func(w *wire, code int32, body []byte, fields ...string) (resp *remoting.Command) {
			t.Helper()
			eventually(t, 20*time.Second, func() error {
				if resp = w.call(code, body, fields...); resp.Code != remoting.Success {
					return fmt.Errorf("the disks are nearly full, and request %d is answered with code %d %q", code, resp.Code, resp.Remark)
				}
				return nil
			})
			return resp
		}
		queue := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
		works(w, remoting.UpdateConsumerOffset, nil, append(queue, "commitOffset", strconv.Itoa(offset))...)
		if got := number(t, works(s, remoting.QueryConsumerOffset, nil, queue...), "offset"); got != int64(offset) {
			t.Errorf("the consumer offset is %d, want %d", got, offset)
		}
		works(w, remoting.LockBatchMQ, lockBody("a", 0))
		for _, w := range []*wire{w, s} {
			if got := records(t, works(w, remoting.PullMessage, nil, pullFields("cg", "T", 0)...).Body); len(got) < 20 {
				t.Errorf("a pull brings %d messages, want 20", len(got))
			}
		}
	}
	goesOn(3)
	old := c.master("g1")
	c.kill(old)
	eventually(t, 20*time.Second, func() error { return refused(send(c.wire(c.master("g1"), "g1"), 100)) })
	goesOn(4)
	c.start(old)
	all(smallDisk.room)
	sends("with room again")

	// meets sends large messages until the node's replica has met the end of its disk, or nothing is taken any more.
	meets := func(node string) {
		t.Helper()
		d.of[node].full()
		eventually(t, 60*time.Second, func() error {
			r := c.nodes[node].Ready()
			if r != nil && strings.Contains(r.Error(), "parked") {
				return nil
			}
			if resp := send(c.wire(c.master("g1"), "g1"), 1<<20); resp.Code != remoting.Success && refused(resp) == nil {
				return nil
			}
			return fmt.Errorf("%s takes part: %v", node, r)
		})
		d.of[node].room()
		c.kill(node)
		c.start(node)
		eventually(t, 30*time.Second, func() error { return c.nodes[node].Ready() })
		sends("with all replicas again")
	}
	meets(c.slave("g1"))
	meets(c.master("g1"))
	c.haveOnce(20*time.Second, answered)
}
