package state

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"

	"github.com/ledgermq/ledgermq/index"
	"github.com/ledgermq/ledgermq/internal/ids"
)

// owner marks the parts that one State may change in place. It holds a byte so that two owners never share an address.
type owner struct{ _ byte }

// shards is a map in parts. A clone shares the parts; who writes first into a shared part copies that part alone, so a
// clone costs the copy of the part table and a write afterwards at most the copy of one part.
//
// Invariant: a part whose owner is not the writer's own is never changed.
type shards[K comparable, V any] struct {
	hash  func(K) uint32
	parts []part[K, V] // a power of two
	count int
}

type part[K comparable, V any] struct {
	owner *owner
	m     map[K]V
}

func newShards[K comparable, V any](parts int, hash func(K) uint32) shards[K, V] {
	return shards[K, V]{hash: hash, parts: make([]part[K, V], parts)}
}

func (s *shards[K, V]) at(k K) *part[K, V] { return &s.parts[s.hash(k)&uint32(len(s.parts)-1)] }

func (s *shards[K, V]) get(k K) (V, bool) {
	v, ok := s.at(k).m[k]
	return v, ok
}

// own makes p writable for o.
func (p *part[K, V]) own(o *owner) {
	if p.owner == o {
		return
	}
	if p.m == nil {
		p.m = make(map[K]V)
	} else {
		p.m = maps.Clone(p.m)
	}
	p.owner = o
}

func (s *shards[K, V]) put(o *owner, k K, v V) {
	p := s.at(k)
	p.own(o)
	before := len(p.m)
	p.m[k] = v
	s.count += len(p.m) - before
}

func (s *shards[K, V]) del(o *owner, k K) {
	p := s.at(k)
	if _, ok := p.m[k]; !ok {
		return
	}
	p.own(o)
	delete(p.m, k)
	s.count--
}

// delWhere removes from the part of k, or from all parts when k is nil, what the predicate names.
func (s *shards[K, V]) delWhere(o *owner, k *K, gone func(K, V) bool) {
	for i := range s.parts {
		p := &s.parts[i]
		if k != nil && p != s.at(*k) {
			continue
		}
		for key, v := range p.m {
			if gone(key, v) {
				s.del(o, key)
			}
		}
	}
}

func (s *shards[K, V]) clone() shards[K, V] {
	c := *s
	c.parts = slices.Clone(s.parts)
	return c
}

// all walks everything in no order.
func (s *shards[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for i := range s.parts {
			for k, v := range s.parts[i].m {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// seed differs from process to process: which part holds a key is no part of the state, the canonical form is sorted.
var seed = maphash.MakeSeed()

func hashName(s string) uint32 { return uint32(maphash.String(seed, s)) }

func hashTopic(t ids.TopicID) uint32 { return mix(uint64(t)) }

func hashKey(k index.Key) uint32 { return mix(uint64(k.Topic)<<32 | uint64(uint32(k.Queue))) }

// mix spreads consecutive numbers over all bits (a multiplication by 2^64 divided by the golden ratio).
func mix(x uint64) uint32 {
	x *= 0x9e3779b97f4a7c15
	return uint32(x >> 40)
}
