package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// orderedWork is what members of a group that consumes in order have done, as they tell it: which queue each holds, and what it has seen there.
type orderedWork struct {
	t  *testing.T
	mu sync.Mutex
	at []orderedQueue
}

type orderedQueue struct {
	holder string
	next   int64 // offset that comes next
	seen   []int // counters of the messages, in the order in which they were handled
	moves  int
}

// take is when a member begins with a queue. No other one may be at it, since that one tells before it gives its lock back.
func (o *orderedWork) take(q int, member string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := &o.at[q]
	if x.holder != "" && x.holder != member {
		o.t.Errorf("queue %d: %s got the lock that %s has", q, member, x.holder)
	}
	if x.holder != member {
		x.moves++
	}
	x.holder = member
}

func (o *orderedWork) leave(q int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at[q].holder = ""
}

// handle takes in messages that a member has handled: they begin where the last ones ended.
func (o *orderedWork) handle(q int, member string, from int64, ms []message.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := &o.at[q]
	if x.holder != member {
		o.t.Errorf("queue %d: %s handles messages, and %q holds it", q, member, x.holder)
	}
	if from != x.next {
		o.t.Errorf("queue %d: %s goes on at %d, want %d", q, member, from, x.next)
	}
	for _, m := range ms {
		n, err := strconv.Atoi(string(m.Body))
		if err != nil {
			o.t.Error(err)
		}
		x.seen = append(x.seen, n)
	}
	x.next = from + int64(len(ms))
}

// handled is how many different messages were handled in all queues.
func (o *orderedWork) handled() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.at {
		n += len(slices.Compact(slices.Clone(o.at[i].seen)))
	}
	return n
}

// member consumes in order until ctx ends: it asks for the lock of every queue, handles what comes in those that it gets, and gives each
// back after some messages, so that another member may take it.
func (o *orderedWork) member(ctx context.Context, c *cluster, name string, first int) {
	m := c.roamer(first)
	defer m.close()
	all := make([]int, len(o.at))
	for q := range all {
		all[q] = q
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		resp := m.until(ctx, remoting.LockBatchMQ, lockBodyOf("T", "orderly", name, all...))
		if resp == nil {
			break
		}
		var got lockAnswer
		if err := json.Unmarshal(resp.Body, &got); err != nil || resp.Code != remoting.Success {
			o.t.Errorf("%s: code %d %q, %v", name, resp.Code, resp.Remark, err)
			return
		}
		for _, l := range got.Locked {
			o.take(l.QueueID, name)
			o.work(ctx, m, name, l.QueueID)
			o.leave(l.QueueID)
			if m.until(context.WithoutCancel(ctx), remoting.UnlockBatchMQ, lockBodyOf("T", "orderly", name, l.QueueID)) == nil {
				return
			}
		}
		select {
		case <-tick.C: // so that the other one has its turn
		case <-ctx.Done():
		}
	}
}

// work handles what is in a queue now.
func (o *orderedWork) work(ctx context.Context, m *roamer, name string, q int) {
	where := []string{"consumerGroup", "orderly", "topic", "T", "queueId", strconv.Itoa(q)}
	resp := m.until(ctx, remoting.QueryConsumerOffset, nil, where...)
	if resp == nil {
		return
	}
	from, err := resp.MustInt64("offset")
	if err != nil || resp.Code != remoting.Success {
		o.t.Errorf("%s: the progress of queue %d: code %d %q, %v", name, q, resp.Code, resp.Remark, err)
		return
	}
	resp = m.until(ctx, remoting.PullMessage, nil, pullFields("orderly", "T", from, "queueId", strconv.Itoa(q), "maxMsgNums", "8")...)
	if resp == nil || resp.Code != remoting.Success {
		return // nothing there
	}
	ms := records(o.t, resp.Body)
	o.handle(q, name, from, ms)
	m.until(context.WithoutCancel(ctx), remoting.UpdateConsumerOffset, nil, append(where, "commitOffset", strconv.FormatInt(from+int64(len(ms)), 10))...)
}

func lockBodyOf(topic, group, client string, queues ...int) []byte {
	body := strings.Replace(string(lockBody(client, queues...)), `"consumerGroup":"cg"`, fmt.Sprintf(`"consumerGroup":%q`, group), 1)
	return []byte(strings.ReplaceAll(body, `"topic":"T"`, fmt.Sprintf(`"topic":%q`, topic)))
}

// Two members of a group that consumes in order take turns at its queues while masters are killed, come back and hand over: no two are at
// one queue at once, each goes on exactly where the one before it ended, and each queue has what was answered OK, in the order in which it
// was sent. A lock that is given back is another member's at once.
func TestOrderedMembersThroughFailovers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	w := c.wire(c.master("g1"), "g1")
	const queues, each = 3, 120
	w.topic("T", queues)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"orderly","consumeMessageOrderly":true}`))
	o := &orderedWork{t: t, at: make([]orderedQueue, queues)}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	working, stop := context.WithCancel(ctx)
	var members, producers sync.WaitGroup
	defer func() { stop(); cancel(); members.Wait(); producers.Wait() }()
	for i, name := range []string{"a", "b"} {
		members.Go(func() { o.member(working, c, name, i) })
	}
	for q := range queues {
		producers.Go(func() {
			m := c.roamer(q)
			defer m.close()
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for i := range each { // one in flight: the next one when this one was answered OK
				if resp := m.until(ctx, remoting.SendMessage, []byte(strconv.Itoa(i)), sendFields("T", "queueId", strconv.Itoa(q))...); resp == nil || resp.Code != remoting.Success {
					t.Errorf("send %d to queue %d: %v", i, q, resp)
					return
				}
				<-tick.C
			}
		})
	}
	after := func(n int) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			if got := o.handled(); got < n {
				return fmt.Errorf("%d of %d messages were handled", got, queues*each)
			}
			return nil
		})
	}
	after(queues * each / 5)
	old := c.master("g1")
	c.kill(old)
	after(queues * each * 2 / 5)
	c.start(old)
	after(queues * each * 3 / 5)
	c.elect(old) // a hand-over
	after(queues * each * 4 / 5)
	c.kill(old)
	after(queues * each)
	producers.Wait()
	stop()
	members.Wait()
	for q := range o.at {
		// A send whose outcome was unknown was repeated, at once: both may be there.
		if got := slices.Compact(o.at[q].seen); len(got) != each || !slices.IsSorted(got) {
			t.Errorf("queue %d: %d messages were handled, in the order %v", q, len(got), got)
		}
		if o.at[q].moves < 4 {
			t.Errorf("queue %d went from one member to the other %d times only", q, o.at[q].moves)
		}
	}
	w = c.wire(c.master("g1"), "g1")
	if got := w.lock("a", 0, 1, 2); len(got) != queues { // of group cg
		t.Fatalf("a got %v", got)
	}
	if got := w.lock("b", 0, 1, 2); len(got) != 0 {
		t.Errorf("b got %v of what a has", got)
	}
	w.ok(remoting.UnlockBatchMQ, lockBody("a", 0, 1, 2))
	if got := w.lock("b", 0, 1, 2); len(got) != queues {
		t.Errorf("b got %v of what a gave back", got)
	}
}
