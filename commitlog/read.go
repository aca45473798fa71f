package commitlog

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// readFull reads b at off; fewer bytes only at the end of the file, without an error.
func readFull(f vfs.File, b []byte, off int64) (int, error) {
	n, err := f.ReadAt(b, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// segmentOf returns the segment that holds index i; mu is held and i is in the log.
func (l *Log) segmentOf(i ids.Index) *segment {
	at := sort.Search(len(l.segs), func(n int) bool { return l.segs[n].first > i }) - 1
	return l.segs[at]
}

// spot is where a frame is, or a frame before it in the same segment.
type spot struct {
	seg   *segment // held
	index ids.Index
	pos   int64
	ref   Ref    // of the frame itself; zero Size when not known
	cuts  uint64 // Log.cuts when it was found
}

// locate finds frame i, as well as memory knows it. The caller releases spot.seg.
func (l *Log) locate(i ids.Index) (spot, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.gone:
		return spot{}, ErrClosed
	case i <= l.front.prev.Index:
		return spot{}, ErrCompacted
	case i > l.tail.Index:
		return spot{}, ErrUnavailable
	}
	s := spot{seg: l.segmentOf(i), index: i, cuts: l.cuts.Load()}
	s.seg.hold()
	if ref, ok := l.recent.get(i); ok {
		s.ref, s.pos = ref, int64(ref.Offset-s.seg.base())
		return s, nil
	}
	delta, pos := s.seg.sparse.find(uint32(i - s.seg.first))
	s.index, s.pos = s.seg.first+ids.Index(delta), pos
	// A follower that is behind is served index by index: go on where the last walk ended.
	if h := l.walked.Load(); h != nil && h.seg == s.seg && h.cuts == s.cuts && h.index <= i && h.index > s.index {
		s.index, s.pos = h.index, h.pos
	}
	return s, nil
}

// header reads and checks the header of the frame with the given index at pos.
func (l *Log) header(seg *segment, index ids.Index, pos int64, buf *[headerSize]byte) (Ref, error) {
	off := seg.base() + ids.PhysicalOffset(pos)
	n, err := readFull(seg.file, buf[:], pos)
	if err != nil {
		return Ref{}, unreadable(seg, off, err)
	}
	size, err := frameSize(buf[:n], l.o.maxFrame())
	if err != nil {
		return Ref{}, &CorruptionError{File: seg.path, Offset: off, Reason: err.(*CorruptionError).Reason}
	}
	if f := Frame(buf[:]); f.Index() != index || f.Offset() != off {
		return Ref{}, &CorruptionError{File: seg.path, Offset: off, Reason: fmt.Sprintf("frame of index %d, offset %d, want index %d", f.Index(), f.Offset(), index)}
	}
	return Ref{Offset: off, Size: uint32(size), CRC: Frame(buf[:]).Chain()}, nil
}

// walk follows the headers from s to frame i.
func (l *Log) walk(s spot, i ids.Index) (Ref, error) {
	if s.ref.Size != 0 {
		return s.ref, nil
	}
	var buf [headerSize]byte
	for index, pos := s.index, s.pos; ; index++ {
		ref, err := l.header(s.seg, index, pos, &buf)
		if err != nil {
			return ref, err
		}
		if index == i {
			l.walked.Store(&spot{seg: s.seg, index: i, pos: pos, cuts: s.cuts})
			return ref, nil
		}
		pos += aligned(int64(ref.Size))
	}
}

// attempt runs read until it succeeds or fails without having raced with a cut, which is what poisons the log. A cut by
// another process is ErrOvertaken.
func (l *Log) attempt(read func() error) error {
	for {
		cuts := l.cuts.Load()
		err := read()
		switch {
		case err == nil, errors.Is(err, ErrCompacted), errors.Is(err, ErrUnavailable), errors.Is(err, ErrClosed):
			return err
		case l.cuts.Load() != cuts:
			continue
		case l.o.ReadOnly && l.overtaken():
			return fmt.Errorf("%w: %v", ErrOvertaken, err) // not to be taken for damage
		}
		var c *CorruptionError
		if !errors.As(err, &c) {
			err = fmt.Errorf("commitlog: read: %w", err)
		}
		l.poisoned(opRead, err)
		return err
	}
}

// RefOf returns the reference of frame i as its header states it: the frame itself is not read. Errors as TermOf.
func (l *Log) RefOf(i ids.Index) (ref Ref, err error) {
	err = l.attempt(func() error {
		s, err := l.locate(i)
		if err != nil {
			return err
		}
		defer s.seg.release()
		ref, err = l.walk(s, i)
		return err
	})
	return ref, err
}

// ReadFrame reads and verifies frame i, into buf when that is large enough. It returns ErrCompacted below FirstIndex,
// ErrUnavailable above the tail, and a *CorruptionError when the bytes are damaged, which poisons the log.
func (l *Log) ReadFrame(i ids.Index, buf []byte) (f Frame, err error) {
	err = l.attempt(func() error {
		s, err := l.locate(i)
		if err != nil {
			return err
		}
		defer s.seg.release()
		ref, err := l.walk(s, i)
		if err != nil {
			return err
		}
		f, err = l.readRef(s.seg, i, ref, buf)
		return err
	})
	return f, err
}

// readRef reads and verifies the frame that ref names.
func (l *Log) readRef(seg *segment, i ids.Index, ref Ref, buf []byte) (Frame, error) {
	if cap(buf) < int(ref.Size) {
		buf = make([]byte, ref.Size)
	}
	buf = buf[:ref.Size]
	n, err := readFull(seg.file, buf, int64(ref.Offset-seg.base()))
	if err != nil {
		return nil, unreadable(seg, ref.Offset, err)
	}
	f, err := CheckFrame(buf[:n])
	if err != nil {
		return nil, &CorruptionError{File: seg.path, Offset: ref.Offset, Reason: err.(*CorruptionError).Reason}
	}
	if f.Index() != i || f.Ref() != ref {
		return nil, &CorruptionError{File: seg.path, Offset: ref.Offset, Reason: fmt.Sprintf("holds frame %d %+v, want %d %+v", f.Index(), f.Ref(), i, ref)}
	}
	return f, nil
}

// FrameAt reads and verifies the frame that starts at off. When none does it returns ErrUnavailable.
func (l *Log) FrameAt(off ids.PhysicalOffset) (f Frame, err error) {
	err = l.attempt(func() error {
		seg, end, err := l.holdAt(off, headerSize)
		if err != nil {
			return err
		}
		defer seg.release()
		l.mu.RLock()
		if len(seg.sparse) == 0 {
			l.mu.RUnlock()
			return ErrUnavailable
		}
		delta, pos := seg.sparse.findPos(max(int64(off-seg.base()), segmentHeaderSize))
		index := seg.first + ids.Index(delta)
		l.mu.RUnlock()
		var head [headerSize]byte
		for pos < end {
			ref, err := l.header(seg, index, pos, &head)
			if err != nil {
				return err
			}
			if ref.Offset == off {
				f, err = l.readRef(seg, index, ref, nil)
				return err
			}
			if ref.Offset > off {
				break
			}
			index++
			pos += aligned(int64(ref.Size))
		}
		return ErrUnavailable
	})
	return f, err
}

// segmentAt returns which segment has what lies at off, between front and tail; mu is held.
func (l *Log) segmentAt(off ids.PhysicalOffset) (int, error) {
	switch {
	case l.gone:
		return 0, ErrClosed
	case off < l.front.base+segmentHeaderSize:
		return 0, ErrCompacted
	case off >= l.tail.Offset:
		return 0, ErrUnavailable
	}
	return int((off - l.front.base) / ids.PhysicalOffset(l.o.SegmentSize)), nil
}

// holdAt returns the segment in which [off, off+n) is written, held, and the end of its frames.
func (l *Log) holdAt(off ids.PhysicalOffset, n int) (*segment, int64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i, err := l.segmentAt(off)
	if err != nil {
		return nil, 0, err
	}
	seg := l.segs[i]
	if int64(off-seg.base())+int64(n) > seg.end {
		return nil, 0, ErrUnavailable
	}
	seg.hold()
	return seg, seg.end, nil
}

// ReadAt fills p with the bytes at off, which must lie inside the written frames of one segment. They are not verified. It
// returns ErrCompacted below FirstOffset and ErrUnavailable outside of what is written.
func (l *Log) ReadAt(p []byte, off ids.PhysicalOffset) error {
	for {
		cuts := l.cuts.Load()
		err := l.attempt(func() error {
			seg, _, err := l.holdAt(off, len(p))
			if err != nil {
				return err
			}
			defer seg.release()
			n, err := readFull(seg.file, p, int64(off-seg.base()))
			if err == nil && n < len(p) {
				return &CorruptionError{File: seg.path, Offset: off, Reason: "the file ends early"}
			}
			return unreadable(seg, off, err)
		})
		if err != nil || l.cuts.Load() == cuts {
			return err
		}
	}
}

// ReadRaw reads what lies at off in one segment: frames, and behind the last one of a sealed segment the pad marker. Nothing is verified.
// It returns how many bytes of p it filled, fewer at their end, and the errors of ReadAt.
func (l *Log) ReadRaw(p []byte, off ids.PhysicalOffset) (n int, err error) {
	for {
		cuts := l.cuts.Load()
		err := l.attempt(func() error {
			seg, end, err := l.holdRaw(off)
			if err != nil {
				return err
			}
			defer seg.release()
			at := int64(off - seg.base())
			n, err = readFull(seg.file, p[:min(int64(len(p)), end-at)], at)
			return unreadable(seg, off, err)
		})
		if err != nil || l.cuts.Load() == cuts {
			return n, err
		}
	}
}

// holdRaw returns the segment in which off lies, held, and where its frames end, with the pad marker of a sealed one.
func (l *Log) holdRaw(off ids.PhysicalOffset) (*segment, int64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i, err := l.segmentAt(off)
	if err != nil {
		return nil, 0, err
	}
	seg, end := l.segs[i], l.segs[i].end
	if i < len(l.segs)-1 {
		end += padSize
	}
	if at := int64(off - seg.base()); at < segmentHeaderSize || at >= end {
		return nil, 0, ErrUnavailable
	}
	seg.hold()
	return seg, end, nil
}

// unreadable is a read that failed: what cannot be read is damaged, and can be repaired like it.
func unreadable(seg *segment, off ids.PhysicalOffset, err error) error {
	if err == nil {
		return nil
	}
	return &CorruptionError{File: seg.path, Offset: off, Reason: "cannot be read: " + err.Error(), Err: err}
}

// Frames reads frames one behind the other from index from to the tail, the tail at the time that it is reached. Each is
// verified, also that it chains on. A frame is valid until the next step. After an error, which is one of ReadFrame, it ends.
func (l *Log) Frames(from ids.Index) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		c := cursor{l: l}
		defer c.close()
		for i := from; i <= l.Tail().Index; i++ {
			f, err := c.frame(i)
			if errors.Is(err, ErrUnavailable) && i > from {
				return // the tail was cut meanwhile
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// cursor reads neighbouring frames through one buffer.
type cursor struct {
	l    *Log
	w    window
	seg  *segment // held
	cuts uint64
	prev Tail // zero: the next frame is looked up
}

func (c *cursor) close() {
	if c.seg != nil {
		c.seg.release()
		c.seg = nil
	}
}

func (c *cursor) frame(i ids.Index) (f Frame, err error) {
	err = c.l.attempt(func() error {
		f, err = c.next(i)
		if err != nil {
			c.close()
			c.prev = Tail{}
		}
		return err
	})
	return f, err
}

func (c *cursor) next(i ids.Index) (Frame, error) {
	l := c.l
	if cuts := l.cuts.Load(); cuts != c.cuts {
		c.close()
		c.cuts, c.prev = cuts, Tail{}
	}
	var pos int64
	if c.seg != nil && c.prev.Index+1 == i {
		pos = int64(c.prev.Offset - c.seg.base())
	}
	l.mu.RLock()
	inside := c.seg != nil && pos > 0 && i <= c.seg.last
	if inside {
		c.w.limit = c.seg.end
	}
	l.mu.RUnlock()
	if !inside {
		s, err := l.locate(i)
		if err != nil {
			return nil, err
		}
		c.close()
		c.seg = s.seg
		ref, err := l.walk(s, i)
		if err != nil {
			return nil, err
		}
		pos = int64(ref.Offset - s.seg.base())
		l.mu.RLock()
		c.w = window{f: s.seg.file, buf: c.w.buf, limit: s.seg.end}
		l.mu.RUnlock()
	}
	off := c.seg.base() + ids.PhysicalOffset(pos)
	bad := func(format string, args ...any) (Frame, error) {
		return nil, &CorruptionError{File: c.seg.path, Offset: off, Reason: fmt.Sprintf(format, args...)}
	}
	b, err := c.w.at(pos, headerSize)
	if err != nil {
		return nil, unreadable(c.seg, off, err)
	}
	size, err := frameSize(b, l.o.maxFrame())
	if err != nil {
		return bad("%s", err.(*CorruptionError).Reason)
	}
	if b, err = c.w.at(pos, size); err != nil {
		return nil, unreadable(c.seg, off, err)
	}
	f, err := CheckFrame(b)
	if err != nil {
		return bad("%s", err.(*CorruptionError).Reason)
	}
	if f.Index() != i || f.Offset() != off {
		return bad("frame of index %d, offset %d, want index %d", f.Index(), f.Offset(), i)
	}
	if c.prev.Index != 0 && c.prev.Index+1 == i && f.PrevChain() != c.prev.Chain {
		return bad("follows chain %08x, not %08x", f.PrevChain(), c.prev.Chain)
	}
	c.prev = c.prev.After(f)
	return f, nil
}
