package broker

import (
	"slices"
	"time"

	"github.com/ledgermq/ledgermq/remoting"
)

// Names that RocketMQ's heartbeat uses.
const (
	modelBroadcasting = "BROADCASTING"
	expressionTag     = "TAG"
)

// HeartbeatData is the body of a HEART_BEAT request, as all RocketMQ clients send it.
type HeartbeatData struct {
	ClientID        string         `json:"clientID"`
	ProducerDataSet []ProducerData `json:"producerDataSet"`
	ConsumerDataSet []ConsumerData `json:"consumerDataSet"`
}

// ProducerData names one producer group of a client.
type ProducerData struct {
	GroupName string `json:"groupName"`
}

// ConsumerData tells one consumer group of a client and what it subscribes to.
type ConsumerData struct {
	GroupName           string             `json:"groupName"`
	ConsumeType         string             `json:"consumeType"`
	MessageModel        string             `json:"messageModel"`
	ConsumeFromWhere    string             `json:"consumeFromWhere"`
	SubscriptionDataSet []SubscriptionData `json:"subscriptionDataSet"`
}

// SubscriptionData is one topic of a consumer group with its filter.
type SubscriptionData struct {
	Topic          string   `json:"topic"`
	SubString      string   `json:"subString"`
	TagsSet        []string `json:"tagsSet"`
	SubVersion     int64    `json:"subVersion"`
	ExpressionType string   `json:"expressionType"`
}

// presence is who is connected to one replica: producers and consumers by group. It is pure (events with a time go in, the
// groups whose members must be told come out) and lives in memory only, since a client says all of it again every 30 s to
// every broker. C is the connection. The owner serialises calls.
//
// Invariants: a connection is in conns exactly while it has at least one member, and in producing exactly while it is a producer. With fits
// before each heartbeat it is at most maxListed of each. A group is in mixed exactly while its mixture is not empty.
type presence[C comparable] struct {
	groups    map[string]*consumerGroup[C]
	producers map[string]map[C]*member
	conns     map[C]map[string]bool // consumer groups of a connection
	producing map[C]map[string]bool // producer groups of a connection
	asks      int64                 // how often a producer was chosen
	mixed     map[string][]string   // groups whose members differ: in which topics
}

// consumerGroup has what its members said last of the group as a whole.
type consumerGroup[C comparable] struct {
	consumeType, model, fromWhere string
	members                       map[C]*member
}

type member struct {
	clientInfo
	clientID string
	joined   time.Time // of this connection
	seen     time.Time
	asked    int64 // by asks; of a producer
	subs     map[string]SubscriptionData
}

// clientInfo is what the header of a heartbeat tells of a client.
type clientInfo struct {
	language byte
	version  int32
}

// memberExpiry is how long a member may stay silent; clients send a heartbeat every 30 s.
const memberExpiry = 120 * time.Second

func newPresence[C comparable]() *presence[C] {
	return &presence[C]{groups: map[string]*consumerGroup[C]{}, producers: map[string]map[C]*member{},
		conns: map[C]map[string]bool{}, producing: map[C]map[string]bool{}, mixed: map[string][]string{}}
}

// fits returns nil when a connection has at most maxListed producer groups and as many consumer groups with what a heartbeat says.
func (p *presence[C]) fits(c C, hb *HeartbeatData) error {
	var producers, consumers map[string]bool // new ones
	note := func(fresh *map[string]bool, had map[string]bool, group string) {
		if had[group] {
			return
		}
		if *fresh == nil {
			*fresh = map[string]bool{}
		}
		(*fresh)[group] = true
	}
	for _, d := range hb.ProducerDataSet {
		note(&producers, p.producing[c], d.GroupName)
	}
	for _, d := range hb.ConsumerDataSet {
		note(&consumers, p.conns[c], d.GroupName)
	}
	if n := len(p.producing[c]) + len(producers); n > maxListed {
		return refuse(remoting.InvalidParameter, "this connection would have %d producer groups: it can have %d", n, maxListed)
	}
	if n := len(p.conns[c]) + len(consumers); n > maxListed {
		return refuse(remoting.InvalidParameter, "this connection would have %d consumer groups: it can have %d", n, maxListed)
	}
	return nil
}

// heartbeat takes in what a client says of itself. It returns the groups in which a member or a subscription is new.
func (p *presence[C]) heartbeat(c C, info clientInfo, hb HeartbeatData, now time.Time) (changed []string) {
	for _, d := range hb.ProducerDataSet {
		g := p.producers[d.GroupName]
		if g == nil {
			g = map[C]*member{}
			p.producers[d.GroupName] = g
		}
		if p.producing[c] == nil {
			p.producing[c] = map[string]bool{}
		}
		p.producing[c][d.GroupName] = true
		if m := g[c]; m != nil && m.clientID == hb.ClientID {
			m.seen, m.clientInfo = now, info
			continue
		}
		g[c] = &member{clientInfo: info, clientID: hb.ClientID, seen: now}
	}
	for _, d := range hb.ConsumerDataSet {
		g := p.groups[d.GroupName]
		if g == nil {
			g = &consumerGroup[C]{members: map[C]*member{}}
			p.groups[d.GroupName] = g
		}
		g.consumeType, g.model, g.fromWhere = d.ConsumeType, d.MessageModel, d.ConsumeFromWhere
		m := g.members[c]
		fresh := m == nil || m.clientID != hb.ClientID
		if fresh {
			m = &member{clientID: hb.ClientID, joined: now, subs: map[string]SubscriptionData{}}
			g.members[c] = m
			if p.conns[c] == nil {
				p.conns[c] = map[string]bool{}
			}
			p.conns[c][d.GroupName] = true
		}
		m.clientInfo, m.seen = info, now
		if m.subscribe(d.SubscriptionDataSet) || fresh {
			changed = append(changed, d.GroupName)
			p.remix(d.GroupName)
		}
	}
	return changed
}

// subscribe replaces the member's subscriptions and tells whether a topic came, went or has a newer version.
func (m *member) subscribe(set []SubscriptionData) (changed bool) {
	next := make(map[string]SubscriptionData, len(set))
	for _, s := range set {
		if old, ok := m.subs[s.Topic]; ok && old.SubVersion >= s.SubVersion {
			s = old
		} else if !ok || old.SubString != s.SubString {
			changed = true
		}
		next[s.Topic] = s
	}
	changed = changed || len(next) != len(m.subs)
	m.subs = next
	return changed
}

// unregister removes a client that says goodbye from the groups it names; an empty name is no group.
func (p *presence[C]) unregister(c C, producerGroup, consumerGroup string) (changed []string) {
	p.dropProducer(c, producerGroup)
	if p.drop(c, consumerGroup) {
		changed = append(changed, consumerGroup)
	}
	return changed
}

// closed removes all that a connection had registered.
func (p *presence[C]) closed(c C) (changed []string) {
	for g := range p.producing[c] {
		p.dropProducer(c, g)
	}
	for g := range p.conns[c] {
		if p.drop(c, g) {
			changed = append(changed, g)
		}
	}
	slices.Sort(changed)
	return changed
}

// expire removes members that were silent for memberExpiry.
func (p *presence[C]) expire(now time.Time) (changed []string) {
	for name, g := range p.producers {
		for c, m := range g {
			if now.Sub(m.seen) > memberExpiry {
				p.dropProducer(c, name)
			}
		}
	}
	for name, g := range p.groups {
		for c, m := range g.members {
			if now.Sub(m.seen) > memberExpiry && p.drop(c, name) {
				changed = append(changed, name)
			}
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

func (p *presence[C]) dropProducer(c C, group string) {
	g := p.producers[group]
	delete(g, c)
	if g != nil && len(g) == 0 {
		delete(p.producers, group)
	}
	delete(p.producing[c], group)
	if len(p.producing[c]) == 0 {
		delete(p.producing, c)
	}
}

func (p *presence[C]) drop(c C, group string) bool {
	g := p.groups[group]
	if g == nil || g.members[c] == nil {
		return false
	}
	delete(g.members, c)
	if len(g.members) == 0 {
		delete(p.groups, group)
	}
	delete(p.conns[c], group)
	if len(p.conns[c]) == 0 {
		delete(p.conns, c)
	}
	p.remix(group)
	return true
}

// producer returns a connection of a producer group, another one each time: the one that was asked longest ago.
func (p *presence[C]) producer(group string) (c C, ok bool) {
	var next *member
	for k, m := range p.producers[group] {
		if next == nil || m.asked < next.asked {
			c, next = k, m
		}
	}
	if next == nil {
		return c, false
	}
	p.asks++
	next.asked = p.asks
	return c, true
}

// members returns the sorted client ids of a group.
func (p *presence[C]) members(group string) []string {
	g := p.groups[group]
	if g == nil {
		return nil
	}
	ids := make([]string, 0, len(g.members))
	for _, m := range g.members {
		ids = append(ids, m.clientID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// broadcasting are the groups that broadcast.
func (p *presence[C]) broadcasting() map[string]bool {
	all := map[string]bool{}
	for name, g := range p.groups {
		if g.model == modelBroadcasting {
			all[name] = true
		}
	}
	return all
}

// listeners returns the connections that must hear of a change in the group: none for a broadcasting one, since its members
// do not share queues.
func (p *presence[C]) listeners(group string) []C {
	g := p.groups[group]
	if g == nil || g.model == modelBroadcasting {
		return nil
	}
	out := make([]C, 0, len(g.members))
	for c := range g.members {
		out = append(out, c)
	}
	return out
}

// subscription returns what the connection itself subscribes to, or, for a connection that sent no heartbeat, the newest
// subscription of its group. Members of one group may differ while a filter is rolled out; each is served by its own.
func (p *presence[C]) subscription(c C, group, topic string) (s SubscriptionData, groupKnown, found bool) {
	g := p.groups[group]
	if g == nil {
		return s, false, false
	}
	if m := g.members[c]; m != nil {
		s, found = m.subs[topic]
		return s, true, found
	}
	for _, m := range g.members {
		if t, ok := m.subs[topic]; ok && (!found || t.SubVersion > s.SubVersion) {
			s, found = t, true
		}
	}
	return s, true, found
}
