package timer

import (
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Checkpoint makes durable what lies below to in the log: all of it was added, and is committed. b are the bounds of a state whose
// log is durable; what is dead by them is left out, for good. After an error everything is as it was.
func (x *Index) Checkpoint(to ids.PhysicalOffset, b Bounds) error {
	x.work.Lock()
	defer x.work.Unlock()
	from := x.Covered() // what lies before it is in a run, or dead
	if to <= from {
		x.forget(from)
		return nil
	}
	var fresh []Entry
	x.memMu.Lock()
	x.mem.each(func(e Entry) {
		if e.Offset >= from && e.Offset < to && b.Alive(e.Pos) {
			fresh = append(fresh, e)
		}
	})
	x.memMu.Unlock()
	x.mu.RLock()
	runs, closed := x.runs, x.closed
	x.mu.RUnlock()
	if closed {
		return ErrClosed
	}
	// A run is merged with what comes when it is not more than twice as large: so there are few runs, and an entry is written as many
	// times as the logarithm of their number.
	keep, n := len(runs), len(fresh)
	for keep > 0 && runs[keep-1].count <= 2*n {
		keep--
		n += runs[keep].count
		from = runs[keep].from
	}
	r, err := x.merge(runs[keep:], fresh, b, from, to)
	if err != nil {
		return fmt.Errorf("timer index: write the timers from %d to %d: %w", from, to, err)
	}
	x.mu.Lock()
	x.runs = append(slices.Clone(runs[:keep]), r)
	x.mu.Unlock()
	x.forget(to)
	for _, old := range runs[keep:] {
		x.drop(old)
	}
	return nil
}

// forget frees the memory of what lies below to: a run has it.
func (x *Index) forget(to ids.PhysicalOffset) {
	x.memMu.Lock()
	defer x.memMu.Unlock()
	x.mem.keepFrom(to)
}

// merge writes a run of what is alive of some runs and entries.
func (x *Index) merge(runs []*run, fresh []Entry, b Bounds, from, to ids.PhysicalOffset) (_ *run, err error) {
	w, err := newRunWriter(x.o.FS, runName(x.o.Dir, from, to))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.abandon()
		}
	}()
	sources := make([]*source, 0, len(runs)+1)
	for _, r := range runs {
		sources = append(sources, &source{r: r, buf: make([]byte, pageSize)})
	}
	sources = append(sources, &source{list: fresh})
	for {
		var first *source
		for _, s := range sources {
			if err := s.fill(b); err != nil {
				return nil, err
			}
			if len(s.list) > 0 && (first == nil || s.list[0].Compare(first.list[0].Pos) < 0) {
				first = s
			}
		}
		if first == nil {
			break
		}
		if err := w.add(first.list[0]); err != nil {
			return nil, err
		}
		first.list = first.list[1:]
	}
	return w.finish(x.o.Group, from, to)
}

// source hands out the living entries of a run in their order.
type source struct {
	r    *run // nil: list is all
	next int  // page
	buf  []byte
	page []Entry
	list []Entry
}

func (s *source) fill(b Bounds) error {
	for len(s.list) == 0 && s.r != nil && s.next < s.r.pages() {
		p, err := s.r.page(s.next, s.buf)
		if err != nil {
			return err
		}
		s.next++
		s.page = s.page[:0]
		for ; len(p) > 0; p = p[entrySize:] {
			if e := entryAt(p); b.Alive(e.Pos) {
				s.page = append(s.page, e)
			}
		}
		s.list = s.page
	}
	return nil
}

// CutFront tells that the log begins at front: what lies before it is dead.
func (x *Index) CutFront(front ids.PhysicalOffset) {
	x.work.Lock()
	defer x.work.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.front = max(x.front, front)
	n := 0
	for n < len(x.runs)-1 && x.runs[n].to <= front { // the newest stays, to tell what is covered
		n++
	}
	for _, r := range x.runs[:n] {
		x.drop(r)
	}
	x.runs = slices.Clone(x.runs[n:])
}
