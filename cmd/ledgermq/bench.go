package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

func (t *tool) benchCommand() *cli.Command {
	common := func(flags ...cli.Flag) []cli.Flag {
		return withEnv(append(flags,
			namesrvFlag(),
			&cli.StringFlag{Name: "topic", Value: "Bench", Usage: "`TOPIC` to use; a first send creates it"},
			&cli.IntFlag{Name: "connections", Value: 8, Usage: "connections to each broker"},
			&cli.DurationFlag{Name: "duration", Value: 10 * time.Second, Usage: "how long to measure"},
			&cli.DurationFlag{Name: "warm", Value: 3 * time.Second, Usage: "how long to run before that"},
			jsonFlag())...)
	}
	return &cli.Command{
		Name: "bench", Usage: "measure a cluster",
		Subcommands: []*cli.Command{
			{
				Name: "produce", Usage: "synchronous senders: rate and latency of a send", ArgsUsage: " ",
				Flags: common(
					&cli.IntFlag{Name: "senders", Value: 64, Usage: "sends under way at any time"},
					&cli.IntFlag{Name: "size", Value: 1024, Usage: "body in `BYTES`"},
					&cli.IntFlag{Name: "batch", Value: 1, Usage: "messages per send"},
				),
				Action: t.action(func(c *cli.Context) error {
					if err := checkBench(c); err != nil {
						return err
					}
					switch {
					case c.Int("senders") < 1 || c.Int("senders") > 100_000:
						return usagef("--senders %d: use 1 to 100000", c.Int("senders"))
					case c.Int("batch") < 1 || c.Int("size") < 0 || (c.Int("size")+64)*c.Int("batch") > message.MaxBody:
						return usagef("--size %d --batch %d: a send carries at most %d bytes", c.Int("size"), c.Int("batch"), message.MaxBody)
					}
					return t.benchProduce(c)
				}),
			},
			{
				Name: "consume", Usage: "pull every queue of a topic from its start: rate and latency of a pull", ArgsUsage: " ",
				Flags: common(&cli.IntFlag{Name: "batch", Value: 32, Usage: "messages per pull"}),
				Action: t.action(func(c *cli.Context) error {
					if err := checkBench(c); err != nil {
						return err
					}
					if c.Int("batch") < 1 || c.Int("batch") > 1024 {
						return usagef("--batch %d: use 1 to 1024", c.Int("batch"))
					}
					return t.benchConsume(c)
				}),
			},
		},
	}
}

func checkBench(c *cli.Context) error {
	if err := wantArgs(c, 0, 0, "no argument"); err != nil {
		return err
	}
	if err := message.ValidTopic(c.String("topic")); err != nil {
		return usagef("--topic: %v", err)
	}
	switch {
	case c.Int("connections") < 1 || c.Int("connections") > 1000:
		return usagef("--connections %d: use 1 to 1000", c.Int("connections"))
	case c.Duration("duration") < time.Second:
		return usagef("--duration %v: use at least 1s", c.Duration("duration"))
	case c.Duration("warm") < 0:
		return usagef("--warm %v is negative", c.Duration("warm"))
	}
	return nil
}

// benchResult is what a run found; the JSON is documented in docs/cli.md.
type benchResult struct {
	Messages   uint64  `json:"messages"`
	Calls      uint64  `json:"calls"`
	Errors     uint64  `json:"errors"`
	NotStored  uint64  `json:"notStored"` // errors of sends that are certainly not stored
	Unknown    uint64  `json:"unknown"`   // errors of sends that may be stored or not
	Seconds    float64 `json:"seconds"`
	Rate       float64 `json:"messagesPerSecond"`
	P50Micros  int64   `json:"p50Micros"`
	P99Micros  int64   `json:"p99Micros"`
	P999Micros int64   `json:"p999Micros"`
	MaxMicros  int64   `json:"maxMicros"`
	LastError  string  `json:"lastError,omitempty"`
}

// bench runs workers, each of which calls its step again and again. A step tells how many messages it moved.
type bench struct {
	tool     *tool
	warm     time.Duration
	duration time.Duration

	moved  atomic.Uint64 // messages since the start, for the progress line
	errors benchErrors
	last   atomic.Pointer[error]
}

// benchErrors counts failed calls since the start; a failed send has one of two outcomes.
type benchErrors struct{ all, notStored, unknown atomic.Uint64 }

func (e *benchErrors) add(err error) {
	e.all.Add(1)
	switch {
	case errors.Is(err, client.ErrNotStored):
		e.notStored.Add(1)
	case errors.Is(err, client.ErrUnknown):
		e.unknown.Add(1)
	}
}

type benchStep func(ctx context.Context) (messages int, err error)

// errDone ends a worker that has nothing left to do.
var errDone = errors.New("done")

// run measures for the bench's duration after the warm-up, or until every worker is done.
func (b *bench) run(ctx context.Context, steps []benchStep) benchResult {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var measuring atomic.Bool
	measuring.Store(b.warm == 0)
	results := make([]histogram, len(steps))
	counts := make([]uint64, len(steps))
	var workers sync.WaitGroup
	for i, step := range steps {
		workers.Go(func() {
			for ctx.Err() == nil {
				on := measuring.Load()
				began := time.Now()
				n, err := step(ctx)
				took := time.Since(began)
				switch {
				case errors.Is(err, errDone):
					return
				case ctx.Err() != nil:
					return
				case err != nil:
					b.errors.add(err)
					b.last.Store(&err)
					continue
				}
				b.moved.Add(uint64(n))
				if on && measuring.Load() {
					results[i].add(took)
					counts[i] += uint64(n)
				}
			}
		})
	}
	all := make(chan struct{})
	go func() { // ends with the workers
		workers.Wait()
		close(all)
	}()
	began := time.Now()
	if b.warm > 0 && b.progress(ctx, all, b.warm, "warm") {
		began = time.Now()
		measuring.Store(true)
	}
	b.progress(ctx, all, b.duration, "run")
	measuring.Store(false)
	seconds := time.Since(began).Seconds()
	cancel()
	<-all
	var h histogram
	r := benchResult{Errors: b.errors.all.Load(), NotStored: b.errors.notStored.Load(), Unknown: b.errors.unknown.Load(), Seconds: seconds}
	for i := range results {
		h.merge(&results[i])
		r.Messages += counts[i]
	}
	r.Calls = h.count
	r.Rate = float64(r.Messages) / seconds
	r.P50Micros, r.P99Micros = h.quantile(0.5).Microseconds(), h.quantile(0.99).Microseconds()
	r.P999Micros, r.MaxMicros = h.quantile(0.999).Microseconds(), h.max.Microseconds()
	if err := b.last.Load(); err != nil {
		r.LastError = oneLine(*err)
	}
	return r
}

// progress prints the rate each second and returns false when the workers ended or ctx did before the time was over.
func (b *bench) progress(ctx context.Context, all <-chan struct{}, limit time.Duration, what string) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	was, at := b.moved.Load(), time.Now()
	for second := 1; ; second++ {
		select {
		case <-ctx.Done():
			return false
		case <-all:
			return false
		case <-end.C:
			return true
		case <-tick.C:
			now := b.moved.Load()
			fmt.Fprintf(b.tool.err, "%s %2d s: %.0f messages/s, %d errors\n", what, second, float64(now-was)/time.Since(at).Seconds(), b.errors.all.Load())
			was, at = now, time.Now()
		}
	}
}

func (t *tool) printBench(c *cli.Context, r benchResult) error {
	if c.Bool("json") {
		return json.NewEncoder(t.out).Encode(r)
	}
	failed := countOf(int(r.Errors), "error")
	if r.NotStored+r.Unknown > 0 {
		failed += fmt.Sprintf(" (%d not stored, %d unknown)", r.NotStored, r.Unknown)
	}
	_, err := fmt.Fprintf(t.out, "%d messages in %.1f s: %.0f messages/s, %s\ncalls %d: p50 %s, p99 %s, p99.9 %s, max %s\n",
		r.Messages, r.Seconds, r.Rate, failed, r.Calls,
		micros(r.P50Micros), micros(r.P99Micros), micros(r.P999Micros), micros(r.MaxMicros))
	if err == nil && r.Messages == 0 && r.LastError != "" {
		err = fmt.Errorf("nothing was done: %s", r.LastError)
	}
	return err
}

func micros(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

// clients makes so many clients; each has a connection of its own to every broker.
func benchClients(c *cli.Context) (all []*client.Client, closeAll func(), err error) {
	closeAll = func() {
		for _, cl := range all {
			cl.Close()
		}
	}
	for range c.Int("connections") {
		cl, err := newClient(c)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		all = append(all, cl)
	}
	return all, closeAll, nil
}

func (t *tool) benchProduce(c *cli.Context) error {
	clients, closeAll, err := benchClients(c)
	if err != nil {
		return err
	}
	defer closeAll()
	topic := c.String("topic")
	body := []byte(strings.Repeat("x", c.Int("size")))
	first := client.Message{Topic: topic, Body: body}
	if _, err := sendOne(c.Context, clients[0].Producer(), first, toolTimeout); err != nil {
		return explain(c, err)
	}
	var steps []benchStep
	for i := range c.Int("senders") {
		p := clients[i%len(clients)].Producer()
		if n := c.Int("batch"); n > 1 {
			batch := make([]client.Message, n)
			for k := range batch {
				batch[k] = client.Message{Body: body}
			}
			steps = append(steps, func(ctx context.Context) (int, error) {
				_, err := p.SendBatch(ctx, topic, batch)
				return n, err
			})
			continue
		}
		steps = append(steps, func(ctx context.Context) (int, error) {
			_, err := p.Send(ctx, first)
			return 1, err
		})
	}
	b := &bench{tool: t, warm: c.Duration("warm"), duration: c.Duration("duration")}
	return t.printBench(c, b.run(c.Context, steps))
}

// benchConsume pulls every queue from its minimum to the maximum that it had at the start, and again from the start when it
// gets there, so that a short topic can be measured for as long as wanted.
func (t *tool) benchConsume(c *cli.Context) error {
	clients, closeAll, err := benchClients(c)
	if err != nil {
		return err
	}
	defer closeAll()
	queues, err := readableQueues(c.Context, clients[0], c.String("topic"))
	if err != nil {
		return explain(c, err)
	}
	var steps []benchStep
	for i, q := range queues {
		cl := clients[i%len(clients)]
		low, err1 := cl.MinOffset(c.Context, q)
		high, err2 := cl.MaxOffset(c.Context, q)
		if err := errors.Join(err1, err2); err != nil {
			return explain(c, err)
		}
		if high <= low {
			continue
		}
		at := low
		steps = append(steps, func(ctx context.Context) (int, error) {
			if at >= high {
				at = low
			}
			got, err := cl.Pull(ctx, q, at, c.Int("batch"))
			if err != nil {
				return 0, err
			}
			at = got.NextOffset
			return len(got.Messages), nil
		})
	}
	if len(steps) == 0 {
		return fmt.Errorf("topic %s is empty; `ledgermq bench produce --topic %s` fills it", c.String("topic"), c.String("topic"))
	}
	b := &bench{tool: t, warm: c.Duration("warm"), duration: c.Duration("duration")}
	return t.printBench(c, b.run(c.Context, steps))
}

// readableQueues lists every queue of a topic, with the master of its group.
func readableQueues(ctx context.Context, cl *client.Client, topic string) ([]client.QueueRef, error) {
	route, err := cl.Route(ctx, topic)
	if err != nil {
		return nil, err
	}
	var queues []client.QueueRef
	for _, g := range route.Groups {
		for q := range g.ReadQueues {
			queues = append(queues, client.QueueRef{Group: g.Group, Topic: topic, Queue: ids.QueueID(q)})
		}
	}
	if len(queues) == 0 {
		return nil, fmt.Errorf("topic %s has no readable queue", topic)
	}
	return queues, nil
}
