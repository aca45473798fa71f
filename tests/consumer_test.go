package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// consume subscribes to topics, with commas between, with the official Go push consumer; see is called for every message, from many goroutines.
func consume(t *testing.T, c *cluster.Cluster, topics, group string, see func(m *primitive.MessageExt) consumer.ConsumeResult,
	opts ...consumer.Option) {
	t.Helper()
	opts = append([]consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver(c.Namesrv)),
		consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("c%d", instances.Add(1))),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, opts...)
	k, err := rocketmq.NewPushConsumer(opts...)
	if err != nil {
		t.Fatal(err)
	}
	for topic := range strings.SplitSeq(topics, ",") {
		err = errors.Join(err, k.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			result := consumer.ConsumeSuccess
			for _, m := range ms {
				if r := see(m); r != consumer.ConsumeSuccess {
					result = r
				}
			}
			return result, nil
		}))
	}
	if err == nil {
		err = k.Start()
	}
	if err != nil {
		t.Fatalf("the official consumer: %v", err)
	}
	t.Cleanup(func() { k.Shutdown() })
}

// startConsumer counts what it receives.
func startConsumer(t *testing.T, c *cluster.Cluster, topic, group string) *atomic.Int64 {
	t.Helper()
	received := &atomic.Int64{}
	consume(t, c, topic, group, func(*primitive.MessageExt) consumer.ConsumeResult {
		received.Add(1)
		return consumer.ConsumeSuccess
	})
	return received
}

// bodies collects what was received, each with its number of deliveries.
type bodies struct {
	mu  sync.Mutex
	got map[string]int
}

func (b *bodies) add(m *primitive.MessageExt) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.got == nil {
		b.got = make(map[string]int)
	}
	b.got[string(m.Body)]++
	return b.got[string(m.Body)]
}

func (b *bodies) has(all map[string]bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for body := range all {
		if b.got[body] == 0 {
			return false
		}
	}
	return true
}

// TestConsumeThroughKill consumes with the official Go client while the master dies: every message that was answered OK arrives.
func TestConsumeThroughKill(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	l := startPacedLoad(t, c, "ConsumeThroughKill", 4, 5*time.Millisecond)
	l.awaitMore(t, 50, 30*time.Second)
	got := &bodies{}
	consume(t, c, "ConsumeThroughKill", "readers", func(m *primitive.MessageExt) consumer.ConsumeResult {
		got.add(m)
		return consumer.ConsumeSuccess
	})
	node := masterOf(t, c, "g1")
	kill(t, c, node)
	l.awaitMore(t, 200, 60*time.Second)
	restart(t, c, node)
	acked := l.end()
	// A stock client reads its routes every 30 s, and rebalances every 20 s.
	eventually(t, 2*time.Minute, "every acknowledged message", func() (bool, error) { return got.has(acked), nil })
	l.check(t, c)
}

// TestRetriesEndAsDeadLetters refuses one message again and again with the official Go client.
func TestRetriesEndAsDeadLetters(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	p := newGoProducer(t, c)
	defer p.Shutdown()
	for _, body := range []string{"good", "bad"} {
		if _, err := p.SendSync(t.Context(), primitive.NewMessage("Retries", []byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	var bad, good atomic.Int64
	var mu sync.Mutex
	var deliveries []int32 // retry counts; the client changes the message afterwards
	consume(t, c, "Retries", "picky", func(m *primitive.MessageExt) consumer.ConsumeResult {
		if string(m.Body) == "bad" {
			mu.Lock()
			deliveries = append(deliveries, m.ReconsumeTimes)
			mu.Unlock()
			bad.Add(1)
			return consumer.ConsumeRetryLater
		}
		good.Add(1)
		return consumer.ConsumeSuccess
	}, consumer.WithMaxReconsumeTimes(1)) // it comes after 10 s
	eventually(t, time.Minute, "two deliveries", func() (bool, error) { return bad.Load() >= 2 && good.Load() >= 1, nil })
	eventually(t, time.Minute, "the dead letter", func() (bool, error) {
		out, err := c.Run(t.Context(), "consume", "%DLQ%picky", "--count", "1", "--idle", "1s", "--namesrv", c.Namesrv[0])
		if err != nil && !isExit(err) {
			return false, err
		}
		return strings.HasSuffix(out, " bad\n"), nil
	})
	// Repetitions are allowed, as always: a client that gets no answer to its request for a retry asks for it in another way.
	// But no delivery has a count above the maximum, and none is left out.
	mu.Lock()
	defer mu.Unlock()
	counts := make(map[int32]bool)
	for _, d := range deliveries {
		counts[d] = true
	}
	if len(counts) != 2 || !counts[0] || !counts[1] {
		t.Errorf("deliveries with the retry counts %v, want 0 and 1", deliveries)
	}
	if n := len(deliveries); n > 6 {
		t.Errorf("%d deliveries of one message", n)
	}
}

func isExit(err error) bool {
	_, ok := err.(*cluster.ExitError)
	return ok
}
