package broker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// A master that drains hands over while clients that know only its address go on sending to it. No send fails, no name server
// shows a group without a master, and a consumer offset that came one-way just before is kept.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(old, "g1")
	w.topic("T", 1)
	for range 5 {
		w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	}
	q := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
	if err := w.c.OneWay(request(remoting.UpdateConsumerOffset, nil, append(q, "commitOffset", "4")...)); err != nil {
		t.Fatal(err)
	}
	w.call(remoting.GetConsumerListByGroup, nil, "consumerGroup", "cg") // answered behind the commit

	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer func() { stop(); work.Wait() }() // of a test that gives up
	var sent atomic.Int64
	for range 8 {
		s := c.wire(old, "g1")
		work.Go(func() {
			for ctx.Err() == nil {
				call, end := context.WithTimeout(context.Background(), 20*time.Second)
				resp, err := s.c.Call(call, request(remoting.SendMessage, []byte("y"), sendFields("T")...))
				end()
				if err != nil || resp.Code != remoting.Success {
					t.Errorf("a send failed: %v %v", resp, err)
					return
				}
				sent.Add(1)
			}
		})
	}
	cl := c.client()
	work.Go(func() {
		for ctx.Err() == nil {
			route, err := cl.Route(ctx, "T")
			if ctx.Err() == nil && (err != nil || len(route.Groups) != 1 || route.Groups[0].Master() == "") {
				t.Errorf("a route without a master: %v %v", route, err)
				return
			}
		}
	})
	more := func() {
		from := sent.Load()
		eventually(t, 20*time.Second, func() error {
			if n := sent.Load(); n < from+100 {
				return fmt.Errorf("%d more sends", n-from)
			}
			return nil
		})
	}
	more()
	const forward = 300 * time.Millisecond
	began := time.Now()
	c.nodes[old].Drain(t.Context(), forward)
	if d := time.Since(began); d < forward {
		t.Errorf("it forwarded for %v, want %v", d, forward)
	}
	if err := c.nodes[old].Ready(); err == nil {
		t.Error("a node that drains calls itself ready")
	}
	more()
	stop()
	work.Wait()
	next := c.master("g1")
	if next == old {
		t.Fatalf("%s is still the master", old)
	}
	if got := number(t, c.wire(next, "g1").ok(remoting.QueryConsumerOffset, nil, q...), "offset"); got != 4 {
		t.Errorf("after the hand-over the offset is %d, want 4", got)
	}
	if high := number(t, c.wire(next, "g1").ok(remoting.GetMaxOffset, nil, "topic", "T", "queueId", "0"), "offset"); high != 5+sent.Load() {
		t.Errorf("the queue ends at %d after %d sends: one was stored twice, or lost", high, 5+sent.Load())
	}
}

// Nobody waits for a group that cannot be handed over, nor for one that this node did not lead.
func TestDrainWithoutSuccessor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	c.createGroup("solo", 1, 1)
	c.elect("n1")
	master, slave := c.master("g1"), c.slave("g1")
	if solo := c.master("solo"); solo != master {
		t.Fatalf("g1 is led by %s, solo by %s", master, solo)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c.nodes[slave].Drain(ctx, time.Hour)
	c.stop(slave)
	for id := range c.nodes {
		if id != master {
			c.stop(id)
		}
	}
	c.nodes[master].Drain(ctx, time.Hour)
	if ctx.Err() != nil {
		t.Error("it waited although nobody could take over")
	}
}

func TestSuccessor(t *testing.T) {
	t.Parallel()
	member := func(id int, match ids.Index) raftlog.MemberStatus {
		return raftlog.MemberStatus{Member: raftlog.Member{ID: ids.ReplicaID(id), Slot: ids.Slot(id)}, Match: match, Heard: true}
	}
	stalled, closed, silent := member(3, 90), member(3, 90), member(3, 90)
	stalled.Stalled, closed.Closed, silent.Heard = time.Second, true, false
	for _, tt := range []struct {
		name       string
		others     []raftlog.MemberStatus
		but        ids.ReplicaID
		want       ids.ReplicaID
		candidates bool
	}{
		{"alone", nil, 0, 0, false},
		{"the most of the log", []raftlog.MemberStatus{member(2, 80), member(3, 90)}, 0, 3, true},
		{"equal logs", []raftlog.MemberStatus{member(3, 90), member(2, 90)}, 0, 2, true},
		{"one that failed", []raftlog.MemberStatus{member(2, 80), member(3, 90)}, 3, 2, true},
		{"one that does not advance", []raftlog.MemberStatus{stalled}, 0, 0, true},
		{"one whose connection is closed", []raftlog.MemberStatus{closed}, 0, 0, false},
		{"one that was not heard", []raftlog.MemberStatus{silent}, 0, 0, false},
	} {
		st := raftlog.Status{Replica: 1, Voters: append([]raftlog.MemberStatus{member(1, 100)}, tt.others...)}
		got, candidates := broker.Successor(st, map[ids.ReplicaID]bool{tt.but: true})
		if got != tt.want || candidates != tt.candidates {
			t.Errorf("%s: replica %d, candidates %t; want %d, %t", tt.name, got, candidates, tt.want, tt.candidates)
		}
	}
}
