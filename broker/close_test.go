package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// What is proposed to a master that has just closed gets an answer too: housekeeping does so, and Close waits for it.
func TestProposalsEndWithTheReplica(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	r := c.nodes[master].Replica("g1")
	eventually(t, 10*time.Second, func() error {
		if !r.TryCommand() {
			return errNotStored
		}
		return nil
	})
	c.stop(master)
	done := make(chan bool, 1)
	go func() { done <- r.TryCommand() }()
	select {
	case stored := <-done:
		if stored {
			t.Error("a closed replica stored something")
		}
	case <-time.After(10 * time.Second):
		t.Error("a proposal to a closed master waits for ever")
	}
}

// A clean stop of a master keeps the consumer offsets that clients committed one-way just before.
func TestCleanStopKeepsOneWayCommits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	for range 5 {
		w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	}
	q := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
	if err := w.c.OneWay(request(remoting.UpdateConsumerOffset, nil, append(q, "commitOffset", "4")...)); err != nil {
		t.Fatal(err)
	}
	w.call(remoting.GetConsumerListByGroup, nil, "consumerGroup", "cg") // answered behind the commit
	c.stop(master)
	next := c.wire(c.master("g1"), "g1")
	if got := number(t, next.ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 4 {
		t.Errorf("after a clean stop of the master the offset is %d, want 4", got)
	}
}

var errNotStored = errors.New("not stored")
