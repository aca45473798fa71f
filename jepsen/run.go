package jepsen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Options says what to run.
type Options struct {
	Binary   string        // path of ledgermq
	Dir      string        // an empty folder for data and logs; it is left as it is
	Kind     string        // one of Kinds
	Mode     Mode          // of the group
	Seed     uint64        // of the faults
	Duration time.Duration // how long faults go on
	Drivers  []Driver      // the client libraries; each gets the workloads that it can do
	History  io.Writer     // gets one line of JSON per operation; may be nil
	// Say tells what happens meanwhile; nil: nobody listens.
	Say func(format string, args ...any)
}

// ParseName parses a name such as kill-22: the kind of the faults, and the mode 2-2.
func ParseName(name string) (kind string, mode Mode, err error) {
	kind, digits, _ := strings.Cut(name, "-")
	if len(digits) == 2 {
		mode, err = ParseMode(digits[:1] + "-" + digits[1:])
	}
	if faults[kind] == nil || len(digits) != 2 || err != nil {
		return "", Mode{}, fmt.Errorf("no run %q: want KIND-AM, such as kill-23: a kind (%s) and a mode of 2 replicas or more", name, strings.Join(Kinds(), ", "))
	}
	return kind, mode, nil
}

// Report is what a run found.
type Report struct {
	Faults     int
	Outcomes   map[string]map[Outcome]int // by driver, of its sends
	Ended      int                        // transactions whose end was answered OK, by one who tried
	Timers     int                        // messages with a time that are in the final log
	Recalled   int                        // messages with a time whose recall was OK
	TooLate    int                        // recalls that came too late
	Acks       int                        // of consumer groups, that were OK
	Counted    int                        // one-way acks that had to be in the log
	Resets     int                        // of consumer groups, that were OK
	Asks       int                        // where consumer groups go on, that were OK
	Reads      int                        // polls, consumed batches and questions for a maximum that were OK
	NoOK       time.Duration              // the longest time without a send of the first driver that was OK
	Healed     time.Duration              // from the last heal until everything was reachable again
	Messages   int                        // in the final log
	Violations []Violation
}

// The limits of what comes after the last fault.
const (
	healLimit  = 100 * time.Second // a replica that came and went often waits up to a minute for its vote
	reachLimit = 60 * time.Second  // a stock client looks at the routes every 30 s
	drainLimit = 90 * time.Second  // and shares out the queues every 20 s
	readsLimit = 60 * time.Second
)

// Run runs all workloads through the faults of one seed. The error tells why there is no verdict; a bad verdict is in the
// report.
func Run(ctx context.Context, o Options) (r Report, err error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := StartCluster(starting, ClusterOptions{Binary: o.Binary, Dir: o.Dir, Mode: o.Mode})
	if err != nil {
		return r, err
	}
	defer c.Close()
	run := &run{o: o, c: c, rec: NewRecorder(o.History), report: &r}
	if run.cl, err = client.New(c.Namesrv()); err != nil {
		return r, err
	}
	defer run.cl.Close()
	if err := run.load(ctx); err != nil {
		return r, err
	}
	closed := c.Close()
	if closed != nil {
		run.bad(Crashed, closed)
	}
	if trouble := c.Trouble(); trouble != "" {
		run.bad(Crashed, errors.New(trouble))
	}
	verifying, cancel := context.WithTimeout(ctx, readsLimit)
	defer cancel()
	if err := c.Verify(verifying); err != nil {
		run.bad(Diverged, err)
	}
	history, err := run.rec.History()
	if err != nil {
		return r, fmt.Errorf("the history: %w", err)
	}
	r.Violations = append(r.Violations, Judge(history, run.consumed...)...)
	r.count(history)
	return r, ctx.Err()
}

// run is the inside of Run.
type run struct {
	o        Options
	c        *Cluster
	cl       *client.Client
	rec      *Recorder
	report   *Report
	topics   []string
	consumed []string // topics that are consumed
	tallies  []*tally
	workers  []*worker
	begun    chan halfOf // of transactions
	halves   []halfOf
	tellers  []string          // producer groups of transactions
	clients  []*client.Client  // of members
	progress map[string]string // consumer groups that are asked for, to their topics
}

func (r *run) bad(class Class, err error) {
	r.report.Violations = append(r.report.Violations, Violation{class, err.Error()})
}

// crew is workers that end together.
type crew struct {
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func newCrew(ctx context.Context) *crew {
	c := &crew{}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

// add starts a worker, which works until its context ends.
func (c *crew) add(work func(ctx context.Context)) { c.wg.Go(func() { work(c.ctx) }) }

// end stops the workers and waits for them. It may be called again.
func (c *crew) end() {
	c.stop()
	c.wg.Wait()
}

// load runs the workloads through the faults, and what comes after.
func (r *run) load(ctx context.Context) error {
	senders, pollers, readers := newCrew(ctx), newCrew(ctx), newCrew(ctx)
	r.begun = make(chan halfOf, 1024)
	var gathering sync.WaitGroup
	gathering.Go(func() {
		for h := range r.begun {
			r.halves = append(r.halves, h)
		}
	})
	gather := sync.OnceFunc(func() { // when no sender runs any more
		close(r.begun)
		gathering.Wait()
	})
	defer func() {
		pollers.stop()
		readers.stop()
		senders.end()
		pollers.end()
		readers.end()
		gather()
		for _, w := range r.workers {
			if w.session != nil {
				w.session.Close()
			}
		}
		for _, cl := range r.clients {
			cl.Close()
		}
	}()
	for _, d := range r.o.Drivers {
		if err := r.begin(ctx, d, senders, pollers, readers); err != nil {
			return fmt.Errorf("client %s: %w", d.Name(), err)
		}
	}
	if err := r.beginOffsets(ctx, senders, readers); err != nil {
		return fmt.Errorf("offsets: %w", err)
	}
	if err := r.reach(ctx); err != nil {
		return fmt.Errorf("before any fault: %w", err)
	}
	steps := Schedule(r.o.Seed, r.o.Kind, r.o.Duration)
	if err := nemesis(ctx, r.c, steps, r.rec, r.o.Say); err != nil {
		r.bad(Crashed, err)
		return nil
	}
	healed := time.Now()
	if err := r.settle(ctx, pollers, senders); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.bad(Unhealed, err)
	}
	gather()
	if err := r.endRest(ctx); err != nil && ctx.Err() == nil {
		r.bad(Unhealed, err)
	}
	r.report.Healed = time.Since(healed)
	r.o.Say("%7.1f s  healed, each replica leads once", float64(r.rec.Now())/1e9)
	readers.end()
	r.finalOffsets(ctx)
	r.o.Say("%7.1f s  reading", float64(r.rec.Now())/1e9)
	r.readFinal(ctx)
	r.o.Say("%7.1f s  read", float64(r.rec.Now())/1e9)
	return ctx.Err()
}

// begin makes the topics and the workers of a driver.
func (r *run) begin(ctx context.Context, d Driver, senders, pollers, readers *crew) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, kind := range []string{"queue", "log"} {
		topic := kind + "-" + d.Name()
		if _, err := r.cl.CreateTopic(ctx, client.TopicSpec{Name: topic, ReadQueues: topicQueues}); err != nil {
			return err
		}
		r.topics = append(r.topics, topic)
		t := newTally()
		open := func(what string) (*worker, error) {
			s, err := d.Open(ctx, r.c.Namesrv(), topic, "readers-"+topic)
			if err != nil {
				return nil, err
			}
			w := &worker{rec: r.rec, session: s, name: topic + "/" + what, topic: topic, tally: t}
			r.workers = append(r.workers, w)
			return w, nil
		}
		n := logSenders
		if kind == "queue" {
			n = queueSenders
		}
		for i := range n {
			w, err := open(fmt.Sprintf("send%d", i))
			if err != nil {
				return err
			}
			senders.add(func(ctx context.Context) { w.send(ctx, kind == "log") })
		}
		if kind == "queue" {
			w, err := open("consume")
			if err != nil {
				return err
			}
			r.consumed, r.tallies = append(r.consumed, topic), append(r.tallies, t)
			readers.add(w.consume)
			continue
		}
		w, err := open("poll")
		if err != nil {
			return err
		}
		pollers.add(w.poll)
		for _, node := range r.c.Nodes() {
			i := &worker{rec: r.rec, name: topic + "/inspect-" + node, topic: topic, tally: t}
			r.workers = append(r.workers, i)
			readers.add(func(ctx context.Context) { i.inspect(ctx, r.cl, node, r.c.Client(node)) })
		}
	}
	if err := r.beginTimers(ctx, d, senders, readers); err != nil {
		return err
	}
	return r.beginTransactions(ctx, d, senders)
}

// reach waits until a call of every worker succeeds.
func (r *run) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	before := make([]int, len(r.workers))
	for i, w := range r.workers {
		before[i] = w.succeeded()
	}
	var waiting string
	err := Await(ctx, "every client", func() (bool, error) {
		for i, w := range r.workers {
			if w.succeeded() == before[i] {
				waiting = w.name
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("%s gets nowhere: %w", waiting, err)
	}
	return nil
}

// settle waits, after the last fault, until the group is whole, every client gets on, and everything is consumed. The pollers end before the
// senders: the stock Go client cannot take back a pull that is held, so a message must end it.
func (r *run) settle(ctx context.Context, pollers, senders *crew) error {
	healing, cancel := context.WithTimeout(ctx, healLimit)
	defer cancel()
	var failed []error
	failed = append(failed, r.c.AwaitHealthy(healing), r.reach(ctx))
	pollers.end()
	senders.end()
	draining, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	failed = append(failed, r.awaitTimers(draining), Await(draining, "the consumers", func() (bool, error) {
		return !slices.ContainsFunc(r.tallies, func(t *tally) bool { return t.left() > 0 }), nil
	}))
	return errors.Join(failed...)
}

// readFinal reads every queue from every replica, up to the maximum that the master tells.
func (r *run) readFinal(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readsLimit)
	defer cancel()
	for _, topic := range r.topics {
		for queue := range topicQueues {
			q := client.QueueRef{Group: Group, Topic: topic, Queue: ids.QueueID(queue)}
			high, err := r.cl.MaxOffset(ctx, q)
			for _, node := range r.c.Nodes() {
				op := Op{Kind: Final, Client: "final", Topic: topic, Queue: queue, Replica: node, Outcome: OK, Start: r.rec.Now()}
				if err == nil {
					q.Broker = r.c.Client(node)
					op.Reads, err = readAll(ctx, r.cl, q, int64(high))
				}
				if err != nil {
					op.Outcome, op.Error, op.Reads = Failed, err.Error(), nil
				}
				r.rec.Add(op)
			}
		}
	}
}

// readAll reads a queue from one replica, waiting until the replica has all that lies below high.
func readAll(ctx context.Context, cl *client.Client, q client.QueueRef, high int64) (all []Read, err error) {
	var last error
	at := int64(0)
	err = Await(ctx, fmt.Sprintf("%v up to %d", q, high), func() (bool, error) {
		for at < high {
			reads, next, err := poll(ctx, cl, q, at)
			if err != nil || next <= at {
				last = cmp.Or(err, fmt.Errorf("nothing at %d", at))
				return false, nil
			}
			for _, r := range reads {
				if r.Offset < high { // what nobody was answered may come later
					all = append(all, r)
				}
			}
			at = next
		}
		return true, nil
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return all, nil
}

// count fills the numbers of the report.
func (r *Report) count(history []Op) {
	r.Outcomes = map[string]map[Outcome]int{}
	lastOK, first := int64(-1), ""
	values, timers, recalled := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range history {
		op := &history[i]
		switch op.Kind {
		case Later:
			timers[op.Value] = true
		case Recall:
			if op.Outcome == OK {
				recalled[op.Value] = true
			} else if op.Outcome == Contrary {
				r.TooLate++
			}
		case Ack:
			if op.Outcome == OK {
				r.Acks++
			}
		case Reset:
			if op.Outcome == OK {
				r.Resets++
			}
		case Ask:
			if op.Outcome == OK {
				r.Asks++
			}
		case Send:
			_, driver, _ := strings.Cut(op.Topic, "-")
			if r.Outcomes[driver] == nil {
				r.Outcomes[driver] = map[Outcome]int{}
			}
			r.Outcomes[driver][op.Outcome]++
			first = cmp.Or(first, driver)
			if op.Outcome == OK && driver == first {
				if lastOK >= 0 {
					r.NoOK = max(r.NoOK, time.Duration(op.End-lastOK))
				}
				lastOK = op.End
			}
		case Half:
		case End:
			if op.Outcome == OK {
				r.Ended++
			}
		case Fault:
			if op.Value != "heal" {
				r.Faults++
			}
		case Final:
			for _, read := range op.Reads {
				values[read.Value] = true
			}
		default:
			if op.Outcome == OK {
				r.Reads++
			}
		}
	}
	r.Messages, r.Recalled, r.Counted = len(values), len(recalled), len(soonOf(history))
	for value := range values {
		if timers[value] {
			r.Timers++
		}
	}
}

// shownPerClass is how many violations of one class a report shows.
const shownPerClass = 5

// Write writes the report as text.
func (r Report) Write(w io.Writer) {
	for _, driver := range slices.Sorted(maps.Keys(r.Outcomes)) {
		n := r.Outcomes[driver]
		fmt.Fprintf(w, "sends, client %s: %d ok, %d not stored, %d unknown\n", driver, n[OK], n[NotStored], n[Unknown])
	}
	fmt.Fprintf(w, "%d ends of transactions were OK; %d timers fired, %d were recalled, %d recalls came too late\n", r.Ended, r.Timers, r.Recalled, r.TooLate)
	fmt.Fprintf(w, "%d consumer offsets were answered, %d more counted, %d resets, %d questions\n", r.Acks, r.Counted, r.Resets, r.Asks)
	fmt.Fprintf(w, "%d faults, %d reads, %d messages in the final log of every replica\n", r.Faults, r.Reads, r.Messages)
	fmt.Fprintf(w, "longest time without an OK %.2f s; all reachable and read to the end %.1f s after the last fault\n", r.NoOK.Seconds(), r.Healed.Seconds())
	if len(r.Violations) == 0 {
		fmt.Fprintln(w, "no violation")
		return
	}
	shown := map[Class]int{}
	for _, v := range r.Violations {
		if shown[v.Class]++; shown[v.Class] <= shownPerClass {
			fmt.Fprintln(w, "VIOLATION", v)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(shown)) {
		if n := shown[class]; n > shownPerClass {
			fmt.Fprintf(w, "VIOLATION %s: %d in all\n", class, n)
		}
	}
}
