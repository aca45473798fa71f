package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

func dlqFlags(more ...cli.Flag) []cli.Flag {
	return adminFlags(append([]cli.Flag{
		&cli.StringFlag{Name: "since", Usage: "only those that became dead letters at this `TIME` or later: " + timeForms},
		&cli.StringFlag{Name: "until", Usage: "only those that became dead letters before this `TIME`"},
		&cli.StringFlag{Name: "key", Usage: "only those with this `KEY`, or with this message id"},
		&cli.IntFlag{Name: "limit", Value: 1000, Usage: "at most this many; 0: all"},
	}, more...)...)
}

func (t *tool) adminDLQ() *cli.Command {
	return &cli.Command{
		Name: "dlq", Usage: "dead letters: messages that a consumer group gave up",
		Subcommands: []*cli.Command{
			{
				Name: "list", Usage: "list a consumer group's dead letters", ArgsUsage: "CONSUMER-GROUP", Flags: dlqFlags(),
				Action: t.admin(1, 1, "the consumer group", t.listDLQ),
			},
			{
				Name: "show", Usage: "show a dead letter with its properties and body", ArgsUsage: "CONSUMER-GROUP GROUP/OFFSET", Flags: adminFlags(),
				Action: t.admin(2, 2, "the consumer group, and the dead letter as dlq list names it", t.showDLQ),
			},
			{
				Name: "resend", Usage: "give dead letters to their consumer group again", ArgsUsage: "CONSUMER-GROUP [GROUP/OFFSET…]",
				Flags: dlqFlags(
					&cli.Float64Flag{Name: "rate", Value: 100, Usage: "at most this many messages a second"},
					&cli.BoolFlag{Name: "dry-run", Usage: "only show what would be sent"},
					&cli.BoolFlag{Name: "force", Usage: "send those too that were sent again before"}),
				Action: t.action(t.resendDLQ),
			},
		},
	}
}

type deadView struct {
	ID          string `json:"id"` // broker group and offset
	StoredAt    string `json:"storedAt"`
	OriginTopic string `json:"originTopic"`
	OriginID    string `json:"originId"`
	Keys        string `json:"keys"`
	Tries       int32  `json:"tries"` // deliveries
	Size        int    `json:"size"`
	Result      string `json:"result,omitempty"` // of a resend
}

func viewDead(d *client.DeadLetter) deadView {
	return deadView{ID: d.Name().String(), StoredAt: shownTime(d.StoreTime.UnixMilli()), OriginTopic: d.OriginTopic, OriginID: d.OriginID,
		Keys: strings.Join(d.Keys, " "), Tries: d.ReconsumeTimes, Size: len(d.Body)}
}

func dlqQuery(c *cli.Context) (q client.DeadLetterQuery, err error) {
	q = client.DeadLetterQuery{Group: c.Args().First(), Key: c.String("key"), Limit: c.Int("limit")}
	if err := message.ValidGroup(q.Group); err != nil {
		return q, usagef("%v", err)
	}
	if q.Limit < 0 {
		return q, usagef("--limit %d: use 0 or more", q.Limit)
	}
	for _, f := range []struct {
		name string
		at   *time.Time
	}{{"since", &q.Since}, {"until", &q.Until}} {
		if *f.at, err = parseTime(f.name, c.String(f.name)); err != nil {
			return q, err
		}
	}
	for _, name := range c.Args().Tail() {
		group, text, ok := strings.Cut(name, "/")
		n, e := strconv.ParseInt(text, 10, 64)
		if !ok || e != nil || group == "" || n < 0 {
			return q, usagef("%q names no dead letter: use GROUP/OFFSET, as dlq list shows it", name)
		}
		q.At = append(q.At, client.DeadLetterName{Group: group, Offset: ids.QueueOffset(n)})
	}
	return q, nil
}

// checkDeadLetterGroup refuses a consumer group that does not exist. One that exists has dead letters, a retry topic, a member, or an offset.
func checkDeadLetterGroup(ctx context.Context, cl *client.Client, group string) error {
	if message.IsSystemGroup(group) {
		return nil
	}
	for _, topic := range []string{message.DLQTopic(group), message.RetryTopic(group)} {
		if _, err := cl.Route(ctx, topic); !errors.Is(err, client.ErrTopicNotFound) {
			return err
		}
	}
	members, err := cl.Members(ctx, group)
	if len(members) > 0 {
		return nil
	} else if err != nil {
		return err
	}
	if topics, err := cl.ConsumedTopics(ctx, group); len(topics) > 0 {
		return nil
	} else if err != nil {
		return err
	}
	return noConsumerGroup(group)
}

// missingDeadLetters returns an error that names those that were asked for and not seen; nil when the limit may be why.
func missingDeadLetters(q *client.DeadLetterQuery, seen []deadView) error {
	if q.Limit > 0 && len(seen) >= q.Limit {
		return nil
	}
	var missing []string
	for _, name := range q.At {
		if !slices.ContainsFunc(seen, func(d deadView) bool { return d.ID == name.String() }) {
			missing = append(missing, name.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	selects := ""
	if q.Key != "" || !q.Since.IsZero() || !q.Until.IsZero() {
		selects = " that the other flags select"
	}
	return fmt.Errorf("consumer group %s has no dead letter %s%s; `ledgermq admin dlq list %s` tells which it has", q.Group, strings.Join(missing, ", "), selects, q.Group)
}

func (t *tool) listDLQ(ctx context.Context, c *cli.Context, cl *client.Client) error {
	q, err := dlqQuery(c)
	if err != nil {
		return err
	}
	if err := checkDeadLetterGroup(ctx, cl, q.Group); err != nil {
		return err
	}
	list := []deadView{}
	err = cl.DeadLetters(ctx, q, func(d *client.DeadLetter) error { list = append(list, viewDead(d)); return nil })
	if err != nil {
		return err
	}
	return t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "ID", "SINCE", "TOPIC", "MESSAGE ID", "KEYS", "TRIES", "BYTES")
		for _, d := range list {
			row(w, d.ID, d.StoredAt, d.OriginTopic, d.OriginID, d.Keys, d.Tries, d.Size)
		}
	})
}

// deadDetail is a dead letter with all that it has.
type deadDetail struct {
	deadView
	MessageID  string            `json:"messageId"`
	Tags       string            `json:"tags"`
	Properties map[string]string `json:"properties"`
	Body       []byte            `json:"body"` // base64
	Resent     bool              `json:"resent"`
}

func (t *tool) showDLQ(ctx context.Context, c *cli.Context, cl *client.Client) error {
	q, err := dlqQuery(c)
	if err != nil {
		return err
	}
	if err := checkDeadLetterGroup(ctx, cl, q.Group); err != nil {
		return err
	}
	var found *deadDetail
	err = cl.DeadLetters(ctx, q, func(d *client.DeadLetter) error {
		resent, err := cl.Resent(ctx, q.Group, d)
		found = &deadDetail{deadView: viewDead(d), MessageID: d.ID, Tags: d.Tags, Properties: d.Properties, Body: d.Body, Resent: resent}
		return err
	})
	if err != nil {
		return err
	}
	if found == nil {
		return fmt.Errorf("consumer group %s has no dead letter %v", q.Group, q.At[0])
	}
	return t.show(c, found, func(w *tabwriter.Writer) {
		row(w, "id", found.ID)
		row(w, "since", found.StoredAt)
		row(w, "topic", found.OriginTopic)
		row(w, "message id", found.OriginID)
		row(w, "tries", found.Tries)
		row(w, "keys", found.Keys)
		row(w, "tags", found.Tags)
		row(w, "sent again", found.Resent)
		for _, k := range slices.Sorted(maps.Keys(found.Properties)) {
			row(w, k, found.Properties[k])
		}
		fmt.Fprintf(w, "%s\n", found.Body)
	})
}

// resendDLQ has no time limit, for the rate gives it; but it ends when nothing goes on for toolTimeout.
func (t *tool) resendDLQ(c *cli.Context) error {
	if c.NArg() < 1 {
		return usagef("which consumer group?")
	}
	q, err := dlqQuery(c)
	if err != nil {
		return err
	}
	q.Patience = toolTimeout
	rate := c.Float64("rate")
	if rate <= 0 || rate > 1e6 {
		return usagef("--rate %v: use more than 0 and at most 1000000", rate)
	}
	cl, err := newClient(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
	err = checkDeadLetterGroup(ctx, cl, q.Group)
	cancel()
	if err != nil {
		return explain(c, err)
	}
	list, failed, run := []deadView{}, 0, failures{}
	pace := time.NewTicker(max(time.Duration(float64(time.Second)/rate), 1))
	defer pace.Stop()
	err = cl.DeadLetters(c.Context, q, func(d *client.DeadLetter) error {
		v, began := viewDead(d), time.Now()
		var err error
		v.Result, err = t.resendOne(c, cl, q.Group, d)
		list = append(list, v)
		bad := err != nil && !errors.Is(err, client.ErrResent)
		if bad {
			failed, err = failed+1, nil
		}
		if run.tooLong(bad, began, time.Now()) {
			return fmt.Errorf("nothing could be sent for %v", toolTimeout)
		}
		select {
		case <-pace.C:
			return err // nil, or that it does not count
		case <-c.Context.Done():
			return context.Cause(c.Context)
		}
	})
	if err == nil {
		err = missingDeadLetters(&q, list)
	}
	if len(list) == 0 {
		if err != nil {
			return explain(c, err)
		}
		fmt.Fprintln(t.err, "nothing matches: the group has no such dead letter")
	}
	shown := t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "ID", "TOPIC", "MESSAGE ID", "RESULT")
		for _, d := range list {
			row(w, d.ID, d.OriginTopic, d.OriginID, d.Result)
		}
	})
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d dead letters were not surely sent: run it again, what was sent is left out", failed, len(list)))
	}
	return explain(c, errors.Join(shown, err))
}

// failures is a run of tries that failed, with no other between them.
type failures struct{ since time.Time }

// tooLong takes how one more try went, and tells whether all have failed for toolTimeout.
func (f *failures) tooLong(failed bool, began, now time.Time) bool {
	switch {
	case !failed:
		f.since = time.Time{}
	case f.since.IsZero():
		f.since = began
	}
	return failed && now.Sub(f.since) >= toolTimeout
}

// resendOne returns what has become of a dead letter, and the error if it was not surely sent: ErrResent when it was sent again before.
func (t *tool) resendOne(c *cli.Context, cl *client.Client, group string, d *client.DeadLetter) (result string, err error) {
	ctx, cancel := context.WithTimeoutCause(c.Context, toolTimeout, fmt.Errorf("no answer within %v", toolTimeout))
	defer cancel()
	result = "sent"
	if c.Bool("dry-run") {
		var done bool
		if done, err = cl.Resent(ctx, group, d); done && !c.Bool("force") {
			err = client.ErrResent
		}
		result = "would be sent"
	} else {
		err = cl.Resend(ctx, group, d, c.Bool("force"))
	}
	switch {
	case errors.Is(err, client.ErrResent):
		return "was sent again before", err
	case err != nil:
		return err.Error(), err
	}
	return result, nil
}
