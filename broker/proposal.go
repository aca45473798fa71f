package broker

import (
	"slices"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

// outcome is how a proposal ended.
type outcome uint8

const (
	outcomeOK        outcome = iota // committed, and on as many voters as the mode wants
	outcomeNotStored                // it is not in the log and never will be
	outcomeUnknown                  // it may or may not be in the log in the end
)

// proposal is something that waits to be put into the log: a send or a state command. Its life:
//
//	enqueue ──▶ form (loop: gets its offsets, goes into a frame) ──▶ apply (loop: one effect a record) ──▶ finish, once
//	    │         └─ no record: what it wanted is past; finish(not stored) at once
//	    └──────────────────────────────── finish(not stored) when the replica stops being master before form
//
// form may decide by the state and by what is in flight, which the loop keeps beside the state for that; see unformer.
type proposal interface {
	// space is the number of bytes that the records take in a frame at most. All of them go into the same frame.
	space() int
	// form appends the records. There is room: the caller asked the builder.
	form(r *Replica, b *commitlog.Builder)
	// apply hears what record i of the proposal did.
	apply(i int, e state.Effect)
	// records is the number of records that form has appended.
	records() int
	// finish ends the proposal. It runs on the loop goroutine, or on the one that enqueued it, and must not block.
	finish(r *Replica, o outcome)
	// since is when it was enqueued.
	since() time.Time
}

// unformer is a proposal whose form noted something beside the state. unform takes that back: the frame is certain never to be in the
// log. The newest proposal of the newest frame comes first. All that is noted ends with the mastership too, see Role, and what the
// state has once everything in flight is applied, see settleOverlay.
type unformer interface{ unform(r *Replica) }

// inbox is where proposals wait for the loop, in the order of their arrival.
//
// Invariant: open only while this replica is master and not at the end of a hand-over. While it is closed something is inside only
// as long as nobody else is known to lead, since this replica may win the election; see Role. Its bound are the bytes in flight
// that remoting allows: every send in it belongs to a request that has no answer yet.
type inbox struct {
	mu     sync.Mutex
	open   bool
	items  []proposal
	enough int // who comes wakes the loop only when so many wait; see gathering
}

// put adds p. taken is false when the replica is not master, or no longer; wake tells that the loop is to look.
func (q *inbox) put(p proposal) (taken, wake bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open {
		return false, false
	}
	q.items = append(q.items, p)
	return true, len(q.items) >= q.enough
}

// await has the loop woken when so many wait; false: they do already, or nobody can come.
func (q *inbox) await(enough int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || len(q.items) >= enough {
		return false
	}
	q.enough = enough
	return true
}

// waiting is how many proposals wait, and since when the first of them does.
func (q *inbox) waiting() (n int, since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return 0, since
	}
	return len(q.items), q.items[0].since()
}

// take swaps the waiting proposals for an empty slice to reuse.
func (q *inbox) take(empty []proposal) []proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items, q.enough = empty[:0], 0
	return items
}

// takeOrClose is take, which closes the inbox when nothing waits.
func (q *inbox) takeOrClose(empty []proposal) []proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items, q.enough = empty[:0], 0
	q.open = q.open && len(items) > 0
	return items
}

func (q *inbox) setOpen(open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.enough = open, 0
}

// batch is the token of one frame: the proposals in it, in the order of their records.
type batch struct {
	items  []proposal
	formed time.Time
	index  ids.Index // set when applied
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (b *batch) free() {
	clear(b.items)
	b.items, b.index = b.items[:0], 0
	batches.Put(b)
}

// frameTarget is where a frame is closed although more waits. A sync of 1 MiB takes three times as long as one of 64 KiB; a
// single proposal may be larger.
const frameTarget = 512 << 10

// Form implements raftlog.StateMachine: it moves what waits into the next frame.
func (r *Replica) Form(b *commitlog.Builder) any {
	if r.freezeAt != 0 {
		return nil // Flush wakes the loop when it is applied
	}
	if r.formed == len(r.forming) {
		if r.gathers() {
			return nil
		}
		r.forming = r.inbox.take(r.forming)
		r.formed = 0
		if len(r.forming) == 0 && r.office.handing.Load() {
			r.lastForm()
		}
		if len(r.forming) == 0 {
			return nil
		}
	}
	t := batches.Get().(*batch)
	frozen := r.frozen.Load() // only Apply changes it, on this goroutine
	for r.formed < len(r.forming) && b.Len() < frameTarget && r.freezeAt == 0 {
		p := r.forming[r.formed]
		if frozen && barred(p) {
			r.forming[r.formed] = nil
			r.formed++
			p.finish(r, outcomeNotStored)
			continue
		}
		if !b.Admit(p.space()) {
			break
		}
		p.form(r, b)
		r.forming[r.formed] = nil
		r.formed++
		if p.records() == 0 {
			p.finish(r, outcomeNotStored)
			continue
		}
		t.items = append(t.items, p)
	}
	if len(t.items) == 0 {
		t.free()
		return nil
	}
	t.formed = time.Now()
	r.formedTo, r.newest = b.Index(), t
	r.counters.frames.Add(1)
	return t
}

// nextOffset gives the queue offset of the next message of a queue: from the applied state, or after what is in flight.
func (r *Replica) nextOffset(k index.Key, n int) ids.QueueOffset {
	next, ok := r.overlay[k]
	if !ok {
		next = r.st.NextOffset(k)
	}
	r.overlay[k] = next + ids.QueueOffset(n)
	return next
}

// settleOverlay forgets the offsets given to frames in flight once all of them are applied: the state has them then. That a frame
// lost its token does not count: it is still in the log.
func (r *Replica) settleOverlay(applied ids.Index) {
	if applied >= r.formedTo {
		clear(r.overlay)
		r.endings.settle()
		clear(r.timers.recalled)
	}
}

// takeBack gives the offsets of the newest frame free again: it is certain never to be in the log, so they would be a hole.
func (r *Replica) takeBack(t *batch) {
	for _, p := range slices.Backward(t.items) {
		if u, ok := p.(unformer); ok {
			u.unform(r)
		}
	}
}

// recordSpace is what a record of n body bytes takes in a frame.
func recordSpace(n int) int { return commitlog.RecordSpace(n) }

// send is the proposal of one or several messages to one queue. Its memory is used again: newSend makes one, finish ends its life.
type send struct {
	key     index.Key
	buf     []byte // RocketMQ records, back to back
	recs    []sendRecord
	at      time.Time
	dropped bool              // its topic was deleted before it was applied
	half    *state.HalfPrefix // of the one record, which is a half message; nil in other sends
	term    ids.Term          // when not 0 it is for a frame of that term only
	bare    bool              // its messages get no region

	later    later  // when it is to be delivered; set before its only record is encoded it counts before the record's properties
	timerKey uint32 // with later, for a recall

	first    ids.QueueOffset // of the first message, set by form
	reply    sendReply
	whenDone func(r *Replica, o outcome, s *send) // instead of an answer on the wire; may be nil
	dead     bool                                 // a message that was handed back is a dead letter now
}

var sends = sync.Pool{New: func() any { return new(send) }}

// newSend returns a send that is empty but for its time.
func newSend(at time.Time) *send {
	s := sends.Get().(*send)
	s.at = at
	return s
}

// maxKeptRecords bounds the buffer that a send keeps for the next one.
const maxKeptRecords = 64 << 10

// release gives s back. Nobody may use it afterwards.
func (s *send) release() {
	if cap(s.buf) > maxKeptRecords {
		s.buf, s.recs = nil, nil
	}
	*s = send{buf: s.buf[:0], recs: s.recs[:0], reply: sendReply{unique: s.reply.unique[:0], recall: s.reply.recall[:0]}}
	sends.Put(s)
}

type sendRecord struct {
	end  int // in buf
	tags int64
	phys ids.PhysicalOffset // set by form
}

func (s *send) space() int {
	n, start := 0, 0
	for i := range s.recs {
		n += recordSpace(state.MessagePrefixSize + s.recs[i].end - start)
		start = s.recs[i].end
	}
	if s.half != nil {
		n += s.half.Size()
	}
	return n
}

func (s *send) records() int     { return len(s.recs) }
func (s *send) since() time.Time { return s.at }

func (s *send) unform(r *Replica) {
	if s.half != nil {
		r.endings.next = s.first
		return
	}
	if s.later.due != 0 {
		r.timers.unformed(len(s.recs))
		return
	}
	r.overlay[s.key] = s.first
}

func (s *send) form(r *Replica, b *commitlog.Builder) {
	if s.term != 0 && s.term != b.Term() {
		s.recs = s.recs[:0]
		return
	}
	if s.half != nil {
		s.formHalf(r, b)
		return
	}
	if s.later.due != 0 {
		s.formTimers(r, b)
		return
	}
	s.first = r.nextOffset(s.key, len(s.recs))
	start := 0
	for i := range s.recs {
		rec := s.buf[start:s.recs[i].end]
		start = s.recs[i].end
		s.recs[i].phys = r.formMessage(b, s.key, s.recs[i].tags, s.first+ids.QueueOffset(i), rec)
	}
}

// formMessage appends a message with its queue offset and returns where it lies. There is room.
func (r *Replica) formMessage(b *commitlog.Builder, k index.Key, tags int64, qo ids.QueueOffset, rec []byte) ids.PhysicalOffset {
	body, off, ok := b.Reserve(state.RecordMessage, state.RecordVersion, 0, state.MessagePrefixSize+len(rec))
	if !ok {
		panic("broker: the frame that admitted a message has no room for it")
	}
	state.MessagePrefix{Key: k, TagsCode: tags, QueueOffset: qo}.Put(body)
	phys := off + state.MessagePrefixSize
	m := body[state.MessagePrefixSize:]
	copy(m, rec)
	message.Patch(m, qo, phys, b.Time(), r.storeHost)
	return phys
}

func (s *send) apply(_ int, e state.Effect) {
	if e.Kind == state.EffectDropped {
		s.dropped = true
	}
}

// command is the proposal of one state command.
type command struct {
	kind   uint8
	body   []byte
	at     time.Time
	effect state.Effect
	done   func(o outcome, e state.Effect)
}

func (c *command) space() int       { return recordSpace(len(c.body)) }
func (c *command) records() int     { return 1 }
func (c *command) since() time.Time { return c.at }
func (c *command) form(_ *Replica, b *commitlog.Builder) {
	body, _, ok := b.Reserve(c.kind, state.RecordVersion, 0, len(c.body))
	if !ok {
		panic("broker: the frame that admitted a command has no room for it")
	}
	copy(body, c.body)
}
func (c *command) apply(_ int, e state.Effect) { c.effect = e }
func (c *command) finish(_ *Replica, o outcome) {
	if c.done != nil {
		c.done(o, c.effect)
	}
}

// propose enqueues p. It returns false when this replica is not master; then p was not touched.
func (r *Replica) propose(p proposal) bool {
	taken, wake := r.inbox.put(p)
	if wake {
		r.raft.Wake()
	}
	return taken
}

// proposeCommand enqueues a state command. done runs on the loop goroutine, exactly once, and must not block; it runs at once
// when this replica is not master.
func (r *Replica) proposeCommand(kind uint8, body []byte, done func(o outcome, e state.Effect)) {
	c := &command{kind: kind, body: body, at: r.now(), done: done}
	// A command that no frame can hold would stand in the way of all behind it.
	if c.space() > maxSendSpace || !r.propose(c) {
		c.finish(r, outcomeNotStored)
	}
}

// await proposes a command and waits for it. For goroutines that may block.
func (r *Replica) await(kind uint8, body []byte) (state.Effect, outcome) {
	type result struct {
		e state.Effect
		o outcome
	}
	ch := make(chan result, 1)
	r.proposeCommand(kind, body, func(o outcome, e state.Effect) { ch <- result{e, o} })
	res := <-ch
	return res.e, res.o
}
