package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/laxjson"
	"github.com/ledgermq/ledgermq/remoting"
)

// Progress is how far a consumer group is in one queue.
type Progress struct {
	Queue     QueueRef
	Offset    ids.QueueOffset // next one that the group will read
	Committed bool            // false: the group has no offset here
	Min, Max  ids.QueueOffset // of the queue; Max is exclusive
	Oldest    time.Time       // when the first message that the group has not consumed was stored; zero: there is none
}

// Lag is how many messages the group has not consumed.
func (p *Progress) Lag() int64 {
	if !p.Committed {
		return int64(p.Max - p.Min)
	}
	return int64(p.Max - max(p.Offset, p.Min))
}

// Progress returns how far a consumer group is in all readable queues of a topic, by broker group and queue, with all that its members
// have committed.
func (c *Client) Progress(ctx context.Context, group, topic string) ([]Progress, error) {
	r, err := c.Route(ctx, topic)
	if err != nil {
		return nil, err
	}
	var all []Progress
	for _, q := range readQueues(r) {
		if q.Queue != 0 {
			continue
		}
		req := remoting.NewRequest(remoting.GetConsumeStats)
		req.Set("consumerGroup", group)
		req.Set("topicList", topic)
		resp, err := c.askMaster(ctx, q, req)
		if err != nil {
			return nil, fmt.Errorf("progress of %s in group %s: %w", group, q.Group, err)
		}
		list, err := readProgress(resp.Body)
		if err != nil {
			return nil, fmt.Errorf("progress of %s in group %s: %w", group, q.Group, err)
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b Progress) int {
		return cmp.Or(cmp.Compare(a.Queue.Group, b.Queue.Group), cmp.Compare(a.Queue.Queue, b.Queue.Queue))
	})
	return all, nil
}

func readProgress(body []byte) ([]Progress, error) {
	text, err := laxjson.Standard(body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	var stats struct {
		Table map[string]struct {
			BrokerOffset, ConsumerOffset, MinOffset ids.QueueOffset
			OldestTimestamp                         int64
			Committed                               bool
		} `json:"offsetTable"`
	}
	if err := json.Unmarshal(text, &stats); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	var all []Progress
	for key, o := range stats.Table {
		var q struct {
			BrokerName, Topic string
			QueueID           ids.QueueID
		}
		if err := json.Unmarshal([]byte(key), &q); err != nil {
			return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
		}
		p := Progress{Queue: QueueRef{Group: q.BrokerName, Topic: q.Topic, Queue: q.QueueID}, Offset: o.ConsumerOffset, Committed: o.Committed, Min: o.MinOffset, Max: o.BrokerOffset}
		if o.OldestTimestamp > 0 {
			p.Oldest = time.UnixMilli(o.OldestTimestamp)
		}
		all = append(all, p)
	}
	return all, nil
}

// ConsumedTopics returns the topics in which a consumer group has committed an offset, in any broker group; sorted. The error joins those of
// the broker groups; the list has what the others told.
func (c *Client) ConsumedTopics(ctx context.Context, group string) ([]string, error) {
	var all []string
	_, err := c.inGroups(ctx, "topics of "+group, nil, func(of string) error {
		req := remoting.NewRequest(remoting.QueryTopicsByConsumer)
		req.Set("group", group)
		resp, err := c.answerOfGroup(ctx, of, req)
		if err != nil {
			return err
		}
		var in struct {
			Topics []string `json:"topicList"`
		}
		if err := decodeLax(resp.Body, &in); err != nil {
			return fmt.Errorf("%w: %w", errBadAnswer, err)
		}
		all = append(all, in.Topics...)
		return nil
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// Member is a member of a consumer group that is connected to the masters.
type Member struct {
	ClientID      string
	Address       string
	Language      string
	Subscriptions map[string]string // topic to filter
	Broadcasts    bool              // its group does: each member has all messages, and keeps its offsets itself
}

// Broadcasts tells whether a group with these members broadcasts: each has all messages, and keeps its offsets itself.
func Broadcasts(members []Member) bool {
	return slices.ContainsFunc(members, func(m Member) bool { return m.Broadcasts })
}

// Members returns the members of a consumer group that are connected to the masters of the broker groups, by client id. The error joins those
// of the broker groups; the list has what the others told.
func (c *Client) Members(ctx context.Context, group string) ([]Member, error) {
	var mu sync.Mutex
	var all []Member
	err := c.inEachGroup(ctx, "members of "+group, func(g GroupInfo) error {
		members, err := c.membersIn(ctx, g.Group, group)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, members...)
		return err
	})
	return onceEach(all), err
}

// membersWait bounds a question for members: what else is known is worth showing without them.
const membersWait = 3 * time.Second

var errMembersWait = fmt.Errorf("no answer within %v", membersWait)

// membersIn are the members of a consumer group that are connected to the master of a broker group.
func (c *Client) membersIn(ctx context.Context, of, group string) ([]Member, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, membersWait, errMembersWait)
	defer cancel()
	return readMembers(c.answerOfGroup(ctx, of, membersRequest(group)))
}

func membersRequest(group string) *remoting.Command {
	req := remoting.NewRequest(remoting.GetConsumerConnectionList)
	req.Set("consumerGroup", group)
	return req
}

// readMembers reads the answer to a membersRequest.
func readMembers(resp *remoting.Command, err error) ([]Member, error) {
	var code *CodeError
	if errors.As(err, &code) && code.Code == remoting.ConsumerNotOnline {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var body struct {
		Model       string `json:"messageModel"`
		Connections []struct {
			ClientID, ClientAddr, Language string
			Subscriptions                  map[string]string
		} `json:"connectionSet"`
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadAnswer, err)
	}
	var all []Member
	for _, m := range body.Connections {
		all = append(all, Member{m.ClientID, m.ClientAddr, m.Language, m.Subscriptions, body.Model == "BROADCASTING"})
	}
	return all, nil
}

// onceEach sorts members by client id, and leaves one of each: most are connected to several brokers.
func onceEach(members []Member) []Member {
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.ClientID, b.ClientID), cmp.Compare(a.Address, b.Address))
	})
	return slices.CompactFunc(members, func(a, b Member) bool { return a.ClientID == b.ClientID })
}
