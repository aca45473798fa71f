package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// ConsumerGroup is a consumer group as the broker groups know it, taken together.
type ConsumerGroup struct {
	Name     string
	Disabled bool // its pulls are refused, by one of them at least
	Members  []Member
	Topics   []string // in which it has an offset; sorted
	Lag      *int64   // messages that it has not consumed in these; nil: it has no offset, or keeps its offsets itself
}

// ConsumerGroups returns the consumer groups that have a configuration or an offset in a broker group, by name. The error joins those of
// the broker groups; the list has what the others told.
func (c *Client) ConsumerGroups(ctx context.Context) ([]ConsumerGroup, error) {
	all := map[string]*ConsumerGroup{}
	group := func(name string) *ConsumerGroup {
		if all[name] == nil {
			all[name] = &ConsumerGroup{Name: name}
		}
		return all[name]
	}
	_, err := c.inGroups(ctx, "list consumer groups", nil, func(of string) error {
		configured, err := c.groupsIn(ctx, of)
		if err != nil {
			return err
		}
		progress, err := c.allProgressIn(ctx, of)
		if err != nil {
			return err
		}
		for name, enabled := range configured {
			g := group(name)
			g.Disabled = g.Disabled || !enabled
		}
		for name, queues := range progress {
			g := group(name)
			for i := range queues {
				if g.Lag == nil {
					g.Lag = new(int64)
				}
				*g.Lag += queues[i].Lag()
				g.Topics = append(g.Topics, queues[i].Queue.Topic)
			}
		}
		return nil
	})
	list := make([]ConsumerGroup, 0, len(all))
	for _, g := range all {
		slices.Sort(g.Topics)
		g.Topics = slices.Compact(g.Topics)
		var fault error
		if g.Members, fault = c.Members(ctx, g.Name); fault != nil {
			return nil, errors.Join(err, fault)
		}
		if Broadcasts(g.Members) {
			g.Lag = nil
		}
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b ConsumerGroup) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// groupsIn are the consumer groups that a broker group has a configuration of, and whether their pulls are served.
func (c *Client) groupsIn(ctx context.Context, of string) (map[string]bool, error) {
	resp, err := c.answerOfGroup(ctx, of, remoting.NewRequest(remoting.GetAllSubscriptionGroupConfig))
	if err != nil {
		return nil, err
	}
	var in struct {
		Table map[string]struct {
			Enabled bool `json:"consumeEnable"`
		} `json:"subscriptionGroupTable"`
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
