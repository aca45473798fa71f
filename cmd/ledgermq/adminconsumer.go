package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
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

func (t *tool) adminConsumer() *cli.Command {
	topic := func() cli.Flag { return &cli.StringFlag{Name: "topic", Usage: "the `TOPIC` that the group consumes"} }
	return &cli.Command{
		Name: "consumer", Usage: "consumer groups",
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "create or change a consumer group in every broker group", ArgsUsage: "NAME",
				Flags: adminFlags(
					&cli.IntFlag{Name: "retries", Value: 16, Usage: "repetitions before a message becomes a dead letter; 0: its first failure makes it one"},
					&cli.StringFlag{Name: "retry-delays", Usage: "`DELAYS` before the first repetition, the second one, …, such as 1s,10s,5m; the last one counts for all that follow"},
					&cli.StringFlag{Name: "retry-growth", Usage: "or `FIRST,LONGEST,FACTOR`, such as 5s,2h,2: each delay is FACTOR times the one before; default: 10s, 30s, 1m, … by RocketMQ's levels"},
					&cli.BoolFlag{Name: "disabled", Usage: "refuse its pulls"},
				),
				Action: t.admin(1, 1, "the consumer group's name", func(ctx context.Context, c *cli.Context, cl *client.Client) error {
					if err := message.ValidGroup(c.Args().First()); err != nil {
						return usagef("%v", err)
					}
					if c.Int("retries") < 0 || c.Int("retries") > math.MaxInt32 {
						return usagef("--retries %d: use 0 to %d", c.Int("retries"), math.MaxInt32)
					}
					policy, err := retryPolicy(c.String("retry-delays"), c.String("retry-growth"))
					if err != nil {
						return err
					}
					results, err := cl.CreateGroup(ctx, client.GroupSpec{
						Name: c.Args().First(), RetryMaxTimes: new(int32(c.Int("retries"))), RetryPolicy: policy, Disabled: c.Bool("disabled"),
					})
					return t.reportGroups(c, results, err)
				}),
			},
			{
				Name: "list", Usage: "list consumer groups with their members and their lag", ArgsUsage: " ",
				Flags:  adminFlags(&cli.BoolFlag{Name: "all", Usage: "list those of RocketMQ's own tools too"}),
				Action: t.admin(0, 0, "no argument", t.listConsumers),
			},
			{
				Name: "delete", Usage: "delete a consumer group without members, and its offsets, from every broker group", ArgsUsage: "NAME",
				Flags: adminFlags(
					&cli.BoolFlag{Name: "topics", Usage: "its retry and dead-letter topics too, with all that is in them"},
					&cli.BoolFlag{Name: "yes", Usage: "do it; without it only what would go is shown"}),
				Action: t.admin(1, 1, "the consumer group's name", t.deleteConsumer),
			},
			{
				Name: "show", Usage: "show a consumer group's members, offsets and lag", ArgsUsage: "NAME", Flags: adminFlags(topic()),
				Action: t.admin(1, 1, "the consumer group's name", t.showConsumer),
			},
			{
				Name: "reset", Usage: "set where a consumer group goes on, also while its members run", ArgsUsage: "NAME",
				Flags: adminFlags(topic(),
					&cli.StringFlag{Name: "to", Usage: "`PLACE`: " + resetPlaces},
					&cli.BoolFlag{Name: "new", Usage: "although the group does not consume the topic yet: set where it begins, before its first start"}),
				Action: t.admin(1, 1, "the consumer group's name", t.resetConsumer),
			},
		},
	}
}

// retryPolicy reads --retry-delays and --retry-growth.
func retryPolicy(delays, growth string) (p client.RetryPolicy, err error) {
	list, parts := splitList(delays), splitList(growth)
	switch {
	case len(list) > 0 && len(parts) > 0:
		return p, usagef("--retry-delays and --retry-growth: use one of them")
	case len(list) > client.MaxRetryDelays:
		return p, usagef("--retry-delays: %d of them, at most %d are taken", len(list), client.MaxRetryDelays)
	}
	for _, text := range list {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d%time.Millisecond != 0 {
			return p, usagef("--retry-delays %q: use delays such as 1s,10s,5m", text)
		}
		p.Delays = append(p.Delays, d)
	}
	if len(parts) == 0 {
		return p, nil
	}
	bad := usagef("--retry-growth %q: use FIRST,LONGEST,FACTOR such as 5s,2h,2, with FIRST not above LONGEST and a FACTOR from 1 to 1000", growth)
	if len(parts) != 3 {
		return p, bad
	}
	var err1, err2, err3 error
	p.Initial, err1 = time.ParseDuration(parts[0])
	p.Max, err2 = time.ParseDuration(parts[1])
	p.Multiplier, err3 = strconv.ParseInt(parts[2], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || p.Initial < 0 || p.Max < p.Initial || p.Multiplier < 1 || p.Multiplier > 1000 {
		return p, bad
	}
	return p, nil
}

type consumerView struct {
	Group   string              `json:"group"`
	Topic   string              `json:"topic"`
	Members []string            `json:"members"`
	Lag     *int64              `json:"lag,omitempty"` // absent: each member keeps its own offsets
	Queues  []consumerQueueView `json:"queues"`

	Subscriptions map[string]map[string]string `json:"subscriptions"` // of each member: topic to filter
	Mixed         bool                         `json:"mixed"`         // they differ
	Broadcasting  bool                         `json:"broadcasting"`  // each has all messages
}

type consumerQueueView struct {
	Group  string `json:"group"` // broker group
	Queue  int32  `json:"queue"`
	Offset int64  `json:"offset"` // next one that it will read; -1: none committed
	Max    int64  `json:"max"`
	Lag    *int64 `json:"lag,omitempty"`

	OldestMillis *int64 `json:"oldestMillis,omitempty"` // age of the first message that it has not consumed
}

// consumerQueues checks the arguments of consumer show and reset, and returns the queues of the topic.
func consumerQueues(ctx context.Context, c *cli.Context, cl *client.Client) ([]client.QueueRef, error) {
	if err := message.ValidGroup(c.Args().First()); err != nil {
		return nil, usagef("%v", err)
	}
	if c.String("topic") == "" {
		return nil, usagef("which topic? Give it with --topic")
	}
	return readableQueues(ctx, cl, c.String("topic"))
}

func (t *tool) showConsumer(ctx context.Context, c *cli.Context, cl *client.Client) error {
	queues, err := consumerQueues(ctx, c, cl)
	if err != nil {
		return err
	}
	v := consumerView{Group: c.Args().First(), Topic: c.String("topic"), Members: []string{}, Subscriptions: map[string]map[string]string{}}
	members, unasked := cl.Members(ctx, v.Group)
	for i, m := range members {
		v.Members = append(v.Members, m.ClientID)
		v.Subscriptions[m.ClientID] = m.Subscriptions
		v.Mixed = v.Mixed || !maps.Equal(m.Subscriptions, members[max(i-1, 0)].Subscriptions)
	}
	if err := checkConsumerGroup(ctx, cl, v.Group, queues, v.Members); err != nil {
		return errors.Join(err, unasked)
	}
	progress, err := cl.Progress(ctx, v.Group, v.Topic)
	if err != nil {
		return errors.Join(err, unasked)
	}
	if v.Broadcasting = client.Broadcasts(members); !v.Broadcasting {
		v.Lag = new(int64)
	}
	now := time.Now()
	for _, p := range progress {
		view := consumerQueueView{Group: p.Queue.Group, Queue: int32(p.Queue.Queue), Offset: -1, Max: int64(p.Max)}
		if p.Committed {
			view.Offset = int64(p.Offset)
		}
		if !v.Broadcasting {
			view.Lag = new(p.Lag())
			*v.Lag += p.Lag()
			if !p.Oldest.IsZero() {
				view.OldestMillis = new(max(0, now.Sub(p.Oldest).Milliseconds()))
			}
		}
		v.Queues = append(v.Queues, view)
	}
	return errors.Join(t.show(c, v, func(w *tabwriter.Writer) { v.write(w) }), unasked)
}

// lagText is a lag in a table, "" when it is not known.
func lagText(lag *int64) string {
	if lag == nil {
		return ""
	}
	return strconv.FormatInt(*lag, 10)
}

func (v *consumerView) write(w *tabwriter.Writer) {
	row(w, "GROUP", "QUEUE", "OFFSET", "MAX", "LAG", "OLDEST")
	for _, q := range v.Queues {
		offset, oldest := "-", "-"
		if q.Offset >= 0 {
			offset = strconv.FormatInt(q.Offset, 10)
		}
		if q.OldestMillis != nil {
			oldest = (time.Duration(*q.OldestMillis) * time.Millisecond).String()
		}
		row(w, q.Group, q.Queue, offset, q.Max, lagText(q.Lag), oldest)
	}
	row(w, "all", "", "", "", lagText(v.Lag), "")
	if v.Broadcasting {
		fmt.Fprintln(w, "it broadcasts: each member has all messages and keeps its own offsets, so its lag is not known here")
	}
	fmt.Fprintf(w, "members: %s\n", firstNonEmpty(strings.Join(v.Members, ", "), "none"))
	for _, m := range v.Members {
		var list []string
		for _, topic := range slices.Sorted(maps.Keys(v.Subscriptions[m])) {
			list = append(list, topic+" ("+v.Subscriptions[m][topic]+")")
		}
		fmt.Fprintf(w, "%s subscribes to %s\n", m, firstNonEmpty(strings.Join(list, ", "), "nothing"))
	}
	if v.Mixed {
		fmt.Fprintln(w, "THE MEMBERS DIFFER: what one wants and another does not is kept back in the queues of the other. Give all the same subscription.")
	}
}

// checkConsumerGroup refuses a group that does not exist. One that exists has a retry topic, a member, or an offset in one of
// the queues: what only commits offsets needs nothing else.
func checkConsumerGroup(ctx context.Context, cl *client.Client, group string, queues []client.QueueRef, members []string) error {
	if len(members) > 0 || message.IsSystemGroup(group) {
		return nil
	}
	if _, err := cl.Route(ctx, message.RetryTopic(group)); !errors.Is(err, client.ErrTopicNotFound) {
		return err
	}
	for _, q := range queues {
		if _, found, err := cl.CommittedOffset(ctx, group, q); found || err != nil {
			return err
		}
	}
	return noConsumerGroup(group)
}

// checkConsumes refuses a topic in which the group has no offset and to which no member subscribes: most often its name is wrong, and a reset
// would be an offset that nobody ever reads.
func checkConsumes(ctx context.Context, cl *client.Client, group, topic string) error {
	topics, err := cl.ConsumedTopics(ctx, group)
	if err != nil {
		return err
	}
	members, unasked := cl.Members(ctx, group)
	for _, m := range members {
		topics = slices.AppendSeq(topics, maps.Keys(m.Subscriptions))
	}
	if slices.Contains(topics, topic) {
		return nil
	} else if unasked != nil {
		return unasked
	}
	topics = slices.DeleteFunc(topics, message.IsRetryTopic)
	slices.Sort(topics)
	what := "none, as far as is known"
	if len(topics) > 0 {
		what = strings.Join(slices.Compact(topics), ", ")
	}
	return fmt.Errorf("consumer group %s does not consume topic %s, it has no offset there and no member that subscribes to it; what it consumes: %s. Give --new to set where it begins before it consumes %s for the first time",
		group, topic, what, topic)
}

func noConsumerGroup(group string) error {
	return fmt.Errorf("there is no consumer group %s; `ledgermq admin consumer create %s` makes it", group, group)
}

// movedView is where a consumer group goes on in one queue.
type movedView struct {
	Group  string `json:"group"` // broker group
	Queue  int32  `json:"queue"`
	Offset int64  `json:"offset"`
	Asked  *int64 `json:"asked,omitempty"` // the offset that was asked for, when the queue does not have it
}

func (t *tool) resetConsumer(ctx context.Context, c *cli.Context, cl *client.Client) error {
	target, err := parseResetTarget(c.String("to"))
	if err != nil {
		return err
	}
	queues, err := consumerQueues(ctx, c, cl)
	if err != nil {
		return err
	}
	group := c.Args().First()
	members, err := cl.ConsumerMembers(ctx, group)
	if err != nil {
		return err
	}
	if err := checkConsumerGroup(ctx, cl, group, queues, members); err != nil {
		return err
	}
	if !c.Bool("new") {
		if err := checkConsumes(ctx, cl, group, c.String("topic")); err != nil {
			return err
		}
	}
	list := make([]movedView, 0, len(queues))
	for _, q := range queues {
		m := movedView{Group: q.Group, Queue: int32(q.Queue)}
		off, err := target.in(ctx, cl, q)
		if err != nil {
			return err
		}
		if err := cl.ResetOffset(ctx, group, q, off); err != nil {
			return err
		}
		if m.Offset = int64(off); target.isOffset && off != target.offset {
			m.Asked = new(int64(target.offset))
		}
		list = append(list, m)
	}
	return t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "GROUP", "QUEUE", "OFFSET", "NOTE")
		for _, m := range list {
			note := ""
			if m.Asked != nil {
				note = fmt.Sprintf("%d is outside the queue; this is its nearest end", *m.Asked)
			}
			row(w, m.Group, m.Queue, m.Offset, note)
		}
	})
}

const resetPlaces = "first or earliest, last or latest, an offset, a time such as 2026-11-29T10:00:00Z, or one in Unix milliseconds"

// firstMillis is the least number that is taken for Unix milliseconds (of 2001), not for an offset.
const firstMillis = 1_000_000_000_000

// resetTarget is a place that each queue has: one of its ends, the first message of a time on, or an offset.
type resetTarget struct {
	end      string // first, last or ""
	at       time.Time
	isOffset bool
	offset   ids.QueueOffset
}

func parseResetTarget(text string) (resetTarget, error) {
	switch text {
	case "":
		return resetTarget{}, usagef("where to? Give --to: %s", resetPlaces)
	case "first", "earliest":
		return resetTarget{end: "first"}, nil
	case "last", "latest":
		return resetTarget{end: "last"}, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= firstMillis {
		return resetTarget{at: time.UnixMilli(n)}, nil
	} else if err == nil && n >= 0 {
		return resetTarget{isOffset: true, offset: ids.QueueOffset(n)}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return resetTarget{}, usagef("--to %q: use %s", text, resetPlaces)
	}
	return resetTarget{at: at}, nil
}

// in finds the place in a queue. An offset outside the queue becomes its nearest end.
func (r resetTarget) in(ctx context.Context, cl *client.Client, q client.QueueRef) (ids.QueueOffset, error) {
	switch {
	case r.end == "first":
		return cl.MinOffset(ctx, q)
	case r.end == "last":
		return cl.MaxOffset(ctx, q)
	case r.isOffset:
		low, err1 := cl.MinOffset(ctx, q)
		high, err2 := cl.MaxOffset(ctx, q)
		return min(max(r.offset, low), high), errors.Join(err1, err2)
	}
	return cl.SearchOffset(ctx, q, r.at)
}
