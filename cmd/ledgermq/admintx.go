package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
)

// txFlags select pending transactions.
func txFlags(more ...cli.Flag) []cli.Flag {
	return adminFlags(append([]cli.Flag{
		&cli.StringFlag{Name: "producer-group", Usage: "only those of this producer `GROUP`"},
		&cli.DurationFlag{Name: "older", Usage: "only those that are pending for longer than this `TIME`, such as 10m"},
		&cli.BoolFlag{Name: "gave-up", Usage: "only those whose producers are asked no more"},
		&cli.StringFlag{Name: "groups", Usage: "only in these broker `GROUPS`"},
	}, more...)...)
}

func (t *tool) adminTx() *cli.Command {
	return &cli.Command{
		Name: "tx", Usage: "transactions that are pending",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list pending transactions", ArgsUsage: " ",
				Flags:  txFlags(&cli.IntFlag{Name: "limit", Value: 1000, Usage: "at most this many of each broker group; 0: all"}),
				Action: t.admin(0, 0, "no argument", t.listTx),
			},
			{
				Name: "show", Usage: "show a pending transaction with its message", ArgsUsage: "GROUP/NUMBER|MESSAGE-ID", Flags: adminFlags(),
				Action: t.admin(1, 1, "the transaction, as tx list names it, or its message id", t.showTx),
			},
			{
				Name: "resolve", Usage: "commit or roll back pending transactions for good", ArgsUsage: "commit|rollback [GROUP/NUMBER…]",
				Flags: txFlags(
					&cli.BoolFlag{Name: "dry-run", Usage: "only show which they are"},
					&cli.BoolFlag{Name: "yes", Usage: "do it; without it they are only shown"}),
				Action: t.action(t.resolveTx),
			},
		},
	}
}

// txQuery reads the flags that select.
func txQuery(c *cli.Context) (client.TransactionQuery, error) {
	q := client.TransactionQuery{Groups: splitList(c.String("groups")), ProducerGroup: c.String("producer-group"), GaveUp: c.Bool("gave-up")}
	if q.ProducerGroup != "" {
		if err := message.ValidGroup(q.ProducerGroup); err != nil {
			return q, usagef("--producer-group: %v", err)
		}
	}
	if d := c.Duration("older"); c.IsSet("older") {
		if d <= 0 {
			return q, usagef("--older %v: use a positive time", d)
		}
		q.StoredBefore = time.Now().Add(-d).UnixMilli()
	}
	return q, nil
}

// txName is how a transaction is named on the command line.
func txName(x *client.Transaction) string { return fmt.Sprintf("%s/%d", x.Group, x.Number) }

func parseTxName(name string) (group string, number int64, err error) {
	group, text, ok := strings.Cut(name, "/")
	number, e := strconv.ParseInt(text, 10, 64)
	if !ok || e != nil || group == "" || number < 0 {
		return "", 0, usagef("%q names no transaction: use GROUP/NUMBER, as tx list shows it", name)
	}
	return group, number, nil
}

// findTx finds a pending transaction by its name, or by one of the ids of its message.
func findTx(ctx context.Context, cl *client.Client, name string) (group string, number int64, err error) {
	if strings.Contains(name, "/") {
		return parseTxName(name)
	}
	found, err := cl.TransactionsOf(ctx, name)
	switch {
	case len(found) == 1:
		return found[0].Group, found[0].Number, nil
	case len(found) > 1:
		names := make([]string, len(found))
		for i := range found {
			names[i] = txName(&found[i])
		}
		return "", 0, fmt.Errorf("%d pending transactions have the message id %s: show one of %s", len(found), name, strings.Join(names, ", "))
	case err != nil:
		return "", 0, err
	}
	return "", 0, fmt.Errorf("no pending transaction has the message id %q: it has ended, or never was; `ledgermq admin tx list` tells which are pending, as GROUP/NUMBER", name)
}

func txState(x *client.Transaction) string {
	if x.GaveUp {
		return "gave up checking"
	}
	return "pending"
}

func writeTx(w *tabwriter.Writer, list []client.Transaction) {
	row(w, "TRANSACTION", "PRODUCER GROUP", "TOPIC", "MESSAGE ID", "AGE", "CHECKS", "STATE")
	for i := range list {
		x := &list[i]
		age := max(0, time.Since(time.UnixMilli(x.StoredMillis)).Round(time.Second))
		row(w, txName(x), x.ProducerGroup, x.Topic, firstNonEmpty(x.MessageID, x.Fault), age, x.Checks, txState(x))
	}
}

func (t *tool) listTx(ctx context.Context, c *cli.Context, cl *client.Client) error {
	q, err := txQuery(c)
	if err != nil {
		return err
	}
	if q.Limit = c.Int("limit"); q.Limit < 0 {
		return usagef("--limit %d: use 0 or more", q.Limit)
	}
	list, err := cl.Transactions(ctx, q)
	if list == nil {
		list = []client.Transaction{}
	}
	if len(list) == 0 && err != nil {
		return err
	}
	return errors.Join(t.show(c, list, func(w *tabwriter.Writer) { writeTx(w, list) }), err)
}

func (t *tool) showTx(ctx context.Context, c *cli.Context, cl *client.Client) error {
	group, number, err := findTx(ctx, cl, c.Args().First())
	if err != nil {
		return err
	}
	x, pending, err := cl.Transaction(ctx, group, number)
	if err != nil {
		return err
	}
	if !pending {
		return notPending(group, number)
	}
	return t.show(c, x, func(w *tabwriter.Writer) {
		row(w, "transaction", txName(&x))
		row(w, "state", txState(&x))
		row(w, "producer group", x.ProducerGroup)
		row(w, "stored", shownTime(x.StoredMillis))
		row(w, "checks", x.Checks)
		if x.Fault != "" {
			row(w, "message", x.Fault)
			return
		}
		row(w, "topic", x.Topic)
		row(w, "queue", x.Queue)
		row(w, "message id", x.MessageID)
		row(w, "keys", x.Keys)
		row(w, "tags", x.Tags)
		row(w, "born", shownTime(x.BornMillis)+" on "+x.BornHost)
		row(w, "bytes", x.Bytes)
		row(w, "body", strconv.Quote(string(x.Body[:min(len(x.Body), 200)])))
	})
}

// resolvedView is how the end of a transaction went.
type resolvedView struct {
	client.Transaction
	Decision string `json:"decision"`
	OK       bool   `json:"ok"`
	Error    string `json:"error,omitempty"`
}

// selectTx finds the transactions that a command line names, or selects. Of a named one that cannot be ended, fault tells why.
func selectTx(c *cli.Context, cl *client.Client, names []string) (list []client.Transaction, fault map[string]error, err error) {
	ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
	defer cancel()
	q, err := txQuery(c)
	if err != nil {
		return nil, nil, err
	}
	if len(names) == 0 {
		if q.ProducerGroup == "" && q.StoredBefore == 0 && !q.GaveUp {
			return nil, nil, usagef("say which transactions: GROUP/NUMBER, --producer-group, --older or --gave-up")
		}
		list, err = cl.Transactions(ctx, q)
		return list, nil, err
	}
	if q.ProducerGroup != "" || q.StoredBefore != 0 || q.GaveUp || len(q.Groups) > 0 {
		return nil, nil, usagef("transactions are named, or selected by flags, not both")
	}
	for _, name := range names {
		group, number, err := parseTxName(name)
		if err != nil {
			return nil, nil, err
		}
		if !slices.ContainsFunc(list, func(x client.Transaction) bool { return x.Group == group && x.Number == number }) {
			list = append(list, client.Transaction{Group: group, Number: number})
		}
	}
	fault = map[string]error{}
	away := map[string]error{} // broker groups that cannot be asked
	for i := range list {
		name, x, pending, err := txName(&list[i]), client.Transaction{}, false, away[list[i].Group]
		if err == nil {
			ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
			x, pending, err = cl.Transaction(ctx, list[i].Group, list[i].Number)
			cancel()
		}
		switch {
		case errors.Is(err, client.ErrNoNamesrv):
			return nil, nil, err
		case err != nil:
			away[list[i].Group], fault[name] = err, err
		case !pending:
			fault[name] = notPending(list[i].Group, list[i].Number)
		default:
			x.Body = nil
			list[i] = x
		}
	}
	return list, fault, nil
}

func notPending(group string, number int64) error {
	return fmt.Errorf("no transaction %d is pending in group %s: it has ended, or never was", number, group)
}

func (t *tool) resolveTx(c *cli.Context) error {
	decision := c.Args().First()
	if decision != "commit" && decision != "rollback" {
		return usagef("say commit or rollback, and which transactions")
	}
	cl, err := newClient(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	list, fault, err := selectTx(c, cl, c.Args().Tail())
	if err != nil {
		return explain(c, err)
	}
	if len(list) == 0 {
		fmt.Fprintln(t.err, "nothing matches: no such transaction is pending")
		list = []client.Transaction{}
	}
	if c.Bool("dry-run") || !c.Bool("yes") || len(list) == 0 {
		ends := []client.Transaction{}
		var faults []error
		for _, x := range list {
			if err := fault[txName(&x)]; err != nil {
				faults = append(faults, err)
			} else {
				ends = append(ends, x)
			}
		}
		err := errors.Join(append([]error{t.show(c, ends, func(w *tabwriter.Writer) { writeTx(w, ends) })}, faults...)...)
		if c.Bool("dry-run") || len(ends) == 0 {
			return explain(c, err)
		}
		return explain(c, errors.Join(err, fmt.Errorf("nothing was changed: say --yes to %s %s", map[string]string{"commit": "commit", "rollback": "roll back"}[decision], countOf(len(ends), "transaction"))))
	}
	results, failed := make([]resolvedView, 0, len(list)), 0
	for _, x := range list {
		v := resolvedView{Transaction: x, Decision: decision}
		err := fault[txName(&x)]
		if err == nil {
			ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
			err = cl.ResolveTransaction(ctx, x, decision == "commit")
			cancel()
		}
		if v.OK = err == nil; err != nil {
			failed++
			v.Error = reason(err)
		}
		if results = append(results, v); c.Context.Err() != nil {
			break
		}
	}
	shown := t.show(c, results, func(w *tabwriter.Writer) {
		row(w, "TRANSACTION", "PRODUCER GROUP", "TOPIC", "MESSAGE ID", "RESULT")
		for i := range results {
			v := &results[i]
			row(w, txName(&v.Transaction), v.ProducerGroup, v.Topic, v.MessageID, firstNonEmpty(v.Error, decision))
		}
	})
	if rest := len(list) - len(results); rest > 0 {
		return fmt.Errorf("stopped: %s stay pending", countOf(rest, "transaction"))
	}
	if shown != nil || failed == 0 {
		return shown
	}
	return fmt.Errorf("%d of %s did not end so", failed, countOf(len(list), "transaction"))
}
