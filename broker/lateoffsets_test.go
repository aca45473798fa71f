package broker_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/vfs"
	"github.com/ledgermq/ledgermq/remoting"
)

// A one-way commit of before a reset waits in memory, and a member takes the reset over at once: the reset stays.
func TestResetIsNotUndone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	w.topic("T", 1)
	w.sends("T", 10)
	w.join("c1", "cg", "CLUSTERING", "T", "*")
	w.commit("cg", "T", 9)
	for round := range 10 {
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() { // the member goes on committing what it works on, as clients do
			defer close(ended)
			for {
				select {
				case <-stop:
					return
				default:
					_ = w.c.OneWay(request(remoting.UpdateConsumerOffset, nil, "consumerGroup", "cg", "topic", "T", "queueId", "0", "commitOffset", "9"))
				}
			}
		}()
		leave := sync.OnceFunc(func() { close(stop); <-ended })
		t.Cleanup(leave) // of a test that gives up
		w.resetTo("cg", "T", 1)
		leave() // it knows now, and commits nothing of before any more
		pull := func(offset int64) *remoting.Command {
			return w.call(remoting.PullMessage, nil, pullFields("cg", "T", offset)...)
		}
		if resp := pull(9); resp.Code != remoting.PullOffsetMoved || number(t, resp, "nextBeginOffset") != 1 {
			t.Fatalf("round %d: the member is told %d", round, resp.Code)
		}
		if resp := pull(1); resp.Code != remoting.Success {
			t.Fatalf("round %d: a pull at the new place got %d %q", round, resp.Code, resp.Remark)
		}
		if got := w.committed("cg", "T"); got != 1 {
			t.Errorf("round %d: the group was reset to 1, and is at %d", round, got)
		}
		w.commit("cg", "T", 9)
	}
}

// What members commit while their group is being deleted with its offsets brings none back: a commit that is waited for is refused.
func TestDeletedOffsetsStayAway(t *testing.T) {
	t.Parallel()
	disk := &slowDisk{}
	c := newTunedCluster(t, func(o *broker.NodeOptions) { o.FS = vfs.Inject(vfs.OS, disk.rule) }, "g1")
	t.Cleanup(disk.open)
	master := c.master("g1")
	r := c.nodes[master].Replica("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	w.sends("T", 10)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.commit("cg", "T", 4)
	frames := r.Frames()
	disk.close()
	deleted := w.start(remoting.DeleteSubscriptionGroup, nil, "groupName", "cg", "cleanOffset", "true")
	eventually(t, 10*time.Second, func() error {
		if r.Frames() == frames {
			return fmt.Errorf("the deletion is in no frame yet")
		}
		return nil
	})
	commit := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0", "commitOffset", "5"}
	if err := w.c.OneWay(request(remoting.UpdateConsumerOffset, nil, commit...)); err != nil {
		t.Fatal(err)
	}
	waited := w.start(remoting.UpdateConsumerOffset, nil, commit...)
	w.call(remoting.GetConsumerListByGroup, nil, "consumerGroup", "cg") // answered behind the commits
	eventually(t, 10*time.Second, func() error {
		if n := r.PendingCommits(); n > 0 {
			return fmt.Errorf("%d offsets wait in memory", n)
		}
		return nil
	})
	disk.open()
	if resp := <-deleted; resp.Code != remoting.Success {
		t.Fatalf("the deletion: code %d %q", resp.Code, resp.Remark)
	}
	if resp := <-waited; resp.Code != remoting.SystemBusy || resp.Remark == "" {
		t.Errorf("a commit during the deletion: code %d %q", resp.Code, resp.Remark)
	}
	q := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0", "setZeroIfNotFound", "false"}
	if resp := w.call(remoting.QueryConsumerOffset, nil, q...); resp.Code != remoting.QueryNotFound {
		t.Errorf("the deleted group is at %s: code %d", resp.GetOr("offset", ""), resp.Code)
	}
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	w.commit("cg", "T", 6) // of the new one
	if got := w.committed("cg", "T"); got != 6 {
		t.Errorf("the group that was made anew is at %d", got)
	}
}
