package broker

import (
	"cmp"
	"strings"

	"github.com/ledgermq/ledgermq/broker/state"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// transactionsListed bounds the transactions in one answer.
const transactionsListed = 500

// transactionView is one pending transaction as LIST_TRANSACTIONS answers it. What is read from its half message is absent when that
// cannot be read.
type transactionView struct {
	Number        ids.QueueOffset    `json:"number"`
	Origin        ids.PhysicalOffset `json:"offset"`
	ProducerGroup string             `json:"producerGroup"`
	Stored        int64              `json:"storedMillis"`
	Checks        uint8              `json:"checks"`
	Checked       int64              `json:"checkedMillis,omitempty"`
	GaveUp        bool               `json:"gaveUp"`
	Fault         string             `json:"fault,omitempty"`
	Topic         string             `json:"topic,omitempty"`
	Queue         ids.QueueID        `json:"queue"`
	Key           string             `json:"messageId,omitempty"`
	Keys          string             `json:"keys,omitempty"`
	Tags          string             `json:"tags,omitempty"`
	BornHost      string             `json:"bornHost,omitempty"`
	Born          int64              `json:"bornMillis,omitempty"`
	Bytes         int                `json:"bytes"` // of the body
	Body          []byte             `json:"body,omitempty"`
}

// listTransactions takes LIST_TRANSACTIONS (31020), our own: pending transactions in the order of their numbers, from `from` on, at most
// `limit`, of one producer group, stored before a time, given up, each if it is wanted. With `body` there are the bodies too, of one.
func (r *Replica) listTransactions(req *remoting.Command) (*remoting.Command, error) {
	from, err := req.Int64Or("from", 0)
	if err != nil {
		return nil, err
	}
	limit, err := req.Int32Or("limit", transactionsListed)
	if err != nil {
		return nil, err
	}
	before, err := req.Int64Or("storedBefore", 1<<63-1)
	if err != nil {
		return nil, err
	}
	gaveUp, err := req.BoolOr("gaveUp", false)
	if err != nil {
		return nil, err
	}
	withBody, err := req.BoolOr("body", false)
	if err != nil {
		return nil, err
	}
	if limit < 1 || limit > transactionsListed {
		return nil, refuse(remoting.InvalidParameter, "limit %d: use 1 to %d", limit, transactionsListed)
	}
	if withBody && limit != 1 {
		return nil, refuse(remoting.InvalidParameter, "bodies are shown one at a time: use limit 1")
	}
	group := req.GetOr("producerGroup", "")
	found := 0
	first := least[state.Transaction]{n: int(limit), compare: func(a, b *state.Transaction) int { return cmp.Compare(a.Number, b.Number) }}
	r.st.EachTransaction(func(x state.Transaction) {
		if int64(x.Number) >= from && (group == "" || x.Group == group) && x.Stored < before && (!gaveUp || x.GaveUp()) {
			found++
			first.add(x)
		}
	})
	pending, parked := r.st.PendingTransactions()
	out := struct {
		Pending      int               `json:"pending"`
		GaveUp       int               `json:"gaveUp"`
		Found        int               `json:"found"` // from `from` on; more than there are in the list when it goes on
		Transactions []transactionView `json:"transactions"`
	}{pending, parked, found, []transactionView{}}
	for _, x := range first.sorted() {
		out.Transactions = append(out.Transactions, r.viewTransaction(&x, withBody))
	}
	return jsonAnswer(out)
}

func (r *Replica) viewTransaction(x *state.Transaction, withBody bool) transactionView {
	v := transactionView{Number: x.Number, Origin: x.Origin, ProducerGroup: x.Group, Stored: x.Stored, Checks: x.Checks, Checked: x.Checked, GaveUp: x.GaveUp()}
	rec, err := r.readHalf(x)
	if err != nil {
		_, v.Fault = errorAnswer(err)
		return v
	}
	v.Topic, _ = message.Property(rec.Properties, message.KeyRealTopic)
	v.Key, _ = message.Property(rec.Properties, message.KeyUniqueKey)
	v.Keys, _ = message.Property(rec.Properties, message.KeyKeys)
	v.Tags, _ = message.Property(rec.Properties, message.KeyTags)
	v.Queue, v.BornHost, v.Born, v.Bytes = realQueue(rec.Properties), rec.BornHost.String(), rec.BornTime, len(rec.Body)
	if withBody {
		v.Body = rec.Body
	}
	return v
}

// resolveTransaction takes RESOLVE_TRANSACTION (31021), our own: an operator ends a pending transaction. It is answered like an
// END_TRANSACTION.
func (r *Replica) resolveTransaction(req *remoting.Command, pend *remoting.Pending) {
	number, err := req.MustInt64("number")
	if err != nil {
		answerError(pend, err)
		return
	}
	origin, err := req.MustInt64("offset")
	if err != nil {
		answerError(pend, err)
		return
	}
	end, err := req.MustInt32("commitOrRollback")
	if err != nil {
		answerError(pend, err)
		return
	}
	decision := state.RolledBack
	switch end {
	case message.SysCommit:
		decision = state.Committed
	case message.SysRollback:
	default:
		answerError(pend, refuse(remoting.InvalidParameter, "commitOrRollback is %d: use 8 for a commit, 12 for a rollback", end))
		return
	}
	h := endRequest{number: ids.QueueOffset(number), origin: ids.PhysicalOffset(origin)}
	if x, _, pending, _ := r.st.Transaction(h.number); pending {
		h.group = x.Group
	} else if group, err := r.groupOf(&h); err == nil {
		h.group = group
	}
	r.end(req, pend, &h, decision)
}

// resumeChecks takes RESUME_CHECK_HALF_MESSAGE (323): the transaction that a message id names is checked anew.
func (r *Replica) resumeChecks(req *remoting.Command, pend *remoting.Pending) {
	id, err := req.MustString("msgId")
	if err != nil {
		answerError(pend, err)
		return
	}
	_, origin, err := message.ParseOffsetMessageID(id)
	if err != nil {
		answerError(pend, refuse(remoting.InvalidParameter, "msgId %q is no offset message id", strings.ToValidUTF8(id[:min(len(id), 64)], "?")))
		return
	}
	number := ids.QueueOffset(-1)
	r.st.EachTransaction(func(x state.Transaction) {
		if x.Origin == origin {
			number = x.Number
		}
	})
	if number < 0 {
		answerError(pend, refuse(remoting.SystemError, "no half message at the physical offset %d is pending in group %s", origin, r.group))
		return
	}
	if ref := r.door(); ref != nil {
		answerError(pend, ref)
		return
	}
	if _, err := r.commitCommand(state.RecordTransactionChecks, state.AppendTransactionChecks(nil, true, []ids.QueueOffset{number})); err != nil {
		answerError(pend, err)
		return
	}
	ok(pend)
}
