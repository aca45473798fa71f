package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/ledgermq/ledgermq/jepsen"
)

// Cases of the official Go client.

// instances numbers the clients: those of one name share their connections and their routes.
var instances atomic.Int64

func instance() string { return fmt.Sprintf("conformance-%d", instances.Add(1)) }

func (e *Env) producerOptions() []producer.Option {
	return []producer.Option{producer.WithNsResolver(primitive.NewPassthroughResolver(e.Namesrv)), producer.WithGroupName(e.Group("producers")),
		producer.WithInstanceName(instance()), producer.WithQueueSelector(producer.NewManualQueueSelector())}
}

// producer starts one that sends where a message says. It ends with the case.
func (e *Env) producer(more ...producer.Option) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(append(e.producerOptions(), more...)...)
	if err == nil {
		err = p.Start()
	}
	if err == nil {
		e.atEnd(func() { p.Shutdown() })
	}
	return p, err
}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// consumer starts a push consumer that begins with the first message. It ends with the case.
func (e *Env) consumer(group, topic string, f listener, more ...consumer.Option) (rocketmq.PushConsumer, error) {
	c, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver(e.Namesrv)), consumer.WithGroupName(group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)...)
	if err == nil {
		err = c.Subscribe(topic, consumer.MessageSelector{}, f)
	}
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		e.atEnd(func() { c.Shutdown() })
	}
	return c, err
}

// to is a message for a queue of the case's topic.
func (e *Env) to(queue int, body string) *primitive.Message {
	m := primitive.NewMessage(e.Topic(), []byte(body))
	m.WithKeys([]string{"k"})
	m.WithTag("A")
	m.Queue = &primitive.MessageQueue{Topic: e.Topic(), BrokerName: group, QueueId: queue}
	return m
}

// collected is what a consumer got.
type collected struct {
	mu   sync.Mutex
	list []*primitive.MessageExt
}

func (c *collected) take(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, messages...)
	return consumer.ConsumeSuccess, nil
}

func (c *collected) all() []*primitive.MessageExt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// firsts are the first ones with each body, in the order of bodies: a client that got no answer in time sends again.
func (c *collected) firsts() []*primitive.MessageExt {
	list := c.all()
	slices.SortStableFunc(list, func(a, b *primitive.MessageExt) int { return strings.Compare(string(a.Body), string(b.Body)) })
	return slices.CompactFunc(list, func(a, b *primitive.MessageExt) bool { return string(a.Body) == string(b.Body) })
}

// bodies are the different bodies, in order.
func (c *collected) bodies() []string {
	set := make(map[string]bool)
	for _, m := range c.all() {
		set[string(m.Body)] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// await waits until so many different messages have come.
func (c *collected) await(e *Env, count int) error {
	return jepsen.Await(e, fmt.Sprintf("%d messages", count), func() (bool, error) { return len(c.bodies()) >= count, nil })
}

// message prints what a listener sees of a message.
func (e *Env) message(key string, m *primitive.MessageExt) {
	e.Print(key+".topic", m.Topic)
	e.Print(key+".queue", fmt.Sprintf("%d @%d of %s", m.Queue.QueueId, m.QueueOffset, m.Queue.BrokerName))
	e.Print(key+".flags", fmt.Sprintf("%d, system %d, reconsumeTimes %d, prepared %t", m.Flag, m.SysFlag, m.ReconsumeTimes, m.PreparedTransactionOffset > 0))
	e.Print(key+".body", string(m.Body))
	e.Print(key+".ids", plain(m.MsgId+" "+m.OffsetMsgId+" "+m.TransactionId))
	for name, value := range m.GetProperties() {
		switch name {
		case "MAX_OFFSET", "MIN_OFFSET", "CONSUME_START_TIME":
			value = "there" // how far the queue went when the message was pulled is chance
		}
		e.Print(key+".property."+name, plain(value))
	}
}

// sendUntilTaken sends again and again what was not taken.
func (e *Env) sendUntilTaken(p rocketmq.Producer, queue int, body string) error {
	return jepsen.Await(e, "the send of "+body, func() (bool, error) {
		r, err := p.SendSync(e, e.to(queue, body))
		return err == nil && r.Status == primitive.SendOK, nil
	})
}

func (e *Env) result(key string, r *primitive.SendResult, err error) {
	if err != nil {
		code, _, _ := strings.Cut(err.Error(), ", DESC")
		e.Print(key, plain(code))
		return
	}
	e.Print(key, plain(fmt.Sprintf("status %d queue %d @%d of %s, ids %s %s, transaction %q, region %q, trace %t", r.Status, r.MessageQueue.QueueId, r.QueueOffset,
		r.MessageQueue.BrokerName, r.MsgID, r.OffsetMsgID, r.TransactionID, r.RegionID, r.TraceOn)))
}

// officialSends sends in each way, and shows what then lies in the queue.
func officialSends(e *Env) error {
	if _, err := masterWithTopic(e, "1"); err != nil {
		return err
	}
	p, err := e.producer()
	if err != nil {
		return err
	}
	for i := range 3 {
		r, err := p.SendSync(e, e.to(0, fmt.Sprint("sync", i)))
		e.result("sync", r, err)
	}
	for i := range 3 {
		answered := make(chan struct{})
		if err := p.SendAsync(e, func(_ context.Context, r *primitive.SendResult, err error) {
			e.result("async", r, err)
			close(answered)
		}, e.to(0, fmt.Sprint("async", i))); err != nil {
			return err
		}
		<-answered
	}
	r, err := p.SendSync(e, e.to(0, "batch0"), e.to(0, "batch1"), e.to(0, "batch2"))
	e.result("batch", r, err)
	rich := e.to(0, "rich")
	rich.Flag = 7
	rich.WithProperty("colour", "green blue")
	rich.WithShardingKey("s")
	r, err = p.SendSync(e, rich)
	e.result("rich", r, err)
	large := e.to(0, strings.Repeat("large ", 4000))
	r, err = p.SendSync(e, large)
	e.result("compressed", r, err)
	if err := p.SendOneWay(e, e.to(0, "oneway")); err != nil {
		return err
	}
	d, err := master(e)
	if err != nil {
		return err
	}
	if _, err := d.await(e.Topic(), 12); err != nil { // nobody answers one that is sent one-way
		return err
	}
	if d, err = afterPause(d); err != nil {
		return err
	}
	list, err := d.await(e.Topic(), 12)
	if err != nil {
		return err
	}
	for i := range list {
		if len(list[i].Body) > 50 {
			list[i].Body = []byte("compressed")
		}
		d.record(string(list[i].Body), &list[i])
	}
	r, err = p.SendSync(e, e.to(7, "queue 7"))
	e.result("queue 7", r, err)
	nowhere := primitive.NewMessage("TBW102", []byte("b"))
	nowhere.Queue = &primitive.MessageQueue{Topic: "TBW102", BrokerName: group}
	r, err = p.SendSync(e, nowhere)
	e.Print("reserved", r == nil && err != nil)
	return nil
}

// officialPushes consumes, and hands one message back until it is dead.
func officialPushes(e *Env) error {
	if _, err := masterWithTopic(e, "1"); err != nil {
		return err
	}
	p, err := e.producer()
	if err != nil {
		return err
	}
	send := func(bodies ...string) error {
		for _, body := range bodies {
			if err := e.sendUntilTaken(p, 0, body); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send("m0", "bad", "m1"); err != nil {
		return err
	}
	var good collected
	var mu sync.Mutex
	tries := make(map[int32]*primitive.MessageExt) // of the bad one, the first of each number
	free := make(chan struct{})
	g := e.Group("push")
	c, err := e.consumer(g, e.Topic(), func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			if string(m.Body) == "bad" {
				if again, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					again.DelayLevelWhenNextConsume = 1
				}
				mu.Lock()
				if tries[m.ReconsumeTimes] == nil {
					tries[m.ReconsumeTimes] = m
				}
				mu.Unlock()
				if m.ReconsumeTimes == 1 {
					select { // it takes as long as a failover
					case <-free:
					case <-e.Done():
					}
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return good.take(ctx, messages...)
	}, consumer.WithMaxReconsumeTimes(1), consumer.WithConsumeMessageBatchMaxSize(1))
	if err != nil {
		return err
	}
	if err := good.await(e, 2); err != nil {
		return err
	}
	if err := jepsen.Await(e, "the second try", func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return tries[1] != nil, nil
	}); err != nil {
		return err
	}
	if err := e.pauseIf(); err != nil {
		return err
	}
	close(free)
	if err := send("m2", "m3"); err != nil {
		return err
	}
	if err := good.await(e, 4); err != nil {
		return err
	}
	e.Print("consumed", strings.Join(good.bodies(), " "))
	for _, m := range good.firsts() {
		m.QueueOffset = 0 // a send that was repeated takes another one
		e.message(string(m.Body), m)
	}
	d, err := master(e)
	if err != nil {
		return err
	}
	letters, err := d.await("%DLQ%"+g, 1)
	if err != nil {
		return err
	}
	d.record("dead letter", &letters[0])
	if err := c.Shutdown(); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	maps.DeleteFunc(tries, func(n int32, _ *primitive.MessageExt) bool { return n > 1 }) // a client that got no answer when it sent one back counts on
	for n, m := range tries {
		m.QueueOffset, m.ReconsumeTimes = 0, n // the client counts on in a message that it could not send back at once
		e.message(fmt.Sprintf("try %d", n), m)
	}
	return nil
}

// officialOrderly consumes two queues in their order; one message fails twice.
func officialOrderly(e *Env) error {
	if _, err := masterWithTopic(e, "2"); err != nil {
		return err
	}
	p, err := e.producer()
	if err != nil {
		return err
	}
	const half = 5
	send := func(from int) error {
		for i := from; i < from+half; i++ {
			for q := range 2 {
				if err := e.sendUntilTaken(p, q, fmt.Sprint("m", i)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := send(0); err != nil {
		return err
	}
	var mu sync.Mutex
	got, failed := make(map[int][]string), make(map[int]int)
	if _, err := e.consumer(e.Group("ordered"), e.Topic(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			q, body := m.Queue.QueueId, string(m.Body)
			if body == "m2" && failed[q] < 2 {
				failed[q]++
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			if !slices.Contains(got[q], body) { // a new owner of the queue may get some again
				got[q] = append(got[q], body)
			}
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumerOrder(true), consumer.WithConsumeMessageBatchMaxSize(1), consumer.WithSuspendCurrentQueueTimeMillis(10*time.Millisecond)); err != nil {
		return err
	}
	await := func(count int) error {
		return jepsen.Await(e, fmt.Sprintf("%d ordered messages of each queue", count), func() (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return len(got[0]) >= count && len(got[1]) >= count, nil
		})
	}
	if err := await(half); err != nil {
		return err
	}
	if err := e.pauseIf(); err != nil {
		return err
	}
	if err := send(half); err != nil {
		return err
	}
	if err := await(2 * half); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	for q := range 2 {
		e.Print(fmt.Sprint("queue ", q), strings.Join(got[q], " "))
	}
	return nil
}

// officialDelays sends with a level and with a time.
func officialDelays(e *Env) error {
	if _, err := masterWithTopic(e, "1"); err != nil {
		return err
	}
	p, err := e.producer()
	if err != nil {
		return err
	}
	var got collected
	if _, err := e.consumer(e.Group("later"), e.Topic(), got.take); err != nil {
		return err
	}
	sent := time.Now().UnixMilli()
	r, err := p.SendSync(e, e.to(0, "level").WithDelayTimeLevel(1))
	e.Print("level", fmt.Sprint(r != nil && r.Status == primitive.SendOK, err))
	due := time.Now().Add(3 * time.Second).Truncate(time.Second)
	r, err = p.SendSync(e, e.to(0, "time").WithDelayTimestamp(due))
	e.Print("time", fmt.Sprint(r != nil && r.Status == primitive.SendOK, err))
	if err := e.pauseIf(); err != nil {
		return err
	}
	if err := got.await(e, 2); err != nil {
		return err
	}
	for _, m := range got.firsts() {
		key := string(m.Body)
		m.QueueOffset = 0 // which of them is first is chance
		e.message(key, m)
		e.Print(key+": early", m.StoreTimestamp < map[string]int64{"level": sent + 1000, "time": due.UnixMilli() - 1000}[key])
	}
	return nil
}

// decider ends transactions as their bodies say, and commits what it is asked for.
type decider struct{ asked collected }

func (d *decider) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch string(m.Body) {
	case "committed":
		return primitive.CommitMessageState
	case "rolled back":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (d *decider) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	d.asked.take(context.Background(), m)
	switch string(m.Body) {
	case "rolled back", "refused": // a broker that is slow may ask before the first answer, which is one-way, has arrived
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func officialTransactions(e *Env) error {
	if _, err := masterWithTopic(e, "1"); err != nil {
		return err
	}
	var d decider
	p, err := rocketmq.NewTransactionProducer(&d, e.producerOptions()...)
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		return err
	}
	e.atEnd(func() { p.Shutdown() })
	for _, body := range []string{"committed", "rolled back", "checked", "refused"} {
		m := e.to(0, body)
		m.WithProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "1")
		r, err := p.SendMessageInTransaction(e, m)
		if err != nil {
			return err
		}
		e.Print("half "+body, fmt.Sprintf("status %d, state %d", r.Status, r.State))
	}
	if err := e.pauseIf(); err != nil {
		return err
	}
	var got collected
	if _, err := e.consumer(e.Group("reader"), e.Topic(), got.take); err != nil {
		return err
	}
	if err := jepsen.Await(e, "two checks", func() (bool, error) {
		asked := d.asked.bodies()
		return slices.Contains(asked, "checked") && slices.Contains(asked, "refused"), nil
	}); err != nil {
		return err
	}
	if err := got.await(e, 2); err != nil {
		return err
	}
	e.Print("consumed", strings.Join(got.bodies(), ", "))
	for _, m := range got.firsts() {
		m.QueueOffset = 0 // which of them is first is chance
		e.message(string(m.Body), m)
	}
	return nil
}

// officialSurvival sends and consumes all the time, through a failover where the case has one.
func officialSurvival(e *Env) error {
	if _, err := masterWithTopic(e, "2"); err != nil {
		return err
	}
	p, err := e.producer(producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()), producer.WithSendMsgTimeout(time.Second))
	if err != nil {
		return err
	}
	var got collected
	if _, err := e.consumer(e.Group("survivors"), e.Topic(), got.take); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(e)
	defer stop()
	var mu sync.Mutex
	var taken []string
	var senders sync.WaitGroup
	for s := range 2 {
		senders.Go(func() {
			rate := time.NewTicker(2 * time.Millisecond)
			defer rate.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				<-rate.C
				body := fmt.Sprintf("%d-%05d", s, i)
				r, err := p.SendSync(ctx, primitive.NewMessage(e.Topic(), []byte(body)))
				if err == nil && r.Status == primitive.SendOK {
					mu.Lock()
					taken = append(taken, body)
					mu.Unlock()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(taken)
	}
	more := func(n int) error {
		want := count() + n
		return jepsen.Await(e, fmt.Sprintf("%d sends that were taken", n), func() (bool, error) { return count() >= want, nil })
	}
	err = more(200)
	if err == nil {
		err = e.pauseIf()
	}
	if err == nil {
		err = more(200)
	}
	stop()
	senders.Wait()
	if err != nil {
		return err
	}
	var lost []string
	err = jepsen.Await(e, "every message that was taken", func() (bool, error) {
		bodies := got.bodies()
		lost = slices.DeleteFunc(slices.Clone(taken), func(body string) bool {
			_, found := slices.BinarySearch(bodies, body)
			return found
		})
		return len(lost) == 0, nil
	})
	if err != nil {
		return errors.Join(err, fmt.Errorf("lost: %s", lost))
	}
	e.Print("lost", len(lost))
	return nil
}
