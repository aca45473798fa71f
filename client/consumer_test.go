package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// poll collects n messages.
func poll(t *testing.T, k *Consumer, n int) []Message {
	t.Helper()
	var all []Message
	for len(all) < n {
		list, err := k.Poll(within(t, patience))
		if err != nil {
			t.Fatalf("poll after %d of %d messages: %v", len(all), n, err)
		}
		all = append(all, list...)
	}
	return all
}

func send(t *testing.T, c *Client, topic string, n int, tags string) {
	t.Helper()
	for i := range n {
		if _, err := c.Producer().Send(within(t, patience), Message{Topic: topic, Body: []byte(fmt.Sprint(i)), Tags: tags}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConsumerReadsAllAndGoesOn(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b1, b2 := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b1.register(ns, 0, 5, topic("orders", 2), topic("x", 1))
	b2.register(ns, 0, 5, topic("orders", 2), topic("x", 1))
	c := newClient(t, []string{ns})
	send(t, c, "orders", 50, "")
	k, err := c.Subscribe(within(t, patience), "cg", "orders", WithPollWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	next := map[QueueRef]ids.QueueOffset{}
	for _, m := range poll(t, k, 50) {
		q := QueueRef{Group: m.Group, Topic: m.Topic, Queue: m.Queue}
		if m.Offset != next[q] {
			t.Fatalf("queue %v: offset %d came, %d was due", q, m.Offset, next[q])
		}
		next[q]++
	}
	if len(next) != 4 {
		t.Fatalf("messages came of %d queues, want 4", len(next))
	}
	if err := k.Commit(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if err := k.Commit(within(t, patience)); err != nil { // nothing new: nothing is sent
		t.Fatal(err)
	}
	if n := b1.called(remoting.UpdateConsumerOffset) + b2.called(remoting.UpdateConsumerOffset); n != 4 {
		t.Fatalf("%d commits were sent, want 4", n)
	}
	k.Close()
	for q, off := range next {
		if got, found, err := c.CommittedOffset(within(t, patience), "cg", q); err != nil || !found || got != off {
			t.Fatalf("queue %v: committed %d %v %v, want %d", q, got, found, err, off)
		}
	}

	// A second one of the group goes on where the first one stopped, and is woken by what comes.
	k, err = c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if list, err := k.Poll(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("poll: %+v, %v", list, err)
	}
	send(t, c, "orders", 1, "")
	if list := poll(t, k, 1); len(list) != 1 {
		t.Fatalf("%d messages", len(list))
	}
}

func TestConsumerFromEndAndTags(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	send(t, c, "orders", 3, "red")
	k, err := c.Subscribe(within(t, patience), "cg", "orders", FromEnd(), WithTags("red || blue"), WithQueues(QueueRef{Group: "g1", Topic: "orders"}))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	eventually(t, "it has asked for the end", func() bool { return b.called(remoting.GetMaxOffset) > 0 && b.called(remoting.PullMessage) > 0 })
	send(t, c, "orders", 2, "green") // the fake broker does not filter: the client must
	send(t, c, "orders", 1, "blue")
	list := poll(t, k, 1)
	if len(list) != 1 || list[0].Tags != "blue" || list[0].Offset != 5 {
		t.Fatalf("got %+v", list)
	}
	if pos := k.Positions(); pos[QueueRef{Group: "g1", Topic: "orders"}] != 6 {
		t.Fatalf("positions %v", pos)
	}
}

func TestConsumerSurvivesANewMaster(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	old := startBroker(t, "g1", log)
	old.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	send(t, c, "orders", 1, "")
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	poll(t, k, 1)
	// The route is empty in between; consumer and committer wait.
	old.stop()
	fresh := startBroker(t, "g1", log)
	fresh.register(ns, 0, 6, topic("orders", 1), topic("x", 1))
	eventually(t, "a send to the new master", func() bool {
		_, err := c.Producer().Send(within(t, patience), Message{Topic: "orders"})
		return err == nil
	})
	if list := poll(t, k, 1); list[0].Offset != 1 {
		t.Fatalf("offset %d, want 1", list[0].Offset)
	}
	if err := k.Commit(within(t, patience)); err != nil {
		t.Fatal(err)
	}
}

// TestConsumerTellsWhatItWaitsFor holds that a group without a master is told: before the first message, while only a slave can
// be read, and no longer than it lasts.
func TestConsumerTellsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	slave := startBroker(t, "g1", log)
	slave.setHook(func(c *remoting.Conn, req *remoting.Command) bool {
		if req.Code == remoting.PullMessage {
			return false
		}
		c.ReplyError(req, remoting.ServiceNotAvailable, "[NOT_STORED] no master")
		return true
	})
	slave.register(ns, 2, 5, topic("orders", 2), topic("x", 1))
	c := newClient(t, []string{ns})
	first := startBroker(t, "g1", log)
	first.register(ns, 0, 5, topic("orders", 2), topic("x", 1))
	send(t, c, "orders", 4, "")
	first.stop()
	masterless := func() bool {
		r, err := c.Route(t.Context(), "orders")
		return err == nil && r.Groups[0].Master() == ""
	}
	eventually(t, "the master is out of the route", masterless)
	k, err := c.Subscribe(within(t, patience), "cg", "orders", WithPollWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	waits := func() bool { return errors.Is(k.Waiting()["g1"], ErrNoMaster) && len(k.Waiting()) == 1 }
	well := func() bool { return len(k.Waiting()) == 0 }
	eventually(t, "it waits for a master to begin with", waits)
	second := startBroker(t, "g1", log)
	second.register(ns, 0, 6, topic("orders", 2), topic("x", 1))
	poll(t, k, 4)
	eventually(t, "it does not wait", well)
	second.stop()
	eventually(t, "it waits, and reads the slave", waits)
	startBroker(t, "g1", log).register(ns, 0, 7, topic("orders", 2), topic("x", 1))
	eventually(t, "it does not wait any more", well)
}

// TestConsumerWaitsFromTheStart holds that a queue of which nothing was heard yet counts as one that cannot be read.
func TestConsumerWaitsFromTheStart(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	b.setHook(func(_ *remoting.Conn, req *remoting.Command) bool { return req.Code == remoting.QueryConsumerOffset }) // it hangs
	c := newClient(t, []string{ns})
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if w := k.Waiting(); len(w) != 1 || w["g1"] == nil {
		t.Errorf("it waits for %v, want group g1", w)
	}
	b.setHook(nil)
	eventually(t, "it does not wait", func() bool { return len(k.Waiting()) == 0 })
}

func TestConsumerReadsFromASlave(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	master, slave := startBroker(t, "g1", log), startBroker(t, "g1", log)
	master.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	slave.register(ns, 2, 5)
	c := newClient(t, []string{ns})
	send(t, c, "orders", 40, "")
	// The master advises the slave, as it does when a reader is far behind.
	master.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		if req.Code != remoting.PullMessage {
			return false
		}
		conn.Async(req, func(req *remoting.Command, p *remoting.Pending) {
			resp := master.pull(req)
			resp.Set("suggestWhichBrokerId", "2")
			p.Answer(resp)
		})
		return true
	})
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	poll(t, k, 40)
	if slave.called(remoting.PullMessage) == 0 {
		t.Fatal("the slave was not asked")
	}
	// A named replica, and any replica while there is no master.
	q := QueueRef{Group: "g1", Topic: "orders", Broker: slave.addr}
	res, err := c.Pull(within(t, patience), q, 0, 5, PullRaw(), PullAs("cg"))
	if err != nil || len(res.Messages) != 5 || len(res.Raw) == 0 {
		t.Fatalf("%+v, %v", res.Status, err)
	}
	master.stop()
	eventually(t, "the master is out of the route", func() bool {
		r, err := c.Route(t.Context(), "orders")
		return err == nil && r.Groups[0].Master() == ""
	})
	if res, err := c.Pull(within(t, patience), QueueRef{Group: "g1", Topic: "orders"}, 39, 5); err != nil || len(res.Messages) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestConsumerOffsetsOutOfRange(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	log := newFakeLog()
	b := startBroker(t, "g1", log)
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	send(t, c, "orders", 5, "")
	q := QueueRef{Group: "g1", Topic: "orders"}
	if err := c.CommitOffset(within(t, patience), "cg", q, 1); err != nil {
		t.Fatal(err)
	}
	log.mu.Lock()
	log.first["orders/0"] = 3 // retention has passed the committed offset
	log.mu.Unlock()
	if res, err := c.Pull(within(t, patience), q, 1, 5); err != nil || res.Status != PullOutOfRange || res.NextOffset != 3 || res.MinOffset != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	if res, err := c.Pull(within(t, patience), q, 5, 5); err != nil || res.Status != PullNotFound {
		t.Fatalf("%+v, %v", res, err)
	}
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if list := poll(t, k, 2); list[0].Offset != 3 {
		t.Fatalf("offset %d, want 3", list[0].Offset)
	}
}

func TestConsumerIsTold(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		if req.Code == remoting.PullMessage {
			conn.ReplyError(req, remoting.SubscriptionGroupNotExist, "no such group")
			return true
		}
		return false
	})
	c := newClient(t, []string{ns})
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	var code *CodeError
	if _, err := k.Poll(within(t, patience)); !errors.As(err, &code) || code.Code != remoting.SubscriptionGroupNotExist {
		t.Fatalf("got %v", err)
	}
	b.setHook(nil)
	send(t, c, "orders", 1, "")
	for got := 0; got == 0; {
		list, err := k.Poll(within(t, patience))
		if err != nil && !errors.As(err, &code) {
			t.Fatal(err)
		}
		got += len(list)
	}
	k.Close()
	if _, err := k.Poll(within(t, patience)); !errors.Is(err, ErrClosed) {
		t.Fatalf("poll after close: %v", err)
	}
	if _, err := c.Subscribe(within(t, patience), "cg", "nothing"); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("subscribe to nothing: %v", err)
	}
}

// TestConsumerOfWriteOnlyTopic holds that a topic that nobody may read is told as such at once.
func TestConsumerOfWriteOnlyTopic(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	writeOnly := topic("orders", 1)
	writeOnly.Perm = permWrite
	b.register(ns, 0, 5, writeOnly, topic("x", 1))
	c := newClient(t, []string{ns})
	ctx := within(t, patience)
	if _, err := c.Subscribe(ctx, "cg", "orders"); !errors.Is(err, ErrNotReadable) || errors.Is(err, ErrNoMaster) || ctx.Err() != nil {
		t.Errorf("subscribe: %v, %v", err, ctx.Err())
	}
	b.register(ns, 0, 6, topic("orders", 1), topic("x", 1))
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatalf("after it was made readable: %v", err)
	}
	k.Close()
}

func TestConsumerFindsNewQueues(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b1, b2 := startBroker(t, "g1", newFakeLog()), startBroker(t, "g2", newFakeLog())
	b1.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns}, WithRouteRefresh(5*time.Millisecond))
	k, err := c.Subscribe(within(t, patience), "cg", "orders")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	b2.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	other := newClient(t, []string{ns})
	var r Receipt
	for r.Group != "g2" {
		if r, err = other.Producer().Send(within(t, patience), Message{Topic: "orders"}); err != nil {
			t.Fatal(err)
		}
	}
	for seen := ""; seen != "g2"; {
		list, err := k.Poll(within(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		seen = list[0].Group
	}
}

func TestOffsets(t *testing.T) {
	t.Parallel()
	ns, _ := startNamesrv(t, nil)
	b := startBroker(t, "g1", newFakeLog())
	b.register(ns, 0, 5, topic("orders", 1), topic("x", 1))
	c := newClient(t, []string{ns})
	send(t, c, "orders", 3, "")
	q := QueueRef{Group: "g1", Topic: "orders"}
	ctx := within(t, patience)
	if off, err := c.MinOffset(ctx, q); err != nil || off != 0 {
		t.Fatalf("min %d, %v", off, err)
	}
	if off, err := c.MaxOffset(ctx, q); err != nil || off != 3 {
		t.Fatalf("max %d, %v", off, err)
	}
	if off, err := c.SearchOffset(ctx, q, time.Now().Add(time.Hour)); err != nil || off != 3 {
		t.Fatalf("in an hour: %d, %v", off, err)
	}
	if off, err := c.SearchOffset(ctx, q, time.UnixMilli(0)); err != nil || off != 0 {
		t.Fatalf("in 1970: %d, %v", off, err)
	}
	if _, found, err := c.CommittedOffset(ctx, "cg", q); err != nil || found {
		t.Fatalf("committed: %v, %v", found, err)
	}
	// What may be asked twice is asked again after a refusal and after a lost connection.
	fails := 0
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		if req.Code != remoting.GetMaxOffset {
			return false
		}
		switch fails++; fails {
		case 1:
			conn.ReplyError(req, remoting.ServiceNotAvailable, "no master")
		case 2:
			conn.Close()
		default:
			return false
		}
		return true
	})
	if off, err := c.MaxOffset(ctx, q); err != nil || off != 3 || fails != 3 {
		t.Fatalf("max %d after %d tries, %v", off, fails, err)
	}
	q.Broker = b.addr
	if off, err := c.MaxOffset(ctx, q); err != nil || off != 3 {
		t.Fatalf("max of a named replica %d, %v", off, err)
	}
	var code *CodeError
	b.setHook(func(conn *remoting.Conn, req *remoting.Command) bool {
		conn.ReplyError(req, remoting.SystemError, "a reason")
		return true
	})
	if _, err := c.MinOffset(ctx, QueueRef{Group: "g1", Topic: "orders"}); !errors.As(err, &code) || code.Remark != "a reason" {
		t.Fatalf("a reason: %v", err)
	}
	if _, err := c.MinOffset(ctx, QueueRef{Group: "g1", Topic: "nothing"}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("no such topic: %v", err)
	}
	if _, err := c.MinOffset(within(t, 50*time.Millisecond), QueueRef{Group: "g9", Topic: "orders"}); !errors.Is(err, ErrNoMaster) {
		t.Fatalf("no such group: %v", err)
	}
}

func TestPackedBody(t *testing.T) {
	t.Parallel()
	packed := zlibbed("hello")
	if got, still := unpack(packed, message.SysCompressed); still || string(got) != "hello" {
		t.Fatalf("%q, %v", got, still)
	}
	if got, still := unpack([]byte("hello"), 0); still || string(got) != "hello" {
		t.Fatalf("%q, %v", got, still)
	}
	if got, still := unpack([]byte("hello"), message.SysCompressed); !still || string(got) != "hello" {
		t.Fatalf("%q, %v", got, still)
	}
}
