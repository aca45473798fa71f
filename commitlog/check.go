package commitlog

import (
	"errors"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// CheckSegment reads the sealed segment at base and compares all of it with what the log knows: the header, each frame, that they chain on
// to each other and to the neighbours. pace is called behind each frame with its size, and ends the check with its error. What is bad is a
// *CorruptionError and poisons the log, as with any read. It returns ErrUnavailable when no sealed segment is at base.
func (l *Log) CheckSegment(base ids.PhysicalOffset, pace func(bytes int) error) error {
	var stop error
	err := l.attempt(func() error {
		stop = nil
		seg, next, err := l.holdSealed(base)
		if err != nil {
			return err
		}
		defer seg.release()
		bad := func(off ids.PhysicalOffset, format string, args ...any) error {
			return &CorruptionError{File: seg.path, Offset: off, Reason: fmt.Sprintf(format, args...)}
		}
		b := make([]byte, segmentHeaderSize)
		n, err := readFull(seg.file, b, 0)
		if err != nil {
			return unreadable(seg, base, err)
		}
		if h, err := decodeSegmentHeader(b[:n]); err != nil || h != seg.header {
			return bad(base, "segment header: %v", err)
		}
		t := Tail{Index: seg.first - 1, Offset: base + segmentHeaderSize, Chain: seg.header.seed}
		t, end, err := l.o.scanSegment(seg.file, base, t, l.o.SegmentSize, func(f Frame) error {
			stop = pace(len(f))
			return stop
		})
		switch {
		case stop != nil:
			return ErrUnavailable // not a fault of the log
		case err != nil:
			return unreadable(seg, t.Offset, err)
		case !end.pad && t.Index < next.first-1:
			return bad(t.Offset, "%s", end.reason)
		case !end.pad || t.Index != next.first-1 || t.Chain != next.header.seed:
			return bad(t.Offset, "the segment ends with index %d, chain %08x, want index %d, chain %08x", t.Index, t.Chain, next.first-1, next.header.seed)
		}
		return nil
	})
	if stop != nil && errors.Is(err, ErrUnavailable) {
		return stop
	}
	return err
}

// holdSealed returns the sealed segment at base, held, and the one behind it, of which only what never changes may be read.
func (l *Log) holdSealed(base ids.PhysicalOffset) (seg, next *segment, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.gone {
		return nil, nil, ErrClosed
	}
	for i, s := range l.segs[:len(l.segs)-1] {
		if s.base() == base {
			s.hold()
			return s, l.segs[i+1], nil
		}
	}
	return nil, nil, ErrUnavailable
}
