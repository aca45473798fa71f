package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// ConsumerGroup is a consumer group as the broker groups know it, taken together.
type ConsumerGroup struct {
	Name     string
	Disabled bool // its pulls are refused, by one of them at least
	Members  []Member
	Unsure   bool     // there may be further members: a broker group could not tell
	Topics   []string // in which it has an offset; sorted
	Lag      *int64   // messages that it has not consumed in these; nil: it has no offset, or keeps its offsets itself
}

// add takes what one broker group knows to what others do.
func (g *ConsumerGroup) add(o *ConsumerGroup) {
	g.Disabled, g.Unsure = g.Disabled || o.Disabled, g.Unsure || o.Unsure
	g.Members = onceEach(append(g.Members, o.Members...))
	g.Topics = append(g.Topics, o.Topics...)
	slices.Sort(g.Topics)
	g.Topics = slices.Compact(g.Topics)
	if o.Lag != nil {
		if g.Lag == nil {
			g.Lag = new(int64)
		}
		*g.Lag += *o.Lag
	}
}

func (g *ConsumerGroup) addProgress(queues []Progress) {
	for i := range queues {
		g.add(&ConsumerGroup{Topics: []string{queues[i].Queue.Topic}, Lag: new(queues[i].Lag())})
	}
}

// ConsumerGroups returns the consumer groups that have a configuration or an offset in a broker group, by name. The error joins those of
// the broker groups; the list has what the others told.
func (c *Client) ConsumerGroups(ctx context.Context) ([]ConsumerGroup, error) {
	var mu sync.Mutex
	all := map[string]*ConsumerGroup{}
	silent := false // a broker group has not told which there are
	err := c.inEachGroup(ctx, "list consumer groups", func(g GroupInfo) error {
		told, err := c.consumerGroupsIn(ctx, g.Group)
		mu.Lock()
		defer mu.Unlock()
		silent = silent || told == nil
		for name, g := range told {
			if all[name] == nil {
				all[name] = &ConsumerGroup{Name: name}
			}
			all[name].add(g)
		}
		return err
	})
	list := make([]ConsumerGroup, 0, len(all))
	for _, g := range all {
		if g.Unsure = g.Unsure || silent; Broadcasts(g.Members) {
			g.Lag = nil
		}
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b ConsumerGroup) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// consumerGroupsIn are the consumer groups of one broker group, nil when it does not tell which. Where it does not tell the members, the error
// says so of the first one.
func (c *Client) consumerGroupsIn(ctx context.Context, of string) (map[string]*ConsumerGroup, error) {
	configured, err := c.groupsIn(ctx, of)
	if err != nil {
		return nil, err
	}
	progress, err := c.allProgressIn(ctx, of)
	if err != nil {
		return nil, err
	}
	all := map[string]*ConsumerGroup{}
	for name, enabled := range configured {
		all[name] = &ConsumerGroup{Disabled: !enabled}
	}
	for name, queues := range progress {
		if all[name] == nil {
			all[name] = &ConsumerGroup{}
		}
		all[name].addProgress(queues)
	}
	names := slices.Sorted(maps.Keys(all))
	faults := make([]error, len(names))
	inParallel(len(names), func(i int) {
		g := all[names[i]]
		if g.Members, faults[i] = c.membersIn(ctx, of, names[i]); faults[i] != nil {
			g.Unsure = true
		}
	})
	for i, fault := range faults {
		if fault != nil {
			return all, fmt.Errorf("members of %s: %w", names[i], fault)
		}
	}
	return all, nil
}

// ConsumerGroup returns one of ConsumerGroups, ok is false when there is none of this name. Its members are those that any replica knows: a
// master that has just begun knows one with the next heartbeat only, and most clients send theirs to all replicas. A replica that does not
// answer does not count, a master that does not is an error.
func (c *Client) ConsumerGroup(ctx context.Context, name string) (all ConsumerGroup, ok bool, err error) {
	var mu sync.Mutex
	all.Name = name
	err = c.inEachGroup(ctx, "consumer group "+name, func(of GroupInfo) error {
		g, known, err := c.consumerGroupIn(ctx, of, name)
		mu.Lock()
		defer mu.Unlock()
		all.add(&g)
		ok = ok || known
		return err
	})
	if Broadcasts(all.Members) {
		all.Lag = nil
	}
	return all, ok, err
}

func (c *Client) consumerGroupIn(ctx context.Context, of GroupInfo, name string) (g ConsumerGroup, known bool, err error) {
	req := remoting.NewRequest(remoting.GetSubscriptionGroupConfig)
	req.Set("group", name)
	resp, err := c.answerOfGroup(ctx, of.Group, req)
	var code *CodeError
	switch {
	case errors.As(err, &code) && code.Code == remoting.SubscriptionGroupNotExist:
	case err != nil:
		return g, false, err
	default:
		var in groupConfig
		if err := decodeLax(resp.Body, &in); err != nil {
			return g, false, err
		}
		known, g.Disabled = true, !in.Enabled
	}
	req = remoting.NewRequest(remoting.GetConsumeStats)
	req.Set("consumerGroup", name)
	if resp, err = c.answerOfGroup(ctx, of.Group, req); err != nil {
		return g, known, err
	}
	queues, err := readProgress(resp.Body)
	if err != nil {
		return g, known, err
	}
	g.addProgress(queues)
	if g.Members, err = c.membersIn(ctx, of.Group, name); err != nil {
		return g, known, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, membersWait, errMembersWait)
	defer cancel()
	for _, r := range of.Replicas {
		members, err := readMembers(c.askOnce(ctx, r.Addr, membersRequest(name)))
		if err != nil {
			c.o.logger.Debug().Err(err).Str("replica", r.Addr).Msg("a replica was not asked for members")
		}
		g.Members = append(g.Members, members...)
	}
	return g, known || len(queues) > 0 || len(g.Members) > 0, nil
}

// groupConfig is what is read of the configuration of a consumer group.
type groupConfig struct {
	Enabled bool `json:"consumeEnable"`
}

// groupsIn are the consumer groups that a broker group has a configuration of, and whether their pulls are served.
func (c *Client) groupsIn(ctx context.Context, of string) (map[string]bool, error) {
	resp, err := c.answerOfGroup(ctx, of, remoting.NewRequest(remoting.GetAllSubscriptionGroupConfig))
	if err != nil {
		return nil, err
	}
	var in struct {
		Table map[string]groupConfig `json:"subscriptionGroupTable"`
	}
	if err := decodeLax(resp.Body, &in); err != nil {
		return nil, err
	}
	groups := map[string]bool{}
	for name, g := range in.Table {
		groups[name] = g.Enabled
	}
	return groups, nil
}

// allProgressIn is how far each consumer group is in a broker group, in the topics in which it has an offset there.
func (c *Client) allProgressIn(ctx context.Context, of string) (map[string][]Progress, error) {
	req := remoting.NewRequest(remoting.GetBrokerConsumeStats)
	req.SetBool("isOrder", false)
	resp, err := c.answerOfGroup(ctx, of, req)
	if err != nil {
		return nil, err
	}
	text, err := laxjson.Standard(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	var in struct {
		List []map[string][]json.RawMessage `json:"consumeStatsList"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	all := map[string][]Progress{}
	for _, groups := range in.List {
		for name, topics := range groups {
			for _, topic := range topics {
				queues, err := readProgress(topic)
				if err != nil {
					return nil, err
				}
				all[name] = append(all[name], queues...)
			}
		}
	}
	return all, nil
}

// DeleteConsumerGroup deletes the configuration of a consumer group and its offsets, in one broker group after the other, as CreateGroup
// makes it. Its retry and dead-letter topics stay. A member that runs makes it anew with its next heartbeat.
func (c *Client) DeleteConsumerGroup(ctx context.Context, name string) ([]GroupResult, error) {
	return c.everyGroup(ctx, "delete consumer group "+name, nil, func() *remoting.Command {
		req := remoting.NewRequest(remoting.DeleteSubscriptionGroup)
		req.Set("groupName", name)
		req.SetBool("cleanOffset", true)
		return req
	})
}
