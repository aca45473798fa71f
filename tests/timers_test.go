package tests

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestDelayLevelsThroughKill sends delayed messages with the official Go client, and kills the master while the first ones fire and others
// still wait: each is delivered once, on every replica, and none before its time.
func TestDelayLevelsThroughKill(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Groups: 1})
	const topic = "DelayLevels"
	createTopic(t, c, topic)
	p := newGoProducer(t, c, producer.WithRetry(0)) // a send that the client repeats may be delivered as often
	delays := map[int]time.Duration{1: time.Second, 2: 5 * time.Second, 3: 10 * time.Second}
	sent := map[string]bool{}
	send := func(i int) {
		level := 1 + i%3
		body := fmt.Sprintf("%d %d %d", level, time.Now().UnixMilli(), i)
		m := primitive.NewMessage(topic, []byte(body)).WithDelayTimeLevel(level)
		r, err := p.SendSync(within(t, 10*time.Second), m)
		if err == nil && r.Status == primitive.SendOK {
			sent[body] = true
		}
	}
	for i := range 300 {
		send(i)
	}
	if len(sent) < 290 {
		t.Fatalf("%d of 300 delayed sends were answered OK", len(sent))
	}
	var mu sync.Mutex
	received := map[string]int64{}
	consume(t, c, topic, "delayed", func(m *primitive.MessageExt) consumer.ConsumeResult {
		mu.Lock()
		defer mu.Unlock()
		received[string(m.Body)] = m.StoreTimestamp
		return consumer.ConsumeSuccess
	})
	eventually(t, 30*time.Second, "the first delayed messages", func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return len(received) > 0, nil
	})
	node := masterOf(t, c, "g1")
	kill(t, c, node)
	awaitOtherMaster(t, c, node, 30*time.Second)
	restart(t, c, node)
	// A stock client reads its routes every 30 s.
	eventually(t, 2*time.Minute, "every delayed message", func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		for body := range sent {
			if received[body] == 0 {
				return false, nil
			}
		}
		return true, nil
	})
	for body, n := range readEverywhere(t, c, topic) {
		if n != 1 {
			t.Errorf("%q was delivered %d times", body, n)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for body, stored := range received {
		f := strings.Fields(body)
		level, _ := strconv.Atoi(f[0])
		at, _ := strconv.ParseInt(f[1], 10, 64)
		if early := at + delays[level].Milliseconds() - stored; early > 0 {
			t.Errorf("%q was delivered %d ms before its time", body, early)
		}
	}
}
