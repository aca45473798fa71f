// Package goclient drives Apache's official Go client for package jepsen, so that the runs and the measurements that our own client
// goes through can be done with the client that applications have. It knows nothing of the cluster but the name server's address.
//
// What New's driver guarantees: a value is sent once, the client's own retries are off, so that a value which is there twice is the cluster's
// doing. An outcome is NotStored only where the broker says so in its answer, or the client has not found a broker; every other
// failure is Unknown. Sessions share nothing; the methods of one have one caller at a time, as jepsen.Session says.
package goclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/ledgermq/ledgermq/jepsen"
)

// New returns the driver. It silences the official client's log for the whole process.
func New() jepsen.Driver {
	rlog.SetLogLevel("fatal")
	return driver{}
}

// Defaults returns a driver whose producers have the client's own defaults: they retry, and take the queues in turn. A value may be there
// more than once.
func Defaults() jepsen.Driver {
	rlog.SetLogLevel("fatal")
	return driver{defaults: true}
}

type driver struct{ defaults bool }

func (driver) Name() string { return "go" }

func (d driver) Open(_ context.Context, namesrv []string, topic, group string) (jepsen.Session, error) {
	s := &session{namesrv: namesrv, topic: topic, group: group, defaults: d.defaults, got: make(chan []jepsen.Read), closed: make(chan struct{})}
	return s, nil
}

// instances numbers clients: those of one instance name share their connections and their routes.
var instances atomic.Int64

func instance() string { return fmt.Sprintf("jepsen-%d", instances.Add(1)) }

const sendTimeout = 3 * time.Second

// session makes what it needs when it is first asked for it.
type session struct {
	namesrv      []string
	topic, group string
	defaults     bool
	producer     rocketmq.Producer
	puller       rocketmq.PullConsumer
	pusher       rocketmq.PushConsumer
	got          chan []jepsen.Read // from the push consumer's goroutines
	closed       chan struct{}
	teller       rocketmq.TransactionProducer
	decide       jepsen.Decide
	begun        bool // of the one transaction that is being sent: its half message was OK
}

func (s *session) open() error {
	if s.producer != nil {
		return nil
	}
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(s.namesrv)),
		producer.WithGroupName("producers"), producer.WithInstanceName(instance()),
	}
	if !s.defaults {
		options = append(options, producer.WithRetry(0), producer.WithSendMsgTimeout(sendTimeout),
			producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	s.producer = p
	return nil
}

func (s *session) Send(ctx context.Context, key, value string) (int, int64, jepsen.Outcome, error) {
	if err := s.open(); err != nil {
		return 0, 0, jepsen.NotStored, err
	}
	m := primitive.NewMessage(s.topic, []byte(value))
	if key != "" {
		m.WithShardingKey(key)
	}
	r, err := s.producer.SendSync(ctx, m)
	outcome, err := outcomeOf(r, err)
	if outcome != jepsen.OK {
		return 0, 0, outcome, err
	}
	return r.MessageQueue.QueueId, r.QueueOffset, jepsen.OK, nil
}

func outcomeOf(r *primitive.SendResult, err error) (jepsen.Outcome, error) {
	switch {
	case err == nil && r.Status == primitive.SendOK:
		return jepsen.OK, nil
	case err == nil:
		return jepsen.Unknown, fmt.Errorf("status %d", r.Status)
	case strings.Contains(err.Error(), "[NOT_STORED]") || strings.Contains(err.Error(), "route info not found"):
		return jepsen.NotStored, err
	}
	return jepsen.Unknown, err
}

// SendLater has no handle: this client cannot recall.
func (s *session) SendLater(ctx context.Context, value string, w jepsen.Wait) (any, jepsen.Outcome, error) {
	if err := s.open(); err != nil {
		return nil, jepsen.NotStored, err
	}
	m := primitive.NewMessage(s.topic, []byte(value))
	m.WithProperties(w.Properties())
	outcome, err := outcomeOf(s.producer.SendSync(ctx, m))
	return nil, outcome, err
}

// Tell has one transaction producer per session, which calls the listener that the session is while it sends.
func (s *session) Tell(ctx context.Context, group, value string, decide jepsen.Decide) (jepsen.Outcome, error) {
	if s.teller == nil {
		s.decide = decide
		p, err := rocketmq.NewTransactionProducer(s,
			producer.WithNsResolver(primitive.NewPassthroughResolver(s.namesrv)), producer.WithGroupName(group),
			producer.WithInstanceName(instance()), producer.WithRetry(0), producer.WithSendMsgTimeout(sendTimeout),
		)
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			return jepsen.NotStored, err
		}
		s.teller = p
	}
	m := primitive.NewMessage(s.topic, []byte(value))
	m.WithKeys([]string{value})
	m.WithProperty(primitive.PropertyCheckImmunityTimeInSeconds, "1")
	s.begun = false
	r, err := s.teller.SendMessageInTransaction(ctx, m)
	if s.begun {
		return jepsen.OK, nil
	}
	var sent *primitive.SendResult
	if r != nil {
		sent = r.SendResult
	}
	return outcomeOf(sent, err)
}

// ExecuteLocalTransaction is called by Tell, when the half message is OK.
func (s *session) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	s.begun = true
	return s.state(m.Body, false)
}

// CheckLocalTransaction is called when a broker asks.
func (s *session) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	return s.state(m.Body, true)
}

func (s *session) state(value []byte, asked bool) primitive.LocalTransactionState {
	switch commit, known := s.decide(string(value), asked); {
	case !known:
		return primitive.UnkonwnState
	case commit:
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (s *session) Poll(ctx context.Context, queue int, offset int64) ([]jepsen.Read, int64, error) {
	if s.puller == nil {
		p, err := rocketmq.NewPullConsumer(
			consumer.WithNsResolver(primitive.NewPassthroughResolver(s.namesrv)),
			consumer.WithGroupName("pollers-"+s.topic), consumer.WithInstance(instance()),
		)
		if err == nil {
			err = p.Assign(s.topic, nil) // nothing is pulled but what is asked for
		}
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			return nil, 0, err
		}
		s.puller = p
	}
	r, err := s.puller.PullFrom(ctx, &primitive.MessageQueue{Topic: s.topic, BrokerName: jepsen.Group, QueueId: queue}, offset, 32)
	if err != nil {
		return nil, 0, err
	}
	switch r.Status {
	case primitive.PullFound:
		return readsOf(r.GetMessageExts()), r.NextBeginOffset, nil
	case primitive.PullNoNewMsg:
		return nil, offset, nil
	}
	return nil, 0, fmt.Errorf("a pull at %d, of a queue that holds %d to %d: status %d", offset, r.MinOffset, r.MaxOffset, r.Status)
}

func readsOf(messages []*primitive.MessageExt) []jepsen.Read {
	reads := make([]jepsen.Read, len(messages))
	for i, m := range messages {
		reads[i] = jepsen.Read{Queue: m.Queue.QueueId, Offset: m.QueueOffset, Value: string(m.Body), Stored: m.StoreTimestamp}
	}
	return reads
}

func (s *session) Consume(ctx context.Context) ([]jepsen.Read, error) {
	if s.pusher == nil {
		k, err := rocketmq.NewPushConsumer(
			consumer.WithNsResolver(primitive.NewPassthroughResolver(s.namesrv)),
			consumer.WithGroupName(s.group), consumer.WithInstance(instance()),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumeMessageBatchMaxSize(32),
		)
		if err == nil {
			err = k.Subscribe(s.topic, consumer.MessageSelector{}, s.take)
		}
		if err == nil {
			err = k.Start()
		}
		if err != nil {
			return nil, err
		}
		s.pusher = k
	}
	select {
	case reads := <-s.got:
		return reads, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// take hands messages over. What nobody takes is consumed later.
func (s *session) take(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	select {
	case s.got <- jepsen.Got(readsOf(messages), time.Now()):
		return consumer.ConsumeSuccess, nil
	case <-s.closed:
		return consumer.ConsumeRetryLater, errors.New("closed")
	}
}

func (s *session) Close() {
	close(s.closed)
	if s.producer != nil {
		s.producer.Shutdown()
	}
	if s.teller != nil {
		s.teller.Shutdown()
	}
	if s.puller != nil {
		s.puller.Shutdown()
	}
	if s.pusher != nil {
		s.pusher.Shutdown()
	}
}
