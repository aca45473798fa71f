package commitlog

import (
	"errors"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// SegmentSize is the size of a segment in bytes, a property of the group.
func (l *Log) SegmentSize() int64 { return l.o.SegmentSize }

// IndexAt returns the index of the frame that holds the byte at off, or, when off lies between frames (a segment's header, padding
// at its end), of the first frame behind it. It returns ErrCompacted below FirstOffset and ErrUnavailable at or above the end.
func (l *Log) IndexAt(off ids.PhysicalOffset) (i ids.Index, err error) {
	off = max(off, l.o.base(off)+segmentHeaderSize)
	err = l.attempt(func() error {
		seg, end, err := l.holdAt(off, 0)
		if errors.Is(err, ErrUnavailable) {
			return l.afterEnd(off, &i)
		}
		if err != nil {
			return err
		}
		defer seg.release()
		pos := int64(off - seg.base())
		l.mu.RLock()
		if len(seg.sparse) == 0 {
			l.mu.RUnlock()
			return l.afterEnd(off, &i)
		}
		delta, at := seg.sparse.findPos(pos)
		i = seg.first + ids.Index(delta)
		l.mu.RUnlock()
		var head [headerSize]byte
		for at < end {
			ref, err := l.header(seg, i, at, &head)
			if err != nil {
				return err
			}
			if at += aligned(int64(ref.Size)); at > pos {
				return nil
			}
			i++
		}
		return l.afterEnd(off, &i)
	})
	return i, err
}

// afterEnd sets i to the first frame of the segment after the one of off.
func (l *Log) afterEnd(off ids.PhysicalOffset, i *ids.Index) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	next := l.o.base(off) + ids.PhysicalOffset(l.o.SegmentSize)
	for _, s := range l.segs {
		if s.base() == next && s.last >= s.first {
			*i = s.first
			return nil
		}
	}
	return ErrUnavailable
}

// RecordSpace is what a record of n body bytes takes in a frame: its header, its body, and the alignment behind it.
func RecordSpace(n int) int { return recordHeaderSize + int(aligned(int64(n))) }

// Admit tells whether records that take n bytes together (see RecordSpace) all fit into the frame. While the frame has no record
// the builder moves on to the next segment by itself when the rest of this one is too small for them.
func (b *Builder) Admit(n int) bool {
	size := len(b.buf) + n
	if n < 0 || size > b.o.maxFrame() {
		return false
	}
	switch place := b.o.place(b.prev.Offset, size); {
	case b.count == 0:
		b.off = place
		return true
	case b.off != b.prev.Offset:
		return true
	default:
		return place == b.off
	}
}
