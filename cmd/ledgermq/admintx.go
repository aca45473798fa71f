package main

import (
	"context"
	"errors"
	"fmt"
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
				Name: "show", Usage: "show a pending transaction with its message", ArgsUsage: "GROUP/NUMBER", Flags: adminFlags(),
				Action: t.admin(1, 1, "the transaction, as tx list names it", t.showTx),
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
	group, number, err := parseTxName(c.Args().First())
	if err != nil {
		return err
	}
	x, pending, err := cl.Transaction(ctx, group, number)
	if err != nil {
		return err
	}
	if !pending {
		return fmt.Errorf("no transaction %d is pending in group %s: it has ended, or never was", number, group)
	}
	return t.show(c, x, func(w *tabwriter.Writer) {
		row(w, "transaction", txName(&x))
		row(w, "state", txState(&x))
		row(w, "producer group", x.ProducerGroup)
		row(w, "stored", time.UnixMilli(x.StoredMillis).UTC().Format(time.RFC3339Nano))
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
		row(w, "born", time.UnixMilli(x.BornMillis).UTC().Format(time.RFC3339Nano)+" on "+x.BornHost)
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

// selectTx finds the transactions that a command line names, or selects.
func selectTx(c *cli.Context, cl *client.Client, names []string) ([]client.Transaction, error) {
	ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
	defer cancel()
	q, err := txQuery(c)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		if q.ProducerGroup == "" && q.StoredBefore == 0 && !q.GaveUp {
			return nil, usagef("say which transactions: GROUP/NUMBER, --producer-group, --older or --gave-up")
		}
		return cl.Transactions(ctx, q)
	}
	if q.ProducerGroup != "" || q.StoredBefore != 0 || q.GaveUp || len(q.Groups) > 0 {
		return nil, usagef("transactions are named, or selected by flags, not both")
	}
	var list []client.Transaction
	for _, name := range names {
		group, number, err := parseTxName(name)
		if err != nil {
			return nil, err
		}
		x, pending, err := cl.Transaction(ctx, group, number)
		if err != nil {
			return nil, err
		}
		if !pending {
			return nil, fmt.Errorf("no transaction %d is pending in group %s: it has ended, or never was", number, group)
		}
		x.Body = nil
		list = append(list, x)
	}
	return list, nil
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
	list, err := selectTx(c, cl, c.Args().Tail())
	if err != nil {
		return explain(c, err)
	}
	if len(list) == 0 {
		fmt.Fprintln(t.err, "nothing matches: no such transaction is pending")
		list = []client.Transaction{}
	}
	if c.Bool("dry-run") || !c.Bool("yes") || len(list) == 0 {
		if err := t.show(c, list, func(w *tabwriter.Writer) { writeTx(w, list) }); err != nil || c.Bool("dry-run") || len(list) == 0 {
			return err
		}
		return fmt.Errorf("nothing was changed: say --yes to %s %s", map[string]string{"commit": "commit", "rollback": "roll back"}[decision], countOf(len(list), "transaction"))
	}
	results, failed := make([]resolvedView, 0, len(list)), 0
	for _, x := range list {
		v := resolvedView{Transaction: x, Decision: decision}
		ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
		err := cl.ResolveTransaction(ctx, x, decision == "commit")
		cancel()
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
