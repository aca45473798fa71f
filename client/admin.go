package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/message"
	"github.com/ledgermq/ledgermq/remoting"
)

// TopicSpec is a topic to create or change. Zero means the default.
type TopicSpec struct {
	Name        string
	ReadQueues  int32 // in each group; default 8
	WriteQueues int32 // in each group; default ReadQueues
	Perm        int32 // 4 read, 2 write; default 6
	Order       bool
	Attributes  map[string]string
	Groups      []string // broker groups; default all
}

// GroupSpec is a consumer group to create or change. The zero value of a field is RocketMQ's default.
type GroupSpec struct {
	Name             string
	Disabled         bool   // consuming is refused
	NoBroadcast      bool   // broadcasting is refused
	RetryQueues      int32  // default 1
	RetryMaxTimes    *int32 // 0: the first failure is a dead letter. Default 16
	RetryPolicy      RetryPolicy
	BrokerGroups     []string // default all
	ConsumeOrderly   bool
	DoNotNotifyPeers bool // members are not told when others come and go
}

// RetryPolicy says when a message comes again that a consumer left to the broker. One of its two forms is used; the zero value is the delay
// levels from 10 s on.
type RetryPolicy struct {
	Delays       []time.Duration // before the first try, the second one, …; the last one counts for all that follow. At most MaxRetryDelays
	Initial, Max time.Duration   // or the first delay, each further one Multiplier times as long, none longer than Max
	Multiplier   int64           // at least 1; 0: no such policy
}

// MaxRetryDelays bounds the delays of a RetryPolicy.
const MaxRetryDelays = 62

// wire is RocketMQ's GroupRetryPolicy, nil for none. Its customized one begins with the third delay.
func (p *RetryPolicy) wire() (any, error) {
	switch {
	case len(p.Delays) > 0 && p.Multiplier != 0:
		return nil, errors.New("a retry policy has delays or a multiplier, not both")
	case len(p.Delays) > MaxRetryDelays:
		return nil, fmt.Errorf("a retry policy has %d delays, at most %d are allowed", len(p.Delays), MaxRetryDelays)
	case len(p.Delays) > 0:
		next := []int64{p.Delays[0].Milliseconds(), p.Delays[0].Milliseconds()}
		for _, d := range p.Delays {
			next = append(next, d.Milliseconds())
		}
		return map[string]any{"type": "CUSTOMIZED", "customizedRetryPolicy": map[string]any{"next": next}}, nil
	case p.Multiplier != 0:
		return map[string]any{"type": "EXPONENTIAL", "exponentialRetryPolicy": map[string]any{
			"initial": p.Initial.Milliseconds(), "max": p.Max.Milliseconds(), "multiplier": p.Multiplier,
		}}, nil
	}
	return nil, nil
}

// GroupResult is how a change went in one broker group.
type GroupResult struct {
	Group string // broker group
	Err   error
}

// CreateTopic creates or changes a topic, in one broker group after the other. The error joins those of the groups; the
// list has all of them.
func (c *Client) CreateTopic(ctx context.Context, spec TopicSpec) ([]GroupResult, error) {
	if err := message.ValidTopic(spec.Name); err != nil {
		return nil, fmt.Errorf("create topic: %w", err)
	}
	if spec.ReadQueues == 0 {
		spec.ReadQueues = 8
	}
	if spec.WriteQueues == 0 {
		spec.WriteQueues = spec.ReadQueues
	}
	if spec.Perm == 0 {
		spec.Perm = permRead | permWrite
	}
	return c.everyGroup(ctx, "create topic "+spec.Name, spec.Groups, func() *remoting.Command {
		req := remoting.NewRequest(remoting.UpdateAndCreateTopic)
		req.Set("topic", spec.Name)
		req.Set("defaultTopic", message.DefaultTopic)
		req.SetInt32("readQueueNums", spec.ReadQueues)
		req.SetInt32("writeQueueNums", spec.WriteQueues)
		req.SetInt32("perm", spec.Perm)
		req.Set("topicFilterType", "SINGLE_TAG")
		req.Set("topicSysFlag", "0")
		req.SetBool("order", spec.Order)
		if len(spec.Attributes) > 0 {
			var list []string
			for _, key := range slices.Sorted(maps.Keys(spec.Attributes)) {
				list = append(list, "+"+key+"="+spec.Attributes[key])
			}
			req.Set("attributes", strings.Join(list, ","))
		}
		return req
	})
}

// TopicIn returns a topic as one broker group has it, false when it has none. A broker of RocketMQ 4 cannot tell, and counts as without it.
func (c *Client) TopicIn(ctx context.Context, group, name string) (TopicSpec, bool, error) {
	req := remoting.NewRequest(remoting.GetTopicConfig)
	req.Set("topic", name)
	resp, err := c.answerOfGroup(ctx, group, req)
	var code *CodeError
	if errors.As(err, &code) && (code.Code == remoting.TopicNotExist || code.Code == remoting.RequestCodeNotSupported) {
		return TopicSpec{}, false, nil
	}
	if err != nil {
		return TopicSpec{}, false, fmt.Errorf("topic %s: group %s: %w", name, group, err)
	}
	var in struct {
		Read  int32 `json:"readQueueNums"`
		Write int32 `json:"writeQueueNums"`
		Perm  int32 `json:"perm"`
		Order bool  `json:"order"`
	}
	if err := decodeLax(resp.Body, &in); err != nil {
		return TopicSpec{}, false, fmt.Errorf("topic %s: group %s: %w", name, group, err)
	}
	return TopicSpec{Name: name, ReadQueues: in.Read, WriteQueues: in.Write, Perm: in.Perm, Order: in.Order, Groups: []string{group}}, true, nil
}

// DeleteTopic deletes a topic in all broker groups, and then in the name servers. A name server that cannot be reached does
// not count: it learns of it from the brokers.
func (c *Client) DeleteTopic(ctx context.Context, name string) ([]GroupResult, error) {
	results, err := c.everyGroup(ctx, "delete topic "+name, nil, func() *remoting.Command {
		req := remoting.NewRequest(remoting.DeleteTopicInBroker)
		req.Set("topic", name)
		return req
	})
	if err != nil {
		return results, err
	}
	for _, addr := range c.namesrv {
		req := remoting.NewRequest(remoting.DeleteTopicInNamesrv)
		req.Set("topic", name)
		if _, err := c.askOne(ctx, addr, req); err != nil {
			c.o.logger.Debug().Err(err).Str("topic", name).Msg("a name server was not told of a deleted topic")
		}
	}
	c.mu.Lock()
	c.cache.drop(name)
	c.mu.Unlock()
	return results, nil
}

// CreateGroup creates or changes a consumer group in one broker group after the other, as CreateTopic does.
func (c *Client) CreateGroup(ctx context.Context, spec GroupSpec) ([]GroupResult, error) {
	if err := message.ValidGroup(spec.Name); err != nil {
		return nil, fmt.Errorf("create group: %w", err)
	}
	if spec.RetryQueues == 0 {
		spec.RetryQueues = 1
	}
	if spec.RetryMaxTimes == nil {
		spec.RetryMaxTimes = new(int32(16))
	}
	policy, err := spec.RetryPolicy.wire()
	if err != nil {
		return nil, fmt.Errorf("create group %s: %w", spec.Name, err)
	}
	config := map[string]any{
		"groupName": spec.Name, "consumeEnable": !spec.Disabled, "consumeFromMinEnable": true,
		"consumeBroadcastEnable": !spec.NoBroadcast, "consumeMessageOrderly": spec.ConsumeOrderly,
		"retryQueueNums": spec.RetryQueues, "retryMaxTimes": *spec.RetryMaxTimes, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
		"notifyConsumerIdsChangedEnable": !spec.DoNotNotifyPeers, "groupSysFlag": 0, "consumeTimeoutMinute": 15,
	}
	if policy != nil {
		config["groupRetryPolicy"] = policy
	}
	body, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("create group %s: %w", spec.Name, err)
	}
	return c.everyGroup(ctx, "create group "+spec.Name, spec.BrokerGroups, func() *remoting.Command {
		req := remoting.NewRequest(remoting.UpdateAndCreateSubscriptionGroup)
		req.Body = body
		return req
	})
}

// everyGroup sends one request to the master of each broker group, or of those named in only.
func (c *Client) everyGroup(ctx context.Context, what string, only []string, build func() *remoting.Command) ([]GroupResult, error) {
	return c.inGroups(ctx, what, only, func(group string) error { return c.askGroup(ctx, group, build()) })
}

// inGroups does something in each broker group, or in those named in only, one after the other.
func (c *Client) inGroups(ctx context.Context, what string, only []string, do func(group string) error) ([]GroupResult, error) {
	groups, err := c.groupsNow(ctx, what, only)
	if err != nil {
		return nil, err
	}
	var results []GroupResult
	var faults []error
	for _, g := range groups {
		err := do(g.Group)
		results = append(results, GroupResult{Group: g.Group, Err: err})
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: group %s: %w", what, g.Group, err))
		}
	}
	return results, errors.Join(faults...)
}

// inEachGroup is inGroups for a question to all of them, atOnce at a time: one that does not answer takes no time from the others.
func (c *Client) inEachGroup(ctx context.Context, what string, do func(g GroupInfo) error) error {
	groups, err := c.groupsNow(ctx, what, nil)
	if err != nil {
		return err
	}
	faults := make([]error, len(groups))
	inParallel(len(groups), func(i int) {
		if err := do(groups[i]); err != nil {
			faults[i] = fmt.Errorf("%s: group %s: %w", what, groups[i].Group, err)
		}
	})
	return errors.Join(faults...)
}

// groupsNow are the broker groups that have registered, or those named in only; there is one at least.
func (c *Client) groupsNow(ctx context.Context, what string, only []string) ([]GroupInfo, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for _, name := range only {
		if !slices.ContainsFunc(cluster.Groups, func(g GroupInfo) bool { return g.Group == name }) {
			return nil, fmt.Errorf("%s: the name server does not know a broker group %q", what, name)
		}
	}
	if len(cluster.Groups) == 0 {
		return nil, fmt.Errorf("%s: no broker group has registered", what)
	}
	return slices.DeleteFunc(slices.Clone(cluster.Groups), func(g GroupInfo) bool { return len(only) > 0 && !slices.Contains(only, g.Group) }), nil
}

const atOnce = 8 // questions that one call asks at a time

// inParallel calls do with 0, 1, … n-1, atOnce at a time, and waits for all.
func inParallel(n int, do func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

// askGroup is askMaster by a group's name alone: a change is safe to send twice.
func (c *Client) askGroup(ctx context.Context, group string, req *remoting.Command) error {
	_, err := c.answerOfGroup(ctx, group, req)
	return err
}

// answerOfGroup is askGroup for who wants the answer.
func (c *Client) answerOfGroup(ctx context.Context, group string, req *remoting.Command) (*remoting.Command, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	for wait := c.newBackoff(); ; {
		c.mu.Lock()
		addr := c.cache.group(group).info.Master()
		c.mu.Unlock()
		err := fmt.Errorf("%w", ErrNoMaster)
		if addr != "" {
			var resp *remoting.Command
			resp, err = c.askOnce(ctx, addr, req)
			if resp != nil {
				c.heard(group, addr, resp)
			}
			if err == nil {
				return resp, nil
			}
			var code *CodeError
			if errors.As(err, &code) && !code.passes() {
				return nil, err
			}
		}
		if !wait.pause(ctx) {
			return nil, ended(ctx, err)
		}
		if _, again := c.Cluster(ctx); again != nil && ctx.Err() == nil {
			c.o.logger.Debug().Err(again).Msg("the list of broker groups was not refreshed")
		}
	}
}

// ConsumerMembers returns the client ids of the members of a consumer group, as the groups of a topic know them; sorted.
func (c *Client) ConsumerMembers(ctx context.Context, group string) ([]string, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, fmt.Errorf("members of %s: %w", group, err)
	}
	members := map[string]struct{}{}
	var faults []error
	for _, g := range cluster.Groups {
		if g.Master() == "" {
			faults = append(faults, fmt.Errorf("group %s: %w", g.Group, ErrNoMaster))
			continue
		}
		req := remoting.NewRequest(remoting.GetConsumerListByGroup)
		req.Set("consumerGroup", group)
		resp, err := c.askOnce(ctx, g.Master(), req)
		var code *CodeError
		switch {
		case errors.As(err, &code) && code.Code == remoting.SystemError:
			continue // RocketMQ's way to say that nobody is there
		case err != nil:
			faults = append(faults, fmt.Errorf("group %s: %w", g.Group, err))
			continue
		}
		var in struct {
			IDs []string `json:"consumerIdList"`
		}
		if err := decodeLax(resp.Body, &in); err != nil {
			faults = append(faults, fmt.Errorf("group %s: %w", g.Group, err))
		}
		for _, id := range in.IDs {
			members[id] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(members)), errors.Join(faults...)
}

// ViewMessage reads a message by its offset message id. The id names the address that stored it; when nobody listens there
// any more, the other replicas of the group that has this address are asked.
func (c *Client) ViewMessage(ctx context.Context, offsetMessageID string) (Message, error) {
	host, off, err := message.ParseOffsetMessageID(offsetMessageID)
	if err != nil {
		return Message{}, fmt.Errorf("view %s: %w", offsetMessageID, err)
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	cluster, err := c.Cluster(ctx)
	if err != nil {
		c.o.logger.Debug().Err(err).Msg("viewing a message without a list of broker groups")
	}
	group, addrs := "", []string{host.String()}
	for _, g := range cluster.Groups {
		if !slices.ContainsFunc(g.Replicas, func(r Replica) bool { return r.Addr == host.String() }) {
			continue
		}
		group = g.Group
		for _, r := range g.Replicas {
			if r.Addr != host.String() {
				addrs = append(addrs, r.Addr)
			}
		}
	}
	var faults []error
	for _, addr := range addrs {
		req := remoting.NewRequest(remoting.ViewMessageByID)
		req.SetInt64("offset", int64(off))
		resp, err := c.askOnce(ctx, addr, req)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		list, err := decodeMessages(resp.Body, group)
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("%w: %d messages", errBadAnswer, len(list))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", addr, err))
			continue
		}
		return list[0], nil
	}
	return Message{}, fmt.Errorf("view %s: %w", offsetMessageID, errors.Join(faults...))
}
