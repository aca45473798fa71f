package broker

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/controller/controllerpb"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/raftlog"
	"github.com/ledgermq/ledgermq/remoting"
)

// commitDelay is how long a consumer offset that nobody waits for may stay in memory. A kill of the master loses at most
// that.
const commitDelay = 200 * time.Millisecond

// commits gathers consumer offsets, so that many small commits become one command in the log.
//
// Invariant: offsets of one queue reach the log in the order in which they came. So taking them out and proposing them is one step,
// under flushing, and who finds nothing pending waits for the flush that is under way.
type commits struct {
	flushing sync.Mutex // taken before mu

	mu      sync.Mutex
	pending map[commitKey]ids.QueueOffset
	since   time.Time      // of the oldest one
	newest  *flush         // under way; nil when none is
	refused map[string]int // groups that are being deleted with their offsets, and by how many requests
}

// flush is one set of offsets on its way into the log, in one command or more.
type flush struct {
	left int // commands without an outcome
	end  outcome
	done []func(outcome) // each is called once, when left comes to 0
}

// maxOffsets is how many offsets one command carries, so that its frame stays short.
const maxOffsets = 8192

type commitKey struct {
	group string
	queue index.Key
}

// add keeps the newest offset of a queue. The bound is the number of queues times groups, which is part of the state anyway. c.mu is held.
func (c *commits) add(k commitKey, o ids.QueueOffset, now time.Time) {
	if c.pending == nil {
		c.pending = map[commitKey]ids.QueueOffset{}
	}
	if len(c.pending) == 0 {
		c.since = now
	}
	c.pending[k] = o
}

// refuse has the commits of a group refused until the function that it returns is called.
func (c *commits) refuse(group string) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[string]int{}
	}
	c.refused[group]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refused[group]--; c.refused[group] == 0 {
			delete(c.refused, group)
		}
	}
}

// take removes the pending offsets of one group, or of all groups when it is empty, in a fixed order.
func (c *commits) take(group string) []state.ConsumerOffset {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []state.ConsumerOffset
	for k, o := range c.pending {
		if group == "" || k.group == group {
			out = append(out, state.ConsumerOffset{Group: k.group, Topic: k.queue.Topic, Queue: k.queue.Queue, Offset: o})
			delete(c.pending, k)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		if a.Group != b.Group {
			return a.Group < b.Group
		}
		return index.Key{Topic: a.Topic, Queue: a.Queue}.Compare(index.Key{Topic: b.Topic, Queue: b.Queue}) < 0
	})
	return out
}

// due tells whether the oldest pending offset has waited long enough.
func (c *commits) due(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) > 0 && now.Sub(c.since) >= commitDelay*3/4
}

// flushCommits proposes what is pending of a group, or of all. done, which may be nil, is called once, when that and what was taken
// before it is applied, or failed; it must not block.
func (r *Replica) flushCommits(group string, done func(outcome)) {
	c := &r.commits
	c.flushing.Lock()
	defer c.flushing.Unlock()
	list := c.take(group)
	c.mu.Lock()
	f := c.newest
	if len(list) > 0 {
		f = &flush{left: (len(list) + maxOffsets - 1) / maxOffsets}
		c.newest = f
	}
	if f != nil && done != nil {
		f.done = append(f.done, done)
	}
	c.mu.Unlock()
	if f == nil && done != nil {
		done(outcomeOK)
	}
	for part := range slices.Chunk(list, maxOffsets) {
		r.proposeCommand(state.RecordOffsets, state.AppendOffsets(nil, part), func(o outcome, _ state.Effect) { c.finished(f, o) })
	}
}

// finished takes the outcome of one command of f.
func (c *commits) finished(f *flush, o outcome) {
	c.mu.Lock()
	if f.end == outcomeOK {
		f.end = o
	}
	var done []func(outcome)
	if f.left--; f.left == 0 {
		done = f.done
		if c.newest == f {
			c.newest = nil
		}
	}
	c.mu.Unlock()
	for _, d := range done {
		d(f.end)
	}
}

// awaitCommits flushes what is pending of a group and waits until it is applied.
func (r *Replica) awaitCommits(group string) error {
	ch := make(chan outcome, 1)
	r.flushCommits(group, func(o outcome) { ch <- o })
	return (<-ch).refusal()
}

// commitWithPull takes the consumer offset that a pull carries. A slave passes it on.
func (r *Replica) commitWithPull(c *remoting.Conn, p *pullRequest, t *state.Topic) {
	if r.role.Load().Kind == raftlog.RoleMaster { // also at the end of its office, which passes on what it finds
		_ = r.gather(commitKey{strings.Clone(p.group), index.Key{Topic: t.ID, Queue: p.queue}}, p.commit) // nobody waits
		return
	}
	req := remoting.NewRequest(remoting.UpdateConsumerOffset)
	req.Set("consumerGroup", strings.Clone(p.group))
	req.Set("topic", strings.Clone(p.topic))
	req.SetInt64("queueId", int64(p.queue))
	req.SetInt64("commitOffset", int64(p.commit))
	r.srv.Go(func() { r.forwarder.oneWay(req) })
}

// handleUpdateOffset takes UPDATE_CONSUMER_OFFSET (15). One that comes one-way waits up to commitDelay for others; one that is
// waited for is answered when it is committed.
func (r *Replica) handleUpdateOffset(c *remoting.Conn, req *remoting.Command) {
	if !r.isMaster() {
		r.forward(c, req)
		return
	}
	k, o, err := r.parseCommit(req)
	if err != nil {
		replyError(c, req, err)
		return
	}
	if left := r.gather(k, o); left != nil {
		replyError(c, req, left)
		return
	}
	if req.OneWay() {
		return
	}
	pend := c.Pending(req)
	r.flushCommits(k.group, func(o outcome) { answerOutcome(&pend, o) })
}

// updateOffset is handleUpdateOffset for a request that waited for a master and met it here.
func (r *Replica) updateOffset(req *remoting.Command, pend *remoting.Pending) {
	k, o, err := r.parseCommit(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	if left := r.gather(k, o); left != nil {
		answerError(pend, left)
		return
	}
	if err := r.awaitCommits(k.group); err != nil {
		answerError(pend, err)
		return
	}
	ok(pend)
}

// remarkReset goes with the OK of a commit that a pending reset outweighs, as in RocketMQ.
const remarkReset = "the offset of the group was reset, and no member has taken that over yet: this commit is left out"

// gather takes a commit in, or answers why it is left out: a reset is pending, or the group is being deleted with its offsets.
//
// Invariant: when a reset ends, no commit from before its end is in memory. What came before it was applied is flushed before it ends, see
// pullDuringReset, and is left out when it is applied; from then on nothing gets in, since both are looked at under one lock.
func (r *Replica) gather(k commitKey, o ids.QueueOffset) *refusal {
	c := &r.commits
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused[k.group] > 0 {
		return refuse(remoting.SystemBusy, "consumer group %q is being deleted with its offsets", k.group)
	}
	if _, pending := r.st.PendingReset(k.group, k.queue); pending {
		return refuse(remoting.Success, remarkReset)
	}
	c.add(k, o, r.now())
	return nil
}

// wentBack tells of offsets that members committed below what was stored, as a client may that seeks; a member that was late, or took a fault
// for "none", does it too.
func (r *Replica) wentBack(list []state.ConsumerOffset) {
	r.counters.offsetsBack.Add(int64(len(list)))
	if !r.isMaster() || r.now().Sub(r.toldBack) < time.Second {
		return
	}
	r.toldBack = r.now()
	o := list[0]
	r.log.Warn().Str("consumerGroup", o.Group).Str("topic", r.topicName(o.Topic)).Int32("queue", int32(o.Queue)).Int64("to", int64(o.Offset)).
		Msg("a member committed an offset below the one before: its group gets messages again")
}

func answerOutcome(pend *remoting.Pending, o outcome) {
	if err := o.refusal(); err != nil {
		answerError(pend, err)
		return
	}
	ok(pend)
}

func (r *Replica) parseCommit(req *remoting.Command) (k commitKey, o ids.QueueOffset, err error) {
	group, err := req.MustString("consumerGroup")
	if err != nil {
		return k, 0, err
	}
	name, err := req.MustString("topic")
	if err != nil {
		return k, 0, err
	}
	if err := message.ValidGroup(group); err != nil {
		return k, 0, err
	}
	t, ref := r.topic(name)
	if ref != nil {
		return k, 0, ref
	}
	q, err := queueOf(&t, req)
	if err != nil {
		return k, 0, err
	}
	v, err := req.MustInt64("commitOffset")
	if err != nil {
		return k, 0, err
	}
	if _, known := r.st.Group(group); !known && r.groupMissing(group) {
		return k, 0, refuse(remoting.SubscriptionGroupNotExist, "consumer group %q does not exist: create it", group)
	}
	if v < 0 {
		return k, 0, refuse(remoting.InvalidParameter, "consumer offset %d is negative", v)
	}
	return commitKey{strings.Clone(group), index.Key{Topic: t.ID, Queue: q}}, ids.QueueOffset(v), nil
}

func (r *Replica) requestContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.ctx, requestTimeout)
}

// queryOffset takes QUERY_CONSUMER_OFFSET (14). Only a master that a quorum has just confirmed answers, since an old answer
// would send a group back. "None was stored" is 22; a group that is new to a queue which still has its first message, or had
// none yet, starts at 0, so that it misses nothing that arrives in between.
func (r *Replica) queryOffset(req *remoting.Command, pend *remoting.Pending) {
	if !r.isMaster() {
		r.forwardOr(req, pend, r.offsetWithoutMaster)
		return
	}
	group, err := req.MustString("consumerGroup")
	if err != nil {
		answerError(pend, err)
		return
	}
	if err := r.awaitCommits(group); err != nil {
		answerError(pend, err)
		return
	}
	t, q, err := r.confirmedQueue(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	if o, stored := r.st.ConsumerOffset(group, t.Name, q); stored {
		if reset, pending := r.st.PendingReset(group, index.Key{Topic: t.ID, Queue: q}); pending && reset.Offset == o {
			r.knowsReset(pend, reset)
		}
		answerOffset(pend, int64(o))
		return
	}
	zero, err := req.BoolOr("setZeroIfNotFound", true)
	if err != nil {
		answerError(pend, err)
		return
	}
	if zero && r.startsWarm(index.Key{Topic: t.ID, Queue: q}) {
		answerOffset(pend, 0)
		return
	}
	pend.Answer(remoting.NewResponse(remoting.QueryNotFound, "the group has no offset in this queue"))
}

// startsWarm tells whether a queue still begins at 0 and its first message, if any, is not cold.
func (r *Replica) startsWarm(k index.Key) bool {
	first, end := r.queueRange(k)
	if first != 0 {
		return false
	}
	if end == 0 {
		return true
	}
	e, err := r.entries(k, 0, 1, nil)
	return err == nil && len(e) == 1 && !r.cold(e[0].Offset)
}

// offsetWithoutMaster answers 14 on a slave when the controller says that the group has no master: an offset it holds, or
// "ask later", never "there is none".
func (r *Replica) offsetWithoutMaster(req *remoting.Command, pend *remoting.Pending) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	g, err := r.node.ctl.GetGroup(ctx, r.group)
	if err == nil && !liveMaster(g) && !g.GetMaster().GetNotHeardYet() {
		q, qerr := req.MustInt32("queueId")
		if o, stored := r.st.ConsumerOffset(req.GetOr("consumerGroup", ""), req.GetOr("topic", ""), ids.QueueID(q)); stored && qerr == nil {
			answerOffset(pend, int64(o))
			return
		}
	}
	pend.Answer(remoting.NewResponse(remoting.ServiceNotAvailable, r.forwardRemark(errNoMaster)))
}

func liveMaster(g *controllerpb.Group) bool { return g.GetMaster() != nil && g.GetMaster().GetLive() }

func answerOffset(pend *remoting.Pending, o int64) {
	resp := remoting.NewResponse(remoting.Success, "")
	resp.SetInt64("offset", o)
	pend.Answer(resp)
}

// queueBounds takes SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and GET_EARLIEST_MSG_STORETIME
// (32), on a confirmed master.
func (r *Replica) queueBounds(req *remoting.Command, pend *remoting.Pending) {
	t, q, err := r.confirmedQueue(req)
	if err != nil {
		answerError(pend, err)
		return
	}
	k := index.Key{Topic: t.ID, Queue: q}
	first, end := r.queueRange(k)
	switch req.Code {
	case remoting.GetMaxOffset:
		answerOffset(pend, int64(end))
	case remoting.GetMinOffset:
		answerOffset(pend, int64(first))
	case remoting.GetEarliestMsgStoreTime:
		at := int64(-1)
		if first < end {
			if at, err = r.storeTime(k, first); err != nil {
				answerError(pend, err)
				return
			}
		}
		resp := remoting.NewResponse(remoting.Success, "")
		resp.SetInt64("timestamp", at)
		pend.Answer(resp)
	default:
		ts, err := req.MustInt64("timestamp")
		if err != nil {
			answerError(pend, err)
			return
		}
		o, err := r.searchTime(k, first, end, ts, strings.EqualFold(req.GetOr("boundaryType", "LOWER"), "UPPER"))
		if err != nil {
			answerError(pend, err)
			return
		}
		answerOffset(pend, int64(o))
	}
}

// searchTime returns the first offset whose store time is at least ts; with upper the last one whose store time is at most ts,
// and the first offset when all are later. Store times never decrease along the log. Beyond the last message it is the end.
func (r *Replica) searchTime(k index.Key, first, end ids.QueueOffset, ts int64, upper bool) (ids.QueueOffset, error) {
	var err error
	n := sort.Search(int(end-first), func(i int) bool {
		at, e := r.storeTime(k, first+ids.QueueOffset(i))
		if e != nil && err == nil {
			err = e
		}
		if upper {
			return at > ts
		}
		return at >= ts
	})
	if err != nil {
		return 0, err
	}
	o := first + ids.QueueOffset(n)
	if upper && o > first && o < end {
		o--
	}
	return o, nil
}

// storeTime reads the store time of one message.
func (r *Replica) storeTime(k index.Key, o ids.QueueOffset) (int64, error) {
	e, err := r.entries(k, o, 1, nil)
	if err != nil {
		return 0, err
	}
	var head [message.StoreTimeHead]byte
	if err := r.clog.ReadAt(head[:], e[0].Offset); err != nil {
		return 0, fmt.Errorf("read the message at %d: %w", e[0].Offset, err)
	}
	return message.StoreTimeOf(head[:]), nil
}
