package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// FindBy is the sense in which a message has a word.
type FindBy string

// The senses. A message has any number of keys, and one unique id and one tag at most.
const (
	ByKey      FindBy = "K"
	ByUniqueID FindBy = "U"
	ByTag      FindBy = "T"
)

// Search tells which messages of a topic are wanted.
type Search struct {
	Topic string
	By    FindBy
	Word  string // "": all messages, whatever By is

	// From and Until bound the store time, in milliseconds and inclusive. Zero means no bound.
	From, Until time.Time

	Max int // of the newest; default 64
}

const (
	answerMessages = 64 // that a broker answers at most
	scanMessages   = 32 // that one pull asks for
)

// Our own fields of a search: the answer tells that there may be more than it has, and the next question wants what lies before this place of the log.
const (
	fieldMore   = "ledgermqMore"
	fieldBefore = "ledgermqBefore"
)

// Find returns the newest messages that are wanted, of all broker groups of the topic, from the oldest to the newest. A group's master is asked
// first, then its other replicas; the error names a group of which none answers, since what it has may be missing. It is ErrTopicNotFound for an
// unknown topic.
func (c *Client) Find(ctx context.Context, s Search) ([]Message, error) {
	if s.Max <= 0 {
		s.Max = answerMessages
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	route, err := c.Route(ctx, s.Topic)
	if err != nil {
		return nil, err
	}
	var all []Message
	for _, g := range route.Groups {
		var list []Message
		if s.Word == "" {
			list, err = c.scan(ctx, g, s)
		} else {
			list, err = c.findIn(ctx, g, s)
		}
		if err != nil {
			return nil, fmt.Errorf("find messages of %s in group %s: %w", s.Topic, g.Group, err)
		}
		all = append(all, list...)
	}
	return newest(all, s.Max), nil
}

// newest sorts messages by their time, and keeps the last ones.
func newest(all []Message, most int) []Message {
	slices.SortStableFunc(all, func(a, b Message) int {
		return cmp.Or(a.StoreTime.Compare(b.StoreTime), cmp.Compare(a.Group, b.Group), cmp.Compare(a.PhysicalOffset, b.PhysicalOffset))
	})
	return all[max(0, len(all)-most):]
}

// findIn asks one group. An answer is bounded: it goes back in time until there are enough.
func (c *Client) findIn(ctx context.Context, g GroupRoute, s Search) ([]Message, error) {
	begin, end := int64(0), int64(1<<63-1)
	if !s.From.IsZero() {
		begin = s.From.UnixMilli()
	}
	if !s.Until.IsZero() {
		end = s.Until.UnixMilli()
	}
	var all []Message
	for before := ids.PhysicalOffset(1<<63 - 1); len(all) < s.Max; {
		list, more, err := c.findOnce(ctx, g, s, begin, end, before)
		if err != nil {
			return nil, err
		}
		all = append(list, all...)
		if !more || len(list) == 0 {
			break
		}
		if list[0].PhysicalOffset >= before {
			return nil, fmt.Errorf("%w: the answer goes back to %d, it should end there", errBadAnswer, before)
		}
		before = list[0].PhysicalOffset
	}
	return newest(all, s.Max), nil
}

// findOnce asks the replicas of a group in turn until one answers; more tells that there may be older ones.
func (c *Client) findOnce(ctx context.Context, g GroupRoute, s Search, begin, end int64, before ids.PhysicalOffset) (list []Message, more bool, err error) {
	faults := []error{fmt.Errorf("%w", ErrNoMaster)}
	for _, r := range g.Replicas {
		req := remoting.NewRequest(remoting.QueryMessage)
		req.Set("bname", g.Group)
		req.Set("topic", s.Topic)
		req.Set("key", s.Word)
		req.Set("indexType", string(s.By))
		req.SetInt32("maxNum", answerMessages)
		req.SetInt64("beginTimestamp", begin)
		req.SetInt64("endTimestamp", end)
		req.SetInt64(fieldBefore, int64(before))
		resp, err := c.askOnce(ctx, r.Addr, req)
		var code *CodeError
		if errors.As(err, &code) && code.Code == remoting.QueryNotFound {
			return nil, false, nil
		}
		if err == nil {
			_, more = resp.Get(fieldMore)
			list, err = decodeMessages(resp.Body, g.Group)
			return list, more, err
		}
		if faults = append(faults, err); ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
	}
	return nil, false, errors.Join(faults[min(1, len(faults)-1):]...)
}

// scan reads the last messages in the time of each queue of a group.
func (c *Client) scan(ctx context.Context, g GroupRoute, s Search) ([]Message, error) {
	var all []Message
	for n := range g.ReadQueues {
		q := QueueRef{Group: g.Group, Topic: s.Topic, Queue: ids.QueueID(n)}
		low, err := c.MinOffset(ctx, q)
		if err == nil && !s.From.IsZero() {
			low, err = c.SearchOffset(ctx, q, s.From)
		}
		if err != nil {
			return nil, err
		}
		high, err := c.MaxOffset(ctx, q)
		if err == nil && !s.Until.IsZero() {
			high, err = c.SearchOffset(ctx, q, s.Until.Add(time.Millisecond))
		}
		if err != nil {
			return nil, err
		}
		for at := max(low, high-ids.QueueOffset(s.Max)); at < high; {
			r, err := c.Pull(ctx, q, at, min(scanMessages, int(high-at)))
			if err != nil {
				return nil, err
			}
			if r.NextOffset <= at {
				break // the queue lost its end or its front meanwhile
			}
			for _, m := range r.Messages {
				if m.Offset < high {
					all = append(all, m)
				}
			}
			at = r.NextOffset
		}
		all = newest(all, s.Max)
	}
	return all, nil
}
