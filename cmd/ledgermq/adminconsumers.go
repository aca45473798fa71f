package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
)

// consumerRow is a consumer group in the list of all.
type consumerRow struct {
	Name         string   `json:"name"`
	Members      []string `json:"members"`
	Topics       []string `json:"topics"`        // in which it has an offset
	Lag          *int64   `json:"lag,omitempty"` // in all of these; absent: it is not known
	Broadcasting bool     `json:"broadcasting"`
	Disabled     bool     `json:"disabled"`
	Unsure       bool     `json:"unsure,omitempty"` // there may be further members, a broker group could not tell
}

func viewConsumer(g *client.ConsumerGroup) consumerRow {
	r := consumerRow{Name: g.Name, Members: []string{}, Topics: append([]string{}, g.Topics...), Lag: g.Lag, Broadcasting: client.Broadcasts(g.Members), Disabled: g.Disabled, Unsure: g.Unsure}
	for _, m := range g.Members {
		r.Members = append(r.Members, m.ClientID)
	}
	return r
}

func (r *consumerRow) state() string {
	switch {
	case r.Disabled:
		return "disabled"
	case len(r.Members) == 0 && r.Unsure:
		return "not known"
	case len(r.Members) == 0:
		return "no member"
	case r.Broadcasting:
		return "broadcasts"
	}
	return "consumes"
}

func (r *consumerRow) memberCount() string {
	if r.Unsure {
		return fmt.Sprintf("%d or more", len(r.Members))
	}
	return strconv.Itoa(len(r.Members))
}

func (t *tool) listConsumers(ctx context.Context, c *cli.Context, cl *client.Client) error {
	groups, err := cl.ConsumerGroups(ctx)
	if len(groups) == 0 && err != nil {
		return err
	}
	list := []consumerRow{}
	for i := range groups {
		if c.Bool("all") || !message.IsSystemGroup(groups[i].Name) {
			list = append(list, viewConsumer(&groups[i]))
		}
	}
	return errors.Join(t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "CONSUMER GROUP", "MEMBERS", "LAG", "STATE", "TOPICS")
		for _, r := range list {
			topics := slices.DeleteFunc(slices.Clone(r.Topics), message.IsRetryTopic)
			row(w, r.Name, r.memberCount(), lagText(r.Lag), r.state(), strings.Join(topics, " "))
		}
	}), err)
}

// consumerGoing is what goes with a consumer group.
type consumerGoing struct {
	Name          string   `json:"name"`
	Topics        []string `json:"topics"`        // in which it has an offset
	Lag           *int64   `json:"lag,omitempty"` // what it has not consumed there; absent: it is not known
	Retries       int64    `json:"retries"`       // messages in its retry topic
	DeadLetters   int64    `json:"deadLetters"`
	DeletesTopics bool     `json:"deletesTopics"` // these two go as well
}

// deleteConsumer deletes a consumer group, or shows what would go with it. A member that runs would make it anew with its next heartbeat, and
// begin where a new group does: so it is refused while there is one.
func (t *tool) deleteConsumer(ctx context.Context, c *cli.Context, cl *client.Client) error {
	name := c.Args().First()
	if err := message.ValidGroup(name); err != nil {
		return usagef("%v", err)
	}
	if message.IsSystemGroup(name) {
		return usagef("%s is a group of the brokers' own: they make it again", name)
	}
	g, there, err := cl.ConsumerGroup(ctx, name)
	if err != nil {
		return err
	}
	retries, retryTopic, err1 := messagesIn(ctx, cl, message.RetryTopic(name))
	dead, deadTopic, err2 := messagesIn(ctx, cl, message.DLQTopic(name))
	switch {
	case err1 != nil || err2 != nil:
		return errors.Join(err1, err2)
	case !there && !(c.Bool("topics") && (retryTopic || deadTopic)):
		return noConsumerGroup(name)
	}
	r := viewConsumer(&g)
	if len(r.Members) > 0 {
		return fmt.Errorf("consumer group %s has %s, %s: stop them first, or they make it anew, and begin where a new group does", name, countOf(len(r.Members), "member"), strings.Join(r.Members, ", "))
	}
	if !c.Bool("yes") {
		v := consumerGoing{Name: name, Topics: r.Topics, Lag: g.Lag, Retries: retries, DeadLetters: dead, DeletesTopics: c.Bool("topics")}
		return errors.Join(t.show(c, v, func(w *tabwriter.Writer) { v.write(w) }), fmt.Errorf("nothing was changed: say --yes to delete consumer group %s", name))
	}
	results, err := cl.DeleteConsumerGroup(ctx, name)
	if err != nil || !c.Bool("topics") {
		return t.reportGroups(c, results, err)
	}
	var faults []error
	if retryTopic {
		faults = append(faults, deleteTopicOf(ctx, cl, name, message.RetryTopic(name)))
	}
	if deadTopic {
		faults = append(faults, deleteTopicOf(ctx, cl, name, message.DLQTopic(name)))
	}
	return t.reportGroups(c, results, errors.Join(faults...))
}

// deleteTopicOf deletes a topic of a consumer group that is deleted.
func deleteTopicOf(ctx context.Context, cl *client.Client, group, topic string) error {
	if _, err := cl.DeleteTopic(ctx, topic); err != nil {
		return fmt.Errorf("consumer group %s is deleted, but not topic %s: %w", group, topic, err)
	}
	return nil
}

func (v *consumerGoing) write(w *tabwriter.Writer) {
	stay := ", stay"
	if v.DeletesTopics {
		stay = ""
	}
	row(w, "consumer group", v.Name)
	row(w, "offsets in", strings.Join(v.Topics, " "))
	row(w, "not consumed there", lagText(v.Lag))
	row(w, "in its retry topic", fmt.Sprintf("%d%s", v.Retries, stay))
	row(w, "dead letters", fmt.Sprintf("%d%s", v.DeadLetters, stay))
}

// messagesIn counts the messages of a topic in all broker groups, and tells whether it exists.
func messagesIn(ctx context.Context, cl *client.Client, topic string) (n int64, exists bool, err error) {
	uses, err := cl.TopicUse(ctx, topic)
	if errors.Is(err, client.ErrTopicNotFound) {
		return 0, false, nil
	}
	for _, u := range uses {
		n += u.Messages
	}
	return n, true, err
}
