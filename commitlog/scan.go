package commitlog

import (
	"bytes"
	"fmt"

	"github.com/ledgermq/ledgermq/internal/ids"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// scanEnd tells where and why a scan stopped.
type scanEnd struct {
	pad     bool   // at a pad marker: the log goes on in the next segment
	reason  string // why the bytes at the tail are no frame that follows
	nothing bool   // there are none, or zeros
}

// scanSegment reads frames that follow t from a segment of the given base until one does not. visit sees each; t after it is
// returned. The error is that of a read, or of visit.
func (o *Options) scanSegment(f vfs.File, base ids.PhysicalOffset, t Tail, limit int64, visit func(Frame) error) (Tail, scanEnd, error) {
	w := &window{f: f, limit: min(limit, o.SegmentSize)}
	pos := int64(max(t.Offset-base, segmentHeaderSize))
	for {
		fr, end, err := o.scanFrame(w, base, pos, t)
		if err != nil || fr == nil {
			return t, end, err
		}
		if err := visit(fr); err != nil {
			return t, end, err
		}
		t = t.After(fr)
		pos = int64(t.Offset - base)
	}
}

// scanFrame returns the frame at pos that follows t, or nil and why there is none.
func (o *Options) scanFrame(w *window, base ids.PhysicalOffset, pos int64, t Tail) (Frame, scanEnd, error) {
	off := base + ids.PhysicalOffset(pos)
	none := func(format string, args ...any) (Frame, scanEnd, error) {
		return nil, scanEnd{reason: fmt.Sprintf(format, args...)}, nil
	}
	b, err := w.at(pos, headerSize)
	if err != nil {
		return nil, scanEnd{}, err
	}
	if isPad(b, off, t.Chain) {
		return nil, scanEnd{pad: true}, nil
	}
	if bytes.Equal(b, zeros[:len(b)]) {
		return nil, scanEnd{reason: "zeros", nothing: true}, nil
	}
	size, err := frameSize(b, o.maxFrame())
	if err != nil {
		return none("%s", err.(*CorruptionError).Reason)
	}
	if b, err = w.at(pos, size); err != nil {
		return nil, scanEnd{}, err
	}
	f, err := ParseFrame(b, t.Chain)
	switch {
	case err != nil:
		return none("%s", err.(*CorruptionError).Reason)
	case f.Offset() != off || f.Index() != t.Index+1 || f.Term() < t.Term || !o.placed(t.Offset, f):
		return none("frame of index %d, term %v, offset %d after index %d, term %v", f.Index(), f.Term(), f.Offset(), t.Index, t.Term)
	}
	return f, scanEnd{}, nil
}

// findLater looks for a valid frame of this log at or behind pos that ends behind beyond, whatever it chains on to. A frame of
// another life of the file can not be taken for one: it names another offset.
func (o *Options) findLater(f vfs.File, base ids.PhysicalOffset, pos, size int64, last ids.Index, beyond ids.PhysicalOffset) (ids.PhysicalOffset, bool, error) {
	const overlap = headerSize
	w := &window{f: f, limit: min(size, o.SegmentSize)}
	pos = max(pos, segmentHeaderSize)
	buf := make([]byte, min(windowSize, max(w.limit-pos, 0)))
	for pos < w.limit {
		n, err := readFull(f, buf[:min(int64(len(buf)), w.limit-pos)], pos)
		if err != nil {
			return 0, false, err
		}
		chunk := buf[:n]
		for at := 0; ; at++ {
			i := bytes.Index(chunk[at:], []byte(frameMagic))
			if i < 0 {
				break
			}
			at += i
			if at%align != 0 || len(chunk)-at < headerSize {
				continue
			}
			head := Frame(chunk[at:])
			if head.Offset() != base+ids.PhysicalOffset(pos)+ids.PhysicalOffset(at) || head.Index() <= last {
				continue
			}
			fsize, err := frameSize(head, o.maxFrame())
			if err != nil {
				continue
			}
			b, err := w.at(pos+int64(at), fsize)
			if err != nil {
				return 0, false, err
			}
			if fr, err := CheckFrame(b); err == nil && fr.Offset()+ids.PhysicalOffset(fsize) > beyond {
				return fr.Offset(), true, nil
			}
		}
		if n <= overlap {
			break
		}
		pos += int64(n - overlap)
	}
	return 0, false, nil
}
