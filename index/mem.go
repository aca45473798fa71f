package index

import (
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// memRun holds the entries of one span of the log inside one segment. It is changed under Index.mu while it is the active
// one, and never again after it was frozen.
//
// Invariants:
//  1. The span lies inside one segment, and every entry's offset lies inside the span.
//  2. The entries of a queue have consecutive queue offsets and ascending physical offsets.
type memRun struct {
	from, to ids.PhysicalOffset // to is set when it is frozen
	table    map[Key]int32      // place in queues
	queues   []memQueue
	words    memWords
}

type memQueue struct {
	key   Key
	first ids.QueueOffset
	list  []Entry
}

// newMemRun makes an empty run that expects about as many words as like had.
func newMemRun(from ids.PhysicalOffset, like uint32) *memRun {
	return &memRun{from: from, table: make(map[Key]int32), words: newMemWords(like)}
}

// add appends an entry. before answers for a queue that is new to m which offset follows in it, if that is known.
func (m *memRun) add(k Key, qo ids.QueueOffset, e Entry, before func(Key) (ids.QueueOffset, bool)) error {
	i, ok := m.table[k]
	if !ok {
		if next, known := before(k); known && next != qo {
			return &DensityError{Key: k, Want: next, Have: qo}
		}
		m.table[k] = int32(len(m.queues))
		m.queues = append(m.queues, memQueue{key: k, first: qo, list: []Entry{e}})
		return nil
	}
	q := &m.queues[i]
	if next := q.first + ids.QueueOffset(len(q.list)); qo != next {
		return &DensityError{Key: k, Want: next, Have: qo}
	}
	q.list = append(q.list, e)
	return nil
}

// read appends up to n entries from queue offset qo on to dst.
func (m *memRun) read(k Key, qo ids.QueueOffset, n int, dst []Entry) []Entry {
	i, ok := m.table[k]
	if !ok {
		return dst
	}
	q := &m.queues[i]
	at := int64(qo - q.first)
	if at < 0 || at >= int64(len(q.list)) {
		return dst
	}
	return append(dst, q.list[at:min(int64(len(q.list)), at+int64(n))]...)
}

func (m *memRun) lookup(k Key) (row, bool) {
	i, ok := m.table[k]
	if !ok {
		return row{}, false
	}
	return m.row(i), true
}

// row describes queue i; its start is i, for entriesAt and copyTo.
func (m *memRun) row(i int32) row {
	q := &m.queues[i]
	return row{key: q.key, first: q.first, start: uint32(i), count: uint32(len(q.list))}
}

func (m *memRun) entriesAt(r row, skip, n uint32, dst []Entry) []Entry {
	return append(dst, m.queues[r.start].list[skip:skip+n]...)
}

// cursor walks the queues in the order of their keys.
func (m *memRun) cursor() cursor {
	order := make([]int32, len(m.queues))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return m.queues[a].key.Compare(m.queues[b].key) })
	return &memCursor{m: m, order: order}
}

type memCursor struct {
	m     *memRun
	order []int32
	buf   [entrySize]byte
}

func (c *memCursor) next() (row, bool, error) {
	if len(c.order) == 0 {
		return row{}, false, nil
	}
	i := c.order[0]
	c.order = c.order[1:]
	return c.m.row(i), true, nil
}

func (c *memCursor) copyTo(w *writer, r row) error {
	for _, e := range c.m.queues[r.start].list {
		if err := w.entry(e.append(c.buf[:0])); err != nil {
			return err
		}
	}
	return nil
}
