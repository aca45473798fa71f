package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// load sends numbered messages with the official Go client and remembers which were answered OK.
type load struct {
	topic   string
	pace    time.Duration
	deliver func(body string) (why string) // "" when it was answered OK
	release func()                         // of the client, once
	stop    context.CancelFunc
	senders sync.WaitGroup
	size    int // how many senders

	ok     atomic.Int64
	failed atomic.Int64
	last   atomic.Int64 // unix ms of the last OK
	gap    atomic.Int64 // longest time without an OK, in ms

	mu    sync.Mutex
	acked map[string]bool
	why   map[string]int // what the failed sends said
}

func newGoProducer(t *testing.T, c *cluster.Cluster, opts ...producer.Option) rocketmq.Producer {
	t.Helper()
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(c.Namesrv)),
		producer.WithGroupName("producers"),
		producer.WithInstanceName(fmt.Sprintf("p%d", instances.Add(1))),
		producer.WithRetry(3),
		producer.WithSendMsgTimeout(2 * time.Second),
	}, opts...)...)
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatalf("the official producer: %v", err)
	}
	return p
}

var instances atomic.Int64 // clients of one instance name share a connection table, which the tests must not

// pace is how often a sender sends: enough that sends are under way at any fault. Senders as fast as their answers would only keep
// both cores of a small machine busy, until members seem dead to each other that are only late.
const pace = 10 * time.Millisecond

// startLoad creates the topic and begins to send, each sender one message after the other.
func startLoad(t *testing.T, c *cluster.Cluster, topic string, senders int) *load {
	t.Helper()
	return startPacedLoad(t, c, topic, senders, pace)
}

// startPacedLoad is startLoad at another pace.
func startPacedLoad(t *testing.T, c *cluster.Cluster, topic string, senders int, pace time.Duration) *load {
	t.Helper()
	createTopic(t, c, topic)
	p := newGoProducer(t, c)
	deliver := func(body string) string {
		r, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
		if err != nil || r.Status != primitive.SendOK {
			return reason(r, err)
		}
		return ""
	}
	return runLoad(t, topic, senders, pace, deliver, func() { p.Shutdown() })
}

// startOwnLoad is startLoad with our own client, which asks for the route when it is refused: a stock client reads it every 30 s.
func startOwnLoad(t *testing.T, c *cluster.Cluster, topic string, senders int) *load {
	t.Helper()
	createTopic(t, c, topic)
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	p := cl.Producer()
	deliver := func(body string) string {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := p.Send(ctx, client.Message{Topic: topic, Body: []byte(body)}); err != nil {
			return reason(nil, err)
		}
		return ""
	}
	return runLoad(t, topic, senders, pace, deliver, cl.Close)
}

func createTopic(t *testing.T, c *cluster.Cluster, topic string) {
	t.Helper()
	if _, err := c.Admin(within(t, 20*time.Second), "topic", "create", topic, "--queues", "4"); err != nil {
		t.Fatal(err)
	}
}

func runLoad(t *testing.T, topic string, senders int, pace time.Duration, deliver func(string) string, release func()) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{topic: topic, size: senders, pace: pace, deliver: deliver, release: sync.OnceFunc(release), stop: stop, acked: make(map[string]bool), why: make(map[string]int)}
	// Of concurrent first sends to a topic the stock client lets all but one fail, until its first route is there.
	eventually(t, 20*time.Second, "a first send", func() (bool, error) { return l.deliver("first:0") == "", nil })
	l.last.Store(time.Now().UnixMilli())
	for s := range senders {
		l.senders.Go(func() { l.send(ctx, s) })
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) send(ctx context.Context, sender int) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-timer.C:
			timer.Reset(l.pace)
		case <-ctx.Done():
			return
		}
		body := fmt.Sprintf("%d:%d", sender, i)
		// Not with ctx: the outcome of the last send is waited for too.
		if why := l.deliver(body); why != "" {
			l.failed.Add(1)
			l.mu.Lock()
			l.why[why]++
			l.mu.Unlock()
			continue
		}
		now := time.Now().UnixMilli()
		gap := now - l.last.Swap(now)
		for longest := l.gap.Load(); gap > longest && !l.gap.CompareAndSwap(longest, gap); longest = l.gap.Load() {
		}
		l.mu.Lock()
		l.acked[body] = true
		l.mu.Unlock()
		l.ok.Add(1)
	}
}

// reason is what a failed send said, without the numbers that make each one new.
func reason(r *primitive.SendResult, err error) string {
	if err == nil {
		return fmt.Sprintf("status %d", r.Status)
	}
	text := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return '#'
		}
		return c
	}, err.Error())
	return text[:min(len(text), 160)]
}

// awaitMore waits until n more messages were answered OK.
func (l *load) awaitMore(t *testing.T, n int64, limit time.Duration) {
	t.Helper()
	from := l.ok.Load()
	eventually(t, limit, fmt.Sprintf("%d more messages", n), func() (bool, error) { return l.ok.Load() >= from+n, nil })
}

// awaitStop waits until sends are refused, every one of them: more of them than there are senders, and none is answered OK meanwhile.
func (l *load) awaitStop(t *testing.T, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "sends stop", func() (bool, error) {
		ok, failed := l.ok.Load(), l.failed.Load()
		eventually(t, 30*time.Second, "sends are refused", func() (bool, error) { return l.failed.Load() > failed+int64(l.size), nil })
		return l.ok.Load() == ok, nil
	})
}

// noneFailed demands that every send so far was answered OK.
func (l *load) noneFailed(t *testing.T) {
	t.Helper()
	if n := l.failed.Load(); n > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Errorf("%d sends to %s failed: %v", n, l.topic, l.why)
	}
}

// end stops the senders and returns what was answered OK.
func (l *load) end() map[string]bool {
	l.stop()
	l.senders.Wait()
	l.release()
	return l.acked
}

// check ends the load and reads every queue back from every replica: each message that was answered OK is on each replica, and
// the replicas have the same bytes.
func (l *load) check(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	acked := l.end()
	t.Logf("%d sends answered OK, %d not, longest gap %d ms; failures: %v", len(acked), l.failed.Load(), l.gap.Load(), l.why)
	if len(acked) == 0 {
		t.Fatal("no send was answered OK")
	}
	found := readEverywhere(t, c, l.topic)
	var lost []string
	for body := range acked {
		if found[body] == 0 {
			lost = append(lost, body)
		}
	}
	sort.Strings(lost)
	if len(lost) > 0 {
		t.Errorf("%d of %d messages that were answered OK are lost: %s …", len(lost), len(acked), strings.Join(lost[:min(5, len(lost))], " "))
	}
	for body := range found {
		if !strings.Contains(body, ":") {
			t.Errorf("a message that nobody sent: %q", body)
		}
	}
}

// readEverywhere reads all queues of a topic from each replica, fails the test unless their bytes are equal, and returns how
// often each body is there.
func readEverywhere(t *testing.T, c *cluster.Cluster, topic string) map[string]int {
	t.Helper()
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx := within(t, 2*time.Minute)
	var route client.Route
	eventually(t, 60*time.Second, "a route with a master in each group", func() (bool, error) {
		if route, err = cl.Route(ctx, topic); err != nil {
			return false, nil
		}
		for _, g := range route.Groups {
			if g.Master() == "" {
				return false, nil
			}
		}
		return len(route.Groups) > 0, nil
	})
	found := make(map[string]int)
	for _, g := range route.Groups {
		var addrs []string
		eventually(t, 30*time.Second, "every replica of "+g.Group+" lives", func() (bool, error) {
			addrs = addrs[:0]
			for _, info := range groups(t, c) {
				if info.Name == g.Group && len(info.Changing) > 0 {
					return false, nil // a replica that leaves may be there still
				}
				for _, r := range info.Replicas {
					if info.Name == g.Group && !r.Live {
						return false, nil
					}
					if info.Name == g.Group {
						addrs = append(addrs, r.Client)
					}
				}
			}
			return true, nil
		})
		if len(addrs) == 0 {
			t.Fatalf("no replica of %s", g.Group)
		}
		for q := range g.ReadQueues {
			ref := client.QueueRef{Group: g.Group, Topic: topic, Queue: ids.QueueID(q)}
			high, err := cl.MaxOffset(ctx, ref)
			if err != nil {
				t.Fatalf("maximum of %v: %v", ref, err)
			}
			var first []byte
			for i, addr := range addrs {
				ref.Broker = addr
				raw := readQueue(t, ctx, cl, ref, high)
				if i == 0 {
					first = raw
					countBodies(t, raw, found)
				} else if !bytes.Equal(raw, first) {
					t.Errorf("%v: %s has other bytes than %s (%d and %d)", ref, addr, addrs[0], len(raw), len(first))
				}
			}
		}
	}
	return found
}

// readQueue reads one queue from one replica, waiting until the replica has all of it.
func readQueue(t *testing.T, ctx context.Context, cl *client.Client, q client.QueueRef, high ids.QueueOffset) []byte {
	t.Helper()
	var raw []byte
	var at ids.QueueOffset
	var last error
	err := jepsen.Await(ctx, fmt.Sprintf("%v at %s up to %d", q, q.Broker, high), func() (bool, error) {
		for at < high {
			r, err := cl.Pull(ctx, q, at, 32, client.PullRaw())
			if err != nil || r.Status != client.PullFound {
				last = err
				if err == nil {
					last = fmt.Errorf("%v at %d", r.Status, at)
				}
				return false, nil
			}
			part, err := below(r.Raw, high)
			if err != nil {
				return false, err
			}
			raw = append(raw, part...)
			at = r.NextOffset
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(errors.Join(err, last))
	}
	return raw
}

// below returns the records whose queue offset is below high: one whose sender never got an answer may come after the maximum
// was read.
func below(raw []byte, high ids.QueueOffset) ([]byte, error) {
	n := 0
	for n < len(raw) {
		m, size, err := message.Decode(raw[n:])
		if err != nil {
			return nil, fmt.Errorf("a record that was read back: %w", err)
		}
		if m.QueueOffset >= high {
			break
		}
		n += size
	}
	return raw[:n], nil
}

func countBodies(t *testing.T, raw []byte, found map[string]int) {
	t.Helper()
	for len(raw) > 0 {
		m, n, err := message.Decode(raw)
		if err != nil {
			t.Fatalf("a record that was read back: %v", err)
		}
		found[string(m.Body)]++
		raw = raw[n:]
	}
}
