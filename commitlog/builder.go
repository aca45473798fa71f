package commitlog

import (
	"sync"

	"github.com/ledgermq/ledgermq/internal/ids"
)

// place returns where a frame of size bytes goes that follows a log ending at end.
// Invariant: 16 bytes at the end of each segment stay free of frames, for the pad marker.
func (o *Options) place(end ids.PhysicalOffset, size int) ids.PhysicalOffset {
	base := o.base(end)
	if int64(end-base)+aligned(int64(size))+padSize <= o.SegmentSize {
		return end
	}
	return base + ids.PhysicalOffset(o.SegmentSize) + segmentHeaderSize
}

// placed tells whether f, behind a log ending at end, is where it may be: where place puts it, or, when it has records, at the
// first place of the next segment: its builder may have left room for more records than came.
func (o *Options) placed(end ids.PhysicalOffset, f Frame) bool {
	next := o.base(end) + ids.PhysicalOffset(o.SegmentSize) + segmentHeaderSize
	return f.Offset() == o.place(end, len(f)) || f.Offset() == next && !f.Empty()
}

// base returns the base of the segment that holds off.
func (o *Options) base(off ids.PhysicalOffset) ids.PhysicalOffset {
	return off &^ ids.PhysicalOffset(o.SegmentSize-1)
}

// EmptyFrame returns the frame without records that follows t. It is a function of its arguments and the segment size alone,
// so that every replica makes the same bytes.
func (l *Log) EmptyFrame(t Tail, term ids.Term, index ids.Index) Frame {
	return putHeader(make([]byte, headerSize), term, index, l.o.place(t.Offset, headerSize), 0, 0, t.Chain)
}

// Follows returns ErrChain when f cannot be the frame after t: Append would refuse it.
func (l *Log) Follows(t Tail, f Frame) error { return l.follows(t, f) }

// buffers keeps the memory of builders that were given up or made no frame, and of released frames. What a large frame has
// grown is given back to the collector.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10); return &b }}

const maxPooled = 1 << 20

// Release gives the memory of a frame that Builder.Finish returned to later builders. Nobody may use the frame afterwards. It
// is for callers that know when the last reader is done. A replica's log does not: frames that were formed for it go to the
// followers too, and are left to the collector.
func Release(f Frame) {
	if cap(f) >= headerSize && cap(f) <= maxPooled {
		b := []byte(f[:0])
		buffers.Put(&b)
	}
}

// Builder forms one frame. It is used by one goroutine.
type Builder struct {
	o     *Options
	prev  Tail
	term  ids.Term
	time  int64
	off   ids.PhysicalOffset
	buf   []byte
	count int
}

// NewBuilder starts the frame that follows t. Its time is timeMillis, or t.Time when that is later.
func (l *Log) NewBuilder(t Tail, term ids.Term, timeMillis int64) *Builder {
	buf := (*buffers.Get().(*[]byte))[:headerSize]
	return &Builder{o: &l.o, prev: t, term: term, time: max(t.Time, timeMillis), off: l.o.place(t.Offset, headerSize), buf: buf}
}

// Index is the index that the frame will have.
func (b *Builder) Index() ids.Index { return b.prev.Index + 1 }

// Term is the term that the frame will have.
func (b *Builder) Term() ids.Term { return b.term }

// Time is the time of the frame's records in milliseconds.
func (b *Builder) Time() int64 { return b.time }

// Len is the size of the frame so far, header included.
func (b *Builder) Len() int { return len(b.buf) }

// Count is the number of records so far.
func (b *Builder) Count() int { return b.count }

// Reserve appends a record of n body bytes, zeroed, and returns the place to fill and its physical offset. The place is valid
// until the next Reserve. ok is false, and nothing happened, when the record does not fit: the frame is at its bound or at
// the end of the segment. While the frame has no record the builder moves on to the next segment by itself, so that then only a
// record that no frame can hold is refused.
func (b *Builder) Reserve(recordType, version uint8, flags uint16, n int) (body []byte, off ids.PhysicalOffset, ok bool) {
	if n < 0 || n > MaxFrame {
		return nil, 0, false
	}
	at := len(b.buf)
	size := at + recordHeaderSize + int(aligned(int64(n)))
	if size > b.o.maxFrame() {
		return nil, 0, false
	}
	switch place := b.o.place(b.prev.Offset, size); {
	case b.count == 0:
		b.off = max(b.off, place) // Admit may have moved on already
	case b.off != b.prev.Offset: // at the start of a segment, which is longer than any frame
	case place != b.off:
		return nil, 0, false
	}
	b.grow(size)
	r := b.buf[at:size]
	clear(r)
	r[0], r[1] = recordType, version
	be.PutUint16(r[2:], flags)
	be.PutUint32(r[4:], uint32(n))
	b.count++
	return r[recordHeaderSize : recordHeaderSize+n : recordHeaderSize+n], b.off + ids.PhysicalOffset(at+recordHeaderSize), true
}

func (b *Builder) grow(size int) {
	if size <= cap(b.buf) {
		b.buf = b.buf[:size]
		return
	}
	grown := make([]byte, size, min(max(2*cap(b.buf), size), max(size, b.o.maxFrame())))
	copy(grown, b.buf)
	b.buf = grown // the smaller buffer is dropped, so that the pool comes to hold those of the usual size
}

// Finish closes the frame and returns it, or nil when it has no record. The builder is of no use afterwards; the frame owns
// the memory.
func (b *Builder) Finish() Frame {
	buf := b.buf
	b.buf = nil
	if b.count == 0 {
		Release(buf)
		return nil
	}
	return putHeader(buf, b.term, b.Index(), b.off, b.time, b.count, b.prev.Chain)
}

// Abandon gives up the frame and its memory.
func (b *Builder) Abandon() {
	Release(b.buf)
	b.buf = nil
}
