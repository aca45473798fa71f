package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

// TestFirstSteps runs what README.md shows for the official Go client.
func TestFirstSteps(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{})
	done := make(chan error, 1)
	go func() { done <- firstSteps(c.Namesrv[0]) }() // ends with firstSteps
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(90 * time.Second):
		t.Fatal("the first steps take longer than 90 s")
	}
}

func firstSteps(namesrv string) error {
	// README begin
	servers := primitive.NewPassthroughResolver([]string{namesrv}) // "127.0.0.1:9876"
	p, err := rocketmq.NewProducer(producer.WithNsResolver(servers), producer.WithGroupName("my-producers"))
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	defer p.Shutdown()
	m := primitive.NewMessage("Orders", []byte("hello")).WithTag("paid").WithKeys([]string{"order-1"})
	sent, err := p.SendSync(context.Background(), m)
	if err != nil {
		return err
	}
	fmt.Println(sent.Status, sent.MessageQueue, sent.QueueOffset)

	received := make(chan *primitive.MessageExt, 1)
	c, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(servers), consumer.WithGroupName("my-consumers"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	paid := consumer.MessageSelector{Type: consumer.TAG, Expression: "paid"}
	err = c.Subscribe("Orders", paid, func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		received <- ms[0]
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer c.Shutdown()
	got := <-received
	fmt.Println(got.GetKeys(), string(got.Body))
	// README end
	if string(got.Body) != "hello" || got.GetKeys() != "order-1" {
		return fmt.Errorf("got %s with the keys %s", got.Body, got.GetKeys())
	}
	return nil
}
