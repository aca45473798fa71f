package broker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

const (
	// checkRound is how often the master looks which transactions are due to be asked for.
	checkRound = time.Second
	// maxChecks and maxCheckBytes bound one round: what is due besides waits for the next. A producer that does not read fast enough for
	// that is cut off by its connection's own bound.
	maxChecks     = 4096
	maxCheckBytes = 8 << 20
)

// errNoCheck tells that a check did not come about; it is tried again.
var errNoCheck = errors.New("checks of transactions could not be noted")

// checkBack asks the producers of pending transactions for their state, on the master. A check is counted in the log first, and then
// sent: so no failover makes it one more. What is asked, whom, and that one fails does not touch the others.
func (r *Replica) checkBack() {
	for r.pause(checkRound, nil) {
		if !r.isMaster() || r.catchingUp() {
			continue
		}
		if err := r.checkDue(); err != nil && r.ctx.Err() == nil {
			r.log.Warn().Err(err).Msg("producers are asked for their transactions again later")
		}
	}
}

// checkDue is one round.
func (r *Replica) checkDue() error {
	term := r.term()
	due := r.dueChecks()
	if len(due) == 0 {
		return nil
	}
	numbers := make([]ids.QueueOffset, len(due))
	for i := range due {
		numbers[i] = due[i].Number
	}
	slices.Sort(numbers)
	e, o := r.await(state.RecordTransactionChecks, state.AppendTransactionChecks(nil, false, numbers))
	if o != outcomeOK {
		return errNoCheck
	}
	if r.term() != term {
		return nil // another master asks
	}
	var err error
	if e.GaveUp > 0 {
		r.log.Warn().Int("transactions", e.GaveUp).Int("checks", state.MaxChecks).Msg("producers did not say how these transactions end: they stay pending, see admin tx list --gave-up")
	}
	failed := 0
	for _, n := range e.Checked {
		if e := r.check(n); e != nil {
			failed++
			err = e
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d producers of transactions could not be asked: %w", failed, len(e.Checked), err)
	}
	return nil
}

// dueAt is when the producer of a transaction is asked next, in log time.
func (r *Replica) dueAt(x *state.Transaction) int64 {
	if x.Checks == 0 {
		return x.Stored + x.Immunity
	}
	return x.Checked + r.node.o.TransactionCheckInterval.Milliseconds()
}

// dueChecks are the transactions to check now: those that are due for the longest time and whose group has a producer here.
func (r *Replica) dueChecks() []state.Transaction {
	if n, parked := r.st.PendingTransactions(); n == parked {
		return nil
	}
	has := map[string]bool{}
	for _, group := range r.st.TransactionGroups() {
		r.presenceMu.Lock()
		_, here := r.presence.producer(group)
		r.presenceMu.Unlock()
		has[group] = here
	}
	now := max(r.now().UnixMilli(), r.st.Time())
	first := least[state.Transaction]{n: maxChecks, compare: func(a, b *state.Transaction) int {
		return cmp.Or(cmp.Compare(r.dueAt(a), r.dueAt(b)), cmp.Compare(a.Number, b.Number))
	}}
	r.st.EachTransaction(func(x state.Transaction) {
		if has[x.Group] && !x.GaveUp() && r.dueAt(&x) <= now {
			first.add(x)
		}
	})
	due := first.sorted()
	size := 0
	for i := range due {
		if size += int(due[i].Size); i > 0 && size > maxCheckBytes {
			return due[:i]
		}
	}
	return due
}

// check asks one producer of a transaction's group for its state (39). The answer is an END_TRANSACTION.
func (r *Replica) check(number ids.QueueOffset) error {
	x, _, pending, _ := r.st.Transaction(number)
	if !pending {
		return nil // it ended meanwhile
	}
	r.presenceMu.Lock()
	c, ok := r.presence.producer(x.Group)
	r.presenceMu.Unlock()
	if !ok {
		return nil // they went meanwhile
	}
	rec, err := r.readHalf(&x)
	if err != nil {
		return err
	}
	r.counters.transactions.checks.Add(1)
	return r.guarded(func() error { return c.Push(r.checkRequest(&x, &rec)) })
}

// checkRequest is a CHECK_TRANSACTION_STATE with the half message in its body, as if it were in its own topic already.
func (r *Replica) checkRequest(x *state.Transaction, rec *message.Record) *remoting.Command {
	topic, _ := message.Property(rec.Properties, message.KeyRealTopic)
	unique, _ := message.Property(rec.Properties, message.KeyUniqueKey)
	rec.Topic, rec.QueueID = topic, realQueue(rec.Properties)
	rec.Properties = withChecks(rec.Properties, x)
	req := remoting.NewRequest(remoting.CheckTransactionState)
	req.Set("topic", topic)
	req.SetInt64("tranStateTableOffset", int64(x.Number))
	req.SetInt64("commitLogOffset", int64(x.Origin))
	req.Set("msgId", unique)
	req.Set("transactionId", unique)
	req.Set("offsetMsgId", message.OffsetMessageID(rec.StoreHost, x.Origin))
	req.Body = rec.AppendTo(nil)
	return req
}
