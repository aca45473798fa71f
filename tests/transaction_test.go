package tests

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// localStore is the local side of transactions: what was carried out. A message whose body begins with c is committed at once, one with r
// rolled back, one with u only when the broker asks.
type localStore struct {
	mu   sync.Mutex
	done map[string]bool
	sent map[string]bool // the half message was answered OK
}

func (s *localStore) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	body := string(m.Body)
	s.sent[body] = true
	switch body[0] {
	case 'c':
		s.done[body] = true
		return primitive.CommitMessageState
	case 'u':
		s.done[body] = true
		return primitive.UnkonwnState
	}
	return primitive.RollbackMessageState
}

func (s *localStore) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[string(m.Body)] {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState // also what was never carried out, because its half message had no answer
}

// TestTransactionsThroughKill sends transactions with the official Go client while a master is killed. In the end nothing is pending: what was
// carried out locally is in the queues once, nothing else is, on all replicas.
func TestTransactionsThroughKill(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	const topic = "Transactions"
	if _, err := c.Admin(t.Context(), "topic", "create", topic, "--queues", "2"); err != nil {
		t.Fatal(err)
	}
	store := &localStore{done: map[string]bool{}, sent: map[string]bool{}}
	p, err := rocketmq.NewTransactionProducer(store,
		producer.WithNsResolver(primitive.NewPassthroughResolver(c.Namesrv)),
		producer.WithGroupName("tellers"),
		producer.WithInstanceName(fmt.Sprintf("t%d", instances.Add(1))),
		producer.WithRetry(0), // a second half message of the same body would be a second transaction
		producer.WithSendMsgTimeout(2*time.Second),
	)
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatalf("the official producer: %v", err)
	}
	t.Cleanup(func() { p.Shutdown() })
	n := 0
	sendUntil := func(ok int) {
		t.Helper()
		for good, limit := 0, time.Now().Add(90*time.Second); good < ok; n++ {
			m := primitive.NewMessage(topic, fmt.Appendf(nil, "%c%d", "curcc"[n%5], n))
			m.WithProperty(primitive.PropertyCheckImmunityTimeInSeconds, "1")
			if _, err := p.SendMessageInTransaction(t.Context(), m); err == nil {
				good++
			}
			if time.Now().After(limit) {
				t.Fatalf("%d of %d transactions within 90 s", good, ok)
			}
		}
	}
	sendUntil(60)
	node := masterOf(t, c, "g1")
	kill(t, c, node)
	sendUntil(60)
	awaitOtherMaster(t, c, node, 30*time.Second)
	restart(t, c, node)
	sendUntil(30)
	eventually(t, 3*time.Minute, "no transaction is pending", func() (bool, error) {
		var list []client.Transaction
		err := c.AdminJSON(t.Context(), &list, "tx", "list", "--producer-group", "tellers")
		return err == nil && len(list) == 0, nil
	})
	found := readEverywhere(t, c, topic)
	store.mu.Lock()
	defer store.mu.Unlock()
	t.Logf("%d transactions, %d half messages answered OK, %d carried out, %d in the queues", n, len(store.sent), len(store.done), len(found))
	for body := range store.done {
		if found[body] != 1 {
			t.Errorf("%q was carried out, and is in the queues %d times", body, found[body])
		}
		delete(found, body)
	}
	for body, times := range found {
		t.Errorf("%q was not carried out, and is in the queues %d times", body, times)
	}
}
