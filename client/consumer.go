package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Consumer reads a topic for a consumer group: all its queues, or those it was given. It takes no part in the sharing of
// queues among the members of a group and is not listed as one. Poll and Commit have one caller at a time.
//
// One goroutine per queue keeps a pull waiting at the broker and hands over one batch at a time: a queue is never more than
// one batch, at most 32 messages, ahead of Poll.
type Consumer struct {
	c     *Client
	group string
	topic string
	o     subscribeOptions

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	wg      sync.WaitGroup
	batches chan batch // unbuffered

	mu        sync.Mutex
	running   map[QueueRef]bool
	position  map[QueueRef]ids.QueueOffset // next offset after what Poll returned
	committed map[QueueRef]ids.QueueOffset
	waiting   map[QueueRef]error // what became of the last question about a queue, unless all is well
}

// batch is what a fetcher hands over: messages, or a fault.
type batch struct {
	queue    QueueRef
	messages []Message
	next     ids.QueueOffset
	err      error
}

type subscribeOptions struct {
	tags    string
	queues  []QueueRef
	fromEnd bool
	wait    time.Duration
	most    int
}

// SubscribeOption changes a Consumer.
type SubscribeOption func(*subscribeOptions)

// WithTags takes only messages with one of these tags, "a || b". The default is all.
func WithTags(expression string) SubscribeOption {
	return func(o *subscribeOptions) { o.tags = expression }
}

// WithQueues reads these queues only. The default is all queues of the topic, those that come later too.
func WithQueues(queues ...QueueRef) SubscribeOption {
	return func(o *subscribeOptions) { o.queues = queues }
}

// FromEnd begins behind the last message of a queue in which the group has not committed yet. The default is its first one.
func FromEnd() SubscribeOption { return func(o *subscribeOptions) { o.fromEnd = true } }

// WithPollWait sets how long a broker may hold a pull when nothing is there. The default is 5 s. It also bounds how late a
// consumer notices that a broker hangs: this and 3 s more.
func WithPollWait(d time.Duration) SubscribeOption { return func(o *subscribeOptions) { o.wait = d } }

// Subscribe begins to read. ctx bounds only the beginning; Close ends the consumer. The error is ErrTopicNotFound, ErrNotReadable, or
// that of ctx.
func (c *Client) Subscribe(ctx context.Context, group, topic string, opts ...SubscribeOption) (*Consumer, error) {
	o := subscribeOptions{tags: tagsAll, wait: 5 * time.Second, most: 32}
	for _, opt := range opts {
		opt(&o)
	}
	k := &Consumer{
		c: c, group: group, topic: topic, o: o, batches: make(chan batch), running: map[QueueRef]bool{},
		position: map[QueueRef]ids.QueueOffset{}, committed: map[QueueRef]ids.QueueOffset{}, waiting: map[QueueRef]error{},
	}
	queues := o.queues
	for wait, try := c.newBackoff(), 0; len(queues) == 0; try++ {
		r, err := c.fetchRoute(ctx, topic)
		if err == nil {
			if queues = readQueues(r); len(queues) > 0 {
				break
			}
			if err = ErrNoMaster; len(r.Groups) > 0 {
				err = ErrNotReadable
			}
		}
		// That a topic is not readable is believed when a second route says so: the first one may be of a moment ago.
		if errors.Is(err, ErrTopicNotFound) || errors.Is(err, ErrClosed) || errors.Is(err, ErrNotReadable) && try > 0 {
			return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
		}
		if !wait.pause(ctx) {
			return nil, fmt.Errorf("subscribe to %s: %w", topic, ended(ctx, err))
		}
	}
	k.ctx, k.stop = context.WithCancel(c.ctx)
	k.run(queues)
	if len(o.queues) == 0 {
		k.wg.Add(1)
		go k.watch()
	}
	return k, nil
}

func readQueues(r Route) []QueueRef {
	var list []QueueRef
	for _, g := range r.Groups {
		if g.Perm&permRead == 0 {
			continue
		}
		for i := range g.ReadQueues {
			list = append(list, QueueRef{Group: g.Group, Topic: r.Topic, Queue: ids.QueueID(i)})
		}
	}
	return list
}

// run starts a fetcher for each queue that has none.
func (k *Consumer) run(queues []QueueRef) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range queues {
		if !k.running[q] {
			k.running[q], k.waiting[q] = true, errNoAnswer
			k.wg.Add(1)
			go k.fetch(q)
		}
	}
}

// watch looks for new queues in the route that the client refreshes anyway.
func (k *Consumer) watch() {
	defer k.wg.Done()
	tick := time.NewTicker(min(k.c.o.routeEvery, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
		}
		k.c.mu.Lock()
		r, ok := k.c.cache.route(k.topic)
		k.c.mu.Unlock()
		if ok {
			k.run(readQueues(r))
		}
	}
}

// Poll returns the next messages, all of one queue in its order; it waits until there are some. The error is that of ctx,
// ErrClosed, or a *CodeError when a broker refuses the subscription for good; a later Poll may succeed.
func (k *Consumer) Poll(ctx context.Context) ([]Message, error) {
	for {
		select {
		case b := <-k.batches:
			if b.err != nil {
				return nil, b.err
			}
			k.mu.Lock()
			k.position[b.queue] = b.next
			if len(b.messages) == 0 { // a reset may have moved it: what was committed before does not count then
				delete(k.committed, b.queue)
			}
			k.mu.Unlock()
			if len(b.messages) > 0 {
				return b.messages, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-k.ctx.Done():
			return nil, ErrClosed
		}
	}
}

// Commit stores in the brokers how far Poll has come, and waits for them. What it could not store it tries again the next
// time.
func (k *Consumer) Commit(ctx context.Context) error {
	k.mu.Lock()
	todo := map[QueueRef]ids.QueueOffset{}
	for q, next := range k.position {
		if done, ok := k.committed[q]; !ok || done != next {
			todo[q] = next
		}
	}
	k.mu.Unlock()
	var faults []error
	for q, next := range todo {
		err := k.c.CommitOffset(ctx, k.group, q, next)
		if errors.Is(err, ErrResetPending) { // the next batch is of where the group was reset to
			continue
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("commit %v at %d: %w", q, next, err))
			continue
		}
		k.mu.Lock()
		k.committed[q] = next
		k.mu.Unlock()
	}
	return errors.Join(faults...)
}

// Positions returns the next offset of each queue that Poll has returned something of.
func (k *Consumer) Positions() map[QueueRef]ids.QueueOffset {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make(map[QueueRef]ids.QueueOffset, len(k.position))
	for q, off := range k.position {
		all[q] = off
	}
	return all
}

// Waiting tells of which broker groups nothing new can come now, and why: ErrNoMaster, which is also said while a slave is
// read, what became of the last pull, or that no answer has come at all. It is empty while all is well.
func (k *Consumer) Waiting() map[string]error {
	k.mu.Lock()
	queues := make(map[QueueRef]error, len(k.running)) // all of them, with what is noted
	for q := range k.running {
		queues[q] = k.waiting[q]
	}
	k.mu.Unlock()
	groups, first := map[string]error{}, map[string]ids.QueueID{}
	for q, err := range queues {
		if none := k.masterless(q); none != nil {
			err = none
		}
		old := groups[q.Group]
		// One reason stands for all queues of the group: that it has no master, else that of the first queue.
		switch {
		case err == nil, errors.Is(old, ErrNoMaster):
		case old == nil, errors.Is(err, ErrNoMaster), q.Queue < first[q.Group]:
			groups[q.Group], first[q.Group] = err, q.Queue
		}
	}
	return groups
}

// note keeps why a queue waits; nil: it does not.
func (k *Consumer) note(q QueueRef, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if why == nil {
		delete(k.waiting, q)
	} else {
		k.waiting[q] = why
	}
}

// masterless returns ErrNoMaster when the newest route has none for q.
func (k *Consumer) masterless(q QueueRef) error {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if g := k.c.cache.groups[q.Group]; q.Broker == "" && (g == nil || g.info.Master() == "") {
		return ErrNoMaster
	}
	return nil
}

// Close ends the consumer and waits for its goroutines. It commits nothing.
func (k *Consumer) Close() {
	k.stop()
	k.wg.Wait()
}

// hand gives b to Poll. It returns false when the consumer is closed.
func (k *Consumer) hand(b batch) bool {
	select {
	case k.batches <- b:
		return true
	case <-k.ctx.Done():
		return false
	}
}

// fetch is the life of one queue.
func (k *Consumer) fetch(q QueueRef) {
	defer k.wg.Done()
	next, ok := k.start(q)
	if !ok {
		return
	}
	opts := pullOptions{group: k.group, tags: k.o.tags, suspend: k.o.wait}
	wait := k.c.newBackoff()
	from := ids.MasterBrokerID
	for k.ctx.Err() == nil {
		began := k.c.o.now()
		r, err := k.pullFrom(q, from, next, opts)
		if err != nil {
			from = ids.MasterBrokerID
			if !k.failed(q, err, &wait) {
				return
			}
			continue
		}
		moved := r.NextOffset != next
		if k.masterless(q) != nil && !moved {
			k.c.refreshAfter(k.ctx, q.Topic, false) // a slave does not tell that there is a master again
		}
		k.note(q, nil)
		from = r.Suggested
		next = r.NextOffset
		if moved && !k.hand(batch{queue: q, messages: r.Messages, next: next}) {
			return
		}
		// A broker that does not hold pulls must not be asked in a tight loop.
		if moved || k.c.o.now().Sub(began) > k.c.o.minBackoff {
			wait = k.c.newBackoff()
		} else if !wait.pause(k.ctx) {
			return
		}
	}
}

// pullFrom pulls from the replica that the broker advised, or from whoever can be read.
func (k *Consumer) pullFrom(q QueueRef, from ids.BrokerID, next ids.QueueOffset, o pullOptions) (PullResult, error) {
	addr := q.Broker
	if addr == "" && from != ids.MasterBrokerID {
		addr, _ = k.c.replicaOf(k.ctx, q, from)
	}
	if addr == "" {
		var err error
		if addr, err = k.c.readable(k.ctx, q); err != nil {
			return PullResult{}, err
		}
	}
	return k.c.pull(k.ctx, addr, q, next, k.o.most, o)
}

// failed deals with a failed pull: what only time or a new route can mend is tried again, the rest is also told to Poll.
func (k *Consumer) failed(q QueueRef, err error, wait *backoff) bool {
	var code *CodeError
	if errors.As(err, &code) && !code.passes() || errors.Is(err, errBadAnswer) {
		if !k.hand(batch{queue: q, err: fmt.Errorf("queue %v: %w", q, err)}) {
			return false
		}
	} else {
		k.note(q, err)
	}
	k.c.o.logger.Debug().Err(err).Stringer("queue", q).Msg("a pull failed")
	if !wait.pause(k.ctx) {
		return false
	}
	k.c.refreshAfter(k.ctx, q.Topic, wait.next > k.c.o.minBackoff*2)
	return true
}

// start finds where the group goes on in a queue. Only a master knows.
func (k *Consumer) start(q QueueRef) (ids.QueueOffset, bool) {
	for wait := k.c.newBackoff(); ; {
		off, found, err := k.first(q)
		if err == nil {
			k.note(q, nil)
			if found {
				k.mu.Lock()
				k.committed[q] = off
				k.mu.Unlock()
			}
			return off, true
		}
		if !k.failed(q, err, &wait) {
			return 0, false
		}
	}
}

// errNoAnswer is why a queue waits that has just begun to be read.
var errNoAnswer = errors.New("no answer yet")

// startPatience is how long start waits for a master until it notes that there is none. A broker answers within 2.5 s.
const startPatience = 3 * time.Second

// first asks where the group goes on.
func (k *Consumer) first(q QueueRef) (off ids.QueueOffset, found bool, err error) {
	ctx, cancel := context.WithTimeout(k.ctx, startPatience)
	defer cancel()
	off, found, err = k.c.CommittedOffset(ctx, k.group, q)
	if err == nil && !found {
		if k.o.fromEnd {
			off, err = k.c.MaxOffset(ctx, q)
		} else {
			off, err = k.c.MinOffset(ctx, q)
		}
	}
	return off, found, err
}
