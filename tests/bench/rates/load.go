package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/jepsen"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

const (
	queues      = 8
	connections = 8
	bodySize    = 1024
	producers   = "RatesProducers"
	delay       = 3 * time.Second
	// errorPause is how long a sender waits after an error: a system that refuses must not be kept busy with refusing.
	errorPause = 5 * time.Millisecond
	// drain is how long the rest of a load is waited for.
	drain = 20 * time.Second
)

// load is a kind of message that senders send.
type load struct {
	name  string
	topic string
	step  func(context.Context, *sender) error
	// delivered: what counts is what becomes readable, not what is answered.
	delivered bool
	// lag is from the answer to the message in its queue.
	lag time.Duration
	// warm is its share of the time for warming up.
	warm float64
}

var loads = []load{
	{name: "sends", topic: "RatesSends", warm: 0.5, step: func(ctx context.Context, s *sender) error {
		_, err := s.send(ctx, "RatesSends", "", 0)
		return err
	}},
	{name: "transactions", topic: "RatesTransactions", warm: 0.15, delivered: true, step: func(ctx context.Context, s *sender) error {
		return s.transaction(ctx, "RatesTransactions", false)
	}},
	{name: "transactions, one-way", topic: "RatesTransactionsOneWay", warm: 0.15, delivered: true, step: func(ctx context.Context, s *sender) error {
		return s.transaction(ctx, "RatesTransactionsOneWay", true)
	}},
	{name: "timers", topic: "RatesTimers", warm: 0.2, delivered: true, lag: delay, step: func(ctx context.Context, s *sender) error {
		_, err := s.send(ctx, "RatesTimers", message.KeyTimerDelayMs+"\x01"+strconv.FormatInt(delay.Milliseconds(), 10)+"\x02", 0)
		return err
	}},
}

// generator is the client of both systems: connections to one master, bare requests, and nothing of what else a client does.
type generator struct {
	admin   *client.Client
	group   string // broker group
	conns   []*remoting.Client
	control *remoting.Client // for questions, which must not wait behind the load
	body    []byte
}

// connect makes a generator and the topics of its loads.
func connect(ctx context.Context, namesrv []string) (g *generator, err error) {
	k, err := client.New(namesrv)
	if err != nil {
		return nil, err
	}
	g = &generator{admin: k, body: make([]byte, bodySize)}
	for i := range g.body {
		g.body[i] = 'x'
	}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	info, err := group(ctx, k)
	if err != nil {
		return nil, err
	}
	g.group = info.Group
	for i := range connections + 1 {
		c, err := remoting.Dial(ctx, info.Master(), remoting.ClientOptions{})
		if err != nil {
			return nil, err
		}
		if i == connections {
			g.control = c
			break
		}
		g.conns = append(g.conns, c)
	}
	topics := []string{lateTopic}
	for _, l := range loads {
		topics = append(topics, l.topic)
	}
	for _, name := range topics {
		if _, err := k.CreateTopic(ctx, client.TopicSpec{Name: name, ReadQueues: queues}); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *generator) close() {
	for _, c := range g.conns {
		c.Close()
	}
	if g.control != nil {
		g.control.Close()
	}
	g.admin.Close()
}

// sender has one request under way at a time.
type sender struct {
	g     *generator
	conn  *remoting.Client
	req   remoting.Command
	queue int32
}

func (g *generator) sender(i int) *sender {
	return &sender{g: g, conn: g.conns[i%len(g.conns)], queue: int32(i % queues)}
}

// send sends one message to the next queue, with more properties than each has. An answer that says no is an error.
func (s *sender) send(ctx context.Context, topic, props string, sysFlag int32) (*remoting.Command, error) {
	return s.sendBody(ctx, topic, props, sysFlag, s.g.body)
}

func (s *sender) sendBody(ctx context.Context, topic, props string, sysFlag int32, body []byte) (*remoting.Command, error) {
	s.queue = (s.queue + 1) % queues
	req := &s.req
	req.Reset()
	req.Code = remoting.SendMessageV2
	req.Set("a", producers)
	req.Set("b", topic)
	req.Set("c", message.DefaultTopic)
	req.Set("d", "4")
	req.SetInt32("e", s.queue)
	req.SetInt32("f", sysFlag)
	req.SetInt64("g", time.Now().UnixMilli())
	req.Set("h", "0")
	req.Set("i", message.KeyUniqueKey+"\x01"+message.NewUniqueKey()+"\x02"+message.KeyWaitStore+"\x01true\x02"+props)
	req.Set("j", "0")
	req.Set("k", "false")
	req.Set("m", "false")
	req.Set("n", s.g.group)
	req.Body = body
	return s.call(ctx)
}

// call sends the request that was built. An answer that says no is an error.
func (s *sender) call(ctx context.Context) (*remoting.Command, error) {
	resp, err := s.conn.Call(ctx, &s.req)
	if err == nil && resp.Code != remoting.Success {
		err = fmt.Errorf("%s: code %d: %s", remoting.RequestName(s.req.Code), resp.Code, resp.Remark)
	}
	return resp, err
}

// transaction sends a half message and commits it.
func (s *sender) transaction(ctx context.Context, topic string, oneWay bool) error {
	resp, err := s.send(ctx, topic, message.KeyTransactionPrepared+"\x01true\x02"+message.KeyProducerGroup+"\x01"+producers+"\x02", message.SysPrepared)
	if err != nil {
		return err
	}
	number, err := resp.MustInt64("queueOffset")
	if err != nil {
		return err
	}
	_, offset, err := message.ParseOffsetMessageID(resp.GetOr("msgId", ""))
	if err != nil {
		return err
	}
	req := &s.req
	req.Reset()
	req.Code = remoting.EndTransaction
	req.Set("topic", topic)
	req.Set("producerGroup", producers)
	req.SetInt64("tranStateTableOffset", number)
	req.SetInt64("commitLogOffset", int64(offset))
	req.SetInt32("commitOrRollback", message.SysCommit)
	req.Set("fromTransactionCheck", "false")
	req.Set("msgId", resp.GetOr("transactionId", ""))
	req.Set("transactionId", resp.GetOr("transactionId", ""))
	req.Set("bname", s.g.group)
	if oneWay {
		return s.conn.OneWay(req)
	}
	_, err = s.call(ctx)
	return err
}

// row is what was measured of one load.
type row struct {
	load      string
	senders   int
	judged    bool // against the goal
	perSecond float64
	took      []time.Duration // of each step, sorted; nil: nothing was answered
	errors    int
	why       error // the first one
	missing   int64 // what was answered OK and is not readable
	average   string
}

// quantile is the time that the share q of the steps took no longer than.
func (r *row) quantile(q float64) string {
	if len(r.took) == 0 {
		return "-"
	}
	return r.took[min(int(q*float64(len(r.took))), len(r.took)-1)].Round(10 * time.Microsecond).String()
}

// counts are those of one sender.
type counts struct {
	took       []time.Duration // of the steps that ended within the window
	ok, failed int
	why        error
}

// turn lets senders take steps from now to the end.
func (g *generator) turn(ctx context.Context, l load, senders int, from, to time.Time) []counts {
	ctx, cancel := context.WithDeadline(ctx, to.Add(10*time.Second))
	defer cancel()
	all := make([]counts, senders)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			s, c := g.sender(i), &all[i]
			for began := time.Now(); began.Before(to) && ctx.Err() == nil; began = time.Now() {
				err := l.step(ctx, s)
				now := time.Now()
				if err != nil {
					c.failed++
					if c.why == nil {
						c.why = err
					}
					pause(ctx, errorPause)
					continue
				}
				c.ok++
				if !now.Before(from) && now.Before(to) {
					c.took = append(c.took, now.Sub(began))
				}
			}
		})
	}
	wg.Wait()
	return all
}

// run measures a load within a window and waits for the rest of it.
func (g *generator) run(ctx context.Context, l load, senders int, window time.Duration) ([]row, error) {
	before, _, err := g.readable(ctx, l.topic)
	if err != nil {
		return nil, err
	}
	from := time.Now().Add(time.Second)
	if l.lag > 0 {
		from = from.Add(2 * l.lag) // once to the first delivery, and once more: before it senders are faster, and what they sent then comes meanwhile
	}
	// What is taken now takes the processor from what is delivered after the delay, and the other way round: both rates swing with it.
	window = max(window, 8*l.lag)
	to := from.Add(window)
	var all []counts
	var sending sync.WaitGroup
	sending.Go(func() { all = g.turn(ctx, l, senders, from, to) })
	defer sending.Wait()
	pause(ctx, time.Until(from))
	first, began, err := g.readable(ctx, l.topic)
	if err != nil {
		return nil, err
	}
	pause(ctx, time.Until(to))
	last, ended, err := g.readable(ctx, l.topic)
	if err != nil {
		return nil, err
	}
	r := row{load: l.name, senders: senders, judged: l.delivered, average: loadAverage()}
	sending.Wait()
	ok := int64(0)
	for i := range all {
		r.took = append(r.took, all[i].took...)
		r.errors += all[i].failed
		ok += int64(all[i].ok)
		if r.why == nil {
			r.why = all[i].why
		}
	}
	slices.Sort(r.took)
	r.perSecond = float64(len(r.took)) / window.Seconds()
	if r.missing, err = g.rest(ctx, l, before+ok); err != nil {
		return nil, err
	}
	if !l.delivered {
		return []row{r}, nil
	}
	moved := r
	moved.perSecond = float64(last-first) / ended.Sub(began).Seconds()
	if l.lag == 0 {
		return []row{moved}, nil
	}
	r.load, moved.load, moved.took, r.missing = l.name+" taken", l.name+" delivered", nil, 0
	moved.errors, moved.why = 0, nil
	return []row{r, moved}, nil
}

// rest waits until a topic has so many messages, or for as long as drain says, and tells how many are missing then.
func (g *generator) rest(ctx context.Context, l load, want int64) (missing int64, err error) {
	end := time.Now().Add(l.lag + drain)
	for {
		now, _, err := g.readable(ctx, l.topic)
		if err != nil || now >= want {
			return 0, err
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return want - now, context.Cause(ctx)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// readable is how many messages a topic's queues have had, and when that was.
func (g *generator) readable(ctx context.Context, topic string) (sum int64, at time.Time, err error) {
	var ends [queues]int64
	var faults [queues]error
	began := time.Now()
	var wg sync.WaitGroup
	for q := range queues {
		wg.Go(func() { ends[q], faults[q] = g.end(ctx, topic, q) })
	}
	wg.Wait()
	for _, n := range ends {
		sum += n
	}
	return sum, began.Add(time.Since(began) / 2), errors.Join(faults[:]...)
}

// end is the offset that the next message of a queue will get.
func (g *generator) end(ctx context.Context, topic string, queue int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req := remoting.NewRequest(remoting.GetMaxOffset)
	req.Set("topic", topic)
	req.SetInt32("queueId", int32(queue))
	req.Set("committed", "true")
	req.Set("bname", g.group)
	resp, err := g.control.Call(ctx, req)
	if err != nil {
		return 0, err
	}
	if resp.Code != remoting.Success {
		return 0, fmt.Errorf("the end of queue %d of %s: code %d: %s", queue, topic, resp.Code, resp.Remark)
	}
	return resp.MustInt64("offset")
}

// warm runs every load for its share of the time, timers first, so that they are delivered when the measuring begins.
func (g *generator) warm(ctx context.Context, d time.Duration) error {
	first, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := jepsen.Await(first, "a first send that is taken", func() (bool, error) {
		return loads[0].step(first, g.sender(0)) == nil, nil
	}); err != nil {
		return err
	}
	for _, l := range slices.Backward(loads) {
		before, _, err := g.readable(ctx, l.topic)
		if err != nil {
			return err
		}
		to := time.Now().Add(time.Duration(float64(d) * l.warm))
		ok, failed := int64(0), 0
		for _, c := range g.turn(ctx, l, 64, to, to) {
			ok += int64(c.ok)
			failed += c.failed
		}
		fmt.Fprintf(os.Stderr, "  warm: %s, %d done, %d errors, load average %s\n", l.name, ok, failed, loadAverage())
		if l.lag > 0 {
			continue // they come meanwhile
		}
		if _, err := g.rest(ctx, l, before+ok); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// awaitInSync waits until all three replicas are in sync, as the master sees it.
func (g *generator) awaitInSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return jepsen.Await(ctx, "three replicas in sync", func() (bool, error) {
		resp, err := g.control.Call(ctx, remoting.NewRequest(remoting.GetBrokerHAStatus))
		if err != nil {
			return false, err
		}
		var status struct {
			InSync int `json:"inSyncSlaveNums"`
		}
		if resp.Code != remoting.Success {
			return false, fmt.Errorf("the state of the replicas: code %d: %s", resp.Code, resp.Remark)
		}
		if err := json.Unmarshal(resp.Body, &status); err != nil {
			return false, err
		}
		return status.InSync == 2, nil
	})
}

// pause waits for so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
