package jepsen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

// The workload of offsets, over our client, on a topic of its own: members of four consumer groups read all queues, and say how far they are
//
//	waited   with an answer each time, and ask before
//	soon     one-way, beside sends of their own: what the broker must have put into the log before it answered one of those counts as answered
//	over     with an answer, and an offset far beyond the end
//	moved    as the first one, and somebody resets the group meanwhile
//
// and others ask where each group goes on, these and those of the other workloads. In the end each replica is made master and asked.
const (
	offsetsTopic = "offset-own"
	groupWaited  = "waited"
	groupSoon    = "soon"
	groupOver    = "over"
	groupMoved   = "moved"

	memberPause = 30 * time.Millisecond
	askPause    = 40 * time.Millisecond
	resetPause  = 700 * time.Millisecond
	// ackLimit is short, so that a member goes on while an answer is away.
	ackLimit = time.Second
	beyond   = 1 << 40

	// soonIsLate is when a one-way ack must be in the log: a broker keeps it for up to 200 ms.
	soonIsLate = 300 * time.Millisecond
	// masterless is from when on an answer may be that of a replica which has waited a second for a master: when a controller says that there is
	// none, it tells the offset that it knows, which may be an older one.
	masterless = 950 * time.Millisecond
	// lateLimit is how long after it ended a reset without an answer may still be carried out: a fault holds it for 3 s at most, and a broker
	// that passes it on another 2.5 s.
	lateLimit = 15 * time.Second
)

// consumer reads all queues for a consumer group and acks.
type consumer struct {
	*worker
	cl    *client.Client
	group string

	mu sync.Mutex
	at [topicQueues]int64
}

func (m *consumer) place(queue int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[queue]
}

// run reads and acks until ctx ends.
func (m *consumer) run(ctx context.Context, r *run) {
	nodeAt := r.c.NodeAt
	acked := [topicQueues]int64{}
	for i := 0; ctx.Err() == nil; i++ {
		queue := i % topicQueues
		broker := ""
		if m.group == groupSoon {
			broker = m.send(i, nodeAt)
		}
		q := client.QueueRef{Group: Group, Topic: m.topic, Queue: ids.QueueID(queue)}
		m.pull(q)
		if m.group == groupWaited { // so that what an answer that was away did meanwhile is seen before the next one hides it
			limit, cancel := context.WithTimeout(context.Background(), ackLimit)
			r.askOne(limit, m.name, progressOf{m.group, queueID{m.topic, queue}}, "", "")
			cancel()
		}
		if at := m.place(queue); at != acked[queue] || i%64 < topicQueues {
			acked[queue] = at
			m.ack(q, at, broker, nodeAt)
		}
		pause(ctx, memberPause)
	}
}

func (m *consumer) pull(q client.QueueRef) {
	op := Op{Kind: Poll, Client: m.name, Topic: m.topic, Queue: int(q.Queue), Offset: m.place(int(q.Queue)), Outcome: OK, Start: m.rec.Now()}
	limit, cancel := context.WithTimeout(context.Background(), readLimit)
	r, err := m.cl.Pull(limit, q, ids.QueueOffset(op.Offset), pollMost, client.PullAs(m.group))
	cancel()
	op.Next = op.Offset
	switch {
	case err != nil:
		op.Outcome, op.Error = Failed, err.Error()
	case r.Status == client.PullFound:
		op.Reads, op.Next = readsOf(r.Messages), int64(r.NextOffset)
	case r.Status == client.PullOutOfRange && m.group == groupMoved: // this is how it hears of a reset
		op.Outcome, op.Error, op.Next = Failed, "the group was reset", int64(r.NextOffset)
	}
	m.mu.Lock()
	m.at[q.Queue] = op.Next
	m.mu.Unlock()
	m.rec.Add(op)
}

// ack says how far the group is. One-way it goes to broker, if it is given.
func (m *consumer) ack(q client.QueueRef, at int64, broker string, nodeAt func(addr string) string) {
	op := Op{Kind: Ack, Client: m.name, Group: m.group, Topic: m.topic, Queue: int(q.Queue), Offset: at, Next: at, Start: m.rec.Now()}
	limit, cancel := context.WithTimeout(context.Background(), ackLimit)
	defer cancel()
	var err error
	switch m.group {
	case groupSoon:
		q.Broker, op.OneWay, op.Replica, op.Outcome = broker, true, nodeAt(broker), Unknown
		if err = m.cl.CommitOffsetSoon(limit, m.group, q, ids.QueueOffset(at)); err != nil {
			op.Outcome = Failed
		}
	case groupOver:
		op.Offset += beyond
		fallthrough
	default:
		err = m.cl.CommitOffset(limit, m.group, q, ids.QueueOffset(op.Offset))
		switch {
		case err == nil:
			op.Outcome = OK
		case errors.Is(err, client.ErrResetPending):
			op.Outcome = LeftOut
		default:
			op.Outcome = Unknown
		}
	}
	if err != nil {
		op.Error = err.Error()
	}
	if op.Outcome == OK || op.OneWay && err == nil {
		m.succeed()
	}
	m.rec.Add(op)
}

// send sends over the connection of the acks, and returns the address of the replica that stored it; "" when it was not OK.
func (m *consumer) send(i int, nodeAt func(addr string) string) (addr string) {
	op := Op{Kind: Send, Client: m.name, Topic: m.topic, Value: fmt.Sprintf("%s/%d", m.name, i), Start: m.rec.Now()}
	limit, cancel := context.WithTimeout(context.Background(), sendLimit)
	r, err := m.cl.Producer().Send(limit, client.Message{Topic: m.topic, Body: []byte(op.Value)})
	cancel()
	switch {
	case err == nil:
		op.Outcome, op.Queue, op.Offset = OK, int(r.Queue), int64(r.Offset)
		if host, _, bad := message.ParseOffsetMessageID(r.OffsetMessageID); bad == nil {
			addr = host.String()
			op.Replica = nodeAt(addr)
		}
	case errors.Is(err, client.ErrNotStored):
		op.Outcome, op.Error = NotStored, err.Error()
	default:
		op.Outcome, op.Error = Unknown, err.Error()
	}
	m.rec.Add(op)
	return addr
}

// reset resets the group of m now and then, to where it was, until ctx ends.
func (m *consumer) reset(ctx context.Context, w *worker, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	for ctx.Err() == nil {
		queue := rnd.IntN(topicQueues)
		op := Op{Kind: Reset, Client: w.name, Group: m.group, Topic: m.topic, Queue: queue, Offset: rnd.Int64N(m.place(queue) + 1), Start: w.rec.Now()}
		limit, cancel := context.WithTimeout(context.Background(), sendLimit)
		q := client.QueueRef{Group: Group, Topic: m.topic, Queue: ids.QueueID(queue)}
		err := m.cl.ResetOffset(limit, m.group, q, ids.QueueOffset(op.Offset))
		cancel()
		if op.Outcome = OK; err != nil {
			op.Outcome, op.Error = Unknown, err.Error()
		} else {
			w.succeed()
		}
		w.rec.Add(op)
		pause(ctx, resetPause+time.Duration(rnd.Int64N(int64(resetPause))))
	}
}

// progressOf names where a consumer group goes on.
type progressOf struct {
	group string
	queueID
}

func (p progressOf) String() string { return fmt.Sprintf("%s in %v", p.group, p.queueID) }

// ask asks where the groups go on until ctx ends: mostly the master, as the client knows it, every third time some replica.
func (r *run) ask(ctx context.Context, w *worker, groups map[string]string, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	names := slices.Sorted(maps.Keys(groups))
	for i := 0; ctx.Err() == nil; i++ {
		group := names[rnd.IntN(len(names))]
		if group == groupSoon && i%8 != 0 { // whoever asks makes the broker write what it has in memory
			continue
		}
		node := ""
		if i%3 == 0 {
			node = r.c.Nodes()[rnd.IntN(len(r.c.Nodes()))]
		}
		limit, cancel := context.WithTimeout(ctx, readLimit)
		if r.askOne(limit, w.name, progressOf{group, queueID{groups[group], rnd.IntN(topicQueues)}}, node, node) {
			w.succeed()
		}
		cancel()
		pause(ctx, askPause)
	}
}

// askOne asks the replica on node, or the master, and notes the answer as that of replica.
func (r *run) askOne(ctx context.Context, name string, p progressOf, node, replica string) bool {
	q := client.QueueRef{Group: Group, Topic: p.topic, Queue: ids.QueueID(p.queue)}
	if node != "" {
		q.Broker = r.c.Client(node)
	}
	op := Op{Kind: Ask, Client: name, Group: p.group, Topic: p.topic, Queue: p.queue, Replica: replica, Outcome: OK, Next: -1, Start: r.rec.Now()}
	off, found, err := r.cl.CommittedOffset(ctx, p.group, q)
	if found {
		op.Next = int64(off)
	}
	if err != nil {
		op.Outcome, op.Error = Failed, err.Error()
	}
	r.rec.Add(op)
	return err == nil
}

// beginOffsets makes the topic, the groups and the workers of offsets.
func (r *run) beginOffsets(ctx context.Context, senders, readers *crew) error {
	if _, err := r.cl.CreateTopic(ctx, client.TopicSpec{Name: offsetsTopic, ReadQueues: topicQueues}); err != nil {
		return err
	}
	r.topics = append(r.topics, offsetsTopic)
	r.progress = map[string]string{}
	for _, topic := range r.consumed {
		r.progress["readers-"+topic] = topic
	}
	add := func(name string) *worker {
		w := &worker{rec: r.rec, name: offsetsTopic + "/" + name, topic: offsetsTopic, tally: newTally()}
		r.workers = append(r.workers, w)
		return w
	}
	for _, group := range []string{groupWaited, groupSoon, groupOver, groupMoved} {
		if _, err := r.cl.CreateGroup(ctx, client.GroupSpec{Name: group}); err != nil {
			return err
		}
		cl, err := client.New(r.c.Namesrv())
		if err != nil {
			return err
		}
		r.clients = append(r.clients, cl)
		r.progress[group] = offsetsTopic
		m := &consumer{worker: add(group), cl: cl, group: group}
		senders.add(func(ctx context.Context) { m.run(ctx, r) })
		if group == groupMoved {
			w := add("reset")
			senders.add(func(ctx context.Context) { m.reset(ctx, w, r.o.Seed) })
		}
	}
	w := add("ask")
	readers.add(func(ctx context.Context) { r.ask(ctx, w, r.progress, r.o.Seed) })
	return nil
}

// finalOffsets makes each replica master, one after the other, and asks it where the groups go on.
func (r *run) finalOffsets(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readsLimit)
	defer cancel()
	for _, node := range r.c.Nodes() {
		var last error
		err := Await(ctx, "the election of "+node, func() (bool, error) {
			if master, err := r.c.Master(ctx); err == nil && master == node {
				return true, nil
			}
			_, last = r.c.Run(ctx, "admin", "elect", Group, "--node", node, "--namesrv", r.c.Namesrv()[0])
			return false, nil
		})
		if err != nil {
			r.rec.Add(Op{Kind: Ask, Client: finalClient, Replica: node, Outcome: Failed, Start: r.rec.Now(), Error: errors.Join(err, last).Error()})
			continue
		}
		for _, group := range slices.Sorted(maps.Keys(r.progress)) {
			for queue := range topicQueues {
				r.askOne(ctx, finalClient, progressOf{group, queueID{r.progress[group], queue}}, "", node)
			}
		}
	}
}

const finalClient = "final"

// progressed is what a history tells of a consumer group in a queue.
type progressed struct {
	acks, resets, asks []*Op
}

// floor is an offset before which a group must not go on.
type floor struct {
	from   int64 // by whom asks after that
	op     *Op   // that says so; a reset that may have been carried out after it began makes it void
	offset int64
}

// judgeProgress demands that a consumer group goes on where a member said, or a reset; not before what was answered, unless a reset put it
// there, and not behind the end of the queue; and that all replicas say the same in the end.
func (j *judge) judgeProgress(history []Op) {
	all := map[progressOf]*progressed{}
	for i := range history {
		op := &history[i]
		if op.Kind != Ack && op.Kind != Reset && op.Kind != Ask {
			continue
		}
		if op.Kind == Ask && op.Outcome != OK {
			if op.Client == finalClient {
				j.bad(Unread, "where %s goes on in %s/%d by %s: %s", op.Group, op.Topic, op.Queue, op.Replica, op.Error)
			}
			continue
		}
		id := progressOf{op.Group, queueID{op.Topic, op.Queue}}
		if all[id] == nil {
			all[id] = &progressed{}
		}
		switch p := all[id]; op.Kind {
		case Ack:
			p.acks = append(p.acks, op)
		case Reset:
			p.resets = append(p.resets, op)
		default:
			p.asks = append(p.asks, op)
		}
	}
	ends, soon := answeredOf(history), soonOf(history)
	for _, id := range slices.SortedFunc(maps.Keys(all), func(a, b progressOf) int {
		return cmp.Or(cmp.Compare(a.group, b.group), compareQueues(a.queueID, b.queueID))
	}) {
		p := all[id]
		floors := p.floors(id.queueID, ends, soon)
		for _, ask := range p.asks {
			j.judgeAsk(id, p, floors, ask)
		}
		j.judgeReplicas(id, p)
	}
}

// floors are what was answered.
func (p *progressed) floors(q queueID, ends answers, soon map[*Op]int64) (list []floor) {
	for _, op := range p.acks {
		from, counts := op.End, op.Outcome == OK
		if op.OneWay {
			from, counts = soon[op], soon[op] > 0
		}
		if !counts {
			continue
		}
		end := op.Next // what is beyond the end counts as the end
		if last, some := ends.last(q, op.Start); some {
			end = max(end, last.offset+1)
		}
		list = append(list, floor{from, op, min(op.Offset, end)})
	}
	for _, op := range p.resets {
		if op.Outcome == OK {
			list = append(list, floor{op.End, op, op.Offset})
		}
	}
	for _, op := range p.asks {
		list = append(list, floor{op.End, op, op.Next})
	}
	return list
}

// effective is when a reset was carried out at the latest.
func effective(reset *Op) int64 {
	if reset.Outcome == OK {
		return reset.End
	}
	return reset.End + int64(lateLimit)
}

// reset tells whether a reset may have been carried out after op began and before the end of ask.
func (p *progressed) resetBetween(op, ask *Op) bool {
	return slices.ContainsFunc(p.resets, func(r *Op) bool { return r != op && r.Start < ask.End && effective(r) > op.Start })
}

func (j *judge) judgeAsk(id progressOf, p *progressed, floors []floor, ask *Op) {
	newest := ask.End-ask.Start < int64(masterless)
	var worst *floor
	for i := range floors {
		if f := &floors[i]; f.from < ask.Start && f.offset > ask.Next && (worst == nil || f.offset > worst.offset) && !p.resetBetween(f.op, ask) {
			worst = f
		}
	}
	if worst != nil && newest {
		j.bad(Back, "%v goes on at %d after %s (%s %s), and %d was answered %s before (%s by %s)",
			id, ask.Next, seconds(ask.End), ask.Client, ask.Replica, worst.offset, seconds(ask.Start-worst.from), worst.op.Kind, worst.op.Client)
	}
	if ask.Next <= 0 {
		return
	}
	value, there := j.at[place{id.queueID, ask.Next - 1}]
	if send := j.sends[value]; !there || send != nil && send.Start > ask.End {
		j.bad(Ahead, "%v goes on at %d after %s (%s %s), where the queue had not got to", id, ask.Next, seconds(ask.End), ask.Client, ask.Replica)
		return
	}
	if newest {
		j.judgeSource(id, p, ask)
	}
}

// judgeSource looks for who said that a group goes on there.
func (j *judge) judgeSource(id progressOf, p *progressed, ask *Op) {
	if len(p.acks) == 0 { // of a group whose members are not ours
		return
	}
	var last *Op // the last reset that must have been carried out
	for _, r := range p.resets {
		if r.Outcome == OK && r.End < ask.Start && (last == nil || r.End > last.End) {
			last = r
		}
	}
	if last != nil && p.resetBetween(last, ask) {
		last = nil
	}
	var old *Op
	for _, op := range p.acks {
		says := op.Offset == ask.Next || op.Offset > ask.Next && op.Offset > op.Next // beyond the end counts as the end
		if !says || op.Start > ask.End || op.Outcome == LeftOut {
			continue
		}
		if last == nil || op.Start > last.Start {
			return
		}
		old = op
	}
	for _, op := range p.resets {
		if op.Offset == ask.Next && op.Start < ask.End && (last == nil || op == last) {
			return
		}
	}
	if old != nil {
		j.bad(Undone, "%v goes on at %d after %s (%s %s), as was said %s before it was reset to %d", id, ask.Next, seconds(ask.End), ask.Client, ask.Replica, seconds(last.Start-old.Start), last.Offset)
		return
	}
	j.bad(Invented, "%v goes on at %d after %s (%s %s), and nobody said that", id, ask.Next, seconds(ask.End), ask.Client, ask.Replica)
}

// judgeReplicas demands that all replicas say the same in the end. Members that are not ours may still go on then.
func (j *judge) judgeReplicas(id progressOf, p *progressed) {
	if len(p.acks) == 0 {
		return
	}
	var first *Op
	for _, ask := range p.asks {
		switch {
		case ask.Client != finalClient:
		case first == nil:
			first = ask
		case ask.Next != first.Next:
			j.bad(Diverged, "%v goes on at %d by %s, at %d by %s", id, first.Next, first.Replica, ask.Next, ask.Replica)
		}
	}
}

// soonOf tells which one-way acks count as answered, and from when on: when no fault began or ended meanwhile, their sender's next sends were
// all stored by the replica that got the ack, and one of them began so late that the ack must be in the log before it.
func soonOf(history []Op) map[*Op]int64 {
	var faults []*Op
	sends, acks := map[string][]*Op{}, map[string][]*Op{}
	for i := range history {
		switch op := &history[i]; {
		case op.Kind == Fault:
			faults = append(faults, op)
		case op.Kind == Send:
			sends[op.Client] = append(sends[op.Client], op)
		case op.Kind == Ack && op.OneWay && op.Outcome != Failed && op.Replica != "":
			acks[op.Client] = append(acks[op.Client], op)
		}
	}
	from := map[*Op]int64{}
	for name, list := range acks {
		for _, ack := range list {
			if sure := surelyStored(ack, sends[name]); sure != nil &&
				!slices.ContainsFunc(faults, func(f *Op) bool { return f.Start < sure.End && f.End > ack.Start }) {
				from[ack] = sure.End
			}
		}
	}
	return from
}

// surelyStored returns the send of the ack's own client that proves the ack to be in the log; nil when none does.
func surelyStored(ack *Op, sends []*Op) *Op {
	n, _ := slices.BinarySearchFunc(sends, ack.End, func(s *Op, end int64) int { return cmp.Compare(s.Start, end) })
	for _, s := range sends[n:] {
		switch {
		case s.Outcome != OK || s.Replica != ack.Replica || s.Start > ack.End+3*int64(soonIsLate):
			return nil
		case s.Start >= ack.End+int64(soonIsLate):
			return s
		}
	}
	return nil
}
