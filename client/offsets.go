package client

import (
	"context"
	"errors"
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

// CommitOffset sets where a consumer group will go on. It waits until the broker has it.
func (c *Client) CommitOffset(ctx context.Context, group string, q QueueRef, off ids.QueueOffset) error {
	req := queueRequest(remoting.UpdateConsumerOffset, q)
	req.Set("consumerGroup", group)
	req.SetInt64("commitOffset", int64(off))
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
