package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// MinOffset returns the lowest offset that the queue still has.
func (c *Client) MinOffset(ctx context.Context, q QueueRef) (ids.QueueOffset, error) {
	return c.offset(ctx, q, queueRequest(remoting.GetMinOffset, q))
}

// MaxOffset returns the offset that the next message of the queue will get.
func (c *Client) MaxOffset(ctx context.Context, q QueueRef) (ids.QueueOffset, error) {
	return c.offset(ctx, q, queueRequest(remoting.GetMaxOffset, q))
}

// SearchOffset returns the lowest offset whose message was stored at or after t.
func (c *Client) SearchOffset(ctx context.Context, q QueueRef, t time.Time) (ids.QueueOffset, error) {
	req := queueRequest(remoting.SearchOffsetByTimestamp, q)
	req.SetInt64("timestamp", t.UnixMilli())
	return c.offset(ctx, q, req)
}

// CommittedOffset returns where a consumer group will go on; found is false when it has not committed in this queue.
func (c *Client) CommittedOffset(ctx context.Context, group string, q QueueRef) (off ids.QueueOffset, found bool, err error) {
	req := queueRequest(remoting.QueryConsumerOffset, q)
	req.Set("consumerGroup", group)
	req.Set("setZeroIfNotFound", "false")
	off, err = c.offset(ctx, q, req)
	var code *CodeError
	if errors.As(err, &code) && code.Code == remoting.QueryNotFound {
		return 0, false, nil
	}
	return off, err == nil, err
}

// ErrResetPending: the group was reset in the queue, and goes on there. No member has taken that over yet, so a commit of what it had before
// is left out.
var ErrResetPending = errors.New("the group was reset meanwhile: the commit was left out")

// CommitOffset sets where a consumer group will go on. It waits until the broker has it, or returns ErrResetPending, wrapped.
func (c *Client) CommitOffset(ctx context.Context, group string, q QueueRef, off ids.QueueOffset) error {
	resp, err := c.askMaster(ctx, q, commitRequest(group, q, off))
	if err == nil && resp.Remark != "" { // as RocketMQ says it
		err = fmt.Errorf("%w: %s", ErrResetPending, resp.Remark)
	}
	return err
}

// CommitOffsetSoon is CommitOffset by a broker that nobody waits for: it keeps the offset in memory for up to 200 ms, and a kill loses it then.
// The error tells that it was not sent.
func (c *Client) CommitOffsetSoon(ctx context.Context, group string, q QueueRef, off ids.QueueOffset) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	addr := q.Broker
	if addr == "" {
		var err error
		if addr, err = c.masterOf(ctx, q); err != nil {
			return err
		}
	}
	return c.conns.oneWay(ctx, addr, commitRequest(group, q, off))
}

func commitRequest(group string, q QueueRef, off ids.QueueOffset) *remoting.Command {
	req := queueRequest(remoting.UpdateConsumerOffset, q)
	req.Set("bname", q.Group)
	req.Set("consumerGroup", group)
	req.SetInt64("commitOffset", int64(off))
	return req
}

// ResetOffset sets where a consumer group goes on in a queue, also while its members run: they drop what they have fetched, and what they
// commit of it does not count. It waits until the broker has it.
func (c *Client) ResetOffset(ctx context.Context, group string, q QueueRef, off ids.QueueOffset) error {
	req := queueRequest(remoting.InvokeBrokerToResetOffset, q)
	req.Set("group", group)
	req.SetInt64("offset", int64(off))
	req.Set("timestamp", "-1")
	req.SetBool("isForce", true)
	_, err := c.askMaster(ctx, q, req)
	return err
}

func queueRequest(code int32, q QueueRef) *remoting.Command {
	req := remoting.NewRequest(code)
	req.Set("topic", q.Topic)
	req.SetInt32("queueId", int32(q.Queue))
	return req
}

func (c *Client) offset(ctx context.Context, q QueueRef, req *remoting.Command) (ids.QueueOffset, error) {
	resp, err := c.askMaster(ctx, q, req)
	if err != nil {
		return 0, err
	}
	off, err := resp.MustInt64("offset")
	return ids.QueueOffset(off), err
}
