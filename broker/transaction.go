package broker

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/commitlog"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// The life of a transaction:
//
//	send with TRAN_MSG ──▶ half message in the log: pending ──▶ END_TRANSACTION (37) ──▶ committed: its message and the end in one frame
//	                                 ▲    │                                        └──▶ rolled back: the end alone
//	                                 │    └── nobody ends it: its producers are asked (39), see checkback.go
//	                                 └── before the front of the log goes, it is stored again at the end, see halfroll.go
//
// The first end in the log counts. It is decided when its frame is formed, by the state and by the ends in frames in flight, so that no
// second one is ever written.

const (
	// transactionTimeout is how long a producer has, unless its message says otherwise, before it is asked.
	transactionTimeout = 6 * time.Second
	// maxImmunity bounds what a message may say.
	maxImmunity = 365 * 24 * time.Hour
	// maxPending bounds the pending transactions of one producer group, and maxPendingInAll those of a broker group. Those in flight come
	// on top.
	maxPending      = 200_000
	maxPendingInAll = 1_000_000
)

// endings is what the loop knows of transactions beside the state: the frames in flight.
type endings struct {
	next  ids.QueueOffset // number of the next half message, when ahead
	ahead bool            // half messages are in flight
	of    map[ids.QueueOffset]*ending
}

func (t *endings) begin() { *t = endings{of: map[ids.QueueOffset]*ending{}} }

// settle forgets what was in flight: the state has it all.
func (t *endings) settle() {
	t.ahead = false
	for n, e := range t.of {
		if e.ended {
			delete(t.of, n)
		}
	}
}

// nextHalf gives the number of the next half message.
func (t *endings) nextHalf(st *state.State) ids.QueueOffset {
	if !t.ahead {
		t.next, t.ahead = st.NextHalf(), true
	}
	t.next++
	return t.next - 1
}

// tooManyPending refuses a half message when so many of its producer group, or in all of its broker group, are pending.
func tooManyPending(producers string, ofGroup int, group string, inAll int) error {
	switch {
	case ofGroup >= maxPending:
		return refuse(remoting.SystemBusy, "[NOT_STORED] producer group %q has %d pending transactions in group %s, and cannot have more: see admin tx list", producers, ofGroup, group)
	case inAll >= maxPendingInAll:
		return refuse(remoting.SystemBusy, "[NOT_STORED] group %s has %d pending transactions, and cannot have more: see admin tx list", group, inAll)
	}
	return nil
}

// makeHalf makes a half message of a send that has TRAN_MSG=true, and leaves others alone. A consumer's own retry of a message that
// was one is none any more.
func (r *Replica) makeHalf(p *send, rec *message.Record, s *sendRequest, retry bool) error {
	bad := func(format string, args ...any) error {
		return refuse(remoting.MessageIllegal, "[NOT_STORED] "+format, args...)
	}
	half := state.HalfPrefix{Immunity: transactionTimeout.Milliseconds(), Group: s.group}
	is, unique := false, ""
	for k, v := range message.Properties(rec.Properties) {
		switch k {
		case message.KeyTransactionPrepared:
			is = strings.EqualFold(v, "true")
		case message.KeyProducerGroup:
			half.Group = v
		case message.KeyUniqueKey:
			unique = v
		case message.KeyCheckImmunity:
			if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 { // else the default, as in RocketMQ
				half.Immunity = min(n, int64(maxImmunity/time.Second)) * 1000
			}
		}
	}
	if !is {
		return nil
	}
	if retry {
		if rec.ReconsumeTimes <= 0 {
			return bad("a transactional message cannot go to a retry topic")
		}
		rec.Properties = message.DeleteProperty(rec.Properties, message.KeyTransactionPrepared)
		return nil
	}
	if err := r.needLevel(remoting.MessageIllegal, "[NOT_STORED] transactional messages need"); err != nil {
		return err
	}
	for _, key := range [...]string{message.KeyDelayLevel, message.KeyTimerDeliverMs, message.KeyTimerDelayMs, message.KeyTimerDelaySec} {
		if v, have := message.Property(rec.Properties, key); have && (key != message.KeyDelayLevel || v != "0") {
			return bad("a transactional message cannot be delayed (property %s=%s)", key, v)
		}
	}
	if message.IsDLQTopic(rec.Topic) {
		return bad("a transactional message cannot go to a dead-letter topic")
	}
	if half.Group == "" {
		return bad("a transactional message needs its producer group: property %s", message.KeyProducerGroup)
	}
	if err := message.ValidGroup(half.Group); err != nil {
		return bad("the producer group of a transactional message: %v", err)
	}
	inAll, _ := r.st.PendingTransactions()
	if err := tooManyPending(half.Group, r.st.PendingOf(half.Group), r.group, inAll); err != nil {
		return err
	}
	half.Group = strings.Clone(half.Group)
	props := rec.Properties
	for _, key := range [...]string{message.KeyCheckTimes, message.KeyPreparedQueueOffset} {
		props = message.DeleteProperty(props, key)
	}
	if unique == "" {
		unique = message.NewUniqueKey()
		props = message.SetProperty(props, message.KeyUniqueKey, unique)
	}
	props = message.SetProperty(props, message.KeyProducerGroup, half.Group)
	props = message.SetProperty(props, message.KeyTransactionID, unique)
	props = message.SetProperty(props, message.KeyRealTopic, rec.Topic)
	props = message.SetProperty(props, message.KeyRealQueueID, strconv.Itoa(int(rec.QueueID)))
	rec.Topic, rec.QueueID, rec.Properties = message.HalfTopic, 0, props
	p.half = &half
	return nil
}

// formHalf is form for a half message.
func (s *send) formHalf(r *Replica, b *commitlog.Builder) {
	s.half.Number = r.endings.nextHalf(r.st)
	n := s.half.Size()
	body, off, ok := b.Reserve(state.RecordHalf, state.RecordVersion, 0, n+len(s.buf))
	if !ok {
		panic("broker: the frame that admitted a half message has no room for it")
	}
	s.half.Put(body)
	s.first, s.recs[0].phys = s.half.Number, off+ids.PhysicalOffset(n)
	copy(body[n:], s.buf)
	message.Patch(body[n:], s.first, s.recs[0].phys, b.Time(), r.storeHost)
}

// halfBytes reads and checks the record of the half message of a pending transaction.
func (r *Replica) halfBytes(x *state.Transaction) ([]byte, error) {
	raw := make([]byte, x.Size)
	err := r.clog.ReadAt(raw, x.At)
	if err == nil {
		err = message.Check(raw, message.HalfTopic, 0, x.Number, x.Origin)
	}
	if err != nil {
		return nil, r.damaged(x.At, fmt.Errorf("the half message of transaction %d: %w", x.Number, err))
	}
	return raw, nil
}

// readHalf reads the half message of a pending transaction.
func (r *Replica) readHalf(x *state.Transaction) (message.Record, error) {
	raw, err := r.halfBytes(x)
	if err != nil {
		return message.Record{}, err
	}
	rec, _, err := message.Decode(raw)
	return rec, err
}

// ending is the proposal of the end of a transaction. It writes nothing when the transaction has ended already, and waits for another
// end of it that is in flight.
type ending struct {
	number   ids.QueueOffset
	decision state.Decision
	message  *send // of a commit
	at       time.Time
	done     func(error) // nil: it has ended so. Runs on the loop, once

	// Of the loop.
	wrote   int
	verdict error // why nothing was written; nil with settled: it had ended so before
	settled bool
	hung    bool // another one answers it
	ended   bool // finished; it may be in flight all the same
	kept    bool // its topic was deleted
	waiters []*ending
}

func (e *ending) space() int {
	n := recordSpace(state.TransactionEndSize)
	if e.message != nil {
		n += e.message.space()
	}
	return n
}

func (e *ending) records() int     { return e.wrote }
func (e *ending) since() time.Time { return e.at }

func (e *ending) form(r *Replica, b *commitlog.Builder) {
	first := r.endings.of[e.number]
	if first != nil && !first.ended {
		first.waiters = append(first.waiters, e)
		e.hung = true
		return
	}
	_, d, pending, _ := r.st.Transaction(e.number)
	switch {
	case !pending:
		e.settled, e.verdict = true, e.against(d)
		return
	case first != nil: // one of unknown outcome that is in flight still
		e.settled, e.verdict = true, outcomeUnknown.refusal()
		return
	}
	body, _, ok := b.Reserve(state.RecordTransactionEnd, state.RecordVersion, 0, state.TransactionEndSize)
	if !ok {
		panic("broker: the frame that admitted the end of a transaction has no room for it")
	}
	topic := ids.TopicID(0)
	if e.message != nil {
		topic = e.message.key.Topic
	}
	state.AppendTransactionEnd(body[:0], e.number, e.decision, topic)
	e.wrote = 1
	if e.message != nil {
		e.message.form(r, b)
		e.wrote++
	}
	r.endings.of[e.number] = e
}

// against is the answer to an end of a transaction that has ended with d.
func (e *ending) against(d state.Decision) error {
	switch d {
	case e.decision:
		return nil
	case state.Undecided:
		return refuse(remoting.IllegalOperation, "transaction %d has ended long ago, and how is not known any more", e.number)
	}
	return refuse(remoting.IllegalOperation, "transaction %d was %v before, and stays so", e.number, d)
}

func (e *ending) unform(r *Replica) {
	if e.message != nil {
		e.message.unform(r)
	}
	delete(r.endings.of, e.number)
}

func (e *ending) apply(i int, f state.Effect) {
	if i == 0 {
		e.kept = f.Kind == state.EffectTransactionKept
	}
}

func (e *ending) finish(r *Replica, o outcome) {
	switch {
	case e.hung:
		return
	case e.settled:
		e.answer(e.verdict)
		return
	}
	e.ended = true
	if o != outcomeUnknown && r.endings.of[e.number] == e {
		delete(r.endings.of, e.number)
	}
	err := o.refusal()
	if err == nil && e.kept {
		err = refuse(remoting.TopicNotExist, "[NOT_STORED] the topic was deleted: transaction %d stays pending", e.number)
	}
	waiters := e.waiters
	e.waiters = nil
	for _, w := range waiters {
		w.hung = false
		switch {
		case o == outcomeUnknown:
			w.answer(err)
		case err == nil:
			w.answer(w.against(e.decision))
		case !r.propose(w): // nothing was decided: it is its turn
			w.answer(outcomeNotStored.refusal())
		}
	}
	e.answer(err)
}

func (e *ending) answer(err error) {
	if e.message != nil {
		e.message.release()
		e.message = nil
	}
	e.done(err)
}
