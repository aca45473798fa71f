package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ledgermq/ledgermq/remoting"
)

// ErrTooLate: the message was delivered, or is about to be.
var ErrTooLate = errors.New("too late to recall it")

// Recall takes back a message with a time that is still pending; r is what its Send returned, with a RecallHandle. When the error is nil it will
// never be delivered. It asks again until ctx ends where an answer is not the last word. ErrTooLate, wrapped, says that the message was or will be
// delivered; ErrUnknown that nobody can tell: an answer was lost.
func (p *Producer) Recall(ctx context.Context, topic string, r Receipt) error {
	c := p.c
	ctx, cancel := c.within(ctx)
	defer cancel()
	q := QueueRef{Group: r.Group, Topic: topic}
	req := remoting.NewRequest(remoting.RecallMessage)
	req.Set("producerGroup", p.group)
	req.Set("topic", topic)
	req.Set("recallHandle", r.RecallHandle)
	req.Set("bname", r.Group)
	var last error
	maybe := false // an earlier try may have recalled it
	for wait, try := c.newBackoff(), 0; ; try++ {
		addr, err := c.masterOf(ctx, q)
		if err == nil {
			var resp *remoting.Command
			resp, err = c.askOnce(ctx, addr, req)
			if resp != nil {
				c.heard(r.Group, addr, resp)
			}
			var code *CodeError
			switch {
			case err == nil:
				return nil
			case errors.As(err, &code) && !code.passes():
				if code.Code != remoting.IllegalOperation {
					return fmt.Errorf("recall: %w", err)
				}
				if maybe {
					return fmt.Errorf("recall: %w: it is not pending any more, and an earlier try may have done that: %w", ErrUnknown, err)
				}
				return fmt.Errorf("recall: %w: %w", ErrTooLate, err)
			case code != nil:
				maybe = maybe || strings.HasPrefix(code.Remark, remarkUnknown)
			case !errors.Is(err, errNotSent):
				maybe = true
			}
		}
		last = err
		if errors.Is(err, ErrTopicNotFound) || !wait.pause(ctx) {
			return fmt.Errorf("recall: %w: %w", ErrUnknown, ended(ctx, last))
		}
		c.refreshAfter(ctx, topic, try > 0)
	}
}
