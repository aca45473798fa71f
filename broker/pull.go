package broker

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Bounds of one pull. RocketMQ answers 32 messages and 256 KiB at most; the number is a wish of the client here.
const (
	maxPullBytes    = 256 << 10
	maxPullMessages = 1024
	maxPullScan     = 16 << 10 // entries that a filter may pass over in one pull
	maxSuspend      = 5 * time.Minute
)

// pullRequest is the header of PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), which are one and the same.
type pullRequest struct {
	group, topic string
	queue        ids.QueueID
	offset       ids.QueueOffset
	max          int
	sysFlag      int32
	commit       ids.QueueOffset
	suspend      time.Duration
	subscription string
	subVersion   int64
	expression   string
	filter       tagFilter
	conn         *remoting.Conn // that the pull came over
	others       *tagFilter     // what other members of the group want besides, nil: nothing; for one look
}

func parsePull(req *remoting.Command) (p pullRequest, err error) {
	fail := func(e error) {
		if err == nil {
			err = e
		}
	}
	str := func(k string) string { v, e := req.MustString(k); fail(e); return v }
	i32 := func(k string) int32 { v, e := req.MustInt32(k); fail(e); return v }
	i64 := func(k string) int64 { v, e := req.MustInt64(k); fail(e); return v }
	p.group, p.topic = str("consumerGroup"), str("topic")
	p.queue = ids.QueueID(i32("queueId"))
	p.offset = ids.QueueOffset(i64("queueOffset"))
	p.max = int(i32("maxMsgNums"))
	p.sysFlag = i32("sysFlag")
	p.commit = ids.QueueOffset(i64("commitOffset"))
	// Bounded before it is counted in nanoseconds: there it would overflow.
	p.suspend = time.Duration(min(max(i64("suspendTimeoutMillis"), 0), maxSuspend.Milliseconds())) * time.Millisecond
	p.subVersion = i64("subVersion")
	p.subscription, _ = req.Get("subscription")
	p.expression = req.GetOr("expressionType", expressionTag)
	if err == nil {
		err = message.ValidGroup(p.group)
	}
	if err == nil && p.max <= 0 {
		err = refuse(remoting.InvalidParameter, "maxMsgNums %d: ask for at least 1", p.max)
	}
	p.max = min(p.max, maxPullMessages)
	return p, err
}

// own copies the strings out of the request, so that p outlives it.
func (p *pullRequest) own() {
	p.group, p.topic = strings.Clone(p.group), strings.Clone(p.topic)
	p.subscription, p.expression = "", expressionTag
	p.filter.own()
}

// pullScratch is the memory of one pull, used again by the next.
type pullScratch struct {
	resp    remoting.Command
	body    []byte
	entries []index.Entry
}

var pullScratches = sync.Pool{New: func() any { return new(pullScratch) }}

// found is the result of one look at a queue.
type found struct {
	code     int32
	next     ids.QueueOffset
	min, max ids.QueueOffset
	suggest  ids.BrokerID
	messages int // found
	remark   string
}

// handlePull answers what is there, or holds the pull until something arrives or its time is over.
func (r *Replica) handlePull(c *remoting.Conn, req *remoting.Command) {
	p, err := parsePull(req)
	if err != nil {
		replyError(c, req, err)
		return
	}
	if _, known := r.st.Topic(p.topic); !known && !r.isMaster() {
		// A slave may only be behind: it never says that something does not exist.
		resp := new(remoting.Command)
		r.fill(resp, found{code: remoting.PullNotFound, next: p.offset, remark: "this replica does not know the topic yet"}, nil)
		c.Reply(req, resp)
		return
	}
	t, err := r.mayPull(c, &p)
	if err != nil {
		replyError(c, req, err)
		return
	}
	k := index.Key{Topic: t.ID, Queue: p.queue}
	if r.resetPending(p.group, k) {
		c.Async(req, r.onMaster(r.pullDuringReset))
		return
	}
	if p.sysFlag&message.PullCommitOffset != 0 && p.commit >= 0 {
		r.commitWithPull(c, &p, &t)
	}
	s := pullScratches.Get().(*pullScratch)
	defer pullScratches.Put(s)
	f, err := r.look(k, &p, s)
	if err != nil {
		if r.clog.Poisoned() == nil { // else that was said
			r.log.Error().Err(err).Str("topic", t.Name).Int32("queue", int32(p.queue)).Msg("a pull cannot be served")
		}
		replyError(c, req, err)
		return
	}
	if f.code == remoting.PullOffsetMoved && p.offset > f.max {
		r.beyondEnd(c, req, p, k)
		return
	}
	if f.code == remoting.PullNotFound && p.sysFlag&message.PullSuspend != 0 && p.suspend > 0 {
		p.own()
		r.counters.pullsHeld.Add(1)
		r.hold(&heldPull{req: p, key: k, pending: c.Pending(req), conn: c, deadline: r.now().Add(p.suspend)})
		return
	}
	r.given(&p, k, f, s.body)
	r.fill(&s.resp, f, s.body)
	c.Reply(req, &s.resp)
}

// mayConsume checks what an operator may change while a pull is held: whether the topic is readable, and whether the group may consume it.
func (r *Replica) mayConsume(p *pullRequest) (state.Topic, error) {
	t, ref := r.topic(p.topic)
	if ref != nil {
		return t, ref
	}
	if t.Perm&permRead == 0 {
		return t, refuse(remoting.NoPermission, "topic %q of group %s is not readable", t.Name, r.group)
	}
	if g, known := r.st.Group(p.group); known && !g.ConsumeEnable {
		return t, refuse(remoting.NoPermission, "consumer group %q may not consume", p.group)
	} else if !known && r.groupMissing(p.group) {
		return t, refuse(remoting.SubscriptionGroupNotExist, "consumer group %q does not exist: create it", p.group)
	}
	if !r.mayRead(p.group, p.topic) {
		return t, refuse(remoting.NoPermission, "consumer group %q is forbidden to read topic %q", p.group, p.topic)
	}
	return t, nil
}

// mayPull checks topic, group, queue and subscription, and parses the filter.
func (r *Replica) mayPull(c *remoting.Conn, p *pullRequest) (state.Topic, error) {
	t, err := r.mayConsume(p)
	if err != nil {
		return t, err
	}
	if p.queue < 0 || int32(p.queue) >= t.ReadQueues {
		return t, refuse(remoting.InvalidParameter, "queue %d of topic %s does not exist: it has %d", p.queue, t.Name, t.ReadQueues)
	}
	if p.sysFlag&message.PullSubscription == 0 {
		r.presenceMu.Lock()
		s, known, subscribed := r.presence.subscription(c, p.group, p.topic)
		r.presenceMu.Unlock()
		switch {
		case !known:
			return t, refuse(remoting.SubscriptionNotExist, "consumer group %q has no member here yet: send a heartbeat first", p.group)
		case !subscribed:
			return t, refuse(remoting.SubscriptionNotExist, "consumer group %q does not subscribe to topic %q", p.group, p.topic)
		case s.SubVersion < p.subVersion:
			return t, refuse(remoting.SubscriptionNotLatest, "the subscription of consumer group %q here is older than the pull's", p.group)
		}
		p.subscription, p.expression = s.SubString, s.ExpressionType
	}
	if p.expression != "" && p.expression != expressionTag {
		return t, refuse(remoting.SystemError, "filters of type %s are not supported", p.expression)
	}
	p.filter, p.conn = parseTagFilter(p.subscription), c
	return t, nil
}

// queueRange returns the retained part of a queue, half-open.
func (r *Replica) queueRange(k index.Key) (first, end ids.QueueOffset) { return r.st.QueueRange(k) }

// entries looks up where messages lie. The state is ahead of the index for the moment between two steps of Apply; what is still
// not there after that is a hole that a damaged file left, which is being mended.
func (r *Replica) entries(k index.Key, from ids.QueueOffset, limit int, dst []index.Entry) ([]index.Entry, error) {
	for try := 0; ; try++ {
		dst, err := r.idx.Get(k, from, limit, dst)
		switch {
		case err == nil && len(dst) > 0:
			return dst, nil
		case err == nil && try < indexTries:
			runtime.Gosched()
			continue
		case err != nil:
			r.log.Error().Err(err).Msg("the queue index is damaged: it is rebuilt from the log")
		}
		select {
		case r.mend <- struct{}{}:
		default:
		}
		return dst, refuse(remoting.SystemBusy, "the index of this queue is being rebuilt from offset %d on: try again", from)
	}
}

const indexTries = 1000

// look reads from a queue into s.body. It never blocks but for the disk. A front that is cut meanwhile is no error.
func (r *Replica) look(k index.Key, p *pullRequest, s *pullScratch) (found, error) {
	p.others = r.wantedBesides(p)
	for {
		f, err := r.lookOnce(k, p, s)
		if err == nil {
			return f, nil
		}
		if first, _ := r.queueRange(k); first <= f.min {
			return f, err
		}
	}
}

func (r *Replica) lookOnce(k index.Key, p *pullRequest, s *pullScratch) (f found, err error) {
	s.body = s.body[:0]
	f.min, f.max = r.queueRange(k)
	f.next = p.offset
	switch {
	case p.offset < f.min:
		f.code, f.next, f.remark = remoting.PullOffsetMoved, f.min, "the offset is below the first retained message"
		return f, nil
	case p.offset == f.max:
		f.code = remoting.PullNotFound
		return f, nil
	case p.offset > f.max:
		f.code, f.remark = remoting.PullOffsetMoved, "the offset is beyond the end of the queue"
		if !r.isMaster() {
			f.code = remoting.PullNotFound
		}
		return f, nil
	}
	messages, scanned := 0, 0
	for f.next < f.max && messages < p.max && scanned < maxPullScan && len(s.body) < maxPullBytes {
		if s.entries, err = r.entries(k, f.next, p.max-messages, s.entries[:0]); err != nil {
			if messages > 0 {
				break
			}
			return f, err
		}
		if f.next == p.offset {
			f.suggest = r.suggest(s.entries[0].Offset)
		}
		for rest := s.entries; len(rest) > 0; {
			e := rest[0]
			if !p.filter.mayMatch(e.TagsCode) {
				if stop, err := r.keptBack(e, p, f.next, s); err != nil {
					return f, err
				} else if stop {
					return r.stopped(p, f, messages), nil
				}
				scanned++
				f.next++
				rest = rest[1:]
				continue
			}
			if len(s.body) > 0 && len(s.body)+int(e.Size) > maxPullBytes {
				f.code = remoting.Success
				return f, nil
			}
			n := 1
			if p.others == nil {
				n = r.neighbours(rest, &p.filter, maxPullBytes-len(s.body))
			}
			matched, err := r.read(rest[:n], p, f.next, s)
			if err != nil {
				return f, err
			}
			if matched == 0 && p.others != nil { // another tag with the same hash
				if stop, err := r.keptBack(e, p, f.next, s); err != nil {
					return f, err
				} else if stop {
					return r.stopped(p, f, messages), nil
				}
			}
			messages += matched
			f.messages = messages
			scanned += n
			f.next += ids.QueueOffset(n)
			rest = rest[n:]
		}
	}
	switch {
	case messages > 0:
		f.code = remoting.Success
	case f.next > p.offset:
		f.code = remoting.PullRetryImmediately
	default:
		f.code = remoting.PullNotFound
	}
	return f, nil
}

// stopped ends a look before a message that is kept back. What came before it is answered first.
func (r *Replica) stopped(p *pullRequest, f found, messages int) found {
	switch {
	case messages > 0:
		f.code = remoting.Success
	case f.next > p.offset:
		f.code = remoting.PullRetryImmediately
	default:
		r.keepBack(p, &f)
	}
	return f
}

// maxGap is how many bytes between two messages of a queue are read along, to save a read.
const maxGap = 1 << 10

// neighbours returns how many of the entries, the first one in any case, one read can fetch: they lie close together in one segment,
// their tags may match, and all of it is at most limit bytes.
func (r *Replica) neighbours(entries []index.Entry, filter *tagFilter, limit int) int {
	first := entries[0].Offset
	segment := first / ids.PhysicalOffset(r.clog.SegmentSize())
	end := first + ids.PhysicalOffset(entries[0].Size)
	n := 1
	for _, e := range entries[1:] {
		next := e.Offset + ids.PhysicalOffset(e.Size)
		if e.Offset-end > maxGap || int(next-first) > limit || e.Offset/ids.PhysicalOffset(r.clog.SegmentSize()) != segment || !filter.mayMatch(e.TagsCode) {
			break
		}
		end = next
		n++
	}
	return n
}

// read appends the records of entries, which are neighbours, to s.body, without those whose tag the filter, which has judged by hash
// before, refuses. It returns how many it appended. The first entry is that of queue offset from. Each record is checked: the disk may have
// lost bits since it was written, and neither may they be served nor may a filter pass over what it cannot read.
func (r *Replica) read(entries []index.Entry, p *pullRequest, from ids.QueueOffset, s *pullScratch) (n int, err error) {
	at, first, last := len(s.body), entries[0].Offset, entries[len(entries)-1]
	need := at + int(last.Offset-first) + int(last.Size)
	if need > cap(s.body) {
		grown := make([]byte, at, max(need, 2*cap(s.body)))
		copy(grown, s.body)
		s.body = grown
	}
	raw := s.body[at:need]
	if err := r.clog.ReadAt(raw, first); err != nil {
		return 0, fmt.Errorf("read the message at %d: %w", first, err)
	}
	for i, e := range entries {
		record := raw[e.Offset-first:][:e.Size]
		if err := message.Check(record, p.topic, p.queue, from+ids.QueueOffset(i), e.Offset); err != nil {
			return 0, r.damaged(e.Offset, err)
		}
		if p.filter.match(record) {
			s.body = append(s.body, record...) // over what lay before it in raw, never beyond it
			n++
		}
	}
	return n, nil
}

// damaged is the error of a read that met something else than the message that lies at off. The frame around it tells whether the log is
// damaged: that poisons it, and housekeeping has the replica closed and repaired from another one.
func (r *Replica) damaged(off ids.PhysicalOffset, fault error) error {
	i, err := r.clog.IndexAt(off)
	if err == nil {
		_, err = r.clog.ReadFrame(i, nil)
	}
	var corrupt *commitlog.CorruptionError
	switch {
	case errors.As(err, &corrupt):
		if !r.metDamage.Swap(true) {
			r.log.Error().Err(err).Int64("offset", int64(off)).AnErr("record", fault).Msg("a pull met damage: the message is not served, and is fetched from another replica")
		}
		return refuse(remoting.SystemBusy, "the message at %d is damaged on this replica, which has to get it from another one: try again", off)
	case err != nil:
		return fmt.Errorf("read the message at %d: %w", off, err)
	}
	return fmt.Errorf("the queue index leads to %d, where its message is not: %w", off, fault)
}

// fill writes the answer of a pull.
func (r *Replica) fill(resp *remoting.Command, f found, body []byte) {
	resp.Reset()
	resp.Code, resp.Remark = f.code, f.remark
	resp.SetInt64("suggestWhichBrokerId", int64(f.suggest))
	resp.SetInt64("nextBeginOffset", int64(f.next))
	resp.SetInt64("minOffset", int64(f.min))
	resp.SetInt64("maxOffset", int64(f.max))
	if f.code == remoting.Success {
		r.counters.pulls.Add(1)
		r.counters.messagesOut.Add(int64(f.messages))
		r.counters.bytesOut.Add(int64(len(body)))
		resp.Body = body
	} else {
		r.counters.pullsMissed.Add(1)
	}
}

// given counts what a consumer group gets.
func (r *Replica) given(p *pullRequest, k index.Key, f found, body []byte) {
	if f.code == remoting.Success {
		if t := r.stats.add(tallyGet, p.group, k.Topic, p.topic, f.messages, len(body), r.now()); t != nil {
			t.given.gave(k.Queue, f.next)
		}
	}
}

// beyondEnd answers a pull beyond the end of a queue on a master. Only one that a quorum has just confirmed may say that the
// offset does not exist: a deposed master would send its consumers back.
func (r *Replica) beyondEnd(c *remoting.Conn, req *remoting.Command, p pullRequest, k index.Key) {
	p.own()
	c.Async(req, func(_ *remoting.Command, pend *remoting.Pending) {
		ctx, cancel := r.requestContext()
		defer cancel()
		if err := r.confirm(ctx); err != nil {
			first, end := r.queueRange(k)
			resp := new(remoting.Command)
			r.fill(resp, found{code: remoting.PullNotFound, next: p.offset, min: first, max: end}, nil)
			pend.Answer(resp)
			return
		}
		s := pullScratches.Get().(*pullScratch)
		defer pullScratches.Put(s)
		f, err := r.look(k, &p, s)
		if err != nil {
			answerError(pend, err)
			return
		}
		if f.code == remoting.PullOffsetMoved && p.offset > f.max {
			f.next = f.max
		}
		r.given(&p, k, f, s.body)
		r.fill(&s.resp, f, s.body)
		pend.Answer(&s.resp)
	})
}

// hold keeps a pull. A message that came between the look and the hold is noticed by looking again.
func (r *Replica) hold(h *heldPull) {
	offset, key, group := h.req.offset, h.key, h.req.group // once it is held, another goroutine may go on with it
	if !r.holds.add(h) {
		r.expire(h)
		return
	}
	if r.resetPending(group, key) && r.holds.withdraw(h, key) {
		h.moved = true
		r.expire(h)
	} else if _, end := r.queueRange(key); offset < end && r.holds.withdraw(h, key) {
		r.resume(h)
	} else if r.ctx.Err() != nil && r.holds.withdraw(h, key) {
		r.expire(h) // housekeeping has ended all others
	}
}

// wake goes on with the pulls of queues that got messages, on a goroutine of their own. It runs on the loop.
func (r *Replica) wake() {
	var all []*heldPull
	for k := range r.woken {
		_, end := r.queueRange(k)
		all = append(all, r.holds.take(k, end)...)
		delete(r.woken, k)
	}
	if len(all) == 0 {
		return
	}
	// Not in the worker pool: all workers may wait for a quorum or for a master.
	r.spawn(func() {
		for _, h := range all {
			r.resume(h)
		}
	})
}

// resume looks again for a held pull. What its filter passes over moves it on, and it waits for more until its time is over.
func (r *Replica) resume(h *heldPull) {
	s := pullScratches.Get().(*pullScratch)
	defer pullScratches.Put(s)
	var f found
	_, err := r.mayConsume(&h.req)
	if err == nil {
		err = r.guarded(func() (err error) { f, err = r.look(h.key, &h.req, s); return err })
	}
	if err != nil {
		answerError(&h.pending, err)
		return
	}
	switch f.code {
	case remoting.PullRetryImmediately:
		h.req.offset = f.next
		h.moved = true
		r.hold(h)
	case remoting.PullNotFound:
		r.hold(h)
	default:
		r.given(&h.req, h.key, f, s.body)
		r.fill(&s.resp, f, s.body)
		h.pending.Answer(&s.resp)
	}
}

// expire answers a pull whose time is over.
func (r *Replica) expire(h *heldPull) {
	first, end := r.queueRange(h.key)
	f := found{code: remoting.PullNotFound, next: h.req.offset, min: first, max: end}
	if h.moved {
		f.code = remoting.PullRetryImmediately
	}
	resp := new(remoting.Command)
	r.fill(resp, f, nil)
	h.pending.Answer(resp)
}

// suggest is the replica that a consumer should read from next: the one that leads, unless the read starts further behind the
// end than fits into memory; then one that has it too, so that cold reads do not disturb the master.
func (r *Replica) suggest(at ids.PhysicalOffset) ids.BrokerID {
	if !r.cold(at) {
		return ids.MasterBrokerID
	}
	if !r.isMaster() {
		return ids.BrokerID(r.slot)
	}
	i, err := r.clog.IndexAt(at)
	if err != nil {
		return ids.MasterBrokerID
	}
	st := r.raft.Status()
	for _, m := range append(st.Voters[:len(st.Voters):len(st.Voters)], st.Learners...) {
		if m.ID != r.id && m.Heard && m.Match >= i {
			return ids.BrokerID(m.Slot)
		}
	}
	return ids.MasterBrokerID
}

// cold tells whether a record is further behind the end than 40 % of the machine's memory.
func (r *Replica) cold(at ids.PhysicalOffset) bool {
	return r.appliedEnd.Load()-int64(at) > memoryBytes()/10*4
}
