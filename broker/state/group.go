package state

import (
	"cmp"
	"maps"
	"slices"
)

// SubscriptionGroup is the configuration of a consumer group, RocketMQ's SubscriptionGroupConfig. Values that State hands
// out are shared: never change their slices and maps.
type SubscriptionGroup struct {
	Name                 string
	ConsumeEnable        bool
	ConsumeFromMinEnable bool
	BroadcastEnable      bool
	Orderly              bool // consumeMessageOrderly
	NotifyIDsChanged     bool // notifyConsumerIdsChangedEnable
	RetryQueues          int32
	RetryMax             int32 // retryMaxTimes
	BrokerID             int64
	WhenSlowBrokerID     int64 // whichBrokerWhenConsumeSlowly
	SysFlag              int32
	TimeoutMinutes       int32 // consumeTimeoutMinute
	RetryPolicy          RetryPolicy
	Subscriptions        []Subscription // static ones
	Attributes           map[string]string
}

// RetryKind names the shape of a retry policy.
type RetryKind uint8

// The shapes of a retry policy.
const (
	RetryDefault     RetryKind = 0 // none was given
	RetryCustomized  RetryKind = 1 // Next counts
	RetryExponential RetryKind = 2 // Initial, Max and Multiplier count
)

// RetryPolicy tells how long a message waits before it is delivered again. Times are milliseconds.
type RetryPolicy struct {
	Kind                     RetryKind
	Initial, Max, Multiplier int64
	Next                     []int64
}

// Subscription is a static subscription of a group.
type Subscription struct {
	Topic          string
	Expression     string
	ExpressionType string // TAG or SQL92
	Version        int64
}

// DefaultGroup returns RocketMQ's defaults for a group of this name.
func DefaultGroup(name string) SubscriptionGroup {
	return SubscriptionGroup{
		Name: name, ConsumeEnable: true, ConsumeFromMinEnable: true, BroadcastEnable: true, NotifyIDsChanged: true,
		RetryQueues: 1, RetryMax: 16, WhenSlowBrokerID: 1, TimeoutMinutes: 15,
	}
}

func (g *SubscriptionGroup) equal(o *SubscriptionGroup) bool {
	return g.Name == o.Name && g.ConsumeEnable == o.ConsumeEnable && g.ConsumeFromMinEnable == o.ConsumeFromMinEnable &&
		g.BroadcastEnable == o.BroadcastEnable && g.Orderly == o.Orderly && g.NotifyIDsChanged == o.NotifyIDsChanged &&
		g.RetryQueues == o.RetryQueues && g.RetryMax == o.RetryMax && g.BrokerID == o.BrokerID &&
		g.WhenSlowBrokerID == o.WhenSlowBrokerID && g.SysFlag == o.SysFlag && g.TimeoutMinutes == o.TimeoutMinutes &&
		g.RetryPolicy.Kind == o.RetryPolicy.Kind && g.RetryPolicy.Initial == o.RetryPolicy.Initial &&
		g.RetryPolicy.Max == o.RetryPolicy.Max && g.RetryPolicy.Multiplier == o.RetryPolicy.Multiplier &&
		slices.Equal(g.RetryPolicy.Next, o.RetryPolicy.Next) && slices.Equal(g.Subscriptions, o.Subscriptions) &&
		maps.Equal(g.Attributes, o.Attributes)
}

func (s *State) applyGroupPut(c groupPut) Effect {
	old, exists := s.groups.get(c.group.Name)
	if exists && (c.mode == Create || old.equal(&c.group)) {
		return Effect{Kind: EffectNone, Group: old}
	}
	g := c.group
	s.groups.put(s.own, g.Name, &g)
	s.touchGroups()
	return Effect{Kind: EffectGroup, Group: &g}
}

func (s *State) touchGroups() {
	s.groupVersion = DataVersion{Counter: s.groupVersion.Counter + 1, Time: s.time}
}

// applyGroupDelete drops the group, and its consumer offsets when that is asked for. Its locks end with their leases: a
// consumer that still works on a queue keeps it until then.
func (s *State) applyGroupDelete(c groupDelete) Effect {
	if c.cleanOffsets {
		s.offsets.delWhere(s.own, nil, func(k offsetKey, _ *queueOffsets) bool { return k.group == c.name })
		s.resets.delWhere(s.own, nil, func(k lockKey, _ resetState) bool { return k.group == c.name })
	}
	g, ok := s.groups.get(c.name)
	if !ok {
		return Effect{Kind: EffectNone}
	}
	s.groups.del(s.own, c.name)
	s.touchGroups()
	return Effect{Kind: EffectGroupDeleted, Group: g}
}

// Group returns the configuration of a group.
func (s *State) Group(name string) (SubscriptionGroup, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if g, ok := s.groups.get(name); ok {
		return *g, true
	}
	return SubscriptionGroup{}, false
}

// Groups returns all groups, sorted by name.
func (s *State) Groups() []SubscriptionGroup {
	s.mu.RLock()
	all := make([]SubscriptionGroup, 0, s.groups.count)
	for _, g := range s.groups.all() {
		all = append(all, *g)
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b SubscriptionGroup) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// GroupVersion tells how often groups have changed, and when they did last.
func (s *State) GroupVersion() DataVersion {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.groupVersion
}
