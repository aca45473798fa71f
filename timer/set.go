package timer

import (
	"slices"
	"sort"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// blockSize bounds a block of a set: adding moves half a block on average.
const blockSize = 512

// set is an ordered set of entries in blocks, the whole set ascending. The zero value is empty.
//
// Invariant: no block is empty.
type set struct {
	blocks [][]Entry
	n      int
}

// blockOf returns the first block whose last entry is at or after p.
func (s *set) blockOf(p Pos) int {
	return sort.Search(len(s.blocks), func(i int) bool {
		b := s.blocks[i]
		return b[len(b)-1].Compare(p) >= 0
	})
}

func within(b []Entry, p Pos) (int, bool) {
	return slices.BinarySearchFunc(b, p, func(e Entry, p Pos) int { return e.Compare(p) })
}

// add adds e unless it is there.
func (s *set) add(e Entry) {
	i := s.blockOf(e.Pos)
	if i == len(s.blocks) {
		if i == 0 || len(s.blocks[i-1]) >= blockSize {
			s.blocks = append(s.blocks, append(make([]Entry, 0, blockSize), e))
			s.n++
			return
		}
		i--
	}
	at, there := within(s.blocks[i], e.Pos)
	if there {
		return
	}
	s.n++
	if len(s.blocks[i]) >= blockSize {
		half := append(make([]Entry, 0, blockSize), s.blocks[i][blockSize/2:]...)
		s.blocks[i] = s.blocks[i][:blockSize/2]
		s.blocks = slices.Insert(s.blocks, i+1, half)
		if at > blockSize/2 {
			i, at = i+1, at-blockSize/2
		}
	}
	s.blocks[i] = slices.Insert(s.blocks[i], at, e)
}

// from appends the first living entries at or behind low that are due at or before until, at most limit.
func (s *set) from(b Bounds, low ids.PhysicalOffset, until int64, limit int, all []Entry) []Entry {
	i := s.blockOf(b.After)
	for ; i < len(s.blocks); i++ {
		for _, e := range s.blocks[i] {
			if e.Due > until || limit <= 0 {
				return all
			}
			if e.Offset >= low && b.Alive(e.Pos) {
				all = append(all, e)
				limit--
			}
		}
	}
	return all
}

func (s *set) each(f func(Entry)) {
	for _, b := range s.blocks {
		for _, e := range b {
			f(e)
		}
	}
}

// keepFrom removes the entries that lie below off.
func (s *set) keepFrom(off ids.PhysicalOffset) {
	blocks := s.blocks[:0]
	s.n = 0
	for _, b := range s.blocks {
		if b = slices.DeleteFunc(b, func(e Entry) bool { return e.Offset < off }); len(b) > 0 {
			blocks = append(blocks, b)
			s.n += len(b)
		}
	}
	clear(s.blocks[len(blocks):])
	s.blocks = blocks
}
