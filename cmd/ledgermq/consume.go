package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/client"
	"github.com/ledgermq/ledgermq/message"
)

func (t *tool) consumeCommand() *cli.Command {
	return &cli.Command{
		Name: "consume", Usage: "print the messages of a topic", ArgsUsage: "TOPIC",
		Flags: withEnv(
			namesrvFlag(),
			&cli.StringFlag{Name: "group", Usage: "consume for this consumer `GROUP`: start where it is, and commit what was printed"},
			&cli.StringFlag{Name: "from", Value: "first", Usage: "where a group without an offset, or no group, starts: first or last"},
			&cli.StringFlag{Name: "tags", Value: "*", Usage: "only messages with these tags: `A || B`"},
			&cli.IntFlag{Name: "count", Usage: "end after so many messages; 0: no limit"},
			&cli.DurationFlag{Name: "idle", Usage: "end after so long without a message; 0: never"},
			jsonFlag(),
		),
		Action: t.action(func(c *cli.Context) error {
			if err := wantArgs(c, 1, 1, "a topic"); err != nil {
				return err
			}
			if err := message.ValidTopic(c.Args().First()); err != nil {
				return usagef("%v", err)
			}
			if group := c.String("group"); group != "" {
				if err := message.ValidGroup(group); err != nil {
					return usagef("--group: %v", err)
				}
			}
			switch {
			case c.String("from") != "first" && c.String("from") != "last":
				return usagef("--from %q: use first or last", c.String("from"))
			case c.Int("count") < 0:
				return usagef("--count %d is negative", c.Int("count"))
			case c.Duration("idle") < 0:
				return usagef("--idle %v is negative", c.Duration("idle"))
			}
			return t.consume(c)
		}),
	}
}

// consume prints messages until the count, the idle time or the context ends it. With a group it commits what it has printed.
func (t *tool) consume(c *cli.Context) error {
	cl, err := newClient(c)
	if err != nil {
		return err
	}
	defer cl.Close()
	group := c.String("group")
	opts := []client.SubscribeOption{client.WithTags(c.String("tags"))}
	if c.String("from") == "last" {
		opts = append(opts, client.FromEnd())
	}
	begin, cancel := context.WithTimeout(c.Context, toolTimeout)
	defer cancel()
	consumer, err := cl.Subscribe(begin, firstNonEmpty(group, "TOOLS_CONSUMER"), c.Args().First(), opts...)
	if err != nil {
		return explain(c, err)
	}
	defer consumer.Close()
	defer t.tellWaiting(consumer.Waiting)()
	left := c.Int("count")
	for {
		messages, err := poll(c.Context, consumer, c.Duration("idle"))
		if err != nil || messages == nil {
			return explain(c, err)
		}
		for _, m := range messages {
			if err := t.printMessage(t.out, m, c.Bool("json")); err != nil {
				return err
			}
			if left--; left == 0 {
				return commitUpTo(c.Context, cl, group, m)
			}
		}
		if group == "" {
			continue
		}
		if err := commit(c.Context, consumer); err != nil {
			return err
		}
	}
}

// waitingEvery is how often consume looks whether it waits for a group; a failover is mostly over before.
const waitingEvery = time.Second

// tellWaiting says on standard error for which broker groups a command waits, once per change, until the function that it
// returns is called.
func (t *tool) tellWaiting(waiting func() map[string]error) (stop func()) {
	end := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(waitingEvery)
		defer tick.Stop()
		told := map[string]string{}
		for {
			select {
			case <-tick.C:
				told = t.tellChanges(told, waiting())
			case <-end:
				return
			}
		}
	})
	return func() { close(end); watch.Wait() }
}

// tellChanges says what differs from what was told, and returns what is told now.
func (t *tool) tellChanges(told map[string]string, waiting map[string]error) map[string]string {
	now := map[string]string{}
	for _, group := range sortedKeys(waiting) {
		now[group] = waitingText(group, waiting[group])
		if now[group] != told[group] {
			fmt.Fprintf(t.err, "waiting: %s\n", now[group])
		}
	}
	for _, group := range sortedKeys(told) {
		if now[group] == "" {
			fmt.Fprintf(t.err, "going on: group %s is there again\n", group)
		}
	}
	return now
}

func waitingText(group string, err error) string {
	switch {
	case errors.Is(err, client.ErrNoMaster):
		return fmt.Sprintf("group %s has no master", group)
	case errors.Is(err, client.ErrTopicNotFound):
		return fmt.Sprintf("the name server knows no broker of group %s that has the topic", group)
	case errors.Is(err, client.ErrNoNamesrv):
		return fmt.Sprintf("group %s: no name server answers", group)
	}
	return fmt.Sprintf("group %s: %s", group, oneLine(err))
}

// reader is a consumer as poll needs it.
type reader interface {
	Poll(ctx context.Context) ([]client.Message, error)
	Waiting() map[string]error
}

// idleLooks is how often poll looks in an idle time whether a group cannot be read.
const idleLooks = 20

// poll returns nil without an error when it is time to end: by the user, or after idle without a message, 0 for never. That time does not run
// while a group cannot be read, which is an error when it lasts for toolTimeout, or for idle when that is longer.
func poll(ctx context.Context, k reader, idle time.Duration) ([]client.Message, error) {
	quiet := time.Now()  // since when all groups can be read and no message has come
	var closed time.Time // since when not all can be read
	for {
		look, cancel := ctx, context.CancelFunc(func() {})
		if idle > 0 {
			look, cancel = context.WithTimeout(ctx, max(min(idle, toolTimeout)/idleLooks, time.Millisecond))
		}
		messages, err := k.Poll(look)
		over := look.Err() != nil
		cancel()
		switch {
		case len(messages) > 0:
			return messages, nil
		case ctx.Err() != nil:
			return nil, nil
		case !over || !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
		now, waiting := time.Now(), k.Waiting()
		switch {
		case len(waiting) == 0 && !closed.IsZero():
			closed, quiet = time.Time{}, now
		case len(waiting) == 0 && now.Sub(quiet) >= idle:
			return nil, nil
		case len(waiting) == 0:
		case closed.IsZero():
			closed = now
		case now.Sub(closed) >= max(toolTimeout, idle):
			return nil, waitedFor(now.Sub(closed), waiting)
		}
	}
}

// waitedFor tells for which groups it was in vain.
func waitedFor(d time.Duration, waiting map[string]error) error {
	var list []string
	for _, group := range sortedKeys(waiting) {
		list = append(list, waitingText(group, waiting[group]))
	}
	return fmt.Errorf("waited %v without a message: %s", d.Round(time.Second), strings.Join(list, "; "))
}

// commitUpTo commits what was printed when the count ends inside a batch.
func commitUpTo(ctx context.Context, cl *client.Client, group string, last client.Message) error {
	if group == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTimeout)
	defer cancel()
	err := cl.CommitOffset(ctx, group, client.QueueRef{Group: last.Group, Topic: last.Topic, Queue: last.Queue}, last.Offset+1)
	if errors.Is(err, client.ErrResetPending) {
		return nil // somebody has said meanwhile where the group goes on
	}
	return err
}

func commit(ctx context.Context, consumer *client.Consumer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTimeout)
	defer cancel()
	return consumer.Commit(ctx)
}

// firstMessage sends a message and reads it back, to show that the cluster works.
func (t *tool) firstMessage(ctx context.Context, plan devPlan) error {
	const topic = "Hello"
	cl, err := client.New(plan.namesrvs())
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: topic, ReadQueues: 4}); err != nil {
		return err
	}
	began := time.Now()
	sent, err := cl.Producer().Send(ctx, client.Message{Topic: topic, Body: []byte("Hello from LedgerMQ")})
	if err != nil {
		return err
	}
	took := time.Since(began)
	q := client.QueueRef{Group: sent.Group, Topic: topic, Queue: sent.Queue}
	var got client.PullResult
	err = waitReady(ctx, func() error {
		var err error
		if got, err = cl.Pull(ctx, q, sent.Offset, 1); err != nil {
			return err
		}
		if len(got.Messages) == 0 {
			return errors.New("it was answered OK and is not there")
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.out, "A first message, sent in %v and consumed from %v@%d: %s\n",
		took.Round(10*time.Microsecond), q, sent.Offset, got.Messages[0].Body)
	return err
}
