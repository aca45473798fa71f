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
					&cli.BoolFlag{Name: "yes", Usage: "take queues away, although nobody reads their messages any more"},
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
				Flags:  adminFlags(&cli.BoolFlag{Name: "yes", Usage: "do it; without it only what would go is shown"}),
				Action: t.admin(1, 1, "the topic's name", t.deleteTopic),
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
	groups := splitList(c.String("groups"))
	known, err := knownGroups(ctx, cl, groups)
	switch {
	case err != nil:
		return err
	case len(known) == 0:
		return errors.New("no broker group has registered")
	case len(groups) == 0:
		groups = known
	}
	// What is not given stays as it is, and in a group that lacks the topic becomes as it is in another one.
	like := client.TopicSpec{Name: name, ReadQueues: int32(c.Int("queues")), Perm: perm}
	specs, faults := make([]client.TopicSpec, len(groups)), make([]error, len(groups))
	for i := len(groups) - 1; i >= 0; i-- {
		now, found, err := cl.TopicIn(ctx, groups[i], name)
		if specs[i], faults[i] = now, err; !found {
			continue
		}
		like = now
		if n := int32(c.Int("queues")); c.IsSet("queues") && n < now.ReadQueues && !c.Bool("yes") {
			return usagef("--queues %d: topic %s has %d queues in group %s, and nobody would read what is in the others any more; give --yes if that is wanted", n, name, now.ReadQueues, groups[i])
		}
	}
	var results []client.GroupResult
	for i, g := range groups {
		spec := specs[i]
		if spec.Name == "" {
			spec = like
		}
		if c.IsSet("queues") {
			spec.ReadQueues, spec.WriteQueues = int32(c.Int("queues")), int32(c.Int("queues"))
		}
		if c.IsSet("perm") {
			spec.Perm = perm
		}
		if c.IsSet("order") {
			spec.Order = c.Bool("order")
		}
		spec.Groups = []string{g}
		one := []client.GroupResult{{Group: g, Err: faults[i]}}
		if faults[i] == nil {
			if one, faults[i] = cl.CreateTopic(ctx, spec); len(one) == 0 {
				return faults[i]
			}
		}
		results = append(results, one...)
	}
	return t.reportGroups(c, results, errors.Join(faults...))
}

// deleteTopic deletes a topic, or shows what would go with it.
func (t *tool) deleteTopic(ctx context.Context, c *cli.Context, cl *client.Client) error {
	name := c.Args().First()
	if c.Bool("yes") {
		if _, err := cl.Route(ctx, name); err != nil {
			return err
		}
		results, err := cl.DeleteTopic(ctx, name)
		return t.reportGroups(c, results, err)
	}
	uses, err := cl.TopicUse(ctx, name)
	if len(uses) == 0 && err != nil {
		return err
	}
	shown := t.show(c, uses, func(w *tabwriter.Writer) {
		row(w, "GROUP", "QUEUES", "MESSAGES", "CONSUMER GROUPS")
		for _, u := range uses {
			row(w, u.Group, u.Queues, u.Messages, strings.Join(u.ConsumerGroups, " "))
		}
	})
	return errors.Join(shown, err, fmt.Errorf("nothing was changed: say --yes to delete topic %s with all its messages", name))
}

func (t *tool) listTopics(ctx context.Context, c *cli.Context, cl *client.Client) error {
	topics, err := topicNames(ctx, cl, c.Bool("all"))
	if err != nil {
		return err
	}
	if cluster, err := cl.Cluster(ctx); err == nil {
		if hint := hintOf(cluster); hint != "" {
			fmt.Fprintln(t.err, hint)
		}
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
				slices.ContainsFunc(cluster.Groups, func(g client.GroupInfo) bool {
					return g.Group == name || g.Cluster == name || message.ReplyTopic(g.Cluster) == name
				})
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
				Name: "show", Usage: "show a consumer group's members, offsets and lag", ArgsUsage: "NAME", Flags: adminFlags(topic()),
				Action: t.admin(1, 1, "the consumer group's name", t.showConsumer),
			},
			{
				Name: "reset", Usage: "set where a consumer group goes on, also while its members run", ArgsUsage: "NAME",
				Flags: adminFlags(topic(),
					&cli.StringFlag{Name: "to", Usage: "`PLACE`: " + resetPlaces}),
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
	Lag     int64               `json:"lag"`
	Queues  []consumerQueueView `json:"queues"`

	Subscriptions map[string]map[string]string `json:"subscriptions"` // of each member: topic to filter
	Mixed         bool                         `json:"mixed"`         // they differ
}

type consumerQueueView struct {
	Group  string `json:"group"` // broker group
	Queue  int32  `json:"queue"`
	Offset int64  `json:"offset"` // next one that it will read; -1: none committed
	Max    int64  `json:"max"`
	Lag    int64  `json:"lag"`

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
	members, err := cl.Members(ctx, v.Group)
	if err != nil {
		return err
	}
	for i, m := range members {
		v.Members = append(v.Members, m.ClientID)
		v.Subscriptions[m.ClientID] = m.Subscriptions
		v.Mixed = v.Mixed || !maps.Equal(m.Subscriptions, members[max(i-1, 0)].Subscriptions)
	}
	if err := checkConsumerGroup(ctx, cl, v.Group, queues, v.Members); err != nil {
		return err
	}
	progress, err := cl.Progress(ctx, v.Group, v.Topic)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, p := range progress {
		view := consumerQueueView{Group: p.Queue.Group, Queue: int32(p.Queue.Queue), Offset: -1, Max: int64(p.Max), Lag: p.Lag()}
		if p.Committed {
			view.Offset = int64(p.Offset)
		}
		if !p.Oldest.IsZero() {
			view.OldestMillis = new(max(0, now.Sub(p.Oldest).Milliseconds()))
		}
		v.Lag += view.Lag
		v.Queues = append(v.Queues, view)
	}
	return t.show(c, v, func(w *tabwriter.Writer) { v.write(w) })
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
		row(w, q.Group, q.Queue, offset, q.Max, q.Lag, oldest)
	}
	row(w, "all", "", "", "", v.Lag, "")
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
