package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
	"github.com/ledgermq/ledgermq/tests/cluster"
)

// Of timers two more things are asked. How late is a timer that is due while the group keeps up? It is read by a consumer whose pull is held
// at the end of the queue; what counts is the time at which it has the message, less the time that the message was due. Expected: the
// master wakes in the millisecond of the due time, so one write that is synced on two disks, about as long as a send takes; the goal is a p99
// of 100 ms. A timer that comes early is an error.
//
// And what do many timers cost that are due at the same second? Expected in memory: nothing but what came since the last checkpoint
// of 64 MiB, some 60,000 entries of 24 bytes. Expected in time: the log's rate for frames of 256 KiB.

const (
	latePerSecond = 500
	lateFor       = 10 * time.Second
	lateTopic     = "RatesLate"
)

func timers(ctx context.Context, w io.Writer, dir string, count int) (err error) {
	fmt.Fprintln(os.Stderr, "LedgerMQ starts")
	c, err := start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	g, err := connect(ctx, c.Namesrv)
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.warm(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := g.awaitInSync(ctx); err != nil {
		return err
	}
	fmt.Fprintln(w, "later than due\ttimers\tp50\tp99\tmax\tload average\tgoal")
	for _, beside := range []int{0, 64} {
		if err := g.lateness(ctx, w, beside); err != nil {
			return err
		}
	}
	return g.atOnce(ctx, w, c, count)
}

// lateness measures how late timers come beside so many senders of other messages.
func (g *generator) lateness(ctx context.Context, w io.Writer, beside int) error {
	ctx, cancel := context.WithTimeout(ctx, lateFor+30*time.Second)
	defer cancel()
	var background sync.WaitGroup
	defer background.Wait()
	loaded, quiet := context.WithCancel(ctx)
	defer quiet()
	if beside > 0 {
		to := time.Now().Add(time.Minute)
		background.Go(func() { g.turn(loaded, loads[0], beside, to, to) })
	}
	const senders = 16
	const each = latePerSecond * int(lateFor/time.Second) / senders
	reading, err := g.read(ctx, lateTopic, int64(each*senders))
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	var faults [senders]error
	for i := range senders {
		sending.Go(func() {
			s, pace := g.sender(i), time.NewTicker(senders*time.Second/latePerSecond)
			defer pace.Stop()
			for range each {
				due := time.Now().UnixMilli() + 1000 + rand.Int64N(2000)
				if _, err := s.sendDue(ctx, due); err != nil {
					faults[i] = err
					cancel()
					return
				}
				<-pace.C
			}
		})
	}
	sending.Wait()
	if err := errors.Join(faults[:]...); err != nil {
		return err
	}
	late, err := reading()
	if err != nil {
		return err
	}
	slices.Sort(late)
	if len(late) == 0 || late[0] < 0 {
		return fmt.Errorf("of %d timers one came %v after it was due", len(late), late[:min(1, len(late))])
	}
	r := row{took: late}
	fmt.Fprintf(w, "%d a second, beside %d senders\t%d\t%s\t%s\t%s\t%s\tp99 100ms\n", latePerSecond, beside, len(late), r.quantile(0.5), r.quantile(0.99), r.quantile(1), loadAverage())
	return nil
}

// sendDue sends a timer that is due at a time, which its body tells.
func (s *sender) sendDue(ctx context.Context, due int64) (*remoting.Command, error) {
	body := binary.BigEndian.AppendUint64(make([]byte, 0, bodySize), uint64(due))
	return s.sendBody(ctx, lateTopic, message.KeyTimerDeliverMs+"\x01"+strconv.FormatInt(due, 10)+"\x02", 0, body[:bodySize])
}

// read begins to read what comes into a topic from now on. The function that it returns waits until so many messages have come, and tells how
// much later than due each was.
func (g *generator) read(ctx context.Context, topic string, want int64) (func() ([]time.Duration, error), error) {
	var ends [queues]int64
	for q := range queues {
		n, err := g.end(ctx, topic, q)
		if err != nil {
			return nil, err
		}
		ends[q] = n
	}
	var came atomic.Int64
	var late [queues][]time.Duration
	var faults [queues]error
	reading, enough := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for q := range queues {
		wg.Go(func() {
			for at := ends[q]; reading.Err() == nil; {
				list, next, err := g.pull(reading, g.conns[q%len(g.conns)], topic, q, at)
				if err != nil {
					if came.Load() < want {
						faults[q] = err
						enough()
					}
					return
				}
				now := time.Now()
				for _, due := range list {
					late[q] = append(late[q], now.Sub(time.UnixMilli(due)))
				}
				at = next
				if came.Add(int64(len(list))) >= want {
					enough()
				}
			}
		})
	}
	return func() ([]time.Duration, error) {
		defer enough()
		wg.Wait()
		return slices.Concat(late[:]...), errors.Join(faults[:]...)
	}, nil
}

// pull waits for messages from an offset on and tells when they were due.
func (g *generator) pull(ctx context.Context, c *remoting.Client, topic string, queue int, at int64) (due []int64, next int64, err error) {
	req := remoting.NewRequest(remoting.PullMessage)
	req.Set("consumerGroup", "TOOLS_CONSUMER")
	req.Set("topic", topic)
	req.SetInt32("queueId", int32(queue))
	req.SetInt64("queueOffset", at)
	req.Set("maxMsgNums", "32")
	req.SetInt32("sysFlag", message.PullSubscription|message.PullSuspend)
	req.Set("commitOffset", "0")
	req.Set("suspendTimeoutMillis", "5000")
	req.Set("subscription", "*")
	req.Set("subVersion", "0")
	req.Set("expressionType", "TAG")
	req.Set("bname", g.group)
	resp, err := c.Call(ctx, req)
	if err != nil {
		return nil, 0, err
	}
	switch resp.Code {
	case remoting.Success:
	case remoting.PullNotFound:
		return nil, at, nil
	default:
		return nil, 0, fmt.Errorf("pull from queue %d of %s: code %d: %s", queue, topic, resp.Code, resp.Remark)
	}
	if next, err = resp.MustInt64("nextBeginOffset"); err != nil {
		return nil, 0, err
	}
	for b := resp.Body; len(b) > 0; {
		rec, n, err := message.Decode(b)
		if err != nil {
			return nil, 0, err
		}
		due = append(due, int64(binary.BigEndian.Uint64(rec.Body)))
		b = b[n:]
	}
	return due, next, nil
}

// atOnce sends many timers that are due at the same second, and tells what they cost.
func (g *generator) atOnce(ctx context.Context, w io.Writer, c *cluster.Cluster, count int) error {
	const senders, leastRate = 256, 6000 // they must all be there before they are due
	fmt.Fprintf(w, "\n%d timers due at once\twhen\tresident memory of each node\tof its heap and stacks\tload average\n", count)
	note := func(what string) error {
		all, own, err := resident(c)
		if err == nil {
			fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\n", what, all, own, loadAverage())
			fmt.Fprintf(os.Stderr, "  %s: %s, load average %s\n", what, all, loadAverage())
		}
		return err
	}
	if err := note("before"); err != nil {
		return err
	}
	before, _, err := g.readable(ctx, lateTopic)
	if err != nil {
		return err
	}
	began := time.Now()
	due := began.Add(20*time.Second + time.Duration(count)*time.Second/leastRate).Truncate(time.Second)
	var left atomic.Int64
	left.Store(int64(count))
	var wg sync.WaitGroup
	var faults [senders]error
	for i := range senders {
		wg.Go(func() {
			s := g.sender(i)
			for left.Add(-1) >= 0 {
				if _, err := s.sendDue(ctx, due.UnixMilli()); err != nil {
					faults[i] = err
					left.Store(0)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(faults[:]...); err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Fprintf(w, "\tall are taken\t%.0f a second\n", float64(count)/took.Seconds())
	if time.Until(due) < time.Second {
		return fmt.Errorf("%d timers took %v, and were due by then: use fewer", count, took)
	}
	if err := note("waiting"); err != nil {
		return err
	}
	for time.Until(due) > 0 { // a connection that says nothing for two minutes is closed
		if _, _, err := g.readable(ctx, lateTopic); err != nil {
			return err
		}
		pause(ctx, min(10*time.Second, time.Until(due)))
	}
	when := map[int]time.Duration{} // by parts of a hundred
	for {
		n, at, err := g.readable(ctx, lateTopic)
		if err != nil {
			return err
		}
		for _, part := range []int{1, 50, 99, 100} {
			if _, there := when[part]; !there && (n-before)*100 >= int64(part)*int64(count) {
				when[part] = at.Sub(due)
			}
		}
		if n-before >= int64(count) {
			break
		}
		if time.Since(due) > 5*time.Minute {
			return fmt.Errorf("%d of %d timers came within 5 minutes", n-before, count)
		}
		pause(ctx, 20*time.Millisecond)
	}
	fmt.Fprintf(w, "\tdelivered\t%.0f a second\n", float64(count)/when[100].Seconds())
	for _, part := range []int{1, 50, 99, 100} {
		fmt.Fprintf(w, "\t%d of 100 are readable\t%v after they were due\n", part, when[part].Round(time.Millisecond))
	}
	return note("delivered")
}

// resident is the memory of each broker node: all that is resident, and what of it no file stands behind.
func resident(c *cluster.Cluster) (all, own string, err error) {
	members, err := c.Members()
	if err != nil {
		return "", "", err
	}
	var every, anonymous []string
	for _, m := range members {
		if m.Role != "broker" {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID))
		if err != nil {
			return "", "", err
		}
		kib := map[string]int64{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			kib[key], _ = strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		}
		every = append(every, fmt.Sprintf("%d MiB", kib["VmRSS"]>>10))
		anonymous = append(anonymous, fmt.Sprintf("%d MiB", kib["RssAnon"]>>10))
	}
	return strings.Join(every, ", "), strings.Join(anonymous, ", "), nil
}
