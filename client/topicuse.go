package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/remoting"
)

// TopicUse is what a broker group has of a topic, and who consumes it there.
type TopicUse struct {
	Group          string   `json:"group"`
	Queues         int      `json:"queues"`
	Messages       int64    `json:"messages"`
	ConsumerGroups []string `json:"consumerGroups"` // that have an offset in it, or a member that subscribes to it
}

// TopicUse returns what the broker groups have of a topic. The error joins those of the groups; the list has what the others told. It is
// ErrTopicNotFound for a topic that is in none.
func (c *Client) TopicUse(ctx context.Context, topic string) ([]TopicUse, error) {
	route, err := c.Route(ctx, topic)
	if err != nil {
		return nil, err
	}
	var all []TopicUse
	var faults []error
	for _, g := range route.Groups {
		u, err := c.topicUseIn(ctx, g.Group, topic)
		if err != nil {
			faults = append(faults, fmt.Errorf("topic %s in group %s: %w", topic, g.Group, err))
			continue
		}
		all = append(all, u)
	}
	return all, errors.Join(faults...)
}

func (c *Client) topicUseIn(ctx context.Context, group, topic string) (TopicUse, error) {
	u := TopicUse{Group: group, ConsumerGroups: []string{}}
	req := remoting.NewRequest(remoting.GetTopicStatsInfo)
	req.Set("topic", topic)
	resp, err := c.answerOfGroup(ctx, group, req)
	if err != nil {
		return u, err
	}
	var stats struct {
		Table map[string]struct{ MinOffset, MaxOffset ids.QueueOffset } `json:"offsetTable"`
	}
	if err := decodeLax(resp.Body, &stats); err != nil {
		return u, err
	}
	u.Queues = len(stats.Table)
	for _, q := range stats.Table {
		u.Messages += int64(q.MaxOffset - q.MinOffset)
	}
	req = remoting.NewRequest(remoting.QueryTopicConsumeByWho)
	req.Set("topic", topic)
	if resp, err = c.answerOfGroup(ctx, group, req); err != nil {
		return u, err
	}
	var who struct {
		Groups []string `json:"groupList"`
	}
	if err := decodeLax(resp.Body, &who); err != nil {
		return u, err
	}
	u.ConsumerGroups = append(u.ConsumerGroups, who.Groups...)
	return u, nil
}
