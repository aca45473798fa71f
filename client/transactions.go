package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// Transaction is a pending one of a broker group. Group, Number and Offset name it. What is read from its half message is empty when
// that could not be read, and Fault tells why.
type Transaction struct {
	Group         string `json:"group"`
	Number        int64  `json:"number"`
	Offset        int64  `json:"offset"`
	ProducerGroup string `json:"producerGroup"`
	StoredMillis  int64  `json:"storedMillis"`
	Checks        int    `json:"checks"`
	CheckedMillis int64  `json:"checkedMillis,omitempty"`
	GaveUp        bool   `json:"gaveUp"`
	Fault         string `json:"fault,omitempty"`
	Topic         string `json:"topic,omitempty"`
	Queue         int32  `json:"queue"`
	MessageID     string `json:"messageId,omitempty"`
	Keys          string `json:"keys,omitempty"`
	Tags          string `json:"tags,omitempty"`
	BornHost      string `json:"bornHost,omitempty"`
	BornMillis    int64  `json:"bornMillis,omitempty"`
	Bytes         int    `json:"bytes"`
	Body          []byte `json:"body,omitempty"`
}

// TransactionQuery selects pending transactions. Zero fields select all.
type TransactionQuery struct {
	Groups        []string // broker groups
	ProducerGroup string
	StoredBefore  int64 // ms since 1970
	GaveUp        bool  // only those whose producers are asked no more
	Limit         int   // of each broker group; 0: all
}

const transactionPage = 500 // what a broker lists at once

// Transactions lists the pending transactions of the broker groups, by number in each. The error joins those of the groups; the list has
// what the others told.
func (c *Client) Transactions(ctx context.Context, q TransactionQuery) ([]Transaction, error) {
	var all []Transaction
	_, err := c.inGroups(ctx, "list transactions", q.Groups, func(group string) error {
		for from, n := int64(0), 0; q.Limit == 0 || n < q.Limit; {
			limit := transactionPage
			if q.Limit > 0 {
				limit = min(limit, q.Limit-n)
			}
			page, found, err := c.listTransactions(ctx, group, &q, from, limit, false)
			if err != nil {
				return err
			}
			all = append(all, page...)
			if n += len(page); found <= len(page) || len(page) == 0 {
				return nil
			}
			from = page[len(page)-1].Number + 1
		}
		return nil
	})
	return all, err
}

// AmbiguousPlaceError is returned when an offset message id has the address of no broker group, as when replicas are known by a name or have
// moved, and there are several: then the place in a log that it names is one in each.
type AmbiguousPlaceError struct {
	MessageID string
	Pending   []Transaction // at this place
}

func (e *AmbiguousPlaceError) Error() string {
	names := make([]string, len(e.Pending))
	for i, x := range e.Pending {
		names[i] = fmt.Sprintf("%s/%d", x.Group, x.Number)
	}
	return fmt.Sprintf("the message id %s has the address of no broker group, so it may be of any: pending at its place of a log is %s; look whether it is the one, by that name",
		e.MessageID, strings.Join(names, ", "))
}

// TransactionsOf returns the pending transactions whose message has an id: a unique id, or an offset message id as it was given to the
// producer, which names a broker group and a place in its log. There is one at most, but for producers that give ids of their own. The error
// is an *AmbiguousPlaceError when it cannot be told which broker group is named; then the list is empty.
func (c *Client) TransactionsOf(ctx context.Context, messageID string) ([]Transaction, error) {
	host, off, notPlace := message.ParseOffsetMessageID(messageID)
	groups, err := c.groupsNow(ctx, "list transactions", nil)
	if err != nil {
		return nil, err
	}
	// Whoever has the address now is the group that stored it, and it is the only group where there is one.
	at := ""
	for _, g := range groups {
		if len(groups) == 1 || slices.ContainsFunc(g.Replicas, func(r Replica) bool { return r.Addr == host.String() }) {
			at = g.Group
		}
	}
	all, err := c.Transactions(ctx, TransactionQuery{})
	var found, there []Transaction
	for _, x := range all {
		placed := notPlace == nil && x.Offset == int64(off)
		switch {
		case x.MessageID == messageID || placed && at == x.Group:
			found = append(found, x)
		case placed && at == "":
			there = append(there, x)
		}
	}
	if len(found) == 0 && len(there) > 0 {
		err = errors.Join(&AmbiguousPlaceError{MessageID: messageID, Pending: there}, err)
	}
	return found, err
}

// Transaction returns one pending transaction with its body. ok is false when it is not pending.
func (c *Client) Transaction(ctx context.Context, group string, number int64) (x Transaction, ok bool, err error) {
	_, err = c.inGroups(ctx, fmt.Sprintf("show transaction %d", number), []string{group}, func(group string) error {
		page, _, err := c.listTransactions(ctx, group, &TransactionQuery{}, number, 1, true)
		if err == nil && len(page) > 0 && page[0].Number == number {
			x, ok = page[0], true
		}
		return err
	})
	return x, ok, err
}

func (c *Client) listTransactions(ctx context.Context, group string, q *TransactionQuery, from int64, limit int, body bool) (list []Transaction, found int, err error) {
	req := remoting.NewRequest(remoting.ListTransactions)
	req.SetInt64("from", from)
	req.SetInt64("limit", int64(limit))
	req.SetBool("body", body)
	req.SetBool("gaveUp", q.GaveUp)
	if q.ProducerGroup != "" {
		req.Set("producerGroup", q.ProducerGroup)
	}
	if q.StoredBefore > 0 {
		req.SetInt64("storedBefore", q.StoredBefore)
	}
	resp, err := c.answerOfGroup(ctx, group, req)
	if err != nil {
		return nil, 0, err
	}
	var in struct {
		Found        int           `json:"found"`
		Transactions []Transaction `json:"transactions"`
	}
	if err := decodeLax(resp.Body, &in); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	for i := range in.Transactions {
		in.Transactions[i].Group = group
	}
	return in.Transactions, in.Found, nil
}

// ResolveTransaction ends a pending transaction. It has ended so when the error is nil, also when it had before; a *CodeError with code
// 604 says that it had ended the other way.
func (c *Client) ResolveTransaction(ctx context.Context, x Transaction, commit bool) error {
	_, err := c.inGroups(ctx, fmt.Sprintf("resolve transaction %d", x.Number), []string{x.Group}, func(group string) error {
		req := remoting.NewRequest(remoting.ResolveTransaction)
		req.SetInt64("number", x.Number)
		req.SetInt64("offset", x.Offset)
		end := message.SysRollback
		if commit {
			end = message.SysCommit
		}
		req.SetInt32("commitOrRollback", end)
		return c.askGroup(ctx, group, req)
	})
	return err
}

// Half is a message that is stored and not delivered before it is committed. What is not ended stays pending: this client has no
// listener that a broker could ask.
type Half struct {
	Group           string // broker group
	ProducerGroup   string
	Number, Offset  int64
	MessageID       string
	OffsetMessageID string
}

// ErrContrary: the transaction has ended the other way, and stays so.
var ErrContrary = errors.New("the transaction has ended the other way")

// SendHalf sends the message of a transaction. Its error is that of Send.
func (p *Producer) SendHalf(ctx context.Context, m Message) (Half, error) {
	props := maps.Clone(m.Properties)
	if props == nil {
		props = map[string]string{}
	}
	props[message.KeyTransactionPrepared], props[message.KeyProducerGroup] = "true", p.group
	m.Properties = props
	r, err := p.Send(ctx, m)
	if err != nil {
		return Half{}, err
	}
	_, offset, err := message.ParseOffsetMessageID(r.OffsetMessageID)
	if err != nil {
		return Half{}, &SendError{Outcome: ErrUnknown, Topic: m.Topic, Err: fmt.Errorf("%w: %w", errBadAnswer, err)}
	}
	return Half{Group: r.Group, ProducerGroup: p.group, Number: int64(r.Offset), Offset: int64(offset), MessageID: r.MessageID, OffsetMessageID: r.OffsetMessageID}, nil
}

// EndTransaction commits or rolls back, again and again until the answer is known or ctx ends: the first end counts, so a repetition does
// no harm. It returns ErrContrary, wrapped, when the transaction has ended the other way. After any other error it may have ended so.
func (p *Producer) EndTransaction(ctx context.Context, h Half, commit bool) error {
	end := message.SysRollback
	if commit {
		end = message.SysCommit
	}
	req := remoting.NewRequest(remoting.EndTransaction)
	req.Set("producerGroup", h.ProducerGroup)
	req.SetInt64("tranStateTableOffset", h.Number)
	req.SetInt64("commitLogOffset", h.Offset)
	req.SetInt32("commitOrRollback", end)
	req.SetBool("fromTransactionCheck", false)
	req.Set("msgId", h.MessageID)
	req.Set("transactionId", h.MessageID)
	err := p.c.askGroup(ctx, h.Group, req)
	var code *CodeError
	if errors.As(err, &code) && code.Code == remoting.IllegalOperation {
		return fmt.Errorf("%w: %w", ErrContrary, err)
	}
	return err
}
