package jepsen

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// The workloads, each on a topic of its own per driver; the others are in transactions.go, timers.go and offsets.go:
//
//	queue   senders without a key; a consumer group gets every value that was OK
//	log     senders with keys; polls by offset, from where the last one ended and from anywhere before
const (
	queueSenders = 2
	logSenders   = 2
	topicQueues  = 4
	sendPause    = 10 * time.Millisecond // after each send: the faults are the load here
	pollPause    = 20 * time.Millisecond
	inspectPause = 50 * time.Millisecond // of each replica
	sendLimit    = 3 * time.Second
	readLimit    = 3 * time.Second
)

// worker is one client of a run.
type worker struct {
	rec     *Recorder
	session Session
	name    string
	topic   string
	tally   *tally

	mu sync.Mutex
	ok int // calls that were OK
}

// succeeded returns how many calls were OK so far.
func (w *worker) succeeded() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ok
}

func (w *worker) succeed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ok++
}

// tally knows which values of a topic were OK and are still to be consumed.
type tally struct {
	mu       sync.Mutex
	missing  map[string]bool
	consumed map[string]bool
}

func newTally() *tally { return &tally{missing: map[string]bool{}, consumed: map[string]bool{}} }

func (t *tally) sent(value string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.consumed[value] {
		t.missing[value] = true
	}
}

func (t *tally) got(reads []Read) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range reads {
		t.consumed[r.Value] = true
		delete(t.missing, r.Value)
	}
}

func (t *tally) left() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.missing)
}

// send sends values of its own until ctx ends. The outcome of the last one is waited for.
func (w *worker) send(ctx context.Context, keyed bool) {
	for i := 0; ctx.Err() == nil; i++ {
		op := Op{Kind: Send, Client: w.name, Topic: w.topic, Value: fmt.Sprintf("%s/%d", w.name, i), Start: w.rec.Now()}
		key := ""
		if keyed {
			key = fmt.Sprintf("k%d", i%(2*topicQueues))
		}
		limit, cancel := context.WithTimeout(context.Background(), sendLimit)
		queue, offset, outcome, err := w.session.Send(limit, key, op.Value)
		cancel()
		op.Queue, op.Offset, op.Outcome = queue, offset, outcome
		if err != nil {
			op.Error = err.Error()
		}
		if outcome == OK {
			w.tally.sent(op.Value)
			w.succeed()
		}
		w.rec.Add(op)
		pause(ctx, sendPause)
	}
}

// consume consumes until ctx ends.
func (w *worker) consume(ctx context.Context) {
	for ctx.Err() == nil {
		op := Op{Kind: Consume, Client: w.name, Topic: w.topic, Outcome: OK, Start: w.rec.Now()}
		limit, cancel := context.WithTimeout(ctx, readLimit)
		reads, err := w.session.Consume(limit)
		cancel()
		op.Reads = reads
		if err != nil {
			op.Error = err.Error()
		}
		if len(reads) > 0 {
			w.tally.got(reads)
			w.succeed()
		} else {
			op.Outcome = Failed
			pause(ctx, pollPause)
		}
		w.rec.Add(op)
	}
}

// poll reads all queues by offset until ctx ends: mostly on from the last place, each eighth time from a place before it.
func (w *worker) poll(ctx context.Context) {
	var at [topicQueues]int64
	for i := 0; ctx.Err() == nil; i++ {
		queue := i % topicQueues
		from := at[queue]
		if i/topicQueues%8 == 7 {
			from = from * int64(i%5) / 5
		}
		op := Op{Kind: Poll, Client: w.name, Topic: w.topic, Queue: queue, Offset: from, Outcome: OK, Start: w.rec.Now()}
		limit, cancel := context.WithTimeout(ctx, readLimit)
		reads, next, err := w.session.Poll(limit, queue, from)
		cancel()
		if err != nil {
			op.Outcome, op.Error = Failed, err.Error()
		} else {
			op.Reads, op.Next = reads, next
			at[queue] = max(at[queue], next)
			w.succeed()
		}
		w.rec.Add(op)
		pause(ctx, pollPause)
	}
}

// inspect asks one replica by its address for messages by offset, and for maximum offsets, until ctx ends. A replica may have fewer
// messages than others, but what it gives must be true; a maximum is told by who knows, whoever was asked.
func (w *worker) inspect(ctx context.Context, cl *client.Client, node, addr string) {
	var at [topicQueues]int64
	for i := 0; ctx.Err() == nil; i++ {
		queue := i / 2 % topicQueues
		q := client.QueueRef{Group: Group, Topic: w.topic, Queue: ids.QueueID(queue), Broker: addr}
		limit, cancel := context.WithTimeout(ctx, readLimit)
		op := Op{Kind: Poll, Client: w.name, Topic: w.topic, Queue: queue, Replica: node, Offset: at[queue], Outcome: OK, Start: w.rec.Now()}
		var err error
		if i%2 == 0 {
			op.Reads, op.Next, err = poll(limit, cl, q, op.Offset)
			at[queue] = max(at[queue], op.Next)
		} else {
			var end ids.QueueOffset
			end, err = cl.MaxOffset(limit, q)
			op.Kind, op.Offset, op.Next = Max, 0, int64(end)
		}
		cancel()
		if err != nil {
			op.Outcome, op.Error = Failed, err.Error()
		} else {
			w.succeed()
		}
		w.rec.Add(op)
		pause(ctx, inspectPause)
	}
}
