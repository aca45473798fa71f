package tests

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// tagged is an official push consumer with a filter, which can be ended.
func tagged(t *testing.T, c *cluster.Cluster, topic, group, tags string, got *bodies) (end func()) {
	t.Helper()
	k, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver(c.Namesrv)), consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("c%d", instances.Add(1))), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		t.Fatal(err)
	}
	err = k.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range ms {
			got.add(m)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err == nil {
		err = k.Start()
	}
	if err != nil {
		t.Fatalf("the official consumer: %v", err)
	}
	var once sync.Once
	end = func() { once.Do(func() { k.Shutdown() }) }
	t.Cleanup(end)
	return end
}

// TestGroupsInChange has official Go clients in changes that lose messages elsewhere: members of one group with different tags, one of
// them replaced by the other; and resets while a member consumes.
func TestGroupsInChange(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	p := newGoProducer(t, c)
	t.Cleanup(func() { p.Shutdown() })
	for name, change := range map[string]func(*testing.T, *cluster.Cluster, rocketmq.Producer){
		"tags": changeOfTags, "reset": resetBesideConsumption, "reset of a busy member": resetOfABusyMember,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change(t, c, p)
		})
	}
}

// sendTagged sends n messages, of the tags old and new by turns.
func sendTagged(t *testing.T, p rocketmq.Producer, topic string, n int) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for i := range n {
		m := primitive.NewMessage(topic, fmt.Appendf(nil, "%s %d", topic, i))
		m.WithTag([]string{"old", "new"}[i%2])
		if _, err := p.SendSync(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		all[string(m.Body)] = true
	}
	return all
}

func changeOfTags(t *testing.T, c *cluster.Cluster, p rocketmq.Producer) {
	all := sendTagged(t, p, "Rollout", 1)
	old, wide := &bodies{}, &bodies{}
	endOld := tagged(t, c, "Rollout", "rolling", "old", old)
	eventually(t, time.Minute, "the first message", func() (bool, error) { return old.has(all), nil })
	tagged(t, c, "Rollout", "rolling", "old || new", wide)
	eventually(t, time.Minute, "both members, as the log tells", func() (bool, error) {
		return strings.Contains(c.Logs(), "the members of a consumer group subscribe to different topics or tags"), nil
	})
	for body := range sendTagged(t, p, "Rollout", 80) {
		all[body] = true
	}
	// The new member gets what is in its queues, of both tags; in those of the old one the new tag waits.
	eventually(t, time.Minute, "messages of both members", func() (bool, error) { return old.count() > 1 && wide.count() > 1, nil })
	endOld()
	eventually(t, 2*time.Minute, "every message of either tag", func() (bool, error) {
		for body := range all {
			if !old.has(map[string]bool{body: true}) && !wide.has(map[string]bool{body: true}) {
				return false, nil
			}
		}
		return true, nil
	})
}

func resetGroup(t *testing.T, c *cluster.Cluster, group, topic, to string) {
	t.Helper()
	if out, err := c.Run(t.Context(), "admin", "consumer", "reset", group, "--topic", topic, "--to", to, "--namesrv", c.Namesrv[0]); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
}

func resetBesideConsumption(t *testing.T, c *cluster.Cluster, p rocketmq.Producer) {
	again := sendTagged(t, p, "Reset", 40)
	got := &bodies{}
	tagged(t, c, "Reset", "resetting", "*", got)
	eventually(t, time.Minute, "every message", func() (bool, error) { return got.has(again), nil })
	resetGroup(t, c, "resetting", "Reset", "first")
	eventually(t, 2*time.Minute, "every message a second time", func() (bool, error) { return got.twice(again), nil })
}

// A member that has fetched more than it works off asks for nothing, and so hears of no reset. It works on, and commits what it has done
// meanwhile, as stock clients do every 5 s: that does not undo the reset. When it asks again it is sent back.
func resetOfABusyMember(t *testing.T, c *cluster.Cluster, p rocketmq.Producer) {
	const n, back = 40, 5
	for _, topic := range []string{"Busy", "Marks"} {
		if _, err := c.Admin(t.Context(), "topic", "create", topic, "--queues", "1"); err != nil {
			t.Fatal(err)
		}
	}
	sendTagged(t, p, "Busy", n)
	before := map[string]bool{} // the second gate
	for i := range 15 {
		before[fmt.Sprintf("Busy %d", i)] = true
	}
	var gates [3]chan struct{} // for those below 10, below 15, and the others
	var opens [3]func()
	for i := range gates {
		gates[i] = make(chan struct{})
		opens[i] = sync.OnceFunc(func() { close(gates[i]) })
	}
	opens[0]()
	got := &bodies{}
	consume(t, c, "Busy,Marks", "busy", func(m *primitive.MessageExt) consumer.ConsumeResult {
		if got.add(m) == 1 {
			switch {
			case m.QueueOffset < 10:
				<-gates[0]
			case m.QueueOffset < 15:
				<-gates[1]
			default:
				<-gates[2]
			}
		}
		return consumer.ConsumeSuccess
	}, consumer.WithPullThresholdForQueue(3), consumer.WithPullThresholdForTopic(3)) // each time it has queues it sets the one by the other
	t.Cleanup(func() { opens[1](); opens[2]() })
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	committed := func(topic string) (ids.QueueOffset, error) {
		off, found, err := cl.CommittedOffset(t.Context(), "busy", client.QueueRef{Group: "g1", Topic: topic})
		if err == nil && !found {
			off = -1
		}
		return off, err
	}
	eventually(t, time.Minute, "a commit of the first ten messages", func() (bool, error) {
		off, err := committed("Busy")
		return off == 10, err
	})
	resetGroup(t, c, "busy", "Busy", fmt.Sprint(back))
	opens[1]()
	eventually(t, time.Minute, "the messages before the second gate", func() (bool, error) { return got.has(before), nil })
	// The client commits all its queues at once, each 5 s or so. When a mark has been committed that was sent after another one was, so have these messages.
	for mark := range ids.QueueOffset(2) {
		if _, err := p.SendSync(t.Context(), primitive.NewMessage("Marks", []byte("mark"))); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "the commit of a mark", func() (bool, error) {
			off, err := committed("Marks")
			return off == mark+1, err
		})
	}
	if off, err := committed("Busy"); err != nil || off != back {
		t.Fatalf("the group was reset to %d, and a member that does not know of it took it to %d (%v)", back, off, err)
	}
	opens[2]()
	eventually(t, 2*time.Minute, "all from the new place on, and its commit", func() (bool, error) {
		off, err := committed("Busy")
		return off == n, err
	})
	for i := range n { // what had been fetched and was not begun came once
		times := got.times(fmt.Sprintf("Busy %d", i))
		if i < back && times != 1 || i >= back && i < 15 && times != 2 || times < 1 || times > 2 {
			t.Errorf("message %d came %d times", i, times)
		}
	}
}

func (b *bodies) times(body string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got[body]
}

func (b *bodies) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got)
}

func (b *bodies) twice(all map[string]bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for body := range all {
		if b.got[body] < 2 {
			return false
		}
	}
	return true
}
