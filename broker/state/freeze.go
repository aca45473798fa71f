package state

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
	names "github.com/ledgermq/ledgermq/message"
)

// A group that is to be removed is frozen first: by a record of its log, which has an effect only when nothing is left in the group that
// somebody still wants, or when an operator gives that up. What is left is looked at where the record is applied, so no message and no
// commit can come between the look and the freeze. A freeze is for ever. Behind it the master puts no message into the log, and so does each one
// after it: it has applied the freeze before it leads.

// Freeze tells whether a group is frozen, and how it was.
type Freeze uint8

// The freezes.
const (
	NotFrozen    Freeze = 0
	FrozenEmpty  Freeze = 1 // everything was consumed, nothing waited
	FrozenGiveUp Freeze = 2 // what was left was given up
)

// freezeCommand freezes the group.
type freezeCommand struct{ giveUp bool }

// AppendFreeze appends the body of a RecordFreeze to dst. With giveUp the group is frozen whatever is left in it.
func AppendFreeze(dst []byte, giveUp bool) []byte { return putBool(dst, giveUp) }

func (s *State) applyFreeze(c freezeCommand) Effect {
	switch {
	case s.freeze != NotFrozen:
	case s.empty():
		s.freeze = FrozenEmpty
	case c.giveUp:
		s.freeze = FrozenGiveUp
	default:
		return Effect{Kind: EffectNone}
	}
	return Effect{Kind: EffectFrozen}
}

// Frozen tells whether the group is frozen.
func (s *State) Frozen() Freeze {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.freeze
}

func (s *State) empty() bool {
	if s.timers.pending > 0 || s.tx.pending.count > 0 {
		return false
	}
	behind := false
	s.behind(func(Behind, index.Key) bool {
		behind = true
		return false
	})
	return !behind
}

// Behind is a consumer group that has not consumed all of a queue.
type Behind struct {
	Topic    string
	Group    string
	Queue    ids.QueueID
	Messages int64
}

// Left is what is left in a group that somebody still wants.
type Left struct {
	Messages     int64    // in queues, that a consumer group has not consumed; one that several have not counts once
	Behind       []Behind // by topic, consumer group and queue; not all of them when there are very many
	More         int      // pairs of consumer group and queue that Behind leaves out
	Timers       uint64   // delayed messages that wait for their time
	Transactions int      // pending ones
}

// maxBehind bounds Left.Behind.
const maxBehind = 1000

// Left returns what is left. It looks at all offsets and queues.
func (s *State) Left() Left {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := Left{Timers: s.timers.pending, Transactions: s.tx.pending.count}
	most := map[index.Key]int64{}
	s.behind(func(b Behind, k index.Key) bool {
		most[k] = max(most[k], b.Messages)
		if len(l.Behind) < maxBehind {
			l.Behind = append(l.Behind, b)
		} else {
			l.More++
		}
		return true
	})
	for _, n := range most {
		l.Messages += n
	}
	slices.SortFunc(l.Behind, func(a, b Behind) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Queue, b.Queue))
	})
	return l
}

// behind calls f for each queue of which a consumer group has something left, in no order, until f returns false. A consumer group
// consumes the topics on which it has an offset, all their queues, and its own retry topic.
func (s *State) behind(f func(Behind, index.Key) bool) {
	none := &queueOffsets{}
	for k, q := range s.offsets.all() {
		if t, ok := s.byID.get(k.topic); ok && !s.behindOn(t, k.group, q, f) {
			return
		}
	}
	for name, t := range s.byName.all() {
		group, retry := names.GroupOfRetryTopic(name)
		if !retry {
			continue
		}
		if _, looked := s.offsets.get(offsetKey{t.ID, group}); !looked && !s.behindOn(t, group, none, f) {
			return
		}
	}
}

// behindOn is behind for one consumer group on one topic. It returns what f did last.
func (s *State) behindOn(t *topicState, group string, offsets *queueOffsets, f func(Behind, index.Key) bool) bool {
	for id := range t.high {
		k := index.Key{Topic: t.ID, Queue: id}
		q, _ := s.queues.get(k)
		from := q.min
		if i, ok := offsets.find(id); ok {
			from = max(from, offsets.list[i].offset)
		}
		if from < q.next && !f(Behind{t.Name, group, id, int64(q.next - from)}, k) {
			return false
		}
	}
	return true
}

// The section of the freeze is one byte.
func (s *State) writeFreeze(k *sink) { k.b = append(k.b, byte(s.freeze)) }

func (s *State) readFreeze(d *decoder) {
	if s.freeze = Freeze(d.u8()); s.freeze > FrozenGiveUp {
		d.fail(fmt.Errorf("freeze %d", s.freeze))
	}
}
