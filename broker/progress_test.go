package broker_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/remoting"
)

// roamer asks the nodes of a cluster in turn. It may be used beside the test's goroutine, by one other.
type roamer struct {
	c  *cluster
	cl *remoting.Client
	at int
}

func (c *cluster) roamer(first int) *roamer { return &roamer{c: c, at: first} }

func (m *roamer) close() {
	if m.cl != nil {
		m.cl.Close()
		m.cl = nil
	}
}

// once asks the present node.
func (m *roamer) once(ctx context.Context, code int32, body []byte, fields ...string) (*remoting.Command, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if m.cl == nil {
		cl, err := remoting.Dial(ctx, m.c.port(fmt.Sprintf("n%d", m.at%3+1), "g1"), remoting.ClientOptions{})
		if err != nil {
			return nil, err
		}
		m.cl = cl
	}
	return m.cl.Call(ctx, request(code, body, fields...))
}

// until asks one node after the other until one does what is asked; nil when ctx ends first.
func (m *roamer) until(ctx context.Context, code int32, body []byte, fields ...string) *remoting.Command {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := m.once(ctx, code, body, fields...)
		if err == nil && resp.Code != remoting.ServiceNotAvailable && resp.Code != remoting.SystemError && resp.Code != remoting.SystemBusy {
			return resp
		}
		m.close()
		m.at++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// elect makes a node the master of g1.
func (c *cluster) elect(node string) {
	c.t.Helper()
	cl, err := controller.Dial([]string{c.ctlAt}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer cl.Close()
	eventually(c.t, 60*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := cl.Elect(ctx, "g1", node)
		return err
	})
}

// progress is what a test commits for a group in some topics, and what is asked for meanwhile.
type progress struct {
	t      *testing.T
	c      *cluster
	topics []string
	floor  []atomic.Int64 // answered OK
	next   int64
	asked  atomic.Int64
}

func (p *progress) fields(topic string) []string {
	return []string{"consumerGroup", "cg", "topic", topic, "queueId", "0"}
}

// watch asks for the progress all the time, at all nodes, until ctx ends: an answer is what was answered OK before the question, or more, or none.
func (p *progress) watch(ctx context.Context, node int) {
	m := p.c.roamer(node)
	defer m.close()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, topic := range p.topics {
			least := p.floor[i].Load()
			resp, err := m.once(ctx, remoting.QueryConsumerOffset, nil, p.fields(topic)...)
			switch {
			case err != nil:
				m.close()
			case resp.Code == remoting.QueryNotFound:
				p.t.Errorf("n%d: the group has no progress in %s: %q", node+1, topic, resp.Remark)
			case resp.Code == remoting.Success:
				p.asked.Add(1)
				if got, err := resp.MustInt64("offset"); err != nil || got < least {
					p.t.Errorf("n%d: the progress in %s is %d (%v), and was %d", node+1, topic, got, err, least)
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// commit goes on by n in each topic.
func (p *progress) commit(n int) {
	p.t.Helper()
	m := p.c.roamer(0)
	defer m.close()
	ctx, cancel := context.WithTimeout(p.t.Context(), 60*time.Second)
	defer cancel()
	for range n {
		p.next++
		for i, topic := range p.topics {
			resp := m.until(ctx, remoting.UpdateConsumerOffset, nil, append(p.fields(topic), "commitOffset", strconv.FormatInt(p.next, 10))...)
			if resp == nil || resp.Code != remoting.Success {
				p.t.Fatalf("commit %d in %s: %v", p.next, topic, resp)
			}
			p.floor[i].Store(p.next)
		}
	}
}

// An old master that comes back and leads again, and one of which an old backup was restored, bring back no progress and no timer: whoever is
// asked, at any time of a change, tells what was committed or that it does not know, for the retry topic and for queues in order alike.
// Delivery goes on from where the group is, nothing twice.
func TestOldReplicaBringsNothingBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(old, "g1")
	w.topic("T", 1)
	w.topic("D", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg","consumeMessageOrderly":true}`))
	const messages = 200
	for _, topic := range []string{"T", "%RETRY%cg"} {
		for range messages {
			w.ok(remoting.SendMessage, []byte("x"), sendFields(topic)...)
		}
	}
	w.lock("a", 0)
	p := &progress{t: t, c: c, topics: []string{"T", "%RETRY%cg"}, floor: make([]atomic.Int64, 2)}
	p.commit(1)
	var watchers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); watchers.Wait() }()
	for node := range 3 {
		watchers.Go(func() { p.watch(ctx, node) })
	}
	s := c.timers()
	began := time.Now()
	for i := range 30 {
		key := fmt.Sprintf("K%d", i)
		s.send(key, began.Add(time.Duration(2000+i*600)*time.Millisecond), []byte(key))
	}
	p.commit(20)
	c.kill(old)
	p.commit(20)
	c.start(old)
	c.elect(old) // back at once
	p.commit(20)

	node := c.besides(old)
	dir := c.groupDir(node)
	c.stop(node)
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the controller sees more starts than the backup has
		seen := c.startsSeen("g1", node)
		c.start(node)
		eventually(t, 20*time.Second, func() error {
			if now := c.startsSeen("g1", node); now <= seen {
				return fmt.Errorf("the controller has seen start %d", now)
			}
			return nil
		})
		p.commit(20)
		c.stop(node)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	p.commit(20)
	c.start(node)
	c.elect(node) // when another replica has the place of the one that was restored
	p.commit(20)
	for i := range 5 {
		key := fmt.Sprintf("new%d", i)
		s.send(key, time.Now().Add(300*time.Millisecond), []byte(key))
	}
	s.judge()
	cancel()
	watchers.Wait()
	for i, topic := range p.topics {
		resp := s.call(remoting.QueryConsumerOffset, nil, p.fields(topic)...)
		if got := number(t, resp, "offset"); got != p.floor[i].Load() {
			t.Errorf("the progress in %s is %d in the end, want %d", topic, got, p.floor[i].Load())
		}
	}
	if n := p.asked.Load(); n < 100 {
		t.Errorf("only %d questions were answered", n)
	}
}

// What a master that is alone has appended is cut when it comes back: of the timers in it none fires, and those that lie at the same places
// of the log by then do.
func TestTimersOfACutLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	old := c.master("g1")
	w := c.wire(old, "g1")
	w.topic("D", 1)
	w.topic("T", 4)
	s := c.timers()
	began := time.Now()
	s.send("kept", began.Add(6*time.Second), []byte("kept"))
	var others []string
	for _, id := range []string{"n1", "n2", "n3"} {
		if id != old {
			others = append(others, id)
		}
	}
	before := c.metric(old, "ledgermq_replica_last_index")
	for _, id := range others {
		c.kill(id)
	}
	due := strconv.FormatInt(began.Add(2*time.Second).UnixMilli(), 10)
	for i := range 20 { // nobody waits for the answers: there are none
		key := fmt.Sprintf("cut%d", i)
		if err := w.c.OneWay(request(remoting.SendMessage, []byte(key), sendFields("D", "properties", props("UNIQ_KEY", key, "TIMER_DELIVER_MS", due))...)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, func() error {
		if last := c.metric(old, "ledgermq_replica_last_index"); last <= before {
			return fmt.Errorf("the log ends at %v still", last)
		}
		return nil
	})
	c.kill(old)
	for _, id := range others {
		c.start(id)
	}
	for i := range 10 {
		key := fmt.Sprintf("other%d", i)
		s.send(key, began.Add(time.Duration(5000+100*i)*time.Millisecond), []byte(key))
	}
	s.c.wire(c.master("g1"), "g1").fill(0, 20, 1<<10)
	c.start(old)
	c.elect(old)
	for i := range 10 {
		key := fmt.Sprintf("new%d", i)
		s.send(key, time.Now().Add(300*time.Millisecond), []byte(key))
	}
	s.judge()
	eventually(t, 10*time.Second, func() error { return until(began.Add(2500 * time.Millisecond)) })
	for _, m := range c.wire(c.master("g1"), "g1").delivered("D", 0) {
		if _, sent := s.due[string(m.Body)]; !sent {
			t.Errorf("%s was delivered, which was cut", m.Body)
		}
	}
	if n := c.metric(old, "ledgermq_replica_timer_index_mismatches_total"); n != 0 {
		t.Errorf("%v entries of the timer index did not fit the log", n)
	}
}

// A member may commit below what is stored, as one that seeks does. It is never silent: the metric counts it on every replica, and a reset not.
func TestCommitsThatGoBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "g1")
	master := c.master("g1")
	w := c.wire(master, "g1")
	w.topic("T", 1)
	w.ok(remoting.UpdateAndCreateSubscriptionGroup, []byte(`{"groupName":"cg"}`))
	for range 10 {
		w.ok(remoting.SendMessage, []byte("x"), sendFields("T")...)
	}
	where := []string{"consumerGroup", "cg", "topic", "T", "queueId", "0"}
	for _, o := range []int64{5, 5, 8, 3, 10, 0} {
		w.ok(remoting.UpdateConsumerOffset, nil, append(where, "commitOffset", strconv.FormatInt(o, 10))...)
		if got := number(t, w.ok(remoting.QueryConsumerOffset, nil, where...), "offset"); got != o {
			t.Errorf("committed %d, and the progress is %d", o, got)
		}
	}
	w.ok(remoting.UpdateConsumerOffset, nil, append(where, "commitOffset", "9")...)
	w.ok(remoting.InvokeBrokerToResetOffset, nil, "topic", "T", "group", "cg", "timestamp", "0", "isForce", "true")
	for _, node := range []string{"n1", "n2", "n3"} {
		eventually(t, 20*time.Second, func() error {
			if n := c.metric(node, "ledgermq_replica_offsets_back_total"); n != 2 {
				return fmt.Errorf("%s counts %v commits that went back, want 2", node, n)
			}
			return nil
		})
	}
}
