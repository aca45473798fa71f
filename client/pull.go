package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// PullStatus tells how a pull went.
type PullStatus int

const (
	PullFound      PullStatus = iota // Messages has something
	PullNotFound                     // nothing at this offset yet
	PullNoMatch                      // there are messages, none with these tags; go on at NextOffset
	PullOutOfRange                   // the queue does not have this offset; go on at NextOffset
)

func (s PullStatus) String() string {
	switch s {
	case PullFound:
		return "found"
	case PullNotFound:
		return "not found"
	case PullNoMatch:
		return "no match"
	case PullOutOfRange:
		return "out of range"
	}
	return fmt.Sprintf("status %d", int(s))
}

// PullResult is the answer to a pull.
type PullResult struct {
	Status     PullStatus
	Messages   []Message
	NextOffset ids.QueueOffset
	MinOffset  ids.QueueOffset
	MaxOffset  ids.QueueOffset
	Suggested  ids.BrokerID // replica to pull from next; 0 is the master
	Raw        []byte       // the records as they came, when PullRaw was asked for
}

// pullOptions of one pull.
type pullOptions struct {
	group   string
	tags    string
	suspend time.Duration
	raw     bool
}

// toolsGroup is the consumer group of pulls that name none; every RocketMQ broker knows it.
const toolsGroup = "TOOLS_CONSUMER"

// PullOption changes one pull.
type PullOption func(*pullOptions)

// PullAs names the consumer group. The default is RocketMQ's group for tools.
func PullAs(group string) PullOption { return func(o *pullOptions) { o.group = group } }

// PullTags takes only messages with one of these tags, "a || b". The default is all.
func PullTags(expression string) PullOption { return func(o *pullOptions) { o.tags = expression } }

// PullWait lets the broker hold the pull for up to d until a message comes. The default is not to wait.
func PullWait(d time.Duration) PullOption { return func(o *pullOptions) { o.suspend = d } }

// PullRaw also returns the bytes of the records.
func PullRaw() PullOption { return func(o *pullOptions) { o.raw = true } }

// Pull reads up to most messages of a queue from offset on: from the replica that q.Broker names, else from the master, and
// while there is none from any other replica. It asks once. The error is a *CodeError for an answer that says no.
func (c *Client) Pull(ctx context.Context, q QueueRef, offset ids.QueueOffset, most int, opts ...PullOption) (PullResult, error) {
	o := pullOptions{group: toolsGroup, tags: "*"}
	for _, opt := range opts {
		opt(&o)
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	addr := q.Broker
	if addr == "" {
		var err error
		if addr, err = c.readable(ctx, q); err != nil {
			return PullResult{}, fmt.Errorf("pull %v: %w", q, err)
		}
	}
	r, err := c.pull(ctx, addr, q, offset, most, o)
	if err != nil {
		return PullResult{}, fmt.Errorf("pull %v: %w", q, err)
	}
	return r, nil
}

// readable returns the address to read from: the master's, or that of the replica with the lowest slot.
func (c *Client) readable(ctx context.Context, q QueueRef) (string, error) {
	if _, err := c.cachedRoute(ctx, q.Topic); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.cache.groups[q.Group]; g != nil && len(g.info.Replicas) > 0 {
		return g.info.Replicas[0].Addr, nil
	}
	return "", fmt.Errorf("group %s: %w", q.Group, ErrNoMaster)
}

const (
	pullMargin = 3 * time.Second // over the time that the broker may hold a pull
	tagsAll    = "*"
)

// pull asks one address once.
func (c *Client) pull(ctx context.Context, addr string, q QueueRef, offset ids.QueueOffset, most int, o pullOptions) (PullResult, error) {
	req := queueRequest(remoting.PullMessage, q)
	req.Set("bname", q.Group)
	req.Set("consumerGroup", o.group)
	req.SetInt64("queueOffset", int64(offset))
	req.SetInt32("maxMsgNums", int32(most))
	flags := message.PullSubscription
	if o.suspend > 0 {
		flags |= message.PullSuspend
	}
	req.SetInt32("sysFlag", flags)
	req.Set("commitOffset", "0")
	req.SetInt64("suspendTimeoutMillis", o.suspend.Milliseconds())
	req.Set("subscription", o.tags)
	req.Set("subVersion", "0")
	req.Set("expressionType", "TAG")
	patience := c.o.callTimeout
	if o.suspend > 0 {
		patience = o.suspend + pullMargin
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := c.conns.call(ctx, addr, req)
	if err != nil {
		return PullResult{}, err
	}
	c.heard(q.Group, addr, resp)
	var r PullResult
	switch resp.Code {
	case remoting.Success:
	case remoting.PullNotFound:
		r.Status = PullNotFound
	case remoting.PullRetryImmediately:
		r.Status = PullNoMatch
	case remoting.PullOffsetMoved:
		r.Status = PullOutOfRange
	default:
		return PullResult{}, &CodeError{Op: "pull", Addr: addr, Code: resp.Code, Remark: resp.Remark}
	}
	return r, r.read(resp, q, o)
}

func (r *PullResult) read(resp *remoting.Command, q QueueRef, o pullOptions) error {
	var faults []error
	number := func(key string) int64 {
		n, err := resp.MustInt64(key)
		if err != nil {
			faults = append(faults, err)
		}
		return n
	}
	r.NextOffset = ids.QueueOffset(number("nextBeginOffset"))
	r.MinOffset = ids.QueueOffset(number("minOffset"))
	r.MaxOffset = ids.QueueOffset(number("maxOffset"))
	r.Suggested = ids.BrokerID(number("suggestWhichBrokerId"))
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", errBadAnswer, errors.Join(faults...))
	}
	if r.Status != PullFound {
		return nil
	}
	if o.raw {
		r.Raw = resp.Body
	}
	list, err := decodeMessages(resp.Body, q.Group)
	if err != nil {
		return fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	// The broker filters by hash, so that messages of other tags can come along.
	wanted := parseTags(o.tags)
	for _, m := range list {
		if wanted == nil || wanted[m.Tags] {
			r.Messages = append(r.Messages, m)
		}
	}
	if len(r.Messages) == 0 {
		r.Status = PullNoMatch
	}
	return nil
}

// parseTags returns the set of tags of an expression, nil for all.
func parseTags(expression string) map[string]bool {
	if expression == "" || expression == tagsAll {
		return nil
	}
	tags := map[string]bool{}
	for t := range strings.SplitSeq(expression, "||") {
		if t = strings.TrimSpace(t); t != "" {
			tags[t] = true
		}
	}
	return tags
}
