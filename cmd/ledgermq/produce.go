package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
)

func (t *tool) produceCommand() *cli.Command {
	return &cli.Command{
		Name: "produce", Usage: "send messages: each BODY, or each line of standard input that is not empty", ArgsUsage: "TOPIC [BODY…]",
		Flags: withEnv(
			namesrvFlag(),
			&cli.StringFlag{Name: "tag", Usage: "`TAG` of every message"},
			&cli.StringFlag{Name: "key", Usage: "`KEY` to find the messages by"},
			&cli.StringFlag{Name: "order-key", Usage: "messages of one `KEY` keep their order"},
			&cli.IntFlag{Name: "repeat", Value: 1, Usage: "send every message so often"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "how long to try each message"},
			jsonFlag(),
		),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 1, -1, "a topic and message bodies"); err != nil {
				return err
			}
			if err := message.ValidTopic(c.Args().First()); err != nil {
				return usagef("%v", err)
			}
			switch {
			case c.Int("repeat") < 1:
				return usagef("--repeat %d: use 1 or more", c.Int("repeat"))
			case c.Duration("timeout") <= 0:
				return usagef("--timeout %v: use more than 0", c.Duration("timeout"))
			}
			return t.produce(c)
		}),
	}
}

// produce sends what it is given, one after the other, and stops at the first message that was not stored.
func (t *tool) produce(c *cli.Context) error {
	cl, err := newClient(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	p := cl.Producer()
	m := client.Message{Topic: c.Args().First(), Tags: c.String("tag"), OrderKey: c.String("order-key")}
	if key := c.String("key"); key != "" {
		m.Keys = strings.Fields(key)
	}
	send := func(body []byte) error {
		for range c.Int("repeat") {
			m.Body = body
			r, err := sendOne(c.Context, p, m, c.Duration("timeout"))
			if err != nil {
				return explain(c, err)
			}
			if err := t.printReceipt(r, c.Bool("json")); err != nil {
				return err
			}
		}
		return nil
	}
	if bodies := c.Args().Tail(); len(bodies) > 0 {
		for _, b := range bodies {
			if err := send([]byte(b)); err != nil {
				return err
			}
		}
		return nil
	}
	if f, ok := t.in.(*os.File); ok && isTerminal(f) {
		fmt.Fprintln(t.err, "each line becomes a message; Ctrl-D ends")
	}
	lines := bufio.NewScanner(t.in)
	lines.Buffer(nil, message.MaxBody)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		if err := send(lines.Bytes()); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("a line has more than %d bytes, which no broker takes", message.MaxBody)
	}
	return lines.Err()
}

func sendOne(ctx context.Context, p *client.Producer, m client.Message, limit time.Duration) (client.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return p.Send(ctx, m)
}

// receiptView is the JSON of a sent message.
type receiptView struct {
	MessageID       string `json:"messageID"`
	OffsetMessageID string `json:"offsetMessageID"`
	Group           string `json:"group"`
	Queue           int32  `json:"queue"`
	Offset          int64  `json:"offset"`
}

func (t *tool) printReceipt(r client.Receipt, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(t.out).Encode(receiptView{r.MessageID, r.OffsetMessageID, r.Group, int32(r.Queue), int64(r.Offset)})
	}
	_, err := fmt.Fprintf(t.out, "%s %s/%d@%d\n", r.MessageID, r.Group, r.Queue, r.Offset)
	return err
}

// shownMessage is the JSON of a consumed message. Body is text when it is valid UTF-8, else base64 in BodyBytes.
type shownMessage struct {
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	Queue      int32             `json:"queue"`
	Offset     int64             `json:"offset"`
	MessageID  string            `json:"messageID"`
	Keys       []string          `json:"keys,omitempty"`
	Tags       string            `json:"tags,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
	StoreTime  int64             `json:"storeTime"`
	Body       *string           `json:"body,omitempty"`
	BodyBytes  []byte            `json:"bodyBytes,omitempty"`
}

func (t *tool) printMessage(w io.Writer, m client.Message, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintf(w, "%s/%d@%d %s\n", m.Group, m.Queue, m.Offset, m.Body)
		return err
	}
	return json.NewEncoder(w).Encode(shownOf(m))
}

func shownOf(m client.Message) shownMessage {
	s := shownMessage{
		Topic: m.Topic, Group: m.Group, Queue: int32(m.Queue), Offset: int64(m.Offset), MessageID: m.ID, Keys: m.Keys,
		Tags: m.Tags, Properties: m.Properties, StoreTime: m.StoreTime.UnixMilli(),
	}
	if text := string(m.Body); strings.ToValidUTF8(text, "") == text {
		s.Body = &text
	} else {
		s.BodyBytes = m.Body
	}
	return s
}
