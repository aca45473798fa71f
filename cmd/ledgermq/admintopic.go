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

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
)

func (t *tool) adminTopic() *cli.Command {
	return &cli.Command{
		Name: "topic", Usage: "topics",
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "create or change a topic in every broker group", ArgsUsage: "NAME",
				Flags: adminFlags(
					&cli.IntFlag{Name: "queues", Value: 8, Usage: "queues in each broker group"},
					&cli.StringFlag{Name: "perm", Value: "rw", Usage: "rw, r or w"},
					&cli.BoolFlag{Name: "order", Usage: "mark it as a topic of ordered messages"},
					&cli.StringFlag{Name: "groups", Usage: "only in these broker `GROUPS`"},
				),
				Action: t.admin(1, 1, "the topic's name", t.createTopic),
			},
			t.adminSpread(),
			{
				Name: "list", Usage: "list topics", ArgsUsage: " ",
				Flags:  adminFlags(&cli.BoolFlag{Name: "all", Usage: "list system, retry and dead-letter topics too"}),
				Action: t.admin(0, 0, "no argument", t.listTopics),
			},
			{
				Name: "show", Usage: "show the queues of a topic and their offsets", ArgsUsage: "NAME", Flags: adminFlags(),
				Action: t.admin(1, 1, "the topic's name", t.showTopic),
			},
			{
				Name: "delete", Usage: "delete a topic and all its messages from every broker group", ArgsUsage: "NAME",
				Flags: adminFlags(),
				Action: t.admin(1, 1, "the topic's name", func(ctx context.Context, c *cli.Context, cl *client.Client) error {
					if _, err := cl.Route(ctx, c.Args().First()); err != nil {
						return err
					}
					results, err := cl.DeleteTopic(ctx, c.Args().First())
					return t.reportGroups(c, results, err)
				}),
			},
		},
	}
}

func (t *tool) createTopic(ctx context.Context, c *cli.Context, cl *client.Client) error {
	name := c.Args().First()
	if err := message.ValidTopic(name); err != nil {
		return usagef("%v", err)
	}
	perm := map[string]int32{"rw": 6, "r": 4, "w": 2}[c.String("perm")]
	switch {
	case perm == 0:
		return usagef("--perm %q: use rw, r or w", c.String("perm"))
	case c.Int("queues") < 1 || c.Int("queues") > broker.MaxTopicQueues:
		return usagef("--queues %d: use 1 to %d", c.Int("queues"), broker.MaxTopicQueues)
	}
	results, err := cl.CreateTopic(ctx, client.TopicSpec{
		Name: name, ReadQueues: int32(c.Int("queues")), Perm: perm, Order: c.Bool("order"), Groups: splitList(c.String("groups")),
	})
	return t.reportGroups(c, results, err)
}

func (t *tool) listTopics(ctx context.Context, c *cli.Context, cl *client.Client) error {
	topics, err := topicNames(ctx, cl, c.Bool("all"))
	if err != nil {
		return err
	}
	return t.show(c, topics, func(w *tabwriter.Writer) {
		row(w, "TOPIC")
		for _, name := range topics {
			row(w, name)
		}
	})
}

// topicNames lists the topics: all of them, or those that users made.
func topicNames(ctx context.Context, cl *client.Client, all bool) ([]string, error) {
	topics, err := cl.TopicList(ctx)
	if err != nil {
		return nil, err
	}
	if !all {
		cluster, err := cl.Cluster(ctx)
		if err != nil {
			return nil, err
		}
		topics = slices.DeleteFunc(topics, func(name string) bool {
			return message.IsSystemTopic(name) || message.IsRetryTopic(name) || message.IsDLQTopic(name) ||
				slices.ContainsFunc(cluster.Groups, func(g client.GroupInfo) bool { return g.Group == name || g.Cluster == name })
		})
	}
	slices.Sort(topics)
	if topics == nil {
		topics = []string{}
	}
	return topics, nil
}

// spreadView is how a topic came to a broker group.
type spreadView struct {
	Topic string `json:"topic"`
	changeView
}

func (t *tool) adminSpread() *cli.Command {
	return &cli.Command{
		Name: "spread", Usage: "create topics in the broker groups that lack them, as they are in the others", ArgsUsage: "[NAME…]",
		Flags: adminFlags(
			&cli.StringFlag{Name: "groups", Usage: "only onto these broker `GROUPS`; default: all"},
			&cli.BoolFlag{Name: "order", Usage: "mark them as topics of ordered messages there"},
		),
		Action: t.admin(0, 1000, "names of topics; default: all that users made", t.spreadTopics),
	}
}

// knownGroups lists the broker groups. One that was just made may take a moment until the name server knows it.
func knownGroups(ctx context.Context, cl *client.Client, wanted []string) ([]string, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for tries := 30; ; tries-- {
		cluster, err := cl.Cluster(ctx)
		if err != nil {
			return nil, err
		}
		var known []string
		for _, g := range cluster.Groups {
			known = append(known, g.Group)
		}
		missing := slices.DeleteFunc(slices.Clone(wanted), func(g string) bool { return slices.Contains(known, g) })
		if len(missing) == 0 {
			return known, nil
		}
		if tries == 0 {
			return nil, fmt.Errorf("--groups %s: the name server knows no such broker group, only %s", strings.Join(missing, ","), strings.Join(known, ", "))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// spreadTopics creates each topic in the groups that lack it, with the queues and the permission that it has elsewhere.
func (t *tool) spreadTopics(ctx context.Context, c *cli.Context, cl *client.Client) error {
	wanted := splitList(c.String("groups"))
	known, err := knownGroups(ctx, cl, wanted)
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		wanted = known
	}
	topics := c.Args().Slice()
	if len(topics) == 0 {
		if topics, err = topicNames(ctx, cl, false); err != nil {
			return err
		}
	}
	list := []spreadView{}
	failed := 0
	for _, name := range topics {
		route, err := cl.Route(ctx, name)
		if err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
		like := route.Groups[0]
		spec := client.TopicSpec{Name: name, ReadQueues: int32(like.ReadQueues), WriteQueues: int32(like.WriteQueues), Perm: int32(like.Perm), Order: c.Bool("order")}
		for _, g := range wanted {
			if !slices.ContainsFunc(route.Groups, func(r client.GroupRoute) bool { return r.Group == g }) {
				spec.Groups = append(spec.Groups, g)
			}
		}
		if len(spec.Groups) == 0 {
			continue
		}
		results, err := cl.CreateTopic(ctx, spec)
		if len(results) == 0 && err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
		for _, r := range results {
			v := spreadView{Topic: name, changeView: changeView{Group: r.Group, OK: r.Err == nil}}
			if r.Err != nil {
				failed++
				v.Error = reason(r.Err)
			}
			list = append(list, v)
		}
	}
	err = t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "TOPIC", "GROUP", "RESULT")
		for _, v := range list {
			row(w, v.Topic, v.Group, firstNonEmpty(v.Error, "ok"))
		}
	})
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %s failed", failed, countOf(len(list), "creation"))
	}
	return err
}

type queueView struct {
	Group string `json:"group"`
	Queue int32  `json:"queue"`
	Min   int64  `json:"min"`
	Max   int64  `json:"max"`
}

func (t *tool) showTopic(ctx context.Context, c *cli.Context, cl *client.Client) error {
	queues, err := readableQueues(ctx, cl, c.Args().First())
	if err != nil {
		return err
	}
	views := make([]queueView, 0, len(queues))
	var total int64
	for _, q := range queues {
		low, err1 := cl.MinOffset(ctx, q)
		high, err2 := cl.MaxOffset(ctx, q)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		views = append(views, queueView{Group: q.Group, Queue: int32(q.Queue), Min: int64(low), Max: int64(high)})
		total += int64(high - low)
	}
	return t.show(c, views, func(w *tabwriter.Writer) {
		row(w, "GROUP", "QUEUE", "MIN", "MAX", "MESSAGES")
		for _, v := range views {
			row(w, v.Group, v.Queue, v.Min, v.Max, v.Max-v.Min)
		}
		row(w, "all", "", "", "", total)
	})
}

func (t *tool) adminRoute() *cli.Command {
	return &cli.Command{
		Name: "route", Usage: "show where the queues of a topic are, as clients see it", ArgsUsage: "TOPIC", Flags: adminFlags(),
		Action: t.admin(1, 1, "a topic", func(ctx context.Context, c *cli.Context, cl *client.Client) error {
			route, err := cl.Route(ctx, c.Args().First())
			if err != nil {
				return err
			}
			return t.show(c, route, func(w *tabwriter.Writer) {
				row(w, "GROUP", "TERM", "READ", "WRITE", "PERM", "BROKER ID", "ADDRESS")
				for _, g := range route.Groups {
					for _, r := range g.Replicas {
						row(w, g.Group, g.Term, g.ReadQueues, g.WriteQueues, g.Perm, int64(r.BrokerID), r.Addr)
					}
				}
			})
		}),
	}
}

func (t *tool) adminConsumer() *cli.Command {
	topic := func() cli.Flag { return &cli.StringFlag{Name: "topic", Usage: "the `TOPIC` that the group consumes"} }
	return &cli.Command{
		Name: "consumer", Usage: "consumer groups",
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "create or change a consumer group in every broker group", ArgsUsage: "NAME",
				Flags: adminFlags(
					&cli.IntFlag{Name: "retries", Value: 16, Usage: "repetitions before a message becomes a dead letter"},
					&cli.BoolFlag{Name: "disabled", Usage: "refuse its pulls"},
				),
				Action: t.admin(1, 1, "the consumer group's name", func(ctx context.Context, c *cli.Context, cl *client.Client) error {
					if err := message.ValidGroup(c.Args().First()); err != nil {
						return usagef("%v", err)
					}
					if c.Int("retries") < 1 {
						return usagef("--retries %d: use 1 or more", c.Int("retries"))
					}
					results, err := cl.CreateGroup(ctx, client.GroupSpec{
						Name: c.Args().First(), RetryMaxTimes: ptr(int32(c.Int("retries"))), Disabled: c.Bool("disabled"),
					})
					return t.reportGroups(c, results, err)
				}),
			},
			{
				Name: "show", Usage: "show a consumer group's members, offsets and lag", ArgsUsage: "NAME", Flags: adminFlags(topic()),
				Action: t.admin(1, 1, "the consumer group's name", t.showConsumer),
			},
			{
				Name: "reset", Usage: "set where a consumer group goes on; stop its members first", ArgsUsage: "NAME",
				Flags: adminFlags(topic(),
					&cli.StringFlag{Name: "to", Usage: "`PLACE`: " + resetPlaces}),
				Action: t.admin(1, 1, "the consumer group's name", t.resetConsumer),
			},
		},
	}
}

type consumerView struct {
	Group   string              `json:"group"`
	Topic   string              `json:"topic"`
	Members []string            `json:"members"`
	Lag     int64               `json:"lag"`
	Queues  []consumerQueueView `json:"queues"`
}

type consumerQueueView struct {
	Group  string `json:"group"` // broker group
	Queue  int32  `json:"queue"`
	Offset int64  `json:"offset"` // next one that it will read; -1: none committed
	Max    int64  `json:"max"`
	Lag    int64  `json:"lag"`
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
	v := consumerView{Group: c.Args().First(), Topic: c.String("topic"), Members: []string{}}
	members, err := cl.ConsumerMembers(ctx, v.Group)
	if err != nil {
		return err
	}
	v.Members = append(v.Members, members...)
	if err := checkConsumerGroup(ctx, cl, v.Group, queues, members); err != nil {
		return err
	}
	for _, q := range queues {
		low, err1 := cl.MinOffset(ctx, q)
		high, err2 := cl.MaxOffset(ctx, q)
		off, found, err3 := cl.CommittedOffset(ctx, v.Group, q)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		view := consumerQueueView{Group: q.Group, Queue: int32(q.Queue), Offset: -1, Max: int64(high), Lag: int64(high - low)}
		if found {
			view.Offset, view.Lag = int64(off), int64(high-max(off, low))
		}
		v.Lag += view.Lag
		v.Queues = append(v.Queues, view)
	}
	return t.show(c, v, func(w *tabwriter.Writer) {
		row(w, "GROUP", "QUEUE", "OFFSET", "MAX", "LAG")
		for _, q := range v.Queues {
			offset := "-"
			if q.Offset >= 0 {
				offset = strconv.FormatInt(q.Offset, 10)
			}
			row(w, q.Group, q.Queue, offset, q.Max, q.Lag)
		}
		row(w, "all", "", "", "", v.Lag)
		fmt.Fprintf(w, "members: %s\n", firstNonEmpty(strings.Join(v.Members, ", "), "none"))
	})
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
	if len(members) > 0 {
		fmt.Fprintf(t.err, "%s runs (%s) and may commit over this; stop its members first\n", group, strings.Join(members, ", "))
	}
	list := make([]movedView, 0, len(queues))
	for _, q := range queues {
		m := movedView{Group: q.Group, Queue: int32(q.Queue)}
		off, err := target.in(ctx, cl, q)
		if err != nil {
			return err
		}
		if err := cl.CommitOffset(ctx, group, q, off); err != nil {
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
func ptr[T any](v T) *T { return &v }
