package jepsen

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Driver makes sessions of one client library.
type Driver interface {
	// Name is short and goes into histories.
	Name() string
	// Open makes a client of its own for one topic, which exists. group is its consumer group.
	Open(ctx context.Context, namesrv []string, topic, group string) (Session, error)
}

// Session is one client. Its methods have one caller at a time.
type Session interface {
	// Send sends a value once. Values of one key go to one queue. The outcome is never Failed.
	Send(ctx context.Context, key, value string) (queue int, offset int64, outcome Outcome, err error)
	// Poll reads a queue from an offset on. Nothing there is no error.
	Poll(ctx context.Context, queue int, offset int64) (reads []Read, next int64, err error)
	// Consume returns the next messages of the consumer group and commits them; it waits until there are some, or ctx ends.
	Consume(ctx context.Context) ([]Read, error)
	Close()
}

// Own drives LedgerMQ's own client.
func Own() Driver { return ownDriver{} }

type ownDriver struct{}

func (ownDriver) Name() string { return "own" }

func (ownDriver) Open(_ context.Context, namesrv []string, topic, group string) (Session, error) {
	c, err := client.New(namesrv)
	if err != nil {
		return nil, err
	}
	return &ownSession{c: c, p: c.Producer(), topic: topic, group: group}, nil
}

type ownSession struct {
	c            *client.Client
	p            *client.Producer
	topic, group string
	consumer     *client.Consumer // nil until it is wanted
}

func (s *ownSession) Send(ctx context.Context, key, value string) (int, int64, Outcome, error) {
	r, err := s.p.Send(ctx, client.Message{Topic: s.topic, OrderKey: key, Body: []byte(value)})
	switch {
	case err == nil:
		return int(r.Queue), int64(r.Offset), OK, nil
	case errors.Is(err, client.ErrNotStored):
		return 0, 0, NotStored, err
	}
	return 0, 0, Unknown, err
}

// pollMost is how many messages a poll asks for.
const pollMost = 32

func (s *ownSession) Poll(ctx context.Context, queue int, offset int64) ([]Read, int64, error) {
	ref := client.QueueRef{Group: Group, Topic: s.topic, Queue: ids.QueueID(queue)}
	return poll(ctx, s.c, ref, offset)
}

func poll(ctx context.Context, c *client.Client, q client.QueueRef, offset int64) ([]Read, int64, error) {
	r, err := c.Pull(ctx, q, ids.QueueOffset(offset), pollMost)
	if err != nil {
		return nil, 0, err
	}
	switch r.Status {
	case client.PullFound:
		return readsOf(r.Messages), int64(r.NextOffset), nil
	case client.PullNotFound:
		return nil, offset, nil
	case client.PullOutOfRange:
		if r.MaxOffset <= ids.QueueOffset(offset) { // a replica that has not got that far
			return nil, offset, nil
		}
	}
	return nil, 0, fmt.Errorf("a pull of %v at %d, which holds %d to %d: %v", q, offset, r.MinOffset, r.MaxOffset, r.Status)
}

func readsOf(messages []client.Message) []Read {
	reads := make([]Read, len(messages))
	for i, m := range messages {
		reads[i] = Read{Queue: int(m.Queue), Offset: int64(m.Offset), Value: string(m.Body), Stored: m.StoreTime.UnixMilli()}
	}
	return reads
}

// Got notes in reads when a consumer got them.
func Got(reads []Read, at time.Time) []Read {
	for i := range reads {
		reads[i].Got = at.UnixMilli()
	}
	return reads
}

func (s *ownSession) Consume(ctx context.Context) ([]Read, error) {
	if s.consumer == nil {
		// A broker that is gone without a word is noticed this and 3 s later.
		k, err := s.c.Subscribe(ctx, s.group, s.topic, client.WithPollWait(time.Second))
		if err != nil {
			return nil, err
		}
		s.consumer = k
	}
	messages, err := s.consumer.Poll(ctx)
	if err != nil {
		return nil, err
	}
	reads := Got(readsOf(messages), time.Now())
	// What is not committed is read again by whoever comes next: consuming is at least once.
	return reads, s.consumer.Commit(ctx)
}

func (s *ownSession) Close() {
	if s.consumer != nil {
		s.consumer.Close()
	}
	s.c.Close()
}
