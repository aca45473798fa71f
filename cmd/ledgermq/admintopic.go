package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/broker"
	"github.com/ledgermq/ledgermq/client"
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
