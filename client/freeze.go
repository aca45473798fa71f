package client

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ledgermq/ledgermq/remoting"
)

// Freeze is what is in the way of the removal of a broker group, or that nothing is any more.
type Freeze struct {
	Frozen       bool     `json:"frozen"`       // it stores nothing any more, and is removed
	Refused      string   `json:"refused"`      // why it cannot be removed now whatever is given up; "": it can
	Left         []string `json:"left"`         // what is left in it, a line each
	Messages     int64    `json:"messages"`     // of that, in queues
	Timers       uint64   `json:"timers"`       // delayed messages
	Transactions int      `json:"transactions"` // pending ones
}

// FreezeGroup freezes a broker group that is write-protected and drained, or, with giveUp, one in which something is left: from then on nothing is
// stored in it, and the controllers remove it. Without execute it only tells what is in the way. It may be called again.
func (c *Client) FreezeGroup(ctx context.Context, group string, giveUp, execute bool) (s Freeze, err error) {
	_, err = c.inGroups(ctx, "remove group "+group, []string{group}, func(group string) error {
		req := remoting.NewRequest(remoting.FreezeGroup)
		req.Set("brokerName", group)
		req.SetBool("giveUp", giveUp)
		req.SetBool("execute", execute)
		resp, err := c.answerOfGroup(ctx, group, req)
		if err != nil {
			return err
		}
		if err := decodeLax(resp.Body, &s); err != nil {
			return fmt.Errorf("%w: %w", errBadAnswer, err)
		}
		return nil
	})
	return s, err
}

// Configure changes settings of a broker group while it runs, for all its replicas: RocketMQ's names and values. The value "default" takes a
// setting back.
func (c *Client) Configure(ctx context.Context, group string, settings map[string]string) ([]GroupResult, error) {
	var body []byte
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		body = fmt.Appendf(body, "%s=%s\n", name, settings[name])
	}
	return c.everyGroup(ctx, "configure group "+group, []string{group}, func() *remoting.Command {
		req := remoting.NewRequest(remoting.UpdateBrokerConfig)
		req.Body = body
		return req
	})
}
