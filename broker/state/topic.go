package state

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Topic is the configuration of one incarnation of a topic. Values that State hands out are shared: never change their
// attributes.
type Topic struct {
	ID          ids.TopicID // given by Apply, from 1, never twice in one group
	Name        string
	ReadQueues  int32
	WriteQueues int32
	Perm        int32 // bits: 4 read, 2 write, 1 inherit
	Order       bool
	SysFlag     int32
	Attributes  map[string]string
}

// equal compares what a put sets; the id is not part of it.
func (t *Topic) equal(o *Topic) bool {
	return t.Name == o.Name && t.ReadQueues == o.ReadQueues && t.WriteQueues == o.WriteQueues && t.Perm == o.Perm &&
		t.Order == o.Order && t.SysFlag == o.SysFlag && maps.Equal(t.Attributes, o.Attributes)
}

// topicState is a topic as the state keeps it. It is replaced, never changed.
type topicState struct {
	Topic
	// high is above every queue id that the topic ever had or got a message in: the bound of what a deletion drops.
	high ids.QueueID
}

// queueState is what is known of one queue. A queue without a message and never cut has none.
//
// Invariant: 0 <= min <= next.
type queueState struct {
	next ids.QueueOffset // of the next message
	min  ids.QueueOffset // of the first retained message; equal to next when none is
}

// PutMode tells what a put does to a thing that is already there.
type PutMode uint8

const (
	// Put replaces what is there, as an operator's change does.
	Put PutMode = 0
	// Create leaves alone what is there, as auto-creation must: it may race with an operator's change.
	Create PutMode = 1
)

func (s *State) applyTopicPut(c topicPut) Effect {
	old, exists := s.byName.get(c.topic.Name)
	if exists && (c.mode == Create || old.equal(&c.topic)) {
		return Effect{Kind: EffectNone, Topic: &old.Topic}
	}
	t := &topicState{Topic: c.topic}
	if exists {
		t.ID, t.high = old.ID, old.high
	} else {
		t.ID = s.nextTopic
		s.nextTopic++
	}
	t.high = max(t.high, ids.QueueID(t.ReadQueues), ids.QueueID(t.WriteQueues))
	s.setTopic(t)
	s.touchTopics()
	return Effect{Kind: EffectTopic, Topic: &t.Topic}
}

func (s *State) setTopic(t *topicState) {
	s.byName.put(s.own, t.Name, t)
	s.byID.put(s.own, t.ID, t)
}

func (s *State) touchTopics() {
	s.topicVersion = DataVersion{Counter: s.topicVersion.Counter + 1, Time: s.time}
}

// applyTopicDelete drops the topic and all that hangs on this incarnation: queue offsets, consumer offsets, locks.
func (s *State) applyTopicDelete(name string) Effect {
	t, ok := s.byName.get(name)
	if !ok {
		return Effect{Kind: EffectNone}
	}
	s.byName.del(s.own, t.Name)
	s.byID.del(s.own, t.ID)
	if int(t.high) <= s.queues.count {
		for q := range t.high {
			s.queues.del(s.own, index.Key{Topic: t.ID, Queue: q})
		}
	} else {
		s.queues.delWhere(s.own, nil, func(k index.Key, _ queueState) bool { return k.Topic == t.ID })
	}
	s.offsets.delWhere(s.own, &offsetKey{topic: t.ID}, func(k offsetKey, _ *queueOffsets) bool { return k.topic == t.ID })
	s.locks.delWhere(s.own, nil, func(k lockKey, _ lease) bool { return k.Topic == t.ID })
	s.resets.delWhere(s.own, nil, func(k lockKey, _ resetState) bool { return k.Topic == t.ID })
	s.touchTopics()
	return Effect{Kind: EffectTopicDeleted, Topic: &t.Topic}
}

// Topic returns the living incarnation of a topic.
func (s *State) Topic(name string) (Topic, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t, ok := s.byName.get(name); ok {
		return t.Topic, true
	}
	return Topic{}, false
}

// TopicByID returns the topic with this id. A deleted incarnation is not found.
func (s *State) TopicByID(id ids.TopicID) (Topic, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t, ok := s.byID.get(id); ok {
		return t.Topic, true
	}
	return Topic{}, false
}

// Topics returns all topics, sorted by name.
func (s *State) Topics() []Topic {
	s.mu.RLock()
	all := make([]Topic, 0, s.byName.count)
	for _, t := range s.byName.all() {
		all = append(all, t.Topic)
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// TopicVersion tells how often topics have changed, and when they did last. Name servers compare it.
func (s *State) TopicVersion() DataVersion {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.topicVersion
}

// NextOffset returns the queue offset that the next message of a queue gets; 0 for a queue that never had one.
func (s *State) NextOffset(k index.Key) ids.QueueOffset {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q, _ := s.queues.get(k)
	return q.next
}

// MinOffset returns the queue offset of the first retained message as the cuts of the front have told, NextOffset when
// none is retained.
func (s *State) MinOffset(k index.Key) ids.QueueOffset {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q, _ := s.queues.get(k)
	return q.min
}

// QueueRange returns MinOffset and NextOffset of one instant.
func (s *State) QueueRange(k index.Key) (first, next ids.QueueOffset) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q, _ := s.queues.get(k)
	return q.min, q.next
}

// Queues returns the number of queues that have, or had, a message.
func (s *State) Queues() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.queues.count
}
