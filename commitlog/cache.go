package commitlog

import "github.com/ledgermq/ledgermq/internal/ids"

// maxUncache bounds what one Uncache gives up: what lies further back was written or read for another purpose, and is left to the
// system.
const maxUncache = 64 << 20

// Uncache tells the system that what lies more than keep bytes before the end of the log is not read soon, so that its memory
// serves something else; nothing else changes, and a later read has it from the disk. It is for a log that no consumers read,
// and is called again as the log grows, by the caller of FillAhead.
func (l *Log) Uncache(keep int64) {
	step := ids.PhysicalOffset(l.o.fillStep()) // a power of two
	l.mu.RLock()
	to := (l.tail.Offset - ids.PhysicalOffset(keep)) &^ (step - 1)
	from := max(l.uncached, to-maxUncache)
	if l.gone || from >= to {
		l.mu.RUnlock()
		return
	}
	var held []*segment
	for _, s := range l.segs {
		if s.base() < to && s.base()+ids.PhysicalOffset(l.o.SegmentSize) > from {
			s.hold()
			held = append(held, s)
		}
	}
	l.mu.RUnlock()
	for _, s := range held {
		start := max(from-s.base(), 0)
		s.file.Uncache(int64(start), int64(min(to-s.base(), ids.PhysicalOffset(l.o.SegmentSize))-start))
		s.release()
	}
	l.uncached = to
}
