package state

import (
	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// LeaseMillis is how long a queue lock holds after it was last taken, in milliseconds of log time.
const LeaseMillis = 60_000

type lockKey struct {
	index.Key
	group string
}

func hashLock(k lockKey) uint32 { return hashKey(k.Key) ^ hashName(k.group) }

type lease struct {
	client  string
	expires int64
}

// applyLock gives each queue of the list to the client, unless another client's lease lives. A client that holds one
// already gets a new lease. Queues of unknown topics are refused. The answer lists what the client now holds of the list.
func (s *State) applyLock(c lockCommand) Effect {
	granted := c.keys[:0]
	for _, k := range c.keys {
		if _, ok := s.byID.get(k.Topic); !ok {
			continue
		}
		id := lockKey{k, c.group}
		if l, ok := s.locks.get(id); ok && l.client != c.client && l.expires > s.time {
			continue
		}
		s.locks.put(s.own, id, lease{c.client, s.time + LeaseMillis})
		granted = append(granted, k)
	}
	s.sweepLocks()
	return Effect{Kind: EffectLocks, Locked: granted}
}

// applyUnlock frees the queues of the list that the client holds. Others are left alone.
func (s *State) applyUnlock(c lockCommand) Effect {
	freed := c.keys[:0]
	for _, k := range c.keys {
		id := lockKey{k, c.group}
		if l, ok := s.locks.get(id); ok && l.client == c.client {
			s.locks.del(s.own, id)
			freed = append(freed, k)
		}
	}
	return Effect{Kind: EffectUnlocked, Locked: freed}
}

// applyExtension gives each lock that lived before this record's frame a whole lease again: while a group has no master
// nobody can renew. Once in a term; the command must be the first record of the term's first frame with records, since
// the log time moves with each frame.
func (s *State) applyExtension(before int64, term ids.Term) Effect {
	if term <= s.leaseTerm {
		return Effect{Kind: EffectNone}
	}
	s.leaseTerm = term
	for k, l := range s.locks.all() {
		if l.expires > before {
			l.expires = s.time + LeaseMillis
			s.locks.put(s.own, k, l)
		}
	}
	return Effect{Kind: EffectLeases}
}

// sweepLocks forgets the ended leases of one part. An ended lease is no part of the state: the canonical form leaves it
// out, so it does not matter when its memory is freed.
func (s *State) sweepLocks() {
	p := &s.locks.parts[s.sweep%len(s.locks.parts)]
	s.sweep++
	for k, l := range p.m {
		if l.expires <= s.time {
			s.locks.del(s.own, k)
		}
	}
}

// HoldsLocks tells whether a client of the group holds the living lock of any queue. It looks at all locks.
func (s *State) HoldsLocks(group string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for k, l := range s.locks.all() {
		if k.group == group && l.expires > s.time {
			return true
		}
	}
	return false
}
