package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Fields by which a broker of ours names the master that it knows.
const (
	fieldMaster = "ledgermqMaster" // its address
	fieldTerm   = "ledgermqTerm"   // its term, decimal
)

// Producer sends. It has no state of its own and needs no Close.
type Producer struct {
	c     *Client
	group string
}

// ProducerOption changes one producer.
type ProducerOption func(*Producer)

// InProducerGroup sets the producer group of one producer; the default is the client's.
func InProducerGroup(group string) ProducerOption { return func(p *Producer) { p.group = group } }

// Producer returns a producer.
func (c *Client) Producer(opts ...ProducerOption) *Producer {
	p := &Producer{c: c, group: c.o.producerGroup}
	for _, opt := range opts {
		opt(p)
	}
	return p
}

// Send sends one message. Its error is a *SendError: errors.Is(err, ErrNotStored) or errors.Is(err, ErrUnknown).
func (p *Producer) Send(ctx context.Context, m Message) (Receipt, error) {
	id := message.NewUniqueKey()
	props, err := m.properties(id)
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return Receipt{}, &SendError{Outcome: ErrNotStored, Topic: m.Topic, Err: err}
	}
	out := outgoing{code: remoting.SendMessageV2, topic: m.Topic, key: m.OrderKey, props: props, body: m.Body}
	resp, at, err := p.deliver(ctx, out)
	if err != nil {
		return Receipt{}, err
	}
	list, err := receipts(resp, at, []string{id})
	if err != nil {
		return Receipt{}, &SendError{Outcome: ErrUnknown, Topic: m.Topic, Code: resp.Code, Remark: resp.Remark, Err: err}
	}
	return list[0], nil
}

// SendBatch stores all messages in one queue, one behind the other, or none. They must have the topic topic (or none) and one
// OrderKey. The error is as Send's.
func (p *Producer) SendBatch(ctx context.Context, topic string, batch []Message) ([]Receipt, error) {
	refuse := func(err error) ([]Receipt, error) {
		return nil, &SendError{Outcome: ErrNotStored, Topic: topic, Err: err}
	}
	if len(batch) == 0 {
		return nil, nil
	}
	var body []byte
	unique := make([]string, len(batch))
	for i := range batch {
		m := batch[i]
		if m.Topic == "" {
			m.Topic = topic
		}
		unique[i] = message.NewUniqueKey()
		props, err := m.properties(unique[i])
		if err == nil {
			err = m.check()
		}
		switch {
		case err != nil:
		case m.Topic != topic:
			err = fmt.Errorf("its topic is %s, not %s", m.Topic, topic)
		case m.OrderKey != batch[0].OrderKey:
			err = fmt.Errorf("its order key is %q, not %q", m.OrderKey, batch[0].OrderKey)
		}
		if err != nil {
			return refuse(fmt.Errorf("message %d of the batch: %w", i, err))
		}
		body = message.AppendBatchItem(body, message.BatchItem{Body: m.Body, Properties: props})
	}
	if len(body) > message.MaxBody {
		return refuse(fmt.Errorf("the batch has %d bytes, at most %d are allowed", len(body), message.MaxBody))
	}
	out := outgoing{code: remoting.SendBatchMessage, topic: topic, key: batch[0].OrderKey, body: body}
	resp, at, err := p.deliver(ctx, out)
	if err != nil {
		return nil, err
	}
	list, err := receipts(resp, at, unique)
	if err != nil {
		return nil, &SendError{Outcome: ErrUnknown, Topic: topic, Code: resp.Code, Remark: resp.Remark, Err: err}
	}
	return list, nil
}

// receipts reads an OK answer. An answer that cannot be read proves nothing, so its sender has to take it as unknown.
func receipts(resp *remoting.Command, at target, unique []string) ([]Receipt, error) {
	queue, err := resp.MustInt32("queueId")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	first, err := resp.MustInt64("queueOffset")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	offsetIDs := strings.Split(resp.GetOr("msgId", ""), ",")
	list := make([]Receipt, len(unique))
	for i := range unique {
		list[i] = Receipt{MessageID: unique[i], Group: at.group, Queue: ids.QueueID(queue), Offset: ids.QueueOffset(first) + ids.QueueOffset(i)}
		if i < len(offsetIDs) {
			list[i].OffsetMessageID = offsetIDs[i]
		}
		list[i].RecallHandle = resp.GetOr("recallHandle", "")
	}
	return list, nil
}

// outgoing is a message or batch that is ready to be sent to any queue.
type outgoing struct {
	code  int32
	topic string
	key   string
	props string
	body  []byte
}

// templateQueues is how many queues a topic gets that is created by its first send, as with official clients.
const templateQueues = 4

func (p *Producer) request(out outgoing, at target) *remoting.Command {
	req := remoting.NewRequest(out.code)
	req.Set("a", p.group)
	req.Set("b", out.topic)
	req.Set("c", message.DefaultTopic)
	req.SetInt32("d", templateQueues)
	req.SetInt32("e", int32(at.queue))
	req.Set("f", "0")
	req.SetInt64("g", p.c.o.now().UnixMilli())
	req.Set("h", "0")
	req.Set("i", out.props)
	req.Set("j", "0")
	req.Set("k", "false")
	req.SetBool("m", out.code == remoting.SendBatchMessage)
	req.Set("n", at.group)
	req.Body = out.body
	return req
}

// deliver sends until the outcome is known or cannot be known, or ctx ends.
func (p *Producer) deliver(ctx context.Context, out outgoing) (*remoting.Command, target, error) {
	ctx, cancel := p.c.within(ctx)
	defer cancel()
	var (
		last  = &SendError{Outcome: ErrNotStored, Topic: out.topic}
		avoid string
		wait  = p.c.newBackoff()
	)
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			last.Err = ended(ctx, last.Err)
			return nil, target{}, last
		}
		at, err := p.choose(ctx, out, avoid)
		if err == nil {
			var resp *remoting.Command
			if resp, err = p.attempt(ctx, out, at); err == nil {
				switch judge(resp.Code, resp.Remark) {
				case verdictStored:
					return resp, at, nil
				case verdictUnknown:
					err := &CodeError{Op: "send", Addr: at.addr, Code: resp.Code, Remark: resp.Remark}
					return nil, at, &SendError{Outcome: ErrUnknown, Topic: out.topic, Code: resp.Code, Remark: resp.Remark, Err: err}
				case verdictRefused:
					last.Code, last.Remark = resp.Code, resp.Remark
					last.Err = &CodeError{Op: "send", Addr: at.addr, Code: resp.Code, Remark: resp.Remark}
					return nil, at, last
				case verdictRetry:
					last.Code, last.Remark = resp.Code, resp.Remark
					err = &CodeError{Op: "send", Addr: at.addr, Code: resp.Code, Remark: resp.Remark}
				}
			} else if !errors.Is(err, errNotSent) {
				// It left this process and no answer came.
				if cause := context.Cause(ctx); cause != nil {
					err = fmt.Errorf("%w: %w", cause, err)
				}
				return nil, at, &SendError{Outcome: ErrUnknown, Topic: out.topic, Err: err}
			}
			avoid = at.group
		}
		if last.Err == nil || ctx.Err() == nil { // that the time is over says less than what went wrong before
			last.Err = err
		}
		// That a topic takes no sends is believed when a fresh route says so.
		if errors.Is(err, ErrTopicNotFound) || errors.Is(err, ErrNotWritable) && try > 0 {
			return nil, target{}, last
		}
		if ctx.Err() == nil {
			p.c.refreshAfter(ctx, out.topic, try > 0)
			// Another group may take the message at once; only a second refusal in a row calls for patience.
			if try > 0 || out.key != "" {
				wait.pause(ctx)
			}
		}
	}
}

// choose picks the queue to send to. The error is ErrNoMaster while there is nobody to send to, ErrNotWritable while the topic
// takes no sends, ErrTopicNotFound, or that of the name servers.
func (p *Producer) choose(ctx context.Context, out outgoing, avoid string) (target, error) {
	c := p.c
	topic := out.topic
	if _, err := c.cachedRoute(ctx, topic); err != nil {
		if !errors.Is(err, ErrTopicNotFound) || !c.o.autoCreate || out.key != "" {
			return target{}, err
		}
		topic = message.DefaultTopic
		if _, again := c.cachedRoute(ctx, topic); again != nil {
			if errors.Is(again, ErrTopicNotFound) {
				return target{}, err // of the topic that the caller named
			}
			return target{}, again
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var at target
	var ok bool
	if out.key != "" {
		at, ok = c.cache.ordered(topic, out.key)
	} else {
		at, ok = c.cache.any(c.o.now(), topic, c.turn.Add(1), avoid)
	}
	if !ok && !c.cache.writable(topic) {
		return target{}, fmt.Errorf("topic %s: %w", topic, ErrNotWritable)
	}
	if !ok {
		return target{}, fmt.Errorf("topic %s: %w", topic, ErrNoMaster)
	}
	if at.addr == "" {
		return target{}, fmt.Errorf("topic %s, group %s: %w", topic, at.group, ErrNoMaster)
	}
	if topic != out.topic {
		at.queue %= templateQueues
	}
	return at, nil
}

// errMoved ends the wait for a master that was replaced: a paused or cut-off machine never answers.
var errMoved = errors.New("the group has another master meanwhile")

// attempt sends once. While it waits longer than slowAfter other sends avoid the broker, and the name servers are asked whether
// the group has another master. Then it waits no longer.
func (p *Producer) attempt(ctx context.Context, out outgoing, at target) (*remoting.Command, error) {
	c := p.c
	ctx, cancel := context.WithTimeout(ctx, c.o.callTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	waiting := true // guarded by c.mu: a timer that fires as the answer comes must not outlive it
	slow := time.AfterFunc(c.o.slowAfter, func() {
		c.mu.Lock()
		if !waiting || c.closed {
			c.mu.Unlock()
			return
		}
		c.cache.suspectAddr(c.o.now(), at.group, at.addr)
		c.wg.Add(1)
		c.mu.Unlock()
		defer c.wg.Done()
		for another := false; ; another = true {
			c.refreshAfter(ctx, out.topic, another)
			c.mu.Lock()
			moved := c.cache.moved(at)
			c.mu.Unlock()
			if moved {
				giveUp(errMoved)
			}
			if !pause(ctx, c.o.slowAfter/4) {
				return
			}
		}
	})
	resp, err := c.conns.call(ctx, at.addr, p.request(out, at))
	slow.Stop()
	c.mu.Lock()
	waiting = false
	c.mu.Unlock()
	if err != nil {
		c.suspect(at.group, at.addr)
		if errors.Is(context.Cause(ctx), errMoved) {
			err = fmt.Errorf("%w: %w", errMoved, err)
		}
		return nil, err
	}
	c.heard(at.group, at.addr, resp)
	return resp, nil
}

func (c *Client) suspect(group, addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.suspectAddr(c.o.now(), group, addr)
}

// heard takes the master's name out of an answer.
func (c *Client) heard(group, addr string, resp *remoting.Command) {
	master := resp.GetOr(fieldMaster, "")
	term, _ := strconv.ParseUint(resp.GetOr(fieldTerm, ""), 10, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.trust(group, addr)
	if master != "" {
		c.cache.hint(group, master, ids.Term(term))
	}
}
