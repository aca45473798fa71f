package main

import (
	"cmp"
	"context"
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

// maxFound bounds what message find prints; it is kept in memory to be sorted.
const maxFound = 10000

func (t *tool) adminMessage() *cli.Command {
	return &cli.Command{
		Name: "message", Usage: "single messages",
		Subcommands: []*cli.Command{
			{
				Name: "find", Usage: "find the newest messages of a topic, by key, unique id, tag or time", ArgsUsage: "TOPIC",
				Flags: adminFlags(
					&cli.StringFlag{Name: "key", Usage: "only messages that have this `KEY`"},
					&cli.StringFlag{Name: "unique", Usage: "only messages with this unique `ID`"},
					&cli.StringFlag{Name: "tag", Usage: "only messages with this `TAG`"},
					&cli.StringFlag{Name: "from", Usage: "only messages stored at this `TIME` or later: " + timeForms},
					&cli.StringFlag{Name: "until", Usage: "only messages stored at this `TIME` or earlier"},
					&cli.IntFlag{Name: "max", Value: 64, Usage: "so many of the newest"},
				),
				Action: t.admin(1, 1, "a topic", t.findMessages),
			},
			{
				Name: "show", Usage: "show one message with all that is stored of it", ArgsUsage: "PLACE",
				Flags:  adminFlags(),
				Action: t.admin(1, 1, placeForms, t.showMessage),
			},
		},
	}
}

const (
	timeForms  = "such as 2026-11-29T10:00:00Z or 2026-11-29T10:00:00.250Z, or in Unix milliseconds"
	placeForms = "an offset message id, or TOPIC/GROUP/QUEUE@OFFSET"
)

// parseTime reads the time of a flag; an empty one is the zero time.
func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= firstMillis {
		return time.UnixMilli(n), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usagef("--%s %q: use a time %s", flag, text, timeForms)
	}
	return at, nil
}

func (t *tool) findMessages(ctx context.Context, c *cli.Context, cl *client.Client) error {
	s := client.Search{Topic: c.Args().First(), Max: c.Int("max")}
	if err := message.ValidTopic(s.Topic); err != nil {
		return usagef("%v", err)
	}
	if s.Max < 1 || s.Max > maxFound {
		return usagef("--max %d: use 1 to %d", s.Max, maxFound)
	}
	for _, f := range []struct {
		name string
		by   client.FindBy
	}{{"key", client.ByKey}, {"unique", client.ByUniqueID}, {"tag", client.ByTag}} {
		switch {
		case !c.IsSet(f.name):
		case s.Word != "":
			return usagef("--key, --unique and --tag: give one of them")
		case c.String(f.name) == "" || f.by == client.ByKey && strings.Contains(c.String(f.name), " "):
			return usagef("--%s %q: no message can have it", f.name, c.String(f.name))
		default:
			s.By, s.Word = f.by, c.String(f.name)
		}
	}
	var err error
	if s.From, err = parseTime("from", c.String("from")); err != nil {
		return err
	}
	if s.Until, err = parseTime("until", c.String("until")); err != nil {
		return err
	}
	if !s.Until.IsZero() && s.Until.Before(s.From) {
		return usagef("--until %s is before --from %s", c.String("until"), c.String("from"))
	}
	found, err := cl.Find(ctx, s)
	if err != nil {
		return err
	}
	list := make([]messageView, 0, len(found))
	for _, m := range found {
		list = append(list, viewMessage(m))
	}
	return t.show(c, list, func(w *tabwriter.Writer) {
		row(w, "STORED", "PLACE", "ID", "KEYS", "TAG", "BYTES")
		for _, v := range list {
			row(w, shownTime(v.StoreTime), v.place(), v.MessageID, strings.Join(v.Keys, " "), v.Tags, v.Bytes)
		}
	})
}

// messageView is the JSON of a message with all that is stored of it.
type messageView struct {
	shownMessage
	OffsetMessageID string `json:"offsetMessageID"`
	PhysicalOffset  int64  `json:"physicalOffset"`
	Bytes           int    `json:"bytes"` // of the body
	BornTime        int64  `json:"bornTime"`
	BornHost        string `json:"bornHost"`
	StoreHost       string `json:"storeHost"`
	ReconsumeTimes  int32  `json:"reconsumeTimes"`
	OrderKey        string `json:"orderKey,omitempty"`
	Packed          bool   `json:"packed,omitempty"` // the body is packed in a way that this program does not unpack
}

func viewMessage(m client.Message) messageView {
	return messageView{shownMessage: shownOf(m), OffsetMessageID: m.OffsetID, PhysicalOffset: int64(m.PhysicalOffset), Bytes: len(m.Body), BornTime: m.BornTime.UnixMilli(),
		BornHost: m.BornHost.String(), StoreHost: m.StoreHost.String(), ReconsumeTimes: m.ReconsumeTimes, OrderKey: m.OrderKey, Packed: m.Compressed}
}

func (s *shownMessage) place() string { return placeOf(s.Topic, s.Group, s.Queue, s.Offset) }

func placeOf(topic, group string, queue int32, offset int64) string {
	return fmt.Sprintf("%s/%s/%d@%d", topic, group, queue, offset)
}

func shownTime(millis int64) string {
	return time.UnixMilli(millis).UTC().Format("2006-01-02T15:04:05.000Z")
}

// parsePlace reads TOPIC/GROUP/QUEUE@OFFSET.
func parsePlace(text string) (q client.QueueRef, off ids.QueueOffset, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return q, 0, false
	}
	queue, offset, found := strings.Cut(parts[2], "@")
	n, err1 := strconv.ParseInt(queue, 10, 32)
	o, err2 := strconv.ParseInt(offset, 10, 64)
	q = client.QueueRef{Topic: parts[0], Group: parts[1], Queue: ids.QueueID(n)}
	return q, ids.QueueOffset(o), found && err1 == nil && err2 == nil && n >= 0 && o >= 0 && message.ValidTopic(q.Topic) == nil && q.Group != ""
}

// messageAt reads the message at a place.
func messageAt(ctx context.Context, cl *client.Client, text string) (client.Message, error) {
	if q, off, ok := parsePlace(text); ok {
		route, err := cl.Route(ctx, q.Topic)
		if err != nil {
			return client.Message{}, err
		}
		if !slices.ContainsFunc(route.Groups, func(g client.GroupRoute) bool { return g.Group == q.Group }) {
			return client.Message{}, fmt.Errorf("topic %s is not in group %s", q.Topic, q.Group)
		}
		r, err := cl.Pull(ctx, q, off, 1)
		if err != nil {
			return client.Message{}, err
		}
		if len(r.Messages) == 0 || r.Messages[0].Offset != off {
			return client.Message{}, fmt.Errorf("queue %v has no message %d: it has %d to %d, the latter not included", q, off, r.MinOffset, r.MaxOffset)
		}
		return r.Messages[0], nil
	}
	if _, _, err := message.ParseOffsetMessageID(text); err != nil {
		return client.Message{}, usagef("%q: give %s; `ledgermq admin message find TOPIC --unique ID` finds a message by its unique id", text, placeForms)
	}
	m, err := cl.ViewMessage(ctx, text)
	if err != nil {
		return m, fmt.Errorf("%w; is it a unique id? `ledgermq admin message find TOPIC --unique ID` finds those", err)
	}
	return m, nil
}

func (t *tool) showMessage(ctx context.Context, c *cli.Context, cl *client.Client) error {
	m, err := messageAt(ctx, cl, c.Args().First())
	if err != nil {
		return err
	}
	v := viewMessage(m)
	return t.show(c, v, func(w *tabwriter.Writer) {
		row(w, "place", v.place())
		row(w, "unique id", v.MessageID)
		row(w, "offset id", v.OffsetMessageID)
		row(w, "stored", fmt.Sprintf("%s by %s", shownTime(v.StoreTime), v.StoreHost))
		row(w, "sent", fmt.Sprintf("%s by %s", shownTime(v.BornTime), v.BornHost))
		row(w, "keys", strings.Join(v.Keys, " "))
		row(w, "tag", v.Tags)
		row(w, "order key", v.OrderKey)
		row(w, "repetitions", v.ReconsumeTimes)
		for _, k := range slices.Sorted(maps.Keys(v.Properties)) {
			row(w, "property "+k, v.Properties[k])
		}
		body := fmt.Sprintf("%d bytes that are no text", v.Bytes)
		if v.Body != nil {
			body = cmp.Or(*v.Body, "empty")
		}
		row(w, "body", body)
	})
}
