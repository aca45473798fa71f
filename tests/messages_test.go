package tests

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestKindsOfMessages sends and consumes with the official Go client what is more than a plain message, and looks at it with the operator's commands.
func TestKindsOfMessages(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	t.Run("kinds", func(t *testing.T) { // ends when all of them have, before the cluster does
		for name, f := range map[string]func(*testing.T, *cluster.Cluster){"traced": traced, "packed": packed, "batch": batch, "broadcast": broadcast, "ordered": ordered} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t, c)
			})
		}
	})
}

// producerWith is newGoProducer with more options.
func producerWith(t *testing.T, c *cluster.Cluster, opts ...producer.Option) rocketmq.Producer {
	t.Helper()
	p, err := rocketmq.NewProducer(append([]producer.Option{producer.WithNsResolver(primitive.NewPassthroughResolver(c.Namesrv)), producer.WithGroupName("kinds"),
		producer.WithInstanceName(fmt.Sprintf("k%d", instances.Add(1))), producer.WithRetry(3)}, opts...)...)
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatalf("the official producer: %v", err)
	}
	t.Cleanup(func() { p.Shutdown() })
	return p
}

// sendAll sends messages in one call, and returns what the client says of them.
func sendAll(t *testing.T, p rocketmq.Producer, ms ...*primitive.Message) *primitive.SendResult {
	t.Helper()
	r, err := p.SendSync(t.Context(), ms...)
	if err != nil || r.Status != primitive.SendOK {
		t.Fatalf("send: %v, %v", r, err)
	}
	return r
}

// A client with tracing on needs no hand: its records are there, and `admin trace` shows the message's whole way.
func traced(t *testing.T, c *cluster.Cluster) {
	trace := func() *primitive.TraceConfig {
		return &primitive.TraceConfig{GroupName: fmt.Sprintf("tracers%d", instances.Add(1)), Access: primitive.Local, NamesrvAddrs: c.Namesrv}
	}
	p := producerWith(t, c, producer.WithTrace(trace()))
	sent := sendAll(t, p, primitive.NewMessage("Traced", []byte("look at me")).WithTag("paid").WithKeys([]string{"order-9", "customer-3"}))
	var tries atomic.Int64
	consume(t, c, "Traced", "watchers", func(*primitive.MessageExt) consumer.ConsumeResult {
		if tries.Add(1) == 1 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	}, consumer.WithTrace(trace()))
	type place struct{ Place, OffsetMessageID string }
	var v struct {
		ID, Topic string
		Stored    []place
		Waiting   []struct{ Topic, Group string }
		Consumers []struct {
			Group       string
			Progress    []struct{ Past bool }
			Retries     []place
			DeadLetters []place
		}
		Records []struct {
			Kind, Group string
			Success     *bool
		}
		Unread int
	}
	// The client keeps its records back for up to five seconds, half of what the repetition has to wait: the topic is named here.
	eventually(t, 90*time.Second, "the repetition that has to wait", func() (bool, error) {
		w := v
		err := c.AdminJSON(t.Context(), &w, "trace", sent.MsgID, "--topic", "Traced")
		return len(w.Waiting) == 1 && w.Waiting[0].Topic == "%RETRY%watchers", err
	})
	eventually(t, 90*time.Second, "the whole way of the message", func() (bool, error) {
		if err := c.AdminJSON(t.Context(), &v, "trace", sent.MsgID); err != nil { // the topic is known from the trace
			return false, nil
		}
		failed, done := 0, 0
		for _, r := range v.Records {
			if r.Kind == "SubAfter" && r.Group == "watchers" {
				if *r.Success {
					done++
				} else {
					failed++
				}
			}
		}
		return len(v.Consumers) == 1 && len(v.Consumers[0].Progress) == 1 && v.Consumers[0].Progress[0].Past && failed > 0 && done > 0, nil
	})
	if v.ID != sent.MsgID || v.Topic != "Traced" || len(v.Stored) != 1 || v.Stored[0].OffsetMessageID != sent.OffsetMsgID || v.Consumers[0].Group != "watchers" ||
		len(v.Consumers[0].Retries) == 0 || len(v.Consumers[0].DeadLetters) != 0 || v.Records[0].Kind != "Pub" || v.Records[0].Success == nil || !*v.Records[0].Success || v.Unread != 0 {
		t.Errorf("the trace: %+v", v)
	}
	if len(v.Waiting) != 0 {
		t.Errorf("after its repetition %d wait", len(v.Waiting))
	}
	for _, id := range []string{sent.OffsetMsgID, v.Stored[0].Place} {
		w := v
		if err := c.AdminJSON(t.Context(), &w, "trace", id); err != nil || w.ID != sent.MsgID || w.Topic != "Traced" || len(w.Stored) != 1 {
			t.Errorf("the trace of %s: %+v, %v", id, w, err)
		}
	}
	// The same message, found in each way, is the same.
	for _, args := range [][]string{{"--unique", sent.MsgID}, {"--key", "order-9"}, {"--key", "customer-3"}, {"--tag", "paid"}, {}, {"--key", "order-9", "--from", "2026-01-01T00:00:00Z", "--until", "2126-01-01T00:00:00Z"}} {
		var found []struct{ OffsetMessageID, Body string }
		if err := c.AdminJSON(t.Context(), &found, append([]string{"message", "find", "Traced"}, args...)...); err != nil || len(found) != 1 || found[0].OffsetMessageID != sent.OffsetMsgID || found[0].Body != "look at me" {
			t.Errorf("find %v: %+v, %v", args, found, err)
		}
	}
	for _, at := range []string{sent.OffsetMsgID, strings.ToLower(sent.OffsetMsgID), v.Stored[0].Place} {
		var m struct{ MessageID, Body string }
		if err := c.AdminJSON(t.Context(), &m, "message", "show", at); err != nil || m.MessageID != sent.MsgID || m.Body != "look at me" {
			t.Errorf("show %s: %+v, %v", at, m, err)
		}
	}
	for want, args := range map[string][]string{
		"finds a message by its unique id":     {"message", "show", sent.MsgID},
		"has no message 1":                     {"message", "show", strings.TrimSuffix(v.Stored[0].Place, "0") + "1"},
		"is not in group g9":                   {"message", "show", "Traced/g9/0@0"},
		"no such topic":                        {"message", "find", "Nowhere", "--key", "k"},
		"give the message's topic":             {"trace", "C0000202165E216FE9FF943AF3B20000"},
		"no message of topic Traced has":       {"trace", "C0000202165E216FE9FF943AF3B20000", "--topic", "Traced"},
		"the topic name \"a b\" has other cha": {"trace", "x", "--topic", "a b"},
	} {
		code := 1
		if strings.HasPrefix(want, "the topic name") || args[1] == "show" && strings.Contains(want, "unique id") {
			code = 2
		}
		_, err := c.Admin(t.Context(), args...)
		refused(t, err, code, want)
	}
}

// A body that the client packed is stored as it was sent, and comes back as it was before.
func packed(t *testing.T, c *cluster.Cluster) {
	plain := bytes.Repeat([]byte("all work and no play makes a dull log. "), 2000)
	p := producerWith(t, c, producer.WithCompressMsgBodyOverHowmuch(1024), producer.WithCompressLevel(9))
	sent := sendAll(t, p, primitive.NewMessage("Packed", plain))
	got := make(chan []byte, 8)
	consume(t, c, "Packed", "unpackers", func(m *primitive.MessageExt) consumer.ConsumeResult {
		got <- m.Body
		return consumer.ConsumeSuccess
	})
	select {
	case body := <-got:
		if !bytes.Equal(body, plain) {
			t.Errorf("the consumer got %d bytes, %d were sent", len(body), len(plain))
		}
	case <-within(t, time.Minute).Done():
		t.Fatal("the packed message did not arrive")
	}
	cl, err := client.New(c.Namesrv)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	r, err := cl.Pull(t.Context(), client.QueueRef{Group: "g1", Topic: "Packed", Queue: queueID(sent)}, offsetOf(sent), 1, client.PullRaw())
	if err != nil || len(r.Messages) != 1 {
		t.Fatalf("pull: %v, %v", r, err)
	}
	stored, _, err := message.Decode(r.Raw)
	if err != nil || stored.SysFlag&message.SysCompressed == 0 || len(stored.Body) > len(plain)/10 || !bytes.Equal(r.Messages[0].Body, plain) {
		t.Errorf("stored with the flags %x and %d bytes, unpacked %d: %v", stored.SysFlag, len(stored.Body), len(r.Messages[0].Body), err)
	}
}

// The messages of a batch lie one behind the other, and each is found by its own key.
func batch(t *testing.T, c *cluster.Cluster) {
	p := producerWith(t, c)
	var ms []*primitive.Message
	for i := range 5 {
		ms = append(ms, primitive.NewMessage("Batch", fmt.Appendf(nil, "part %d", i)).WithKeys([]string{fmt.Sprintf("part-%d", i), "all"}))
	}
	sent := sendAll(t, p, ms...)
	var all []struct {
		Queue, Offset int64
		Body          string
	}
	if err := c.AdminJSON(t.Context(), &all, "message", "find", "Batch", "--key", "all"); err != nil || len(all) != 5 {
		t.Fatalf("%d messages, %v", len(all), err)
	}
	for i, m := range all {
		if m.Body != fmt.Sprintf("part %d", i) || m.Queue != int64(queueID(sent)) || m.Offset != sent.QueueOffset+int64(i) {
			t.Errorf("message %d: %+v, the first was sent to %d@%d", i, m, queueID(sent), sent.QueueOffset)
		}
		one := all[:0:0]
		if err := c.AdminJSON(t.Context(), &one, "message", "find", "Batch", "--key", fmt.Sprintf("part-%d", i)); err != nil || len(one) != 1 || one[0] != m {
			t.Errorf("part %d: %+v, %v", i, one, err)
		}
	}
}

// Every member of a broadcasting group gets every message.
func broadcast(t *testing.T, c *cluster.Cluster) {
	p := producerWith(t, c)
	want := map[string]bool{}
	send := func(from, to int) {
		for i := from; i < to; i++ {
			body := fmt.Sprintf("news %d", i)
			sendAll(t, p, primitive.NewMessage("News", []byte(body)))
			want[body] = true
		}
	}
	send(0, 1) // there is a topic to subscribe to
	// The client keeps the offsets of such a group in a folder of the home directory, named after the group.
	group := fmt.Sprintf("listeners-%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() {
		if err := os.RemoveAll(filepath.Join(os.Getenv("HOME"), ".rocketmq_client_go", group)); err != nil {
			t.Error(err)
		}
	})
	members := []*bodies{{}, {}}
	for _, b := range members {
		consume(t, c, "News", group, func(m *primitive.MessageExt) consumer.ConsumeResult {
			b.add(m)
			return consumer.ConsumeSuccess
		}, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	send(1, 20)
	for i, b := range members {
		eventually(t, time.Minute, fmt.Sprintf("all news at member %d", i), func() (bool, error) { return b.has(want), nil })
	}
	var shown struct {
		Broadcasting bool
		Members      []string
		Lag          *int64
		Queues       []struct{ Lag *int64 }
	}
	if err := c.AdminJSON(t.Context(), &shown, "consumer", "show", group, "--topic", "News"); err != nil || !shown.Broadcasting || len(shown.Members) != 2 || shown.Lag != nil ||
		len(shown.Queues) == 0 || shown.Queues[0].Lag != nil {
		t.Errorf("a lag that nobody knows: %+v, %v", shown, err)
	}
}

// The messages of one key are consumed in the order in which they were sent. A second member would wait for the first one's locks for a minute, by its own
// timers: that queues change hands in order is what the Java client's case shows.
func ordered(t *testing.T, c *cluster.Cluster) {
	p := producerWith(t, c, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	const keys, each = 8, 25
	send := func(key, n int) {
		sendAll(t, p, primitive.NewMessage("Ordered", fmt.Appendf(nil, "%d", n)).WithShardingKey(fmt.Sprintf("key-%d", key)))
	}
	for k := range keys {
		send(k, 0)
	}
	var mu sync.Mutex
	seen := map[string][]string{}
	count := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, list := range seen {
			n += len(list)
		}
		return n
	}
	consume(t, c, "Ordered", "queuers", func(m *primitive.MessageExt) consumer.ConsumeResult {
		mu.Lock()
		defer mu.Unlock()
		seen[m.GetShardingKey()] = append(seen[m.GetShardingKey()], string(m.Body))
		return consumer.ConsumeSuccess
	}, consumer.WithConsumerOrder(true))
	for n := 1; n < each; n++ {
		for k := range keys {
			send(k, n)
		}
	}
	eventually(t, 2*time.Minute, "all ordered messages", func() (bool, error) { return count() >= keys*each, nil })
	mu.Lock()
	defer mu.Unlock()
	for key, list := range seen {
		// A queue may be read again from where its owner had committed; never out of order.
		next := 0
		for i, body := range list {
			var n int
			if _, err := fmt.Sscan(body, &n); err != nil || n > next {
				t.Fatalf("%s: %q at place %d, out of order: %q", key, body, i, list)
			}
			next = max(next, n+1)
		}
		if next != each || !slices.Contains(list, "0") {
			t.Errorf("%s: %q", key, list)
		}
	}
}

func queueID(r *primitive.SendResult) ids.QueueID { return ids.QueueID(r.MessageQueue.QueueId) }

func offsetOf(r *primitive.SendResult) ids.QueueOffset { return ids.QueueOffset(r.QueueOffset) }
