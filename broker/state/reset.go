package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// Reset is a consumer offset that an operator set and that no member of the group has taken over yet. Until one has, what the members
// commit for the queue is left out: they still work on what they had before.
type Reset struct {
	Group  string
	Key    index.Key
	Offset ids.QueueOffset
	Time   int64 // log time of the command, milliseconds
}

type resetState struct {
	offset ids.QueueOffset
	time   int64
}

type (
	resetCommand struct {
		group   string
		offsets []ConsumerOffset
	}
	resetTaken struct{ reset Reset } // without time
)

// AppendReset appends the body of a RecordReset to dst. The group of the offsets does not matter.
func AppendReset(dst []byte, group string, offsets []ConsumerOffset) []byte {
	dst = put32(putString(dst, group), uint32(len(offsets)))
	for _, o := range offsets {
		dst = put64(put32(put32(dst, o.Topic), o.Queue), o.Offset)
	}
	return dst
}

// AppendResetTaken appends the body of a RecordResetTaken to dst.
func AppendResetTaken(dst []byte, group string, k index.Key, offset ids.QueueOffset) []byte {
	return put64(put32(put32(putString(dst, group), k.Topic), k.Queue), offset)
}

func (d *decoder) reset() resetCommand {
	c := resetCommand{group: d.name()}
	for range d.count(16) {
		k := d.key()
		c.offsets = append(c.offsets, ConsumerOffset{Group: c.group, Topic: k.Topic, Queue: k.Queue, Offset: d.offset()})
	}
	return c
}

func (d *decoder) resetTaken() resetTaken {
	return resetTaken{Reset{Group: d.name(), Key: d.key(), Offset: d.offset()}}
}

func (d *decoder) offset() ids.QueueOffset {
	o := ids.QueueOffset(d.u64())
	if o < 0 {
		d.fail(fmt.Errorf("queue offset %d", o))
	}
	return o
}

// applyReset moves the group's offset in each queue of the list, and notes that its members have not taken that over yet. As with
// commits, what is of no queue is left out, and the end of the queue is the limit.
func (s *State) applyReset(c resetCommand) Effect {
	e := s.applyOffsets(c.offsets, true)
	if e.Kind == EffectNone {
		return e
	}
	for _, o := range e.Offsets {
		s.resets.put(s.own, lockKey{index.Key{Topic: o.Topic, Queue: o.Queue}, c.group}, resetState{o.Offset, s.time})
	}
	e.Kind = EffectReset
	return e
}

// applyResetTaken ends a reset, unless another one to a different offset came after it.
func (s *State) applyResetTaken(c resetTaken) Effect {
	k := lockKey{c.reset.Key, c.reset.Group}
	if r, ok := s.resets.get(k); ok && r.offset == c.reset.Offset {
		s.resets.del(s.own, k)
	}
	return Effect{Kind: EffectNone}
}

// PendingReset returns the reset of a group in a queue that no member has taken over yet.
func (s *State) PendingReset(group string, k index.Key) (Reset, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.resets.count == 0 {
		return Reset{}, false
	}
	r, ok := s.resets.get(lockKey{k, group})
	return Reset{group, k, r.offset, r.time}, ok
}

// pendingResets returns all resets that no member has taken over yet, sorted by topic, queue and group.
func (s *State) pendingResets() []Reset {
	all := make([]Reset, 0, s.resets.count)
	for k, r := range s.resets.all() {
		all = append(all, Reset{k.group, k.Key, r.offset, r.time})
	}
	slices.SortFunc(all, func(a, b Reset) int {
		return cmp.Or(a.Key.Compare(b.Key), strings.Compare(a.Group, b.Group))
	})
	return all
}

func (s *State) writeResets(k *sink) {
	all := s.pendingResets()
	k.b = put32(k.b, uint32(len(all)))
	for _, r := range all {
		k.b = putString(put32(put32(k.b, r.Key.Topic), r.Key.Queue), r.Group)
		k.b = put64(put64(k.b, r.Offset), r.Time)
		k.full()
	}
}

func (s *State) readResets(d *decoder) {
	var last lockKey
	for i := range d.count(28) {
		key := lockKey{Key: d.key()}
		key.group = d.name()
		r := resetState{d.offset(), int64(d.u64())}
		d.ascending(i == 0, last.compare(key))
		last = key
		stored, ok := ids.QueueOffset(0), false
		if q, known := s.offsets.get(offsetKey{key.Topic, key.group}); known {
			var j int
			if j, ok = q.find(key.Queue); ok {
				stored = q.list[j].offset
			}
		}
		if !ok || stored != r.offset || r.time > s.time {
			d.fail(fmt.Errorf("the reset of group %q in queue %v makes no sense", key.group, key.Key))
		}
		if d.err != nil {
			return
		}
		s.resets.put(s.own, key, r)
	}
}
