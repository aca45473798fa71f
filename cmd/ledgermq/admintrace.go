package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
)

// maxTraced bounds how many messages of each topic a trace looks at.
const maxTraced = 1000

func (t *tool) adminTrace() *cli.Command {
	return &cli.Command{
		Name: "trace", Usage: "show the way of one message: where it is, who is past it, its repetitions, and what clients told of it", ArgsUsage: "ID",
		Flags: adminFlags(
			&cli.StringFlag{Name: "topic", Usage: "the message's `TOPIC`; needed for a unique id of which the trace topic knows nothing"},
			&cli.StringFlag{Name: "trace-topic", Value: message.TraceTopic, Usage: "the `TOPIC` to which clients send their traces"},
		),
		Action: t.admin(1, 1, "a unique id, an offset message id, or TOPIC/GROUP/QUEUE@OFFSET", t.traceMessage),
	}
}

// traceView is the way of one message.
type traceView struct {
	ID        string          `json:"id"` // unique id
	Topic     string          `json:"topic"`
	Stored    []tracedMessage `json:"stored"`    // more than one when the sender repeated a send whose outcome it did not learn
	Waiting   []tracedWait    `json:"waiting"`   // for its time, or as a repetition for its delay
	Consumers []tracedGroup   `json:"consumers"` // consumer groups that have committed in one of its queues, or have it in their retries or dead letters
	Records   []traceRecord   `json:"records"`   // what clients told, in the order of time
	Unread    int             `json:"unread,omitempty"`
}

type tracedMessage struct {
	Place           string `json:"place"`
	OffsetMessageID string `json:"offsetMessageID"`
	StoreTime       int64  `json:"storeTime"`
	ReconsumeTimes  int32  `json:"reconsumeTimes"`
}

func tracedOf(m client.Message) tracedMessage {
	s := shownOf(m)
	return tracedMessage{Place: s.place(), OffsetMessageID: m.OffsetID, StoreTime: m.StoreTime.UnixMilli(), ReconsumeTimes: m.ReconsumeTimes}
}

// tracedWait is the message where it waits to be put into a topic.
type tracedWait struct {
	Topic          string `json:"topic"`
	Group          string `json:"group"` // broker group
	StoreTime      int64  `json:"storeTime"`
	Due            int64  `json:"due"`
	ReconsumeTimes int32  `json:"reconsumeTimes"`
}

type tracedGroup struct {
	Group       string           `json:"group"`
	Progress    []tracedProgress `json:"progress"`
	Retries     []tracedMessage  `json:"retries"`
	DeadLetters []tracedMessage  `json:"deadLetters"`
}

// tracedProgress is how far a consumer group is in the queue of one stored message.
type tracedProgress struct {
	Place  string `json:"place"`
	Offset int64  `json:"offset"` // next one that it will read
	Past   bool   `json:"past"`
}

type traceRecord struct {
	Kind      string `json:"kind"`
	Time      int64  `json:"time,omitempty"`
	Group     string `json:"group,omitempty"`
	Client    string `json:"client,omitempty"`
	Request   string `json:"request,omitempty"`
	Retry     int    `json:"retry,omitempty"`
	CostMilli int64  `json:"costMillis,omitempty"`
	Success   *bool  `json:"success,omitempty"`
	Result    string `json:"result,omitempty"`
	State     string `json:"state,omitempty"`
	Checked   bool   `json:"checked,omitempty"`
}

func (t *tool) traceMessage(ctx context.Context, c *cli.Context, cl *client.Client) error {
	id, topic := c.Args().First(), c.String("topic")
	for flag, name := range map[string]string{"topic": topic, "trace-topic": c.String("trace-topic")} {
		if err := message.ValidTopic(name); err != nil && (name != "" || flag != "topic") {
			return usagef("--%s: %v", flag, err)
		}
	}
	// A place and an offset id lead to the message, which has the unique id and the topic.
	if topic == "" {
		if m, err := messageAt(ctx, cl, id); err == nil {
			id, topic = cmp.Or(m.ID, id), m.Topic
		} else if _, _, place := parsePlace(id); place {
			return err
		}
	}
	records, unread, err := findTrace(ctx, cl, c.String("trace-topic"), id)
	if err != nil {
		return err
	}
	for _, r := range records {
		topic = cmp.Or(topic, r.Topic)
	}
	if topic == "" {
		return fmt.Errorf("the trace topic knows nothing of %s, and it is no offset message id: give the message's topic with --topic", id)
	}
	v := traceView{ID: id, Topic: topic, Stored: []tracedMessage{}, Waiting: []tracedWait{}, Consumers: []tracedGroup{}, Records: viewRecords(records), Unread: unread}
	stored, err := cl.Find(ctx, client.Search{Topic: topic, By: client.ByUniqueID, Word: id, Max: maxTraced})
	var unknown error // no such topic
	if errors.Is(err, client.ErrTopicNotFound) {
		unknown, err = err, nil
	}
	if err != nil {
		return err
	}
	for _, m := range stored {
		v.Stored = append(v.Stored, tracedOf(m))
	}
	if v.Consumers, err = traceConsumers(ctx, cl, id, stored); err != nil {
		return err
	}
	waiting, err := cl.Waiting(ctx, id)
	if err != nil {
		return err
	}
	for _, m := range waiting {
		v.Waiting = append(v.Waiting, tracedWait{m.Topic, m.Group, m.Stored, m.Due, m.Reconsumed})
	}
	// Of a topic that was deleted since, clients or the messages that wait may tell still; without them it is taken for a slip of the pen.
	if unknown != nil && !slices.ContainsFunc(records, func(r client.TraceRecord) bool { return r.Topic == topic }) &&
		!slices.ContainsFunc(waiting, func(m client.Waiting) bool { return m.Topic == topic }) {
		return unknown
	}
	if len(v.Stored)+len(v.Waiting)+len(v.Consumers)+len(v.Records) == 0 {
		return fmt.Errorf("no message of topic %s has the unique id %s, and the trace topic knows nothing of it", topic, id)
	}
	return t.show(c, v, func(w *tabwriter.Writer) { writeTrace(w, &v) })
}

// findUnique finds the messages of a topic with a unique id; none when there is no such topic.
func findUnique(ctx context.Context, cl *client.Client, topic, id string) ([]client.Message, error) {
	list, err := cl.Find(ctx, client.Search{Topic: topic, By: client.ByUniqueID, Word: id, Max: maxTraced})
	if errors.Is(err, client.ErrTopicNotFound) {
		return nil, nil
	}
	return list, err
}

// findTrace finds what clients told of a message, in the order of time, and how many records in the same messages cannot be read.
func findTrace(ctx context.Context, cl *client.Client, topic, id string) (list []client.TraceRecord, unread int, err error) {
	found, err := cl.Find(ctx, client.Search{Topic: topic, By: client.ByKey, Word: id, Max: maxTraced})
	if errors.Is(err, client.ErrTopicNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	groups := map[string]string{} // of a request: what ends a consumption does not tell it in all versions
	for _, m := range found {
		records, bad := client.ParseTrace(m.Body)
		unread += bad
		for _, r := range records {
			if r.Request != "" && r.Group != "" {
				groups[r.Request] = r.Group
			}
			if r.ID == id {
				list = append(list, r)
			}
		}
	}
	for i := range list {
		list[i].Group = cmp.Or(list[i].Group, groups[list[i].Request])
	}
	slices.SortStableFunc(list, func(a, b client.TraceRecord) int { return a.Time.Compare(b.Time) })
	return list, unread, nil
}

func viewRecords(records []client.TraceRecord) []traceRecord {
	list := []traceRecord{}
	for _, r := range records {
		v := traceRecord{Kind: r.Kind, Group: r.Group, Client: r.Client, Request: r.Request, Retry: r.Retry, CostMilli: r.Cost.Milliseconds(), Result: r.Result, State: r.State, Checked: r.Checked}
		if !r.Time.IsZero() {
			v.Time = r.Time.UnixMilli()
		}
		if r.Kind == "Pub" || r.Kind == "SubAfter" || r.Kind == "Recall" {
			v.Success = new(r.Success)
		}
		list = append(list, v)
	}
	return list
}

// traceConsumers tells of each consumer group how far it is in the queues of the stored messages, and which repetitions and dead letters of them it has.
// A group is known by its retry topic.
func traceConsumers(ctx context.Context, cl *client.Client, id string, stored []client.Message) ([]tracedGroup, error) {
	topics, err := cl.TopicList(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(topics)
	list := []tracedGroup{}
	for _, topic := range topics {
		group, ok := message.GroupOfRetryTopic(topic)
		if !ok {
			continue
		}
		g := tracedGroup{Group: group, Progress: []tracedProgress{}, Retries: []tracedMessage{}, DeadLetters: []tracedMessage{}}
		for _, m := range stored {
			off, found, err := cl.CommittedOffset(ctx, group, client.QueueRef{Group: m.Group, Topic: m.Topic, Queue: m.Queue})
			if err != nil {
				return nil, fmt.Errorf("progress of %s: %w", group, err)
			}
			if found {
				g.Progress = append(g.Progress, tracedProgress{Place: tracedOf(m).Place, Offset: int64(off), Past: off > m.Offset})
			}
		}
		for _, of := range []struct {
			topic string
			to    *[]tracedMessage
		}{{topic, &g.Retries}, {message.DLQTopic(group), &g.DeadLetters}} {
			if !slices.Contains(topics, of.topic) {
				continue
			}
			again, err := findUnique(ctx, cl, of.topic, id)
			if err != nil {
				return nil, err
			}
			for _, m := range again {
				*of.to = append(*of.to, tracedOf(m))
			}
		}
		if len(g.Progress)+len(g.Retries)+len(g.DeadLetters) > 0 {
			list = append(list, g)
		}
	}
	return list, nil
}

func writeTrace(w *tabwriter.Writer, v *traceView) {
	fmt.Fprintf(w, "%s of topic %s\n", v.ID, v.Topic)
	row(w, "TIME", "WHAT", "WHO", "DETAIL")
	for _, m := range v.Stored {
		row(w, shownTime(m.StoreTime), "stored", "", m.Place)
	}
	if len(v.Stored) == 0 && len(v.Waiting) == 0 {
		row(w, "", "not stored, or no longer there", "", "")
	}
	for _, m := range v.Waiting {
		what, who := "waits", ""
		if group, retry := message.GroupOfRetryTopic(m.Topic); retry {
			what, who = fmt.Sprintf("waits, repetition %d", m.ReconsumeTimes), group
		}
		row(w, shownTime(m.StoreTime), what, who, fmt.Sprintf("for %s/%s until %s", m.Topic, m.Group, shownTime(m.Due)))
	}
	for _, g := range v.Consumers {
		for _, p := range g.Progress {
			what := "not yet past"
			if p.Past {
				what = "past"
			}
			row(w, "", what, g.Group, fmt.Sprintf("%s, goes on at %d", p.Place, p.Offset))
		}
		for _, m := range g.Retries {
			row(w, shownTime(m.StoreTime), fmt.Sprintf("repetition %d", m.ReconsumeTimes), g.Group, m.Place)
		}
		for _, m := range g.DeadLetters {
			row(w, shownTime(m.StoreTime), "dead letter", g.Group, m.Place)
		}
	}
	for _, r := range v.Records {
		when := ""
		if r.Time != 0 {
			when = shownTime(r.Time)
		}
		row(w, when, r.Kind, r.Group, strings.Join(r.details(), ", "))
	}
	if v.Unread > 0 {
		fmt.Fprintf(w, "%s in the trace topic cannot be read\n", countOf(v.Unread, "record"))
	}
}

// details are what the table tells of a record.
func (r *traceRecord) details() (list []string) {
	add := func(ok bool, format string, args ...any) {
		if ok {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(r.Success != nil && *r.Success, "ok")
	add(r.Success != nil && !*r.Success, "failed")
	add(r.Result != "" && r.Result != "success" && r.Result != "failed", "%s", r.Result)
	add(r.State != "", "%s", r.State)
	add(r.Checked, "after a check")
	add(r.Retry > 0, "repetition %d", r.Retry)
	add(r.CostMilli > 0, "%d ms", r.CostMilli)
	add(r.Client != "", "by %s", r.Client)
	return list
}
