package index

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// Checkpoint makes durable what is known below upTo; the caller has added every message below it. It spills what is in
// memory to one run file, merges the runs of a segment that is now complete to one file, and those of a segment that has
// too many. Call it for each 64 MiB of log, in the background: Add and readers go on. After an error the entries are still
// in memory, and the next Checkpoint tries again.
func (x *Index) Checkpoint(upTo ids.PhysicalOffset) error {
	x.work.Lock()
	defer x.work.Unlock()
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return ErrClosed
	}
	if upTo > x.added {
		x.advance(upTo)
	}
	x.freeze()
	v := x.version
	v.refs.Add(1)
	x.mu.Unlock()
	defer v.unref()

	for slots := v.slots; len(slots) > 0; {
		from, _ := slots[0].span()
		n := 1
		for n < len(slots) && x.o.base(spanFrom(slots[n])) == x.o.base(from) {
			n++
		}
		if err := x.checkpointSegment(slots[:n]); err != nil {
			_ = x.giveUp(err)
			return fmt.Errorf("checkpoint of the queue index: %w", err)
		}
		slots = slots[n:]
	}
	return nil
}

func spanFrom(s slot) ids.PhysicalOffset {
	from, _ := s.span()
	return from
}

// checkpointSegment writes the slots of one segment as they should be on the disk.
func (x *Index) checkpointSegment(slots []slot) error {
	for len(slots) > 0 {
		// Neighbours without a hole between them.
		n := 1
		_, end := slots[0].span()
		for n < len(slots) && spanFrom(slots[n]) == end {
			_, end = slots[n].span()
			n++
		}
		group := slots[:n]
		slots = slots[n:]
		unwritten := slices.IndexFunc(group, func(s slot) bool { return s.file == nil })
		from := spanFrom(group[0])
		complete := from == x.o.base(from) && end == x.o.end(from)
		switch {
		case complete && (n > 1 || unwritten >= 0), n > x.o.MaxRuns:
			if err := x.write(group); err != nil {
				return err
			}
		case unwritten >= 0:
			// Files come before what was added after them, except where a hole was filled: there are few of those.
			for i := unwritten; i < n; {
				j := i + 1
				for j < n && group[j].file == nil {
					j++
				}
				if group[i].file == nil {
					if err := x.write(group[i:j]); err != nil {
						return err
					}
				}
				i = j
			}
		}
	}
	return nil
}

// write puts one file in the place of the slots, which are neighbours without a hole.
func (x *Index) write(slots []slot) error {
	_, to := slots[len(slots)-1].span()
	h := header{group: x.o.Group, segmentSize: x.o.SegmentSize, from: spanFrom(slots[0]), to: to, worded: true}
	for _, s := range slots {
		h.worded = h.worded && (s.mem != nil || s.file.worded)
	}
	f, err := writeFile(x.o.FS, x.o.Dir, h, slots)
	if err != nil {
		return err
	}
	s := slot{file: f}
	if len(slots) == 1 {
		s.mem = slots[0].mem
	}
	x.mu.Lock()
	x.insert(s)
	x.forget()
	x.mu.Unlock()
	for _, old := range slots {
		if old.file != nil {
			x.remove(old.file.name)
		}
	}
	return nil
}

// goneNow is gone for who does not hold x.mu.
func (x *Index) goneNow(k Key) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.gone(k)
}

// forget frees the memory of all but the newest slot that has a file. x.mu is held.
func (x *Index) forget() {
	slots := slices.Clone(x.version.slots)
	for i := range slots[:max(0, len(slots)-1)] {
		if slots[i].file != nil {
			slots[i].mem = nil
		}
	}
	x.setSlots(slots)
}

// CutFront drops the segments below base, which is a segment's first offset: the log has given them up.
func (x *Index) CutFront(base ids.PhysicalOffset) error {
	x.work.Lock()
	defer x.work.Unlock()
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return ErrClosed
	}
	base = x.o.base(base)
	if base <= x.front {
		x.mu.Unlock()
		return nil
	}
	x.front = base
	if x.active != nil && x.active.from < base {
		x.active = nil
	}
	x.added = max(x.added, base)
	var gone []slot
	slots := slices.Clone(x.version.slots)
	slots = slices.DeleteFunc(slots, func(s slot) bool {
		_, to := s.span()
		if to <= base {
			gone = append(gone, s)
		}
		return to <= base
	})
	x.setSlots(slots)
	for t, at := range x.dropped {
		if at <= base {
			delete(x.dropped, t)
		}
	}
	x.mu.Unlock()
	var all []error
	for _, s := range gone {
		if s.file != nil {
			all = append(all, x.o.FS.Remove(s.file.name))
		}
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("cut the front of the queue index: %w", err) // the next Open removes them
	}
	return nil
}

// CutMins tells for each queue that has entries below base, which is a segment's first offset, the first queue offset that
// a cut there leaves: queues in ascending order of keys, first inclusive. The offset is the queue's end when nothing is
// left. It returns an error when a part of the log below base is not indexed.
func (x *Index) CutMins(base ids.PhysicalOffset, visit func(k Key, first ids.QueueOffset) error) error {
	v, at, err := x.present()
	if err != nil {
		return err
	}
	defer v.unref()
	var below []slot
	for _, s := range v.slots {
		from, to := s.span()
		if from >= base {
			break
		}
		if from != at {
			break
		}
		below, at = append(below, s), to
	}
	if at < base {
		return fmt.Errorf("the queue index has no %d, which a cut at %d needs", at, base)
	}
	err = mergeRows(below, func(k Key, _, next ids.QueueOffset) error {
		if x.goneNow(k) {
			return nil
		}
		return visit(k, next)
	})
	if err != nil {
		return x.giveUp(err)
	}
	return nil
}

// Drop hides the queues of a topic that was deleted. Their entries stay in the files until the front is cut past them, as
// their messages do in the log; to leave them out of a merge would tear holes into queues that are still in other files. A
// reopened index shows them again, which does no harm: a topic's id is never used twice, so nobody asks for it.
func (x *Index) Drop(topic ids.TopicID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	end := x.added
	if n := len(x.version.slots); n > 0 { // after Open files may reach further, beyond a hole
		_, to := x.version.slots[n-1].span()
		end = max(end, to)
	}
	x.dropped[topic] = end
}

// Rebuild fills one hole that Missing told. read must call add for the messages of the log in [s.From, s.To), in order; it
// may call it for others, which are left out. It is durable when Rebuild returns. The caller must not add the same span by
// Add meanwhile.
func (x *Index) Rebuild(s Span, read func(add func(k Key, qo ids.QueueOffset, e Entry, hashes ...uint64) error) error) error {
	x.work.Lock()
	defer x.work.Unlock()
	if !slices.Contains(x.Missing(), s) {
		return fmt.Errorf("rebuild the queue index: %d to %d is no hole of it", s.From, s.To)
	}
	m := newMemRun(s.From, maxHeads)
	m.to = s.To
	unknown := func(Key) (ids.QueueOffset, bool) { return 0, false }
	err := read(func(k Key, qo ids.QueueOffset, e Entry, hashes ...uint64) error {
		if e.Offset < s.From || e.Offset >= s.To {
			return nil
		}
		m.words.add(uint32(e.Offset-x.o.base(s.From)), hashes)
		return m.add(k, qo, e, unknown)
	})
	if err == nil {
		err = x.write([]slot{{mem: m}})
	}
	if err != nil {
		return fmt.Errorf("rebuild the queue index from %d to %d: %w", s.From, s.To, err)
	}
	// What is covered need not be added again, and is a hole, not the log's end, when its file is given up.
	x.mu.Lock()
	if x.active == nil {
		x.added = max(x.added, x.covered())
	}
	x.mu.Unlock()
	return nil
}
