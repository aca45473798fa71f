package raftlog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
)

// TestGroupTransfer moves the mastership around while a client sends: every send ends as stored or as not stored, never as
// unknown, and what was answered OK is in every log.
func TestGroupTransfer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.startAll()
	c.node(1).g.Campaign()
	c.master(t)
	acked := map[string]bool{}
	sent := 0
	send := func() {
		sent++
		body := fmt.Sprintf("message %d", sent)
		switch outcome := <-c.master(t).m.send(body); outcome {
		case "ok":
			acked[body] = true
		case "refused", raftlog.NotStored.String():
		default:
			t.Fatalf("%s ended as %s", body, outcome)
		}
	}
	for round := range 9 {
		from := c.master(t)
		to := ids.ReplicaID(uint64(from.self.ID)%3 + 1)
		ended := make(chan error, 1)
		if !from.g.Transfer(to, func(err error) { ended <- err }) {
			t.Fatal("the group is closed")
		}
		for waiting := true; waiting; {
			send()
			select {
			case err := <-ended:
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				waiting = false
			default:
			}
		}
		eventually(t, "the other one is master", func() bool { return c.node(int(to)).g.Status().Role == raftlog.RoleMaster })
	}
	eventually(t, "everything on every replica", func() bool {
		for i := 1; i <= 3; i++ {
			have := map[string]bool{}
			for _, body := range c.node(i).m.list() {
				have[body] = true
			}
			for body := range acked {
				if !have[body] {
					return false
				}
			}
		}
		return true
	})
}

// TestGroupTransferEnds holds that whoever asks for a hand-over hears of its end, also when the group closes first.
func TestGroupTransferEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.startAll()
	c.node(1).g.Campaign()
	master := c.master(t)
	to := ids.ReplicaID(uint64(master.self.ID)%3 + 1)
	c.node(int(to)).g.Leave()
	if _, err := c.node(int(to)).g.ReadIndex(t.Context()); err == nil { // its loop has come past Leave
		t.Error("a follower confirms an index")
	}
	ended := make(chan error, 2)
	done := func(err error) { ended <- err }
	master.g.Transfer(to, done)
	if err := <-ended; !errors.Is(err, raftlog.ErrTransfer) {
		t.Errorf("a hand-over to a replica that leaves: %v", err)
	}
	c.isolate(int(master.self.ID), true)
	master.g.Transfer(to, done)
	if err := master.g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a closed group handed over")
	}
	if master.g.Transfer(to, done) {
		t.Error("a closed group takes a hand-over")
	}
}
