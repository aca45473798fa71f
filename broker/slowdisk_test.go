package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// slowDisk holds the syncs of all commit logs back while it is shut. Heartbeats and reads go on.
type slowDisk struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open
}

func (d *slowDisk) rule(op vfs.Op, name string, _ int64, _ int) error {
	if op != vfs.OpSync || !strings.Contains(name, "/log/") {
		return nil
	}
	d.mu.Lock()
	wait := d.shut
	d.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return nil
}

func (d *slowDisk) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = make(chan struct{})
}

func (d *slowDisk) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut != nil {
		close(d.shut)
		d.shut = nil
	}
}

// start sends a request and returns a channel for its answer.
func (w *wire) start(code int32, body []byte, fields ...string) chan *remoting.Command {
	ch := make(chan *remoting.Command, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		resp, err := w.c.Call(ctx, request(code, body, fields...))
		if err != nil {
			resp = remoting.NewResponse(-1, err.Error())
		}
		ch <- resp
	}()
	return ch
}

// A question for an offset waits for commits that are on their way into the log, not only for those still in memory.
func TestQueryWaitsForCommitsUnderWay(t *testing.T) {
	t.Parallel()
	disk := &slowDisk{}
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.FS = vfs.Inject(vfs.OS, disk.rule) }, "g1")
	t.Cleanup(disk.open)
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	for range 5 {
		w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	}
	q := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
	w.ok(remoting.UpdateConsumerOffset, nil, append(q, "commitOffset", "2")...)
	disk.close()
	if err := w.c.OneWay(request(remoting.UpdateConsumerOffset, nil, append(q, "commitOffset", "5")...)); err != nil {
		t.Fatal(err)
	}
	w.call(remoting.GetConsumerListByGroup, nil, "consumerGroup", "cg") // answered behind the commit
	eventually(t, 5*time.Second, func() error {
		if n := c.nodes[master].Replica("g1").PendingCommits(); n > 0 {
			return fmt.Errorf("%d offsets still wait in memory", n)
		}
		return nil
	})
	answer := w.start(remoting.QueryConsumerOffset, nil, q...)
	// The master can still confirm itself: a question that needs no commit is answered.
	w.ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0")
	w.ok(remoting.GetMinOffset, nil, "topic", "T", "queueId", "0")
	disk.open()
	resp := <-answer
	if got := number(t, resp, "offset"); resp.Code != remoting.Success || got != 5 {
		t.Errorf("the answer is code %d, offset %d; want 5, which came before the question", resp.Code, got)
	}
}

// A send that the disks hold up is answered [UNKNOWN] after 5 s, and those that could not even be formed [NOT_STORED]; when the
// disks go on, the group does so too, and offsets have no hole and no double.
func TestStalledDisks(t *testing.T) {
	t.Parallel()
	disk := &slowDisk{}
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.FS = vfs.Inject(vfs.OS, disk.rule) }, "g1")
	t.Cleanup(disk.open)
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.ok(remoting.SendMessage, []byte("before"), sendFields("T")...)
	// On a busy machine the master may change in the moment in which the disks stop; then nobody forms anything, and it is tried again.
	var formed chan *remoting.Command
	eventually(t, 60*time.Second, func() error {
		master := c.master("g1")
		w = c.wire(master, "g1")
		r := c.nodes[master].Replica("g1")
		frames := r.Frames()
		disk.close()
		formed = w.start(remoting.SendMessage, []byte("held up"), sendFields("T")...)
		look := time.NewTicker(2 * time.Millisecond)
		defer look.Stop()
		for deadline := time.Now().Add(2 * time.Second); r.Frames() == frames; <-look.C {
			if time.Now().After(deadline) {
				disk.open()
				<-formed
				return errors.New("the send came into no frame")
			}
		}
		return nil
	})
	waiting := w.start(remoting.SendMessage, []byte("refused"), sendFields("T")...)
	if resp := <-formed; resp.Code != remoting.ServiceNotAvailable || !strings.HasPrefix(resp.Remark, "[UNKNOWN]") {
		t.Errorf("a send that is in a frame: code %d %q, want [UNKNOWN]", resp.Code, resp.Remark)
	}
	if resp := <-waiting; resp.Code != remoting.ServiceNotAvailable || !strings.HasPrefix(resp.Remark, "[NOT_STORED]") {
		t.Errorf("a send that is in no frame: code %d %q, want [NOT_STORED]", resp.Code, resp.Remark)
	}
	disk.open()
	eventually(t, 20*time.Second, func() error {
		if resp := c.wire(c.master("g1"), "g1").call(remoting.SendMessage, []byte("after"), sendFields("T")...); resp.Code != remoting.Success {
			return fmt.Errorf("code %d %q", resp.Code, resp.Remark)
		}
		return nil
	})
	// Whom the controller calls master may be a slave by now, which serves the message when it has applied it.
	got := records(t, nil)
	eventually(t, 20*time.Second, func() error {
		resp := c.wire(c.master("g1"), "g1").call(remoting.PullMessage, nil, pullFields("cg", "T", 0)...)
		if got = records(t, resp.Body); resp.Code != remoting.Success || string(got[len(got)-1].Body) != "after" {
			return fmt.Errorf("code %d with %d messages", resp.Code, len(got))
		}
		return nil
	})
	for i, m := range got {
		if int(m.QueueOffset) != i || string(m.Body) == "refused" {
			t.Errorf("message %d is %q at queue offset %d", i, m.Body, m.QueueOffset)
		}
	}
	if len(got) < 2 || string(got[0].Body) != "before" || string(got[len(got)-1].Body) != "after" {
		t.Errorf("the queue has %d messages, want those answered OK", len(got))
	}
}

// An end that comes while another one is on its way to the disks is told what became of the transaction when that is known.
func TestEndBehindAnotherOne(t *testing.T) {
	t.Parallel()
	disk := &slowDisk{}
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.FS = vfs.Inject(vfs.OS, disk.rule) }, "g1")
	t.Cleanup(disk.open)
	master := c.master("g1")
	r := c.nodes[master].Replica("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	x := w.half("H")
	frames := r.Frames()
	until := func(what string, is func() bool) {
		t.Helper()
		eventually(t, 10*time.Second, func() error {
			if !is() {
				return errors.New(what)
			}
			return nil
		})
	}
	disk.close()
	commit := w.start(remoting.EndTransaction, nil, x.fields(message.SysCommit)...)
	until("the commit is in no frame yet", func() bool { return r.Frames() > frames })
	rollback := w.start(remoting.EndTransaction, nil, x.fields(message.SysRollback)...)
	until("the rollback does not wait", func() bool { return r.Waiting() == 1 })
	disk.open()
	if resp := <-commit; resp.Code != remoting.Success {
		t.Errorf("the first one: code %d %q", resp.Code, resp.Remark)
	}
	if resp := <-rollback; resp.Code != remoting.IllegalOperation || !strings.Contains(resp.Remark, "was committed before") {
		t.Errorf("the one behind it: code %d %q", resp.Code, resp.Remark)
	}
}
