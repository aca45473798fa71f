package jepsen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/client"
)

// The workload of transactions, on a topic of its own: each sender sends a half message, and then commits it, rolls it back, lets two race
// who do either, or leaves it alone. After healing every half message that was OK is rolled back once more, so that each of them has
// a known end, and what is pending besides, of half messages without an answer, too.
//
// A library that ends transactions itself, and does not wait for the answer, is told how: to commit, to roll back, or to do either only when it is
// asked. After healing what is still pending of its producer group is rolled back; of what is not, some decision of the library must be the end.
const (
	txSenders   = 2
	txGroup     = "tellers" // producer group, before a hyphen and the driver's name
	answerLimit = 8 * time.Second
	tellPause   = 30 * time.Millisecond
)

// Transactor is a session that can send transactions.
type Transactor interface {
	// Half sends the half message of a value. The outcome is never Failed.
	Half(ctx context.Context, value string) (handle any, outcome Outcome, err error)
	// End ends a transaction: OK when it has ended so, Contrary when it has ended the other way, else Unknown. It may run beside others.
	End(ctx context.Context, handle any, commit bool) (Outcome, error)
}

// Teller is a session whose library ends transactions itself.
type Teller interface {
	// Tell sends the half message of a value in a producer group. When it is OK decide says how it ends, and again whenever a broker asks, from any
	// goroutine. decide is the same in all calls, as is group. The outcome is never Failed.
	Tell(ctx context.Context, group, value string, decide Decide) (outcome Outcome, err error)
}

// Decide says how the transaction of a value ends; known is false when only a broker's question shall end it.
type Decide func(value string, asked bool) (commit, known bool)

func (s *ownSession) Half(ctx context.Context, value string) (any, Outcome, error) {
	p := s.c.Producer(client.InProducerGroup(producerGroup("own")))
	h, err := p.SendHalf(ctx, client.Message{Topic: s.topic, Keys: []string{value}, Body: []byte(value)})
	switch {
	case err == nil:
		return h, OK, nil
	case errors.Is(err, client.ErrNotStored):
		return nil, NotStored, err
	}
	return nil, Unknown, err
}

func (s *ownSession) End(ctx context.Context, handle any, commit bool) (Outcome, error) {
	err := s.c.Producer(client.InProducerGroup(producerGroup("own"))).EndTransaction(ctx, handle.(client.Half), commit)
	return endOutcome(err), err
}

// endOutcome tells an end that was refused for good, which none of ours may be, from one that is unknown.
func endOutcome(err error) Outcome {
	var code *client.CodeError
	switch {
	case err == nil:
		return OK
	case errors.Is(err, client.ErrContrary):
		return Contrary
	case errors.As(err, &code) && code.Code == 1 && !strings.HasPrefix(code.Remark, "[NOT_STORED]"):
		return Failed
	}
	return Unknown
}

// transact sends transactions until ctx ends.
func (w *worker) transact(ctx context.Context, halves chan<- halfOf) {
	t := w.session.(Transactor)
	for i := 0; ctx.Err() == nil; i++ {
		op := Op{Kind: Half, Client: w.name, Topic: w.topic, Value: fmt.Sprintf("%s/%d", w.name, i), Start: w.rec.Now()}
		limit, cancel := context.WithTimeout(context.Background(), sendLimit)
		handle, outcome, err := t.Half(limit, op.Value)
		cancel()
		if op.Outcome = outcome; err != nil {
			op.Error = err.Error()
		}
		w.rec.Add(op)
		if outcome == OK {
			w.succeed()
			halves <- halfOf{w, op.Value, handle}
			switch i % 5 {
			case 0, 1:
				w.end(t, op.Value, handle, true)
			case 2:
				w.end(t, op.Value, handle, false)
			case 3:
				var other sync.WaitGroup
				other.Go(func() { w.end(t, op.Value, handle, true) })
				w.end(t, op.Value, handle, false)
				other.Wait()
			} // 4: left alone
		}
		pause(ctx, sendPause)
	}
}

// tell has the library end transactions until ctx ends.
func (w *worker) tell(ctx context.Context, group string) {
	t := w.session.(Teller)
	for i := 0; ctx.Err() == nil; i++ {
		op := Op{Kind: Half, Client: w.name, Topic: w.topic, Value: fmt.Sprintf("%s/%d", w.name, i), Start: w.rec.Now()}
		limit, cancel := context.WithTimeout(context.Background(), sendLimit)
		outcome, err := t.Tell(limit, group, op.Value, w.decide)
		cancel()
		if op.Outcome = outcome; err != nil {
			op.Error = err.Error()
		}
		if outcome == OK {
			w.succeed()
		}
		w.rec.Add(op)
		pause(ctx, tellPause)
	}
}

// decide is by the last digit of the value. Whether the decision reaches the broker nobody tells.
func (w *worker) decide(value string, asked bool) (commit, known bool) {
	switch digit := value[len(value)-1] - '0'; {
	case digit%5 < 3 || asked:
		op := Op{Kind: End, Client: w.name, Topic: w.topic, Value: value, Commit: digit%5 != 2 && digit%5 != 4, Outcome: Unknown, Start: w.rec.Now()}
		w.rec.Add(op)
		return op.Commit, true
	}
	return false, false
}

func producerGroup(driver string) string { return txGroup + "-" + driver }

// halfOf is a half message that was OK.
type halfOf struct {
	w      *worker
	value  string
	handle any
}

func (w *worker) end(t Transactor, value string, handle any, commit bool) Outcome {
	op := Op{Kind: End, Client: w.name, Topic: w.topic, Value: value, Commit: commit, Start: w.rec.Now()}
	limit, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	outcome, err := t.End(limit, handle, commit)
	if op.Outcome = outcome; err != nil {
		op.Error = err.Error()
	}
	w.rec.Add(op)
	return outcome
}

// beginTransactions makes the topic and the workers of transactions of a driver that has them.
func (r *run) beginTransactions(ctx context.Context, d Driver, senders *crew) error {
	topic, group := "tx-"+d.Name(), producerGroup(d.Name())
	if _, err := r.cl.CreateTopic(ctx, client.TopicSpec{Name: topic, ReadQueues: topicQueues}); err != nil {
		return err
	}
	r.topics, r.tellers = append(r.topics, topic), append(r.tellers, group)
	for i := range txSenders {
		s, err := d.Open(ctx, r.c.Namesrv(), topic, "readers-"+topic)
		if err != nil {
			return err
		}
		w := &worker{rec: r.rec, session: s, name: fmt.Sprintf("%s/send%d", topic, i), topic: topic, tally: newTally()}
		r.workers = append(r.workers, w)
		if _, itself := s.(Teller); itself {
			senders.add(func(ctx context.Context) { w.tell(ctx, group) })
		} else {
			senders.add(func(ctx context.Context) { w.transact(ctx, r.begun) })
		}
	}
	return nil
}

// endRest gives every transaction its end, after healing, and tells what is left.
func (r *run) endRest(ctx context.Context) error {
	for _, h := range r.halves {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h.w.end(h.w.session.(Transactor), h.value, h.handle, false)
	}
	for _, group := range r.tellers {
		if err := r.endPending(ctx, client.TransactionQuery{ProducerGroup: group}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) endPending(ctx context.Context, q client.TransactionQuery) error {
	left, err := r.cl.Transactions(ctx, q)
	for _, x := range left {
		op := Op{Kind: End, Client: "resolve", Topic: x.Topic, Value: x.Keys, Start: r.rec.Now()}
		e := r.cl.ResolveTransaction(ctx, x, false)
		if op.Outcome = endOutcome(e); e != nil {
			op.Error = e.Error()
		}
		r.rec.Add(op)
	}
	if err == nil {
		left, err = r.cl.Transactions(ctx, q)
	}
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d transactions of %s are still pending after all have ended", len(left), q.ProducerGroup)
	}
	return err
}

// transaction is what a history tells of one.
type transaction struct {
	half             *Op
	committed, undid *Op          // answered OK
	tried, triedBack bool         // a commit, a rollback
	contrary         map[bool]*Op // by what was refused because it had ended the other way
	refused          *Op
}

// judgeTransactions demands of each transaction that it has one end, which is what was answered, and of its message that it is in
// the queues once when it was committed, and else nowhere.
func (j *judge) judgeTransactions(history []Op) {
	all := map[string]*transaction{}
	of := func(value string) *transaction {
		if all[value] == nil {
			all[value] = &transaction{contrary: map[bool]*Op{}}
		}
		return all[value]
	}
	for i := range history {
		op := &history[i]
		if op.Kind == Half {
			of(op.Value).half = op
		}
		if op.Kind != End {
			continue
		}
		t := of(op.Value)
		t.tried, t.triedBack = t.tried || op.Commit, t.triedBack || !op.Commit
		switch {
		case op.Outcome == OK && op.Commit:
			t.committed = op
		case op.Outcome == OK:
			t.undid = op
		case op.Outcome == Contrary:
			t.contrary[op.Commit] = op
		case op.Outcome == Failed:
			t.refused = op
		}
	}
	for _, value := range slices.Sorted(maps.Keys(all)) {
		j.judgeTransaction(value, all[value])
	}
}

func (j *judge) judgeTransaction(value string, t *transaction) {
	places := j.final[value]
	if t.half == nil {
		j.bad(Phantom, "the transaction %s was begun by nobody", value)
		return
	}
	if t.refused != nil && t.half.Outcome == OK {
		j.bad(Lost, "the half message %s was answered OK, and its end was refused as that of none after %s: %s", value, seconds(t.refused.End), t.refused.Error)
	}
	isIn, isOut := t.committed != nil || t.contrary[false] != nil, t.undid != nil || t.contrary[true] != nil
	if isIn && isOut {
		j.bad(TwoEnds, "%s was told to be committed, and to be rolled back", value)
		return
	}
	switch {
	case t.half.Outcome == OK && len(places) == 0 && !t.triedBack:
		j.bad(Lost, "the half message %s was answered OK, nothing is pending, nobody rolled it back, and it is nowhere", value)
	case isIn && len(places) == 0:
		j.bad(Lost, "%s was committed, and is nowhere", value)
	case isOut && len(places) > 0:
		j.bad(TwoEnds, "%s was rolled back, and lies at %v", value, places)
	}
	if len(places) > 0 && !t.tried && !isOut {
		j.bad(HalfShown, "%s lies at %v, and nobody committed it", value, places)
	}
	if t.contrary[false] != nil && !t.tried {
		j.bad(TwoEnds, "the rollback of %s was refused because of a commit, which nobody tried", value)
	}
}
