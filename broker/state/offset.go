package state

import (
	"cmp"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// ConsumerOffset is the next queue offset that a group will read in a queue. The topic goes by its id, so that an offset
// of a deleted incarnation can never move one that was created again under the same name.
type ConsumerOffset struct {
	Group  string
	Topic  ids.TopicID
	Queue  ids.QueueID
	Offset ids.QueueOffset
}

// offsetKey is one group on one topic. The part of the map follows from the topic alone: a deletion looks at one part.
type offsetKey struct {
	topic ids.TopicID
	group string
}

func hashOffset(k offsetKey) uint32 { return hashTopic(k.topic) }

// queueOffsets are the offsets of one group on one topic, sorted by queue.
type queueOffsets struct {
	owner *owner
	list  []queueOffset
}

type queueOffset struct {
	queue  ids.QueueID
	offset ids.QueueOffset
}

func (q *queueOffsets) find(id ids.QueueID) (int, bool) {
	return slices.BinarySearchFunc(q.list, id, func(o queueOffset, id ids.QueueID) int { return cmp.Compare(o.queue, id) })
}

// applyOffsets stores each offset of the list. One of an unknown topic, or of a queue that the topic never had, or below
// zero is left out; one beyond the queue's end is taken as the end: progress never runs ahead of what can be read. What members commit
// while a reset is pending is left out: it is of what they had before.
func (s *State) applyOffsets(c []ConsumerOffset, reset bool) Effect {
	stored := c[:0]
	var back []ConsumerOffset
	for _, o := range c {
		t, ok := s.byID.get(o.Topic)
		if !ok || o.Queue < 0 || o.Queue >= t.high || o.Offset < 0 {
			continue
		}
		k := index.Key{Topic: o.Topic, Queue: o.Queue}
		if s.resets.count > 0 && !reset {
			if _, pending := s.resets.get(lockKey{k, o.Group}); pending {
				continue
			}
		}
		q, _ := s.queues.get(k)
		o.Offset = min(o.Offset, q.next)
		if before, had := s.setOffset(o); had && before > o.Offset && !reset {
			back = append(back, o)
		}
		stored = append(stored, o)
	}
	if len(stored) == 0 {
		return Effect{Kind: EffectNone}
	}
	return Effect{Kind: EffectOffsets, Offsets: stored, Back: back}
}

// setOffset returns what was stored before, if anything was.
func (s *State) setOffset(o ConsumerOffset) (before ids.QueueOffset, had bool) {
	k := offsetKey{o.Topic, o.Group}
	q, ok := s.offsets.get(k)
	if !ok || q.owner != s.own {
		own := &queueOffsets{owner: s.own}
		if ok {
			own.list = slices.Clone(q.list)
		}
		q = own
		s.offsets.put(s.own, k, q)
	}
	i, had := q.find(o.Queue)
	if !had {
		q.list = slices.Insert(q.list, i, queueOffset{queue: o.Queue})
	}
	before, q.list[i].offset = q.list[i].offset, o.Offset
	return before, had
}

// ConsumerOffset returns the stored offset of a group in a queue. ok is false when none was ever stored for the living
// incarnation of the topic.
func (s *State) ConsumerOffset(group, topic string, queue ids.QueueID) (offset ids.QueueOffset, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.byName.get(topic)
	if !ok {
		return 0, false
	}
	q, ok := s.offsets.get(offsetKey{t.ID, group})
	if !ok {
		return 0, false
	}
	i, ok := q.find(queue)
	if !ok {
		return 0, false
	}
	return q.list[i].offset, true
}

// ConsumerOffsets returns all offsets of a group on a topic, sorted by queue.
func (s *State) ConsumerOffsets(group, topic string) []ConsumerOffset {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.byName.get(topic)
	if !ok {
		return nil
	}
	q, ok := s.offsets.get(offsetKey{t.ID, group})
	if !ok {
		return nil
	}
	all := make([]ConsumerOffset, len(q.list))
	for i, o := range q.list {
		all[i] = ConsumerOffset{Group: group, Topic: t.ID, Queue: o.queue, Offset: o.offset}
	}
	return all
}

// GroupsOn returns the groups that have an offset on a topic, sorted.
func (s *State) GroupsOn(topic string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.byName.get(topic)
	if !ok {
		return nil
	}
	var names []string
	for k := range s.offsets.at(offsetKey{topic: t.ID}).m {
		if k.topic == t.ID {
			names = append(names, k.group)
		}
	}
	slices.Sort(names)
	return names
}

// GroupsByTopic returns the groups that have an offset on each topic, sorted. It looks at all offsets of the state, a part at a time.
func (s *State) GroupsByTopic() map[ids.TopicID][]string {
	all := map[ids.TopicID][]string{}
	for i := range s.offsets.parts {
		s.mu.RLock()
		for k := range s.offsets.parts[i].m {
			all[k.topic] = append(all[k.topic], k.group)
		}
		s.mu.RUnlock()
	}
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// TopicsOf returns the topics on which a group has an offset, sorted. It looks at all offsets of the state.
func (s *State) TopicsOf(group string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for k := range s.offsets.all() {
		if k.group == group {
			if t, ok := s.byID.get(k.topic); ok {
				names = append(names, t.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}
