package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// DeadLetter is a message that a consumer group gave up.
type DeadLetter struct {
	Message
	OriginTopic string
	OriginID    string // id of the message as it was sent first
	record      message.Record
}

// DeadLetterQuery selects dead letters of one consumer group. Zero means all.
type DeadLetterQuery struct {
	Group        string
	Since, Until time.Time        // when it became one
	Key          string           // one of its keys, or its unique id, or its origin's
	Limit        int              // of those that see does not return ErrResent for
	At           []DeadLetterName // only these
	Patience     time.Duration    // how long a master is looked for before each queue; 0: as long as the context says
}

// DeadLetterName names a dead letter of a group: the broker group that has it, and its place in the queue there.
type DeadLetterName struct {
	Group  string
	Offset ids.QueueOffset
}

func (n DeadLetterName) String() string { return fmt.Sprintf("%s/%d", n.Group, n.Offset) }

// Name is how it is named.
func (d *DeadLetter) Name() DeadLetterName { return DeadLetterName{d.Group, d.Offset} }

// DeadLetters calls see for each dead letter that the query selects, by broker group, oldest first, until see returns another error than
// ErrResent, which tells that this one does not count. A group without any has none: that is no error.
func (c *Client) DeadLetters(ctx context.Context, q DeadLetterQuery, see func(*DeadLetter) error) error {
	topic := message.DLQTopic(q.Group)
	r, err := c.Route(ctx, topic)
	if errors.Is(err, ErrTopicNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("dead letters of %s: %w", q.Group, err)
	}
	left := q.Limit
	if left <= 0 {
		left = math.MaxInt
	}
	for _, ref := range readQueues(r) {
		from, end, err := c.deadLetterRange(ctx, &q, ref)
		for err == nil && from < end && left > 0 {
			var p PullResult
			if p, err = c.Pull(ctx, ref, from, 32, PullRaw()); err != nil || p.NextOffset <= from {
				break
			}
			from = p.NextOffset
			err = q.each(p.Raw, ref, end, &left, see)
		}
		if err != nil {
			return fmt.Errorf("dead letters of %s in group %s: %w", q.Group, ref.Group, err)
		}
	}
	return nil
}

// deadLetterRange returns where the dead letters of a queue begin, and where they end now: those that come meanwhile are for the next time.
func (c *Client) deadLetterRange(ctx context.Context, q *DeadLetterQuery, ref QueueRef) (from, end ids.QueueOffset, err error) {
	if q.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, q.Patience, fmt.Errorf("no answer within %v", q.Patience))
		defer cancel()
	}
	if q.Since.IsZero() {
		from, err = c.MinOffset(ctx, ref)
	} else {
		from, err = c.SearchOffset(ctx, ref, q.Since)
	}
	if err == nil {
		end, err = c.MaxOffset(ctx, ref)
	}
	return from, end, err
}

func (q *DeadLetterQuery) each(raw []byte, ref QueueRef, end ids.QueueOffset, left *int, see func(*DeadLetter) error) error {
	for len(raw) > 0 && *left > 0 {
		rec, n, err := message.Decode(raw)
		if err != nil {
			return fmt.Errorf("%w: %w", errBadAnswer, err)
		}
		d := &DeadLetter{Message: received(&rec, ref.Group), record: rec}
		raw = raw[n:]
		d.OriginTopic, _ = message.Property(rec.Properties, message.KeyDLQOriginTopic)
		d.OriginID, _ = message.Property(rec.Properties, message.KeyDLQOriginMessageID)
		if d.Offset >= end || !q.selects(d) {
			continue
		}
		switch err := see(d); {
		case err == nil:
			*left--
		case !errors.Is(err, ErrResent):
			return err
		}
	}
	return nil
}

func (q *DeadLetterQuery) selects(d *DeadLetter) bool {
	if !q.Since.IsZero() && d.StoreTime.Before(q.Since) || !q.Until.IsZero() && !d.StoreTime.Before(q.Until) {
		return false
	}
	if q.Key != "" && q.Key != d.ID && q.Key != d.OriginID && !slices.Contains(d.Keys, q.Key) {
		return false
	}
	return len(q.At) == 0 || slices.Contains(q.At, d.Name())
}

// Resent tells whether a dead letter was sent again: its successor is in the retry topic of its group.
func (c *Client) Resent(ctx context.Context, group string, d *DeadLetter) (bool, error) {
	req := remoting.NewRequest(remoting.QueryMessage)
	req.Set("topic", message.RetryTopic(group))
	req.Set("key", message.ResentID(d.Group, &d.record))
	req.Set("maxNum", "1")
	req.Set("beginTimestamp", "0")
	req.Set("endTimestamp", strconv.FormatInt(math.MaxInt64, 10))
	req.Set("_UNIQUE_KEY_QUERY", "true")
	resp, err := c.askMaster(ctx, QueueRef{Group: d.Group, Topic: message.RetryTopic(group)}, req)
	var code *CodeError
	if errors.As(err, &code) && code.Code == remoting.QueryNotFound {
		return false, nil
	}
	return err == nil && len(resp.Body) > 0, err
}

// ErrResent is returned by Resend for a dead letter that was sent again before.
var ErrResent = errors.New("it was sent again before")

// Resend sends a dead letter to the retry topic of its group, in the broker group that has it: its members get it again, with all tries
// before it. It returns ErrResent when that was done before, by whomever, unless again is set. After another error it may have been sent: it
// is found out when Resend is called again, as long as the retry topic has it.
func (c *Client) Resend(ctx context.Context, group string, d *DeadLetter, again bool) error {
	addr, err := c.masterOf(ctx, QueueRef{Group: d.Group, Topic: message.DLQTopic(group)})
	if err != nil {
		return err
	}
	req := remoting.NewRequest(remoting.ResendDeadLetter)
	req.Set("consumerGroup", group)
	req.SetInt64("offset", int64(d.Offset))
	req.SetInt64("physicalOffset", int64(d.PhysicalOffset))
	req.SetBool("force", again)
	_, err = c.askOnce(ctx, addr, req)
	var code *CodeError
	if errors.As(err, &code) && code.Code == remoting.IllegalOperation {
		return ErrResent
	}
	return err
}
